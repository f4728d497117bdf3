"""Files of the audit: only added to, sealed, removed with a trace, proof against changes."""

import errno
import itertools
import os
import random
import sqlite3
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metamcp_supervisor.__main__ import main
from metamcp_supervisor.audit import audit_segments as reader
from metamcp_supervisor.keys.key_rules import StoredKey
from metamcp_supervisor.store.database import FILE
from metamcp_worker.audit.segments import AuditWriteError, SegmentFacts, Segments, digest
from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.audit_records import AuditRecord, ChainRow
from metamcp_worker.ipc.key_table import KeySpec

pytestmark = pytest.mark.promise("M90")


def begun(folder: Path, *, day: int = 10, bytes_max: int = 1 << 20) -> Segments:
    segments = Segments(folder, durable=False, bytes_max=bytes_max)
    segments.begin(day)
    return segments


def bodies(count: int) -> list[bytes]:
    return [
        audit.encoded(AuditRecord(ts=n, n=n, origin="a", event="call", text="x" * 50))
        for n in range(1, count + 1)
    ]


def note(event: str, facts: SegmentFacts, found: str = "") -> bytes:
    return audit.encoded(
        AuditRecord(
            ts=1, n=1, origin="w", worker="audit", event=event, segment=facts.name,
            first=facts.first, last=facts.last, last_hash=facts.last_hash, digest=found,
        )
    )  # fmt: skip


def test_a_writer_goes_on_where_the_one_before_was_killed(tmp_path: Path) -> None:
    first = begun(tmp_path)
    first.add(bodies(3), {"a": 3})
    first.close()
    second = begun(tmp_path)
    assert (second.seq, second.senders) == (3, {"a": 3})
    second.add(bodies(2), {"b": 2})
    second.close()
    assert reader.proof(tmp_path).broken is None
    assert reader.proof(tmp_path).last == 5


def test_a_writer_that_dies_between_two_segments_leaves_the_numbers_of_senders(
    tmp_path: Path,
) -> None:
    first = begun(tmp_path, day=10)
    first.add(bodies(3), {"a": 3})
    first.close()
    (tmp_path / first.name).chmod(0o400)  # sealed, and nothing after it
    second = begun(tmp_path, day=11)
    assert second.senders == {"a": 3}
    second.close()


def test_senders_of_the_writer_before_are_known_for_one_segment_more(tmp_path: Path) -> None:
    """It may be about to connect to a writer that has just begun."""
    segments = begun(tmp_path, day=10)
    segments.add(bodies(3), {"a": 3})
    segments.close()
    segments = begun(tmp_path, day=10)
    segments.turn(11, [])
    assert segments.senders == {"a": 3}
    segments.add(bodies(1), {"b": 1})
    segments.turn(12, ["b"])
    assert segments.senders == {"b": 1}
    segments.close()


def test_two_writers_do_not_have_the_same_segments(tmp_path: Path) -> None:
    first = begun(tmp_path)
    second = Segments(tmp_path, durable=False, bytes_max=1 << 20)
    with pytest.raises(AuditWriteError):
        second.begin(10)
    assert second.taken
    first.close()
    second.begin(10)
    second.close()


@pytest.mark.parametrize(
    "order", ["UPDATE record SET body = 'x'", "DELETE FROM record", "DELETE FROM start"]
)
def test_the_database_refuses_to_change_or_delete_records(tmp_path: Path, order: str) -> None:
    segments = begun(tmp_path)
    segments.add(bodies(1), {})
    segments.close()
    path = tmp_path / segments.name
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(path)) as base, pytest.raises(sqlite3.IntegrityError):
        base.execute(order)


def test_the_next_day_begins_a_segment_and_a_clock_that_goes_back_does_not(tmp_path: Path) -> None:
    segments = begun(tmp_path, day=10)
    assert not segments.due(11)  # it is empty
    segments.add(bodies(2), {"a": 2, "gone": 7})
    assert not segments.due(9)
    assert segments.due(11)
    sealed = segments.turn(11, ["a"])
    assert sealed is not None
    assert sealed.stat().st_mode & 0o777 == 0o400
    segments.add(bodies(2), {})
    assert segments.senders == {"a": 2}
    segments.close()
    assert segments.names() == [audit.segment_name(1), audit.segment_name(3)]
    assert reader.proof(tmp_path).broken is None


def sealed_pair(folder: Path) -> tuple[Path, Path]:
    """A sealed segment, and the one that has its digest."""
    segments = begun(folder, day=10)
    segments.add(bodies(40), {})
    facts = SegmentFacts(segments.name, 1, segments.seq, segments.hash.hex())
    path = segments.turn(11, [])
    assert path is not None
    segments.add([note("sealed", facts, digest(path))], {})
    segments.close()
    return path, folder / segments.name


def test_a_flipped_byte_anywhere_in_a_sealed_segment_is_found(tmp_path: Path) -> None:
    path, _ = sealed_pair(tmp_path)
    whole = path.read_bytes()
    dice = random.Random(5)
    path.chmod(0o600)
    for at in [0, len(whole) - 1, *dice.sample(range(len(whole)), 60)]:
        changed = bytearray(whole)
        changed[at] ^= 1 << dice.randrange(8)
        path.write_bytes(bytes(changed))
        assert reader.proof(tmp_path).broken is not None, f"byte {at}"
    path.write_bytes(whole)
    assert reader.proof(tmp_path).broken is None


def test_a_changed_record_is_named_and_a_cut_end_is_found_with_a_checkpoint(tmp_path: Path) -> None:
    segments = begun(tmp_path)
    segments.add(bodies(9), {})
    mark = f"{segments.seq}:{segments.hash.hex()}"
    segments.close()
    assert reader.proof(tmp_path, mark).broken is None
    path = tmp_path / segments.name
    with closing(sqlite3.connect(path)) as base:
        base.execute("DROP TRIGGER there")
        base.execute("DELETE FROM record WHERE seq = 9")
        base.commit()
    assert reader.proof(tmp_path).broken is None
    assert reader.proof(tmp_path, mark).broken is not None
    with closing(sqlite3.connect(path)) as base:
        base.execute("DROP TRIGGER kept")
        base.execute("UPDATE record SET body = replace(body, 'call', 'cull') WHERE seq = 4")
        base.commit()
    broken = reader.proof(tmp_path).broken
    assert broken is not None
    assert broken.seq == 4


def test_a_checkpoint_with_a_typing_mistake_is_not_a_broken_chain(tmp_path: Path) -> None:
    segments = begun(tmp_path / audit.FOLDER)
    segments.add(bodies(9), {})
    right = f"{segments.seq}:{segments.hash.hex()}"
    segments.close()
    for mark, code in ((right, 0), ("5", 2), ("5:abc", 2), ("", 2), (f"8{right[1:]}", 1)):
        done = asked(tmp_path, "verify", "--expect", mark)
        assert done.exit_code == code
        assert ("written like SEQ:HASH, 64 hex digits" in done.stderr) == (code == 2)


def test_the_list_finds_a_key_by_its_id_its_name_and_as_it_shows_it(tmp_path: Path) -> None:
    made = AuditRecord(ts=1, n=1, origin="a", event="call", key="k3Jq9ZxA", principal="key:team")
    begun(tmp_path / audit.FOLDER).add([audit.encoded(made)], {})
    key = KeySpec(id="k3Jq9ZxA", digest=b"x", name="laptop", principal="team", workspace="default")
    with closing(sqlite3.connect(tmp_path / FILE)) as base:
        base.execute("CREATE TABLE api_key (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
        body = codec.dump(StoredKey(spec=key, created=0.0)).decode()
        base.execute("INSERT INTO api_key VALUES (?, ?)", (key.id, body))
        base.commit()
    for name in ("k3Jq9ZxA", "key:k3Jq9ZxA", "laptop", "team", "key:team"):
        assert "call" in asked(tmp_path, "list", "--key", name, "--event", "call").stdout
    for words in (("--key", "nobody"), ("--workspace", "nows"), ("--event", "auth")):
        done = asked(tmp_path, "list", *words)
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no record fits\n")
    assert asked(tmp_path, "list", "--outcome", "wrong").exit_code == 2


def test_the_list_of_a_server_has_what_the_gateway_tells_of_it(tmp_path: Path) -> None:
    records = [
        AuditRecord(ts=1, n=1, origin="a", event="call", server="time"),
        AuditRecord(ts=2, n=2, origin="a", event="gateway", who="time", text="error: SIGKILL"),
        AuditRecord(ts=3, n=3, origin="a", event="gateway", who="time@c0ffee", text="launched"),
        AuditRecord(ts=4, n=4, origin="a", event="gateway", who="mail", text="launched"),
        AuditRecord(ts=5, n=5, origin="a", event="order", who="time", text="stop"),
    ]
    begun(tmp_path / audit.FOLDER).add([audit.encoded(one) for one in records], {})
    found = asked(tmp_path, "list", "--server", "time", "--json").stdout.splitlines()
    assert [codec.value(line.encode())["seq"] for line in found] == [1, 2, 3]


@pytest.mark.parametrize("word", ["log", "git_log", "git.log", "git/log", "git__log"])
def test_the_list_of_a_tool_finds_it_in_every_spelling(tmp_path: Path, word: str) -> None:
    made = [
        AuditRecord(ts=1, n=1, origin="a", event="call", server="git", tool="log",
                    exposed="git_log"),
        AuditRecord(ts=2, n=2, origin="a", event="call", server="git", tool="status",
                    exposed="git_status"),
        AuditRecord(ts=3, n=3, origin="a", event="gateway", who="git", text="launched"),
    ]  # fmt: skip
    begun(tmp_path / audit.FOLDER).add([audit.encoded(one) for one in made], {})
    found = asked(tmp_path, "list", "--tool", word, "--json").stdout.splitlines()
    assert [codec.value(line.encode())["seq"] for line in found] == [1]


def asked(state_dir: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["audit", *words, "--state-dir", str(state_dir)])


def test_a_removed_segment_leaves_its_record_and_one_that_is_missing_does_not(
    tmp_path: Path,
) -> None:
    path, _ = sealed_pair(tmp_path)
    segments = begun(tmp_path, day=11)
    assert segments.remove(before=0) is None
    gone = segments.remove(before=time.time() + 1)
    assert gone is not None
    assert (gone.first, gone.last) == (1, 40)
    assert not path.exists()
    assert segments.remove(before=time.time() + 1) is None  # the open one stays
    missing = reader.proof(tmp_path).broken
    assert missing is not None
    segments.add([note("removed", gone)], {})
    segments.close()
    assert reader.proof(tmp_path).broken is None


@contextmanager
def mounted(disk: Path, size: str) -> Generator[Path]:
    if os.geteuid():
        pytest.skip("only root may mount")
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no mount here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, which has no room for what the audit keeps back."""
    with mounted(tmp_path / "disk", "1m") as disk:
        yield disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "40m") as disk:
        yield disk


def fill(disk: Path) -> Path:
    """Use up the disk and return the file that has done so."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def numbered(first: int, count: int, chars: int) -> list[bytes]:
    return [
        audit.encoded(AuditRecord(ts=n, n=n, origin="a", event="call", text="x" * chars))
        for n in range(first, first + count)
    ]


def until_full(segments: Segments, first: int = 1) -> int:
    """Add records until there is no room, and return the number of the last one."""
    for last in itertools.count(first - 1, 10):
        if _is_refused(segments, last + 1):
            return last
    raise AssertionError


def _is_refused(segments: Segments, first: int) -> bool:
    try:
        segments.add(numbered(first, 10, 9000), {"a": first + 9})
    except AuditWriteError as full:
        return full.code == errno.ENOSPC
    return False


@pytest.mark.parametrize("killed", [False, True])
def test_a_full_disk_leaves_room_for_sixteen_mebibytes_of_records(disk: Path, killed: bool) -> None:
    segments = begun(disk / "audit")
    ballast = fill(disk)
    last = until_full(segments)
    assert last * 9000 > 0.99 * audit.RESERVE_BYTES
    assert segments.head("a") == last
    if killed:  # its lock ends with it
        segments.close()
        segments = begun(disk / "audit")
        assert segments.head("a") == last
    with pytest.raises(AuditWriteError):
        segments.add_kept_back(10)
    ballast.unlink()
    segments.add_kept_back(10)
    assert not segments.keeps_back
    assert (segments.seq, segments.senders) == (last, {"a": last})
    segments.add(numbered(last + 1, 1, 9000), {"a": last + 1})
    segments.close()
    assert reader.proof(disk / "audit").broken is None
    rows = (row for path in reader.segments(disk / "audit") for row in reader.rows(path))
    found = [audit.read(row.body).n for row in rows if isinstance(row, ChainRow)]
    assert found == list(range(1, last + 2))


def test_records_that_are_back_are_not_kept_back_again(disk: Path) -> None:
    segments = begun(disk / "audit")
    ballast = fill(disk)
    last = until_full(segments)
    ballast.unlink()
    segments.add_kept_back(10)
    fill(disk)
    assert until_full(segments, last + 1) >= 2 * last - 10  # the file is used from its start again
    segments.close()
    again = begun(disk / "audit")
    assert again.head("a") >= 2 * last - 10
    assert again.senders["a"] >= last
    again.close()


def test_a_segment_that_ends_while_the_disk_is_full_loses_no_record(disk: Path) -> None:
    segments = begun(disk / "audit")
    segments.add(numbered(1, 10, 100), {"a": 10})
    ballast = fill(disk)
    with pytest.raises(AuditWriteError):
        segments.turn(11, ["a"])
    segments.add(numbered(11, 10, 100), {"a": 20})
    assert segments.keeps_back
    ballast.unlink()
    segments.add_kept_back(11)
    segments.close()
    proof = reader.proof(disk / "audit")
    assert (proof.broken, proof.last) == (None, 20)


def test_a_full_disk_changes_nothing_and_room_is_used_again(small_disk: Path) -> None:
    segments = begun(small_disk / "audit")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (600 << 10))

    def add_many() -> None:
        for _ in range(1000):
            segments.add(bodies(20), {})

    with pytest.raises(AuditWriteError) as full:
        add_many()
    assert full.value.code == errno.ENOSPC
    written = segments.seq
    ballast.unlink()
    segments.add(bodies(20), {})
    assert segments.seq == written + 20
    segments.close()
    assert reader.proof(small_disk / "audit").broken is None


def test_a_folder_that_cannot_be_made_is_an_error_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    segments = Segments(tmp_path / "file" / "audit", durable=True, bytes_max=1 << 20)
    with pytest.raises(AuditWriteError) as why:
        segments.begin(10)
    assert why.value.code == errno.ENOTDIR
