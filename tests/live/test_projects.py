"""Two projects side by side, without a flag: each has a gateway, a state and ports of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import programs
from tests.live.client import Client
from tests.live.gateway import SERVER
from tests.waiting import until

pytestmark = pytest.mark.live


class Machine:
    """A home with project folders; `metamcp` in them is run as a user types it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {**os.environ, "HOME": str(path), "XDG_RUNTIME_DIR": str(path)}
        self.gateways: list[subprocess.Popen[str]] = []

    def project(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir()
        servers = {name: {"command": SERVER[0], "args": [SERVER[1]]}}
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        return folder

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return programs.run([*programs.PROGRAM, *words], cwd=folder, env=self.environ)

    def up(self, folder: Path) -> int:
        """The port that the first screen prints."""
        process = subprocess.Popen(
            [sys.executable, "-m", "metamcp_supervisor", "up", "--yes"],
            cwd=folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.gateways.append(process)
        assert process.stdout is not None
        seen = ""
        while not (found := re.search(r"Endpoint +http://127.0.0.1:(\d+)/mcp", seen)):
            line = process.stdout.readline()
            assert line, seen
            seen += line
        return int(found[1])

    def end(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="metamcp-") as path:
        made = Machine(Path(path))
        yield made
        for process in made.gateways:
            if process.poll() is None:
                made.end(process)


def test_a_second_project_needs_no_flag_and_each_is_found_from_its_folder(
    machine: Machine,
) -> None:
    web, api = machine.project("web"), machine.project("api")
    ports = [machine.up(web), machine.up(api)]
    for folder, port in zip((web, api), ports, strict=True):
        client = Client(port)
        assert f"{folder.name}__echo" in client.tools()
        client.close()
        status = json.loads(machine.run(folder, "ctl", "status", "--json").stdout)
        assert [server["name"] for server in status["servers"]] == [folder.name]
        assert status["url"] == f"http://127.0.0.1:{port}/mcp"
    state = machine.path / ".local/state/metamcp/projects"
    assert sorted(each.name[:4] for each in state.iterdir()) == ["api-", "web-"]

    outside = machine.run(machine.path, "ctl", "status")
    assert outside.returncode == 2
    assert all(f"{folder}/.mcp.json (pid " in outside.stderr for folder in (web, api))
    machine.end(machine.gateways[0])
    lone = machine.run(machine.path, "ctl", "status", "--json")
    assert json.loads(lone.stdout)["url"].endswith(f":{ports[1]}/mcp")
    missing = machine.run(web, "ctl", "status")
    assert missing.returncode == 5  # never the gateway of another project
    assert f"{api}/.mcp.json (pid {machine.gateways[1].pid})" in missing.stderr
    assert machine.up(web) == ports[0]  # where clients know it


@pytest.mark.promise("M16")
@pytest.mark.parametrize(
    ("switches", "kept"),
    [({"excludeTools": ["echo"]}, False), ({"includeTools": ["ec*"]}, True)],
)
def test_a_tool_that_its_user_excluded_in_his_client_is_served_to_nobody(
    machine: Machine, switches: dict[str, list[str]], kept: bool
) -> None:
    folder = machine.project("web")
    path = folder / ".mcp.json"
    values = json.loads(path.read_text())
    values["mcpServers"]["web"] |= switches
    path.write_text(json.dumps(values))
    client = Client(machine.up(folder))
    tools = set(client.tools())
    assert ("web__echo" in tools) is kept
    assert bool(tools - {"web__echo"}) is not kept
    answer = client.request("tools/call", {"name": "web__echo", "arguments": {"text": "a"}})
    assert ("result" in answer) is kept
    client.close()


def test_a_state_directory_has_one_gateway_and_the_refusal_names_it(machine: Machine) -> None:
    web, api = machine.project("web"), machine.project("api")
    machine.up(web)
    (state,) = (machine.path / ".local/state/metamcp/projects").iterdir()
    refused = machine.run(api, "up", "--yes", "--state-dir", str(state))
    assert refused.returncode == 75
    owner = machine.gateways[0]
    assert f"a gateway (pid {owner.pid}) already keeps its state in {state};" in refused.stderr
    owner.kill()
    owner.communicate(timeout=60)
    until(lambda: not _held(state), "what is left of the gateway ends")
    machine.gateways.append(
        subprocess.Popen(
            [sys.executable, "-m", "metamcp_supervisor", "up", "--yes", "--state-dir", str(state)],
            cwd=api,
            env=machine.environ,
            text=True,
        )
    )
    until(lambda: _held(state), "the next one has it")


def _held(state: Path) -> bool:
    import fcntl

    with (state / "owner").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
