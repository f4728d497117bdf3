"""Configuration of workers: the typed, frozen values that the supervisor sends to them.

Owns: their fields, units and defaults. Never: file formats, validation for humans (the supervisor's
`config` does both), secrets by reference (here they are already resolved).
"""

from typing import Literal

from msgspec import Struct

from metamcp_worker.ipc.code_runs import CodeLimits
from metamcp_worker.ipc.disclosure import Exposure
from metamcp_worker.ipc.frames import MESSAGE_BYTES
from metamcp_worker.ipc.middleware_calls import MiddlewareSpec
from metamcp_worker.ipc.roots import Asked

First = Literal["auto", "modern", "legacy", "legacy-first"]
"""Era of the protocol to try first with a server: `auto` tries the modern era, then the legacy era;
`legacy-first` the other way round; `modern` and `legacy` try one only."""


class SecretStruct(Struct, frozen=True):
    """Base of values with secrets in them: their repr, which may get into a log, is the name of
    the class alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class LogSpec(SecretStruct, frozen=True, kw_only=True):
    """How a process logs. `format`: `auto` (text on a terminal, else JSON), `text` or `json`;
    `level`: of the gateway's own rooms; `levels`: of single rooms and of loggers of libraries.
    `secrets`: values that must not appear in the log."""

    format: str = "auto"
    level: str = "info"
    levels: dict[str, str] = {}
    secrets: tuple[str, ...] = ()


class RecordingSpec(SecretStruct, frozen=True, kw_only=True):
    """How a front records finished calls. `servers`: `metadata` or `full`, for each server whose
    calls are recorded. `folder`: where the files are. Limits: `file_bytes` of one file; `files` of
    all fronts; `body_bytes` of the arguments and of the result. `secrets`: of the servers with
    `full`; values that must not appear in a record."""

    folder: str = ""
    servers: dict[str, str] = {}
    file_bytes: int = 16 * 1024 * 1024
    files: int = 8
    body_bytes: int = 16 * 1024
    secrets: tuple[str, ...] = ()


CALLBACK_PORT = 6273
"""Port for the callback of OAuth, always the same if it is free, because some authorization servers
accept an address only as it was registered; next to the ports of the gateway."""


Grant = Literal["authorization_code", "client_credentials"]


class OAuth(SecretStruct, frozen=True, kw_only=True):
    """Settings for the authorization at a remote server.

    `client_id`, `client_secret`: of a client that was registered beforehand. `client_metadata_url`:
    an https URL that serves as client id (client id metadata document). `scopes`: requested if the
    server sends no challenge.
    """

    client_id: str | None = None
    client_secret: str | None = None
    client_metadata_url: str | None = None
    scopes: tuple[str, ...] = ()
    grant: Grant = "authorization_code"
    """Grant type: this, or `client_credentials`, which asks no person, because the gateway has a
    credential of its own."""
    require_pkce: bool = True
    """Refuse an authorization server that does not name S256 in its metadata."""
    callback_port: int = CALLBACK_PORT
    """Port of this machine to which a browser comes back; if it is in use, any other port."""


class OAuthSpec(OAuth, frozen=True, kw_only=True):
    """How a worker authorizes. `store`: directory of the encrypted tokens; `key`: 32 bytes,
    base64."""

    store: str
    key: str


class LimitsSpec(Struct, frozen=True, kw_only=True):
    """Limits of the kernel for the processes of a command; 0: the same as for the gateway.

    `nofile`: open files of each process. `data_bytes`: private memory of each process. `nice`:
    niceness of the processes. `cgroup`: directory of their leaf cgroup, empty for none.
    `processes`: number of processes, which the worker holds; 0 if a cgroup does or nobody. Core
    dumps are off in any case: the memory of a server may hold secrets.
    """

    nofile: int = 0
    data_bytes: int = 0
    nice: int = 0
    cgroup: str = ""
    processes: int = 0


Profile = Literal["none", "basic", "strict"]
"""How a server is confined: not at all, by the kernel around its process, or in a container of its
own by bubblewrap."""


TEMPORARY = "tmp"
"""Folder in that of a confined server, with a link to the temporary folder of each of its
processes, by the process id of the worker."""
CONFINED_HOST = "127.0.67.67"
"""Address of this machine from which confined servers connect to the gateway."""


RECORDING = "recording"
"""Word for the confinement in a trial, which only records what a process uses."""


class ConfinementSpec(Struct, frozen=True, kw_only=True):
    """How the process of a command is confined.

    `required`: whether the server is not started where the kernel lacks something. `read`, `write`:
    further paths, relative to the working directory; a folder in `write` that ends with a slash is
    created if it is missing. `browser`: whether it starts a browser, which has a sandbox of its own
    and reads about its processes. `network`: `host`, or `none`; `tcp_ports`: the only TCP ports it
    may connect to, empty for all. `own`: variables that its configuration names. `folder`: private
    folder of the server, which stays; `lasting`: whether its home is in there, or goes with the
    process. `hidden`: paths of the gateway. `cwd_named`: whether the configuration names the
    working directory. `unix_sockets`: paths of unix sockets of others that it may use;
    `gateway_ports`: TCP ports of the gateway. `trial`: whether it gets all files, sockets and
    ports, and the worker reports which of them it would not get otherwise.
    """

    profile: Profile = "none"
    required: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    browser: bool = False
    network: Literal["host", "none"] = "host"
    tcp_ports: tuple[int, ...] = ()
    own: tuple[str, ...] = ()
    folder: str = ""
    lasting: bool = True
    hidden: tuple[str, ...] = ()
    cwd_named: bool = False
    unix_sockets: tuple[str, ...] = ()
    gateway_ports: tuple[int, ...] = ()
    trial: bool = False


class ServerSpec(SecretStruct, frozen=True, kw_only=True):
    """Configuration of one MCP server for its worker.

    Exactly one of `command`, `module`, `url` is set, or none of them with a custom transport.
    `command`: argv, the first element looked up on the PATH of `env`. `env`: the whole environment
    of the child. `cwd`: directory, or None for the gateway's. `module`: `package.module:object`.
    `url`: of a remote server. `transport`: `auto`, `http` or `sse` for a URL, else the name of an
    entry point in the group `metamcp.transports`. `headers`: sent with every request to `url`.
    `options`: for a custom transport, as they stand in the configuration.
    """

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    module: str | None = None
    url: str | None = None
    transport: str = "auto"
    headers: dict[str, str] = {}
    oauth: OAuthSpec | None = None
    options: dict[str, str] = {}
    limits: LimitsSpec = LimitsSpec()
    confinement: ConfinementSpec = ConfinementSpec()
    start_timeout_s: float = 30.0
    timeout_s: float = 300.0
    timeout_max_s: float = 3600.0
    """Seconds up to which a call that reports progress may take."""
    list_timeout_s: float = 5.0
    """Seconds for each page of prompts, resources and templates, and for all lists at a start."""
    stop_eof_s: float = 1.0
    stop_grace_s: float = 5.0
    concurrency: int = 1024
    """Maximum requests in flight at the server; more wait in the queue."""
    queue: int = 4096
    """Maximum requests that wait for the server; one more is answered with `overloaded`."""
    message_bytes: int = MESSAGE_BYTES
    """Maximum bytes of a message of the server; a larger one is skipped, and answered with an
    error."""
    probe_interval_s: float = 30.0
    """Seconds of silence after which a server at the end of pipes is asked whether it is there."""
    log: LogSpec = LogSpec()
    era: First = "auto"
    """Era to try first. Some legacy servers exit when they are asked whether they are modern; see
    `messages.ServerDown.probing`."""
    protocol: str = ""
    """The only revision with `initialize` that it is asked for; empty: whichever it accepts."""
    known_protocol: str = ""
    """Revision that it spoke last, empty if that is not known."""
    extensions: dict[str, str] = {}
    """Extensions declared to a process that is not for a single client, with settings as JSON."""
    caller: str = ""
    """JSON that the only client sends about itself; empty for a process that is for all clients."""
    roots: str = ""
    """JSON, the answer to `roots/list`; empty if the client of the call is asked."""
    asks_roots: Asked = ""
    """When the server was seen to ask for the roots of its client."""


class NamingSpec(Struct, frozen=True, kw_only=True):
    """How an endpoint names tools and prompts. See `metamcp_worker.ipc.exposed_names`."""

    style: str = "namespaced"
    separator: str = ""
    hyphens: str = "keep"
    length_max: int = 64


NAMESPACED = NamingSpec()
"""Rules of an endpoint that says nothing about names."""


class ToolOverride(Struct, frozen=True, kw_only=True):
    """Changes of an endpoint to one tool. For a field without a value, the server's definition
    counts. `tool`: the server's own name.

    `name`: in place of the name by the rule. `aliases`: more names by which clients can call it.
    `hidden`: the tool is in no list, but can be called. `fixed`: arguments that always have these
    values, whatever a client sends; `defaults`: values of arguments that a client does not send.
    Both have values as JSON text.
    """

    server: str
    tool: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    hidden: bool = False
    title: str | None = None
    description: str | None = None
    fixed: dict[str, str] = {}
    defaults: dict[str, str] = {}


class UseLimits(Struct, frozen=True):
    """Limits of use of an endpoint, a server, a workspace or a key; 0: no limit. `burst`: calls at
    once, `calls_per_minute` if it is 0; `in_flight`: calls that are not answered yet; `streams`:
    standing streams; `body_max`: bytes of a request. Limits are for the whole gateway."""

    calls_per_minute: float = 0.0
    burst: int = 0
    calls_per_day: int = 0
    in_flight: int = 0
    streams: int = 0
    body_max: int = 0


UNLIMITED = UseLimits()


class ResultLimits(Struct, frozen=True, kw_only=True):
    """How an endpoint keeps large results. `folder`: of all kept results of the gateway;
    `max_bytes`: a larger result is kept, and a piece of it has at most as many; `keep_s`: how long;
    `total_bytes`: of all results of one principal at this endpoint."""

    folder: str
    max_bytes: int
    keep_s: float
    total_bytes: int


RESULT_BYTES_MIN = 8 * 1024
"""Minimum of `max_bytes`, and maximum bytes of a short result in place of a large one."""
RESULTS = "results"
"""Family of built-in tools that an endpoint has which keeps results."""


RESOURCE_METADATA = "/.well-known/oauth-protected-resource"
"""Beginning of the path of the document about a protected resource (RFC 9728, section 3)."""


class IssuerSpec(SecretStruct, frozen=True, kw_only=True):
    """Authorization server whose tokens an endpoint accepts. `issuer`: its identifier, a URL (RFC
    8414, section 2); `audience`: URL of the endpoint, for which the tokens must be; `scopes`: that
    each token must have; `introspection`: URL to ask about tokens that are not JWTs (RFC 7662),
    empty for none, with `client_id` and `client_secret`; `allow_private`: the issuer may be on this
    machine or in its network."""

    issuer: str
    audience: str
    scopes: tuple[str, ...] = ()
    introspection: str = ""
    client_id: str = ""
    client_secret: str = ""
    allow_private: bool = False

    @property
    def metadata(self) -> str:
        """URL of the document about the endpoint."""
        scheme, _, host_and_path = self.audience.partition("://")
        host, slash, path = host_and_path.partition("/")
        return f"{scheme}://{host}{RESOURCE_METADATA}{slash}{path}".rstrip("/")


ALL_SCOPES = ("mcp:list", "mcp:call", "mcp:read", "mcp:prompt", "mcp:subscribe", "mcp:meta")
"""Scopes that a credential can have; see `access.gate`."""


class PrincipalFacts(Struct, frozen=True, kw_only=True):
    """Facts about a principal that policies know; the defaults are those of the user of this
    machine. `id`: owner of views, sessions and handles; `name`: of its API key, else the same;
    `scopes`: that it has."""

    id: str = "local"
    name: str = "local"
    scopes: tuple[str, ...] = ALL_SCOPES


class EndpointSpec(Struct, frozen=True, kw_only=True):
    """Configuration of one endpoint: its paths, its servers in order, its naming.

    `path`: part of its URLs; empty: the name. `namespace`: its name, `description`: what it is for.
    `disabled`: pairs (server, tool) that are switched off. `switches`: for each server with
    patterns, the switches of its tools by name or pattern; later layers win. `overrides`: at most
    one for each other tool.
    `default`: the endpoint answers at `/mcp` too.
    """

    name: str
    servers: tuple[str, ...]
    path: str = ""
    namespace: str = ""
    description: str = ""
    naming: NamingSpec = NAMESPACED
    safe_schemas: bool = False
    """Whether lists leave out what clients and APIs of models refuse in the schemas of tools."""
    disabled: tuple[tuple[str, str], ...] = ()
    switches: dict[str, tuple[dict[str, bool], ...]] = {}
    overrides: tuple[ToolOverride, ...] = ()
    default: bool = False
    sse: bool = True
    """Whether the HTTP+SSE transport of 2024-11-05 is served too."""
    rest: bool = True
    """Whether `…/api` is served too."""
    exposure: Exposure = "all"
    per_session: bool = False
    """Whether each session of the handshake era has a view of its own."""
    call_hidden: bool = True
    """Whether clients can call tools that are not in view by their names."""
    workspace: str = "default"
    auth: tuple[str, ...] = ()
    """Accepted credentials, `keys` and `oauth`; empty: none is asked for."""
    keys: tuple[str, ...] = ()
    """Names or ids of the only API keys that are accepted; empty: all of the workspace."""
    url_keys: bool = False
    """Whether a key may stand in the URL, if the key allows it too."""
    oauth: IssuerSpec | None = None
    """Issuer of its tokens; None unless `auth` has `oauth`."""
    limits: UseLimits = UNLIMITED
    code: CodeLimits | None = None
    """Limits of a run of code; None: the endpoint has no code mode."""
    builtins: tuple[str, ...] = ()
    """Families of built-in tools it has besides: `catalog`, `workflows`, `agent`, RESULTS."""
    results: ResultLimits | None = None
    """How large results are kept; None: every result passes whole."""
    part_of: str = ""
    """Endpoint that this one is a part of, for credentials that may use some servers only, or that
    policies tell from others; the front makes it."""
    who: PrincipalFacts = PrincipalFacts()
    """Facts about its clients that policies know."""

    @property
    def needs_index(self) -> bool:
        """Whether its tools are searched."""
        return self.exposure in ("search", "code") or any(
            builtin != RESULTS for builtin in self.builtins
        )

    @property
    def metadata(self) -> str:
        """URL of the document about it as a protected resource; empty without `oauth`."""
        return "" if self.oauth is None else self.oauth.metadata

    @property
    def base(self) -> str:
        """Path at which all its URLs begin."""
        return f"/metamcp/{self.path or self.name}"


class SemanticSearchSpec(Struct, frozen=True, kw_only=True):
    """Search by meaning beside the search by words. `model`: identifies vectors that can be
    compared; `weight`: of the ranking by meaning; the ranking by words has 1."""

    model: str
    weight: float


class EmbeddingsSpec(SecretStruct, frozen=True, kw_only=True):
    """Source of vectors. `url`: of an embeddings endpoint like OpenAI's; empty: `folder` is the
    folder of a model on this machine. `model`: name of the model at the endpoint; `key`: a bearer
    token, or empty. `id`: as `SemanticSearchSpec.model`. `store`: file of stored vectors.
    `timeout_s`: of a request; `batch`: maximum texts of one request."""

    url: str = ""
    model: str = ""
    key: str = ""
    folder: str = ""
    id: str = ""
    store: str = ""
    timeout_s: float = 10.0
    batch: int = 32
    log: LogSpec = LogSpec()


class TlsSpec(Struct, frozen=True, kw_only=True):
    """Files for TLS, in PEM. `client_ca`: certificates that clients must have one of; empty: none
    is asked for."""

    cert: str
    key: str
    client_ca: str = ""


class AuditSpec(SecretStruct, frozen=True, kw_only=True):
    """How a front audits calls. `level`: `metadata`, `redacted` or `full`, or `off`: nothing is
    audited. `required`: whether calls are refused while their
    records cannot be written. `salt`: of pseudonyms. `spools`: as in `audit_link.AuditLink`."""

    spools: str = ""
    level: str = "off"
    required: bool = True
    salt: bytes = b""


PolicyEffect = Literal["allow", "deny", "ask", "log"]
PolicyMode = Literal["enforce", "permissive"]


class PolicySpec(Struct, frozen=True, kw_only=True):
    """Rule about lists and calls. `match`: globs of `server/name`; `when`: a condition in CEL,
    empty for always; `message`: for the client; `mode`: `permissive` only counts what the rule
    would do."""

    name: str
    match: tuple[str, ...] = ("*/*",)
    when: str = ""
    effect: PolicyEffect = "deny"
    message: str = ""
    mode: PolicyMode = "enforce"


GuardEffect = Literal["allow", "ask", "deny"]
"""Effect of a rule about calls, the mildest first."""


Unaskable = Literal["deny", "allow", "queue"]
"""Fate of a call that needs consent and whose client cannot ask; `queue`: it waits for an
operator."""


class ConsentRule(Struct, frozen=True, kw_only=True):
    """Rule of consent. `match`: globs of `server/tool`."""

    match: tuple[str, ...]
    effect: GuardEffect


class ConsentSpec(Struct, frozen=True, kw_only=True):
    """Rules about which calls a person is asked; the first one that matches counts. `timeout_s`:
    for an answer; `unaskable`: what happens to a call of a client that cannot ask; `hints`: whether
    a tool that does not say that it only reads is asked about, too; `trusted`: servers whose tools
    are not asked about if they say that they only read."""

    rules: tuple[ConsentRule, ...] = ()
    timeout_s: float = 120.0
    unaskable: Unaskable = "deny"
    hints: bool = False
    trusted: tuple[str, ...] = ()


class FrontSpec(SecretStruct, frozen=True, kw_only=True):
    """Configuration of a front. `handle_key`: key of the state directory for ids and states that
    are of use to one client alone. `hosts`: values of `Host` and of the host part of `Origin` that
    are accepted, without port (`127.0.0.1`, `localhost`, `[::1]`, …). `timeouts_s`: per server.
    `retries`: `read-only` or `idempotent`, for servers whose calls may be sent once more.
    `trusted_proxies`: networks and addresses of proxies whose headers say where a client is.
    `tool_times`: whether the times of calls are kept for each tool. `traced`: share of calls to
    trace whose client does not trace; None: no call is traced."""

    version: str
    endpoints: tuple[EndpointSpec, ...]
    hosts: tuple[str, ...]
    trusted_proxies: tuple[str, ...] = ()
    handle_key: bytes = b""
    timeouts_s: dict[str, float] = {}
    retries: dict[str, str] = {}
    log: LogSpec = LogSpec()
    recording: RecordingSpec = RecordingSpec()
    audit: AuditSpec = AuditSpec()
    policies: tuple[PolicySpec, ...] = ()
    consent: ConsentSpec = ConsentSpec()
    tool_times: bool = False
    traced: float | None = None
    quarantined: tuple[tuple[str, str, str], ...] = ()
    """Server, tool, and a sentence for callers: tools that are not as an operator approved them.
    The server may be a process for one client (`process_names`); then only its client is refused.
    """
    held: tuple[str, ...] = ()
    """Servers with approved definitions: a tool that such a server does not list cannot be called.
    """
    meaning: SemanticSearchSpec | None = None
    """Search by meaning; None: searches use words alone."""
    several: bool = False
    """Whether there are other fronts; then clients hear of changed lists when all fronts show
    them."""
    fronts: int = 1
    """Fronts that share the limits of use."""
    tls: TlsSpec | None = None
    """TLS for clients; None: plain HTTP."""
    behind_proxy: bool = False
    """Whether a proxy in front of the gateway speaks TLS with clients."""
    roles: tuple[str, ...] = ()
    """Processes of the gateway that the front can connect to; see `messages.AttachRole`."""
    engine_at_once: bool = False
    """Whether the front connects to the engine at once, because workflows may be going on."""
    middleware: tuple[MiddlewareSpec, ...] = ()
    """Middleware in the order in which requests go through it."""
    server_limits: dict[str, UseLimits] = {}
    workspace_limits: dict[str, UseLimits] = {}
    call_hold_s: float = 2.0
    """Seconds that a call waits for a server that is just coming back."""
