"""A whole worker with a remote server: what fronts and the supervisor see of it."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamcp_worker.ipc.frames import Cancel, Error, QuestionFrame, ReplyFrame, Result
from metamcp_worker.ipc.spec import First
from tests.waiting import until
from tests.worker.child.test_streamable_http_failures import free_port, process
from tests.worker.child.test_streamable_http_sdk import serving
from tests.worker.child.worker import ChildWorker

pytestmark = pytest.mark.process
CAN = b'{"clientInfo":{"name":"c","version":"1"},"clientCapabilities":{"elicitation":{}}}'


def remote(url: str, **spec: object) -> ChildWorker:
    return ChildWorker(command=(), url=url, **spec)


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with serving() as by_way:
        yield by_way


@pytest.mark.promise("M11", "M12")
@pytest.mark.parametrize(
    ("way", "protocol"),
    [("stateful", "2026-07-28"), ("json", "2026-07-28"), ("sse", "2025-11-25")],
)
def test_a_remote_server_is_met_listed_and_called(
    urls: dict[str, str], way: str, protocol: str
) -> None:
    with remote(urls[way]) as worker:
        found = worker.ready()
        assert found.protocol == protocol
        assert len(found.tools) == 5
        front = worker.front()
        assert front.text(front.tool("echo", text="hi")) == "hi"
        calls = [front.tool("echo", text=str(number)) for number in range(20)]
        answers = [front.read() for _ in calls]
        assert sorted(one.id for one in answers if isinstance(one, Result)) == calls
        assert worker.stop().reason == "clean"


@pytest.mark.promise("M23")
@pytest.mark.parametrize("era", ["auto", "modern", "legacy", "legacy-first"])
def test_progress_and_cancellation_cross_in_both_eras(
    urls: dict[str, str], era: First, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    with remote(urls["stateful"], era=era) as worker:
        modern = worker.ready().protocol == "2026-07-28"
        assert modern is (era in ("auto", "modern"))
        front = worker.front()
        params = '{"name":"progress","arguments":{}}'
        assert front.text(front.call("tools/call", params, wants_progress=True)) == "done"
        assert front.progress() == [{"progress": 1, "total": 2, "message": "half"}]
        number = front.tool("wait", journal=str(journal))
        until(lambda: journal.read_text() == "began\n", "the call runs")
        front.send(Cancel(number))
        until(lambda: journal.read_text() == "began\nended\n", "the server has heard of it")
        assert front.text(front.tool("echo", text="hi")) == "hi"


@pytest.mark.promise("M23")
def test_a_question_of_a_remote_legacy_server_reaches_the_caller_and_its_answer_comes_back() -> (
    None
):
    with process("--era", "legacy") as (_, url), remote(url) as worker:
        worker.ready()
        front = worker.front()
        number = front.call("tools/call", '{"name":"ask","arguments":{}}', caller=CAN)
        asked = front.read()
        assert isinstance(asked, QuestionFrame)
        assert (asked.id, asked.method) == (number, "elicitation/create")
        front.send(ReplyFrame(asked.question, b'{"action":"decline"}'))
        assert json.loads(front.text(number))["result"] == {"action": "decline"}


@pytest.mark.promise("M18")
def test_a_url_that_nobody_answers_is_a_reason_to_try_again() -> None:
    with remote(f"http://127.0.0.1:{free_port()}/mcp") as worker:
        down = worker.down()
        assert (down.reason, down.probing) == ("exit", False)
        assert "refused" in down.message


@pytest.mark.promise("M75")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_death_of_a_remote_server_answers_every_waiting_call(era: str) -> None:
    flags = ("--era", era, "--answer", "events")
    with process(*flags) as (far, url), remote(url) as worker:
        worker.ready()
        front = worker.front()
        calls = [front.tool("wait") for _ in range(8)]
        assert front.text(front.tool("echo", text="hi")) == "hi"
        os.kill(far.pid, signal.SIGKILL)
        failed = [front.read() for _ in calls]
        assert all(isinstance(frame, Error) for frame in failed)
        assert front.down()["reason"] == "exit"
        assert worker.down().reason == "exit"


def test_a_server_that_wants_credentials_says_which_setting_is_missing() -> None:
    with process("--status", "401") as (_, url), remote(url) as worker:
        down = worker.down()
        assert down.reason == "authorization"
        assert "set `headers` or `oauth`" in down.message
