"""A home directory with the files that clients have in theirs, and our verbs in it."""

import contextlib
import os
from pathlib import Path

from click.testing import CliRunner, Result

from metamcp_supervisor.__main__ import main

CLAUDE = """{
  "numStartups": 12,
  "tipsHistory": {"new-user-warmup": 3},
  "mcpServers": {
    "context7": {
      "type": "http",
      "url": "https://mcp.context7.com/mcp"
    }
  },
  "projects": {
    "/home/me/work": {
      "allowedTools": [],
      "mcpServers": {}
    }
  }
}"""
DESKTOP = """{
  "globalShortcut": "",
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me"]
    }
  }
}
"""
VSCODE = """{
\t// Servers for every project
\t"servers": {
\t\t"github": {
\t\t\t"type": "http",
\t\t\t"url": "https://api.githubcopilot.com/mcp/", // signs in by itself
\t\t},
\t},
\t"inputs": [
\t\t{"type": "promptString", "id": "key", "description": "A key", "password": true},
\t],
}
"""
CODEX = """model = "gpt-5.1"   # the usual one
approval_policy = "on-request"

[mcp_servers.docs]
command = "npx"
args = [
    "-y",
    "@upstash/context7-mcp",  # documentation
]

[mcp_servers.docs.env]
LOG = "info"

[projects."/home/me/work"]
trust_level = "trusted"
"""
ZED = """// Zed settings
//
// For information, see the documentation: https://zed.dev/docs/configuring-zed
{
  "ui_font_size": 16,
  "theme": {
    "mode": "system",
    "dark": "One Dark",
  },
  /* nothing of MCP yet */
}
"""
CONTINUE = """name: Local Config
version: 1.0.0
schema: v1
models:
  - name: Mine
    provider: ollama
    model: qwen3
    systemMessage: |
      Be short.
      mcpServers: are described below
# What it may use
mcpServers:
  - name: SQLite MCP
    command: npx
    args:
      - "-y"
      - "mcp-sqlite"   # a package
    env:
      DB: ${{ secrets.DB_URL }}
context:
  - provider: code
"""
GOOSE = """active_provider: anthropic
GOOSE_MODE: "smart_approve"
extensions:
  developer:
    bundled: true
    enabled: true
    name: developer
    timeout: 300
    type: builtin

  # from the shop
  fetch:
    type: stdio
    name: fetch
    enabled: true
    cmd: uvx
    args: ["mcp-server-fetch"]
    envs: {}
"""
OPENCODE = """{
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    "jira": {"type": "remote", "url": "https://jira.example.com/mcp", "enabled": false},
  },
}
"""
FILES = {
    "claude-code": (".claude.json", CLAUDE),
    "claude-desktop": (".config/Claude/claude_desktop_config.json", DESKTOP),
    "cursor": (".cursor/mcp.json", DESKTOP.replace("\n", "\r\n")),
    "vscode": (".config/Code/User/mcp.json", "\ufeff" + VSCODE),
    "windsurf": (".codeium/windsurf/mcp_config.json", '{"mcpServers":{"a":{"command":"b"}}}'),
    "codex": (".codex/config.toml", CODEX),
    "gemini-cli": (".gemini/settings.json", '{\n    "security": {"auth": {}}\n}'),
    "zed": (".config/zed/settings.json", ZED),
    "cline": (".cline/data/settings/cline_mcp_settings.json", '{\n  "mcpServers": {\n  }\n}\n'),
    "continue": (".continue/config.yaml", CONTINUE),
    "goose": (".config/goose/config.yaml", GOOSE),
    "opencode": (".config/opencode/opencode.json", OPENCODE),
}
"""Below the home directory on Linux: as these programs write them, and as people change them."""


class Home:
    """One in `folder`, with nothing in it. No gateway runs unless `runtime_dir` has one."""

    def __init__(self, folder: Path, runtime_dir: str = "") -> None:
        self.folder = folder / "home"
        self.project = folder / "project"
        self.config = Path()
        for made in (self.folder, self.project):
            made.mkdir()
        self.environ = {
            "HOME": str(self.folder),
            "METAMCP_RUNTIME_DIR": runtime_dir or str(folder / "run"),
        }

    def with_config(self, text: str) -> "Home":
        """And a configuration of a gateway, which is named."""
        self.config = self.folder.parent / "metamcp.toml"
        self.config.write_text(text)
        self.environ["METAMCP_CONFIG"] = str(self.config)
        return self

    def fill(self, client: str) -> Path:
        """Its file, as it is there in life."""
        name, text = FILES[client]
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def run(self, *arguments: str) -> Result:
        """`metamcp` with these arguments, in the folder of the project."""
        off = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME",
               "CLINE_MCP_SETTINGS_PATH", "METAMCP_CONFIG")  # fmt: skip
        cleared: dict[str, str | None] = dict.fromkeys(off)
        with contextlib.chdir(self.project):
            return CliRunner().invoke(main, arguments, env={**cleared, **self.environ})

    def works(self, *arguments: str) -> str:
        """What it printed, all of it."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def listing(self) -> set[str]:
        """Every file that is there, by its path below the home directory."""
        found = (path for path in self.folder.rglob("*") if os.path.lexists(path))
        return {str(path.relative_to(self.folder)) for path in found if not path.is_dir()}
