"""A worker tells when its server had a traced call, and says nothing of the others."""

import pytest

from metamcp_worker.child.actions import ReplyToFront
from metamcp_worker.ipc import messages
from metamcp_worker.ipc.frames import Error, Notice, Result
from metamcp_worker.ipc.messages import ServerCallTimes
from tests.worker.child.talk import Talk, ready_legacy, ready_modern

pytestmark = pytest.mark.promise("M88")


def leg(front: int, call: int, sent: float, heard: float) -> ReplyToFront:
    told = messages.pack_leg(ServerCallTimes(call, sent, heard, False))
    return ReplyToFront(front, Notice(messages.NOTICE, told))


@pytest.mark.parametrize("ready", [ready_legacy, ready_modern])
def test_the_answer_to_a_traced_call_comes_after_word_of_when_it_was(
    ready: type[Talk],
) -> None:
    talk = ready()
    talk.now = 200.0
    talk.call(3, 70, traced=True)
    talk.now = 201.5
    first, *rest = talk.answers("tools/call", {})
    assert first == leg(3, 70, 200.0, 201.5)
    assert rest == [ReplyToFront(3, Result(70, b"{}"))]


def test_a_server_that_is_reached_by_url_is_far() -> None:
    talk = ready_legacy(url="http://x/mcp", command=())
    talk.call(3, 70, traced=True)
    first, _ = talk.answers("tools/call", {})
    assert isinstance(first, ReplyToFront)
    assert isinstance(first.frame, Notice)
    assert messages.unpack_leg(first.frame.body) == ServerCallTimes(70, talk.now, talk.now, True)


def test_an_error_is_an_answer_too() -> None:
    talk = ready_legacy()
    talk.call(3, 70, traced=True)
    first, second = talk.refuses("tools/call", -32000)
    assert first == leg(3, 70, talk.now, talk.now)
    assert isinstance(second, ReplyToFront)
    assert isinstance(second.frame, Error)


def test_of_a_call_that_waited_its_turn_the_wait_is_not_the_servers() -> None:
    talk = ready_legacy(concurrency=1)
    talk.call(3, 70)
    talk.call(3, 71, traced=True)
    talk.now = 300.0
    assert talk.answers("tools/call", {}) == [ReplyToFront(3, Result(70, b"{}"))]
    talk.now = 301.0
    assert talk.answers("tools/call", {})[0] == leg(3, 71, 300.0, 301.0)


def test_of_other_calls_not_a_word_is_said() -> None:
    talk = ready_legacy()
    talk.call(3, 70)
    assert talk.answers("tools/call", {}) == [ReplyToFront(3, Result(70, b"{}"))]
