"""The JSON files of MCP clients and other gateways, read as they are.

Owns: which shape a file has, where each keeps its servers, and which of its keys mean something
here. Never: changing such a file, settings that only metamcp.toml has (`parse`).

What these files hold is meant for other programs too, so what we do not know is no error.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from metamcp_supervisor.wanted import naming, program
from metamcp_supervisor.wanted.config import Server
from metamcp_supervisor.wanted.document import Document, Findings, Site, list_of, shown, table_of
from metamcp_supervisor.wanted.draft import Draft, ServerDraft
from metamcp_supervisor.wanted.expand import Input, References
from metamcp_supervisor.wanted.parse import settled
from metamcp_supervisor.wanted.table import Table

Shape = Literal["mcpServers", "servers", "mcp_servers", "aliases"]
"""Claude, Cursor and most others; VS Code; meta-mcp; mcpflip."""

_LISTED_MAX = 8
"""How many ignored keys one warning names."""

_ADDRESSES = ("url", "serverUrl", "httpUrl", "uri")
_REMOTE_TYPES = {"url", "http", "https", "sse", "streamable-http", "streamableHttp", "ws"}
_USED = {"command", "args", "env", "cwd", "disabled", "enabled", *_ADDRESSES}
_OF_CLIENTS = {
    "alwaysAllow", "autoApprove", "description", "dev", "displayName", "gallery",
    "headers", "icon", "iconPath", "icons", "id", "metadata", "name", "note", "notes", "oauth",
    "tags", "timeout", "title", "transport", "transportType", "trust", "type", "version",
}  # fmt: skip
"""Keys of one server that clients write for themselves and that change nothing here."""
_TOP_OF_CLIENTS = {
    "globalShortcut", "inputs", "mcpServers", "mcp_servers", "preferences", "servers",
}  # fmt: skip


def shape_of(values: Mapping[str, object]) -> Shape | None:
    """The shape of a file, by what it holds and not by its name; None for none that is known."""
    if table_of(values.get("mcpServers")) is not None:
        return "mcpServers"
    if list_of(values.get("mcp_servers")) is not None:
        return "mcp_servers"
    tables = [table_of(value) for key, value in values.items() if not _is_comment(key)]
    if any(table is None or not _is_entry(table) for table in tables):
        servers = table_of(values.get("servers"))
        return None if servers is None else "servers"
    return "aliases"


def parse(document: Document, references: References, home: Path, findings: Findings) -> Draft:
    site = Site(document)
    shape = shape_of(document.values)
    if shape is None:
        findings.error(
            site,
            "has no servers in a known shape; there are 'mcpServers', 'servers' (VS Code),"
            ' \'mcp_servers\' and {"name": {"command": …}}',
        )
        return Draft(site=site)
    if shape != "aliases":
        _warn_of_ignored(site, _unknown(document.values, _TOP_OF_CLIENTS), findings)
    references = References(
        environ=references.environ,
        secret=references.secret,
        inputs=_inputs(document.values) if shape == "servers" else {},
        folders={
            "workspaceFolder": str(document.base),
            "workspaceFolderBasename": document.base.name,
            "userHome": str(home),
            "pathSeparator": "/",
            "/": "/",
        },
    )
    drafts: list[ServerDraft] = []
    for name, table in _entries(shape, Table(document.values, site, findings)):
        drafts += _server(name, table, references, home)
    return Draft(site=site, servers=tuple(drafts))


def _is_entry(table: Mapping[str, object]) -> bool:
    return any(isinstance(table.get(key), str | list) for key in ("command", *_ADDRESSES))


def _entries(shape: Shape, top: Table) -> Iterable[tuple[str, Table]]:
    """Each server's name as it is written, and its table."""
    if shape == "aliases":
        for name in top.values:
            if not _is_comment(name) and (table := top.table(name)) is not None:
                yield name, table
    elif shape != "mcp_servers":
        yield from top.tables(shape).items()
    else:
        for at, item in enumerate(list_of(top.values[shape]) or ()):
            site = top.site.at(shape, at)
            values = table_of(item)
            if values is None:
                top.findings.error(site, "must be an object with the settings of one server")
                continue
            table = Table(values, site, top.findings)
            named = table.text("name")
            if named is not None:
                yield named, table
            elif not table.has("name"):
                top.findings.error(site, "has no 'name'")


def _server(
    written: str, table: Table, references: References, home: Path
) -> Iterable[ServerDraft]:
    findings = table.findings
    name = naming.adapted(written) if naming.flaw(written) else written
    if not name:
        findings.error(table.site, f"'{shown(written)}' has nothing in it that can be a name")
        return
    if name != written:
        findings.warning(table.site, f"the server '{shown(written)}' is called '{name}' here")
    if _is_remote(table):
        findings.warning(
            table.site,
            f"the server '{name}' is left out: it is reached by URL, and remote servers are not"
            " available in this version",
        )
        yield ServerDraft(name=name, site=table.site, left_out=True)
        return
    before = len(findings.problems)
    found = program.read(table, references, home, foreign=True)
    if not table.has("command"):
        findings.error(table.site, "has neither 'command' nor 'url'; one of them says what it is")
    _warn_of_ignored(table.site, _unknown(table.values, _USED | _OF_CLIENTS), findings)
    server = Server(
        name=name,
        source=str(table.site),
        command=found.command,
        command_written=found.command_written,
        env=found.env,
        env_written=found.env_written,
        cwd=found.cwd,
        enabled=table.flag("enabled", default=True) and not table.flag("disabled", default=False),
    )
    yield settled(table, server, found, before)


def _is_remote(table: Table) -> bool:
    kind = table.values.get("type")
    if isinstance(kind, str) and kind in _REMOTE_TYPES:
        return True
    return not table.has("command") and any(map(table.has, _ADDRESSES))


def _inputs(values: Mapping[str, object]) -> dict[str, Input]:
    """What VS Code would ask for, by id. Whatever does not fit is left alone: it is not ours."""
    found: dict[str, Input] = {}
    for item in list_of(values.get("inputs")) or ():
        table = table_of(item) or {}
        name, about, default = table.get("id"), table.get("description"), table.get("default")
        if isinstance(name, str):
            found[name] = Input(
                about if isinstance(about, str) else "",
                default if isinstance(default, str) else None,
            )
    return found


def _unknown(values: Mapping[str, object], known: set[str]) -> list[str]:
    return [key for key in values if key not in known and not _is_comment(key)]


def _is_comment(key: str) -> bool:
    """How people write comments into JSON, and how they name its schema."""
    return key.startswith(("_", "//", "$"))


def _warn_of_ignored(site: Site, keys: list[str], findings: Findings) -> None:
    if keys:
        named = ", ".join(f"'{shown(key)}'" for key in keys[:_LISTED_MAX])
        more = f" and {len(keys) - _LISTED_MAX} more" if len(keys) > _LISTED_MAX else ""
        findings.warning(site, f"means nothing here and is ignored: {named}{more}")
