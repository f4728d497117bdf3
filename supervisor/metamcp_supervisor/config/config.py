"""What is wanted: the configuration as typed, frozen values, parsed once.

Owns: the values, their defaults and units. Never: reading files (`sources`), finding errors in them
(`parse`), what a worker is told (`metamcp_worker.ipc.spec`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct

from metamcp_supervisor.config import environment
from metamcp_worker.ipc.disclosure import Exposure
from metamcp_worker.ipc.frames import MESSAGE_BYTES
from metamcp_worker.ipc.spec import CALLBACK_PORT

Restart = Literal["always", "on-failure", "never"]
Sharing = Literal["shared", "per-workspace", "per-session", "per-project", "auto"]
Retry = Literal["never", "read-only", "idempotent"]
Start = Literal["eager", "lazy"]
Era = Literal["auto", "modern", "legacy"]
Grant = Literal["authorization_code", "client_credentials"]
Style = Literal["namespaced", "flat", "dotted", "bare"]
Form = Literal["auto", "text", "json"]
Recorded = Literal["off", "metadata", "full"]
Pinning = Literal["off", "record", "enforce"]
ViewScope = Literal["principal", "session"]

UNIX = "unix:"
"""Before the path of a unix socket, where an address is written."""

LAZY_IDLE_STOP_S = 600.0
"""For a server that starts when it is called."""
TENANT_IDLE_STOP_S = 300.0
"""For a process that serves one client, or the clients of one project: each costs what its server
costs, and there may be many."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener binds. `host` is an IP address or name, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(Struct, frozen=True, array_like=True):
    """A listener that is a file. Its form as bytes is an array, which tells it from an Address."""

    path: Path

    def __str__(self) -> str:
        return f"{UNIX}{self.path}"


AnyAddress = Address | UnixAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    listen: Address = Address("127.0.0.1", 6270)
    ops_listen: AnyAddress = Address("127.0.0.1", 6271)
    health_listen: Address | None = None
    allowed_hosts: tuple[str, ...] = ()
    fronts: int = 1
    watch: bool = False
    state_dir: Path
    runtime_dir: Path
    drain_delay_s: float = 0.0
    movable: frozenset[str] = frozenset()
    """Keys of ports that nobody chose: if one is taken, the gateway listens on another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """How the gateway's own processes speak. `levels`: of single rooms and libraries, by name."""

    format: Form = "auto"
    level: str = "info"
    levels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What is written down of calls that are over; a server may want it otherwise. In bytes:
    `file_max`, and `body_max` of arguments and of a result."""

    calls: Recorded = "off"
    file_max: int = 16 * 1024 * 1024
    files_max: int = 8
    body_max: int = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """`per_tool`: times of calls for each tool by itself."""

    per_tool: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Spans of calls for a collector. `endpoint`: where it takes them, empty: nothing is traced;
    `headers`: sent with them; both may hold secrets. `sample`: of the calls whose client does not
    trace, the share that is traced. `endpoint_written`: as the file has it."""

    endpoint: str = field(default="", repr=False)
    sample: float = 0.1
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    endpoint_written: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """Where searches get vectors from: an endpoint at `url` with the name of its `model`, or a
    model in `folder`; neither: searches go by words alone. `key`: a bearer token; it and `url` may
    be secret. `weight`: of what vectors find, beside 1 of words. `batch`: texts in one request.
    `url_written`: as the file has it."""

    url: str = field(default="", repr=False)
    model: str = ""
    key: str = field(default="", repr=False)
    folder: Path | None = None
    weight: float = 0.4
    timeout_s: float = 10.0
    batch: int = 32
    url_written: str = field(default="", compare=False, repr=False)

    @property
    def wanted(self) -> bool:
        return bool(self.url or self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """How the gateway gets itself authorized towards one remote server."""

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_metadata_url: str | None = None
    scopes: tuple[str, ...] = ()
    grant: Grant = "authorization_code"
    require_pkce: bool = True
    callback_port: int = CALLBACK_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What is said of one tool; None: nothing. `name`: the exposed one, instead of the one by the
    rule; `aliases`: further names; `hidden`: in no list, and still called. `fixed`, `defaults`:
    arguments and their values, as JSON text."""

    enabled: bool | None = None
    hidden: bool | None = None
    name: str | None = None
    aliases: tuple[str, ...] | None = None
    title: str | None = None
    description: str | None = None
    fixed: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, str] = field(default_factory=dict[str, str])


Tools = Mapping[str, Mapping[str, Tool]]
"""By server, and by the server's own name of the tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One configured MCP server. Exactly one of `command`, `module` and `url` is set, or none of
    them and `transport` names one that an installed package brings.

    `env`, `url`, `headers`, `options`: resolved; they may hold secrets, so no repr shows them.
    `source`: where it was read, for messages: `file: servers.git`.
    `…_written`: the same as the file has them, references such as `${env:TOKEN}` not resolved: what
    people are shown, what a confirmation is bound to.
    """

    name: str
    source: str
    command: tuple[str, ...] = ()
    module: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    inherit_env: tuple[str, ...] = environment.DEFAULT
    cwd: Path | None = None
    url: str | None = field(default=None, repr=False)
    transport: str = "auto"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    oauth: OAuth | None = None
    options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    command_written: tuple[str, ...] = field(default=(), compare=False, repr=False)
    env_written: Mapping[str, str] = field(
        default_factory=dict[str, str], compare=False, repr=False
    )
    url_written: str | None = field(default=None, compare=False, repr=False)
    headers_written: Mapping[str, str] = field(
        default_factory=dict[str, str], compare=False, repr=False
    )
    oauth_written: OAuth | None = field(default=None, compare=False, repr=False)
    options_written: Mapping[str, str] = field(
        default_factory=dict[str, str], compare=False, repr=False
    )
    mistake: str = ""
    """The error in its table, for which it is not started; then nothing else is known of it but
    `enabled` and `required`."""
    folder: str = field(default="", compare=False)
    """The one of the file that names it."""
    enabled: bool = True
    start: Start = "eager"
    idle_stop_s: float | None = None
    """None: `LAZY_IDLE_STOP_S`, or `TENANT_IDLE_STOP_S` for a process that is not for all."""
    sharing: Sharing = "auto"
    era: Era = "auto"
    depends_on: tuple[str, ...] = ()
    spares: int = 0
    required: bool = False
    recording: Recorded | None = None
    """None: as `[recording]` says."""
    pinning: Pinning | None = None
    """None: `enforce` if `metamcp.lock` holds it, else `record`."""
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    restart: Restart = "on-failure"
    restarts_max: int = 8
    restart_window_s: float = 120.0
    restart_delay_max_s: float = 30.0
    retry: Retry = "never"
    start_timeout_s: float = 30.0
    timeout_s: float = 60.0
    stop_grace_s: float = 5.0
    probe_interval_s: float = 30.0
    hide_after_s: float = 3.0
    strict_listing: bool | None = None
    concurrency: int = 1024
    queue: int = 4096
    message_max: int = MESSAGE_BYTES
    memory_max: int | None = None
    """In bytes, as `memory_high`. None here and below: no limit."""
    memory_high: int | None = None
    memory_rlimit: bool = False
    cpu_max: float | None = None
    """In processors."""
    processes_max: int | None = None
    nofile_max: int | None = None

    @property
    def lazy(self) -> bool:
        return self.start == "lazy"

    @property
    def rests(self) -> bool:
        """Do processes of it end for want of use?"""
        return self.lazy or self.sharing in ("per-session", "per-project", "auto")

    @property
    def rest_s(self) -> float:
        """After so long without a call it ends, if it rests."""
        return LAZY_IDLE_STOP_S if self.idle_stop_s is None else self.idle_stop_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    style: Style = "namespaced"
    separator: str = ""
    hyphens: Literal["keep", "underscore"] = "keep"
    length_max: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A named group of servers. `description`: what clients are told of it. `tools`: what is said
    of single tools in it."""

    name: str
    servers: tuple[str, ...]
    description: str = ""
    tools: Tools = field(default_factory=dict[str, Mapping[str, Tool]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One URL, `/metamcp/{path}/mcp`, that exposes one namespace. `path`: the name of the endpoint
    if it is empty. `sse`: the HTTP+SSE transport of 2024-11-05 is served too; `rest`: plain HTTP
    requests for single tools are. `exposure`: how much is in view at first; `view_scope`: who
    shares a view; `call_hidden`: what is out of view can be called by its name; `tools`: what is
    said of single tools here."""

    name: str
    namespace: str
    path: str = ""
    naming: Naming = Naming()
    sse: bool = True
    rest: bool = True
    exposure: Exposure = "all"
    view_scope: ViewScope | None = None
    call_hidden: bool = True
    tools: Tools = field(default_factory=dict[str, Mapping[str, Tool]])

    @property
    def scope(self) -> ViewScope:
        """Who shares a view, also where nothing is written: what an agent loads or activates for
        its work is its own, a tool set is a choice of the user."""
        alone = self.exposure in ("search", "servers")
        return self.view_scope or ("session" if alone else "principal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything. Keys of the mappings are the names, in the order of the files.

    `files`: every file that was read, the main one first. `warnings`: sentences for the operator.
    `problems`: the errors of servers that have a `mistake`.
    """

    gateway: Gateway
    servers: Mapping[str, Server]
    namespaces: Mapping[str, Namespace]
    endpoints: Mapping[str, Endpoint]
    log: Log = Log()
    recording: Recording = Recording()
    metrics: Metrics = Metrics()
    traces: Traces = Traces()
    embeddings: Embeddings = Embeddings()
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple["Problem", ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a configuration. `place`: a path into the file such as `servers.git.timeout`."""

    file: str
    place: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        place = "" if self.file.startswith(("--", "$")) else self.place  # a flag says it itself
        return ": ".join(part for part in (where, place, self.message) if part)


class ConfigInvalid(Exception):
    """The configuration cannot be used; `problems` holds every reason, not only the first, and
    `files` what was read or is missing. `why`: what follows for a gateway that runs."""

    def __init__(
        self,
        problems: tuple[Problem, ...],
        files: tuple[Path, ...] = (),
        why: str = "the configuration is invalid; the old one stays in force",
    ) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
        self.files = files
        self.why = why
