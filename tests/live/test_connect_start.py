"""`metamcp connect --start`: a gateway in the background, one however many ask for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from metamcp_supervisor import runtime
from tests.live import processes
from tests.live.bridge import Bridge
from tests.live.client import LEGACY, MODERN
from tests.live.gateway import SERVER, free_port
from tests.waiting import until

pytestmark = pytest.mark.live


class Folder:
    """A folder with a configuration, and everything that was started from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = path.name
        self.environment = {
            "HOME": str(path),
            "METAMCP_RUNTIME_DIR": str(path / "run"),
            "METAMCP_STATE_DIR": str(path / "state"),
            "METAMCP_LISTEN": f"127.0.0.1:{free_port()}",
            "METAMCP_OPS_LISTEN": f"127.0.0.1:{free_port()}",
            "METAMCP_TEST_GATEWAY": self.mark,
        }
        self.config = path / "metamcp.toml"
        program, script = SERVER
        self.config.write_text(f"[servers.alpha]\ncommand = ['{program}', '{script}']\n")

    def bridge(self, *arguments: str, era: str = LEGACY) -> Bridge:
        return Bridge(*arguments, folder=self.path, era=era, env=self.environment)

    def named(self, era: str = LEGACY, *arguments: str) -> Bridge:
        return self.bridge("--start", "--config", str(self.config), *arguments, era=era)

    def gateways(self) -> set[int]:
        """The supervisors that run."""
        found: set[int] = set()
        for pid in processes.marked(self.mark):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"metamcp_supervisor" in words and b"serve" in words:
                found.add(pid)
        return found

    def metamcp(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "metamcp_supervisor", *arguments],
            cwd=self.path,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        for pid in self.gateways():
            with suppress(ProcessLookupError):  # some end by themselves
                os.kill(pid, signal.SIGTERM)
        until(lambda: not processes.marked(self.mark), "nothing is left")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.close()


@pytest.mark.promise("M5")
def test_a_gateway_that_is_kept_stays_when_the_client_leaves(folder: Folder) -> None:
    with folder.named(LEGACY, "--keep") as one:
        assert one.text("alpha__echo", text="a") == "a"
    (gateway,) = folder.gateways()
    assert os.getsid(gateway) == gateway
    with folder.named(MODERN) as one:
        assert one.text("alpha__echo", text="b") == "b"
    with folder.bridge() as one:
        assert "alpha__echo" in one.tools()
    assert folder.gateways() == {gateway}
    done = folder.metamcp("down", "--json")
    assert json.loads(done.stdout) == {"v": 1, "pid": gateway, "ended": True}
    assert not folder.gateways()
    assert folder.metamcp("down").returncode == 5


@pytest.mark.promise("M5")
def test_a_gateway_ends_after_its_last_client_and_the_next_one_starts_another(
    folder: Folder,
) -> None:
    first = folder.named()
    first.initialize()
    with folder.bridge(era=MODERN) as other:
        (gateway,) = folder.gateways()
        first.process.kill()
        assert first.close() == -signal.SIGKILL
        assert other.text("alpha__echo", text="here") == "here"
        clients = runtime.Clients(str(folder.path / "run"))
        assert not clients.none_left(and_none_more=False)
        clients.close()
        assert folder.gateways() == {gateway}
    until(lambda: not folder.gateways(), "the gateway has ended by itself")
    with folder.named() as one:
        assert one.text("alpha__echo", text="again") == "again"
        assert gateway not in folder.gateways()


def test_servers_alone_and_two_options_give_the_three_tools_of_a_gateway(folder: Folder) -> None:
    program, script = SERVER
    servers = folder.path / "servers.json"
    servers.write_text(json.dumps({"alpha": {"command": program, "args": [script]}}))
    shown = ("--exposure", "servers", "--naming", "bare")
    with folder.bridge("--start", "--config", str(servers), *shown) as one:
        assert sorted(one.tools()) == ["gateway_activate", "gateway_deactivate", "gateway_status"]
        one.text("gateway_activate", name="alpha")
        assert "echo" in one.tools()


@pytest.mark.promise("M7")
def test_what_install_writes_finds_the_gateway_from_anywhere(folder: Folder) -> None:
    done = folder.metamcp("install", "cursor", "--yes")
    assert done.returncode == 0, done.stderr
    entry = json.loads((folder.path / ".cursor/mcp.json").read_text())["mcpServers"]["metamcp"]
    _, *arguments = entry["args"]
    elsewhere = folder.path / "elsewhere"
    elsewhere.mkdir()
    del folder.environment["METAMCP_RUNTIME_DIR"]
    for _ in range(2):
        with Bridge(*arguments, folder=elsewhere, env=folder.environment) as one:
            assert one.text("alpha__echo", text="a") == "a"
    assert len(folder.gateways()) == 1


@pytest.mark.promise("M5")
def test_five_at_once_start_one(folder: Folder) -> None:
    bridges = [folder.named(era) for era in (LEGACY, MODERN, LEGACY, MODERN, LEGACY)]
    pids: set[tuple[str, str]] = set()
    for one in bridges:
        with one:
            pids.add((one.era, one.text("alpha__pid")))
    assert len(pids) == 2, "a process for each era"
    until(lambda: len(folder.gateways()) == 1, "the others have given up")


def test_what_was_only_found_here_is_not_started_unconfirmed(folder: Folder) -> None:
    one = folder.bridge("--start")
    assert one.close() == 77
    assert "--yes" in one.told
    assert one.told.count("\n") == 1
    assert not folder.gateways()


def test_a_gateway_that_cannot_start_says_why(folder: Folder) -> None:
    folder.config.write_text("[servers.alpha]\n")
    one = folder.named()
    assert one.close() == 65
    assert "alpha" in one.told
    folder.config.write_text("[gateway]\nlisten = 'example.com:80'\n")
    del folder.environment["METAMCP_LISTEN"]
    one = folder.named()
    assert one.close() != 0
    assert "Traceback" not in one.told


@pytest.mark.promise("M5")
def test_initialize_is_answered_beside_servers_that_hang_crash_or_take_their_time(
    folder: Folder,
) -> None:
    """No server is waited for. A list waits a few seconds, and the rest follows with news of it."""
    odd = {"hangs": ["--hang"], "crashes": ["--exit-after", "1"], "slow": ["--slow-start", "9000"]}
    for name, flags in odd.items():
        with folder.config.open("a") as config:
            config.write(f"[servers.{name}]\ncommand = {[*SERVER, *flags]}\n")
    with folder.named() as one:
        servers = json.loads(folder.metamcp("ctl", "status", "--json").stdout)["servers"]
        states = {server["name"]: server["state"] for server in servers}
        assert (states["hangs"], states["slow"]) == ("warming", "warming")
        listed = one.tools()
        assert "alpha__echo" in listed
        assert "slow__echo" not in listed
        until(lambda: told_of_tools(one), "the client hears that there are more tools")
        until(lambda: "slow__echo" in one.tools(), "the slow one is among them")


def told_of_tools(bridge: Bridge) -> bool:
    """Whether the client hears that the list of tools has changed; its next message says so."""
    seen = [message.get("method") for message in bridge.seen]
    if "notifications/tools/list_changed" not in seen:
        bridge.request("ping", {})
    return "notifications/tools/list_changed" in seen


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_client_that_lists_once_gets_all_tools_of_servers_that_were_never_met(
    folder: Folder, era: str
) -> None:
    quick = [f"quick{number}" for number in range(8)]
    commands = [f"[servers.{name}]\ncommand = {list(SERVER)}\n" for name in quick]
    folder.config.write_text("".join(commands))
    for _ in range(2):  # nobody has met them, and they are known
        with folder.named(era) as one:
            assert {f"{name}__echo" for name in quick} <= set(one.tools())
        until(lambda: not folder.gateways(), "it ended with its client")
