"""Recording beside the calls: in batches, by a thread, and never in their way."""

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_records.call_log_io import QUEUE_BYTES_MAX, Recorder
from metamcp_worker.ipc.frames import CallFrame
from metamcp_worker.ipc.spec import RecordingSpec
from tests.waiting import until

pytestmark = pytest.mark.promise("M89")

REQUEST = McpRequest("tools/call", {}, {}, b"", modern=True)


def _uncancelled(call: Call, why: str) -> None:
    """Nobody cancels these."""


def ended(recorder: Recorder, first: int, count: int, body: bytes = b"{}") -> None:
    for number in range(first, first + count):
        frame = CallFrame(number, "tools/call", b"{}")
        call = Call("git", frame, _uncancelled, 0.0, label="tools/call")
        recorder.on_call_start(call, "git__x", REQUEST, {}, "")
        recorder.on_call_end(call, CallAnswer(body), 0.1, "")


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines that are whole: a batch may be under way."""
    text = "".join(path.read_text() for path in sorted(folder.glob("calls-*.jsonl")))
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def with_recorder(
    folder: Path, talk: Callable[[Recorder], Awaitable[None]], servers: dict[str, str]
) -> None:
    async def main() -> None:
        recorder = Recorder(0)
        wanted = recorder.adjust(RecordingSpec(folder=str(folder), servers=servers))
        assert (wanted is recorder) is bool(servers)
        await talk(recorder)
        await recorder.close()

    asyncio.run(main())


async def fact(found: Callable[[], object]) -> None:
    await asyncio.to_thread(until, found, "it is written")


@contextmanager
def writer_held() -> Generator[tuple[threading.Event, threading.Event]]:
    """The thread that writes is held when it says that it cannot: two events, that it is, and that
    it may go on."""
    held, go_on = threading.Event(), threading.Event()

    class Holding(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            held.set()
            go_on.wait(30)

    room, holding = logging.getLogger("metamcp.recording"), Holding()
    room.addHandler(holding)
    try:
        yield held, go_on
    finally:
        go_on.set()
        room.removeHandler(holding)


def test_calls_are_written_soon_and_in_order(tmp_path: Path) -> None:
    async def talk(recorder: Recorder) -> None:
        ended(recorder, 1, 200)
        await fact(lambda: len(lines(tmp_path)) == 200)

    with_recorder(tmp_path, talk, {"git": "metadata"})
    assert [line["call"] for line in lines(tmp_path)] == list(range(1, 201))


def test_a_front_that_ends_writes_the_rest(tmp_path: Path) -> None:
    async def talk(recorder: Recorder) -> None:
        ended(recorder, 1, 100)

    with_recorder(tmp_path, talk, {"git": "full"})
    assert len(lines(tmp_path)) == 100


async def test_what_is_still_to_be_written_when_a_front_ends_counts_as_lost(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.write_text("a file is in the way")

    with writer_held() as (held, _):
        recorder = Recorder(0)
        recorder.adjust(RecordingSpec(folder=str(folder), servers={"git": "metadata"}))
        ended(recorder, 1, 1)
        await fact(held.is_set)
        ended(recorder, 2, 3)
        await recorder.close()
        assert recorder.counts() == {"written": 0, "lost": 4}


def test_without_anything_to_record_there_is_nothing(tmp_path: Path) -> None:
    async def talk(recorder: Recorder) -> None:
        ended(recorder, 1, 1)

    with_recorder(tmp_path, talk, {})
    assert list(tmp_path.iterdir()) == []


async def test_what_waits_for_a_disk_that_hangs_is_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.write_text("a file is in the way")
    body = b'"' + b"x" * (1024 * 1024 - 2) + b'"'

    with writer_held() as (held, go_on):
        recorder = Recorder(0)
        recorder.adjust(
            RecordingSpec(folder=str(folder), servers={"git": "full"}, body_bytes=len(body))
        )
        ended(recorder, 0, 1)
        await fact(held.is_set)
        for number in range(1, 41, 8):
            ended(recorder, number, 8, body)
            await fact(lambda: not recorder.waits)
        assert recorder.waiting_bytes <= QUEUE_BYTES_MAX + len(body)
        go_on.set()
        await fact(lambda: recorder.idle)
        assert recorder.waiting_bytes == 0
        assert recorder.counts() == {"written": 0, "lost": 41}, "some of them in the queue"
        await recorder.close()


def test_what_cannot_be_written_is_said_once_counted_and_told_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "calls"
    folder.write_text("a file is in the way")

    async def talk(recorder: Recorder) -> None:
        for _ in range(3):
            ended(recorder, 1, 40)
            await fact(lambda: recorder.idle)
        folder.unlink()
        ended(recorder, 500, 1)
        await fact(lambda: folder.exists() and lines(folder))
        ended(recorder, 501, 1)
        await fact(lambda: len(lines(folder)) == 3)
        assert recorder.counts() == {"written": 2, "lost": 120}

    with caplog.at_level("WARNING"):
        with_recorder(folder, talk, {"git": "metadata"})
    assert [line.get("call") for line in lines(folder)] == [500, None, 501]
    assert lines(folder)[1] == {"lost": 120}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert "they go on" in said[0]
    assert "lost meanwhile: 120" in said[1]
