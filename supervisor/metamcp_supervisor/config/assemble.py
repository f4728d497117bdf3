"""All files together: a frozen Config, or the errors that only show between files.

Owns: the joining of drafts, the defaults that depend on all files, `depends_on`, and names of tools
that two servers would have. Never: reading single files (`parse`, `foreign_files`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import fields, replace

from metamcp_supervisor import runtime
from metamcp_supervisor.config import network, sections, units, workspaces
from metamcp_supervisor.config import tools as of_tools
from metamcp_supervisor.config.config import (
    AiConfig,
    Config,
    Endpoint,
    GatewayConfig,
    Namespace,
    Server,
    Tools,
    UnixAddress,
)
from metamcp_supervisor.config.document import (
    EVERY,
    ConfigDocument,
    ConfigDraft,
    ConfigFindings,
    GatewayDraft,
    NamespaceDraft,
    ServerDraft,
    SourceLocation,
    ToolDraft,
    shorten,
)
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.config.tables import feature_tables
from metamcp_supervisor.config.tools import Pair
from metamcp_worker.ipc import builtin_definitions, exposed_names
from metamcp_worker.ipc.process_names import DEFAULT, within, workspace_of
from metamcp_worker.ipc.spec import UNLIMITED


def check_dependencies(drafts: Mapping[str, ServerDraft], findings: ConfigFindings) -> None:
    """Report every dependency that cannot be satisfied."""
    wants = {
        name: draft.server.depends_on
        for name, draft in drafts.items()
        if draft.server and not findings.mistake(draft.site)
    }
    for name, needed in wants.items():
        for at, other in enumerate(needed):
            server_site = drafts[name].site
            site = server_site.at("depends_on", at)
            if other not in drafts:
                message = f"no server is named '{shorten(other)}'; {hint(other, drafts)}"
                findings.error(site, message, servers=[server_site])
            elif not ((server := drafts[other].server) and server.enabled):
                message = f"the server '{other}' is not enabled, so it is never ready"
                findings.error(site, message, servers=[server_site])
    for circle in circles(wants):
        places = [drafts[name].site for name in circle]
        message = f"these servers wait for each other: {' → '.join((*circle, circle[0]))}"
        findings.error(places[0].at("depends_on"), message, servers=places)


def circles(wants: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return each group of servers that wait for each other, once, its first server first."""
    groups: list[tuple[str, ...]] = []
    done: set[str] = set()
    for start in wants:
        path: list[str] = []
        # Walk along the dependencies and keep the path: a server that is met twice is in a circle.
        todo = [(start, iter(wants[start]))] if start not in done else []
        while todo:
            name, remaining = todo[-1]
            if name not in path:
                path.append(name)
            step = next(remaining, None)
            if step is None:
                todo.pop()
                path.remove(name)
                done.add(name)
            elif step in path:
                groups.append(tuple(path[path.index(step) :]))
            elif step in wants and step not in done:
                todo.append((step, iter(wants[step])))
    return groups


class _ExposedName(Struct, frozen=True):
    """Name or alias of a tool, and its place in a file."""

    name: str
    pair: Pair
    site: SourceLocation


class EndpointCheck:
    """Check of the tool names of all endpoints; a mistake at two endpoints is reported once.
    `code`: whether there is code mode."""

    def __init__(self, findings: ConfigFindings, *, code: bool) -> None:
        self._findings = findings
        self._code = code
        self._said: set[tuple[str, str]] = set()

    def endpoint(self, endpoint: Endpoint, layers: Sequence[Iterable[ToolDraft]]) -> None:
        """Check the names at an endpoint. `layers`: settings of its tools; later layers win."""
        names, aliases = _collect_names(layers)
        naming = endpoint.naming
        definitions = builtin_definitions.of(
            endpoint.exposure, code=self._code, builtins=endpoint.families
        )
        own = {tool.name for tool in definitions}
        by_name: dict[str, _ExposedName] = {}
        for named in names:
            flaw = exposed_names.flaw(named.name, naming)
            if named.name in own:
                flaw = "is the name of a built-in tool"
            elif not flaw and (other := by_name.setdefault(named.name, named)) is not named:
                flaw = f"is the name of {_format_pair(other)} too"
            self._report_flaw(named, flaw, endpoint)
        further: dict[str, _ExposedName] = {}
        for alias in aliases:
            flaw = "is the name of a built-in tool" if alias.name in own else ""
            owner = by_name.get(alias.name)
            if owner is not None and owner.pair != alias.pair:
                flaw = f"is the name of {_format_pair(owner)}"
            elif (other := further.setdefault(alias.name, alias)).pair != alias.pair:
                flaw = f"is an alias of {_format_pair(other)} too"
            self._report_flaw(alias, flaw, endpoint)

    def _report_flaw(self, named: _ExposedName, flaw: str, endpoint: Endpoint) -> None:
        if flaw and (str(named.site), flaw) not in self._said:
            self._said.add((str(named.site), flaw))
            message = f"'{shorten(named.name)}' {flaw}, at the endpoint '{endpoint.name}'"
            self._findings.error(named.site, message)


def _collect_names(
    layers: Sequence[Iterable[ToolDraft]],
) -> tuple[list[_ExposedName], list[_ExposedName]]:
    """Return the names and the aliases of all tools that are not switched off."""
    enabled: dict[Pair, bool] = {}
    name: dict[Pair, _ExposedName] = {}
    aliases: dict[Pair, list[_ExposedName]] = {}
    for draft in (draft for layer in layers for draft in layer):
        pair, settings = (draft.server, draft.tool), draft.said
        if settings.enabled is not None:
            enabled[pair] = settings.enabled
        if settings.name is not None:
            name[pair] = _ExposedName(settings.name, pair, draft.site.at("name"))
        if settings.aliases is not None:
            sites = (draft.site.at("aliases", at) for at in range(len(settings.aliases)))
            alias_sites = zip(settings.aliases, sites, strict=True)
            aliases[pair] = [_ExposedName(alias, pair, site) for alias, site in alias_sites]
    on = [pair for pair in {**name, **aliases} if enabled.get(pair, True)]
    return (
        [name[pair] for pair in on if pair in name],
        [alias for pair in on for alias in aliases.get(pair, ())],
    )


def _format_pair(named: _ExposedName) -> str:
    return f"{named.pair[0]}.{shorten(named.pair[1])}"


SERVERS_MAX = 1000
"""Maximum number of servers; each needs a process of ours and usually one of its own."""

UNNAMED = "unnamed"
"""Name of a server that has no name, or a name without a single valid character."""

_NOWHERE = SourceLocation(ConfigDocument("gateway", Path(), {}))


def assemble(
    drafts: Sequence[ConfigDraft],
    overrides: Sequence[GatewayDraft],
    *,
    default: GatewayConfig,
    files: tuple[Path, ...],
    transports: Callable[[], Collection[str]],
    client_port: Callable[[GatewayConfig], int],
    findings: ConfigFindings,
) -> Config:
    """Join all files to a Config. `drafts`: the main file first; `overrides`: settings from outside
    of files, the strongest last; `default`: settings for everything that is not set; `transports`:
    returns the transports of installed packages, called only when a server names one;
    `client_port`: returns the port for clients, 0 if it is not known before the start."""
    main, *included = drafts
    wrong = f"belongs into {main.site}, not into an included file"
    for draft in included:
        written = [key for key in draft.tables if key != "ai"]
        for key in (["gateway"] if draft.gateway != GatewayDraft() else []) + written:
            findings.error(draft.site.at(key), wrong)
    layers = [main.gateway, *overrides]
    gateway = _gateway(layers, default, findings)
    read = network.without_self(drafts, gateway, client_port(gateway), findings)
    servers = workspaces.with_borrowed(servers_by_name(read, findings), drafts, findings)
    _check_transports(servers.values(), transports, findings)
    check_dependencies(servers, findings)
    namespaces = _namespaces(drafts, servers, findings)
    endpoints = _endpoints(drafts, servers, namespaces, gateway, findings)
    site = (_last_of_each(layers).listen or (None, _NOWHERE))[1]
    said_outside = any(layer.auth is not None for layer in overrides)
    network.refuse_open(gateway, endpoints.values(), site, findings, overridden=said_outside)
    tables = dict(main.tables)
    added = [table for table in feature_tables() if table.name in tables]
    of_features = {table.name: tables.pop(table.name) for table in added}
    ai = next((draft.tables["ai"] for draft in drafts if "ai" in draft.tables), AiConfig())
    return Config(
        gateway=gateway,
        servers={
            name: _without_mistake(draft.server, findings.mistake(draft.site))
            for name, draft in servers.items()
            if draft.server is not None
        },
        namespaces=namespaces,
        endpoints=endpoints,
        workspace_limits={
            each.name: each.limits
            for file in drafts
            for each in file.workspaces
            if each.limits != UNLIMITED
        },
        **{"ai": ai, **tables},
        tables=of_features,
        files=files,
        warnings=tuple(findings.warnings),
    )


def listed_strictly(config: Config) -> Config:
    """Set `strict_listing` of every server that does not set it: true for servers at an endpoint
    with the exposure `servers`, where the list has what an agent has activated, and a crash shows
    at once."""
    strict = {
        name
        for endpoint in config.endpoints.values()
        if endpoint.exposure == "servers" and endpoint.namespace in config.namespaces
        for name in config.namespaces[endpoint.namespace].servers
    }
    servers = {
        name: replace(server, strict_listing=name in strict)
        if server.strict_listing is None
        else server
        for name, server in config.servers.items()
    }
    return replace(config, servers=servers)


def _gateway(
    layers: Sequence[GatewayDraft], default: GatewayConfig, findings: ConfigFindings
) -> GatewayConfig:
    last = _last_of_each(layers)
    listen = last.listen or (default.listen, _NOWHERE)
    ops_listen = last.ops_listen or (default.ops_listen, _NOWHERE)
    if listen[0] == ops_listen[0] and listen[0].port:
        site = (last.ops_listen or listen)[1]
        findings.error(site, f"'listen' and 'ops_listen' are both {listen[0]}; change one")
    fronts, state_dir = last.fronts or default.fronts, last.state_dir or default.state_dir
    health_listen, site = last.health_listen or (None, _NOWHERE)
    if health_listen and health_listen.port and health_listen in (listen[0], ops_listen[0]):
        findings.error(site, f"{health_listen} is taken by 'listen' or 'ops_listen'; change one")
    tls = network.tls_of(last.tls, listen, state_dir, fronts, findings)
    if last.console_listen:
        taken = listen[0], ops_listen[0], health_listen
        network.refuse_open_console(last.console_listen, taken, tls, findings)
    if last.store and last.cluster_secret is None:
        missing = f"needs 'cluster_secret', too, in [gateway]; {network.OPENSSL}"
        findings.error(last.store[1], missing)
    runtime_dir = last.runtime_dir or default.runtime_dir
    for address, site in (ops_listen, last.socket or (None, _NOWHERE)):
        if isinstance(address, UnixAddress):
            _refuse_control(address, site, runtime_dir, findings)
    if last.socket and last.socket[0] == ops_listen[0]:
        findings.error(last.socket[1], "is 'ops_listen', too; change one")
    return GatewayConfig(
        listen=listen[0],
        ops_listen=ops_listen[0],
        health_listen=health_listen,
        console_listen=last.console_listen[0] if last.console_listen else None,
        socket=last.socket[0] if last.socket else None,
        auth=last.auth or (),
        behind_proxy=bool(last.behind_proxy),
        tls=tls,
        allowed_hosts=last.allowed_hosts or (),
        trusted_proxies=last.trusted_proxies or (),
        fronts=fronts,
        workers=last.workers or default.workers,
        watch=default.watch if last.watch is None else last.watch,
        state_dir=state_dir,
        runtime_dir=runtime_dir,
        store=last.store[0] if last.store else None,
        cluster_secret=last.cluster_secret or "",
        drain_delay_s=default.drain_delay_s if last.drain_delay_s is None else last.drain_delay_s,
        movable=frozenset(
            key
            for key, chosen in (("listen", last.listen), ("ops_listen", last.ops_listen))
            if key in default.movable and chosen is None
        ),
    )


def _last_of_each(layers: Sequence[GatewayDraft]) -> GatewayDraft:
    """Return each setting as the last layer has it that sets it."""
    names = [field.name for field in fields(GatewayDraft)]
    settings = [{name: getattr(layer, name) for name in names} for layer in layers]
    last = {name: value for layer in settings for name, value in layer.items() if value is not None}
    return GatewayDraft(**last)


def _refuse_control(
    address: UnixAddress, site: SourceLocation, directory: Path, findings: ConfigFindings
) -> None:
    if address.path == directory / runtime.SOCKET:
        findings.error(site, "is where 'metamcp ctl' reaches the gateway; choose another path")


def servers_by_name(
    drafts: Sequence[ConfigDraft], findings: ConfigFindings
) -> Mapping[str, ServerDraft]:
    """Return the drafts of servers by name. A name stays known when its server is left out."""
    every = [each for file in drafts for each in file.servers]
    by_name: dict[str, ServerDraft] = {}
    for draft in (each for each in every if not each.written):
        first = by_name.setdefault(draft.name, draft)
        if first is not draft:
            message = (
                f"the server '{draft.name}' is already at {_format_site(first.site)}; rename one"
            )
            findings.error(draft.site, message, servers=[first.site])
    for draft in (each for each in every if each.written):
        name = _free(draft.name or UNNAMED, by_name)
        server = draft.server and replace(draft.server, name=name)
        by_name[name] = replace(draft, name=name, server=server)
    if len(by_name) > SERVERS_MAX:
        findings.error(drafts[0].site, f"has {len(by_name)} servers; the limit is {SERVERS_MAX}")
    if not any(draft.server for draft in by_name.values()) and not findings.problems:
        findings.add_warning(drafts[0].site, "has no server that can be started")
    return by_name


def _free(preferred: str, taken: Collection[str]) -> str:
    names = (preferred, *(f"{preferred}-{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)


def _without_mistake(server: Server, mistake: str) -> Server:
    """Return the server, or the few settings that are kept if its table has an error."""
    if not mistake:
        return server
    return Server(
        name=server.name, source=server.source, mistake=mistake, enabled=server.enabled,
        required=server.required,
    )  # fmt: skip


def _check_transports(
    drafts: Iterable[ServerDraft],
    transports: Callable[[], Collection[str]],
    findings: ConfigFindings,
) -> None:
    """Report servers whose transport no installed package brings; disabled servers are not
    checked."""
    installed: Collection[str] | None = None
    for draft in drafts:
        server = draft.server
        if server is None or not server.enabled or not sections.is_custom(server.transport):
            continue
        if findings.mistake(draft.site):
            continue
        installed = transports() if installed is None else installed
        if server.transport not in installed:
            findings.error(
                draft.site.at("transport"),
                f"no installed package brings a transport named '{shorten(server.transport)}';"
                f" {hint(server.transport, installed)}",
                servers=[draft.site],
            )


def _namespaces(
    drafts: Sequence[ConfigDraft], servers: Mapping[str, ServerDraft], findings: ConfigFindings
) -> Mapping[str, Namespace]:
    written: dict[str, NamespaceDraft] = {}
    for draft in (each for file in drafts for each in file.namespaces):
        first = written.setdefault(draft.name, draft)
        if first is not draft:
            findings.error(
                draft.site,
                f"the namespace '{draft.name}' is already at {_format_site(first.site)};"
                " rename one",
            )
    named = {name for draft in written.values() for name in draft.servers or ()}
    namespaces: dict[str, Namespace] = {}
    for workspace in workspaces.names(drafts):
        everything = workspaces.servers_of(workspace, servers)
        unnamed = tuple(name for name in everything if name not in named)
        name = within(workspace, "default")
        if name not in written:
            namespaces[name] = Namespace(name=name, servers=unnamed)
    for name, draft in written.items():
        everything = workspaces.servers_of(workspace_of(name), servers)
        unnamed = tuple(server for server in everything if server not in named)
        if draft.servers is None:
            members = unnamed
        else:
            members = everything if draft.servers == EVERY else _members(draft, servers, findings)
        namespaces[name] = Namespace(
            name=name,
            servers=members,
            description=draft.description,
            tools=_tools(
                workspaces.full_names(draft.tools, workspace_of(name), servers),
                servers,
                members,
                findings,
            ),
        )
    return namespaces


def _members(
    draft: NamespaceDraft, servers: Mapping[str, ServerDraft], findings: ConfigFindings
) -> tuple[str, ...]:
    members: list[str] = []
    called = {each.written: name for name, each in servers.items() if each.written}
    for at, written in enumerate(draft.servers or ()):
        full = workspaces.full_name(written, workspace_of(draft.name), servers)
        name, site = called.get(full, full), draft.site.at("servers", at)
        if name in EVERY:
            findings.error(
                site, "stands for every server, so it stands alone; leave the others out"
            )
        elif name not in servers or workspace_of(written) not in (
            DEFAULT,
            workspace_of(draft.name),
        ):
            findings.error(site, workspaces.unknown(written, workspace_of(draft.name), servers))
        elif servers[name].server is None:
            findings.add_warning(site, f"the server '{name}' is left out, see the warning about it")
        else:
            members.append(name)
    return tuple(members)


def _tools(
    drafts: Iterable[ToolDraft],
    servers: Mapping[str, ServerDraft],
    members: Collection[str],
    findings: ConfigFindings,
) -> Tools:
    """Return settings of tools by server. `members`: the servers of the namespace in question."""
    accepted: list[ToolDraft] = []
    for draft in drafts:
        server = draft.server
        if server not in servers:
            message = f"no server is named '{shorten(server)}'; {hint(server, servers)}"
            findings.error(draft.site, message)
        elif server in members:
            accepted.append(draft)
        elif servers[server].server is not None:
            findings.error(draft.site, f"the server '{server}' is not in this namespace")
    return of_tools.by_server(accepted)


def _endpoints(
    drafts: Sequence[ConfigDraft],
    servers: Mapping[str, ServerDraft],
    namespaces: Mapping[str, Namespace],
    gateway: GatewayConfig,
    findings: ConfigFindings,
) -> Mapping[str, Endpoint]:
    """Return the endpoints by name. Where other machines can reach them, the deprecated transport
    HTTP+SSE is served only where a file sets `sse`."""
    loopback = units.is_loopback(gateway.listen.host)
    endpoints: dict[str, Endpoint] = {}
    sites: dict[str, SourceLocation] = {}
    check = EndpointCheck(findings, code=any("code" in file.tables for file in drafts))
    of_groups = {each.name: each.tools for file in drafts for each in file.namespaces}

    def check_endpoint(endpoint: Endpoint, tools: Iterable[ToolDraft]) -> None:
        members = [servers[name] for name in namespaces[endpoint.namespace].servers]
        of_servers = [tool for server in members for tool in server.tools]
        check.endpoint(endpoint, [of_servers, of_groups.get(endpoint.namespace, ()), tools])

    for draft in (each for file in drafts for each in file.endpoints):
        sse = loopback if draft.sse is None else draft.sse
        auth = gateway.auth if draft.auth is None else draft.auth
        endpoint = replace(draft.endpoint, sse=sse, auth=auth)
        network.refuse_unused_keys(endpoint, draft.site, findings)
        endpoint = network.with_audience(endpoint, gateway, draft.site, findings)
        if endpoint.name in endpoints:
            findings.error(
                draft.site,
                f"the endpoint '{endpoint.name}' is already at"
                f" {_format_site(sites[endpoint.name])}; rename one",
            )
            continue
        sites[endpoint.name] = draft.site
        if (namespace := namespaces.get(endpoint.namespace)) is not None:
            tools = workspaces.full_names(draft.tools, endpoint.workspace, servers)
            settings = _tools(tools, servers, namespace.servers, findings)
            endpoint = replace(endpoint, tools=settings)
            check_endpoint(endpoint, tools)
        else:
            findings.error(
                draft.site.at("namespace"),
                f"no namespace is named '{shorten(endpoint.namespace)}';"
                f" {hint(endpoint.namespace, namespaces)}",
            )
        endpoints[endpoint.name] = endpoint
    _refuse_same_paths(endpoints, sites, findings)
    for endpoint in _make_missing_endpoints(drafts, endpoints, sites, findings):
        endpoints[endpoint.name] = replace(endpoint, sse=loopback, auth=gateway.auth)
        check_endpoint(endpoints[endpoint.name], ())
    _warn_of_unexposed(drafts, endpoints.values(), findings)
    return endpoints


def _make_missing_endpoints(
    drafts: Sequence[ConfigDraft],
    endpoints: Mapping[str, Endpoint],
    sites: Mapping[str, SourceLocation],
    findings: ConfigFindings,
) -> list[Endpoint]:
    """Return an endpoint for each workspace that has none, with the name of the workspace."""
    having = {endpoint.workspace for endpoint in endpoints.values()}
    builtins = next((draft.builtins for draft in drafts if draft.builtins), ())
    missing: list[Endpoint] = []
    for workspace in workspaces.names(drafts):
        if workspace in endpoints and workspace not in having:
            message = (
                f"the workspace {workspace} has no endpoint, and this one has the name that it"
                f" would get; rename it, or write [workspaces.{workspace}.endpoints.NAME]"
            )
            findings.error(sites[workspace], message)
        elif workspace not in having:
            missing.append(
                Endpoint(
                    name=workspace,
                    namespace=within(workspace, "default"),
                    workspace=workspace,
                    builtins=builtins if workspace == DEFAULT else (),
                )
            )
    return missing


def _refuse_same_paths(
    endpoints: Mapping[str, Endpoint], sites: Mapping[str, SourceLocation], findings: ConfigFindings
) -> None:
    first: dict[str, str] = {}
    for name, endpoint in endpoints.items():
        path = endpoint.path or name
        if (other := first.setdefault(path, name)) != name:
            text = f"/metamcp/{path}/ leads to the endpoint '{other}' already; choose another path"
            findings.error(sites[name].at("path"), text)


def _warn_of_unexposed(
    drafts: Sequence[ConfigDraft], endpoints: Iterable[Endpoint], findings: ConfigFindings
) -> None:
    exposed = {within(workspace, "default") for workspace in workspaces.names(drafts)}
    exposed |= {endpoint.namespace for endpoint in endpoints}
    for draft in (each for file in drafts for each in file.namespaces):
        if draft.name not in exposed:
            problem = (
                "no endpoint exposes this namespace, so no client sees it; there would be one with"
            )
            example = f'[endpoints.{draft.name}] namespace = "{draft.name}"'
            findings.add_warning(draft.site, f"{problem} {example}")


def _format_site(site: SourceLocation) -> str:
    line = site.line()
    return str(site) if line is None else f"{site} (line {line})"
