"""Files of kept results: for one user, within their limits, removed when nobody can read them."""

import json
import os
import resource
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.spec import ResultLimits
from metamcp_worker.results import result_files
from metamcp_worker.results.result_files import about, iter_results, keep, piece_of, remove, sweep
from metamcp_worker.results.result_summary import KeptResult, Piece, ResultOwner, ResultPlace


def where(folder: Path, **more: Any) -> ResultPlace:
    limits: dict[str, Any] = {"max_bytes": 8192, "keep_s": 60.0, "total_bytes": 100_000, **more}
    owner = ResultOwner("default", "dev", "key:ci")
    return ResultPlace(ResultLimits(folder=str(folder / "owner"), **limits), owner)


def text(size: int) -> bytes:
    return json.dumps(
        {"content": [{"type": "text", "text": "é\n" * (size // 3)}]}, ensure_ascii=False
    ).encode()


def kept(folder: Path, size: int = 30_000, **more: Any) -> KeptResult:
    found = keep(text(size), codec.dump(where(folder, **more)), "git", "log")
    assert found is not None
    return found[1]


def test_a_large_result_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    one = kept(tmp_path)
    owner = tmp_path / "owner"
    assert stat.S_IMODE(owner.stat().st_mode) == 0o700
    assert {path.name for path in owner.iterdir()} == {one.handle, f"{one.handle}.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in owner.iterdir()} == {0o600}
    assert (owner / one.handle).read_text() == "é\n" * 10_000
    assert (one.server, one.tool, one.shape) == ("git", "log", "text of 10001 lines")
    assert one.saved_tokens > 5000
    assert about(str(owner), one.handle) == one


def test_a_result_up_to_the_limit_passes(tmp_path: Path) -> None:
    assert keep(text(3000), codec.dump(where(tmp_path)), "git", "log") is None
    assert not list(tmp_path.iterdir())


def test_the_oldest_results_make_room_for_a_new_one(tmp_path: Path) -> None:
    first, second = kept(tmp_path), kept(tmp_path)
    os.utime(tmp_path / "owner" / first.handle, (1, 1))
    third = kept(tmp_path, 60_000)
    there = {one.handle for _, one in iter_results(str(tmp_path))}
    assert first.handle not in there
    assert {second.handle, third.handle} >= there
    assert sum(path.stat().st_size for path in (tmp_path / "owner").iterdir()) < 100_000


def test_a_result_larger_than_all_may_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TooLarge):
        kept(tmp_path, 300_000)
    assert not list(iter_results(str(tmp_path)))


def test_a_result_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    kept(tmp_path)
    owner = tmp_path / "owner"
    before = set(owner.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            kept(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert set(owner.iterdir()) == before


@pytest.mark.parametrize("handle", ["", "../secret", "a" * 24, "A" * 24, "0" * 25])
def test_an_unknown_handle_has_no_description(tmp_path: Path, handle: str) -> None:
    kept(tmp_path)
    assert about(str(tmp_path / "owner"), handle) is None


def test_a_result_whose_time_is_over_is_unknown_and_swept(tmp_path: Path) -> None:
    one = kept(tmp_path, keep_s=-1.0)
    assert about(str(tmp_path / "owner"), one.handle) is None
    os.utime(tmp_path / "owner" / one.handle, (1, 1))
    sweep(str(tmp_path), lambda _: True)
    assert not (tmp_path / "owner").exists()


def test_a_sweep_removes_results_without_an_owner_and_texts_that_were_lost(tmp_path: Path) -> None:
    one, other = kept(tmp_path), kept(tmp_path)
    writing, lost = tmp_path / "owner" / ("a" * 24), tmp_path / "owner" / ("b" * 24)
    writing.write_text("it is being written")
    lost.write_text("its worker has ended")
    os.utime(lost, (1, 1))
    sweep(str(tmp_path), lambda each: each.handle == one.handle)
    assert [each.handle for _, each in iter_results(str(tmp_path))] == [one.handle]
    assert writing.exists()
    assert not lost.exists()
    remove(str(tmp_path / "owner"), other.handle)  # it is gone already


def test_a_piece_is_read_from_the_file(tmp_path: Path) -> None:
    one = kept(tmp_path)
    path = str(tmp_path / "owner" / one.handle)
    assert piece_of(path, 1, 5).text == "\né\n"
    assert piece_of(path, 30_000, 5) == Piece("", 30_000, 30_000, 30_000)


def test_clearing_removes_everything(tmp_path: Path) -> None:
    kept(tmp_path / "results")
    result_files.clear(str(tmp_path / "results"))
    result_files.clear(str(tmp_path / "results"))  # nothing is there
    assert not list(iter_results(str(tmp_path / "results")))
