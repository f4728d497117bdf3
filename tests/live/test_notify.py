"""The true binary as systemd starts it: a socket to notify, and sockets to listen on."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M81")]

ACTIVATE = str(ROOT / "tests" / "fakes" / "activate.py")


class Systemd:
    """The other end of NOTIFY_SOCKET. `lines`: everything it was told, `kept`: sockets by name."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.lines: list[str] = []
        self.kept: dict[str, socket.socket] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(self.path))

    def was_told(self, start: str) -> list[str]:
        """The lines that begin so, of all that came until now."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, 65536, 64)
            except BlockingIOError:
                return [line for line in self.lines if line.startswith(start)]
            lines = data.decode().split("\n")
            self.lines += lines
            for fd in fds:
                name = next(line for line in lines if line.startswith("FDNAME="))
                self.kept[name.partition("=")[2]] = socket.socket(fileno=fd)

    def close(self) -> None:
        for sock in (self._socket, *self.kept.values()):
            sock.close()


class Attended(Gateway):
    """A gateway that is a service of `systemd`. `given`: listeners by name."""

    def __init__(self, systemd: Systemd, watchdog_s: float = 0.0, **settings: Any) -> None:
        super().__init__({"git": fake()}, **settings)
        self.systemd = systemd
        self.watchdog_s = watchdog_s
        self.given: dict[str, socket.socket] = {}

    def start(self) -> None:
        fds = [sock.fileno() for sock in self.given.values()]
        names = ":".join(self.given)
        activate = [sys.executable, ACTIVATE, ",".join(map(str, fds)), names] if fds else []
        environ = {**os.environ, "NOTIFY_SOCKET": str(self.systemd.path)}
        if self.watchdog_s:
            environ["WATCHDOG_USEC"] = str(int(self.watchdog_s * 1e6))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *activate,
                    *self.command("serve", "--config", self.config),
                    *("--state-dir", str(self.folder / "state")),
                    *("--listen", f"127.0.0.1:{self.port}"),
                    *("--ops-listen", self.ops_listen),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                env={**environ, "METAMCP_TEST_GATEWAY": self.folder.name},
                cwd=ROOT,
            )
        self.wait_ready()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path)
    yield made
    made.close()


def echo(port: int) -> str:
    client = Client(port, MODERN)
    try:
        return client.text("git__echo", text="hello")
    finally:
        client.close()


def test_readiness_status_reload_and_the_end_are_told_in_their_order(systemd: Systemd) -> None:
    with Attended(systemd) as gateway:
        until(lambda: systemd.was_told("READY=1"), "readiness is told")
        until(lambda: systemd.was_told("STATUS=1 of 1 servers ready"), "the status is told")
        gateway.ctl("reload")
        until(lambda: len(systemd.was_told("READY=1")) == 2, "the reload is over")
        gateway.config.write_text("[servers.git]\ncommand = 7\n")
        gateway.ctl("reload", ok=(65,))
        until(lambda: "was refused" in systemd.was_told("STATUS=")[-1], "the refusal is told")
        gateway.ctl("reload", "--dry-run", ok=(65,))
        assert gateway.stop() == 0
    systemd.was_told("")
    order = [line for line in systemd.lines if line.endswith("=1") and "FDSTORE" not in line]
    reload = ["RELOADING=1", "READY=1"]
    assert order == ["READY=1", *reload, *reload, "STOPPING=1"]
    assert len(systemd.was_told("MONOTONIC_USEC=")) == 2
    assert systemd.was_told("EXTEND_TIMEOUT_USEC=")


@pytest.mark.promise("M79")
def test_an_upgrade_is_told_as_a_reload_and_signs_of_life_go_on(systemd: Systemd) -> None:
    with Attended(systemd, watchdog_s=5.0) as gateway:
        until(lambda: systemd.was_told("READY=1"), "readiness is told")
        kept, before = dict(systemd.kept), gateway.pid
        gateway.ctl("upgrade")
        until(lambda: len(systemd.was_told("READY=1")) == 2, "the new program is ready")
        assert len(systemd.was_told("RELOADING=1")) == 1
        signs = len(systemd.was_told("WATCHDOG=1"))
        until(lambda: len(systemd.was_told("WATCHDOG=1")) > signs, "a sign of life")
        assert systemd.kept == kept
        assert gateway.status()["pid"] == before
        assert echo(gateway.port) == "hello"
        for pid in gateway.left() - {before}:
            assert b"NOTIFY_SOCKET=" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_servers_learn_nothing_of_what_is_between_systemd_and_the_gateway(
    systemd: Systemd,
) -> None:
    with Attended(systemd, watchdog_s=30.0) as gateway:
        for pid in gateway.left() - {gateway.pid}:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"NOTIFY_SOCKET=" not in environ
            assert b"WATCHDOG_USEC=" not in environ


def test_signs_of_life_come_again_and_again(systemd: Systemd) -> None:
    with Attended(systemd, watchdog_s=1.0):
        until(lambda: len(systemd.was_told("WATCHDOG=1")) >= 4, "signs of life")


def test_a_killed_gateway_leaves_its_listeners_to_the_next_one(systemd: Systemd) -> None:
    with Attended(systemd) as gateway:
        until(lambda: systemd.was_told("FDNAME=stored-ops"), "the listeners are given to keep")
        assert gateway.process is not None
        gateway.process.kill()
        gateway.process.wait(10)
        until(lambda: not gateway.left(), "nothing of the first one is left")
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=5):
            pass  # nobody serves, and nobody is refused
        gateway.given = systemd.kept
        gateway.start()
        assert echo(gateway.port) == "hello"
        goes_on = re.findall(r'"cause":"[\w-]+: goes on with the sockets', gateway.log.read_text())
        assert len(goes_on) == 2
        assert len(systemd.was_told("FDSTORE=1")) == 2  # of the first one: nothing is kept twice


def test_the_listener_of_a_socket_unit_is_used_and_shown(systemd: Systemd) -> None:
    gateway = Attended(systemd)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gateway.given = {"mcp-http": listener}
        port = listener.getsockname()[1]
        with gateway:
            assert echo(port) == "hello"
            assert gateway.status()["url"] == f"http://127.0.0.1:{port}/mcp"
            assert systemd.was_told("FDNAME=") == ["FDNAME=stored-ops"]


@pytest.mark.parametrize(
    ("host", "listens", "words"),
    [("0.0.0.0", True, "other machines could reach"), ("127.0.0.1", False, "does not listen")],
)
def test_a_socket_that_must_not_be_used_ends_the_start_with_one_sentence(
    systemd: Systemd, host: str, listens: bool, words: str
) -> None:
    gateway = Attended(systemd)
    with socket.socket() as sock:
        sock.bind((host, 0))
        if listens:
            sock.listen()
        gateway.given = {"mcp-http": sock}
        with pytest.raises(AssertionError, match=words), gateway:
            pass
        assert gateway.process is not None
        assert gateway.process.wait(10) == 69
