"""Files of MCP clients and other gateways, read as they are.

Owns: the servers and endpoints of such a file, with every mistake and everything that is not
carried over. Never: shapes and keys of clients
(`client_shapes`, `client_entries`), changing such a file, settings
that only metamcp.toml has (`parse`).

The files are meant for other programs too, so unknown keys are not errors.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs
from msgspec.structs import replace

from metamcp_supervisor.config import (
    client_entries,
    client_shapes,
    naming,
    network,
    program,
    sections,
    tools,
)
from metamcp_supervisor.config.client_entries import ClientEntry
from metamcp_supervisor.config.client_shapes import ClientFacts, EntryPlace
from metamcp_supervisor.config.config import Endpoint, Server
from metamcp_supervisor.config.document import (
    ConfigDocument,
    ConfigDraft,
    ConfigFindings,
    EndpointDraft,
    GatewayDraft,
    NamespaceDraft,
    Place,
    ServerDraft,
    SourceLocation,
    Table,
    kind_of,
    list_of,
    shorten,
    table_of,
)
from metamcp_supervisor.config.parse import build_draft, build_server, segment, unread
from metamcp_supervisor.config.references import (
    EditorInput,
    ReferenceResolver,
    References,
    Unresolved,
    for_server,
)
from metamcp_worker.ipc.spec import OAuth

_LISTED_MAX = 8
"""Maximum number of ignored keys that a warning names."""
_ELSEWHERE = {"--url", "--runtime-dir"}
"""Options of `metamcp connect` that name another gateway, unless the command has `--config` to
start one itself, as `metamcp install` writes it."""
_OF_ENDPOINTS = {"namespaceId", "apiKeyRequired", "allowedApiKeys"}
_OF_OURS = {"endpoints", "gateway", "include", "namespaces", "servers"}
_TOP_OF_CLIENTS = {"ai_api", "globalShortcut", "inputs", "preferences"}
_DEFAULTS = Server(name="", source="")


def is_foreign(name: str, values: Mapping[str, object]) -> bool:
    """Whether a TOML file of this name is that of a client, such as Codex, and not a
    metamcp.toml."""
    return name != "metamcp.toml" and "mcp_servers" in values and not _OF_OURS & values.keys()


def parse(
    document: ConfigDocument,
    references: References,
    home: Path,
    findings: ConfigFindings,
    *,
    project: str = "",
    folder: str | None = None,
    user_home: str | None = None,
) -> ConfigDraft:
    """Read a file. `project`: folder whose servers of Claude Code's own file are meant; `folder`,
    `user_home`: what `${workspaceFolder}` and `${userHome}` stand for, if not the folder of the
    file and `home`."""
    site, values = SourceLocation(document), document.values
    locations = client_shapes.places(values, document.label, project)
    if locations is None:
        findings.error(
            site,
            "has no servers in a known shape; there are 'mcpServers', 'servers' (VS Code),"
            " 'mcp_servers', 'context_servers', 'mcp.servers' and {\"name\": {\"command\": …}}",
        )
        return ConfigDraft(site=site)
    client = client_shapes.client_of(values, document.label, locations)
    _warn_of_the_rest(site, values, locations, client, findings)
    if locations == [("servers",)] or locations[0][:1] == ("mcp",):
        inner = table_of(values.get("mcp")) or values
        references = replace(references, inputs=_inputs(inner))
    top = Table(values, site, findings)
    named = top.table("ai_api") if locations != [()] else None
    reader = _FileReader(
        client,
        findings,
        references,
        home,
        folder=str(document.base) if folder is None else folder,
        user_home=str(home) if user_home is None else user_home,
    )
    servers = tuple(reader.servers(document, client_shapes.entries(values, locations, client)))
    namespaces = _namespaces(site, values, reader.members, findings)
    ours = _is_of_a_gateway(values)
    ai = sections.read_ai_api(named, ReferenceResolver(references))
    return ConfigDraft(
        site=site,
        gateway=_gateway(top, home, findings) if ours else GatewayDraft(),
        rules=() if ours else None,
        builtins=("catalog", "workflows") if ours else (),
        servers=servers,
        namespaces=tuple(namespaces.values()),
        endpoints=_endpoints(site, values, namespaces, findings),
        tables={} if ai is None else {"ai": ai},
    )


def _warn_of_the_rest(
    site: SourceLocation,
    values: Mapping[str, object],
    locations: list[Place],
    client: ClientFacts,
    findings: ConfigFindings,
) -> None:
    """Name what is at the top of the file and has no effect here."""
    for location, message in client_shapes.lost_at_top(values, locations, client):
        findings.lose(site.at(*location), message)
    if client.mixed or locations == [()]:
        return
    handled = {*_TOP_OF_CLIENTS, *(location[0] for location in locations)}
    handled |= {"endpoints"} if _has_endpoints(values) else set()
    handled |= {"storage_path"} if _is_of_a_gateway(values) else set()
    handled |= {"namespaces"} if list_of(values.get("namespaces")) is not None else set()
    keys = [key for key in values if key not in handled and not key.startswith(("_", "//", "$"))]
    if keys:
        named = ", ".join(f"'{shorten(key)}'" for key in keys[:_LISTED_MAX])
        more = f" and {len(keys) - _LISTED_MAX} more" if len(keys) > _LISTED_MAX else ""
        findings.lose(site, f"means nothing here and is ignored: {named}{more}")


class _FileReader:
    """Reads the entries of one file. `folder`, `user_home`: see `parse`."""

    def __init__(
        self,
        client: ClientFacts,
        findings: ConfigFindings,
        references: References,
        home: Path,
        *,
        folder: str,
        user_home: str,
    ) -> None:
        self._client, self._findings = client, findings
        self._references, self._home = references, home
        self._folder, self._user_home = folder, user_home
        self.members: dict[str, list[str]] = {}
        """Servers by `namespaceId`, as they are written there."""

    def servers(self, document: ConfigDocument, entries: list[EntryPlace]) -> list[ServerDraft]:
        drafts: list[ServerDraft] = []
        first: set[str] = set()
        for entry in entries:
            base = Path(entry.folder) if entry.folder else document.base
            site = SourceLocation(replace(document, base=base), entry.place)
            if entry.name in first and entry.place[0] == "mcpServers":
                self._findings.lose(site, "is not carried over: this folder has its own")
                continue
            if entry.place[0] == "projects":
                first.add(entry.name or "")
            with self._findings.about(site):
                drafts.append(self._draft(site, entry))
        return drafts

    def _draft(self, site: SourceLocation, entry: EntryPlace) -> ServerDraft:
        findings, written = self._findings, entry.name
        values = table_of(entry.value)
        if values is None:
            expected = "a table" if written else "an object with the settings of one server"
            findings.error(site, f"must be {expected}, not {kind_of(entry.value)}")
            return _unread(written, site)
        read = client_entries.read(
            values,
            self._client,
            folder=entry.folder or self._folder,
            home=self._user_home,
            defaults={
                name: each.default
                for name, each in self._references.inputs.items()
                if each.default is not None and not {"}", "$"} & set(each.default)
            },
            is_yaml=site.document.label.endswith((".yaml", ".yml")),
        )
        if read.left_out:
            name = written or str(values.get("name") or values.get("uses") or entry.place[-1])
            message = f"the server '{shorten(name)}' is left out: it {read.left_out}"
            findings.lose(site, message)
            return ServerDraft(name=naming.to_valid_name(name), site=site)
        if written is None and (written := Table(values, site, findings).text("name")) is None:
            if values.get("name") is None:
                findings.error(site, "has no 'name'")
            return _unread(written, site)
        name = naming.to_valid_name(written) if naming.flaw(written) else written
        if not name:
            findings.error(site, f"'{shorten(written)}' has nothing in it that can be a name")
            return _unread(written, site)
        if name != written:
            message = f"the server '{shorten(written)}' is called '{name}' here"
            findings.renamed.append(str(site.problem(message)))
            findings.add_warning(site, message)
        if (namespace := Table(values, site, findings).text("namespaceId")) is not None:
            self.members.setdefault(namespace, []).append(name)
        for location, message in read.lost:
            findings.lose(site.at(*location), message)
        for location, message in read.faults:
            findings.error(site.at(*location), message)
        table = Table(read.values, replace(site, renamed=read.renamed), findings)
        return self._server(name, table, read)

    def _server(self, name: str, table: Table, read: ClientEntry) -> ServerDraft:
        enabled = table.flag("enabled", default=True)
        resolving = ReferenceResolver(for_server(self._references, enabled=enabled))
        server = build_server(name, table)
        if read.kind or not table.has("command"):
            server = _remote(table, read, resolving, server)
        else:
            server = program.read(table, resolving, server, self._home, foreign=True)
            if _leads_here(server):
                message = f"the server '{name}' is left out: it is the way to this gateway"
                self._findings.add_warning(table.site, message)
                return ServerDraft(name=name, site=table.site)
            server = self._with_file(server, table, read.env_file, resolving)
        of_tools = tools.of_server(name, table)
        server = replace(
            server,
            enabled=enabled,
            required=table.flag("required", default=False),
            tools=tools.by_server(of_tools).get(name, {}),
            timeout_s=table.duration("timeout", default=_DEFAULTS.timeout_s),
            start_timeout_s=table.duration(
                "start_timeout",
                default=program.start_timeout_s(server.command, _DEFAULTS.start_timeout_s),
            ),
        )
        return replace(build_draft(table, server, resolving), tools=of_tools)

    def _with_file(
        self, server: Server, table: Table, file: str, resolving: ReferenceResolver
    ) -> Server:
        """Return the server with the variables of its `envFile`, below those of `env`."""
        site = table.site.at("envFile")
        path = resolving.path(file, site) if file else None
        if path is None:
            if file and self._references.later:
                self._findings.lose(site, "is not carried over: where it is, only a start tells")
            return server
        path = str(program.directory(path, base=table.site.document.base, home=self._home))
        try:
            variables = client_entries.variables(self._references.text_of(path))
        except Unresolved as error:
            resolving.unresolved.append((site, str(error)))
            return server
        return replace(
            server,
            env={**variables, **server.env},
            env_written={**variables, **server.env_written},
        )


def _leads_here(server: Server) -> bool:
    """Whether a command is a bridge to this gateway, as `metamcp install` writes it."""
    words = set(server.command)
    return program.is_bridge(server.command) and ("--config" in words or not _ELSEWHERE & words)


def _unread(written: str | None, site: SourceLocation) -> ServerDraft:
    name = naming.to_valid_name(written or "")
    return unread(name, site, written="" if name == written else written or str(site))


def _remote(
    table: Table, read: ClientEntry, resolving: ReferenceResolver, server: Server
) -> Server:
    """Return the server with the settings of a remote one."""
    if not table.has("url"):
        message = "has neither 'command' nor 'url'; one of them says what it is"
        if read.kind:
            message = f"has no 'url', and its type is '{read.kind}'"
        table.findings.error(table.site, message)
        return server
    url, url_written = sections.read_url(table, "url", resolving)
    headers, written = sections.read_headers(table, resolving, lenient=True)
    oauth, oauth_written = _oauth(table, read, resolving)
    if oauth is not None and sections.authorizes(written):
        notice = "is not carried over: the header 'Authorization' takes its place"
        table.findings.lose(table.site.at("oauth"), notice)
        oauth, oauth_written = None, None
    return replace(
        server, url=url, url_written=url_written, headers=headers, headers_written=written,
        oauth=oauth, oauth_written=oauth_written,
        transport=str(table.values.get("transport", "auto")),
    )  # fmt: skip


def _oauth(
    table: Table, read: ClientEntry, resolving: ReferenceResolver
) -> tuple[OAuth | None, OAuth | None]:
    """Read `oauth` as clients write it: true, or a table."""
    value = table.values.get("oauth")
    if value is None or value is True:
        return (OAuth(), OAuth()) if value else (None, None)
    inner = table.table("oauth")
    assert inner is not None
    oauth, written = sections.oauth_of(inner, resolving, keys=read.oauth_keys)
    port = inner.whole("callback_port", low=1, high=65535) or oauth.callback_port
    oauth, written = (structs.replace(each, callback_port=port) for each in (oauth, written))
    return oauth, written


def _is_of_a_gateway(values: Mapping[str, object]) -> bool:
    """Whether the file is the `config.json` of a meta-mcp: its clients ask for the catalogue, for
    suggestions and for workflows."""
    return list_of(values.get("mcp_servers")) is not None


def _gateway(top: Table, home: Path, findings: ConfigFindings) -> GatewayDraft:
    """Read where the gateway stores its state: beside the file that is named, in a folder of the
    same name without its ending."""
    written = top.text("storage_path")
    if not written:
        return GatewayDraft()
    path = program.directory(written, base=top.site.document.base, home=home)
    message = (
        "names a file; a gateway with this configuration keeps its state in a folder beside it"
    )
    findings.lose(top.site.at("storage_path"), message)
    return GatewayDraft(state_dir=path.with_suffix(""))


def _has_endpoints(values: Mapping[str, object]) -> bool:
    """Whether `endpoints` are those of a gateway, and not something else of another program."""
    tables = [table_of(item) for item in list_of(values.get("endpoints")) or ()]
    return any(table is not None and table.keys() & _OF_ENDPOINTS for table in tables)


def _namespaces(
    site: SourceLocation,
    values: Mapping[str, object],
    members: Mapping[str, Sequence[str]],
    findings: ConfigFindings,
) -> dict[str, NamespaceDraft]:
    """Read namespaces as Borg writes them, by id. `members`: servers by the id of their namespace;
    that of servers which name none is `default`."""
    by_id: dict[str, NamespaceDraft] = {}
    for at, item in enumerate(list_of(values.get("namespaces")) or ()):
        table = Table(table_of(item) or {}, site.at("namespaces", at), findings)
        written = table.text("id") or table.text("name") or ""
        name = naming.to_valid_name(table.text("name") or "") or naming.to_valid_name(written)
        if not name:
            findings.error(table.site, "has no 'name' or 'id' that can be the name of a namespace")
            continue
        described = table.text("description") or ""
        by_id[written] = NamespaceDraft(
            name=name, site=table.site, servers=(), description=described
        )
    names = {namespace.name: written for written, namespace in by_id.items()}
    for written, servers in members.items():
        name = naming.to_valid_name(written)
        key = written if written in by_id else names.get(name, written)
        namespace = by_id.setdefault(key, NamespaceDraft(name=name, site=site, servers=()))
        joined = (*(namespace.servers or ()), *servers)
        by_id[key] = replace(namespace, servers=joined)
    return {
        key: namespace if namespace.name != "default" else replace(namespace, servers=None)
        for key, namespace in by_id.items()
    }


def _endpoints(
    site: SourceLocation,
    values: Mapping[str, object],
    namespaces: Mapping[str, NamespaceDraft],
    findings: ConfigFindings,
) -> tuple[EndpointDraft, ...]:
    """Read endpoints as Borg writes them. A list of API keys means that one of them is needed."""
    endpoints: list[EndpointDraft] = []
    items = list_of(values.get("endpoints")) if _has_endpoints(values) else None
    for at, item in enumerate(items or ()):
        table = Table(table_of(item) or {}, site.at("endpoints", at), findings)
        written = table.text("path") or table.text("name") or table.text("id") or ""
        name, path = naming.to_valid_name(written), segment(table)
        if not name:
            findings.error(
                table.site, "has no 'path' or 'name' that can be the name of an endpoint"
            )
            continue
        keys = network.keys_of(table, "allowedApiKeys")
        guarded = table.flag("apiKeyRequired", default=False) or bool(keys)
        namespace = table.text("namespaceId") or "default"
        draft = namespaces.get(namespace)
        endpoint = Endpoint(
            name=name,
            namespace=draft.name if draft is not None else namespace,
            path="" if path == name else path,
            keys=keys,
        )
        auth = ("keys",) if guarded else None
        endpoints.append(EndpointDraft(site=table.site, endpoint=endpoint, auth=auth))
    return tuple(endpoints)


def _inputs(values: Mapping[str, object]) -> dict[str, EditorInput]:
    """Return the inputs that VS Code would ask the user for, by id. Malformed inputs are skipped
    without an error, because the file belongs to another program."""
    inputs: dict[str, EditorInput] = {}
    for item in list_of(values.get("inputs")) or ():
        table = table_of(item) or {}
        name, about, default = table.get("id"), table.get("description"), table.get("default")
        if isinstance(name, str):
            inputs[name] = EditorInput(
                about if isinstance(about, str) else "",
                default if isinstance(default, str) else None,
            )
    return inputs
