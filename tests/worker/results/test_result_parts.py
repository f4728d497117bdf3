"""Parts of a kept result: values at paths, hits of expressions, and the process that takes them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import ResultLimits
from metamcp_worker.results import result_files
from metamcp_worker.results.result_files import ResultReader, keep
from metamcp_worker.results.result_parts import PartMissing, hits, read_part, value_at
from metamcp_worker.results.result_summary import PartRequest, Piece, ResultOwner, ResultPlace

DATA: Any = {"rows": [{"name": "é", "n": 1.0}, {"a/b": {"~": None}}], "": "top"}
RAW = json.dumps(DATA).encode()


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", RAW),
        ("/rows/0/name", "é".encode()),
        ("/rows/0/n", b"1.0"),
        ("/rows/1/a~1b/~0", b"null"),
        ("/", b"top"),
        ("/rows/0", b'{"name": "\\u00e9", "n": 1.0}'),
    ],
)
def test_a_value_is_taken_by_its_path_as_it_came(pointer: str, value: bytes) -> None:
    assert value_at(RAW, pointer) == value


@pytest.mark.parametrize(
    ("pointer", "why"),
    [
        ("rows", "begins with a slash"),
        ("/row", "'row' is not at the top; there are: rows, "),
        ("/rows/7", "The array at /rows has 2 items"),
        ("/rows/-1", "'-1' is not one"),
        ("/rows/0/n/x", "The value at /rows/0/n is not an object or array"),
    ],
)
def test_a_path_that_leads_nowhere_is_explained(pointer: str, why: str) -> None:
    with pytest.raises(PartMissing) as error:
        value_at(RAW, pointer)
    assert why in str(error.value)


def test_a_text_that_is_not_json_has_no_paths() -> None:
    with pytest.raises(PartMissing, match="not JSON"):
        value_at(b"{a log", "/a")


def test_a_hit_has_its_offset_in_bytes_and_its_line() -> None:
    data = "one é\ntwo cat\nthree cat\n".encode()
    assert hits(data, "cat$", 0, 1000).text == "11: two cat\n21: three cat\n"
    assert hits(data, "cat$", 12, 1000).text == "21: three cat\n"
    assert hits(data, "é", 5, 1000) == Piece("", 6, len(data), len(data))


def test_hits_on_one_long_line_show_what_is_around_them_once() -> None:
    data = b"x" * 500 + b"cat cat" + b"y" * 500
    (line,) = hits(data, "cat", 0, 1000).text.splitlines()
    assert line == f"500: {'x' * 100}cat cat{'y' * 96}"


def test_more_hits_than_fit_go_on_at_the_next_one() -> None:
    data = b"cat\n" * 100
    first = hits(data, "cat", 0, 50)
    assert len(first.text) <= 50
    assert hits(data, "cat", first.end, 50).text.startswith(f"{first.end}: cat")


def test_a_wrong_expression_is_explained() -> None:
    with pytest.raises(PartMissing, match="The expression is wrong: missing"):
        hits(b"", "(", 0, 10)


def test_offset_and_length_are_of_the_value(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(json.dumps({"log": "0123456789"}))
    assert read_part(str(tmp_path), PartRequest(path.name, 2, 3, "/log")) == Piece("234", 2, 5, 10)


def kept(folder: Path, text: str) -> str:
    limits = ResultLimits(folder=str(folder), max_bytes=8192, keep_s=60.0, total_bytes=1 << 30)
    where = ResultPlace(limits, ResultOwner("default", "dev", "local"))
    result = json.dumps({"content": [{"type": "text", "text": text}]}).encode()
    found = keep(result, codec.dump(where), "git", "log")
    assert found is not None
    return found[1].handle


def read(
    folder: Path, handle: str, pointer: str | None = None, grep: str = "", part_s: float = 20.0
) -> Piece | str:
    async def main() -> Piece | str:
        answer = asyncio.get_running_loop().create_future()
        ResultReader(part_s).read(
            str(folder), PartRequest(handle, 0, 100, pointer, grep), answer.set_result
        )
        async with asyncio.timeout(30):
            found: Piece | str = await answer
            return found

    return asyncio.run(main())


def test_a_process_of_its_own_takes_a_part(tmp_path: Path) -> None:
    handle = kept(tmp_path, json.dumps({"rows": ["a" * 9000, "the last"]}))
    assert read(tmp_path, handle, "/rows/1") == Piece("the last", 0, 8, 8)
    assert "not at the top" in str(read(tmp_path, handle, "/row"))
    assert "the last" in str(read(tmp_path, handle, "", "last"))
    assert read(tmp_path, "a" * 24) == result_files.UNKNOWN.format("a" * 24)


def test_an_expression_without_end_is_ended(tmp_path: Path) -> None:
    handle = kept(tmp_path, "a" * 9000 + "!")
    assert "The part took more than" in str(read(tmp_path, handle, None, "(a|a)*b", 1.0))


def test_too_many_parts_at_once_are_refused(tmp_path: Path) -> None:
    handle = kept(tmp_path, "a" * 9000)

    async def main() -> list[Piece | str]:
        reader, loop = ResultReader(), asyncio.get_running_loop()
        answers: list[asyncio.Future[Piece | str]] = []
        for _ in range(result_files.PARTS_MAX + 1):
            answers.append(loop.create_future())
            reader.read(
                str(tmp_path), PartRequest(handle, 0, 100, None, "b"), answers[-1].set_result
            )
        async with asyncio.timeout(30):
            return await asyncio.gather(*answers)

    *found, last = asyncio.run(main())
    assert set(found) == {Piece("", 0, 9000, 9000)}
    assert "try again in a moment" in str(last)
