"""The JSON files of MCP clients and other gateways, read as they are.

Owns: the shapes of files, where each shape keeps its servers, and which of its keys mean something
here. Never: changing such a file, settings that only metamcp.toml has (`parse`).

The files are meant for other programs too, so unknown keys are not errors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from metamcp_supervisor.config import engine_tables, naming, network, program, sections
from metamcp_supervisor.config.config import Endpoint, OAuth
from metamcp_supervisor.config.document import (
    ConfigDocument,
    ConfigDraft,
    ConfigFindings,
    EndpointDraft,
    ServerDraft,
    Site,
    Table,
    kind_of,
    list_of,
    shown,
    table_of,
)
from metamcp_supervisor.config.parse import described, segment, settled, unread
from metamcp_supervisor.config.references import EditorInput, References, Resolving, for_server
from metamcp_supervisor.config.sections import RemoteSettings

Shape = Literal["mcpServers", "servers", "mcp_servers", "aliases"]
"""Shapes of files: Claude, Cursor and most others; VS Code; meta-mcp; mcpflip."""

_LISTED_MAX = 8
"""Maximum number of ignored keys that a warning names."""

_ADDRESSES = ("url", "serverUrl", "httpUrl", "uri")
_KINDS = ("type", "transport", "transportType")
"""Keys that can hold the kind of a server; the first one with a string counts."""
_STARTED = {"stdio", "local"}
_REMOTE: dict[str, str] = {
    "http": "http", "https": "http", "streamable-http": "http", "streamablehttp": "http",
    "remote": "auto", "sse": "sse", "url": "auto",
}  # fmt: skip
"""Kinds of remote servers, and the transport that each means."""
_ELSEWHERE = {"--url", "--runtime-dir"}
"""Options of `metamcp connect` that name another gateway, unless the command has `--config` to
start one itself, as `metamcp install` writes it."""
_OAUTH_KEYS = ("clientId", "clientSecret", "clientMetadataUrl")
_USED = {"command", "args", "env", "cwd", "disabled", "enabled", "headers", "oauth", *_ADDRESSES,
         *_KINDS}  # fmt: skip
_OF_CLIENTS = {
    "alwaysAllow", "autoApprove", "description", "dev", "displayName", "gallery",
    "icon", "iconPath", "icons", "id", "metadata", "name", "note", "notes",
    "tags", "timeout", "title", "trust", "version",
}  # fmt: skip
"""Keys of a server that clients write for themselves and that have no effect here."""
_OF_ENDPOINTS = {"namespaceId", "apiKeyRequired", "allowedApiKeys"}
_TOP_OF_CLIENTS = {
    "ai_api", "globalShortcut", "inputs", "mcpServers", "mcp_servers", "preferences", "servers",
}  # fmt: skip


def shape_of(values: Mapping[str, object]) -> Shape | None:
    """Return the shape of a file, by its content and not by its name; None if it is not known."""
    if table_of(values.get("mcpServers")) is not None:
        return "mcpServers"
    if list_of(values.get("mcp_servers")) is not None:
        return "mcp_servers"
    tables = [table_of(value) for key, value in values.items() if not _is_comment(key)]
    if any(table is None or not _is_entry(table) for table in tables):
        servers = table_of(values.get("servers"))
        return None if servers is None else "servers"
    return "aliases"


def parse(
    document: ConfigDocument, references: References, home: Path, findings: ConfigFindings
) -> ConfigDraft:
    site = Site(document)
    shape = shape_of(document.values)
    if shape is None:
        findings.error(
            site,
            "has no servers in a known shape; there are 'mcpServers', 'servers' (VS Code),"
            ' \'mcp_servers\' and {"name": {"command": …}}',
        )
        return ConfigDraft(site=site)
    if shape != "aliases":
        known = {*_TOP_OF_CLIENTS, *(("endpoints",) if _has_endpoints(document.values) else ())}
        _warn_of_ignored(site, _unknown(document.values, known), findings)
    references = replace(
        references,
        inputs=_inputs(document.values) if shape == "servers" else {},
        folders={
            "workspaceFolder": str(document.base),
            "workspaceFolderBasename": document.base.name,
            "userHome": str(home),
            "pathSeparator": "/",
            "/": "/",
        },
    )
    endpoints = _endpoints(site, document.values, findings)
    top = Table(document.values, site, findings)
    named = top.table("ai_api") if shape != "aliases" else None
    ai = engine_tables.read_ai_api(named, Resolving(references))
    drafts: list[ServerDraft] = []
    for place in _entries(shape, top):
        with findings.about(place[0]):
            drafts.append(_draft(place, findings, references, home))
    return ConfigDraft(site=site, servers=tuple(drafts), endpoints=endpoints, ai=ai)


def _is_entry(table: Mapping[str, object]) -> bool:
    return any(isinstance(table.get(key), str | list) for key in ("command", *_ADDRESSES))


def _entries(shape: Shape, top: Table) -> Iterable[tuple[Site, str | None, object]]:
    """Return the place of each server, its name if that is its key, and its value."""
    if shape == "mcp_servers":
        for at, item in enumerate(list_of(top.values[shape]) or ()):
            yield top.site.at(shape, at), None, item
        return
    outer = top if shape == "aliases" else top.table(shape)
    for name, value in outer.values.items() if outer else ():
        if value is not None and not (shape == "aliases" and _is_comment(name)):
            yield top.site.at(*(() if outer is top else (shape,)), name), name, value


def _draft(
    place: tuple[Site, str | None, object],
    findings: ConfigFindings,
    references: References,
    home: Path,
) -> ServerDraft:
    site, written, value = place
    values = table_of(value)
    if values is None:
        what = "a table" if written else "an object with the settings of one server"
        findings.error(site, f"must be {what}, not {kind_of(value)}")
        return _unread(written, site)
    table = Table(values, site, findings)
    if written is None and (written := table.text("name")) is None:
        if not table.has("name"):
            findings.error(site, "has no 'name'")
        return _unread(written, site)
    name = naming.adapted(written) if naming.flaw(written) else written
    if not name:
        findings.error(site, f"'{shown(written)}' has nothing in it that can be a name")
        return _unread(written, site)
    if name != written:
        findings.warning(site, f"the server '{shown(written)}' is called '{name}' here")
    return _server(name, table, references, home)


def _unread(written: str | None, site: Site) -> ServerDraft:
    name = naming.adapted(written or "")
    return unread(name, site, written="" if name == written else written or str(site))


def _server(name: str, table: Table, references: References, home: Path) -> ServerDraft:
    findings = table.findings
    kind = _kind(table)
    remotely = kind in _REMOTE or not table.has("command")
    if remotely and kind and kind not in _REMOTE and kind not in _STARTED:
        findings.warning(
            table.site,
            f"the server '{name}' is left out: its type is '{shown(kind)}', and this version runs"
            " programs and reaches servers by HTTP",
        )
        return ServerDraft(name=name, site=table.site)
    enabled = table.flag("enabled", default=True) and not table.flag("disabled", default=False)
    resolving = Resolving(for_server(references, enabled=enabled))
    found, far = program.ServerProgram(), RemoteSettings()
    if remotely:
        far = _remote(table, kind, resolving)
    else:
        found = program.read(table, resolving, home, foreign=True)
        words = set(found.command)
        if program.is_bridge(found.command) and ("--config" in words or not _ELSEWHERE & words):
            findings.warning(
                table.site, f"the server '{name}' is left out: it is the way to this gateway"
            )
            return ServerDraft(name=name, site=table.site)
    _warn_of_ignored(table.site, _unknown(table.values, _USED | _OF_CLIENTS), findings)
    server = replace(described(name, table, found, far), enabled=enabled)
    return settled(table, server, resolving)


def _has_endpoints(values: Mapping[str, object]) -> bool:
    """Whether `endpoints` are those of a gateway, and not something else of another program."""
    tables = [table_of(item) for item in list_of(values.get("endpoints")) or ()]
    return any(table is not None and table.keys() & _OF_ENDPOINTS for table in tables)


def _endpoints(
    site: Site, values: Mapping[str, object], findings: ConfigFindings
) -> tuple[EndpointDraft, ...]:
    """Read endpoints as Borg writes them. A list of API keys means that one of them is needed."""
    found: list[EndpointDraft] = []
    items = list_of(values.get("endpoints")) if _has_endpoints(values) else None
    for at, item in enumerate(items or ()):
        table = Table(table_of(item) or {}, site.at("endpoints", at), findings)
        written = table.text("path") or table.text("name") or table.text("id") or ""
        name, path = naming.adapted(written), segment(table)
        if not name:
            findings.error(
                table.site, "has no 'path' or 'name' that can be the name of an endpoint"
            )
            continue
        keys = network.keys_of(table, "allowedApiKeys")
        guarded = table.flag("apiKeyRequired", default=False) or bool(keys)
        endpoint = Endpoint(
            name=name,
            namespace=table.text("namespaceId") or "default",
            path="" if path == name else path,
            keys=keys,
        )
        auth = ("keys",) if guarded else None
        found.append(EndpointDraft(site=table.site, endpoint=endpoint, auth=auth))
    return tuple(found)


def _kind(table: Table) -> str:
    found = (table.values.get(key) for key in _KINDS)
    return next((kind for kind in found if isinstance(kind, str)), "").lower().replace("_", "-")


def _remote(table: Table, kind: str, resolving: Resolving) -> RemoteSettings:
    address = next((key for key in _ADDRESSES if table.has(key)), None)
    if address is None:
        why = "has neither 'command' nor 'url'; one of them says what it is"
        if kind in _REMOTE:
            why = f"has no 'url', and its type is '{kind}'"
        table.findings.error(table.site, why)
        return RemoteSettings()
    url, url_written = sections.read_url(table, address, resolving)
    found, written = sections.read_headers(table, resolving, lenient=True)
    oauth, oauth_written = _oauth(table, resolving)
    if sections.authorizes(written):
        oauth, oauth_written = None, None
    return RemoteSettings(
        url=url, url_written=url_written, headers=found, headers_written=written, oauth=oauth,
        oauth_written=oauth_written,
        transport="http" if address == "httpUrl" else _REMOTE.get(kind, "auto"),
    )  # fmt: skip


def _oauth(table: Table, resolving: Resolving) -> tuple[OAuth | None, OAuth | None]:
    """Read `oauth` as clients write it: true, or a table, whose further keys concern the client's
    own browser."""
    value = table.values.get("oauth")
    inner = table.table("oauth") if table_of(value) is not None else None
    if inner is not None:
        return sections.oauth_of(inner, resolving, keys=_OAUTH_KEYS)
    return (OAuth(), OAuth()) if value is True else (None, None)


def _inputs(values: Mapping[str, object]) -> dict[str, EditorInput]:
    """Return the inputs that VS Code would ask the user for, by id. Malformed inputs are skipped
    without an error, because the file belongs to another program."""
    found: dict[str, EditorInput] = {}
    for item in list_of(values.get("inputs")) or ():
        table = table_of(item) or {}
        name, about, default = table.get("id"), table.get("description"), table.get("default")
        if isinstance(name, str):
            found[name] = EditorInput(
                about if isinstance(about, str) else "",
                default if isinstance(default, str) else None,
            )
    return found


def _unknown(values: Mapping[str, object], known: set[str]) -> list[str]:
    return [key for key in values if key not in known and not _is_comment(key)]


def _is_comment(key: str) -> bool:
    """Whether a key is a comment or names the schema, as people write them in JSON."""
    return key.startswith(("_", "//", "$"))


def _warn_of_ignored(site: Site, keys: list[str], findings: ConfigFindings) -> None:
    if keys:
        named = ", ".join(f"'{shown(key)}'" for key in keys[:_LISTED_MAX])
        more = f" and {len(keys) - _LISTED_MAX} more" if len(keys) > _LISTED_MAX else ""
        findings.warning(site, f"means nothing here and is ignored: {named}{more}")
