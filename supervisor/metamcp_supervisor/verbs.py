"""The values that cross the control socket between the gateway and `metamcp ctl`.

Owns: the shapes of answers and of the journal, their units, and the exit codes of `ctl`. Never:
transport (`control`), printing (`cli.ctl`), collecting the values (`gateway`).
"""

from enum import IntEnum
from typing import Any

from msgspec import Raw, Struct

from metamcp_worker.ipc.code_runs import Language
from metamcp_worker.ipc.consent_records import ConsentGrant, OpenConsent
from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.figures import CallUnderWay, PathStep, PolicyValue, Refusals, ShownTool

VERSION = 1
"""Version of the shapes, in every `--json` output: `{"v": 1, …}`."""


class Exit(IntEnum):
    """Exit codes of the `metamcp` command."""

    OK = 0
    """Done. For `status`: every server that should be ready is ready."""
    FAILED = 1
    """The gateway could not do it; the sentence says why."""
    USAGE = 2
    """Wrong usage."""
    NOT_READY = 3
    """`status`: a server that should be ready is not. A stopped one counts only if it is named."""
    DENIED = 4
    """Permission denied: another user's gateway, the token or the API key does not fit, or the role
    is too low."""
    NOT_RUNNING = 5
    """No gateway is running there."""
    TIMEOUT = 6
    """Not within `--timeout`, or the gateway gives no answer."""
    SERVER_NOT_RUNNING = 7
    """The server is stopped, so waiting for it is in vain."""
    UNKNOWN_NAME = 8
    """No server, tool set, endpoint, tool, workspace or API key has this name."""
    CONFIG = 65
    """The configuration is invalid. Every problem is printed with its place, and a running gateway
    keeps the old configuration."""
    CANNOT_BIND = 69
    """`up`, `serve`: an address cannot be listened on."""
    INTERNAL = 70
    """`up`, `serve`: a fault of the gateway."""
    ALREADY_RUNNING = 75
    """`up`, `serve`: another gateway runs with this runtime directory, or the database of `store`
    is away, or another gateway has it."""
    NO_PERMISSION = 77
    """A permission is missing, or nobody can be asked and `--yes` is not given."""

    @classmethod
    def of(cls, error: Exception) -> "Exit":
        """Return the code for an order that was refused because of `error`."""
        if isinstance(error, LookupError):
            return cls.UNKNOWN_NAME
        return cls.USAGE if isinstance(error, ValueError) else cls.FAILED


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Decision about a server that lasts over the end of the gateway. `server`: empty for levels of
    the log; `kind`: quarantine, stop, drain or set; `who`: caller who made it, as in the journal,
    or `the gateway` itself; `when`: in seconds since the epoch, as all times here; `why`, `reason`:
    message and reason of a server in quarantine; `setting`: as `timeout=5s`, in force until `ends`;
    `absent`: since when the server is not configured."""

    server: str
    kind: str
    who: str
    when: float = 0.0
    why: str = ""
    reason: str = ""
    setting: str = ""
    ends: float = 0.0
    absent: float = 0.0

    @property
    def key(self) -> str:
        """Key of the setting; empty for a decision about the server itself."""
        return self.setting.partition("=")[0]

    @property
    def value(self) -> str:
        return self.setting.partition("=")[2]


class ServerStatus(Struct, frozen=True, kw_only=True):
    """State of a server. `state`: warming, ready, active, idle, draining, stopped, error or
    quarantined; times in seconds; `pid`: the server's own process (0: none, in-process, or reached
    by URL); `worker_pid`: its worker; `worker_pids`: the workers of all copies, spares included;
    `worker`: name of the worker that it shares with others;
    `origin`: scheme, host and port of its URL; `token_cost`: estimated tokens of its tool
    definitions; `retry_in_s`: None when no start is planned; `rss_bytes`, `memory_bytes`, `cpu_s`:
    of the worker and all processes below it, `memory_bytes` with shared pages counted in part;
    `unroutable_requests`, `unattributed_logs`: requests and log messages of the server that cannot
    be traced to a single caller; `p50_s`, `p95_s`: time within which half and 95 % of the requests
    of the last five minutes were answered, None without any.
    """

    name: str
    state: str
    phase: str
    generation: int
    pid: int = 0
    worker_pid: int = 0
    worker_pids: tuple[int, ...] = ()
    worker: str = ""
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
    memory_bytes: int = 0
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
    """Number of tools that are not as approved, by `harmless`, `drifted` and `quarantined`."""
    left_out: int = 0
    """Number of definitions that are left out of lists because they are not valid."""
    left_out_first: str = ""
    """First definition that is left out, with place and reason."""
    schemas: str = ""
    """First schema of a tool that clients or APIs of models may refuse, and how many more."""
    sandbox: str = ""
    """Profile of its confinement as configured; empty for a server without a process."""
    achieved: str = ""
    """Means that confine its process, such as `landlock-7 seccomp`; empty while it does not run."""
    lacking: tuple[str, ...] = ()
    """Things that the kernel does not keep its process from, though its profile asks for it."""
    opened: str = ""
    """Sentence about what is opened for its needs and why; empty for a server without needs."""
    refusals: tuple[Refusals, ...] = ()
    decision: Decision | None = None
    """Decision that the server is in quarantine, stopped or drained, also after a restart of the
    gateway; None without one."""


class FrontStatus(Struct, frozen=True, kw_only=True):
    number: int
    pid: int
    state: str
    up_s: float
    connections: int = 0
    streams: int = 0
    sessions: int = 0


class OverriddenSetting(Struct, frozen=True, kw_only=True):
    """Setting that differs from the file for a time. `value`: in force, and `written`: in the file,
    both as a user writes them, `none` for no value; `until`: seconds since the epoch; `who`: caller
    who set it, and `when`."""

    key: str
    value: str
    written: str
    until: float
    who: str = ""
    when: float = 0.0


class LimitStatus(Struct, frozen=True, kw_only=True):
    """Limits of use of an owner that has some. `kind`: `endpoint`, `server`, `workspace` or `key`;
    `name`: empty for API keys, which are shown together; `refused`: number of requests by limit, 0
    for one that refused nothing; `calls_today`, `calls_per_day`: of the fullest key, else 0."""

    kind: str
    name: str
    refused: dict[str, int]
    calls_today: int = 0
    calls_per_day: int = 0


class RoleStatus(Struct, frozen=True, kw_only=True):
    """Process of the gateway that exists at most once. `role`: `embedder`, `audit`, `code`,
    `engine`, `console`, or `middleware` and its name; `state`: `ready`, `starting`, `idle` until it
    is needed, or `error`; `pid`: 0 while it does not run; `memory_bytes`: of it and its children, 0
    while that is not known; `counts`: of `code`: `runs` since it began, `running` and `waiting`
    now, and `warm` sandboxes, of `engine`: `orders` since it began, and runs of workflows by state,
    of `console`: `requests` since it began, and `streams`, of middleware: `requests` since it
    began, and `running`; `confined`: of `code`: what keeps
    sandboxes from the machine, as in `code_runs.CodeFigures`; `trouble`: of `engine`: a sentence
    why workflows cannot run, of middleware why it cannot be loaded; empty if there is none."""

    role: str
    state: str
    pid: int = 0
    memory_bytes: int = 0
    counts: dict[str, int] = {}
    confined: str = ""
    trouble: str = ""


class GatewayStatus(Struct, frozen=True, kw_only=True):
    """State of the whole gateway. `state`: starting, active or draining; `url`: of the default
    endpoint; `overrides`: levels of the gateway's log that are set for a time; `roles`: processes
    of the gateway itself that the configuration asks for."""

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
    reload_refused: str = ""
    """Why the last reload was refused; empty if it was applied."""
    keys_unusable: str = ""
    """Why no API key is valid although an endpoint asks for one; empty for no reason."""
    store_unread: str = ""
    """Why tool sets, views and scripts cannot be read; empty if they can."""
    store_trouble: str = ""
    """Why the database elsewhere refuses changes; empty if it takes them."""
    nursery_pid: int
    roles: tuple[RoleStatus, ...] = ()
    upgrades: int = 0
    """Number of upgrades since the start, in which another program took over."""
    store: str = ""
    """URL of the database in PostgreSQL, without its password; empty for a file."""
    state_dir: str = ""
    """State directory; empty in the answer of an earlier version, which does not have this key."""
    fronts: tuple[FrontStatus, ...]
    servers: tuple[ServerStatus, ...]
    endpoints: dict[str, str]
    overrides: tuple[OverriddenSetting, ...] = ()
    limits: tuple[LimitStatus, ...] = ()


class Upgrade(Struct, frozen=True, kw_only=True):
    """Upgrade in which another program takes over. `before`, `after`: the versions; `servers`,
    `sessions`: number of running servers and of client sessions that go on."""

    before: str
    after: str
    servers: int
    sessions: int


class JournalEvent(Struct, frozen=True, kw_only=True):
    """Entry of the journal. `time`: seconds since the epoch; `who`: server, front-N, nursery or
    gateway; `what`: a change of state such as `ready→error`, or a verb; `cause`: a sentence."""

    seq: int
    time: float
    who: str
    what: str
    cause: str = ""
    generation: int = 0


class LogLine(Struct, frozen=True, kw_only=True):
    """Line of a server's stderr, or a line of its stdout that was not a message."""

    seq: int
    time: float
    server: str
    stream: str
    text: str


class ExitRecord(Struct, frozen=True, kw_only=True):
    """Exit of a server that went down by itself. `time`: seconds since the epoch; `ready_s`: how
    long the server had been ready, 0 for never; `next`: the phase that followed."""

    time: float
    generation: int
    reason: str
    message: str
    ready_s: float
    next: str


class ServerProcess(Struct, frozen=True, kw_only=True):
    """Process of a server. `command`: with possible secrets masked; `pss_bytes`: resident memory
    with each shared page counted in part; `descriptors`: number of open ones; None where the system
    does not report it."""

    pid: int
    parent: int
    command: tuple[str, ...]
    rss_bytes: int
    cpu_s: float
    descriptors: int | None
    pss_bytes: int | None = None


class Description(Struct, frozen=True, kw_only=True):
    """Full report on a server. `why`: one sentence on why the server is in its state and what comes
    next; `since`: when it got into its phase, seconds since the epoch, 0 if that is not known.

    `failures`: unstable starts in a row; `recent`: unstable starts within `window_s`; the circuit
    opens when there are more than `recent_max`; `trips`: how often in a row it opened. `config`:
    settings in effect, secrets masked; `source`: file and line of its table; `list_hash`: hash
    of the server's lists; `overrides`: settings that are set for a time. `drift`: tools that are
    not as approved, each with the kind of change. `withheld`: variables of the gateway that a
    server that went down does not get and that could matter. `left_out`: definitions that are not
    valid, each with place and reason.
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
    exits: tuple[ExitRecord, ...]
    processes: tuple[ServerProcess, ...]
    log: tuple[LogLine, ...]
    overrides: tuple[OverriddenSetting, ...] = ()
    drift: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Footprint(Struct, frozen=True, kw_only=True):
    """Number of processes of a server, and what they use at this moment, all together."""

    processes: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    descriptors: int = 0


class TopFigures(Struct, frozen=True, kw_only=True):
    """Figures for one refresh of `top`. `clock`: seconds of the gateway's own clock, to calculate
    rates between two refreshes; `footprints`: by server, only servers with processes; `latencies`:
    by server, the requests so far counted by duration: one count per bucket, the last count for
    requests above the highest of `bounds_s`; `longest_s`: the longest request, by server."""

    v: int = VERSION
    clock: float
    status: GatewayStatus
    footprints: dict[str, Footprint]
    latencies: dict[str, tuple[int, ...]] = {}
    longest_s: dict[str, float] = {}
    bounds_s: tuple[float, ...] = ()


class PathShown(Struct, frozen=True, kw_only=True):
    """Path of a call of a tool, and what would happen now. `runs`: whether its server would get it;
    `policies`: those that concern the tool; `decides`: one of them, or empty; `effect`: of all."""

    v: int = VERSION
    endpoint: str
    server: str
    tool: str
    steps: tuple[PathStep, ...]
    policies: tuple[PolicyValue, ...]
    decides: str
    effect: str
    runs: bool


class CallsUnderWay(Struct, frozen=True, kw_only=True):
    """Calls under way, the longest first. `more`: number of calls that are not shown; `silent`:
    fronts that did not answer."""

    v: int = VERSION
    calls: tuple[CallUnderWay, ...]
    more: int = 0
    silent: tuple[str, ...] = ()


class PlannedChange(Struct, frozen=True, kw_only=True):
    """Line in the plan of a reload. `action`: add, remove, restart, in-place or unchanged."""

    server: str
    action: str
    why: str = ""


class ReloadPlan(Struct, frozen=True, kw_only=True):
    """Plan of a reload. `hash`: of the plan; `applied`: False for a dry run; `question`: text that
    the user has to confirm before the plan is applied, empty if there is nothing to confirm;
    `mistakes`: sentences about servers that do not start because of one."""

    v: int = VERSION
    hash: str
    changes: tuple[PlannedChange, ...]
    applied: bool
    question: str = ""
    mistakes: tuple[str, ...] = ()


class NewKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Order for a new key, as somebody wrote it. `expires`: as `90d` or `never`, empty for the
    default; `principal`: empty if the key has one of its own; `limits`: by name."""

    name: str
    workspace: str = "default"
    endpoints: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    expires: str = ""
    principal: str = ""
    url: bool = False
    limits: dict[str, float] = {}


class Rotate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Order for a key in place of another one. `key`: id or name of the old key; `grace`: for which
    both are valid, as `24h`; empty: the old one ends at once."""

    key: str
    grace: str = ""


class Expire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Order to end a key and keep it in the list."""

    key: str


class Revoke(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Order to end a key and forget it."""

    key: str


KeyOrder = NewKey | Rotate | Expire | Revoke


class KeyShown(Struct, frozen=True, kw_only=True):
    """API key without its secret. `expires`, `created`: ISO 8601, UTC; `expires` is None for a key
    that does not expire; `endpoints`, `scopes`: empty for all; `state`: active or expired."""

    id: str
    name: str
    workspace: str
    endpoints: tuple[str, ...]
    scopes: tuple[str, ...]
    expires: str | None
    principal: str
    url: bool
    limits: dict[str, float]
    created: str
    created_by: str
    state: str


class KeyList(Struct, frozen=True, kw_only=True):
    """API keys. `more`: number of keys that follow in the order of ids, after the last one."""

    v: int = VERSION
    keys: tuple[KeyShown, ...]
    more: int = 0


class KeyChanged(KeyShown, frozen=True, kw_only=True):
    """Result of an order about an API key. `key`: the text of a new key, which is shown this once;
    empty for other orders; `unconfirmed`: fronts that did not confirm the change in time, and that
    were killed if a key ended; `doubts`: sentences on what is probably a mistake; `old_until`: when
    the key ends that this one takes the place of, empty if it has ended."""

    v: int = VERSION
    key: str = ""
    unconfirmed: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    old_until: str = ""


class PepperRotated(Struct, frozen=True, kw_only=True):
    """Result of a rotation of the pepper. `keys`: number of keys that end by it; `until`: when, in
    ISO 8601, UTC; `unconfirmed`: as in KeyChanged."""

    v: int = VERSION
    keys: int
    until: str
    unconfirmed: tuple[str, ...] = ()


class NamespaceTree(Struct, frozen=True, kw_only=True):
    """Namespace in the tree. `endpoints`: URL by name, of those that expose it; `servers`: state by
    full name."""

    name: str
    endpoints: dict[str, str]
    servers: dict[str, str]


class WorkspaceTree(Struct, frozen=True, kw_only=True):
    name: str
    namespaces: tuple[NamespaceTree, ...]


class ConfigTree(Struct, frozen=True, kw_only=True):
    """Workspaces, the default one first, with their namespaces, endpoints and servers."""

    v: int = VERSION
    workspaces: tuple[WorkspaceTree, ...]
    limits: tuple[LimitStatus, ...] = ()


class ToolList(Struct, frozen=True, kw_only=True):
    """Tools of an endpoint. `more`: number of tools that are not shown; `refused`: a sentence why
    the holder of the key sees none."""

    v: int = VERSION
    endpoint: str
    tools: tuple[ShownTool, ...]
    more: int = 0
    refused: str = ""


class ToolRef(Struct, frozen=True):
    """Tool in the file of a tool set: `git.status`, whatever its name at an endpoint."""

    namespacedName: str  # noqa: N815 - as it stands in files


class ToolSetShown(Struct, frozen=True, kw_only=True):
    """Tool set as it is exported. `createdAt`, `updatedAt`: ISO 8601, UTC."""

    name: str
    description: str
    tools: tuple[ToolRef, ...]
    createdAt: str  # noqa: N815 - as it stands in files
    updatedAt: str  # noqa: N815 - as above


class EquippedView(Struct, frozen=True, kw_only=True):
    """View in which a tool set is equipped. `session`: a word that stands for the session, if the
    view belongs to one session alone."""

    toolset: str
    endpoint: str
    principal: str
    session: str = ""


class ToolSets(Struct, frozen=True, kw_only=True):
    """Tool sets in the order of their names, and where they are equipped."""

    v: int = VERSION
    toolsets: tuple[ToolSetShown, ...]
    equipped: tuple[EquippedView, ...]


class ToolSetChanged(Struct, frozen=True, kw_only=True):
    """Result of an order about a tool set. `toolset`: the tool set as it is now; None: it was
    removed, or the order was not about a certain one. `before`, `after`: name of the tool set
    equipped on `endpoint`. `warnings`: sentences about tools of the set that are not in view,
    without full stops. `tools_before`, `servers_before`: number of single tools and whole servers
    that were chosen there. `exposure`: of that endpoint."""

    v: int = VERSION
    toolset: ToolSetShown | None
    endpoint: str
    before: str
    after: str
    warnings: tuple[str, ...] = ()
    tools_before: int = 0
    servers_before: int = 0
    exposure: str = ""


class ScriptShown(Struct, frozen=True, kw_only=True):
    """Version of a script. `savedAt`: ISO 8601, UTC; `code`: empty in a list; `versions`: those
    that are kept, where one script is shown."""

    name: str
    version: int
    description: str
    language: Language
    parameters: Raw
    expose: bool
    savedAt: str  # noqa: N815 - as built-in tools spell it
    code: str = ""
    versions: tuple[int, ...] = ()


class ScriptList(Struct, frozen=True, kw_only=True):
    """Scripts of a workspace in the order of their names."""

    v: int = VERSION
    workspace: str
    scripts: tuple[ScriptShown, ...]


class ScriptChanged(Struct, frozen=True, kw_only=True):
    """Result of an order about a script. `script`: as it is now, without its code, or None."""

    v: int = VERSION
    workspace: str
    script: ScriptShown | None


class ConsentList(Struct, frozen=True, kw_only=True):
    """Questions about calls that nobody has answered yet, and grants that count until a time; after
    an order those that it was about."""

    v: int = VERSION
    questions: tuple[OpenConsent, ...] = ()
    grants: tuple[ConsentGrant, ...] = ()


class ViewShown(ViewStats, frozen=True, kw_only=True):
    """Figures of a view. `saved`: tokens that its list leaves out, less than 0 if the list has
    more."""

    saved: int
    saved_percent: int


class ViewsShown(Struct, frozen=True, kw_only=True):
    """Views reported by all fronts. `token_bytes`: bytes that are counted as one token."""

    v: int = VERSION
    token_bytes: int
    views: tuple[ViewShown, ...]
