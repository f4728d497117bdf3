"""Base class of all messages on the control sockets.

Owns: `Message`. Never: the messages themselves (`messages`).
"""

from msgspec import Struct


class Message(Struct, frozen=True, kw_only=True, tag=True):
    """Base class of all messages; the tag is the class name."""
