"""What is told of a traced call: the two spans of it, and when a server had it.

Owns: these values, the message that takes them to the supervisor, the notice of a worker. Never:
which calls are traced (`front/tracing`), sending, a format of any collector.

Times are of the monotonic clock, which is one for all processes of a machine: whoever needs the
time of day adds what lies between the two.
"""

import struct
from typing import Literal, NamedTuple

from msgspec import Struct

from metamcp_worker.ipc.message import Message

NOTICE = "metamcp/traced"
"""The method of the notice that a worker sends before the answer of a server to a traced call.
What a server sends under this name is JSON, and the number of no call begins with the byte of a
brace."""

_LAYOUT = struct.Struct("!Qdd?")

Value = str | int | bool


class Span(Struct, frozen=True, gc=False, array_like=True):
    """One of the two of a call: `server` is the gateway's towards its client, `client` that towards
    the server. `trace_id`, `span_id`, `parent_id`: hexadecimal, `parent_id` empty at the beginning
    of a trace; `far`: the parent is somebody else's. `start`, `end`: monotonic seconds. `state`:
    the `tracestate` that came. `error`: as the metrics have it, empty when it went well."""

    kind: Literal["server", "client"]
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    far: bool
    flags: int
    start: float
    end: float
    attributes: dict[str, Value]
    state: str = ""
    error: str = ""


class Spans(Message, frozen=True, kw_only=True):
    """From a front, once a second or more often while there are any. Descriptor: blob with a JSON
    list of `count` values of `Span`. `lost`: so many more could not be told since the last time."""

    count: int
    lost: int = 0


class Leg(NamedTuple):
    """The server's part of call `id`: when it was sent there, and when the answer came. `far`: the
    server is reached over the network."""

    id: int
    sent: float
    heard: float
    far: bool


def pack(leg: Leg) -> bytes:
    return _LAYOUT.pack(*leg)


def unpack(data: bytes) -> Leg | None:
    """None for what is no such notice."""
    if len(data) != _LAYOUT.size:
        return None
    return Leg(*_LAYOUT.unpack(data))
