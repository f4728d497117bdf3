"""Backups of a state directory on a real disk: made beside a writer, checked, put back."""

import asyncio
import fcntl
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from metamcp_supervisor.cli.backup import PLAIN, SECRETS
from metamcp_supervisor.runtime import UNFINISHED
from metamcp_supervisor.store import copies
from metamcp_supervisor.store.copies import (
    CHUNK_BYTES,
    BackupManifest,
    DatabaseContent,
)
from metamcp_supervisor.store.database import (
    BUSY_S_MAX,
    FILE,
    STEPS,
    StoreError,
)
from metamcp_supervisor.views.ledger import Delta
from metamcp_worker.ipc.disclosure import DisclosureState
from metamcp_worker.ipc.engine_runs import JOURNAL
from metamcp_worker.oauth.vault import hold_key
from tests.supervisor.stored import DEV, EQUIPPED, ME, PUT, read, sql, written

pytestmark = pytest.mark.process

STORED = DisclosureState(((ME, EQUIPPED),), (DEV,))
CONTENT = DatabaseContent(toolsets=1, views=1)
PASSPHRASE = "correct horse bättery".encode()
OTHERS = {
    "keys.pepper": b"a" * 64, "oauth/git-1.token": b"sealed", "oauth.key": b"key",
    "tls/ca.key": b"x" * 3 * CHUNK_BYTES, "tls/ca.pem": b"ca", "audit/salt": b"salt",
    "decisions.json": b"[]",
}  # fmt: skip
"""Files beside the databases; one has several chunks."""


def kept(folder: Path) -> DisclosureState:
    return asyncio.run(read(folder))


def backup(state: Path, target: Path, passphrase: bytes = b"") -> BackupManifest:
    patterns = (*PLAIN, *SECRETS) if passphrase else PLAIN
    return copies.backup(state, target, copies.list_files(state, patterns), passphrase, "/audit")


def restore(
    state: Path, source: Path, passphrase: bytes = b"", now: float = 0.0
) -> tuple[BackupManifest, str]:
    return copies.restore(state, source, PLAIN, SECRETS, passphrase, now)


def whole(state: Path) -> None:
    """A state directory with a file of each kind, and some that no backup has."""
    asyncio.run(written(state, PUT))
    for name, content in (OTHERS | {"owner": b"", "journal/1": b"lines"}).items():
        (state / name).parent.mkdir(exist_ok=True)
        (state / name).write_bytes(content)
    with closing(sqlite3.connect(state / JOURNAL)) as runs:
        runs.execute("PRAGMA journal_mode = WAL")
        runs.execute("CREATE TABLE run (id TEXT)")
        runs.execute("INSERT INTO run VALUES ('one')")
        runs.commit()


def contents(state: Path) -> dict[str, bytes]:
    files = {name: state / name for name in copies.list_files(state, (*PLAIN, *SECRETS))}
    return {name: path.read_bytes() for name, path in files.items() if path.suffix != ".db"}


def runs_of(state: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(state / JOURNAL)) as runs:
        return runs.execute("SELECT id FROM run").fetchall()


@pytest.mark.promise("M115")
def test_a_copy_that_is_put_back_brings_everything_and_keeps_what_it_replaces(
    tmp_path: Path,
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole(state)
    before = os.umask(0)
    try:
        manifest = backup(state, copy, PASSPHRASE)
    finally:
        os.umask(before)
    assert (manifest.content, manifest.audit) == (CONTENT, "/audit")
    assert {*manifest.files} == {*OTHERS, FILE, JOURNAL}
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    sealed = copy.read_bytes()
    assert not [word for word in (b"SQLite", b"pepper", b"git-1", b"x" * 32) if word in sealed]
    asyncio.run(written(state, Delta((), drop="dev")))
    (state / "keys.pepper").write_bytes(b"b" * 64)
    (state / "oauth/later.token").write_bytes(b"later")
    done, replaced = restore(state, copy, PASSPHRASE)
    assert (done, replaced) == (manifest, str(state / "before-19700101-000000"))
    assert kept(state) == STORED
    assert contents(state) == OTHERS
    assert runs_of(state) == [("one",)]
    aside = Path(replaced)
    assert (aside / "keys.pepper").read_bytes() == b"b" * 64
    assert (aside / "oauth/later.token").read_bytes() == b"later"
    with closing(sqlite3.connect(aside / FILE)) as database:
        assert database.execute("SELECT count(*) FROM toolset").fetchone() == (0,)
    assert (state / "journal/1").read_bytes() == b"lines", "no backup has it, so it stays"
    assert restore(state, copy, PASSPHRASE, 1.0)[0] == manifest


def test_a_copy_has_no_tokens_beside_a_key_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole(state)
    with hold_key(str(state / "oauth"), fcntl.LOCK_EX):
        with pytest.raises(StoreError, match="another process changes the key of"):
            backup(state, copy, PASSPHRASE)
        assert not copy.exists()
        backup(state, copy)  # of no secrets
        copy.unlink()
    assert "oauth.key" in backup(state, copy, PASSPHRASE).files


def test_a_copy_without_secrets_leaves_those_that_are_there(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole(state)
    assert backup(state, copy).files == ("decisions.json", FILE)
    assert OTHERS["keys.pepper"] not in copy.read_bytes()
    (state / "decisions.json").write_bytes(b"[1]")
    (state / "keys.pepper").write_bytes(b"b" * 64)
    restore(state, copy)
    assert contents(state) == OTHERS | {"keys.pepper": b"b" * 64}


def test_a_copy_goes_to_a_state_directory_that_has_nothing(tmp_path: Path) -> None:
    whole(tmp_path / "old")
    backup(tmp_path / "old", tmp_path / "copy", PASSPHRASE)
    (tmp_path / "new").mkdir()
    assert restore(tmp_path / "new", tmp_path / "copy", PASSPHRASE)[1] == ""
    assert kept(tmp_path / "new") == STORED
    assert contents(tmp_path / "new") == OTHERS
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "new").rglob("*")}
    assert modes == {0}
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"audit", "decisions.json", "oauth", "tls", FILE, JOURNAL, "keys.pepper",
                     "oauth.key"}  # fmt: skip


def test_a_database_of_an_earlier_backup_replaces_the_database_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    whole(state)
    shutil.copy(state / FILE, tmp_path / "copy.db")
    asyncio.run(written(state, Delta((), drop="dev")))
    manifest, replaced = restore(state, tmp_path / "copy.db")
    assert (manifest.content, manifest.files) == (CONTENT, (FILE,))
    assert kept(state) == STORED
    assert contents(state) == OTHERS
    assert [path.name for path in Path(replaced).iterdir()] == [FILE]


def test_copies_beside_a_gateway_that_writes_are_whole_and_do_not_stop_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    asyncio.run(written(state, PUT))
    ended = threading.Event()
    deltas: list[int] = []

    def write() -> None:
        while not ended.is_set():
            asyncio.run(written(state, PUT, Delta(((ME, EQUIPPED),)), busy_s=BUSY_S_MAX))
            deltas.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20):
            assert backup(state, tmp_path / f"{number}").content == CONTENT
    finally:
        ended.set()
        writer.join(30)
    assert deltas, "no write has failed"


def test_what_a_killed_gateway_left_of_a_change_is_not_put_into_the_restored_one(
    tmp_path: Path,
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
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
    _, replaced = restore(state, copy)
    assert kept(state) == STORED
    with closing(sqlite3.connect(Path(replaced, FILE))) as database:
        assert database.execute("SELECT count(*) FROM toolset").fetchone() == (1,)


def test_nothing_is_overwritten_and_what_does_not_exist_is_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with pytest.raises(StoreError, match="state has nothing to back up: nothing is stored yet"):
        backup(state, tmp_path / "copy")
    asyncio.run(written(state, PUT))
    (tmp_path / "copy").write_text("mine")
    with pytest.raises(StoreError, match=r"copy exists already, and nothing is overwritten"):
        backup(state, tmp_path / "copy")
    with pytest.raises(StoreError, match="cannot be made: No such file or directory"):
        backup(state, tmp_path / "nowhere" / "copy")
    with pytest.raises(StoreError, match=r"no does not exist, or is not a file"):
        restore(state, tmp_path / "no")
    with pytest.raises(StoreError, match="is the database itself"):
        restore(state, state / FILE)
    assert (tmp_path / "copy").read_text() == "mine"


def test_a_restore_that_fails_in_the_middle_leaves_everything_as_it_was(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole(state)
    backup(state, copy, PASSPHRASE)
    shutil.rmtree(state / "tls")
    (state / "tls").write_bytes(b"where a folder should be")
    before = contents(state)
    with pytest.raises(StoreError, match="state cannot be restored: Not a directory"):
        restore(state, copy, PASSPHRASE)
    assert contents(state) == before
    assert kept(state) == STORED
    assert not (state / UNFINISHED).exists()
    assert not [*state.glob("restore*"), *state.glob("before*")]


def test_a_restore_that_was_interrupted_is_finished_by_the_next(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole(state)
    backup(state, copy, PASSPHRASE)
    (state / UNFINISHED).touch()
    (state / "restore.new").mkdir()
    (state / "keys.pepper").unlink()
    with pytest.raises(StoreError, match="the passphrase is not the one"):
        restore(state, copy, b"wrong")
    assert (state / UNFINISHED).exists(), "nothing has changed"
    restore(state, copy, PASSPHRASE)
    assert contents(state) == OTHERS
    assert not (state / UNFINISHED).exists()


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
        (text, "copy.db is not a backup of MetaMCP"),
        (empty, "copy.db is not a backup of MetaMCP"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_nothing_is_changed(
    tmp_path: Path, harm: object, why: str
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy.db"
    asyncio.run(written(state, PUT))
    shutil.copy(state / FILE, copy)
    assert callable(harm)
    harm(copy)
    with pytest.raises(StoreError, match=why):
        restore(state, copy)
    assert kept(state) == STORED
    assert [one.name for one in state.iterdir()] == [FILE]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def cut_between_chunks(data: bytes) -> bytes:
    begin = len(b"metamcp-backup-1 scrypt\n") + 16 + 16
    return data[: begin + 2 * (CHUNK_BYTES + 16)]


def without_end(data: bytes) -> bytes:
    return data[:-1]


def flipped(data: bytes) -> bytes:
    return data[:-99] + bytes([data[-99] ^ 1]) + data[-98:]


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (cut, "copy is damaged, or not complete"),
        (cut_between_chunks, "copy is damaged, or not complete"),
        (without_end, "copy is damaged, or not complete"),
        (flipped, "copy is damaged, or not complete"),
        (
            lambda data: data.replace(b"backup-1", b"backup-2", 1),
            "copy is of format 2 scrypt, and this program knows formats up to 1; restore it with",
        ),
        (
            lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],  # the salt
            "the passphrase is not the one with which .*copy was made",
        ),
    ],
)  # fmt: skip
def test_an_encrypted_backup_that_is_not_as_it_was_written_is_refused(
    tmp_path: Path, harm: object, why: str
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole(state)
    backup(state, copy, PASSPHRASE)
    before = {*state.iterdir()}
    with pytest.raises(StoreError, match="the passphrase is not the one with which"):
        restore(state, copy, PASSPHRASE + b"!")
    assert callable(harm)
    copy.write_bytes(harm(copy.read_bytes()))
    with pytest.raises(StoreError, match=why):
        restore(state, copy, PASSPHRASE)
    assert {*state.iterdir()} == before
    assert contents(state) == OTHERS


@pytest.mark.parametrize("share", [0.2, 0.6, 0.7])
def test_a_plain_backup_that_was_cut_is_refused(tmp_path: Path, share: float) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole(state)
    backup(state, copy)
    os.truncate(copy, int(copy.stat().st_size * share))
    with pytest.raises(StoreError, match="copy is damaged, or not complete"):
        restore(state, copy)
    assert contents(state) == OTHERS


@pytest.mark.parametrize("name", ["../out", "tls/../out", "journal/2", "/etc/out", "tls/a/b"])
def test_a_backup_puts_nothing_where_no_backup_does(tmp_path: Path, name: str) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole(state)
    with copy.open("wb") as file:
        file.write(b"metamcp-backup-1 plain\n")
        with tarfile.open(fileobj=file, mode="w|") as archive:
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(StoreError, match=f"copy has a file '{name}' that no backup has"):
        restore(state, copy)
    assert contents(state) == OTHERS


def test_a_copy_of_an_older_version_is_brought_up_by_the_program_that_reads_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "old").mkdir()
    with closing(sqlite3.connect(tmp_path / "old" / FILE)) as database:
        for statement in STEPS[0]:
            database.execute(statement)
        database.execute("PRAGMA user_version = 1")
    assert backup(tmp_path / "old", tmp_path / "copy").content == DatabaseContent()
    (tmp_path / "new").mkdir()
    restore(tmp_path / "new", tmp_path / "copy")
    assert kept(tmp_path / "new") == DisclosureState()
    sql(tmp_path / "new", "SELECT id FROM api_key")
