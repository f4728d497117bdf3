"""Shapes of the files of MCP clients: whose a file is, and where it keeps its servers.

Owns: the facts about each client, with their sources, the places of servers in a file, and what the
rest of the file says of them. Never: keys of an entry (`client_entries`), reading files.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.config.document import Place, list_of, table_of


class ClientFacts(Struct, frozen=True):
    """Facts about the files of a client. `paths`: ends of their usual paths; `marks`: keys that
    only entries of this client have, all keys of a set; `timeout`: the key of metamcp.toml for
    `timeout` of an entry, and the seconds of one unit; None: not documented; `dollars`: whether
    `$NAME` is a variable in the middle of a text, too; `mixed`: whether the file has other settings
    of the client; `source`: its documentation."""

    name: str
    paths: tuple[str, ...] = ()
    marks: tuple[frozenset[str], ...] = ()
    timeout: tuple[str, float] | None = None
    dollars: bool = False
    mixed: bool = True
    source: str = ""


_CALL_MS, _CALL_S, _START_MS = ("timeout", 0.001), ("timeout", 1.0), ("start_timeout", 0.001)
UNKNOWN_CLIENT = ClientFacts("", mixed=False)
CLIENT_FACTS: Mapping[str, ClientFacts] = {
    facts.name: facts
    for facts in (
        ClientFacts("claude-code", (".claude.json",), timeout=_CALL_MS,
                    source="https://code.claude.com/docs/en/mcp"),
        ClientFacts("claude-code-project", ("/.mcp.json",), timeout=_CALL_MS, mixed=False,
                    source="https://code.claude.com/docs/en/mcp"),
        ClientFacts("claude-desktop", ("claude_desktop_config.json",),
                    source="https://modelcontextprotocol.io/docs/develop/connect-local-servers"),
        ClientFacts("cursor", (".cursor/mcp.json",), mixed=False,
                    source="https://cursor.com/docs/mcp"),
        ClientFacts("vscode", ("Code/User/mcp.json", ".vscode/mcp.json", "Code/User/settings.json",
                               ".vscode/settings.json"),
                    source="https://code.visualstudio.com/docs/copilot/reference/mcp-configuration"),
        ClientFacts("windsurf", ("windsurf/mcp_config.json",), mixed=False,
                    source="https://docs.windsurf.com/windsurf/cascade/mcp"),
        ClientFacts("codex", ("codex/config.toml",), timeout=_CALL_S,
                    source="https://developers.openai.com/codex/mcp"),
        ClientFacts("gemini-cli", (".gemini/settings.json", ".qwen/settings.json"),
                    tuple(frozenset({key}) for key in ("httpUrl", "includeTools", "excludeTools",
                                                       "authProviderType")),
                    timeout=_CALL_MS, dollars=True,
                    source="https://github.com/google-gemini/gemini-cli/blob/main/docs/tools/mcp-server.md"),
        ClientFacts("zed", ("zed/settings.json",), timeout=_CALL_S,
                    source="https://zed.dev/docs/ai/mcp"),
        ClientFacts("roo", ("roo-cline/settings/mcp_settings.json", ".roo/mcp.json",
                            "kilo-code/settings/mcp_settings.json", ".kilocode/mcp.json"),
                    (frozenset({"alwaysAllow"}), frozenset({"watchPaths"})),
                    timeout=_CALL_S, mixed=False,
                    source="https://docs.roocode.com/features/mcp/using-mcp-in-roo"),
        ClientFacts("kiro", (".kiro/settings/mcp.json", "amazonq/mcp.json"),
                    (frozenset({"autoApprove", "disabledTools"}), frozenset({"oauthScopes"})),
                    timeout=_CALL_MS, mixed=False,
                    source="https://github.com/aws/amazon-q-developer-cli/blob/main/docs/agent-format.md"),
        ClientFacts("cline", ("cline_mcp_settings.json",), timeout=_CALL_S, mixed=False,
                    source="https://docs.cline.bot/mcp/configuring-mcp-servers"),
        ClientFacts("copilot-cli", ("mcp-config.json", ".github/mcp.json"), timeout=_CALL_MS,
                    mixed=False,
                    source="https://docs.github.com/en/copilot/how-tos/copilot-cli/customize-copilot/add-mcp-servers"),
        ClientFacts("amp", ("amp/settings.json",), source="https://ampcode.com/manual"),
        ClientFacts("continue", (".continue/config.yaml",),
                    source="https://docs.continue.dev/reference"),
        ClientFacts("goose", ("goose/config.yaml",), timeout=_CALL_S,
                    source="https://github.com/aaif-goose/goose/blob/main/documentation/docs/guides/config-files.md"),
        ClientFacts("librechat", ("librechat.yaml",), (frozenset({"serverInstructions"}),),
                    timeout=_CALL_MS,
                    source="https://www.librechat.ai/docs/configuration/librechat_yaml/object_structure/mcp_servers"),
        ClientFacts("crush", ("crush.json",), timeout=_CALL_S, dollars=True,
                    source="https://github.com/charmbracelet/crush"),
        ClientFacts("opencode", ("opencode.json", "opencode.jsonc"), timeout=_START_MS,
                    source="https://opencode.ai/docs/mcp-servers/"),
    )
}  # fmt: skip

_TABLES = ("mcpServers", "mcp_servers", "context_servers", "mcp.servers")
"""Keys at the top of a file for a table or a list of servers."""
ADDRESSES = ("httpUrl", "url", "serverUrl", "uri", "baseUrl")
"""Keys for the URL of a server."""


class EntryPlace(Struct, frozen=True):
    """Entry of a server in a file. `place`: keys down to it; `name`: its key, None in a list;
    `folder`: of the project that it belongs to, empty for that of the file."""

    place: Place
    name: str | None
    value: object
    folder: str = ""


def places(values: Mapping[str, object], label: str, folder: str) -> list[Place] | None:
    """Return the places of servers in a file; None if no shape is known. `label`: its name;
    `folder`: the project whose servers of Claude Code are meant, too."""
    is_yaml = label.endswith((".yaml", ".yml"))
    locations: list[Place] = [
        (key,)
        for key, value in values.items()
        if (key in _TABLES or key.endswith((".mcpServers", ".mcp.servers")))
        and (table_of(value) is not None or list_of(value) is not None)
    ]
    if is_yaml and table_of(values.get("extensions")) is not None:
        locations.append(("extensions",))
    mcp = table_of(values.get("mcp"))
    if mcp is not None:
        inner = [("mcp", key) for key in ("servers", "mcpServers") if _has_entries(mcp.get(key))]
        locations += inner or ([("mcp",)] if _has_entries(mcp) else [])
    projects = table_of(values.get("projects")) or {}
    near = [folder, *map(str, PurePosixPath(folder).parents)] if folder else []
    mine = next((each for each in near if each in projects), None)
    if mine is not None and table_of((table_of(projects[mine]) or {}).get("mcpServers")):
        locations.insert(0, ("projects", mine, "mcpServers"))  # wins over those for every project
    if locations:
        return locations
    if values and all(is_comment(key) or is_entry(value) for key, value in values.items()):
        return [()]
    servers = values.get("servers")
    if table_of(servers) is not None or list_of(servers):
        return [("servers",)]
    return [()] if not values else None


def is_entry(value: object) -> bool:
    """Whether a value looks like the entry of a server."""
    table = table_of(value) or {}
    return any(isinstance(table.get(key), str | list) for key in ("command", "cmd", *ADDRESSES))


def _has_entries(value: object) -> bool:
    table = table_of(value)
    return table is not None and any(is_entry(each) for each in table.values())


def client_of(values: Mapping[str, object], label: str, locations: list[Place]) -> ClientFacts:
    """Return the client of a file: by its usual place, else by its shape."""
    for facts in CLIENT_FACTS.values():
        if any(f"/{label}".endswith(path) for path in facts.paths):
            return facts
    first = locations[0] if locations else ()
    entries = [table_of(each.value) or {} for each in entries_at(values, first)]
    if first == ("mcp",):
        listed = any(isinstance(each.get("command"), list) for each in entries)
        remote = any(each.get("type") in ("local", "remote") for each in entries)
        return CLIENT_FACTS["opencode" if listed or remote else "crush"]
    projects = (table_of(values.get("projects")) or {}).values()
    if any("mcpServers" in (table_of(each) or {}) for each in projects):
        return CLIENT_FACTS["claude-code"]
    if "schema" in values and list_of(values.get("mcpServers")) is not None:
        return CLIENT_FACTS["continue"]
    if first[:1] == ("mcp_servers",) and label.endswith(".toml"):
        return CLIENT_FACTS["codex"]
    client_names = {"context_servers": "zed", "extensions": "goose", "amp.mcpServers": "amp",
                    "servers": "vscode", "mcp": "vscode"}  # fmt: skip
    if first and (name := client_names.get(str(first[0]))):
        return CLIENT_FACTS[name]
    for facts in CLIENT_FACTS.values():
        if any(mark <= each.keys() for mark in facts.marks for each in entries):
            return facts
    if any(each.get("type") == "local" and "tools" in each for each in entries):
        return CLIENT_FACTS["copilot-cli"]
    return UNKNOWN_CLIENT


def entries_at(values: Mapping[str, object], location: Place) -> Iterator[EntryPlace]:
    """Yield the entries at a place: those of a table by name, or the items of a list."""
    outer: object = values
    for key in location:
        outer = (table_of(outer) or {}).get(str(key))
    folder = str(location[1]) if location[:1] == ("projects",) else ""
    for at, item in enumerate(list_of(outer) or ()):
        yield EntryPlace((*location, at), None, item)
    for name, value in (table_of(outer) or {}).items():
        if value is not None and not (not location and is_comment(name)):
            yield EntryPlace((*location, name), str(name), value, folder)


def entries(
    values: Mapping[str, object], locations: list[Place], client: ClientFacts
) -> list[EntryPlace]:
    """Return all entries of a file, with what the file says of all of them: servers that are
    switched off, tools of several servers, a time limit."""
    off = set(texts_of(_at(values, "mcp", "excluded"))) | set(
        texts_of(values.get("excludeMCPServers"))
    )
    allowed = [
        list_of(each)
        for each in (_at(values, "mcp", "allowed"), values.get("allowMCPServers"))
        if list_of(each) is not None
    ]
    key, limit = {
        "zed": ("timeout", values.get("context_server_timeout")),
        "opencode": ("timeoutMs", _at(values, "experimental", "mcp_timeout")),
    }.get(client.name, ("", None))
    made: list[EntryPlace] = []
    for location in locations:
        if location[:1] == ("projects",):
            off |= set(texts_of(_at(values, "projects", str(location[1]), "disabledMcpServers")))
        for each in entries_at(values, location):
            table = dict(table_of(each.value) or {})
            is_off = each.name in off or any(each.name not in (names or ()) for names in allowed)
            if table and is_off:
                table["disabled"] = True
            if limit is not None and table:
                table.setdefault(key, limit)
            made.append(replace(each, value=_with_tools(each, table, values)) if table else each)
    return made


def _with_tools(
    entry: EntryPlace, table: dict[str, object], values: Mapping[str, object]
) -> dict[str, object]:
    """Return an entry of OpenCode with the switches of its tools, which the top of the file has
    under `SERVER_TOOL`."""
    if entry.place[:1] != ("mcp",) or entry.name is None or "tools" in table:
        return table
    prefix = re.sub(r"[^A-Za-z0-9_-]", "_", entry.name)
    named = {
        tool.removeprefix(f"{prefix}_") if tool.startswith(f"{prefix}_") else "*": on
        for tool, on in (table_of(values.get("tools")) or {}).items()
        if isinstance(on, bool) and (tool.startswith(f"{prefix}_") or tool == f"{prefix}*")
    }
    return {**table, "tools": named} if named else table


def lost_at_top(
    values: Mapping[str, object], locations: list[Place], client: ClientFacts
) -> Iterator[tuple[Place, str]]:
    """Yield what is at the top of a file and is not carried over, with its place."""
    for path, project in (table_of(values.get("projects")) or {}).items():
        table = table_of(project) or {}
        is_mine = ("projects", path, "mcpServers") in locations
        for key in ("enabledMcpjsonServers", "disabledMcpjsonServers"):
            if is_mine and list_of(table.get(key)):
                message = "is not carried over: it is about servers in another file, .mcp.json"
                yield ("projects", path, key), message
        if table_of(table.get("mcpServers")) and not is_mine:
            message = "is not carried over: its servers are for that folder; run the command there"
            yield ("projects", path, "mcpServers"), message
    profiles = table_of(_at(values, "agent", "profiles")) or {}
    for name, profile in profiles.items():
        if (table_of(profile) or {}).get("context_servers"):
            message = "is not carried over: it is for one profile of the client's own agent"
            yield ("agent", "profiles", name, "context_servers"), message
    server_keys = {str(location[0]) for location in locations if location}
    for key in values:
        if (
            client.mixed
            and (key.startswith("mcp_") or key == "mcpSettings")
            and key not in server_keys
        ):
            yield (key,), "is not carried over"


def is_comment(key: object) -> bool:
    """Whether a key is a comment or names the schema, as people write them in JSON."""
    return str(key).startswith(("_", "//", "$"))


def _at(values: Mapping[str, object], *keys: str) -> object:
    value: object = values
    for key in keys:
        value = (table_of(value) or {}).get(key)
    return value


def texts_of(value: object) -> list[str]:
    return [item for item in list_of(value) or () if isinstance(item, str)]
