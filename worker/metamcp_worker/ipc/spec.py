"""What the supervisor tells a worker: the typed, frozen values that cross the control socket.

Owns: their fields, units and defaults. Never: file formats, validation for humans (the supervisor's
`config` does both), secrets by reference (here they are already resolved).
"""

from typing import Literal

from msgspec import Struct

from metamcp_worker.ipc.disclosure import Exposure
from metamcp_worker.ipc.frames import MESSAGE_BYTES
from metamcp_worker.ipc.roots import Asked

First = Literal["auto", "modern", "legacy", "legacy-first"]
"""The era in which a server is spoken to. `auto` tries the modern one first, `legacy-first` the
other; `modern` and `legacy` try no other."""


class LogSpec(Struct, frozen=True, kw_only=True):
    """How a process speaks: `format` `auto` (text on a terminal, else JSON), `text` or `json`;
    `level`: of the gateway's own rooms; `levels`: of single rooms and of loggers of libraries.
    `secrets`: what must not be read in it."""

    format: str = "auto"
    level: str = "info"
    levels: dict[str, str] = {}
    secrets: tuple[str, ...] = ()


class RecordingSpec(Struct, frozen=True, kw_only=True):
    """What a front writes down of calls that are over. `servers`: `metadata` or `full`, for those
    of which anything is. `folder`: where the files are. `file_bytes`: of one file; `files`: of all
    fronts; `body_bytes`: of arguments and of a result. `secrets`: what must not be read in it, of
    the servers with `full`."""

    folder: str = ""
    servers: dict[str, str] = {}
    file_bytes: int = 16 * 1024 * 1024
    files: int = 8
    body_bytes: int = 16 * 1024
    secrets: tuple[str, ...] = ()


CALLBACK_PORT = 6273
"""Always the same if it is free, because some authorization servers know an address only as it was
registered; next to the ports of the gateway."""


class OAuthSpec(Struct, frozen=True, kw_only=True):
    """How to authorize towards a remote server.

    `client_id`, `client_secret`: of a client that was registered beforehand. `client_metadata_url`:
    an https URL that serves as client id (client id metadata document). `scopes`: asked for in the
    absence of a challenge. `store`: directory of the encrypted tokens; `key`: 32 bytes, in base64.
    """

    store: str
    key: str
    client_id: str | None = None
    client_secret: str | None = None
    client_metadata_url: str | None = None
    scopes: tuple[str, ...] = ()
    grant: str = "authorization_code"
    """Or `client_credentials`: nobody is asked, the gateway has a credential of its own."""
    require_pkce: bool = True
    """Refuse an authorization server that does not name S256 in its metadata."""
    callback_port: int = CALLBACK_PORT
    """The port of this machine to which a browser comes back; another one if that is in use."""


class LimitsSpec(Struct, frozen=True, kw_only=True):
    """What the kernel is to grant the processes of a command; 0: as much as it grants the gateway.

    `nofile`: open files of each process. `data_bytes`: private memory of each process. `nice`: how
    much it gives way to others for the processor. `cgroup`: the directory of its leaf, empty for
    none. Core dumps are off in any case: what a server holds in memory may be secret.
    """

    nofile: int = 0
    data_bytes: int = 0
    nice: int = 0
    cgroup: str = ""


class ServerSpec(Struct, frozen=True, kw_only=True):
    """One MCP server, as its worker needs to know it.

    Exactly one of `command`, `module`, `url` is set, or none of them with a custom transport.
    `command`: argv, the first element looked up on the PATH of `env`. `env`: the whole environment
    of the child. `cwd`: directory, or None for the gateway's. `module`: `package.module:object`.
    `url`: of a remote server. `transport`: `auto`, `http` or `sse` for a URL, else the name of an
    entry point in the group `metamcp.transports`. `headers`: sent with every request to `url`.
    `options`: what a custom transport is told, as it stands in the configuration.
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
    start_timeout_s: float = 30.0
    timeout_s: float = 60.0
    stop_eof_s: float = 1.0
    stop_grace_s: float = 5.0
    concurrency: int = 1024
    """Requests in flight at the child; more wait in the queue."""
    queue: int = 4096
    """Requests that may wait for the child; one more is answered with `overloaded`."""
    message_bytes: int = MESSAGE_BYTES
    """One message of the server; a larger one is passed over, and answered with an error."""
    probe_interval_s: float = 30.0
    """A server at the end of pipes that says nothing for so long is asked whether it is there."""
    log: LogSpec = LogSpec()
    era: First = "auto"
    """Some legacy servers exit when they are asked whether they are modern; see
    `messages.ServerDown.probing`."""
    caller: str = ""
    """JSON of what its only client says of itself; empty for a process that is for all."""
    roots: str = ""
    """JSON, what `roots/list` is answered with; empty where the client of the call is asked."""
    asks_roots: Asked = ""
    """When it was seen to ask for the roots of its client."""


class NamingSpec(Struct, frozen=True, kw_only=True):
    """How an endpoint names things. See `metamcp_worker.ipc.exposed_names`."""

    style: str = "namespaced"
    separator: str = ""
    hyphens: str = "keep"
    length_max: int = 64


class ToolOverride(Struct, frozen=True, kw_only=True):
    """What an endpoint makes of one tool, in place of what its server says; where nothing is said,
    that counts. `tool`: the server's own name of it.

    `name`: instead of the one by the rule. `aliases`: names by which it can be called too.
    `hidden`: it is in no list, and can be called. `fixed`: arguments that always have these values,
    whatever a client sends; `defaults`: what they are where a client sends none. Both have values
    as JSON text.
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


class EndpointSpec(Struct, frozen=True, kw_only=True):
    """One endpoint: the paths that it answers at, its servers in order, its naming.

    `path`: in its URLs, its name if that is empty. `description`: of its namespace. `disabled`:
    pairs (server, tool) switched off. `overrides`: at most one for each of the others. `default`:
    it answers at `/mcp` too.
    """

    name: str
    servers: tuple[str, ...]
    path: str = ""
    description: str = ""
    naming: NamingSpec = NamingSpec()
    disabled: tuple[tuple[str, str], ...] = ()
    overrides: tuple[ToolOverride, ...] = ()
    default: bool = False
    sse: bool = True
    """The HTTP+SSE transport of 2024-11-05 is served too."""
    rest: bool = True
    """`…/api` is served too."""
    exposure: Exposure = "all"
    per_session: bool = False
    """Each session of the handshake era has a view of its own."""
    call_hidden: bool = True
    """What is not in view can still be called by its name."""

    @property
    def base(self) -> str:
        """Where all its URLs begin."""
        return f"/metamcp/{self.path or self.name}"


class MeaningSpec(Struct, frozen=True, kw_only=True):
    """Searches by meaning too. `model`: the same for vectors that can be compared; `weight`: of
    such a ranking beside that by words, which has 1."""

    model: str
    weight: float


class EmbeddingsSpec(Struct, frozen=True, kw_only=True):
    """Where vectors are had. `url`: of an endpoint as that of OpenAI, or empty; then `folder` is
    that of a model on this machine. `model`: its name there; `key`: a bearer token, or empty.
    `id`: as `MeaningSpec.model`. `store`: the file of vectors that are kept. `timeout_s`: of a
    request; `batch`: texts in one."""

    url: str = ""
    model: str = ""
    key: str = ""
    folder: str = ""
    id: str = ""
    store: str = ""
    timeout_s: float = 10.0
    batch: int = 32
    log: LogSpec = LogSpec()


class FrontSpec(Struct, frozen=True, kw_only=True):
    """All that a front serves. `hosts`: values of `Host` and of the host part of `Origin` that are
    accepted, without port (`127.0.0.1`, `localhost`, `[::1]`, …). `timeouts_s`: per server.
    `retries`: `read-only` or `idempotent`, for servers whose calls may be sent once more.
    `tool_times`: are the times of calls kept of each tool? `traced`: which share of the calls is
    traced whose client does not trace; None: nothing is."""

    version: str
    endpoints: tuple[EndpointSpec, ...]
    hosts: tuple[str, ...]
    timeouts_s: dict[str, float] = {}
    retries: dict[str, str] = {}
    log: LogSpec = LogSpec()
    recording: RecordingSpec = RecordingSpec()
    tool_times: bool = False
    traced: float | None = None
    quarantined: tuple[tuple[str, str, str], ...] = ()
    """Server, tool, and a sentence for who calls it: what is not as somebody has approved it. The
    server may be a process for one client (`sharing`), of which only its client gets nothing."""
    held: tuple[str, ...] = ()
    """Servers that are held to what somebody has approved: what they do not list is nobody's."""
    meaning: MeaningSpec | None = None
    """None: searches go by words alone."""
    several: bool = False
    """There are other fronts: what servers change is told to clients when all of them show it."""
    call_hold_s: float = 2.0
    """How long a call waits for a server that is just coming back."""
