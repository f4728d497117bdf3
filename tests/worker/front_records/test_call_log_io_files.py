"""The files of recorded calls: found again, rotated, bounded, private, and never torn."""

import os
from pathlib import Path

import pytest

from metamcp_worker.front_records.call_log_io import CallFiles

pytestmark = pytest.mark.promise("M89")


def files(folder: Path, front: int = 0, *, file_bytes: int = 100, most: int = 3) -> CallFiles:
    return CallFiles(str(folder / "calls"), file_bytes=file_bytes, files=most, front=front)


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "calls").iterdir())]


def test_nothing_is_made_before_something_is_written(tmp_path: Path) -> None:
    files(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_only_this_user_reads_them(tmp_path: Path) -> None:
    files(tmp_path).write(b"a\n", 1)
    assert (tmp_path / "calls").stat().st_mode & 0o777 == 0o700
    (path,) = (tmp_path / "calls").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_file_is_followed_by_another_and_the_oldest_goes(tmp_path: Path) -> None:
    found = files(tmp_path)
    for number in range(10):
        found.write(b"%d" % number * 59 + b"\n", number)
    assert [data[:1] for data in contents(tmp_path)] == [b"7", b"8", b"9"]


def test_a_line_longer_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    found = files(tmp_path)
    found.write(b"x" * 500 + b"\n", 1)
    found.write(b"y\n", 2)
    assert [len(data) for data in contents(tmp_path)] == [501, 2]


def test_the_next_front_goes_on_with_the_file_of_one_that_is_gone(tmp_path: Path) -> None:
    gone = files(tmp_path)
    gone.write(b"a\n", 1)
    gone.close()
    files(tmp_path, front=1).write(b"b\n", 2)
    assert contents(tmp_path) == [b"a\nb\n"]


def test_two_fronts_have_a_file_each_and_none_removes_that_of_the_other(tmp_path: Path) -> None:
    one, other = files(tmp_path, most=2), files(tmp_path, front=1, most=2)
    one.write(b"one\n", 1)
    for number in range(5):
        other.write(b"x" * 99 + b"\n", 2 + number)
    one.write(b"again\n", 9)
    assert contents(tmp_path)[0] == b"one\nagain\n"
    assert len(contents(tmp_path)) == 2


def test_half_a_line_of_a_front_that_was_killed_spoils_no_other(tmp_path: Path) -> None:
    gone = files(tmp_path)
    gone.write(b'{"half', 1)
    gone.close()
    files(tmp_path, front=1).write(b"b\n", 2)
    assert contents(tmp_path) == [b'{"half\nb\n']


def test_a_file_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    found = files(tmp_path)
    found.write(b"a\n", 1)
    (path,) = (tmp_path / "calls").iterdir()
    path.unlink()
    found.write(b"b\n", 2)
    assert contents(tmp_path) == [b"b\n"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "calls" / "calls-0.jsonl").symlink_to(tmp_path / "other")
    files(tmp_path).write(b"a\n", 1)
    assert (tmp_path / "other").read_bytes() == b""


@pytest.mark.parametrize("mode", [0o644, 0o620])
def test_a_file_that_others_can_open_is_left_alone(tmp_path: Path, mode: int) -> None:
    (tmp_path / "calls").mkdir()
    open_to_all = tmp_path / "calls" / "calls-0.jsonl"
    open_to_all.write_bytes(b"old\n")
    open_to_all.chmod(mode)
    files(tmp_path).write(b"a\n", 1)
    assert contents(tmp_path) == [b"old\n", b"a\n"]


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    os.mkfifo(tmp_path / "calls" / "calls-0.jsonl", 0o600)
    files(tmp_path).write(b"a\n", 1)
    (path,) = (path for path in (tmp_path / "calls").iterdir() if path.is_file())
    assert path.read_bytes() == b"a\n"


def test_files_that_are_begun_in_the_same_millisecond_have_names_of_their_own(
    tmp_path: Path,
) -> None:
    found = files(tmp_path)
    for number in range(3):
        found.write(b"%d" % number * 99 + b"\n", 7)
    assert [data[:1] for data in contents(tmp_path)] == [b"0", b"1", b"2"]


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "notes.txt").write_bytes(b"mine")
    found = files(tmp_path, most=2)
    for number in range(5):
        found.write(b"x" * 99 + b"\n", number)
    assert (tmp_path / "calls" / "notes.txt").read_bytes() == b"mine"


def test_a_folder_that_cannot_be_made_is_an_error_and_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "calls").write_bytes(b"")
    found = files(tmp_path)
    with pytest.raises(OSError, match=r"exists|directory"):
        found.write(b"a\n", 1)
    os.unlink(tmp_path / "calls")
    found.write(b"a\n", 1)
    assert contents(tmp_path) == [b"a\n"]
