"""A client's pipes: how lines are cut, and what happens when somebody does not read."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_supervisor.bridge.pipes import (
    InputCutter,
    InputPipe,
    Output,
    OverlongInput,
    run_in_thread,
)
from metamcp_worker.ipc.envelope import ScannedId
from tests.worker.rawhttp import run


def cut(data: bytes, size: int, limit_bytes: int = 100) -> list[bytes | OverlongInput]:
    cutter = InputCutter(limit_bytes)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return [line for piece in pieces for line in cutter.feed(piece)] + cutter.rest()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_are_cut_at_line_ends_however_they_come(size: int) -> None:
    assert cut(b'{"a":1}\r\n\n  \n{"b":2}\nlast', size) == [b'{"a":1}', b'{"b":2}', b"last"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_above_the_limit_is_passed_over_and_the_next_is_read(size: int) -> None:
    data = b'{"jsonrpc":"2.0","id":7,"method":"' + b"x" * 100 + b'"}\n{"a":1}\n'
    assert cut(data, size) == [OverlongInput(ScannedId(b"7")), b'{"a":1}']
    assert cut(data[:120], size) == [OverlongInput(ScannedId(b"7"))]
    assert cut(b"x" * 100 + b"\r\n", size) == [b"x" * 100]
    late = b'{"method":"' + b"x" * 100 + b'","jsonrpc":"2.0","id":7}\n{"a":1}\n'
    assert cut(late, size) == [OverlongInput(ScannedId(b"7")), b'{"a":1}']


@pytest.mark.parametrize(
    ("head", "raw_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,', b"7"),
        (b'{ "id" : "a\\"b" , "x":1', b'"a\\"b"'),
        (b'{"method":"tools/call","jsonrpc":"2.0","id":-1,', b"-1"),
        (b'{"method":"tools/call","params":{"id":5,', b""),
        (b'{"id":7.5,', b""),
        (b'["id",7,', b""),
    ],
)
def test_the_id_of_such_a_line_is_known_if_it_stands_at_the_beginning(
    head: bytes, raw_id: bytes
) -> None:
    assert cut(head + b" " * 100 + b"1\n", 10) == [OverlongInput(ScannedId(raw_id))]


@given(st.lists(st.binary(max_size=30)), st.integers(1, 9))
def test_how_the_input_is_cut_never_matters(lines: list[bytes], size: int) -> None:
    data = b"\n".join(lines)
    assert cut(data, size, 20) == cut(data, len(data) + 1, 20)


def with_pipe(work: Callable[[FileIO, FileIO], None]) -> None:
    """Both ends are closed once, by the work or after it."""
    reader, writer = os.pipe()
    with FileIO(reader, "r") as source, FileIO(writer, "w") as sink:
        work(source, sink)


def test_the_end_of_the_input_is_seen_before_the_last_lines_are_taken() -> None:
    def work(reader: FileIO, writer: FileIO) -> None:
        async def main() -> None:
            source = InputPipe(reader.fileno())
            os.write(writer.fileno(), b"a\nb\nc")
            lines = source.lines()
            assert await anext(lines) == b"a"
            writer.close()
            await source.ended.wait()
            assert [line async for line in lines] == [b"b", b"c"]

        run(main)

    with_pipe(work)


def test_who_does_not_read_makes_the_others_wait_and_loses_nothing() -> None:
    def work(reader: FileIO, writer: FileIO) -> None:
        async def main() -> None:
            output = Output(writer.fileno(), lambda: None, limit_bytes=200_000)
            lines = [b"%d" % number * 50_000 for number in range(6)]
            for line in lines:
                output.put(line)
            assert output.full
            waiting = asyncio.ensure_future(output.room())
            source = InputPipe(reader.fileno(), 400_000)
            got = source.lines()
            assert [await anext(got) for _ in lines] == lines
            await waiting
            await output.close(1.0)
            writer.close()
            assert [line async for line in got] == []

        run(main)

    with_pipe(work)


def test_an_output_that_nobody_will_read_is_told_and_takes_no_more() -> None:
    def work(reader: FileIO, writer: FileIO) -> None:
        reader.close()

        async def main() -> None:
            lost = asyncio.Event()
            output = Output(writer.fileno(), lost.set, limit_bytes=10)
            output.put(b"x" * 20)
            await lost.wait()
            output.put(b"y" * 20)
            await output.room()
            await output.close(1.0)

        run(main)

    with_pipe(work)


async def test_what_is_done_apart_gives_its_result_or_its_error() -> None:
    assert await run_in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(lambda: 1 // 0)


def sockets() -> tuple[int, int]:
    near, far = socket.socketpair()
    return near.detach(), far.detach()


PAIRS: list[Callable[[], tuple[int, int]]] = [os.pipe, sockets]


@pytest.mark.parametrize("pair", PAIRS)
async def test_pipes_and_sockets_need_no_thread_and_stay_as_they_were(
    pair: Callable[[], tuple[int, int]],
) -> None:
    reader, writer = pair()
    threads = set(threading.enumerate())
    source = InputPipe(reader)
    output = Output(writer, lambda: None, limit_bytes=200_000)
    got = source.lines()
    lines = [b"%d" % number * 300_000 for number in range(6)]
    for line in lines:
        output.put(line)
    assert output.full
    assert [await anext(got) for _ in lines] == lines
    assert set(threading.enumerate()) <= threads
    assert os.get_blocking(reader)
    assert os.get_blocking(writer)
    await output.room()
    await output.close(1.0)
    os.close(writer)
    assert [line async for line in got] == []
    os.close(reader)


@pytest.mark.parametrize("pair", PAIRS)
async def test_an_output_learns_that_its_reader_left(pair: Callable[[], tuple[int, int]]) -> None:
    reader, writer = pair()
    lost = asyncio.Event()
    output = Output(writer, lost.set, limit_bytes=10)
    for _ in range(10):
        output.put(b"x" * 100_000)
    os.close(reader)
    await lost.wait()
    await output.room()
    await output.close(1.0)
    os.close(writer)


@pytest.mark.parametrize("pair", PAIRS)
async def test_a_client_that_writes_faster_than_its_lines_are_taken_has_to_wait(
    pair: Callable[[], tuple[int, int]],
) -> None:
    reader, writer = pair()
    source = InputPipe(reader)
    lines = [b"%d" % (number % 10) * 50_000 for number in range(40)]
    wrote = asyncio.ensure_future(
        asyncio.to_thread(lambda: [os.write(writer, line + b"\n") for line in lines])
    )
    await asyncio.wait({wrote}, timeout=0.1)
    assert not wrote.done()
    got = source.lines()
    assert [await anext(got) for _ in lines] == lines
    await wrote
    os.close(writer)
    assert [line async for line in got] == []
    os.close(reader)


async def test_a_file_is_read_and_written_too(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n" * 100_000)
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as taken:
        output = Output(taken.fileno(), lambda: None)
        async for line in InputPipe(given.fileno()).lines():
            assert isinstance(line, bytes)
            output.put(line)
        await output.close(60.0)
    assert (tmp_path / "out").read_bytes() == b"a\n" * 100_000
