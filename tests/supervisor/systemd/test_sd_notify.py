"""Messages to systemd, on real datagram sockets."""

import os
import secrets
import socket
from pathlib import Path

import pytest

from metamcp_supervisor.systemd import sd_notify
from metamcp_supervisor.systemd.sd_notify import SystemdNotifier


def listening(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(address)
    sock.settimeout(30)
    return sock


@pytest.mark.parametrize("abstract", [False, True])
def test_lines_arrive_as_one_datagram_by_path_and_by_abstract_name(
    tmp_path: Path, abstract: bool
) -> None:
    name = f"@metamcp-{secrets.token_hex(8)}" if abstract else str(tmp_path / "notify")
    with listening(f"\0{name[1:]}" if abstract else name) as systemd:
        told = SystemdNotifier(name)
        assert told.has_manager
        assert told.send(sd_notify.READY, sd_notify.status("2 of 2\nservers ready"))
        assert systemd.recvfrom(4096)[0] == b"READY=1\nSTATUS=2 of 2 servers ready"
        told.close()
        assert not told.has_manager


def test_descriptors_go_with_their_name(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with listening(path) as systemd, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        told = SystemdNotifier(path)
        assert told.send(sd_notify.store("mcp-http"), fds=[listener.fileno()])
        data, fds, _, _ = socket.recv_fds(systemd, 4096, 8)
        told.close()
        assert data == b"FDSTORE=1\nFDNAME=mcp-http"
        with socket.socket(fileno=fds[0]) as kept:
            assert kept.getsockname() == listener.getsockname()


def test_the_environment_says_it_once(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    environ = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "7", "PATH": "/"}
    told = SystemdNotifier.take(environ, pid=7)
    assert environ == {"PATH": "/"}
    assert (told.has_manager, told.watchdog_s) == (True, 2.5)
    told.close()


@pytest.mark.parametrize(
    ("period", "meant", "expected"),
    [("1000000", "", 1.0), ("1000000", "8", 0.0), ("often", "7", 0.0), ("", "7", 0.0)],
)
def test_a_watchdog_for_another_process_is_not_ours(
    period: str, meant: str, expected: float
) -> None:
    environ = {"WATCHDOG_USEC": period, "WATCHDOG_PID": meant}
    assert SystemdNotifier.take(environ, pid=7).watchdog_s == expected
    assert environ == {}


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "notify", "/no/such/socket", "/a\0b"])
def test_nobody_who_listens_is_no_error(address: str) -> None:
    told = SystemdNotifier(address)
    assert told.send(sd_notify.READY) is not told.has_manager
    told.close()
    assert told.send(sd_notify.READY)


def test_a_manager_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with listening(path):
        told = SystemdNotifier(path)
        sent = [told.send(sd_notify.status("x" * 400)) for _ in range(2000)]
        assert sent[0]
        assert not sent[-1]
        told.close()


def test_the_messages_have_the_form_of_the_protocol() -> None:
    kind, clock = sd_notify.build_reloading_message().split("\n")
    assert kind == "RELOADING=1"
    assert clock.removeprefix("MONOTONIC_USEC=").isdecimal()
    assert sd_notify.longer(1.5) == "EXTEND_TIMEOUT_USEC=1500000"
    assert sd_notify.forget("ops") == "FDSTOREREMOVE=1\nFDNAME=ops"
    assert len(sd_notify.status("x" * 9999)) == len("STATUS=") + sd_notify.STATUS_CHARACTERS_MAX


def test_a_machine_is_run_by_systemd_when_it_says_so(tmp_path: Path) -> None:
    assert not sd_notify.is_booted(str(tmp_path))
    os.makedirs(tmp_path / "run/systemd/system")
    assert sd_notify.is_booted(str(tmp_path))
