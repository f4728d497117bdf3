"""`metamcp install CLIENT --take-over`: the client's servers move behind the gateway and back."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.live import processes
from tests.live.bridge import Bridge
from tests.live.gateway import fake
from tests.waiting import until

pytestmark = pytest.mark.live

SECRET = "sk-ant-abcdefghijklmnop1234567890"


class Developer:
    """A home and a project with files of Claude Code, and what was started from there."""

    def __init__(self, path: Path) -> None:
        self.home, self.project = path / "home", path / "project"
        for folder in (self.home, self.project):
            folder.mkdir()
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(path),
            "METAMCP_TEST_GATEWAY": path.name,
        }
        self.mark = path.name

    def write(self, path: Path, servers: dict[str, Any], **others: Any) -> bytes:
        text = json.dumps({**others, "mcpServers": servers}, indent=3) + "\n\n"
        path.write_text(text)
        return text.encode()

    def metamcp(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "metamcp_supervisor", *arguments],
            cwd=self.project,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def loads(self, path: Path, *place: str) -> dict[str, Any]:
        """The servers that the client starts for this table of its file."""
        found = json.loads(path.read_text())
        for key in (*place, "mcpServers"):
            found = found[key]
        servers: dict[str, Any] = found
        return servers

    def client(self, entry: dict[str, Any]) -> Bridge:
        """What the client starts for our entry."""
        assert entry["args"][0] == "connect"
        return Bridge(*entry["args"][1:], folder=self.project, env=self.environment)

    def close(self) -> None:
        def gone() -> bool:
            left = processes.marked(self.mark)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            return not left

        until(gone, "nothing is left")


@pytest.fixture
def developer(tmp_path: Path) -> Iterator[Developer]:
    made = Developer(tmp_path)
    yield made
    made.close()


def entry(command: list[str], **others: Any) -> dict[str, Any]:
    return {"command": command[0], "args": command[1:], **others}


@pytest.mark.promise("M117")
def test_servers_of_all_files_move_behind_one_entry_and_back(developer: Developer) -> None:
    mine, project = developer.home / ".claude.json", developer.project / ".mcp.json"
    command = fake()["command"]
    before = developer.write(
        project,
        {"alpha": entry(command, env={"API_TOKEN": SECRET}), "beta": entry(command)},
    )
    local = {str(developer.project): {"mcpServers": {"delta": entry(command)}}}
    own = developer.write(mine, {"gamma": entry(command)}, projects=local, startups=3)

    refused = developer.metamcp("install", "claude-code", "--take-over", code=1)
    assert "repeat it with --yes" in refused
    assert SECRET not in developer.metamcp("install", "claude-code", "--take-over", "--dry-run")
    assert (project.read_bytes(), mine.read_bytes()) == (before, own)
    assert not (developer.project / "metamcp.toml").exists()

    output = developer.metamcp("install", "claude-code", "--take-over", "--yes")
    assert 'now (exposure "search")' in output
    assert developer.loads(project).keys() == {"metamcp"}
    assert developer.loads(mine).keys() == {"metamcp"}
    here = developer.loads(mine, "projects", str(developer.project))
    assert here.keys() == {"metamcp"}
    config = (developer.project / "metamcp.toml").read_text()
    assert SECRET not in config
    own_config = (developer.home / ".config/metamcp/metamcp.toml").read_text()
    assert "length_max = 50" in own_config, "mcp__metamcp__ stands before each name"
    (secret,) = (developer.home / ".config/metamcp/secrets").rglob("API_TOKEN")
    assert secret.read_text() == SECRET
    assert secret.stat().st_mode & 0o777 == 0o600

    until(lambda: not processes.marked(developer.mark), "the gateway ended with its last client")
    with developer.client(developer.loads(project)["metamcp"]) as bridge:
        assert bridge.text("alpha__echo", text="shared") == "shared"
    with developer.client(here["metamcp"]) as bridge:
        assert "search_tools" in bridge.tools()
        for server in ("alpha", "beta", "gamma", "delta"):
            assert bridge.text(f"{server}__echo", text=server) == server
        environ = json.loads(bridge.text("alpha__environ"))["environ"]
        assert environ["API_TOKEN"] == SECRET

    again = developer.metamcp("install", "claude-code", "--take-over", "--yes", code=1)
    assert "no server here that can be taken over" in again
    mine.write_bytes(mine.read_bytes().replace(b'"startups": 3', b'"startups": 4'))
    developer.metamcp("uninstall", "claude-code")
    assert project.read_bytes() == before
    assert mine.read_bytes() == own.replace(b'"startups": 3', b'"startups": 4')


def test_what_cannot_be_edited_is_told_before_anything_is_written(developer: Developer) -> None:
    project, config = developer.project / ".mcp.json", developer.project / "metamcp.toml"
    before = developer.write(project, {"a": entry(fake()["command"])})
    config.write_text("[servers\n")
    told = developer.metamcp("install", "claude-code", "--take-over", "--yes", code=65)
    assert "metamcp.toml:1: Expected" in told
    config.write_text("[servers.strange]\ncommand = ['touch', 'ran']\n")
    told = developer.metamcp("install", "claude-code", "--take-over", code=77)
    assert "its commands are not confirmed" in told
    config.unlink()
    for servers in ({"metamcp": entry(["other"])}, {"metamcp": {"command": 7}, "a": entry(["x"])}):
        before = developer.write(project, servers)
        told = developer.metamcp("install", "claude-code", "--take-over", "--yes", code=1)
        assert "has a server 'metamcp'; choose another --name" in told
    assert project.read_bytes() == before
    assert not config.exists()


def test_a_server_that_fails_is_named_and_few_tools_stay_in_view(developer: Developer) -> None:
    project = developer.project / ".cursor/mcp.json"
    project.parent.mkdir()
    before = developer.write(
        project, {"few": entry([*fake()["command"]]), "broken": entry(["false"])}
    )
    output = developer.metamcp(
        "install", "cursor", "--take-over", "--yes", "--exposure", "all", "--scope", "project"
    )
    assert "warning: broken: " in output
    assert 'now (exposure "all")' in output
    developer.metamcp("uninstall", "cursor", "--scope", "project")
    assert project.read_bytes() == before
