"""The MCP clients that MetaMCP can be installed in: where each keeps its servers on each platform.

Owns: the table of clients, and the choice between several files. Never: reading files, the content
of entries (`entries`). docs/clients.md has a row for each client, with a link to its documentation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["json", "toml", "yaml-list", "yaml-mapping"]
Shape = Literal[
    "claude", "desktop", "cursor", "vscode", "windsurf", "codex", "gemini", "zed", "cline",
    "continue", "goose", "opencode",
]  # fmt: skip
Scope = Literal["user", "project"]
Platform = Literal["linux", "darwin"]

_SUPPORT = "~/Library/Application Support"
_CLINE = "User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"


class FileUnfit(Exception):
    """A file that is valid but is not edited. The text follows the file's name in a sentence."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How a file keeps servers. `place`: keys down to the table or list of servers; `new`: text at
    the beginning of a file that we create."""

    shape: Shape
    format: Format
    place: tuple[str, ...]
    new: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProgram:
    """MCP client. `linux`, `darwin`: the user's own files, the preferred one first; `~` is the home
    directory, `$CONFIG` is XDG_CONFIG_HOME or ~/.config; a path with another variable is the only
    candidate when the variable is set. `project`: file in the folder of a project. `verb`,
    `verb_http`: the client's own command for the same, with {scope}, {name}, {command}, {url} and
    {json}."""

    name: str
    title: str
    kept: FileFormat
    linux: tuple[str, ...]
    darwin: tuple[str, ...]
    project: str = ""
    kept_in_project: FileFormat | None = None
    verb: str = ""
    verb_http: str = ""

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
    found: list[Path] = []
    for written in client.linux if platform == "linux" else client.darwin:
        head, _, rest = written.partition("/")
        if head == "~":
            found.append(home / rest)
        elif head == "$CONFIG":
            config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
            found.append((config if config.is_absolute() else home / ".config") / rest)
        elif value := environ.get(head[1:]):
            return (cwd / value / rest if rest else cwd / value,)
    return tuple(found)


def chosen(paths: tuple[Path, ...], there: Callable[[Path], bool]) -> tuple[Path, tuple[Path, ...]]:
    """Return the file to use, and the other files that exist: the first file that exists, or the
    first of all."""
    existing = [path for path in paths if there(path)]
    path = existing[0] if existing else paths[0]
    return path, tuple(other for other in existing if other != path)
