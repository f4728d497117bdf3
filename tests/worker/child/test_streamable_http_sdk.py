"""Real servers of the official SDK, in each of the ways in which it serves HTTP."""

import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path

import pytest

from metamcp_worker.child import jsonrpc_lines
from tests.worker.child.far import Far, can, far
from tests.worker.rawhttp import until

FAKE = Path(__file__).parent.parent.parent / "fakes" / "sdk_http.py"
WAYS = ("stateful", "json", "stateless", "sse")
BIG = 16 * 1024 * 1024 - 1024

pytestmark = pytest.mark.process


@contextlib.contextmanager
def serving() -> Generator[dict[str, str]]:
    """A server for each way, all in one process: their URLs."""
    command = [sys.executable, str(FAKE), "--ways", *WAYS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield {way: process.stdout.readline().strip() for way in WAYS}
        finally:
            process.kill()


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with serving() as by_way:
        yield by_way


@contextlib.asynccontextmanager
async def met(url: str, era: str) -> AsyncGenerator[Far]:
    """A transport to the server at this URL, with the handshake done."""
    async with far(url) as there:
        if era == "modern":
            assert "result" in await there.discover()
        else:
            assert "result" in await there.initialize()
        yield there


ALL = [
    ("stateful", "modern"), ("stateful", "legacy"), ("json", "modern"), ("json", "legacy"),
    ("stateless", "modern"), ("stateless", "legacy"), ("sse", "legacy"),
]  # fmt: skip


@pytest.mark.promise("M11", "M12")
@pytest.mark.parametrize(("way", "era"), ALL)
async def test_lists_calls_and_the_largest_result_cross_in_every_way(
    urls: dict[str, str], way: str, era: str
) -> None:
    async with met(urls[way], era) as there:
        found = await there.ask("tools/list", own=True)
        assert {"echo", "big"} < {tool["name"] for tool in found["result"]["tools"]}
        assert await there.text(there.call("echo", text="äöü €")) == "äöü €"
        assert len(await there.text(there.call("big", size=BIG))) == BIG
        assert await there.text(there.call("progress")) == "done"
        assert there.ear.losses == []


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("way", "era"), [("stateful", "modern"), ("stateful", "legacy"), ("sse", "legacy")]
)
async def test_the_server_learns_of_a_cancellation(
    urls: dict[str, str], way: str, era: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    async with met(urls[way], era) as there:
        key = there.call("wait", journal=str(journal))
        await until(lambda: journal.read_text() == "began\n")
        there.drop(key)
        await until(lambda: journal.read_text() == "began\nended\n")
        assert await there.text(there.call("echo", text="hi")) == "hi"
        assert there.ear.answer(key) is None


@pytest.mark.promise("M23")
@pytest.mark.parametrize("way", ["stateful", "sse"])
async def test_progress_comes_before_the_answer(urls: dict[str, str], way: str) -> None:
    async with met(urls[way], "legacy") as there:
        key = there.call("progress")
        assert await there.text(key) == "done"
        note, stream, _ = there.ear.messages[-2]
        assert note["params"]["progressToken"] == int(key)
        assert stream == (None if way == "sse" else key)


@pytest.mark.promise("M23")
async def test_a_question_comes_on_the_stream_of_its_call_and_is_answered_in_its_session(
    urls: dict[str, str],
) -> None:
    async with met(urls["stateful"], "legacy") as there:
        key = there.call("ask", can("elicitation"))
        await there.ear.until(lambda: there.ear.messages[-1][0].get("method"))
        question, stream, via = there.ear.messages[-1]
        assert (question["method"], stream) == ("elicitation/create", key)
        answer = {"action": "accept", "content": {"name": "Ada"}}
        line = jsonrpc_lines.answer(
            json.dumps(question["id"]).encode(), json.dumps(answer).encode()
        )
        assert there.transport.write(line, via)
        assert "Ada" in await there.text(key)


@pytest.mark.promise("M23")
async def test_a_modern_server_says_on_the_subscription_what_changed(urls: dict[str, str]) -> None:
    async with met(urls["stateful"], "modern") as there:
        wanted = {"notifications": {"toolsListChanged": True}}
        key = there.send("subscriptions/listen", wanted, own=True)
        await there.ear.until(lambda: len(there.ear.messages) == 2)
        note, stream, _ = there.ear.messages[-1]
        assert note["method"] == "notifications/subscriptions/acknowledged"
        assert stream == key
