"""Actions that a session wants carried out, as values.

Owns: the values. Never: carrying them out (`run`), deciding on them (`server_session`).
"""

from enum import Enum, auto
from typing import Literal

from msgspec import Struct

from metamcp_worker.ipc.frames import (
    Error,
    KeptFrame,
    Notice,
    Progress,
    QuestionFrame,
    Result,
    WithdrawQuestion,
)
from metamcp_worker.ipc.server_catalog import ServerCatalogue

Reason = Literal[
    "spawn", "exit", "clean", "signal", "start_timeout", "authorization", "protocol", "limit",
    "hang", "tls", "redirect",
]  # fmt: skip
"""Exit classes that a worker can distinguish: why a server is down."""


class RequestPurpose(Enum):
    """Purposes for which the gateway sends a server requests of its own."""

    HANDSHAKE = auto()
    LIST = auto()
    LISTEN = auto()
    SUBSCRIBE = auto()
    LEVEL = auto()
    PROBE = auto()


class ServerRequest(Struct, frozen=True, gc=False):
    """Send this request to the server. `key`: its id as on the wire; `line`: the whole message.

    `method`, `params`, `caller`: the parts that `line` was built from, for transports that repeat
    some of them in headers or have a session for each kind of client. `own`: the request is the
    gateway's, not that of a call.
    """

    key: bytes
    line: bytes
    method: str
    params: bytes = b"{}"
    caller: bytes = b""
    own: bool = False


class WriteToServer(Struct, frozen=True, gc=False):
    """Send this line, which is not a request but a notification or an answer to the server. `via`:
    the session of the transport in which the question came, see `transport`."""

    line: bytes
    via: int = 0


class CancelRequest(Struct, frozen=True, gc=False):
    """Tell the server that no caller waits for the request `key` any more. `line`: the notification
    that says so, for transports on which the end of a stream does not say it."""

    key: bytes
    line: bytes


class ReplyToFront(Struct, frozen=True, gc=False):
    """Send this frame to the front that called."""

    front: int
    frame: Result | Error | Progress | QuestionFrame | WithdrawQuestion | Notice | KeptFrame


class KeepResult(Struct, frozen=True, gc=False):
    """Send this result to the front that called; if the result is large, keep it and send a short
    one. `place`: raw, as in `frames.CallFrame.results`; `server`, `tool`: names of
    both, the method for a result without a tool."""

    front: int
    frame: Result
    place: bytes
    server: str
    tool: str


class TellFronts(Struct, frozen=True, gc=False):
    """Send this notification, which belongs to no call, to all fronts."""

    frame: Notice


class Ready(Struct, frozen=True):
    """Handshake and lists are done."""

    catalogue: ServerCatalogue
    list_hash: str


class Relisted(Struct, frozen=True):
    """The lists have changed."""

    catalogue: ServerCatalogue


class CountOnce(Struct, frozen=True):
    """Add one to this counter, a name of `messages.EventCounts`."""

    counter: str


class WarnInLog(Struct, frozen=True):
    """A sentence of the gateway's own for the server's log."""

    text: str


class InvalidLine(Struct, frozen=True):
    """A line that is not a JSON-RPC message."""

    line: bytes


class Fail(Struct, frozen=True):
    """Stop the server, because it cannot be used. `message`: a sentence that begins with "it".
    `retry_after_s`: seconds for which the server asked to be left alone."""

    reason: Reason
    message: str
    retry_after_s: float = 0.0


Action = (
    ServerRequest
    | WriteToServer
    | CancelRequest
    | ReplyToFront
    | KeepResult
    | TellFronts
    | Ready
    | Relisted
    | CountOnce
    | WarnInLog
    | InvalidLine
    | Fail
)
Actions = list[Action]
