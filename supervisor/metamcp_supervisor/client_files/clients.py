"""The MCP clients that MetaMCP can be installed in: where each keeps servers, and our entry there.

Owns: the table of clients, the choice between several files, the entry that we write in each shape,
how it is recognized, and the command in it. Never: reading entries of other servers
(`config.client_entries`), text (`json_edit`, `toml_edit`, `yaml_edit`). docs/clients.md has a row
for each client, with a link to its documentation.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from metamcp_supervisor.config import client_entries
from metamcp_supervisor.config.client_shapes import UNKNOWN_CLIENT
from metamcp_supervisor.config.document import list_of
from metamcp_supervisor.config.program import is_bridge

Format = Literal["json", "toml", "yaml-list", "yaml-mapping"]
Shape = Literal[
    "claude", "desktop", "cursor", "vscode", "windsurf", "codex", "gemini", "zed", "cline",
    "continue", "goose", "opencode",
]  # fmt: skip
Scope = Literal["user", "project"]
Platform = Literal["linux", "darwin"]

_SUPPORT = "~/Library/Application Support"
_CLINE = "User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"


NAME_CHARACTERS_MAX = 64
"""Characters that APIs of models allow in the name of a tool, a client's prefix included."""


class FileUnfit(Exception):
    """A file that is valid but is not edited. The text follows the file's name in a sentence."""


class FileFormat(Struct, frozen=True):
    """How a file keeps servers. `place`: keys down to the table or list of servers; `new`: text at
    the beginning of a file that we create."""

    shape: Shape
    format: Format
    place: tuple[str, ...]
    new: str = ""


class ClientProgram(Struct, frozen=True, kw_only=True):
    """MCP client. `linux`, `darwin`: the user's own files, the preferred one first; `~` is the home
    directory, `$CONFIG` is XDG_CONFIG_HOME or ~/.config; a path with another variable is the only
    candidate when the variable is set. `project`: file in the folder of a project. `verb`,
    `verb_http`: the client's own command for the same, with {scope}, {name}, {command}, {url} and
    {json}. `prefix`: what the client puts before the name of a tool, with the {name} of the entry;
    empty where that is not documented."""

    name: str
    title: str
    kept: FileFormat
    linux: tuple[str, ...]
    darwin: tuple[str, ...]
    project: str = ""
    kept_in_project: FileFormat | None = None
    verb: str = ""
    verb_http: str = ""
    prefix: str = ""

    def name_room(self, name: str) -> int:
        """Return the characters that the name of a tool may have beside the prefix. `name`: of the
        entry."""
        return max(16, NAME_CHARACTERS_MAX - len(self.prefix.format(name=name)))

    def how(self, scope: Scope) -> FileFormat:
        return self.kept_in_project or self.kept if scope == "project" else self.kept


def _of(*clients: ClientProgram) -> dict[str, ClientProgram]:
    return {client.name: client for client in clients}


CLIENTS: Mapping[str, ClientProgram] = _of(
    ClientProgram(
        name="claude-code",
        title="Claude Code",
        kept=FileFormat("claude", "json", ("mcpServers",)),
        linux=("$CLAUDE_CONFIG_DIR/.claude.json", "~/.claude.json"),
        darwin=("$CLAUDE_CONFIG_DIR/.claude.json", "~/.claude.json"),
        project=".mcp.json",
        verb="claude mcp add --scope {scope} {name} -- {command}",
        verb_http="claude mcp add --scope {scope} --transport http {name} {url}",
        prefix="mcp__{name}__",
    ),
    ClientProgram(
        name="claude-desktop",
        title="Claude Desktop",
        kept=FileFormat("desktop", "json", ("mcpServers",)),
        linux=("$CONFIG/Claude/claude_desktop_config.json",),
        darwin=(f"{_SUPPORT}/Claude/claude_desktop_config.json",),
    ),
    ClientProgram(
        name="cursor",
        title="Cursor",
        kept=FileFormat("cursor", "json", ("mcpServers",)),
        linux=("~/.cursor/mcp.json",),
        darwin=("~/.cursor/mcp.json",),
        project=".cursor/mcp.json",
    ),
    ClientProgram(
        name="vscode",
        title="VS Code",
        kept=FileFormat("vscode", "json", ("servers",)),
        linux=("$CONFIG/Code/User/mcp.json",),
        darwin=(f"{_SUPPORT}/Code/User/mcp.json",),
        project=".vscode/mcp.json",
        verb="code --add-mcp {json}",
        verb_http="code --add-mcp {json}",
    ),
    ClientProgram(
        name="windsurf",
        title="Windsurf",
        kept=FileFormat("windsurf", "json", ("mcpServers",)),
        linux=("~/.codeium/windsurf/mcp_config.json",),
        darwin=("~/.codeium/windsurf/mcp_config.json",),
    ),
    ClientProgram(
        name="codex",
        title="Codex",
        kept=FileFormat("codex", "toml", ("mcp_servers",)),
        linux=("$CODEX_HOME/config.toml", "~/.codex/config.toml"),
        darwin=("$CODEX_HOME/config.toml", "~/.codex/config.toml"),
        project=".codex/config.toml",
        verb="codex mcp add {name} -- {command}",
        verb_http="codex mcp add {name} --url {url}",
        prefix="mcp__{name}__",
    ),
    ClientProgram(
        name="gemini-cli",
        title="Gemini CLI",
        kept=FileFormat("gemini", "json", ("mcpServers",)),
        linux=("~/.gemini/settings.json",),
        darwin=("~/.gemini/settings.json",),
        project=".gemini/settings.json",
        verb="gemini mcp add --scope {scope} {name} {command}",
        verb_http="gemini mcp add --scope {scope} --transport http {name} {url}",
        prefix="mcp_{name}_",
    ),
    ClientProgram(
        name="zed",
        title="Zed",
        kept=FileFormat("zed", "json", ("context_servers",)),
        linux=("$CONFIG/zed/settings.json",),
        darwin=("~/.config/zed/settings.json",),
    ),
    ClientProgram(
        name="cline",
        title="Cline",
        kept=FileFormat("cline", "json", ("mcpServers",)),
        linux=(
            "$CLINE_MCP_SETTINGS_PATH",
            "~/.cline/data/settings/cline_mcp_settings.json",
            f"$CONFIG/Code/{_CLINE}",
            f"$CONFIG/Cursor/{_CLINE}",
        ),
        darwin=(
            "$CLINE_MCP_SETTINGS_PATH",
            "~/.cline/data/settings/cline_mcp_settings.json",
            f"{_SUPPORT}/Code/{_CLINE}",
            f"{_SUPPORT}/Cursor/{_CLINE}",
        ),
    ),
    ClientProgram(
        name="continue",
        title="Continue",
        kept=FileFormat(
            "continue",
            "yaml-list",
            ("mcpServers",),
            "name: Local Config\nversion: 1.0.0\nschema: v1\n",
        ),
        linux=("~/.continue/config.yaml",),
        darwin=("~/.continue/config.yaml",),
        project=".continue/mcpServers/mcp.json",
        kept_in_project=FileFormat("claude", "json", ("mcpServers",)),
    ),
    ClientProgram(
        name="goose",
        title="goose",
        kept=FileFormat("goose", "yaml-mapping", ("extensions",)),
        linux=("$CONFIG/goose/config.yaml",),
        darwin=("~/.config/goose/config.yaml",),
    ),
    ClientProgram(
        name="opencode",
        title="OpenCode",
        kept=FileFormat("opencode", "json", ("mcp",)),
        linux=("$CONFIG/opencode/opencode.json", "$CONFIG/opencode/opencode.jsonc"),
        darwin=("~/.config/opencode/opencode.json", "~/.config/opencode/opencode.jsonc"),
        project="opencode.json",
    ),
)


OTHERS: Mapping[str, str] = {
    "mcpflip": "~/.claude/mcpflip/servers.json",
    "meta-mcp": "~/.meta-mcp/config.json",
}
"""Files of programs that are not clients, but have servers to import."""


def candidates(
    client: ClientProgram,
    scope: Scope,
    *,
    platform: Platform,
    environ: Mapping[str, str],
    home: Path,
    cwd: Path,
) -> tuple[Path, ...]:
    """Return the possible files of a client, the preferred one first; empty for a client without
    that scope."""
    if scope == "project":
        return (cwd / client.project,) if client.project else ()
    paths: list[Path] = []
    for written in client.linux if platform == "linux" else client.darwin:
        head, _, tail = written.partition("/")
        if head == "~":
            paths.append(home / tail)
        elif head == "$CONFIG":
            config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
            paths.append((config if config.is_absolute() else home / ".config") / tail)
        elif value := environ.get(head[1:]):
            return (cwd / value / tail if tail else cwd / value,)
    return tuple(paths)


def choose_file(
    paths: tuple[Path, ...], there: Callable[[Path], bool]
) -> tuple[Path, tuple[Path, ...]]:
    """Return the file to use, and the other files that exist: the first file that exists, or the
    first of all."""
    existing = [path for path in paths if there(path)]
    path = existing[0] if existing else paths[0]
    return path, tuple(other for other in existing if other != path)


# Our entry

DEFAULT_ORIGIN = "http://127.0.0.1:6270"
"""Origin of a gateway whose configuration does not set another one."""
DESKTOP_PATH: Mapping[Platform, tuple[str, ...]] = {
    "linux": ("/usr/local/bin", "/usr/bin", "/bin"),
    "darwin": ("/usr/bin", "/bin"),
}
"""Folders in which every desktop program finds commands, no matter how it was started."""
GOOSE_TIMEOUT_S = 300
_ABOUT = "Every MCP server of this machine, behind one endpoint"
_PASSING = re.compile(r"/(?:uv/archive-v\d+|\.cache/uv|Caches/uv|pipx/\.cache)/")
"""Folders from which tools run a program once, and which they clean up later."""
_OUR_PATH = re.compile(r"/mcp|/metamcp/[^/]+/mcp")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_ADDRESSES = ("url", "httpUrl", "serverUrl", "uri")
_COMPELLED = {"type", "command", "args", "cmd", *_ADDRESSES}
"""Keys that say where an entry leads; all other keys in our entry belong to the user."""


def command(
    script: str, *, platform: Platform, shared: bool, uvx: str | None, module: Sequence[str]
) -> tuple[str, ...]:
    """Return the command with which a client starts `metamcp`. `script`: path of the installed
    script, empty without one; `shared`: the file is for other machines too; `uvx`: its path, if it
    is installed; `module`: command that starts this installation without a script."""
    if shared:
        return ("metamcp",)
    if script and _PASSING.search(script) and uvx:
        return (uvx, "metamcp")
    if not script:
        return tuple(module)
    if str(PurePath(script).parent) in DESKTOP_PATH[platform]:
        return ("metamcp",)
    return (script,)


def entry(
    shape: Shape, name: str, *, words: Sequence[str] = (), url: str = ""
) -> dict[str, object]:
    """Return our entry in the shape of a client: for the command `words`, or for `url`."""
    program, args = (words[0], list(words[1:])) if words else ("", [])
    started: dict[str, object] = {"command": program, "args": args}
    if shape == "goose":
        leads: dict[str, object] = {"cmd": program, "args": args} if words else {"uri": url}
        return {
            "enabled": True,
            "type": "stdio" if words else "streamable_http",
            "name": name,
            "description": _ABOUT,
            **leads,
            "timeout": GOOSE_TIMEOUT_S,
        }
    if shape == "continue":
        far: dict[str, object] = {"type": "streamable-http", "url": url}
        return {"name": name, **({"type": "stdio", **started} if words else far)}
    if shape == "opencode":
        return (
            {"type": "local", "command": list(words)} if words else {"type": "remote", "url": url}
        )
    if shape in ("claude", "vscode"):
        return {"type": "stdio", **started} if words else {"type": "http", "url": url}
    if shape == "zed":
        return (
            {"source": "custom", **started, "env": {}}
            if words
            else {"source": "custom", "url": url}
        )
    if words:
        return started
    if shape == "cline":
        return {"type": "streamableHttp", "url": url}
    return {{"windsurf": "serverUrl", "gemini": "httpUrl"}.get(shape, "url"): url}


def can_http(shape: Shape) -> bool:
    """Whether an entry of this shape can have a URL."""
    return shape != "desktop"


def merge_entry(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return our entry with the user's additions and changes, but leading where `new` leads."""
    retained = {key: value for key, value in old.items() if key not in _COMPELLED}
    ahead = {key: value for key, value in new.items() if key in _COMPELLED or key not in retained}
    if set(ahead) | set(retained) == set(old):
        return {key: ahead.get(key, retained.get(key)) for key in old}  # in the order they stand in
    return {**ahead, **retained}


def target_of(values: Mapping[str, object]) -> tuple[tuple[str, ...], str]:
    """Return the command and the URL of an entry of any shape; one of them is empty."""
    read = client_entries.read(values, UNKNOWN_CLIENT, folder="", home="").values
    program, args = read.get("command"), list_of(read.get("args")) or []
    words = list_of(program) or ([program, *args] if program else [])
    return tuple(map(str, words)), str(read.get("url", ""))


def is_ours(words: Sequence[str], url: str, origins: Collection[str]) -> bool:
    """Whether an entry leads to this gateway. `words`, `url`: its command or its URL; `origins`: of
    the gateway, as `http://127.0.0.1:6270`."""
    if is_bridge(words):
        return True
    if not url:
        return False
    try:
        url_parts = urlsplit(url)
        local = url_parts.hostname in _LOOPBACK
    except ValueError:
        return False
    return (
        local
        and f"{url_parts.scheme}://{url_parts.netloc}" in origins
        and bool(_OUR_PATH.fullmatch(url_parts.path))
    )
