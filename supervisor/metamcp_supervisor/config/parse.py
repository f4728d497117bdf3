"""Reading a metamcp.toml: its settings, and every error in it.

Owns: the reading of its tables. Never: single values (`document`), the programs of servers
(`program`), anything that needs a second file (`assemble`).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor import runtime
from metamcp_supervisor.config import (
    middleware_tables,
    naming,
    network,
    policy_rules,
    program,
    sandboxes,
    sections,
    tools,
    workflow_files,
)
from metamcp_supervisor.config.config import (
    UNIX,
    AnyAddress,
    AuditConfig,
    Endpoint,
    MetricsConfig,
    RecordingConfig,
    Server,
    Tls,
    UnixAddress,
)
from metamcp_supervisor.config.document import (
    EVERY,
    ConfigDocument,
    ConfigDraft,
    ConfigFindings,
    EndpointDraft,
    GatewayDraft,
    NamespaceDraft,
    ServerDraft,
    SourceLocation,
    Table,
    ToolDraft,
    WorkspaceDraft,
    shorten,
    table_of,
)
from metamcp_supervisor.config.references import (
    PROJECT,
    ReferenceResolver,
    References,
    Unresolved,
    expand,
    for_server,
    not_here,
)
from metamcp_supervisor.config.show import certain_secrets
from metamcp_supervisor.config.tables import ConfigTable, feature_tables
from metamcp_worker.http.request_head import Hosts
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.spec import NamingSpec

INHERITED_MAX = 100
"""Maximum number of names in `inherit_env`."""

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}", re.ASCII)
_SEPARATOR = re.compile(r"[A-Za-z0-9_.-]{0,8}", re.ASCII)


def parse(
    document: ConfigDocument, references: References, home: Path, findings: ConfigFindings
) -> ConfigDraft:
    site = SourceLocation(document)
    top = Table(document.values, site, findings, "")
    top.refuse_unknown()
    gateway, includes = top.table("gateway", "gateway"), top.texts("include") or ()
    rules, shipped_rules = workflow_files.rules(top.table("suggestions", "suggestions"), home)
    contents = [
        workspace(name, table, references, home)
        for name, table in top.tables("workspaces", "workspaces.*").items()
        if _well_named(name, table)
    ]
    return ConfigDraft(
        site=site,
        includes=tuple((path, site.at("include", at)) for at, path in enumerate(includes)),
        gateway=gateway_of(gateway, references, home) if gateway else GatewayDraft(),
        tables=_read_tables(top, references, home),
        workflows=workflow_files.paths(top, "workflows", home),
        rules=rules,
        shipped_rules=shipped_rules,
        servers=tuple(
            chain(_servers(top, references, home), *(content.servers for content in contents))
        ),
        namespaces=tuple(chain(_namespaces(top), *(content.namespaces for content in contents))),
        endpoints=tuple(
            chain(_endpoints(top, references), *(content.endpoints for content in contents))
        ),
        workspaces=tuple(content.draft for content in contents),
    )


_TABLES: Mapping[str, Callable[[Table, ReferenceResolver, Path], object]] = {
    "log": lambda table, *_: sections.log(table),
    "recording": lambda table, *_: RecordingConfig(**table.settings()),
    "audit": lambda table, *_: AuditConfig(**{"level": "metadata", **table.settings()}),
    "code": lambda table, *_: sections.read_code(table),
    "consent": lambda table, *_: policy_rules.read_consent(table),
    "ai": lambda table, resolving, _: sections.read_ai(table, resolving),
    "notify": lambda table, *_: program.read_hook(table).command,
    "hooks": lambda table, *_: program.read_hook(table),
    "metrics": lambda table, *_: MetricsConfig(**table.settings()),
    "traces": lambda table, resolving, _: sections.traces(table, resolving),
}
_LISTS = {"middleware": middleware_tables.read, "policies": policy_rules.read}
"""Tables at the top of the file, and lists of tables, by the key and the member of `Config`."""


def _read_tables(top: Table, references: References, home: Path) -> dict[str, Any]:
    """Return the records of the tables that are written."""
    own = {table.name: _read_of(table) for table in feature_tables()}
    readers = {**_TABLES, **own}
    written = {name: table for name in readers if (table := top.table(name, name)) is not None}
    records = {
        name: readers[name](table, ReferenceResolver(references), home)
        for name, table in written.items()
    }
    lists = {name: read(top) for name, read in _LISTS.items()}
    return {name: record for name, record in (records | lists).items() if record}


def _read_of(table: ConfigTable) -> Callable[[Table, ReferenceResolver, Path], object]:
    return table.read or (lambda written, *_: table.record(**written.settings()))


class _Workspace(Struct, frozen=True):
    draft: WorkspaceDraft
    servers: tuple[ServerDraft, ...]
    namespaces: tuple[NamespaceDraft, ...]
    endpoints: tuple[EndpointDraft, ...]


def workspace(name: str, table: Table, references: References, home: Path) -> _Workspace:
    """Read the table of a workspace; everything in it gets its full name."""
    table.refuse_unknown()
    if name == process_names.DEFAULT:
        message = "is the workspace of the tables at the top of the file; write them there"
        table.findings.error(table.site, message)
    full = partial(process_names.within, name)

    def of_tools(drafts: Iterable[ToolDraft]) -> tuple[ToolDraft, ...]:
        return tuple(replace(tool, server=_member(name, tool.server)) for tool in drafts)

    def server(draft: ServerDraft) -> ServerDraft:
        renamed = draft.server and replace(
            draft.server,
            name=full(draft.server.name),
            depends_on=tuple(map(full, draft.server.depends_on)),
        )
        tools = tuple(replace(tool, server=full(tool.server)) for tool in draft.tools)
        return replace(draft, name=full(draft.name), server=renamed, tools=tools)

    def namespace(draft: NamespaceDraft) -> NamespaceDraft:
        servers = draft.servers
        if servers is not None and servers != EVERY:
            servers = tuple(_member(name, member) for member in servers)
        return replace(draft, name=full(draft.name), servers=servers, tools=of_tools(draft.tools))

    def endpoint(draft: EndpointDraft) -> EndpointDraft:
        ours = replace(draft.endpoint, namespace=full(draft.endpoint.namespace), workspace=name)
        return replace(draft, endpoint=ours, tools=of_tools(draft.tools))

    return _Workspace(
        WorkspaceDraft(
            name=name, site=table.site,
            limits=sections.use_limits(table, "workspaces.*.limits"),
            workflows=workflow_files.paths(table, "workflows", home),
        ),
        tuple(map(server, _servers(table, references, home))),
        tuple(map(namespace, _namespaces(table))),
        tuple(map(endpoint, _endpoints(table, references))),
    )  # fmt: skip


def _member(workspace: str, server: str) -> str:
    """Return the full name of a server that a table of this workspace names: one of its own, or
    `default:NAME` for one at the top of the file."""
    named = server.startswith(f"{process_names.DEFAULT}{process_names.WORKSPACE_MARK}")
    return server if named else process_names.within(workspace, server)


def _namespaces(table: Table) -> list[NamespaceDraft]:
    return [
        _namespace(name, inner)
        for name, inner in table.tables("namespaces", "namespaces.*").items()
        if _well_named(name, inner)
    ]


def _endpoints(table: Table, references: References) -> list[EndpointDraft]:
    return [
        _endpoint(name, inner, ReferenceResolver(references))
        for name, inner in table.tables("endpoints", "endpoints.*").items()
        if _well_named(name, inner)
    ]


def gateway_of(table: Table, references: References, home: Path) -> GatewayDraft:
    settings = table.settings()
    socket = table.text("socket")
    addresses = {key: table.address(key) for key in ("listen", "health_listen", "console_listen")}
    listeners = {
        **addresses,
        "ops_listen": _ops_listen(table, references, home),
        "socket": None if socket is None else _socket("socket", socket, table, references, home),
    }
    sites: dict[str, Any] = {
        key: (address, table.site.at(key)) for key, address in listeners.items() if address
    }
    _check_hosts(table, settings.get("allowed_hosts", ()))
    network.check_proxies(table, settings.get("trusted_proxies", ()))
    store, secret = network.read_store(table, references)
    return GatewayDraft(
        **settings,
        **sites,
        auth=_auth(table),
        tls=_tls(table, references, home),
        state_dir=_directory("state_dir", table, references, home),
        runtime_dir=_directory("runtime_dir", table, references, home),
        store=None if store is None else (store, table.site.at("store")),
        cluster_secret=secret,
    )


def _auth(table: Table) -> tuple[str, ...] | None:
    """Return the credentials that are accepted; empty for `none`, None if nothing is written."""
    credentials = table.choices("auth")
    if credentials is not None and "none" in credentials and len(credentials) > 1:
        table.error("auth", '"none" does not go with other choices')
    return None if credentials is None else tuple(word for word in credentials if word != "none")


def _tls(table: Table, references: References, home: Path) -> Tls | str | None:
    """Return the files for TLS, or the word that is written."""
    if table_of(table.values.get("tls")) is None:
        return table.choice("tls")
    inner = table.table("tls", "gateway.tls")
    assert inner is not None
    inner.refuse_unknown()

    def file(key: str) -> Path | None:
        text = inner.text(key)
        return None if text is None else _path(key, text, "a file", inner, references, home)

    cert, key, client_ca = file("cert"), file("key"), file("client_ca")
    if cert is None or key is None:
        table.findings.error(inner.site, "needs 'cert' and 'key', both files in PEM")
        return None
    return Tls(cert=cert, key=key, client_ca=client_ca)


def _check_hosts(table: Table, names: Iterable[str]) -> None:
    for name in names:
        try:
            Hosts([name])
        except ValueError:
            table.error(
                "allowed_hosts",
                f'\'{shorten(name)}\' does not name hosts; write "box.example.com", "box:8443" or'
                ' "*.example.com"',
            )


def _ops_listen(table: Table, references: References, home: Path) -> AnyAddress | None:
    text = table.text("ops_listen")
    if text is not None and "/" in text and not text.startswith(UNIX):
        message = (
            f'{text[:64]!r} is not an address; write it like "127.0.0.1:6271", a unix socket like'
            ' "unix:/run/x.sock"'
        )
        table.error("ops_listen", message)
        return None
    if text is None or not text.startswith(UNIX):
        return table.address("ops_listen")
    return _socket("ops_listen", text.removeprefix(UNIX), table, references, home)


def _socket(
    key: str, text: str, table: Table, references: References, home: Path
) -> UnixAddress | None:
    path = _path(key, text, 'a socket, as in "run/ops.sock"', table, references, home)
    size = len(str(path).encode(errors="surrogateescape")) if path is not None else 0
    if size > runtime.SOCKET_PATH_BYTES_MAX:
        table.error(
            key,
            f"is a path of {size} bytes, and that of a unix socket may have"
            f" {runtime.SOCKET_PATH_BYTES_MAX}; choose a shorter one",
        )
        return None
    return UnixAddress(path) if path is not None else None


def _directory(key: str, table: Table, references: References, home: Path) -> Path | None:
    text = table.text(key)
    return None if text is None else _path(key, text, "a directory", table, references, home)


def _path(
    key: str, text: str, noun: str, table: Table, references: References, home: Path
) -> Path | None:
    try:
        text = expand(text, replace(references, printed=not_here))
    except Unresolved as error:
        table.error(key, str(error))
        return None
    if not text:
        table.error(key, f"is empty; name {noun}")
        return None
    return program.directory(text, base=table.site.document.base, home=home)


def _well_named(name: str, table: Table) -> bool:
    flaw = naming.flaw(name)
    if flaw:
        table.findings.error(table.site, f"the name '{shorten(name)}' {flaw}")
    return not flaw


def _servers(table: Table, references: References, home: Path) -> Iterable[ServerDraft]:
    if (outer := table.table("servers")) is None:
        return
    for name in outer.values:
        site = outer.site.at(name)
        with outer.findings.about(site):
            draft = _server(name, outer, references, home)
        yield draft


def _server(name: str, outer: Table, references: References, home: Path) -> ServerDraft:
    site = outer.site.at(name)
    if flaw := naming.flaw(name):
        outer.findings.error(site, f"the name '{shorten(name)}' {flaw}")
        return unread(naming.to_valid_name(name), site, written=name)
    table = outer.table(name, "servers.*")
    return unread(name, site) if table is None else _read_server(name, table, references, home)


def unread(name: str, site: SourceLocation, *, written: str = "") -> ServerDraft:
    """Return a server without known settings; its error was reported."""
    server = Server(name=name, source=str(site))
    return ServerDraft(name=name, site=site, server=server, written=written)


def _read_server(name: str, table: Table, references: References, home: Path) -> ServerDraft:
    table.refuse_unknown()
    if table.values.get("sharing") == "per-project":
        references = replace(references, folders={**references.folders, "project": PROJECT})
    enabled = table.values.get("enabled") is not False
    resolving = ReferenceResolver(for_server(references, enabled=enabled))
    server = program.read(table, resolving, build_server(name, table), home, foreign=False)
    server = sections.read(table, resolving, server)
    module = _module(table)
    of_tools = tools.of_server(name, table)
    settings = tools.by_server(of_tools).get(name, {})
    server = replace(server, module=module, tools=settings)
    return replace(build_draft(table, with_settings(table, server), resolving), tools=of_tools)


def with_settings(table: Table, server: Server) -> Server:
    """Return the server with the settings and limits of its table."""
    start_timeout_s = program.start_timeout_s(server.command, server.start_timeout_s)
    without = () if server.command else sandboxes.KEYS
    settings = {"start_timeout_s": start_timeout_s, **table.read_members(but=without)}
    server = replace(server, **settings)
    if server.required and not server.enabled:
        table.error("required", "a server cannot be required and not enabled")
    if server.required and server.lazy:
        table.error("required", "a server that starts when it is called cannot be required")
    if len(server.inherit_env) > INHERITED_MAX:
        table.error("inherit_env", f"has more than {INHERITED_MAX} names")
    if table.has("idle_stop") and not server.rests:
        message = 'is only for a server with start = "lazy" or sharing other than "shared"'
        table.error("idle_stop", message)
    return sections.check_settings(table, server)


def build_server(name: str, table: Table) -> Server:
    """Return a server with the defaults for everything, and no way to it."""
    return Server(name=name, source=str(table.site), folder=str(table.site.document.base))


def build_draft(table: Table, server: Server, resolving: ReferenceResolver) -> ServerDraft:
    """Return the draft of a server, and report its unresolved references. A disabled server may
    have some: it is left out with a warning."""
    if resolving.unresolved and not server.enabled:
        reference_site, message = resolving.unresolved[0]
        table.findings.lose(reference_site, f"{message}; the server is disabled and left out")
        return ServerDraft(name=server.name, site=table.site)
    for reference_site, message in resolving.unresolved:
        table.findings.error(reference_site, message)
    server = replace(server, referred=tuple(resolving.secrets))
    program.warn_of_short(certain_secrets(server), table)
    return ServerDraft(name=server.name, site=table.site, server=server)


def _module(table: Table) -> str | None:
    """Read `module`, and check that a server is reached in exactly one way."""
    module = table.text("module")
    if module is not None and not _MODULE.fullmatch(module):
        table.error("module", 'must be written "package.module:object"')
    ways = [key for key in ("command", "url", "module") if table.has(key)]
    if len(ways) > 1:
        table.error(ways[-1], f"a server has only one of {' and '.join(map(repr, ways))}")
    elif table.has("args") and not table.has("command"):
        table.error("args", "needs 'command', the program that gets these arguments")
    elif not (ways or table.has("transport") or naming.names_a_way(table.values)):
        message = "has no 'command', 'url' or 'module'; one of them says what it is"
        if table.has("tools"):
            message += (
                "; tools of a server in another file are overridden in a namespace or an endpoint"
            )
        table.findings.error(table.site, message)
    return module


def _namespace(name: str, table: Table) -> NamespaceDraft:
    table.refuse_unknown()
    servers = table.texts("servers")
    if servers is None and name != "default" and not table.has("servers"):
        table.findings.error(table.site, "has no 'servers'; list the names of its servers")
    seen: set[str] = set()
    for at, server in enumerate(servers or ()):
        if server in seen:
            table.findings.error(
                table.site.at("servers", at), f"'{shorten(server)}' is listed twice"
            )
        seen.add(server)
    return NamespaceDraft(
        name=name,
        site=table.site,
        servers=servers,
        description=_description(table),
        tools=tools.of_group(table, "namespaces.*.tools.*"),
    )


def _description(table: Table) -> str:
    text = table.text("description") or ""
    if len(text) > tools.DESCRIPTION_CHARACTERS_MAX:
        most = tools.DESCRIPTION_CHARACTERS_MAX
        table.error("description", f"may have at most {most} characters")
    return text


def _endpoint(name: str, table: Table, resolving: ReferenceResolver) -> EndpointDraft:
    settings = table.settings()
    namespace = table.text("namespace")
    if namespace is None and not table.has("namespace"):
        table.findings.error(
            table.site,
            "has no 'namespace'; namespace = \"default\" exposes the servers that no other names",
        )
    rules = table.table("naming", "endpoints.*.naming")
    sse = settings.pop("sse", None)
    return EndpointDraft(
        site=table.site,
        endpoint=Endpoint(
            **settings,
            name=name,
            namespace=namespace if namespace is not None else "default",
            path=segment(table),
            naming=_read_naming(rules) if rules else NamingSpec(),
            limits=sections.use_limits(table, "endpoints.*.limits"),
            code=sections.code_of_endpoint(table),
            builtins=sections.builtins(table),
            results=sections.results(table),
            keys=network.keys_of(table, "keys"),
            oauth=network.issuer_of(table, resolving),
            secret_written=str(
                (table_of(table.values.get("oauth")) or {}).get("client_secret", "")
            ),
        ),
        auth=_auth(table),
        sse=sse,
        tools=tools.of_group(table, "endpoints.*.tools.*"),
    )


def segment(table: Table) -> str:
    """Return the part of its URLs that an endpoint names as `path`, empty if it names none."""
    path = table.text("path")
    if path is None or _PATH.fullmatch(path):
        return path or ""
    message = "is one part of a URL: up to 64 letters, digits, '-', '_', '.' and '~', the first of"
    table.error("path", f"{message} them a letter or digit, such as 'work' for /metamcp/work/mcp")
    return ""


def _read_naming(table: Table) -> NamingSpec:
    separator = table.text("separator") or ""
    if not _SEPARATOR.fullmatch(separator):
        table.error("separator", "may have up to 8 letters, digits, '_', '.' and '-'")
    return NamingSpec(separator=separator, **table.settings())
