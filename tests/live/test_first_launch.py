"""`metamcp up` in a folder with another client's configuration, as a new user types it."""

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.client import Client
from tests.live.gateway import SERVER, free_port
from tests.waiting import until

pytestmark = pytest.mark.live

FAILS = "echo fatal: not a git repository >&2; echo npm notice run npm fund >&2; exit 3"


class Folder:
    """A working folder with a `.mcp.json`, and `metamcp up` in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self.home = path / "home"
        self.home.mkdir()
        mine = {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(path)}
        self.environment = {**os.environ, **mine}
        self.servers: dict[str, object] = {}
        self.add("My Echo")
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self, name: str, *flags: str) -> None:
        """Write the scripted server with these flags into the file."""
        self.servers[name] = {"command": SERVER[0], "args": [SERVER[1], *flags]}
        (self.path / ".mcp.json").write_text(json.dumps({"mcpServers": self.servers}))

    def names(self) -> set[str]:
        """The servers that are ready; none while no gateway answers."""
        done = self.metamcp(self.path, "status", "--json")
        if done.returncode not in (0, 3):
            return set()
        servers = json.loads(done.stdout)["servers"]
        return {server["name"] for server in servers if server["phase"] == "ready"}

    def answers(self) -> bool:
        """Does anybody listen?"""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def up(self, *flags: str, terminal: int | None = None) -> subprocess.Popen[bytes]:
        ports = ("--port", str(self.port), "--ops-listen", f"127.0.0.1:{free_port()}")
        stream = subprocess.PIPE if terminal is None else terminal
        process = subprocess.Popen(
            [sys.executable, "-m", "metamcp_supervisor", "up", *ports, *flags],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=stream,
            stderr=stream,
        )
        self.processes.append(process)
        return process

    def metamcp(self, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "metamcp_supervisor", *arguments],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.close()


def test_without_a_terminal_and_without_yes_nothing_is_started(folder: Folder) -> None:
    process = folder.up()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 77
    assert b"--yes" in out + err
    assert b"Traceback" not in out + err


@pytest.mark.promise("M105", "M16")
def test_one_command_beside_a_json_file_serves_its_servers(folder: Folder) -> None:
    process = folder.up("--yes")
    assert process.stdout is not None
    seen = b""
    while b"claude mcp add" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    assert f"http://127.0.0.1:{folder.port}/mcp".encode() in seen
    client = Client(folder.port)
    until(lambda: "my-echo__echo" in client.tools(), "the server is ready")
    assert client.text("my-echo__echo", text="hi") == "hi"
    client.close()
    added = folder.metamcp(folder.path, "add", "other", "--", "other")
    assert "the gateway that runs starts it after 'metamcp confirm'" in added.stderr


def test_a_server_that_is_taken_out_ends_at_once_and_one_that_is_new_waits_for_its_yes(
    folder: Folder,
) -> None:
    folder.add("second")
    folder.up("--yes")
    until(lambda: folder.names() == {"my-echo", "second"}, "both run")
    del folder.servers["second"]
    removed = folder.metamcp(folder.path, "remove", "second")
    assert removed.returncode == 0, removed.stderr
    until(lambda: folder.names() == {"my-echo"}, "it is gone")
    folder.metamcp(folder.path, "add", "third", "--", *SERVER)
    told = "the files are not in force, because the last reload was refused"
    until(lambda: told in folder.metamcp(folder.path, "status").stdout, "it is refused")
    assert "the last reload was refused" in folder.metamcp(folder.path, "doctor").stdout
    asked = folder.metamcp(folder.path, "confirm", "--yes")
    assert "third" in asked.stderr
    assert "my-echo" not in asked.stderr, "it is confirmed"
    until(lambda: folder.names() == {"my-echo", "third"}, "it runs")
    assert told not in folder.metamcp(folder.path, "status").stdout


def test_a_server_added_at_a_terminal_is_confirmed_there(folder: Folder) -> None:
    folder.up("--yes")
    until(folder.names, "the gateway runs")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "metamcp_supervisor", "add", "third", "--", *SERVER],
        cwd=folder.path,
        env=folder.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while b"Apply it?" not in seen:
        seen += os.read(ours, 4096)
    assert b"third" in seen
    os.write(ours, b"y\n")
    assert process.wait(timeout=30) == 0
    os.close(ours)
    until(lambda: folder.names() == {"my-echo", "third"}, "it runs")


def test_a_reload_names_a_new_server_with_a_mistake_and_starts_the_others(folder: Folder) -> None:
    folder.up("--yes")
    until(folder.names, "the gateway runs")
    folder.servers |= {"bad": {"command": SERVER[0], "args": "x"}}
    folder.add("third")
    done = folder.metamcp(folder.path, "reload", "--yes")
    assert done.returncode == 65
    assert "mcpServers.bad.args" in done.stderr
    until(lambda: "third" in folder.names(), "it runs")


@pytest.mark.promise("M105")
def test_on_a_terminal_the_exact_commands_are_shown_and_confirmed(folder: Folder) -> None:
    ours, theirs = pty.openpty()
    process = folder.up(terminal=theirs)
    os.close(theirs)
    seen = b""
    while b"?" not in seen:
        seen += os.read(ours, 4096)
    assert Path(SERVER[1]).name.encode() in seen
    os.write(ours, b"n\n")
    assert process.wait(timeout=30) != 0
    os.close(ours)


def test_down_ends_the_gateway_of_this_folder_and_no_other(folder: Folder) -> None:
    process = folder.up("--yes")
    until(folder.answers, "the gateway listens")
    elsewhere = folder.path / "elsewhere"
    elsewhere.mkdir()
    other = folder.metamcp(elsewhere, "down")
    assert other.returncode == 5
    assert "no gateway of this folder is running" in other.stderr
    assert str(folder.path / ".mcp.json") in other.stderr, "it says which one runs"
    own = folder.metamcp(folder.path, "down")
    assert (own.returncode, own.stdout) == (0, f"the gateway (process {process.pid}) has ended\n")
    assert process.wait(timeout=30) == 0


@pytest.mark.promise("M98")
def test_on_80_columns_names_stay_whole_and_a_server_that_fails_again_is_counted(
    folder: Folder,
) -> None:
    name = "sequential-thinking-of-the-whole-team"
    folder.servers.clear()
    folder.add(name)
    folder.servers["broken"] = {"command": "sh", "args": ["-c", FAILS]}
    (folder.path / ".mcp.json").write_text(json.dumps({"mcpServers": folder.servers}))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    folder.up("--yes", terminal=theirs)
    os.close(theirs)
    seen = b""
    while b"(\xc3\x974)" not in seen or b"Ctrl-C" not in seen:
        seen += os.read(ours, 4096)
    lasting = re.sub(r"[^\n]*\r\x1b\[K", "", seen.decode())  # that erases what stood in the line
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", lasting).replace("\r", "").splitlines()
    assert [line for line in shown if len(line.rstrip()) > 80] == []
    assert sum(name in line.split() for line in shown) == 2, shown
    words = " ".join("\n".join(shown).split())
    assert "on stderr: fatal: not a git repository" in words
    assert "'metamcp logs broken'" in words
    assert "(\N{MULTIPLICATION SIGN}3)" not in words
    os.close(ours)


@pytest.mark.promise("M95")
def test_a_command_in_a_reference_runs_only_when_its_file_is_confirmed(folder: Folder) -> None:
    ran = folder.path / "ran"

    def write(name: str) -> None:
        env = {"NOTE": f"${{cmd:sh -c 'echo {name} | tee -a {ran}'}}"}
        entry = {"command": SERVER[0], "args": [SERVER[1]], "env": env}
        (folder.path / ".mcp.json").write_text(json.dumps({"mcpServers": {"a": entry}}))

    folder.environment["METAMCP_WATCH"] = "false"  # else a write is a reload, soon
    write("one")
    assert folder.metamcp(folder.path, "config", "show").returncode == 0
    refused = folder.up()
    refused.communicate(timeout=30)
    assert refused.returncode == 77
    assert not ran.exists()
    folder.up("--yes")
    until(folder.answers, "the gateway listens")
    assert ran.read_text() == "one\n"
    write("two")
    assert folder.metamcp(folder.path, "ctl", "reload").returncode != 0
    assert ran.read_text() == "one\n"
    confirmed = folder.metamcp(folder.path, "confirm", "--yes")
    assert confirmed.returncode == 0, confirmed.stderr
    assert "cmd:sh -c 'echo two" in confirmed.stderr
    assert ran.read_text() == "one\ntwo\n"
    assert folder.metamcp(folder.path, "ctl", "reload").returncode == 0
    assert ran.read_text() == "one\ntwo\ntwo\n"
    assert folder.metamcp(folder.path, "ctl", "upgrade").returncode == 0
    until(folder.answers, "the next program listens")
    assert ran.read_text() == "one\ntwo\ntwo\n", "what was printed is kept"
    assert folder.metamcp(folder.path, "ctl", "reload").returncode == 0
    assert ran.read_text() == "one\ntwo\ntwo\ntwo\n"
