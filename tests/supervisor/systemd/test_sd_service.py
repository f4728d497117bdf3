"""What a service tells, and when it does not: in this process, on real sockets."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metamcp_supervisor.config.config import Address, UnixAddress
from metamcp_supervisor.systemd import listen
from metamcp_supervisor.systemd.sd_notify import SystemdNotifier
from metamcp_supervisor.systemd.sd_service import Service, port_pairs
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_worker.ipc.spec import CALLBACK_PORT
from tests import waiting
from tests.supervisor.configs import config
from tests.supervisor.stage import until
from tests.supervisor.systemd.test_sd_service_status import server, status

pytestmark = pytest.mark.process


class Ear:
    """The socket of systemd, from `listen` on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def listen(self) -> None:
        self._socket.bind(str(self.path))

    def count(self, line: str) -> int:
        while True:
            try:
                self.heard += self._socket.recvfrom(4096)[0].decode().split("\n")
            except BlockingIOError:
                return self.heard.count(line)

    def close(self) -> None:
        self._socket.close()


def well() -> GatewayStatus:
    return status(server("git", "active"))


@asynccontextmanager
async def attending(
    ear: Ear, report: Callable[[], GatewayStatus] = well, watchdog_s: float = 0.0
) -> AsyncGenerator[tuple[Service, Journal], None]:
    journal = Journal(time.time)
    service = Service(SystemdNotifier(str(ear.path), watchdog_s), {}, report, journal)
    try:
        async with asyncio.timeout(30):
            service.start()
            yield service, journal
    finally:
        await service.close()
        ear.close()


def said(journal: Journal, words: str) -> list[str]:
    return [event.cause for event in journal.since(0) if words in event.cause]


async def test_readiness_is_told_again_until_it_arrives(tmp_path: Path) -> None:
    looked: list[int] = []

    def report() -> GatewayStatus:
        looked.append(1)
        return well()

    ear = Ear(tmp_path)
    async with attending(ear, report) as (service, _):
        await until(lambda: looked, "there was nobody to tell")
        ear.listen()
        await until(lambda: ear.count("READY=1"), "readiness arrives")
        service.notify_stopping()
        await until(lambda: ear.count("STOPPING=1"), "the end is told")
        assert ear.count("READY=1") == 1


async def test_a_loop_that_was_held_up_gives_no_sign_of_life_until_it_runs_again(
    tmp_path: Path,
) -> None:
    ear = Ear(tmp_path)
    ear.listen()
    async with attending(ear, watchdog_s=1.0) as (_, journal):
        await until(lambda: ear.count("WATCHDOG=1"), "a sign of life")
        start = time.monotonic()
        waiting.until(lambda: time.monotonic() > start + 1.0, "the loop is held up")
        await until(lambda: said(journal, "the event loop is"), "the journal says why")
        before = ear.count("WATCHDOG=1")
        await until(lambda: ear.count("WATCHDOG=1") > before, "it runs again")


async def test_a_fault_in_looking_is_told_once_and_is_no_sign_of_life(tmp_path: Path) -> None:
    faults = [RuntimeError("first"), RuntimeError("second")]

    def report() -> GatewayStatus:
        if faults:
            raise faults.pop(0)
        return well()

    ear = Ear(tmp_path)
    ear.listen()
    async with attending(ear, report, watchdog_s=1.0) as (_, journal):
        await until(lambda: ear.count("WATCHDOG=1"), "a sign of life after all")
        assert said(journal, "no sign of life") == [
            "no sign of life to systemd: RuntimeError('first')"
        ]


async def test_a_refused_reload_is_over_and_a_dry_run_is_none(tmp_path: Path) -> None:
    ear = Ear(tmp_path)
    ear.listen()
    async with attending(ear) as (service, _):
        await until(lambda: ear.count("READY=1"), "it is ready")
        with pytest.raises(ValueError, match="no"):
            async with service.report_reload(announced=True):
                raise ValueError("no")
        async with service.report_reload(announced=False):
            pass
        assert (ear.count("RELOADING=1"), ear.count("READY=1")) == (1, 2)
        refused = "STATUS=1 of 1 servers ready; the last reload was refused"

        def told() -> bool:
            ear.count("")
            return any(line.startswith(refused) for line in ear.heard)

        await until(told, "the refusal is in the status")


async def test_listeners_that_do_not_fit_are_given_up_and_forgotten(tmp_path: Path) -> None:
    ear = Ear(tmp_path)
    ear.listen()
    old = listen.bind(Address("127.0.0.1", 0), "--listen")
    port = listen.address_of(old).port
    service = Service(SystemdNotifier(str(ear.path)), {"stored-ops": old}, well, Journal(time.time))
    try:
        sockets, address = service.ops(Address("127.0.0.2", port))
        assert address == Address("127.0.0.2", port)
        assert (ear.count("FDSTOREREMOVE=1"), ear.count("FDSTORE=1")) == (1, 1)
        assert old[0].fileno() == -1
        sockets[0].close()
    finally:
        await service.close()
        ear.close()


async def test_a_unix_socket_takes_the_place_of_a_kept_port_and_is_not_kept(tmp_path: Path) -> None:
    ear = Ear(tmp_path)
    ear.listen()
    old = listen.bind(Address("127.0.0.1", 0), "--listen")
    address = UnixAddress(tmp_path / "ops.sock")
    service = Service(SystemdNotifier(str(ear.path)), {"stored-ops": old}, well, Journal(time.time))
    try:
        (sock,), found = service.ops(address)
        assert found == address
        assert (ear.count("FDSTOREREMOVE=1"), ear.count("FDSTORE=1")) == (1, 0)
        sock.close()
    finally:
        await service.close()
        ear.close()
    assert not address.path.exists()


async def test_a_unix_socket_of_systemd_stays_when_the_gateway_ends(tmp_path: Path) -> None:
    path = tmp_path / "ops.sock"
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    service = Service(SystemdNotifier(), {"ops": [made]}, well, Journal(time.time))
    (sock,), found = service.ops(Address("127.0.0.1", 6271))
    assert (sock, found) == (made, UnixAddress(path))
    sock.close()
    await service.close()
    assert path.exists()


def test_no_gateway_takes_the_port_to_which_browsers_come_back() -> None:
    nobody_chose = config(movable=frozenset({"listen", "ops_listen"})).gateway
    pairs = [(str(one), str(two)) for one, two in port_pairs(nobody_chose, None)]
    assert pairs[:2] == [("127.0.0.1:6270", "127.0.0.1:6271"), ("127.0.0.1:6274", "127.0.0.1:6275")]
    assert f"127.0.0.1:{CALLBACK_PORT}" not in {one for pair in pairs for one in pair}
