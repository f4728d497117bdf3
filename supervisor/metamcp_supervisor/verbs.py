"""The values that cross the control socket between the gateway and `metamcp ctl`.

Owns: the shapes of answers and of the journal, their units, and the exit codes of `ctl`. Never:
transport (`control`), printing (`cli.ctl`), collecting (`run`).
"""

from enum import IntEnum
from typing import Any

from msgspec import Struct

VERSION = 1
"""Of every `--json` output: `{"v": 1, …}`."""


class Exit(IntEnum):
    """Exit codes of the `metamcp` command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_READY = 3
    DENIED = 4
    NOT_RUNNING = 5
    TIMEOUT = 6
    SERVER_NOT_RUNNING = 7
    UNKNOWN_NAME = 8
    CONFIG = 65
    CANNOT_BIND = 69
    INTERNAL = 70
    ALREADY_RUNNING = 75
    NO_PERMISSION = 77


class ServerStatus(Struct, frozen=True, kw_only=True):
    """One server. `state`: warming, ready, active, idle, draining, stopped, error or
    quarantined.

    Times in seconds; `pid` is the server's own process (0: none, in-process, or reached by URL),
    `worker_pid` our worker's, `worker_pids` those of all copies of it, spares among them; `origin`:
    of its URL, without what may be secret; `token_cost`: estimated tokens of its tool definitions;
    `retry_in_s`: None when no start is planned; `rss_bytes`, `cpu_s`: of the worker and everything
    below it; `unroutable_requests`, `unattributed_logs`: what it asked or logged and no single
    caller can have caused; `p50_s`, `p95_s`: within what time half of the requests of the last five
    minutes were answered, and 95 % of them, None if there were none.
    """

    name: str
    state: str
    phase: str
    generation: int
    pid: int = 0
    worker_pid: int = 0
    worker_pids: tuple[int, ...] = ()
    protocol: str = ""
    up_s: float = 0.0
    start_s: float = 0.0
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    token_cost: int = 0
    from_cache: bool = False
    calls: int = 0
    errors: int = 0
    inflight: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    restarts: int = 0
    reason: str = ""
    message: str = ""
    retry_in_s: float | None = None
    required: bool = False
    origin: str = ""
    unroutable_requests: int = 0
    unattributed_logs: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    drift: dict[str, int] = {}
    """Of its tools, those that are not as approved: `harmless`, `drifted`, or `quarantined`, which
    clients do not get."""
    left_out: int = 0
    """Definitions that lists do not have, as they are not valid."""
    left_out_first: str = ""
    """One of these, with place and reason."""


class FrontStatus(Struct, frozen=True, kw_only=True):
    number: int
    pid: int
    state: str
    up_s: float
    connections: int = 0
    streams: int = 0
    sessions: int = 0


class Overridden(Struct, frozen=True, kw_only=True):
    """One setting that is other than in the file for a time. `value`, `written`: as one would write
    it, `none` for no value; `until`: seconds since the epoch."""

    key: str
    value: str
    written: str
    until: float


class GatewayStatus(Struct, frozen=True, kw_only=True):
    """The whole gateway. `state`: starting, active or draining; `url`: of the default endpoint;
    `overrides`: levels of its log that are set for a time; `embedder_pid`: of the process that
    makes vectors, 0 while there is none."""

    v: int = VERSION
    version: str
    pid: int
    state: str
    up_s: float
    url: str
    ops_url: str
    config_hash: str
    config_files: tuple[str, ...]
    config_age_s: float
    nursery_pid: int
    embedder_pid: int = 0
    upgrades: int = 0
    """How often another program took over since the start."""
    state_dir: str = ""
    """Empty if a gateway of an earlier version does not say it."""
    fronts: tuple[FrontStatus, ...]
    servers: tuple[ServerStatus, ...]
    endpoints: dict[str, str]
    overrides: tuple[Overridden, ...] = ()


class Upgrade(Struct, frozen=True, kw_only=True):
    """Another program takes over. `before`, `after`: the versions; `servers`: how many run and go
    on; `sessions`: of clients, how many do."""

    before: str
    after: str
    servers: int
    sessions: int


class Event(Struct, frozen=True, kw_only=True):
    """One line of the journal. `time`: seconds since the epoch; `who`: server, front-N, nursery or
    gateway; `what`: `ready→error` and the like, or a verb; `cause`: a sentence."""

    seq: int
    time: float
    who: str
    what: str
    cause: str = ""
    generation: int = 0


class LogLine(Struct, frozen=True, kw_only=True):
    """One line of a server's stderr, or of its stdout where it was no message."""

    seq: int
    time: float
    server: str
    stream: str
    text: str


class Ended(Struct, frozen=True, kw_only=True):
    """One time that a server went down by itself. `time`: seconds since the epoch; `ready_s`: how
    long it had been ready, 0 if it never was; `next`: the phase that followed."""

    time: float
    generation: int
    reason: str
    message: str
    ready_s: float
    next: str


class Process(Struct, frozen=True, kw_only=True):
    """One process of a server. `command`: with what may be secret masked; `pss_bytes`: resident
    memory with each shared page counted in part, `descriptors`: open ones; None where the system
    does not tell."""

    pid: int
    parent: int
    command: tuple[str, ...]
    rss_bytes: int
    cpu_s: float
    descriptors: int | None
    pss_bytes: int | None = None


class Description(Struct, frozen=True, kw_only=True):
    """Everything about one server. `why`: one sentence on why it is in its state and what comes
    next; `since`: when it got into its phase, seconds since the epoch, 0 if that is forgotten.

    `failures`: unstable starts in a row; `recent`: those within `window_s`; with more than
    `recent_max` of them the circuit opens; `trips`: how often in a row it did. `config`: in effect,
    secrets masked; `source`: where it was read; `list_hash`: of what it offers; `overrides`: what
    of `config` is set for a time. `drift`: tools that are not as approved, each with how.
    `withheld`: variables of the gateway that one which went down does not get and that could
    matter.
    `left_out`: definitions that are not valid, each with place and reason.
    """

    v: int = VERSION
    server: ServerStatus
    why: str
    since: float
    failures: int
    recent: int
    recent_max: int
    window_s: float
    trips: int
    config: dict[str, Any]
    source: str
    endpoints: tuple[str, ...]
    list_hash: str
    exits: tuple[Ended, ...]
    processes: tuple[Process, ...]
    log: tuple[LogLine, ...]
    overrides: tuple[Overridden, ...] = ()
    drift: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Footprint(Struct, frozen=True, kw_only=True):
    """What the processes of one server use at this moment, and how many there are."""

    processes: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    descriptors: int = 0


class Load(Struct, frozen=True, kw_only=True):
    """One look of `top`. `clock`: seconds of the gateway's own clock, for rates between two looks;
    `footprints`: by server, of those with processes; `latencies`: how many requests took how long
    so far, by server: counts per bucket, the last for those above the highest of `bounds_s`;
    `longest_s`: the longest of these, by server."""

    v: int = VERSION
    clock: float
    status: GatewayStatus
    footprints: dict[str, Footprint]
    latencies: dict[str, tuple[int, ...]] = {}
    longest_s: dict[str, float] = {}
    bounds_s: tuple[float, ...] = ()


class InFlight(Struct, frozen=True, kw_only=True):
    """One call that is not answered yet. `name`: of the tool or prompt, as its client knows it,
    empty for other methods; `state`: `running` at the server, `queued` for its turn there, `held`
    until the server is there, or `asking` its client something; `client`: what it calls itself;
    `session`: a word that stands for it; `progress`: is it told of progress?"""

    server: str
    method: str
    name: str
    endpoint: str
    age_s: float
    state: str
    client: str
    session: str
    front: str
    progress: bool


class Calls(Struct, frozen=True, kw_only=True):
    """What is under way, the longest first. `more`: calls that are not shown; `silent`: fronts that
    did not say."""

    v: int = VERSION
    calls: tuple[InFlight, ...]
    more: int = 0
    silent: tuple[str, ...] = ()


class Change(Struct, frozen=True, kw_only=True):
    """One line of a reload's plan. `action`: add, remove, restart, in-place or unchanged."""

    server: str
    action: str
    why: str = ""


class ReloadPlan(Struct, frozen=True, kw_only=True):
    """`hash`: of the plan; `applied`: False for a dry run; `question`: what somebody has to confirm
    before it is applied, as a text for people, empty for nothing."""

    v: int = VERSION
    hash: str
    changes: tuple[Change, ...]
    applied: bool
    question: str = ""


class ToolRef(Struct, frozen=True):
    """A tool in the file of a tool set: `git.status`, whatever an endpoint calls it."""

    namespacedName: str  # noqa: N815 - as it stands in files


class ToolSetShown(Struct, frozen=True, kw_only=True):
    """A tool set as it is exported. `createdAt`, `updatedAt`: ISO 8601, UTC."""

    name: str
    description: str
    tools: tuple[ToolRef, ...]
    createdAt: str  # noqa: N815 - as it stands in files
    updatedAt: str  # noqa: N815 - as above


class Equipped(Struct, frozen=True, kw_only=True):
    """In whose view a tool set is. `session`: a word that stands for it, where it is the view of
    one session alone."""

    toolset: str
    endpoint: str
    principal: str
    session: str = ""


class ToolSets(Struct, frozen=True, kw_only=True):
    """Tool sets in the order of their names, and where they are equipped."""

    v: int = VERSION
    toolsets: tuple[ToolSetShown, ...]
    equipped: tuple[Equipped, ...]


class ToolSetChanged(Struct, frozen=True, kw_only=True):
    """What came of an order. `toolset`: the one that it was about, as it is now; None: there is
    none any more, or it was about none. `before`, `after`: which one is equipped on `endpoint`.
    `warnings`: sentences about what of it is not in view, without their full stops. `tools_before`,
    `servers_before`: how many single tools and whole servers were chosen there. `exposure`: of that
    endpoint."""

    v: int = VERSION
    toolset: ToolSetShown | None
    endpoint: str
    before: str
    after: str
    warnings: tuple[str, ...] = ()
    tools_before: int = 0
    servers_before: int = 0
    exposure: str = ""


class ViewShown(Struct, frozen=True, kw_only=True):
    """What one view has in its list of tools. `session`: a word that stands for it, where it is
    the view of one session alone; `toolset`: the one that is equipped; `tools`, `tokens`: in the
    list, built-in ones among them; `offered`, `everything`: how many tools are behind the endpoint,
    and their tokens; `saved`: tokens that the list leaves out, less than 0 where it has more.
    Tokens are estimated."""

    endpoint: str
    exposure: str
    principal: str
    session: str
    toolset: str
    tools: int
    tokens: int
    offered: int
    everything: int
    saved: int
    saved_percent: int


class ViewsShown(Struct, frozen=True, kw_only=True):
    """All that the fronts told. `token_bytes`: how tokens are estimated."""

    v: int = VERSION
    token_bytes: int
    views: tuple[ViewShown, ...]
