"""Sockets that a process is started with, real ones."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamcp_supervisor.config.config import Address, UnixAddress
from metamcp_supervisor.systemd import listen, sd_sockets
from metamcp_supervisor.systemd.sd_sockets import SocketUnusable, take

ME = os.getpid()
ACTIVATE = str(Path(__file__).parents[2] / "fakes" / "activate.py")


def environ(count: int, names: str, pid: int = ME) -> dict[str, str]:
    return {"LISTEN_PID": str(pid), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": names, "A": "b"}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_a_listener_comes_by_its_name_and_is_kept_from_children(listener: socket.socket) -> None:
    fd = os.dup(listener.fileno())
    os.set_inheritable(fd, True)
    said = environ(1, "mcp-http")
    (sock,) = take(said, ME, fd)["mcp-http"]
    with sock:
        assert said == {"A": "b"}
        assert sock.getsockname() == listener.getsockname()
        assert not sock.get_inheritable()
        assert not sock.getblocking()


def test_one_socket_without_a_name_of_ours_is_for_clients(listener: socket.socket) -> None:
    found = take(environ(1, "gateway.socket"), ME, os.dup(listener.fileno()))
    assert list(found) == ["mcp-http"]
    sd_sockets.close(found)


def test_what_is_meant_for_another_process_is_left_alone(listener: socket.socket) -> None:
    said = environ(1, "mcp-http", pid=ME + 1)
    assert take(said, ME, listener.fileno()) == {}
    assert said == {"A": "b"}
    assert listener.getsockname()
    assert take({}, ME) == {}


def test_metrics_and_health_may_be_on_a_unix_socket_of_systemd(tmp_path: Path) -> None:
    path = str(tmp_path / "ops.sock")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
        made.listen()
        (sock,) = take(environ(1, "ops"), ME, os.dup(made.fileno()))["ops"]
        with sock:
            assert listen.any_address_of([sock]) == UnixAddress(Path(path))
        with pytest.raises(SocketUnusable, match=r"mcp-http .* is not a socket of the internet"):
            take(environ(1, "mcp-http"), ME, os.dup(made.fileno()))


def test_a_unix_socket_without_a_file_is_refused() -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("\0metamcp-test-ops")
        made.listen()
        words = "without a file, which has no permissions; use .* or ListenStream=/PATH"
        with pytest.raises(SocketUnusable, match=words):
            take(environ(1, "ops"), ME, os.dup(made.fileno()))


def test_a_unix_socket_whose_path_nobody_can_be_told_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(bytes(tmp_path) + b"/\xff")
        made.listen()
        with pytest.raises(SocketUnusable, match="is a unix socket whose path cannot be shown"):
            take(environ(1, "ops"), ME, os.dup(made.fileno()))


@pytest.mark.process
def test_several_sockets_have_names_of_ours() -> None:
    code = (
        "import os; from metamcp_supervisor.systemd import sd_sockets as i;"
        "found = i.take(os.environ, os.getpid());"
        "print(sorted((n, len(s)) for n, s in found.items()), 'LISTEN_FDS' in os.environ);"
        "i.close(found)"
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        fds = (one.fileno(), two.fileno())
        said = subprocess.run(
            [sys.executable, ACTIVATE, ",".join(map(str, fds)), "mcp-http:stored-ops",
             sys.executable, "-c", code],
            pass_fds=fds, capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert said.stdout.strip() == "[('mcp-http', 1), ('stored-ops', 1)] False"


@pytest.mark.parametrize(
    ("family", "kind", "listens", "words"),
    [
        (socket.AF_INET, socket.SOCK_STREAM, False, "does not listen"),
        (socket.AF_INET, socket.SOCK_DGRAM, False, "is not a stream socket"),
        (socket.AF_UNIX, socket.SOCK_STREAM, False, "is not a socket of the internet"),
    ],
)
def test_what_is_no_listener_is_refused_and_closed(
    family: int, kind: int, listens: bool, words: str
) -> None:
    sock = socket.socket(family, kind)
    fd = sock.detach()
    with pytest.raises(SocketUnusable, match=f"mcp-http .*{words}"):
        take(environ(1, "mcp-http"), ME, fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_what_is_no_socket_has_an_unknown_name_or_is_too_much_is_refused() -> None:
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(SocketUnusable, match="is not a socket"):
        take(environ(1, "ops"), ME, read)
    with pytest.raises(SocketUnusable, match=r"the name 'unknown'; .*FileDescriptorName=mcp-http"):
        take(environ(2, "mcp-http"), ME, 2_000)
    with pytest.raises(SocketUnusable, match="65 sockets, and 64 are the limit"):
        take(environ(65, ""), ME, 2_000)


def test_kept_sockets_fit_the_address_that_they_were_bound_for() -> None:
    sockets = listen.bind(Address("localhost", 0), "--listen")
    port = sockets[0].getsockname()[1]
    for address, expected in (
        (Address("localhost", port), True),
        (Address("localhost", 0), True),
        (Address("localhost", port + 1), False),
        (Address("0.0.0.0", port), False),
        (Address("no-such-host.invalid", port), False),
    ):
        assert listen.fits(address, sockets) is expected, address
    for sock in sockets:
        sock.close()


def test_a_port_that_is_given_up_is_free_although_a_copy_is_open() -> None:
    (sock,) = listen.bind(Address("127.0.0.1", 0), "--listen")
    port = listen.address_of([sock]).port
    with sock.dup():
        listen.give_up([sock])
        for again in listen.bind(Address("0.0.0.0", port), "--listen"):
            again.close()
