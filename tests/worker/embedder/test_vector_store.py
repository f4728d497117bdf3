"""The file of vectors: what is in it, what leaves it, and what is said of one that is unfit."""

import sqlite3
from pathlib import Path

import pytest

from metamcp_worker.embedder.vector_store import VectorStore, VectorStoreError


def test_what_is_put_in_is_there_after_a_restart_and_only_for_the_same_model(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state" / "vectors.db"
    shelf = VectorStore(path, "small")
    assert shelf.get(["a", "b"]) == [None, None]
    shelf.put({"a": b"\x01", "b": b""})
    assert shelf.get(["b", "c", "a", "a"]) == [b"", None, b"\x01", b"\x01"]
    shelf.close()
    again = VectorStore(path, "small")
    assert again.get(["a", "b"]) == [b"\x01", b""]
    again.close()
    other = VectorStore(path, "large")
    assert other.get(["a"]) == [None]
    other.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_text_of_a_tool_is_not_in_the_file(tmp_path: Path) -> None:
    shelf = VectorStore(tmp_path / "v", "m")
    shelf.put({"a text that may be read nowhere": b"\x01\x02"})
    shelf.close()
    assert b"may be read nowhere" not in (tmp_path / "v").read_bytes()


def test_the_longest_unused_leave_when_there_are_too_many(tmp_path: Path) -> None:
    path = tmp_path / "v"
    for start in range(3):
        shelf = VectorStore(path, "m", kept_max=20)
        shelf.put({f"{start}-{number}": b"\x01" for number in range(6)})
        shelf.get(["0-0"])
        shelf.close()
    shelf = VectorStore(path, "m", kept_max=20)
    shelf.put({f"new-{number}": b"\x01" for number in range(6)})
    kept = [f"{start}-{number}" for start in range(3) for number in range(6)]
    there = {text for text, one in zip(kept, shelf.get(kept), strict=True) if one is not None}
    assert "0-0" in there
    assert len(there) == 14 - 2
    assert {text for text in there if text.startswith("0-")} == {"0-0"}
    assert None not in shelf.get([f"new-{number}" for number in range(6)])
    shelf.close()


@pytest.mark.parametrize("content", [b"not a database, but longer than its head is" * 50])
def test_a_file_that_is_no_such_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vectors.db"
    path.write_bytes(content)
    with pytest.raises(VectorStoreError, match=r"vectors.db fails: file is not a database"):
        VectorStore(path, "m")
    assert path.read_bytes() == content


def test_a_newer_file_and_a_folder_that_is_none_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "vectors.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(VectorStoreError, match="of version 7, and 1 is known"):
        VectorStore(path, "m")
    with pytest.raises(VectorStoreError, match="vectors are not kept"):
        VectorStore(path / "below", "m")


def test_a_file_that_is_locked_is_said_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "v"
    shelf = VectorStore(path, "m", busy_s=0.0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(VectorStoreError, match="locked"):
        shelf.put({"a": b"\x01"})
    other.execute("ROLLBACK")
    other.close()
    shelf.put({"a": b"\x01"})
    assert shelf.get(["a"]) == [b"\x01"]
    shelf.close()


def test_a_full_disk_is_said_and_what_was_there_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "v"
    shelf = VectorStore(path, "m")
    shelf.put({"a": b"\x01"})
    (pages,) = shelf._database.execute("PRAGMA page_count").fetchone()  # pyright: ignore[reportPrivateUsage] - a disk that is full
    shelf._database.execute(f"PRAGMA max_page_count = {pages}")  # pyright: ignore[reportPrivateUsage] - the same
    with pytest.raises(VectorStoreError, match="disk is full"):
        shelf.put({str(number): bytes(2_000) for number in range(32)})
    assert shelf.get(["a", "1"]) == [b"\x01", None]
    shelf.close()


def test_a_file_that_was_damaged_is_said_wherever_the_damage_is(tmp_path: Path) -> None:
    path = tmp_path / "v"
    shelf = VectorStore(path, "m")
    shelf.put({str(number): bytes([number]) * 3_000 for number in range(64)})
    shelf.close()
    content = path.read_bytes()
    path.write_bytes(content[:4_096] + b"\xff" * (len(content) - 4_096))
    with pytest.raises(VectorStoreError, match="vectors are not kept"):
        VectorStore(path, "m")
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(VectorStoreError, match="vectors are not kept"):
        VectorStore(path, "m").get([str(number) for number in range(64)])


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "v"
    VectorStore(path, "m").close()
    shelf = VectorStore(path, "m")
    shelf._database.execute("PRAGMA query_only = ON")  # pyright: ignore[reportPrivateUsage] - as on a read-only disk
    with pytest.raises(VectorStoreError, match="readonly"):
        shelf.put({"a": b"\x01"})
    shelf.close()
