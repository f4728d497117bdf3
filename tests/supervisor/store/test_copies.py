"""Copies of the database on a real disk: made beside a writer, checked, put back."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from metamcp_supervisor.store.copies import DatabaseContent, backup, restore
from metamcp_supervisor.store.database import BUSY_S_MAX, FILE, STEPS, StoreError
from metamcp_supervisor.views.ledger import Delta
from metamcp_worker.ipc.disclosure import DisclosureState
from tests.supervisor.stored import DEV, EQUIPPED, ME, PUT, read, sql, written

pytestmark = pytest.mark.process

STORED = DisclosureState(((ME, EQUIPPED),), (DEV,))


def kept(folder: Path) -> DisclosureState:
    return asyncio.run(read(folder))


@pytest.mark.promise("M115")
def test_a_copy_that_is_put_back_brings_everything_and_keeps_what_it_replaces(
    tmp_path: Path,
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy.db"
    asyncio.run(written(state, PUT))
    before = os.umask(0)
    try:
        assert backup(state, copy) == DatabaseContent(toolsets=1, views=1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    asyncio.run(written(state, Delta((), drop="dev")))
    done = restore(state, copy, 0.0)
    assert done.replaced == str(state / f"{FILE}.before-19700101-000000")
    assert kept(state) == STORED
    with closing(sqlite3.connect(done.replaced)) as replaced:
        assert replaced.execute("SELECT count(*) FROM toolset").fetchone() == (0,)
    assert restore(tmp_path / "state", copy, 1.0).content == DatabaseContent(toolsets=1, views=1)


def test_a_copy_goes_to_a_state_directory_that_has_nothing(tmp_path: Path) -> None:
    asyncio.run(written(tmp_path / "old", PUT))
    backup(tmp_path / "old", tmp_path / "copy.db")
    (tmp_path / "new").mkdir()
    assert restore(tmp_path / "new", tmp_path / "copy.db", 0.0).replaced == ""
    assert kept(tmp_path / "new") == STORED
    assert [one.name for one in (tmp_path / "new").iterdir()] == [FILE]


def test_copies_beside_a_gateway_that_writes_are_whole_and_do_not_stop_it(tmp_path: Path) -> None:
    asyncio.run(written(tmp_path, PUT))
    ended = threading.Event()
    deltas: list[int] = []

    def write() -> None:
        while not ended.is_set():
            asyncio.run(written(tmp_path, PUT, Delta(((ME, EQUIPPED),)), busy_s=BUSY_S_MAX))
            deltas.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20):
            found = backup(tmp_path, tmp_path / f"{number}.db")
            assert found == DatabaseContent(toolsets=1, views=1)
    finally:
        ended.set()
        writer.join(30)
    assert deltas, "no write has failed"


def test_what_a_killed_gateway_left_of_a_change_is_not_put_into_the_restored_one(
    tmp_path: Path,
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy.db"
    asyncio.run(written(state, PUT))
    backup(state, copy)
    killed = (
        "import os, sqlite3, sys\n"
        "one = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "one.execute('PRAGMA cache_size = 1'); one.execute('BEGIN IMMEDIATE')\n"
        "one.execute('CREATE TABLE big (a TEXT)')\n"
        "one.executemany('INSERT INTO big VALUES (?)', [('x' * 1000,)] * 2000)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", killed, str(state / FILE)], check=True, timeout=60)
    assert Path(f"{state / FILE}-journal").stat().st_size, "a change was under way"
    done = restore(state, copy, 0.0)
    assert kept(state) == STORED
    with closing(sqlite3.connect(done.replaced)) as replaced:
        assert replaced.execute("SELECT count(*) FROM toolset").fetchone() == (1,)


def test_nothing_is_overwritten_and_what_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"metamcp\.db does not exist: nothing is stored yet"):
        backup(tmp_path, tmp_path / "copy.db")
    asyncio.run(written(tmp_path, PUT))
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(StoreError, match=r"copy\.db exists already, and nothing is overwritten"):
        backup(tmp_path, tmp_path / "copy.db")
    with pytest.raises(StoreError, match="cannot be made: No such file or directory"):
        backup(tmp_path, tmp_path / "nowhere" / "copy.db")
    with pytest.raises(StoreError, match=r"no\.db does not exist, or is not a file"):
        restore(tmp_path, tmp_path / "no.db", 0.0)
    with pytest.raises(StoreError, match="is the database itself"):
        restore(tmp_path, tmp_path / FILE, 0.0)
    assert (tmp_path / "copy.db").read_text() == "mine"


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {len(STEPS) + 1}")


def foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE songs (title TEXT)")
        database.execute("PRAGMA user_version = 1")


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)


def text(path: Path) -> None:
    path.write_text("[servers]\n" * 99)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (newer, f"it is of version {len(STEPS) + 1}, and this program knows versions up to"),
        (foreign, "it is not a database of MetaMCP"),
        (damaged, "it is damaged|malformed"),
        (text, "file is not a database"),
        (empty, "it is not a database of MetaMCP"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_nothing_is_changed(
    tmp_path: Path, harm: object, why: str
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy.db"
    asyncio.run(written(state, PUT))
    backup(state, copy)
    assert callable(harm)
    harm(copy)
    with pytest.raises(StoreError, match=f"copy.db cannot be copied: .*({why})"):
        restore(state, copy, 0.0)
    assert kept(state) == STORED
    assert [one.name for one in state.iterdir()] == [FILE]


def test_a_copy_of_an_older_version_is_brought_up_by_the_program_that_reads_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "old").mkdir()
    with closing(sqlite3.connect(tmp_path / "old" / FILE)) as database:
        for statement in STEPS[0]:
            database.execute(statement)
        database.execute("PRAGMA user_version = 1")
    assert backup(tmp_path / "old", tmp_path / "copy.db") == DatabaseContent()
    (tmp_path / "new").mkdir()
    restore(tmp_path / "new", tmp_path / "copy.db", 0.0)
    assert kept(tmp_path / "new") == DisclosureState()
    sql(tmp_path / "new", "SELECT id FROM api_key")
