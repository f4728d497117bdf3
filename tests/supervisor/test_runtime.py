import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from metamcp_supervisor import runtime
from metamcp_supervisor.control.control import Control
from metamcp_supervisor.runtime import AlreadyRunning, RuntimeDirUnfit
from tests.supervisor.small_gateway import SmallGateway, steered

OTHER_UID = 65534
CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
print(sock.makefile().readline())
"""


@pytest.fixture
def place() -> Generator[Path, None, None]:
    """An empty directory with a path that is short enough for a socket."""
    found = Path(tempfile.mkdtemp(prefix="metamcp-", dir="/tmp"))
    yield found
    shutil.rmtree(found)


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"METAMCP_RUNTIME_DIR": "/a", "RUNTIME_DIRECTORY": "/b", "XDG_RUNTIME_DIR": "/c"}, "/a"),
        ({"RUNTIME_DIRECTORY": "/run/b:/run/c", "XDG_RUNTIME_DIR": "/c"}, "/run/b"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/metamcp"),
        ({"TMPDIR": "/var/tmp"}, f"/tmp/metamcp-{os.geteuid()}"),
    ],
)
def test_gateway_and_ctl_meet_in_the_same_place(environ: dict[str, str], directory: str) -> None:
    assert runtime.default(environ) == directory


def test_a_missing_directory_is_made_for_the_owner_alone(place: Path) -> None:
    claim = runtime.claim(str(place / "new" / "run"))
    assert stat.S_IMODE((place / "new" / "run").stat().st_mode) == 0o700
    claim.release()


def test_only_one_gateway_gets_in_and_the_next_one_when_it_has_left(place: Path) -> None:
    first = runtime.claim(str(place))
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
        runtime.claim(str(place))
    first.release()
    first.release()
    second = runtime.claim(str(place))
    assert second.token != first.token
    second.release()
    assert os.listdir(place) == ["lock"]


def test_what_a_dead_gateway_left_is_replaced(place: Path) -> None:
    (place / "control.sock").touch()
    (place / "token").write_text("old")
    claim = runtime.claim(str(place))
    assert not (place / "control.sock").exists()
    assert (place / "token").read_text() == claim.token
    claim.release()


@pytest.mark.promise("M98")
def test_a_directory_that_others_may_write_to_is_refused(place: Path) -> None:
    place.chmod(0o770)
    with pytest.raises(RuntimeDirUnfit, match="chmod 700"):
        runtime.claim(str(place))
    assert list(place.iterdir()) == []


def test_a_path_that_no_socket_can_have_is_refused_with_its_length(place: Path) -> None:
    long = place / ("x" * 120)
    with pytest.raises(RuntimeDirUnfit, match=f"may have {runtime.SOCKET_PATH_BYTES_MAX} bytes"):
        runtime.claim(str(long))
    assert not long.exists()


def test_a_file_in_the_place_of_the_directory_is_a_sentence(place: Path) -> None:
    (place / "run").touch()
    with pytest.raises(RuntimeDirUnfit, match="choose another --runtime-dir"):
        runtime.claim(str(place / "run"))


async def test_a_second_gateway_leaves_the_first_one_alone() -> None:
    async with steered() as (gateway, directory):
        before = (directory / "token").read_text()
        with pytest.raises(AlreadyRunning):
            await Control(gateway, directory, "9.9").start()
        assert (directory / "token").read_text() == before


async def test_socket_and_token_go_with_the_gateway(place: Path) -> None:
    control = Control(SmallGateway(), place, "9.9")
    await control.start()
    assert (place / "control.sock").is_socket()
    await control.close()
    await control.close()
    assert os.listdir(place) == ["lock"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
async def test_another_user_is_refused_even_where_the_modes_let_him_in() -> None:
    async with steered() as (_, directory):
        directory.chmod(0o711)
        (directory / "control.sock").chmod(0o666)
        stranger = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CONNECT, str(directory / "control.sock"), str(OTHER_UID)),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(stranger.communicate(), 20)
        assert f"user id {OTHER_UID} may not steer".encode() in said
