"""Figures about calls that workers and fronts send to the supervisor.

Owns: the figures of finished calls, the list of calls under way and the question for it, the
buckets of histograms, the calls of a day that count against quotas, and the notice in which a
worker reports to a front how long it had a sampled call (`NOTICE`, `WorkerCallTimes`). Never:
sending them, counting, arguments and answers."""

import struct
from typing import Final, Literal, NamedTuple

from msgspec import Raw, Struct, field

from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.envelope import Message


class CallStats(Struct, frozen=True, gc=False):
    """Cumulative figures of this front process for calls that ended in one way.

    `buckets`: counts per bucket of `BUCKETS_S`, not cumulative, the last for everything above;
    `error_type`: "tool_error", "cancelled" or a JSON-RPC code, empty for calls that succeeded;
    `version`: revision of the protocol that the client speaks; `tool`: empty unless times are kept
    for each tool; `longest_s`: seconds of the longest of these calls.
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


class Refusals(Struct, frozen=True, kw_only=True):
    """Rights of one kind that its sandbox refused a server. `right`, `what`: the last one, as in
    `confinement.denials.DeniedRight`; `advice`: a sentence about it with what to write."""

    right: str
    count: int
    what: str
    advice: str


class ToolStats(Struct, frozen=True, gc=False):
    """How often the tools of a server were called, and how often that failed, in columns, because
    there may be thousands of tools. `tools`: the server's own names."""

    server: str
    tools: tuple[str, ...]
    counts: tuple[int, ...]
    errors: tuple[int, ...]


class Durations(Struct, frozen=True, gc=False):
    """A histogram, cumulative over the life of a process. `buckets`: count of each bucket alone,
    the last for everything above the bounds."""

    seconds: float
    buckets: tuple[int, ...]


class AnswerStats(Durations, frozen=True, gc=False):
    """Times of a worker's server for requests of one method that it answered in one way.
    `error_type`: a JSON-RPC code, or empty."""

    method: str
    error_type: str


class LimitedStats(Struct, frozen=True, gc=False):
    """Requests that a limit of use refused. `kind`, `name`: of its owner
    (`access.use_limits.Owner`); all API keys count together, without a name."""

    kind: str
    name: str
    limit: str
    count: int


class Figures(Struct, frozen=True, kw_only=True):
    """All counts of a front since it started, and its figures of each server. A gateway may have a
    thousand servers, so this travels as a blob.

    `overhead`: the gateway's own time in sampled calls, by stage; `inflight`: requests per server;
    `held`: the requests among these whose server is not there; `late_replies`: answers for which no
    client waited, per server; `retries`: calls that were sent once more, by server and outcome;
    `views`: figures of each view now, views for all clients first; `limited`: requests that limits
    of use refused; `policies`: what policies did, by policy and outcome; `middleware`: requests
    that went through each, by name and outcome; `consent`: calls that needed consent, by outcome.
    """

    calls: tuple[CallStats, ...] = ()
    tools: tuple[ToolStats, ...] = ()
    overhead: dict[str, Durations] = {}
    inflight: dict[str, int] = {}
    held: dict[str, int] = {}
    late_replies: dict[str, int] = {}
    retries: dict[str, dict[str, int]] = {}
    views: tuple[ViewStats, ...] = ()
    limited: tuple[LimitedStats, ...] = ()
    policies: dict[str, dict[str, int]] = {}
    middleware: dict[str, dict[str, int]] = {}
    consent: dict[str, int] = {}


class AnswerTimes(Message, frozen=True, kw_only=True):
    """Answer times of a server, from its worker, every second or two if anything is new."""

    stats: tuple[AnswerStats, ...]


class FrontStats(Message, frozen=True, kw_only=True):
    """Figures of a front, every two seconds. Descriptor: blob with `Figures`. The message itself
    does not grow with the number of servers: a packet has little room.

    `sessions`: per protocol revision; `refused`: requests that the HTTP policy refused, by reason;
    `recorded`: calls to be recorded, by outcome: `written` or `lost`.
    """

    connections: int
    streams: int
    sessions: dict[str, int]
    refused: dict[str, int]
    recorded: dict[str, int] = field(default_factory=dict[str, int])


DAY_COUNTS_MAX = 128
"""Maximum counts in one message: a packet holds twice as many, even of the longest names."""


class DayCount(Struct, frozen=True, gc=False):
    """Calls that count against `calls_per_day` of one owner (`access.use_limits.Owner`). `day`:
    since the epoch, in UTC."""

    kind: str
    name: str
    day: int
    calls: int


class DayCounts(Message, frozen=True, kw_only=True):
    """From a front: further calls since its last message, at most once a second. To a front: calls
    of the fronts that had its place before; they count against its share."""

    counts: tuple[DayCount, ...]

    @classmethod
    def of(cls, counts: list[DayCount]) -> "list[DayCounts]":
        """Return these counts as messages."""
        starts = range(0, len(counts), DAY_COUNTS_MAX)
        return [cls(counts=tuple(counts[at : at + DAY_COUNTS_MAX])) for at in starts]


#: Upper bounds of the latency buckets in seconds: finer than the OpenTelemetry MCP convention
#: below 10 ms, equal to it above.
BUCKETS_S: Final[tuple[float, ...]] = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip
#: Upper bounds, in seconds, of the buckets of the gateway's own time per call.
OVERHEAD_BUCKETS_S: Final[tuple[float, ...]] = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip


class ShowCalls(Message, frozen=True, kw_only=True):
    """From the supervisor to a front or a worker: which calls are under way? `ticket`: comes back
    with the answer. For fronts: `servers`: only calls of these, empty for all; `slow_s`: only calls
    that take longer; `most`: maximum number of calls in the answer, the longest first."""

    ticket: int
    servers: tuple[str, ...] = ()
    slow_s: float = 0.0
    most: int = 0


PATH_ARGUMENTS_BYTES_MAX = 8 * 1024
"""Maximum bytes of the arguments in a question about the path of a call; a packet holds them."""


class PathQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Parameters of `explain`. `tool`: as clients know it, or `server.tool`; `endpoint`: empty for
    the default one; `key`: an API key, empty for the local user; operators write its name or id, a
    front gets the id; `arguments`: an object, left out if they are not known."""

    tool: str
    endpoint: str = ""
    key: str = ""
    arguments: Raw = Raw(b"")


class ShowPath(Message, frozen=True, kw_only=True):
    """From the supervisor to a front: what would happen to a call of a tool? `ticket`: comes back
    with the answer."""

    ticket: int
    query: PathQuery


class ShowKeyUse(Message, frozen=True, kw_only=True):
    """From the supervisor to a front: what is open with this API key? `ticket`: comes back with the
    answer; `key`: its id."""

    ticket: int
    key: str


class KeyUse(Struct, frozen=True, kw_only=True):
    """Numbers of the streams, sessions and calls that end when an API key does."""

    streams: int = 0
    sessions: int = 0
    calls: int = 0


class PathStep(Struct, frozen=True):
    """Step of the path of a call. `text`: a phrase; `stops`: whether the call ends here."""

    step: str
    text: str
    stops: bool = False


class PolicyValue(Struct, frozen=True):
    """Value of a policy that concerns a thing. `value`: `true`, `false`, `at the call` if no call
    is known, or `fails: ` and why."""

    policy: str
    effect: str
    mode: str
    when: str
    value: str


class CallPath(Struct, frozen=True, kw_only=True):
    """Path of a call. `endpoint`: where it begins; `server`, `tool`: its target, empty if no tool
    has the name; `names`: of all tools then; `policies`: those that concern the tool; `decides`:
    the one of them that decides, or empty; `effect`: of all together, `allow`, `deny` or `ask`."""

    endpoint: str = ""
    server: str = ""
    tool: str = ""
    steps: tuple[PathStep, ...] = ()
    names: tuple[str, ...] = ()
    policies: tuple[PolicyValue, ...] = ()
    decides: str = ""
    effect: str = "allow"


TOOLS_SHOWN_MAX = 500
"""Maximum tools in one answer."""


ToolOrder = Literal["", "name", "tokens"]


class ToolQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of `tools`. `endpoint`: empty for the default one; `key`: an API key whose view is
    meant, empty for the local user; operators write its name or id, a front gets the id; `query`:
    only tools that match, the best first, else all by server and name; `order`: by name or by
    tokens, the most first, instead; `server`: only its tools; `name`: only the tool that clients
    know by this name, with its definition; `offset`: number of tools to leave out."""

    endpoint: str = ""
    key: str = ""
    query: str = ""
    order: ToolOrder = ""
    server: str = ""
    name: str = ""
    offset: int = 0


class ShowTools(Message, frozen=True, kw_only=True):
    """From the supervisor to a front: which tools does an endpoint have? `ticket`: comes back with
    the answer."""

    ticket: int
    query: ToolQuery


class ShownTool(Struct, frozen=True, kw_only=True):
    """Tool of an endpoint. `name`: as clients know it; `server`: empty for tools of the gateway
    itself; `tool`: the server's own name; `state`: `listed`, `callable` if it is in no list,
    `hidden` by its configuration, or `withheld`, with the reason in `why`; `available`: whether its
    server is there; `reads`: the tool says that it changes nothing; `definition`: raw, as in the
    list, only if it was asked for by its name. The supervisor adds `calls` and `errors`, since the
    fronts were started, and `drift`: how the tool differs from its approved definition."""

    name: str
    server: str
    tool: str
    description: str = ""
    tokens: int = 0
    state: str = "listed"
    why: str = ""
    available: bool = True
    reads: bool = False
    calls: int = 0
    errors: int = 0
    drift: str = ""
    definition: Raw = Raw(b"{}")


KEY_NEEDED = "a credential is needed: name an API key (--key)"
"""Sentence of `ShownTools.refused`, and of the step `gate` of a path, if a key was not named."""


class ShownTools(Struct, frozen=True, kw_only=True):
    """Answer to `ShowTools`. `endpoint`: the one that is meant; `more`: number of tools that are
    not shown; `refused`: a sentence why the holder of the key sees nothing here; `names`: of all
    tools, if none has the wished name."""

    endpoint: str = ""
    tools: tuple[ShownTool, ...] = ()
    more: int = 0
    refused: str = ""
    names: tuple[str, ...] = ()


class CallsShown(Message, frozen=True, kw_only=True):
    """Answer to `ShowCalls`. Descriptor: blob with a JSON list: from a front of pairs (number,
    `CallUnderWay`), the longest first; from a worker of pairs (front, number), the calls that wait
    for their turn. `more`: number of calls that are not in the list. As an answer to `ShowPath`,
    `ShowTools` or `ShowKeyUse`: blob with `CallPath`, `ShownTools` or `KeyUse`."""

    ticket: int
    more: int = 0


class CallUnderWay(Struct, frozen=True, kw_only=True):
    """A call that is not answered yet, without secrets and without arguments. `name`: of the tool
    or prompt, as the client knows it, empty for other methods; `state`: `held` while its server is
    not there, `asking` while the client is asked something, else `running`; `client`: name that the
    client gives itself; `session`: a word that stands for the session; `progress`: whether the
    client gets progress of this call. The supervisor adds `front`, and the state `queued` for a
    call that waits for its turn at the server."""

    server: str
    method: str
    name: str
    endpoint: str
    age_s: float
    state: str
    client: str
    session: str
    front: str = ""
    progress: bool


SAMPLED_OF_CALLS: Final = 32
"""Calls per timed call: a single call out of this number is timed. A power of two."""
MASK: Final = SAMPLED_OF_CALLS - 1
"""Mask of call ids: if `id & MASK == MASK`, the call is timed."""
NEXT: Final = MASK - 1
"""Masked id of the call before a timed call: if `id & MASK == NEXT`, the next call is timed."""
NOTICE = "metamcp/timed"
"""Method of the notice that a worker sends before the answer to a timed call. A notification that a
server sends under this name is not mistaken for it: JSON begins with a brace, and the packed number
of a call never begins with that byte."""

_LAYOUT = struct.Struct("!Qdd")


class WorkerCallTimes(NamedTuple):
    """Times of call `id` in a worker. `total_s`: seconds from its frame to the frame of its answer;
    `own_s`: the worker's own seconds among these, without the server and without waiting for a
    turn."""

    id: int
    total_s: float
    own_s: float


def pack(timed: WorkerCallTimes) -> bytes:
    return _LAYOUT.pack(*timed)


def unpack(data: bytes) -> WorkerCallTimes | None:
    """Return the times in a notice; None if the bytes are not such a notice."""
    if len(data) != _LAYOUT.size:
        return None
    return WorkerCallTimes(*_LAYOUT.unpack(data))
