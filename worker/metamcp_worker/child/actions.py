"""What a session wants done, as values.

Owns: these values. Never: doing them (`run`), deciding on them (`session`).
"""

from enum import Enum, auto
from typing import Literal

from msgspec import Struct

from metamcp_worker.catalogue import ServerCatalogue
from metamcp_worker.frames import Error, Notice, Progress, Result

Reason = Literal["spawn", "exit", "clean", "signal", "start_timeout", "protocol", "limit"]
"""Why a server is down: the exit classes that a worker can tell apart."""


class Purpose(Enum):
    """What the gateway asks a server for on its own account; of each kind one at a time."""

    HANDSHAKE = auto()
    LIST = auto()
    LISTEN = auto()


class Write(Struct, frozen=True, gc=False):
    """Send this line to the server. `call`: the id of the call that it is, or empty."""

    line: bytes
    call: bytes = b""


class Reply(Struct, frozen=True, gc=False):
    """Send this frame to the front that called."""

    front: int
    frame: Result | Error | Progress


class Announce(Struct, frozen=True, gc=False):
    """Send this notification to all fronts."""

    frame: Notice


class Ready(Struct, frozen=True):
    """Handshake and lists are done."""

    catalogue: ServerCatalogue
    list_hash: str


class Relisted(Struct, frozen=True):
    """The lists are others now."""

    catalogue: ServerCatalogue
    list_hash: str


class Count(Struct, frozen=True):
    """It happened once more."""

    counter: str


class Warn(Struct, frozen=True):
    """A sentence of the gateway's own for the server's log."""

    text: str


class Stray(Struct, frozen=True):
    """A line that is no JSON-RPC message."""

    line: bytes


class Fail(Struct, frozen=True):
    """This server cannot be used: stop it. `message`: a sentence that begins with "it"."""

    reason: Reason
    message: str


Action = Write | Reply | Announce | Ready | Relisted | Count | Warn | Stray | Fail
