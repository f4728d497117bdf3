"""Which files are read, and one sentence for each that is not."""

import os
import stat
from pathlib import Path

import pytest

from metamcp_supervisor.config import files
from metamcp_supervisor.config.references import Unresolved
from tests.supervisor.configs import loaded, messages

NOBODY = 65534


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe{\x00", "is not UTF-8 text (byte 0)"),
        (b"a = 1\0", "has NUL characters in it"),
        (b"#" * (files.CONFIG_BYTES_MAX + 1), "is larger than 4194304 bytes"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "metamcp.toml").write_bytes(content)
    (message,) = messages(tmp_path)
    assert words in message


def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("link")
    for name, words in (
        (".", "is a directory; name a file"),
        ("fifo", "is a FIFO, not a regular file"),
        ("/dev/zero", "is a device, not a regular file"),
        ("link", "cannot be opened"),
        ("nothing", "does not exist"),
        ("n" * 5000, "cannot be opened"),
    ):
        (message,) = messages(tmp_path, name=name)
        assert words in message


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metamcp.toml").touch(0o200)
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)  # root may read everything
    try:
        (message,) = messages(tmp_path)
    finally:
        os.seteuid(me)
    assert message == "metamcp.toml: may not be read by this user"


def test_a_byte_order_mark_and_a_link_are_fine(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b'\xef\xbb\xbf[servers.a]\ncommand = ["x"]\n')
    (tmp_path / "metamcp.toml").symlink_to("real")
    assert list(loaded(tmp_path).servers) == ["a"]


def test_a_file_that_everybody_may_write_gives_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "metamcp.toml"
    path.write_text('[servers.a]\ncommand = ["x"]\n')
    path.chmod(0o666)
    (warning,) = loaded(tmp_path).warnings
    assert "every user of this machine may change it" in warning


@pytest.mark.promise("M95")
def test_a_secret_comes_from_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    assert files.secret(path) == "s3cret"
    found = loaded(tmp_path, '[servers.a]\ncommand = ["x"]\nenv = {T = "${file:token}"}\n')
    assert found.servers["a"].env == {"T": "s3cret"}
    assert "s3cret" not in repr(found)


def test_a_secret_that_others_could_read_or_exchange_is_refused(tmp_path: Path) -> None:
    open_to_all, link, large = tmp_path / "open", tmp_path / "link", tmp_path / "large"
    open_to_all.write_text("x")
    open_to_all.chmod(0o640)
    link.symlink_to("open")
    large.write_bytes(b"x" * (files.SECRET_BYTES_MAX + 1))
    large.chmod(0o600)
    for path, words in (
        (open_to_all, "chmod 600"),
        (link, "cannot be opened"),
        (large, "is larger than"),
        (tmp_path / "nothing", "does not exist"),
    ):
        with pytest.raises(Unresolved, match=words):
            files.secret(path)


@pytest.mark.promise("M95")
def test_a_credential_may_be_read_by_the_group_and_changed_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o440)  # as systemd makes it
    assert files.credential(str(tmp_path), "token") == "s3cret"
    for mode in (0o444, 0o460):
        path.chmod(mode)
        with pytest.raises(Unresolved, match="token may be read or changed by others"):
            files.credential(str(tmp_path), "token")


@pytest.mark.promise("M95")
def test_an_empty_secret_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n")
    path.chmod(0o400)
    with pytest.raises(Unresolved, match="token is empty"):
        files.secret(path)
    with pytest.raises(Unresolved, match="the credential token is empty"):
        files.credential(str(tmp_path), "token")


def test_a_key_of_the_gateway_is_made_once_and_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "a.key"
    key = files.own_key(path, 32)
    assert len(key) == 32
    assert files.own_key(path, 32) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("ab\n")
    with pytest.raises(ValueError, match="has 1 bytes, not 32"):
        files.own_key(path, 32)
    path.chmod(0o644)
    with pytest.raises(Unresolved, match="run 'chmod 600' on it"):
        files.own_key(path, 32)
    path.unlink()
    with pytest.raises(Unresolved, match="does not exist"):
        files.own_key(path, 32, make=False)
