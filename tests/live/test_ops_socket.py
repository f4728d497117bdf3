"""Metrics and health on a unix socket, with the true binary."""

import json
import re
import shlex
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import unixhttp
from tests.live.client import Client
from tests.live.gateway import ROOT, fake
from tests.live.test_notify import Attended, Systemd, systemd
from tests.live.upgradable import Upgradable
from tests.waiting import until

__all__ = ["systemd"]

pytestmark = [pytest.mark.live, pytest.mark.promise("M86")]

HEALTH = ("/livez", "/readyz", "/healthz", "/startupz")
DOCUMENTED = "/run/metamcp/ops.sock"
COMMANDS = re.findall(
    rf"^curl .*--unix-socket {DOCUMENTED} .*$",
    (ROOT / "docs" / "observability.md").read_text(),
    re.MULTILINE,
)


class OnSocket(Upgradable):
    """A gateway whose metrics and health are at `path`."""

    def __init__(
        self,
        servers: Mapping[str, Any] | None = None,
        *,
        path: Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(servers or {"git": fake()}, **settings)
        self.path = path or self.folder / "ops.sock"
        self.ops_listen = f"unix:{self.path}"

    def ops(self, path: str) -> tuple[int, str]:
        return unixhttp.get(self.path, path)


@pytest.fixture
def gateway() -> Iterator[OnSocket]:
    with OnSocket() as running:
        yield running


def test_health_and_metrics_are_on_the_socket_and_on_no_port(gateway: OnSocket) -> None:
    for page in HEALTH:
        assert gateway.ops(page) == (200, "ok\n"), page
    code, text = gateway.ops("/metrics")
    assert code == 200
    assert {"metamcp_up", "metamcp_process_open_fds"} <= {
        family.name for family in text_string_to_metric_families(text)
    }
    assert stat.filemode(gateway.path.stat().st_mode) == "srw-rw----"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", gateway.ops_port), timeout=5)
    assert gateway.status()["ops_url"] == f"unix:{gateway.path}"
    (found,) = [
        check
        for check in json.loads(gateway.ctl("doctor", "--json", ok=(0, 1)))["checks"]
        if check["check"] == "listen"
    ]
    assert found["text"] == f"{gateway.url} and unix:{gateway.path} are the gateway's"
    assert gateway.stop() == 0
    assert not gateway.path.exists()


def test_readiness_is_lost_and_told_on_the_socket() -> None:
    with OnSocket({"git": {**fake(), "required": True}}) as gateway:
        gateway.ctl("stop", "git", "--wait")
        code, text = gateway.ops("/readyz")
        assert code == 503
        assert "[-]server:git" in text
        assert gateway.ops("/livez")[0] == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands are for curl")
def test_the_documented_commands_work(gateway: OnSocket) -> None:
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        arguments = shlex.split(command.replace(DOCUMENTED, str(gateway.path)))
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "ok\n" or "metamcp_up 1.0" in done.stdout


def test_the_file_of_a_killed_gateway_is_replaced(gateway: OnSocket) -> None:
    assert gateway.process is not None
    gateway.process.kill()
    gateway.process.wait(10)
    until(lambda: not gateway.left(), "nothing of the first one is left")
    assert gateway.path.exists()
    assert gateway.ops("/livez") == (0, "")
    gateway.start()
    assert gateway.ops("/readyz") == (200, "ok\n")
    assert gateway.stop() == 0
    assert not gateway.path.exists()


def test_an_upgrade_keeps_the_socket_and_the_last_program_removes_it(gateway: OnSocket) -> None:
    made = gateway.path.stat().st_ino
    gateway.upgrade()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(gateway.path))
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert gateway.path.stat().st_ino == made
    assert all(gateway.ops(page)[0] == 200 for page in (*HEALTH, "/metrics"))
    assert gateway.status()["ops_url"] == f"unix:{gateway.path}"
    assert gateway.status()["upgrades"] == 1
    assert gateway.stop() == 0
    assert not gateway.path.exists()


def test_a_second_gateway_with_the_same_path_is_refused_and_the_first_goes_on(
    gateway: OnSocket,
) -> None:
    with OnSocket(path=gateway.path, wait=False) as second:
        assert second.process is not None
        assert second.process.wait(30) == 69
        words = f"{gateway.path}: process {gateway.pid} of user id "
        assert words in second.log.read_text()
        assert "listens there; stop it, or choose another path" in second.log.read_text()
    assert gateway.ops("/readyz") == (200, "ok\n")
    client = Client(gateway.port)
    assert client.text("git__echo", text="still") == "still"
    client.close()


def test_a_unix_socket_of_a_unit_is_used_and_left_to_systemd(systemd: Systemd) -> None:
    class Lent(Attended):
        def ops(self, path: str) -> tuple[int, str]:
            return unixhttp.get(self.folder / "lent.sock", path)

    gateway = Lent(systemd)
    path = gateway.folder / "lent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        gateway.given = {"ops": listener}
        with gateway:
            assert gateway.ops("/readyz") == (200, "ok\n")
            assert gateway.status()["ops_url"] == f"unix:{path}"
            assert systemd.was_told("FDNAME=") == ["FDNAME=stored-mcp-http"]
            gateway.ctl("upgrade")
            assert gateway.ops("/readyz") == (200, "ok\n")
            assert gateway.stop() == 0
            assert path.exists()
