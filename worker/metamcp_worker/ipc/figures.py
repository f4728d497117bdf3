"""What the supervisor is told of calls: figures of those that are over, and which are under way.

Owns: these values and the question for them. Never: sending them, counting, arguments and answers.
"""

import struct
from typing import NamedTuple

from msgspec import Struct, field

from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.message_base import Message


class CallStats(Struct, frozen=True, gc=False):
    """Cumulative figures of this front process for calls that ended in one way.

    `buckets`: counts per bucket of `BUCKETS_S`, not cumulative, the last for everything above;
    `error_type`: "tool_error", "cancelled" or a JSON-RPC code, empty for those that went well;
    `version`: of the protocol, as the client speaks it; `tool`: empty unless times are kept of
    each one; `longest_s`: the longest of these calls.
    """

    server: str
    method: str
    count: int
    seconds: float
    buckets: tuple[int, ...]
    error_type: str = ""
    version: str = ""
    tool: str = ""
    longest_s: float = 0.0


class ToolStats(Struct, frozen=True, gc=False):
    """How often the tools of a server were called, and how often that failed. There may be
    thousands, so they come in columns. `tools`: the names that the server has for them."""

    server: str
    tools: tuple[str, ...]
    counts: tuple[int, ...]
    errors: tuple[int, ...]


class AnswerStats(Struct, frozen=True, gc=False):
    """Cumulative figures of this worker for requests of one method that its server answered in one
    way. `error_type`: a JSON-RPC code, or empty; `buckets`: as in `CallStats`."""

    method: str
    error_type: str
    seconds: float
    buckets: tuple[int, ...]


class Durations(Struct, frozen=True, gc=False):
    """A histogram, cumulative over the life of a process. `buckets`: of each bucket alone, the last
    for everything above the bounds."""

    seconds: float
    buckets: tuple[int, ...]


class Figures(Struct, frozen=True, kw_only=True):
    """All that a front counted since it started, and what it has to say of each server. There may
    be a thousand of those, so this travels as memory.

    `overhead`: the gateway's own time in sampled calls, by stage; `inflight`: requests per server;
    `held`: of these, those whose server is not there; `late_replies`: answers for which nobody
    waited, per server; `retries`: calls that were sent once more, by server and outcome; `views`:
    what is in view now, those of everybody first.
    """

    calls: tuple[CallStats, ...] = ()
    tools: tuple[ToolStats, ...] = ()
    overhead: dict[str, Durations] = {}
    inflight: dict[str, int] = {}
    held: dict[str, int] = {}
    late_replies: dict[str, int] = {}
    retries: dict[str, dict[str, int]] = {}
    views: tuple[ViewStats, ...] = ()


class Answers(Message, frozen=True, kw_only=True):
    """From a worker, every second or two if there is anything new."""

    stats: tuple[AnswerStats, ...]


class FrontStats(Message, frozen=True, kw_only=True):
    """Every two seconds. Descriptor: blob with `Figures`. Nothing here grows with the servers: a
    packet has little room.

    `sessions`: per protocol revision; `refused`: requests that the HTTP policy refused, by reason;
    `recorded`: calls of which a line was to be written, by what became of it: `written` or `lost`.
    """

    connections: int
    streams: int
    sessions: dict[str, int]
    refused: dict[str, int]
    recorded: dict[str, int] = field(default_factory=dict[str, int])


#: Upper bounds of the latency buckets in seconds: finer than the OpenTelemetry MCP convention
#: below 10 ms, equal to it above.
BUCKETS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip
#: Those of the gateway's own time per call.
OVERHEAD_BUCKETS_S = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip


class ShowCalls(Message, frozen=True, kw_only=True):
    """From the supervisor to a front or a worker: which calls are under way? `ticket`: comes back
    with the answer. For fronts: `servers`: only these, empty for all; `slow_s`: only those that
    take longer; `most`: of the rest only the longest so many."""

    ticket: int
    servers: tuple[str, ...] = ()
    slow_s: float = 0.0
    most: int = 0


class CallsShown(Message, frozen=True, kw_only=True):
    """The answer. Descriptor: blob with a JSON list, from a front of `CallUnderWay`, the longest
    first, from a worker of pairs (front, call), of those that wait for their turn. `more`: how many
    are not in it."""

    ticket: int
    more: int = 0


class CallUnderWay(Struct, frozen=True, kw_only=True):
    """A call that is not answered yet. Nothing of it is secret, and nothing of it is an argument.

    `id`: of this front; `name`: of the tool or prompt, as its client knows it; `state`: `held` for
    a server that is not there, `asking` its client something, else `running`; `client`: what it
    calls itself; `session`: a word that stands for the client; `progress`: is it told of progress?
    """

    id: int
    server: str
    method: str
    name: str
    endpoint: str
    age_s: float
    state: str
    client: str
    session: str
    progress: bool


SAMPLED_OF_CALLS = 32
"""One call of so many is timed. A power of two."""
MASK = SAMPLED_OF_CALLS - 1
"""`id & MASK == MASK`: this one is timed."""
NEXT = MASK - 1
"""`id & MASK == NEXT`: the next one will be."""
NOTICE = "metamcp/timed"
"""The method of the notice that a worker sends before the answer to such a call. What a server
sends under this name is JSON, and the number of no call begins with the byte of a brace."""

_LAYOUT = struct.Struct("!Qdd")


class Timed(NamedTuple):
    """Of call `id`: seconds from its frame to the frame of its answer, and those of the worker's
    own among them, which are neither the server's nor spent waiting for a turn."""

    id: int
    total_s: float
    own_s: float


def pack(timed: Timed) -> bytes:
    return _LAYOUT.pack(*timed)


def unpack(data: bytes) -> Timed | None:
    """None for what is no such notice."""
    if len(data) != _LAYOUT.size:
        return None
    return Timed(*_LAYOUT.unpack(data))
