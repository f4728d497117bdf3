"""The configuration as typed, frozen values.

Owns: the values, their defaults and units. Never: reading files (`sources`), finding errors in them
(`parse`), the settings sent to a worker (`metamcp_worker.ipc.spec`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from msgspec import Struct

from metamcp_supervisor.config import environment
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.code_runs import CodeLimits
from metamcp_worker.ipc.disclosure import Exposure
from metamcp_worker.ipc.frames import MESSAGE_BYTES
from metamcp_worker.ipc.spec import (
    NAMESPACED,
    RESULTS,
    UNLIMITED,
    ConsentRule,
    IssuerSpec,
    NamingSpec,
    OAuth,
    PolicySpec,
    Profile,
    Unaskable,
    UseLimits,
)

R = TypeVar("R")
Restart = Literal["always", "on-failure", "never"]
Sharing = Literal["shared", "per-workspace", "per-session", "per-project", "auto"]
Retry = Literal["never", "read-only", "idempotent"]
Start = Literal["eager", "lazy"]
Workers = Literal["each", "shared"]
Era = Literal["auto", "modern", "legacy"]
Form = Literal["auto", "text", "json"]
Recorded = Literal["off", "metadata", "full"]
AuditLevel = Literal["off", "metadata", "redacted", "full"]
Durability = Literal["process", "power"]
Confinement = Literal["prefer", "require", "off"]
Network = Literal["host", "none"] | tuple[int, ...]
"""Network of a confined server: all, none, or the only TCP ports it may connect to."""
HOST: Literal["host"] = "host"
Pinning = Literal["off", "record", "enforce"]
MiddlewareMode = Literal["enforce", "permissive"]
ViewScope = Literal["principal", "session"]

CODE_LIMITS = CodeLimits()
UNIX = "unix:"
"""Prefix of an address that is the path of a unix socket."""

LAZY_IDLE_STOP_S = 600.0
"""Seconds without a call after which a server stops that starts when it is called."""
TENANT_IDLE_STOP_S = 300.0
"""Seconds without a call after which a process stops that serves one client, or the clients of one
project; shorter, because each costs as much as its server and there may be many."""


class PrivateStruct(Struct, frozen=True):
    """Struct whose text leaves out the members HIDDEN, as they may have secrets, and whose equality
    ignores the members UNCOMPARED, as they say how or where a value is written."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset()
    UNCOMPARED: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        names = (name for name in self.__struct_fields__ if name not in self.HIDDEN)
        members = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({members})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._compared_values() == other._compared_values()

    def __hash__(self) -> int:
        return hash(self._compared_values())

    def _compared_values(self) -> tuple[object, ...]:
        names = self.__struct_fields__
        return tuple(getattr(self, name) for name in names if name not in self.UNCOMPARED)


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a listener. `host`: an IP address or name, without brackets. No Struct, because a
    union with another Struct could not be decoded in an upgrade."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(Struct, frozen=True, array_like=True):
    """Address of a listener that is a unix socket. Encoded as an array, so that a decoder can tell
    it from an Address."""

    path: Path

    def __str__(self) -> str:
        return f"{UNIX}{self.path}"


AnyAddress = Address | UnixAddress


class Tls(Struct, frozen=True, kw_only=True):
    """TLS for clients: files in PEM, or `local`: the gateway makes and renews them."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    local: bool = False


class StoreConfig(PrivateStruct, frozen=True, kw_only=True):
    """Database in PostgreSQL in place of a file. `url`: may have a password; `url_written`: as
    written in the file."""

    UNCOMPARED = frozenset({"url_written"})
    HIDDEN = frozenset({"url", "url_written"})

    url: str
    url_written: str = ""


class GatewayConfig(PrivateStruct, frozen=True, kw_only=True):
    HIDDEN = frozenset({"cluster_secret"})

    listen: Address = Address("127.0.0.1", 6270)
    ops_listen: AnyAddress = Address("127.0.0.1", 6271)
    health_listen: Address | None = None
    console_listen: Address | None = None
    socket: UnixAddress | None = None
    """Unix socket for clients beside `listen`."""
    auth: tuple[str, ...] = ()
    """Credentials that endpoints accept that do not say it themselves; empty: none is needed."""
    behind_proxy: bool = False
    tls: Tls | None = None
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    fronts: int = 1
    workers: Workers = "each"
    watch: bool = False
    state_dir: Path
    runtime_dir: Path
    store: StoreConfig | None = None
    cluster_secret: str = ""
    """Encrypts the secrets in `store`."""
    drain_delay_s: float = 0.0
    movable: frozenset[str] = frozenset()
    """Keys of ports that no setting chose: if such a port is in use, the gateway takes another."""


class Log(Struct, frozen=True, kw_only=True):
    """Settings for the log of the gateway's own processes. `levels`: by room or library;
    `server_max`: bytes a minute for the lines of one server."""

    format: Form = "auto"
    level: str = "info"
    levels: Mapping[str, str] = {}
    server_max: int = 1024 * 1024


class RecordingConfig(Struct, frozen=True, kw_only=True):
    """Settings for the recording of finished calls; a server may set `calls` itself. `file_max`:
    bytes of a file; `body_max`: bytes of the arguments, and of the result, of a call."""

    calls: Recorded = "off"
    file_max: int = 16 * 1024 * 1024
    files_max: int = 8
    body_max: int = 16 * 1024


class AuditConfig(Struct, frozen=True, kw_only=True):
    """Settings for the audit. `level`: `off` without the table `[audit]`. `durability`: what a
    record survives; `required`: whether calls are refused while records cannot be written."""

    level: AuditLevel = "off"
    durability: Durability = "process"
    required: bool = True
    retention_s: float = 90 * 86_400.0


class ConsentConfig(Struct, frozen=True, kw_only=True):
    """Table `[consent]`; as of `spec.ConsentSpec`."""

    rules: tuple[ConsentRule, ...] = ()
    timeout_s: float = 120.0
    on_no_elicitation: Unaskable = "deny"
    use_annotations: bool = False


class CodeConfig(Struct, frozen=True, kw_only=True):
    """Settings for code mode. `enabled`: there is a table `[code]`; `limits`: of a run, where an
    endpoint has none of its own; `runs_max`: runs at once, 0 for as many as processors; `warm`:
    sandboxes that wait for runs, `idle_s` at most without a run."""

    enabled: bool = False
    limits: CodeLimits = CODE_LIMITS
    runs_max: int = 0
    warm: int = 2
    idle_s: float = 300.0
    jit: bool = False
    confinement: Confinement = "prefer"


class MiddlewareConfig(Struct, frozen=True, kw_only=True):
    """Table `[[middleware]]`. `uses`: name of the entry point; `match`: patterns `SERVER/NAME`;
    `order`: smaller ones are outside; `memory_bytes`: of its data; `options`: as JSON."""

    name: str
    uses: str = ""
    match: tuple[str, ...] = ()
    order: int = 0
    timeout_s: float = 0.2
    mode: MiddlewareMode = "enforce"
    memory_bytes: int = 256 * 1024 * 1024
    options: str = "{}"


class WorkflowFiles(Struct, frozen=True, kw_only=True):
    """Workflows, and rules of suggestions. `paths`: of workflows as written, by workspace;
    `rule_paths`, `rules_shipped`: the table `[suggestions]`; `definitions`: each as JSON, by
    workspace and name; `rules`: each as JSON, those of the user first; `files`: files and folders
    that were looked at."""

    paths: Mapping[str, tuple[str, ...]] = {}
    rule_paths: tuple[str, ...] = ()
    rules_shipped: bool = False
    definitions: Mapping[str, Mapping[str, bytes]] = {}
    rules: tuple[bytes, ...] = ()
    files: tuple[Path, ...] = ()


class ModelService(PrivateStruct, frozen=True, kw_only=True):
    """Model at a `url`. `key`: a bearer token; `key` and `url` may be secret; `…_written`: as
    written in the file; `referred`: values of the references to secrets in it."""

    UNCOMPARED = frozenset({"url_written", "key_written", "referred"})
    HIDDEN = UNCOMPARED | {"url", "key"}

    url: str = ""
    model: str = ""
    key: str = ""
    url_written: str = ""
    key_written: str = ""
    referred: tuple[str, ...] = ()


class AiConfig(ModelService, frozen=True, kw_only=True):
    """Table `[ai]`: the model of the engine, and limits of one agent. `cost_max`: in the currency
    of the prices, 0 for none; prices: for a million tokens; `consent`: as of
    `engine_runs.HostAsk`."""

    provider: Literal["openai", "anthropic"] = "openai"
    steps_max: int = 20
    tokens_max: int = 200_000
    timeout_s: float = 300.0
    answer_tokens_max: int = 4096
    cost_max: float = 0.0
    input_price: float = 0.0
    output_price: float = 0.0
    consent: bool = True


SERVER_EVENTS = ("failed", "recovered", "quarantined", "drifted")
"""Events of a server for which a command of `[hooks]` can run."""
HOOK_EVENTS = (*SERVER_EVENTS, "approval", "reload-refused")


class HookConfig(Struct, frozen=True, kw_only=True):
    """A command that runs for events. `on`: some of HOOK_EVENTS, the most urgent one first;
    `command`: empty without one."""

    on: tuple[str, ...] = ("failed", "quarantined", "approval")
    command: tuple[str, ...] = ()


class MetricsConfig(Struct, frozen=True, kw_only=True):
    """Settings for metrics. `per_tool`: durations of calls for each single tool; `series_max`:
    maximum number of series on a page."""

    per_tool: bool = False
    series_max: int = 50_000


class TracesConfig(PrivateStruct, frozen=True, kw_only=True):
    """Settings for spans of calls. `endpoint`: URL of the collector, empty: no traces; `headers`:
    sent with spans; both may hold secrets. `sample`: share of calls that are traced if the client
    does not trace. `…_written`: as written in the file; `referred`: values of the references to
    secrets in it."""

    UNCOMPARED = frozenset({"endpoint_written", "headers_written", "referred"})
    HIDDEN = UNCOMPARED | {"endpoint", "headers"}

    endpoint: str = ""
    sample: float = 0.1
    headers: Mapping[str, str] = {}
    endpoint_written: str = ""
    headers_written: Mapping[str, str] = {}
    referred: tuple[str, ...] = ()


class ToolConfig(Struct, frozen=True, kw_only=True):
    """Settings of a tool; None: not set. `name`: the exposed name, in place of the name by the
    rule; `aliases`: further names; `hidden`: in no list, but clients can call the tool. `fixed`,
    `defaults`: arguments and their values, as JSON text."""

    enabled: bool | None = None
    hidden: bool | None = None
    name: str | None = None
    aliases: tuple[str, ...] | None = None
    title: str | None = None
    description: str | None = None
    fixed: Mapping[str, str] = {}
    defaults: Mapping[str, str] = {}


Tools = Mapping[str, Mapping[str, ToolConfig]]
"""Settings of tools by server, and by the server's own name of the tool."""


class Server(PrivateStruct, frozen=True, kw_only=True):
    """Configured MCP server. Exactly one of `command`, `module` and `url` is set, or none of them
    and `transport` names a transport that an installed package brings.

    `env`, `url`, `headers`, `options`: resolved; they may hold secrets, so the repr omits them.
    `source`: place in a file, for messages: `file: servers.git`.
    `…_written`: the same values as written in the file, with references such as `${env:TOKEN}` not
    resolved; people are shown these values, and a confirmation is for these values.
    """

    UNCOMPARED = frozenset({
        "command_written", "env_written", "url_written", "headers_written", "oauth_written",
        "options_written", "referred", "folder",
    })  # fmt: skip
    HIDDEN = UNCOMPARED | {"env", "url", "headers", "options"}

    name: str
    source: str
    command: tuple[str, ...] = ()
    module: str | None = None
    env: Mapping[str, str] = {}
    inherit_env: tuple[str, ...] = environment.DEFAULT
    cwd: Path | None = None
    url: str | None = None
    transport: str = "auto"
    headers: Mapping[str, str] = {}
    oauth: OAuth | None = None
    options: Mapping[str, str] = {}
    command_written: tuple[str, ...] = ()
    env_written: Mapping[str, str] = {}
    url_written: str | None = None
    headers_written: Mapping[str, str] = {}
    oauth_written: OAuth | None = None
    options_written: Mapping[str, str] = {}
    referred: tuple[str, ...] = ()
    """Values of the references to secrets in it."""
    mistake: str = ""
    """Error in the server's table that keeps the server from starting; then only `enabled` and
    `required` are known besides."""
    folder: str = ""
    """Folder of the file that names the server."""
    enabled: bool = True
    start: Start = "eager"
    idle_stop_s: float | None = None
    """Seconds without a call after which a process stops; None: `LAZY_IDLE_STOP_S`, or
    `TENANT_IDLE_STOP_S` for a process that does not serve all clients."""
    sharing: Sharing = "auto"
    era: Era = "auto"
    protocol: str | None = None
    """The only revision that it is asked for."""
    extensions: Mapping[str, str] | None = None
    """Extensions declared to a process that is not for a single client, with settings as JSON."""
    depends_on: tuple[str, ...] = ()
    spares: int = 0
    worker: str = ""
    """`own`, or the name of the worker that it shares with others; empty: as `workers` says."""
    required: bool = False
    recording: Recorded | None = None
    """Recording of this server's calls; None: as set in `[recording]`."""
    pinning: Pinning | None = None
    """Effect of drift; None: `enforce` if `metamcp.lock` has the server, else `record`."""
    tools: Mapping[str, ToolConfig] = {}
    restart: Restart = "on-failure"
    restarts_max: int = 8
    restart_window_s: float = 120.0
    restart_delay_max_s: float = 30.0
    retry: Retry = "never"
    start_timeout_s: float = 30.0
    timeout_s: float = 300.0
    timeout_max_s: float = 3600.0
    list_timeout_s: float = 5.0
    stop_grace_s: float = 5.0
    probe_interval_s: float = 30.0
    hide_after_s: float = 3.0
    strict_listing: bool | None = None
    trust_annotations: bool = False
    concurrency: int = 1024
    queue: int = 4096
    message_max: int = MESSAGE_BYTES
    memory_max: int | None = None
    """Maximum bytes of memory; `memory_high` is in bytes too. None here and below: no limit."""
    memory_high: int | None = None
    memory_rlimit: bool = False
    cpu_max: float | None = None
    """Maximum number of processors that the server may keep busy."""
    limits: UseLimits = UNLIMITED
    processes_max: int | None = None
    nofile_max: int | None = None
    sandbox: Profile | None = None
    """Confinement of its process; None: as `sandboxes.profile` says."""
    sandbox_required: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    needs: tuple[str, ...] | None = None
    """Names of needs of `known_servers.toml`; None: as the server is known."""
    unix_sockets: tuple[str, ...] = ()
    disk_max: int | None = None
    """Maximum bytes in its own folders; None: `limits.DISK_BYTES_MAX`, or half of the room."""
    network: Network | None = None
    """None: as its profile has it."""

    @property
    def lazy(self) -> bool:
        return self.start == "lazy"

    @property
    def rests(self) -> bool:
        """Whether processes of this server stop when they are not used."""
        return self.lazy or self.sharing in ("per-session", "per-project", "auto")

    @property
    def rest_s(self) -> float:
        """Seconds without a call after which the server stops, if it `rests`."""
        return LAZY_IDLE_STOP_S if self.idle_stop_s is None else self.idle_stop_s


class Namespace(Struct, frozen=True, kw_only=True):
    """Named group of servers. `description`: text for clients; `tools`: settings of single tools in
    this group."""

    name: str
    servers: tuple[str, ...]
    description: str = ""
    tools: Tools = {}


class ResultsConfig(Struct, frozen=True):
    """How an endpoint keeps large results, as in `spec.ResultLimits`."""

    max_bytes: int = 64 * 1024
    keep_s: float = 3600.0
    total_bytes: int = 256 * 1024 * 1024


class Endpoint(PrivateStruct, frozen=True, kw_only=True):
    """URL `/metamcp/{path}/mcp` that exposes a namespace. `path`: empty for the name of the
    endpoint; `sse`: also serve the HTTP+SSE transport of 2024-11-05; `rest`: also serve plain HTTP
    requests for single tools; `exposure`: how much is in view at first; `view_scope`: clients that
    share a view; `call_hidden`: whether tools out of view can be called by name; `tools`: settings
    of single tools at this endpoint; `limits`: of use, by all of its clients together."""

    HIDDEN = UNCOMPARED = frozenset({"secret_written"})

    name: str
    namespace: str
    path: str = ""
    naming: NamingSpec = NAMESPACED
    schemas: Literal["as-is", "safe"] = "as-is"
    """Whether the schemas of tools are as their servers made them, or as all clients take them."""
    sse: bool = True
    rest: bool = True
    exposure: Exposure = "all"
    view_scope: ViewScope | None = None
    call_hidden: bool = True
    auth: tuple[str, ...] = ()
    """Accepted credentials, as in `spec.EndpointSpec`; empty: none is needed."""
    oauth: IssuerSpec | None = None
    """Issuer of the tokens that are accepted, if `auth` has `oauth`."""
    secret_written: str = ""
    """`client_secret` of `oauth`, as written in the file."""
    keys: tuple[str, ...] = ()
    """Names or ids of the only API keys that are accepted; empty: all of the workspace."""
    url_keys: bool = False
    limits: UseLimits = UNLIMITED
    code: Mapping[str, int] = {}
    """Limits of code that differ from `[code]`, by fields of `CodeLimits`."""
    builtins: tuple[str, ...] = ()
    """Families of built-in tools besides those of its exposure."""
    results: ResultsConfig | None = None
    """How large results are kept; None: every result passes whole."""
    tools: Tools = {}
    workspace: str = process_names.DEFAULT

    @property
    def families(self) -> tuple[str, ...]:
        """Families of built-in tools, with that of its kept results."""
        return self.builtins if self.results is None else (*self.builtins, RESULTS)

    @property
    def scope(self) -> ViewScope:
        """Clients that share a view, with the default filled in: tools that an agent loads or
        activates for its work are only for its session, a tool set is a choice of the user."""
        alone = self.exposure in ("search", "servers")
        return self.view_scope or ("session" if alone else "principal")


def no_origin(table: str, key: str) -> str:
    """Return an empty place, for a setting of unknown origin."""
    return ""


class Config(PrivateStruct, frozen=True, kw_only=True):
    """Whole configuration. Keys of the mappings are names, in the order of the files; those of
    servers and namespaces are full names (`process_names.within`).

    `files`: every file that was read, the main file first; `warnings`: sentences for the operator;
    `problems`: the errors of servers that have a `mistake`; `programs`: the references whose value
    a program prints, such as `cmd:pass show x`; `unrun`: these programs have not run, and the
    values that refer to them are placeholders; `origin`: returns file and line of a setting by its
    table and key, empty for a default (`origins`).
    """

    HIDDEN = UNCOMPARED = frozenset({"origin"})

    gateway: GatewayConfig
    servers: Mapping[str, Server]
    namespaces: Mapping[str, Namespace]
    endpoints: Mapping[str, Endpoint]
    workspace_limits: Mapping[str, UseLimits] = {}
    """Limits of use by workspace, where a workspace has some."""
    log: Log = Log()
    recording: RecordingConfig = RecordingConfig()
    audit: AuditConfig = AuditConfig()
    code: CodeConfig = CodeConfig()
    middleware: tuple[MiddlewareConfig, ...] = ()
    consent: ConsentConfig = ConsentConfig()
    workflows: WorkflowFiles = WorkflowFiles()
    ai: AiConfig = AiConfig()
    """Without a `url` if no model is configured."""
    notify: tuple[str, ...] = ()
    """Command of `[notify]`; empty without one."""
    hooks: HookConfig = HookConfig()
    metrics: MetricsConfig = MetricsConfig()
    traces: TracesConfig = TracesConfig()
    policies: tuple[PolicySpec, ...] = ()
    tables: Mapping[str, Any] = {}
    """Records of the tables of features that are written."""
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple["Problem", ...] = ()
    programs: tuple[str, ...] = ()
    unrun: bool = False
    origin: Callable[[str, str], str] = no_origin

    def table(self, record: type[R]) -> R:
        """Return the values of a table that a feature adds."""
        return next((each for each in self.tables.values() if isinstance(each, record)), record())


class Problem(Struct, frozen=True):
    """Error in a configuration. `place`: a path into the file such as `servers.git.timeout`."""

    file: str
    place: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        position = self.file if self.line is None else f"{self.file}:{self.line}"
        location = "" if self.file.startswith(("--", "$")) else self.place  # a flag says it itself
        return ": ".join(text for text in (position, location, self.message) if text)


class ConfigInvalid(Exception):
    """The configuration cannot be used. `problems`: every reason, not only the first; `files`: the
    files that were read or are missing; `effect`: on a gateway that runs, kept as `why`."""

    def __init__(
        self,
        problems: tuple[Problem, ...],
        files: tuple[Path, ...] = (),
        effect: str = "the configuration is invalid; the old one stays in force",
    ) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
        self.files = files
        self.why = effect
