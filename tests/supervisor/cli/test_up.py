"""`metamcp up` and `serve` at the prompt: what is printed, and how a start fails."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from msgspec import structs

from metamcp_supervisor.cli.output import first_screen, start_text
from metamcp_supervisor.control import client
from metamcp_supervisor.verbs import GatewayStatus, ServerStatus
from tests.waiting import until

SERVERS = (
    ServerStatus(name="git", state="active", phase="ready", generation=1, tools=9, token_cost=321,
                 start_s=0.4),
    ServerStatus(name="bad", state="error", phase="failed", generation=1, reason="spawn",
                 message="no program 'nope'\x1b[2J"),
)  # fmt: skip
STATUS = GatewayStatus(
    version="1", pid=1, state="active", up_s=1.0, url="http://127.0.0.1:6270/mcp",
    ops_url="http://127.0.0.1:6271", config_hash="x", config_files=(), config_age_s=1.0,
    state_dir="/state",
    nursery_pid=2, fronts=(), servers=SERVERS,
    endpoints={"default": "http://127.0.0.1:6270/metamcp/default/mcp"},
)  # fmt: skip


def test_the_first_screen_says_where_to_connect_and_what_failed() -> None:
    out = first_screen(STATUS)
    assert "claude mcp add --transport http metamcp http://127.0.0.1:6270/mcp" in out
    pasted = out[out.index("{") : out.rindex("}") + 1]
    assert json.loads(pasted)["mcpServers"]["metamcp"]["url"] == "http://127.0.0.1:6270/mcp"
    assert "9 tools, about 321 tokens" in out
    assert "spawn: no program 'nope'" in out
    assert "\x1b" not in out, "a server's words never reach a terminal as they are"


@pytest.mark.promise("M117")
@pytest.mark.parametrize(
    ("file", "verb"),
    [
        ("/p/.mcp.json", "metamcp install claude-code --take-over"),
        ("/p/.vscode/mcp.json", "metamcp install vscode --take-over"),
        ("/p/metamcp.toml", ""),
        ("/p/servers.json", ""),
    ],
)
def test_the_first_screen_names_servers_that_a_client_starts_as_well(file: str, verb: str) -> None:
    out = first_screen(structs.replace(STATUS, config_files=(file,)))
    out = " ".join(out.split())
    assert ("starts git, bad a second time" in out) == bool(verb)
    assert verb in out


@pytest.mark.process
@pytest.mark.parametrize("port", ["abc", "65536"])
def test_a_port_that_cannot_be_one_is_refused_under_its_own_name(tmp_path: Path, port: str) -> None:
    command = [sys.executable, "-m", "metamcp_supervisor", "up", "--port", port]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert f"--port is a number from 0 to 65535, not '{port}'" in done.stderr


@pytest.mark.promise("M38")
def test_the_first_screen_says_what_would_save_tokens_where_there_are_many() -> None:
    assert "--tokens" not in first_screen(STATUS)
    crowded = tuple(structs.replace(one, token_cost=9_000) for one in STATUS.servers)
    out = first_screen(structs.replace(STATUS, servers=crowded))
    assert "tokens of definitions; 'metamcp tools --tokens' says what would save most of" in out


@pytest.mark.promise("M109")
def test_the_start_of_many_servers_is_one_line_without_control_characters() -> None:
    waiting = [
        ServerStatus(name=f"s{number}", state="warming", phase="warming", generation=1)
        for number in range(30)
    ]
    status = structs.replace(STATUS, servers=(*STATUS.servers, *waiting))
    said = start_text(status, {"s1": "Downloading\x1b[2J"}, 7)
    assert said == ("2 of 32 started, 7 s; waits for s0, s1 (Downloading\\x1b[2J), s2, s3, 26 more")


def test_the_first_screen_says_how_to_get_metrics_from_a_unix_socket() -> None:
    assert "Metrics      http://127.0.0.1:6271/metrics\n" in first_screen(STATUS)
    out = first_screen(structs.replace(STATUS, ops_url="unix:/my run/ops.sock"))
    assert "Metrics      curl --unix-socket '/my run/ops.sock' http://localhost/metrics\n" in out


@pytest.mark.parametrize(
    ("verb", "config", "flags", "code", "word"),
    [
        ("serve", "", ("--listen", "unix:x"), 65, "cannot be a unix socket"),
        ("serve", "", ("--listen", "127.0.0.1:0", "--ops-listen", "unix:no/x"), 69, "directory"),
        ("up", "[servers.a]\ncomand = 1\n", (), 65, "did you mean 'command'"),
        ("serve", "", ("--listen", "nowhere"), 65, "--listen"),
        ("serve", "", ("--runtime-dir", "/proc/nothing"), 77, "--runtime-dir"),
        ("up", "", ("--fronts", "17"), 65, "must be from 1 to 16"),
    ],
)
def test_a_start_that_fails_is_sentences_and_an_exit_code(
    tmp_path: Path, verb: str, config: str, flags: tuple[str, ...], code: int, word: str
) -> None:
    (tmp_path / "metamcp.toml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", verb, "--config", "metamcp.toml",
         "--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state"), *flags],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr


#: Makes its standard input the terminal of a new session, as a terminal window does, and becomes
#: the command.
IN_A_WINDOW = (
    "import fcntl, os, signal, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "signal.signal(signal.SIGHUP, signal.Handlers(int(sys.argv[1])))\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
)


@contextmanager
def started(
    folder: Path,
    verb: str,
    *,
    out: int | None = None,
    err: IO[bytes] | int | None = None,
    terminal: int | None = None,
    hangup: signal.Handlers = signal.SIG_DFL,
    warns: bool = False,
) -> Generator[subprocess.Popen[bytes], None, None]:
    """A gateway with one server that cannot start, in its own folder; killed at the end.

    `terminal`: of which it is the foreground. `hangup`: what its parent made of SIGHUP. `warns`:
    there is a warning about its configuration.
    """
    config = folder / "metamcp.toml"
    config.write_text('[servers.bad]\ncommand = ["no-such-program"]\n')
    config.chmod(0o646 if warns else 0o644)
    where = ("--config", "metamcp.toml", "--runtime-dir", "run", "--state-dir", "state",
             "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")  # fmt: skip
    window = () if terminal is None else ("-c", IN_A_WINDOW, str(int(hangup)))
    with subprocess.Popen(
        [sys.executable, *window, "-m", "metamcp_supervisor", verb, *where],
        cwd=folder,
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stdout=out if terminal is None else terminal,
        stderr=err if terminal is None else terminal,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(folder: Path) -> None:
    """Wait until the server has failed and the front serves."""
    with client.connect_within(str(folder / "run"), 20.0) as gateway:

        def settled() -> bool:
            found = gateway.call("status")
            return b'"state":"active"' in found and b'"phase":"failed"' in found

        until(settled, "the gateway is up")


def events(folder: Path) -> bytes:
    with client.connect_within(str(folder / "run"), 20.0) as gateway:
        return b"\n".join(params for _, params in gateway.stream("events", {}, follow=False))


@pytest.mark.process
@pytest.mark.parametrize("verb", ["up", "serve"])
def test_a_reader_that_leaves_does_not_disturb_the_gateway(tmp_path: Path, verb: str) -> None:
    read, write = os.pipe()
    out, err = (write, subprocess.PIPE) if verb == "up" else (None, write)
    with started(tmp_path, verb, out=out, err=err) as process:
        os.close(write)
        assert os.read(read, 1)
        os.close(read)
        ready(tmp_path)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors or b"") == (0, b"")


@pytest.mark.process
@pytest.mark.parametrize("verb", ["up", "serve"])
def test_a_warning_on_a_full_disk_does_not_end_the_gateway(tmp_path: Path, verb: str) -> None:
    with open("/dev/full", "wb") as full, started(tmp_path, verb, warns=True, err=full) as process:
        ready(tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.process
def test_a_terminal_that_is_stopped_does_not_hold_up_the_gateway(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while os.write(write, b"x" * 65536):
            pass
    except BlockingIOError:
        os.set_blocking(write, True)  # it is full now, and nobody reads
    with started(tmp_path, "up", out=write) as process:
        ready(tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    os.close(read)
    os.close(write)


@pytest.mark.process
def test_a_gateway_on_a_terminal_ends_when_the_terminal_is_closed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with started(tmp_path, "up", terminal=theirs) as process:
        os.close(theirs)
        ready(tmp_path)
        os.close(ours)
        assert process.wait(20) == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("verb", "hangup"),
    [("serve", signal.SIG_DFL), ("up", signal.SIG_IGN)],
    ids=["a service", "under nohup"],
)
def test_a_gateway_that_is_to_outlive_its_terminal_takes_a_hangup_for_a_reload(
    tmp_path: Path, verb: str, hangup: signal.Handlers
) -> None:
    ours, theirs = pty.openpty()
    with started(tmp_path, verb, terminal=theirs, hangup=hangup) as process:
        os.close(theirs)
        ready(tmp_path)
        os.close(ours)
        until(lambda: b'"reloaded"' in events(tmp_path), "the reload")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.process
def test_a_gateway_without_a_terminal_takes_a_hangup_for_a_reload(tmp_path: Path) -> None:
    with started(tmp_path, "up", out=subprocess.DEVNULL, err=subprocess.DEVNULL) as process:
        ready(tmp_path)
        process.send_signal(signal.SIGHUP)
        until(lambda: b'"reloaded"' in events(tmp_path), "the reload")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.process
def test_descriptors_that_were_closed_at_the_start_are_never_written_to(tmp_path: Path) -> None:
    shell = 'exec "$@" 0<&- 1>&- 2>&-'
    (tmp_path / "metamcp.toml").write_text('[servers.bad]\ncommand = ["no-such-program"]\n')
    command = [sys.executable, "-m", "metamcp_supervisor", "serve", "--config", "metamcp.toml",
               "--runtime-dir", "run", "--state-dir", "state", "--listen", "127.0.0.1:0",
               "--ops-listen", "127.0.0.1:0"]  # fmt: skip
    with subprocess.Popen(["/bin/sh", "-c", shell, "sh", *command], cwd=tmp_path) as process:
        try:
            ready(tmp_path)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
