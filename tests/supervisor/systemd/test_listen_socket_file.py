"""The unix socket of the ops pages as a file: made, replaced, removed. Real sockets."""

import fcntl
import os
import socket
import stat
from pathlib import Path

import pytest

from metamcp_supervisor.config.config import UnixAddress
from metamcp_supervisor.systemd import listen
from metamcp_supervisor.systemd.listen import CannotBind

FLAG = "--ops-listen"


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    return UnixAddress(tmp_path / "ops.sock")


def test_a_socket_is_for_its_user_and_group_whatever_the_umask_is(address: UnixAddress) -> None:
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            with listen.bind_file(address, FLAG) as sock:
                found = os.stat(address.path)
                assert stat.filemode(found.st_mode) == "srw-rw----"
                assert os.umask(umask) == umask
                assert not sock.get_inheritable()
                assert not sock.getblocking()
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(address.path))
        finally:
            os.umask(before)


def test_what_a_dead_gateway_left_is_replaced(address: UnixAddress) -> None:
    listen.bind_file(address, FLAG).close()
    assert listen.is_dead(address, FLAG)
    with listen.bind_file(address, FLAG), pytest.raises(CannotBind):
        listen.is_dead(address, FLAG)


def test_a_socket_that_somebody_listens_on_is_refused_and_stays(address: UnixAddress) -> None:
    with listen.bind_file(address, FLAG):
        with pytest.raises(CannotBind) as caught:
            listen.bind_file(address, FLAG)
        words = f"{address.path}: process {os.getpid()} of user id {os.geteuid()} "
        assert str(caught.value).startswith(words)
        assert str(caught.value).endswith(
            "listens there; stop it, or choose another path with --ops-listen"
        )
        listen.remove(address)
        assert address.path.exists()


def test_somebody_who_is_slow_to_accept_listens_too(address: UnixAddress) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(address.path))
        busy.listen(0)
        first.connect(str(address.path))
        with pytest.raises(CannotBind, match="another process listens there"):
            listen.bind_file(address, FLAG)


def test_a_socket_that_another_one_is_just_making_is_not_taken_for_a_dead_one(
    address: UnixAddress,
) -> None:
    directory = os.open(address.path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as other:
        fcntl.flock(directory, fcntl.LOCK_EX)
        other.bind(str(address.path))
        with pytest.raises(CannotBind, match="another process has just locked that directory"):
            listen.bind_file(address, FLAG)
        listen.remove(address)
        assert address.path.exists()
        other.listen()
        os.close(directory)
        with pytest.raises(CannotBind, match="listens there"):
            listen.bind_file(address, FLAG)


def test_a_file_that_is_no_socket_stays_what_it_is(address: UnixAddress) -> None:
    address.path.write_text("mine")
    with pytest.raises(CannotBind, match=r"ops\.sock is there and no socket; choose another path"):
        listen.bind_file(address, FLAG)
    listen.remove(address)
    assert address.path.read_text() == "mine"


def test_what_a_link_leads_to_is_not_replaced(address: UnixAddress, tmp_path: Path) -> None:
    other = UnixAddress(tmp_path / "other.sock")
    listen.bind_file(other, FLAG).close()
    address.path.symlink_to(other.path)
    with pytest.raises(CannotBind, match="no socket"):
        listen.bind_file(address, FLAG)
    assert other.path.exists()


def test_a_place_where_none_can_be_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CannotBind, match=r"directory .*/no does not exist; make it, or choose"):
        listen.bind_file(UnixAddress(tmp_path / "no" / "ops.sock"), FLAG)
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotBind, match="Not a directory; choose another path with --ops-listen"):
        listen.bind_file(UnixAddress(tmp_path / "file" / "ops.sock"), FLAG)


def test_it_is_removed_at_the_end_and_a_missing_one_is_no_fault(
    address: UnixAddress,
) -> None:
    listen.remove(address)
    listen.bind_file(address, FLAG).close()
    listen.remove(address)
    assert not address.path.exists()
