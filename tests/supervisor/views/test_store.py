"""The database on a real disk: what comes back, and tables of other versions."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from metamcp_supervisor.store.database import FILE, STEPS, DatabaseFile, StoreError
from metamcp_supervisor.views.ledger import Delta
from metamcp_supervisor.views.store import Store
from metamcp_worker.ipc.disclosure import DisclosureState, ViewContent
from metamcp_worker.ipc.saved_scripts import VERSIONS_MAX, Script
from tests.supervisor.stored import ALIVE, ANN, DEV, EQUIPPED, ME, OVER, PUT, read, written

pytestmark = pytest.mark.process

# What comes back


@pytest.mark.promise("M31")
async def test_what_was_written_comes_back(tmp_path: Path) -> None:
    shown = ViewContent((("git", "log"),), ("db",))
    await written(tmp_path, PUT, Delta(((ANN, shown),)))
    assert await read(tmp_path) == DisclosureState(((ANN, shown), (ME, EQUIPPED)), (DEV,))
    await written(tmp_path, Delta(((ME, ViewContent()), (ANN, ViewContent())), drop="dev"))
    assert await read(tmp_path) == DisclosureState()


@pytest.mark.promise("M48")
async def test_the_last_versions_of_a_script_are_kept_and_the_newest_comes_back(
    tmp_path: Path,
) -> None:
    kept = [Script("a", number, f"return {number}", created=1.5) for number in range(1, 25)]
    other = Script("team:a", 1, "return 0", "python", "Counts.", "{}", expose=True)
    await written(tmp_path, *(Delta(script=one) for one in (*kept, other)))
    assert await read(tmp_path) == DisclosureState(scripts=(kept[-1], other))
    store = Store(DatabaseFile(tmp_path))
    assert await store.versions("a") == tuple(kept[-VERSIONS_MAX:])
    assert await store.versions("none") == ()
    await store.write(Delta(drop_script="a"))
    assert await store.versions("a") == ()
    await store.close()
    assert await read(tmp_path) == DisclosureState(scripts=(other,))


async def test_without_a_file_nothing_is_remembered_and_none_is_made_by_reading(
    tmp_path: Path,
) -> None:
    assert await read(tmp_path / "state") == DisclosureState()
    assert os.listdir(tmp_path) == []


async def test_file_and_folder_are_for_the_user_of_the_gateway_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await written(tmp_path / "state", PUT)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state" / FILE).stat().st_mode) == 0o600


async def test_views_of_sessions_live_as_long_as_these(tmp_path: Path) -> None:
    shown = ViewContent(servers=("git",))
    await written(tmp_path, Delta(((OVER, shown), (ALIVE, shown), (ME, shown))))
    left = DisclosureState(((ME, shown), (ALIVE, shown)), ())
    assert await read(tmp_path, "8a02") == left
    store = Store(DatabaseFile(tmp_path))
    await store.read(["8a02"])
    await store.write(Delta(((ANN, ViewContent()),)))
    await store.close()
    assert await read(tmp_path, "8a01", "8a02") == left, "the next write has deleted the other"


async def test_that_a_session_has_nothing_in_view_is_kept_until_it_is_over(tmp_path: Path) -> None:
    await written(tmp_path, PUT, Delta(((ALIVE, ViewContent(own=True)),)))
    kept = DisclosureState(((ME, EQUIPPED), (ALIVE, ViewContent(own=True))), (DEV,))
    assert await read(tmp_path, ALIVE.session) == kept
    store = Store(DatabaseFile(tmp_path))
    await store.read([ALIVE.session])
    await store.write(Delta(((ALIVE, ViewContent()),)))
    await store.close()
    assert await read(tmp_path, ALIVE.session) == DisclosureState(((ME, EQUIPPED),), (DEV,))


_WRITER = """
import asyncio, sys
from pathlib import Path
from metamcp_supervisor.views.ledger import Delta
from metamcp_supervisor.store.database import DatabaseFile
from metamcp_supervisor.views.store import Store
from metamcp_worker.ipc.disclosure import ViewContent, ToolSet, ViewOwner

async def main():
    store = Store(DatabaseFile(Path(sys.argv[1])))
    await store.read(())
    number = 0
    while True:
        tools = (("git", f"t{number}"),) * 50
        made = ToolSet("dev", tools, str(number))
        content = ViewContent(tools, toolset="dev")
        views = tuple((ViewOwner("desk", name), content) for name in ("a", "b"))
        await store.write(Delta(views, put=made))
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


def test_a_gateway_that_is_killed_while_it_writes_has_written_all_of_it_or_nothing(
    tmp_path: Path,
) -> None:
    for lines in (1, 3, 10, 40):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                writer.stdout.readline()
            writer.kill()
        found = asyncio.run(read(tmp_path))
        (made,) = found.toolsets
        assert int(made.description) >= lines - 1, "what was told is on disk"
        assert [shown for _, shown in found.views] == [ViewContent(made.tools, toolset="dev")] * 2


# Versions


MORE = (*STEPS, ("ALTER TABLE toolset ADD COLUMN seen INTEGER", "CREATE TABLE other (a TEXT)"))


async def test_tables_of_an_older_version_are_brought_up_and_keep_what_is_in_them(
    tmp_path: Path,
) -> None:
    await written(tmp_path, PUT)
    assert await read(tmp_path, steps=MORE) == DisclosureState(((ME, EQUIPPED),), (DEV,))
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (len(MORE),)
        assert database.execute("SELECT name, seen FROM toolset").fetchall() == [("dev", None)]


@pytest.mark.promise("M125")
async def test_the_tables_of_the_older_version_stay_in_a_file_of_their_own(tmp_path: Path) -> None:
    await written(tmp_path, PUT)
    before = (tmp_path / FILE).stat()
    (tmp_path / f"{FILE}.v{len(STEPS)}.new").write_text("half a copy")
    await read(tmp_path, steps=MORE)
    copy = tmp_path / f"{FILE}.v{len(STEPS)}"
    assert stat.S_IMODE(copy.stat().st_mode) == stat.S_IMODE(before.st_mode) == 0o600
    kept = copy.read_bytes()
    await read(tmp_path, steps=(*MORE, ("CREATE TABLE more (a TEXT)",)))
    names = {FILE, f"{FILE}.v{len(STEPS)}", f"{FILE}.v{len(MORE)}"}
    assert set(os.listdir(tmp_path)) == names
    assert copy.read_bytes() == kept
    copy.rename(tmp_path / FILE)
    assert await read(tmp_path) == DisclosureState(((ME, EQUIPPED),), (DEV,))


async def test_an_earlier_program_uses_newer_tables_that_say_it_can(tmp_path: Path) -> None:
    number = len(STEPS)
    usable = (
        "CREATE TABLE min_reader (version INTEGER)",
        f"INSERT INTO min_reader VALUES ({number})",
    )
    await written(tmp_path, PUT)
    await read(tmp_path, steps=(*MORE, usable))
    await written(tmp_path, Delta(((ANN, EQUIPPED),)))
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (number + 2,)
    later = (*MORE, usable, (f"UPDATE min_reader SET version = {number + 3}",))
    assert await read(tmp_path, steps=later) == DisclosureState(
        ((ANN, EQUIPPED), (ME, EQUIPPED)), (DEV,)
    )
    with pytest.raises(StoreError, match=f"it is of version {number + 3}, and this program knows"):
        await read(tmp_path)


async def test_a_step_that_fails_leaves_the_version_before(tmp_path: Path) -> None:
    await written(tmp_path, PUT)
    with pytest.raises(StoreError, match="no such table: nowhere"):
        await read(tmp_path, steps=(*MORE, ("CREATE TABLE b (a TEXT)", "DROP TABLE nowhere")))
    assert await read(tmp_path) == DisclosureState(((ME, EQUIPPED),), (DEV,))


async def test_a_file_that_is_emptied_while_it_is_in_use_is_told_and_not_taken_as_new(
    tmp_path: Path,
) -> None:
    store = Store(DatabaseFile(tmp_path))
    await store.read(())
    await store.write(PUT)
    os.truncate(tmp_path / FILE, 0)
    with pytest.raises(StoreError, match="cannot be written: it is empty, and what was in it"):
        await store.write(PUT)
    await store.close()
    assert (tmp_path / FILE).stat().st_size == 0
