"""Databases that are no good: broken, exchanged, read-only, locked, on a full disk."""

import asyncio
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from metamcp_supervisor.store.database import FILE, DatabaseFile, StoreError
from metamcp_supervisor.views.ledger import Delta
from metamcp_supervisor.views.store import Store
from metamcp_worker.ipc.disclosure import DisclosureState, ToolSet, ViewContent
from tests.supervisor.locker import locked
from tests.supervisor.stored import ANN, DEV, EQUIPPED, ME, PUT, read, sql, written

pytestmark = pytest.mark.process

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that any user can get to."""
    made = Path(tempfile.mkdtemp(prefix="metamcp-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    made.chmod(0o755)
    shutil.rmtree(made)


# Files that are no good


def newer(folder: Path) -> None:
    sql(folder, "PRAGMA user_version = 7")


def foreign(folder: Path) -> None:
    (folder / FILE).unlink()
    sql(folder, "CREATE TABLE mail (body TEXT)")


def garbage(folder: Path) -> None:
    (folder / FILE).write_bytes(b"this is no database\n" * 100)


def torn(folder: Path) -> None:
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[: len(whole) // 3])


def no_json(folder: Path) -> None:
    sql(folder, "UPDATE toolset SET body = '{\"name\":'")


def other_json(folder: Path) -> None:
    sql(folder, "UPDATE view SET body = '{\"tools\":[[1,2]]}'")


def emptied(folder: Path) -> None:
    os.truncate(folder / FILE, 0)


def fifo(folder: Path) -> None:
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)


def directory(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / FILE).mkdir()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (newer, "it is of version 7, and this program knows versions up to 4"),
        (foreign, "it belongs to another program"),
        (garbage, "file is not a database"),
        (torn, "database disk image is malformed"),
        (no_json, "Input data was truncated"),
        (other_json, "Expected `str`, got `int` - at `$.tools[0][0]`"),
        (directory, "metamcp.db is not a regular file"),
        (fifo, "metamcp.db is not a regular file"),
        (emptied, "it is empty, and what was in it is lost"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason_and_left_alone(
    spoil: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    asyncio.run(written(tmp_path, PUT))
    spoil(tmp_path)
    path = tmp_path / FILE
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError) as found:
        asyncio.run(read(tmp_path))
    assert str(found.value) == (
        f"{path} cannot be read, so it stays as it is: {why}; repair it, or move it away to begin"
        " anew"
    )
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


async def test_a_state_directory_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StoreError, match=r"metamcp.db cannot be read, .*: Not a directory; "):
        await read(tmp_path / "state")


@pytest.mark.parametrize("exchanged", [True, False])
async def test_a_file_that_is_not_the_one_that_was_read_is_never_written(
    exchanged: bool, tmp_path: Path
) -> None:
    store = Store(DatabaseFile(tmp_path))
    await store.read(())
    await store.write(PUT)
    (tmp_path / FILE).rename(tmp_path / "away")
    if exchanged:
        await written(tmp_path, Delta(((ANN, EQUIPPED),)))
    with pytest.raises(StoreError) as found:
        await store.write(Delta(((ME, ViewContent()),), drop="dev"))
    await store.close()
    assert str(found.value) == (
        f"{tmp_path / FILE} cannot be written: it is gone, or another file than before; restart"
        " the gateway"
    )
    left = await read(tmp_path)
    assert left == (DisclosureState(((ANN, EQUIPPED),), ()) if exchanged else DisclosureState())


async def test_a_file_that_appears_where_there_was_none_is_never_written(tmp_path: Path) -> None:
    store = Store(DatabaseFile(tmp_path))
    assert await store.read(()) == DisclosureState()
    await written(tmp_path, PUT)
    with pytest.raises(StoreError, match="it is gone, or another file than before"):
        await store.write(Delta(((ANN, EQUIPPED),)))


# Disks


@pytest.fixture
def nobody() -> Iterator[Callable[[], None]]:
    """Root may write everything: from then on this process is somebody else."""
    me = os.geteuid()

    def become() -> None:
        if me == 0:
            os.seteuid(NOBODY)

    try:
        yield become
    finally:
        os.seteuid(me)


async def test_a_read_only_file_is_read_and_not_written(
    folder: Path, nobody: Callable[[], None]
) -> None:
    await written(folder, PUT)
    os.chmod(folder / FILE, 0o444)
    os.chmod(folder, 0o555)
    nobody()
    store = Store(DatabaseFile(folder))
    assert await store.read(()) == DisclosureState(((ME, EQUIPPED),), (DEV,))
    with pytest.raises(StoreError) as found:
        await store.write(Delta(((ME, ViewContent()),)))
    assert str(found.value) == (
        f"{folder / FILE} cannot be written: attempt to write a readonly database"
    )
    assert await store.read(()) == DisclosureState(((ME, EQUIPPED),), (DEV,))
    await store.close()


async def test_a_state_directory_in_which_nothing_can_be_made_is_said(
    folder: Path, nobody: Callable[[], None]
) -> None:
    os.chmod(folder, 0o555)
    nobody()
    for state in (folder, folder / "state"):
        store = Store(DatabaseFile(state))
        assert await store.read(()) == DisclosureState()
        with pytest.raises(StoreError) as found:
            await store.write(PUT)
        assert str(found.value) == f"{state / FILE} cannot be written: Permission denied"


@pytest.fixture
def small_files() -> Iterator[Callable[[], None]]:
    """From then on no file of this process grows beyond 32 KiB, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


async def test_a_full_disk_takes_nothing_of_a_change_and_nothing_from_what_is_there(
    small_files: Callable[[], None], tmp_path: Path
) -> None:
    store = Store(DatabaseFile(tmp_path))
    await store.read(())
    await store.write(PUT)
    small_files()
    large = ToolSet("large", tuple(("git", f"{number:0500}") for number in range(200)))
    with pytest.raises(StoreError, match=r"metamcp.db cannot be written: "):
        await store.write(Delta(((ME, ViewContent()),), put=large))
    await store.write(Delta(((ANN, ViewContent(servers=("git",))),)))
    await store.close()
    assert await read(tmp_path) == DisclosureState(
        ((ANN, ViewContent(servers=("git",))), (ME, EQUIPPED)), (DEV,)
    )


# Locks


@pytest.mark.parametrize("reading", [True, False])
async def test_a_file_that_is_locked_for_longer_than_the_limit_is_said(
    reading: bool, tmp_path: Path
) -> None:
    await written(tmp_path, PUT)
    store = Store(DatabaseFile(tmp_path, busy_s=0.1))
    if not reading:
        await store.read(())
    with locked(tmp_path / FILE), pytest.raises(StoreError) as found:
        await (store.read(()) if reading else store.write(Delta(((ANN, EQUIPPED),))))
    how = "cannot be read, so it stays as it is" if reading else "cannot be written"
    assert str(found.value) == (
        f"{tmp_path / FILE} {how}: another program keeps it locked; try again"
    )
    assert (await store.read(())).toolsets == (DEV,), "it works again"
    await store.close()


async def test_a_file_that_is_locked_for_less_than_the_limit_is_waited_for(tmp_path: Path) -> None:
    await written(tmp_path, PUT)
    store = Store(DatabaseFile(tmp_path, busy_s=20.0))
    await store.read(())
    with locked(tmp_path / FILE) as lock:
        write = asyncio.create_task(store.write(Delta(((ANN, EQUIPPED),))))
        done, _ = await asyncio.wait([write], timeout=0.2)
        assert not done
        await asyncio.to_thread(lock.release)
        await write
    await store.close()
    assert len((await read(tmp_path)).views) == 2


async def test_a_copy_that_is_made_meanwhile_is_whole(tmp_path: Path) -> None:
    """As the documentation says to make one."""
    store = Store(DatabaseFile(tmp_path))
    await store.read(())
    await store.write(PUT)
    (tmp_path / "copy").mkdir()
    with (
        closing(sqlite3.connect(tmp_path / FILE)) as source,
        closing(sqlite3.connect(tmp_path / "copy" / FILE)) as copy,
    ):
        source.backup(copy)
    await store.write(Delta(((ANN, EQUIPPED),)))
    await store.close()
    assert await read(tmp_path / "copy") == DisclosureState(((ME, EQUIPPED),), (DEV,))


async def test_a_write_whose_caller_went_away_is_finished_before_the_next_one(
    tmp_path: Path,
) -> None:
    """Two threads in one connection would end the whole process."""
    await written(tmp_path, PUT)
    store = Store(DatabaseFile(tmp_path, busy_s=20.0))
    await store.read(())
    with locked(tmp_path / FILE) as lock:
        write = asyncio.create_task(store.write(Delta(((ANN, EQUIPPED),))))
        await asyncio.wait([write], timeout=0.2)
        write.cancel()
        close = asyncio.create_task(store.close())
        done, _ = await asyncio.wait([close], timeout=0.2)
        assert not done
        await asyncio.to_thread(lock.release)
        await close
    assert len((await read(tmp_path)).views) == 2
