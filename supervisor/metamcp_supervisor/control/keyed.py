"""What orders have in common: the key with which one is given once, however often it is sent.

Owns: this parameter. Never: remembering keys (`answers`), what an order does (`orders`).
"""

from msgspec import Struct


class Keyed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An order that changes something. `key`: one that comes again with the same key is answered as
    before and not carried out again (`answers`)."""

    key: str = ""
