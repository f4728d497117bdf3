"""Specifications for workers: from the configuration to the values that cross the control socket.

Owns: the environment that a server gets, the hosts that a front accepts, the choice of the default
endpoint. Never: reading a configuration (`parse`), the fields (`metamcp_worker.ipc.spec`).
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

from msgspec import structs

from metamcp_supervisor.config import (
    environment,
    network,
    sandboxes,
    sections,
    tools,
)
from metamcp_supervisor.config.config import (
    Address,
    AnyAddress,
    Config,
    Endpoint,
    GatewayConfig,
    Server,
    Tls,
    ToolConfig,
)
from metamcp_supervisor.config.references import PROJECT
from metamcp_supervisor.config.show import (
    secrets_of,
    secrets_of_endpoints,
    secrets_of_gateway,
    secrets_of_model,
    secrets_of_traces,
)
from metamcp_supervisor.config.tables import feature_tables
from metamcp_supervisor.processes.cgroups import Leaf
from metamcp_supervisor.servers.quarantine_io import ToolQuarantine
from metamcp_worker.confinement import denials
from metamcp_worker.ipc import process_names, records, roots
from metamcp_worker.ipc.figures import Refusals
from metamcp_worker.ipc.messages import Tenant
from metamcp_worker.ipc.roots import Asked
from metamcp_worker.ipc.spec import (
    UNLIMITED,
    ConfinementSpec,
    ConsentSpec,
    EndpointSpec,
    FrontSpec,
    LimitsSpec,
    LogSpec,
    OAuthSpec,
    RecordingSpec,
    ResultLimits,
    ServerSpec,
    TlsSpec,
    ToolOverride,
)

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
STOP_EOF_S = 1.0
"""Seconds from the end of a server's stdin to SIGTERM: well-behaved servers exit within 0.1 s."""
VECTORS = "vectors.db"
"""File in the state directory with the vectors of tools, kept over restarts."""
RESULTS = "results"
"""Folder in the state directory with large results that clients read."""
NICE = 5
"""Nice value of a server whose processor time is limited: it gives way to others even where the
limit is not enforced by a controller, and still gets a quarter of a processor that another process
wants too."""
_UNSPECIFIED = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound


class PrivatePlaces(NamedTuple):
    """`folder`: of the private folders of servers; `hidden`: files and folders of the gateway,
    which confined servers do not get; `ports`: TCP ports of the gateway."""

    folder: Path
    hidden: tuple[str, ...]
    ports: tuple[int, ...]


EXTENSIONS = {"io.modelcontextprotocol/ui": '{"mimeTypes":["text/html;profile=mcp-app"]}'}
"""Extensions that are declared to shared processes where the configuration names none. A client
that does not know the user interface of a tool reads the text of its result."""


def server_spec(
    server: Server,
    environ: Mapping[str, str],
    *,
    probe: bool,
    oauth: OAuthSpec | None = None,
    leaf: Leaf | None = None,
    log: LogSpec | None = None,
    tenant: Tenant | None = None,
    asks_roots: Asked = "",
    protocol: str = "",
    private: PrivatePlaces | None = None,
    trial: bool = False,
) -> ServerSpec:
    """Return the specification for the worker of a server. `probe`: ask the server first whether it
    is modern. `oauth`: for a server that wants it (`tokens`). `leaf`: the control group for its
    processes, if there is one. `log`: log format and levels, if not the default. `tenant`: the
    client that it serves, if it is not for all; `asks_roots`: when it asks for roots, `protocol`:
    the revision that it spoke last, as far as is known; `private`: for a server that is to be
    confined as its configuration says; `trial`: whether it is to be learnt what it needs."""
    with_folder = _place(server, tenant)
    passed = {
        name: environ[name] for name in environment.select_variables(environ, server.inherit_env)
    }
    session = process_names.has_session(process_names.parse_client(server.name))
    earlier = not probe or (session if tenant is None else not tenant.modern)
    return ServerSpec(
        name=process_names.base(server.name),
        command=tuple(map(with_folder, server.command)),
        env={**passed, **{name: with_folder(value) for name, value in server.env.items()}},
        cwd=None if server.cwd is None else with_folder(str(server.cwd)),
        module=server.module,
        url=server.url,
        transport=server.transport,
        headers=dict(server.headers),
        oauth=oauth,
        options=dict(server.options),
        limits=_limits(server, leaf),
        confinement=ConfinementSpec()
        if private is None
        else structs.replace(_confinement(server, private, tenant, environ), trial=trial),
        start_timeout_s=server.start_timeout_s,
        timeout_s=server.timeout_s,
        timeout_max_s=server.timeout_max_s,
        list_timeout_s=server.list_timeout_s,
        stop_eof_s=STOP_EOF_S,
        stop_grace_s=server.stop_grace_s,
        probe_interval_s=server.probe_interval_s,
        concurrency=server.concurrency,
        queue=server.queue,
        message_bytes=server.message_max,
        log=structs.replace(log or LogSpec(), secrets=secrets_of(server)),
        era="legacy-first" if server.era == "auto" and earlier else server.era,
        caller=_caller(server, tenant),
        roots=tenant.roots if tenant is not None else "",
        protocol=server.protocol or "",
        known_protocol=protocol,
        extensions=dict(EXTENSIONS if server.extensions is None else server.extensions),
        asks_roots=asks_roots,
    )


def _caller(server: Server, tenant: Tenant | None) -> str:
    """Return the client information of a process for a single client, else "". The clients of a
    project may have different capabilities, like those of a shared process."""
    return "" if tenant is None or server.sharing == "per-project" else tenant.caller


def _place(server: Server, tenant: Tenant | None) -> Callable[[str], str]:
    """Return a function that replaces the reference to the project folder by the folder of the
    clients. The process for all other clients uses the folder of the configuration."""
    if server.sharing != "per-project":
        return str
    folder = roots.folder(tenant.roots.encode()) if tenant is not None else ""
    return lambda text: text.replace(PROJECT, folder or server.folder)


def _limits(server: Server, leaf: Leaf | None) -> LimitsSpec:
    return LimitsSpec(
        nofile=server.nofile_max or 0,
        data_bytes=(server.memory_max or 0) if server.memory_rlimit else 0,
        nice=NICE if server.cpu_max is not None else 0,
        cgroup="" if leaf is None else str(leaf.path),
        processes=0 if leaf and leaf.holds_processes else server.processes_max or 0,
    )


PRIVATE = "servers"
"""Folder in the state directory with the private folders of confined servers."""


def private_places(config: Config, listeners: Iterable[AnyAddress]) -> PrivatePlaces:
    """Return what the gateway keeps from confined servers. `listeners`: its addresses."""
    gateway = config.gateway
    hidden = (*config.files, gateway.state_dir, gateway.runtime_dir)
    ports = tuple(address.port for address in listeners if isinstance(address, Address))
    return PrivatePlaces(gateway.state_dir / PRIVATE, tuple(map(str, hidden)), ports)


def _confinement(
    server: Server, private: PrivatePlaces, tenant: Tenant | None, environ: Mapping[str, str]
) -> ConfinementSpec:
    """Return how the process of a server is confined. The home of a process for one client goes
    with the process."""
    network = sandboxes.network(server)
    needed = sandboxes.needed_rights(server, environ.get("HOME", ""))
    return ConfinementSpec(
        profile=sandboxes.profile(server),
        required=server.sandbox_required,
        read=(*server.read, *needed.read),
        write=(*server.write, *needed.write),
        browser=needed.browser,
        network="none" if network == "none" else "host",
        tcp_ports=() if isinstance(network, str) else network,
        own=tuple(server.env),
        folder=str(private.folder / process_names.base(server.name)),
        lasting=tenant is None,
        hidden=private.hidden,
        cwd_named=server.cwd is not None and str(server.cwd) != server.folder,
        unix_sockets=server.unix_sockets,
        gateway_ports=private.ports,
    )


def refusals(server: Server, refused: Mapping[str, tuple[int, str]]) -> tuple[Refusals, ...]:
    """Return what the sandbox of a server refused, with what to write to allow it. `refused`: count
    and the last one by kind of right, as in `DeniedRight`."""
    network = sandboxes.network(server)
    ports = () if isinstance(network, str) else network
    spec = ConfinementSpec(profile=sandboxes.profile(server), tcp_ports=ports)
    return tuple(
        Refusals(
            right=right,
            count=count,
            what=subject,
            advice=denials.sentence(
                denials.DeniedRight(cast("denials.Right", right), subject), spec
            ),
        )
        for right, (count, subject) in refused.items()
    )


def asks_for_keys(config: Config) -> bool:
    """Whether an endpoint accepts API keys."""
    return any("keys" in endpoint.auth for endpoint in config.endpoints.values())


def log_spec(config: Config, secrets: Iterable[str] = ()) -> LogSpec:
    """Return the log settings for a process. `secrets`: those that the process knows, and could
    write to its log."""
    log = config.log
    return LogSpec(
        format=log.format, level=log.level, levels=dict(log.levels), secrets=tuple(secrets)
    )


def own_log_spec(config: Config) -> LogSpec:
    """Return the log settings of the supervisor, which knows all secrets."""
    server_secrets = _secrets_of(config.servers.values())
    others = (
        *secrets_of_traces(config.traces),
        *secrets_of_model(config.ai),
        *secrets_of_gateway(config.gateway),
    )
    of_endpoints = secrets_of_endpoints(config.endpoints.values())
    of_features = chain.from_iterable(
        table.secrets(config.table(table.record)) for table in feature_tables()
    )
    return log_spec(config, [*server_secrets, *others, *of_endpoints, *of_features])


def recording_spec(config: Config) -> RecordingSpec:
    """Return the settings for recording calls. A front gets only the secrets of servers whose
    bodies it records."""
    recording = config.recording
    levels: dict[str, str] = {
        server.name: level
        for server in config.servers.values()
        if (level := server.recording or recording.calls) != "off"
    }
    full = [name for name, level in levels.items() if level == "full"]
    return RecordingSpec(
        folder=str(config.gateway.state_dir / records.FOLDER),
        servers=levels,
        file_bytes=recording.file_max,
        files=recording.files_max,
        body_bytes=recording.body_max,
        secrets=_secrets_of(config.servers[name] for name in full),
    )


def _front_secrets(config: Config) -> tuple[str, ...]:
    """Return the secrets that a front must know: those of endpoints, and, because it writes down
    what passes, those of the servers whose calls are recorded in full, or all if the audit has
    arguments and results."""
    ours = secrets_of_endpoints(config.endpoints.values())
    if config.audit.level in {"redacted", "full"}:
        return (*ours, *_secrets_of(config.servers.values()))
    return (*ours, *recording_spec(config).secrets)


def _secrets_of(servers: Iterable[Server]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(secret for server in servers for secret in secrets_of(server)))


def _endpoint_spec(config: Config, endpoint: Endpoint, *, default: bool) -> EndpointSpec:
    tool_configs, switches = tools.at(config, endpoint), tools.switches(config, endpoint)
    return EndpointSpec(
        name=endpoint.name,
        path=endpoint.path or endpoint.name,
        servers=config.namespaces[endpoint.namespace].servers,
        namespace=endpoint.namespace,
        description=config.namespaces[endpoint.namespace].description,
        naming=endpoint.naming,
        safe_schemas=endpoint.schemas == "safe",
        disabled=tuple(
            pair
            for pair, tool in tool_configs.items()
            if tool.enabled is False and pair[0] not in switches
        ),
        switches=switches,
        overrides=_overrides(tool_configs),
        default=default,
        sse=endpoint.sse,
        rest=endpoint.rest,
        exposure=endpoint.exposure,
        per_session=endpoint.scope == "session",
        call_hidden=endpoint.call_hidden,
        limits=endpoint.limits,
        auth=endpoint.auth,
        workspace=endpoint.workspace,
        keys=endpoint.keys,
        url_keys=endpoint.url_keys,
        oauth=endpoint.oauth,
        code=sections.code_limits(config.code, endpoint),
        builtins=endpoint.families,
        results=_results(config, endpoint),
    )


def _results(config: Config, endpoint: Endpoint) -> ResultLimits | None:
    results = endpoint.results
    if results is None:
        return None
    return ResultLimits(
        folder=results_folder(config), max_bytes=results.max_bytes, keep_s=results.keep_s,
        total_bytes=results.total_bytes,
    )  # fmt: skip


def results_folder(config: Config) -> str:
    """Return the folder of all kept results."""
    return str(config.gateway.state_dir / RESULTS)


def front_spec(
    config: Config,
    version: str,
    listen: Address | None = None,
    approvals: ToolQuarantine | None = None,
) -> FrontSpec:
    """Return the specification for fronts. `listen`: where the gateway listens, if that differs
    from the configuration; `approvals`: knows the tools in quarantine."""
    default = default_endpoint(config)
    return FrontSpec(
        version=version,
        endpoints=tuple(
            _endpoint_spec(config, endpoint, default=endpoint is default)
            for endpoint in config.endpoints.values()
        ),
        hosts=allowed_hosts(listen or config.gateway.listen, config.gateway),
        trusted_proxies=config.gateway.trusted_proxies,
        timeouts_s={server.name: server.timeout_s for server in config.servers.values()},
        retries={
            server.name: server.retry
            for server in config.servers.values()
            if server.retry != "never"
        },
        log=log_spec(config, _front_secrets(config)),
        recording=recording_spec(config),
        policies=config.policies,
        consent=consent_spec(config),
        tool_times=config.metrics.per_tool,
        traced=config.traces.sample if config.traces.endpoint else None,
        several=config.gateway.fronts > 1,
        fronts=config.gateway.fronts,
        workspace_limits=dict(config.workspace_limits),
        tls=tls_spec(config.gateway.tls),
        behind_proxy=config.gateway.behind_proxy,
        server_limits={
            server.name: server.limits
            for server in config.servers.values()
            if server.limits != UNLIMITED
        },
        quarantined=() if approvals is None else approvals.list_quarantined(),
        held=() if approvals is None else approvals.enforced_servers(),
    )


def consent_spec(config: Config) -> ConsentSpec:
    """Return the rules of consent for fronts."""
    consent = config.consent
    return ConsentSpec(
        rules=consent.rules,
        timeout_s=consent.timeout_s,
        unaskable=consent.on_no_elicitation,
        hints=consent.use_annotations,
        trusted=tuple(
            server.name for server in config.servers.values() if server.trust_annotations
        ),
    )


def _overrides(tool_configs: Mapping[tools.Pair, ToolConfig]) -> tuple[ToolOverride, ...]:
    """Return the settings of tools that are not disabled, without those that change nothing."""
    overrides = (
        ToolOverride(
            server=server,
            tool=name,
            name=tool.name or "",
            aliases=tool.aliases or (),
            hidden=bool(tool.hidden),
            title=tool.title,
            description=tool.description,
            fixed=dict(tool.fixed),
            defaults=dict(tool.defaults),
        )
        for (server, name), tool in tool_configs.items()
        if tool.enabled is not False
    )
    return tuple(
        override
        for override in overrides
        if override != ToolOverride(server=override.server, tool=override.tool)
    )


def tls_spec(tls: Tls | None) -> TlsSpec | None:
    if tls is None:
        return None
    client_ca = "" if tls.client_ca is None else str(tls.client_ca)
    return TlsSpec(cert=str(tls.cert), key=str(tls.key), client_ca=client_ca)


def default_endpoint(config: Config) -> Endpoint | None:
    """Return the endpoint that answers at `/mcp`: `default`, else the first in the
    configuration; always one of the workspace `default`."""
    ours = {
        name: endpoint
        for name, endpoint in config.endpoints.items()
        if endpoint.workspace == process_names.DEFAULT
    }
    return ours.get("default") or next(iter(ours.values()), None)


def find_exposed_servers(config: Config) -> frozenset[str]:
    """Return the servers that at least one endpoint exposes."""
    return frozenset(
        server
        for endpoint in config.endpoints.values()
        for server in config.namespaces[endpoint.namespace].servers
    )


def hosts(listen: Address) -> tuple[str, ...]:
    """Return the values of `Host` that clients may use: names of loopback, and the listener's
    own."""
    if listen.host in _UNSPECIFIED:
        return LOOPBACK
    own = f"[{listen.host}]" if ":" in listen.host else listen.host
    return (*LOOPBACK, *([own] if own not in LOOPBACK else []))


def allowed_hosts(listen: Address, gateway: GatewayConfig) -> tuple[str, ...]:
    """Return all values of `Host` that a listener accepts."""
    return (*hosts(listen), *gateway.allowed_hosts, *_certificate_names(gateway))


def _certificate_names(gateway: GatewayConfig) -> tuple[str, ...]:
    """Return the names in the certificate that the gateway makes itself: clients that trust it use
    them."""
    if gateway.tls is None or not gateway.tls.local:
        return ()
    try:
        names = (gateway.state_dir / network.LOCAL_NAMES).read_text().split()
    except OSError:
        return ()
    return tuple(f"[{name}]" if ":" in name else name for name in names)


def reachable(listen: Address) -> Address:
    """Return the address to which a client on this machine connects."""
    return Address("127.0.0.1", listen.port) if listen.host in _UNSPECIFIED else listen
