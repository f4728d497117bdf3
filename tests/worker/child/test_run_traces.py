"""A worker tells when its server had a traced call, and says nothing of the others."""

import pytest

from metamcp_worker.child.actions import ReplyToFront
from metamcp_worker.ipc import messages
from metamcp_worker.ipc.frames import Error, Notice, Result
from metamcp_worker.ipc.messages import ServerCallTimes
from tests.worker.child.talk import Talk, ready_legacy, ready_modern

pytestmark = pytest.mark.promise("M88")


def times(reply: object) -> ServerCallTimes | None:
    """What front 3 is told."""
    assert isinstance(reply, ReplyToFront)
    assert isinstance(reply.frame, Notice)
    assert (reply.front, reply.frame.method) == (3, messages.NOTICE)
    return messages.unpack_leg(reply.frame.body)


@pytest.mark.parametrize(
    ("ready", "protocol"), [(ready_legacy, "2025-11-25"), (ready_modern, "2026-07-28")]
)
def test_the_answer_to_a_traced_call_comes_after_word_of_when_it_was(
    ready: type[Talk], protocol: str
) -> None:
    talk = ready()
    talk.now = 200.0
    talk.call(3, 70, traced=True)
    talk.now = 201.5
    first, *rest = talk.answers("tools/call", {})
    told = times(first)
    assert told is not None
    assert told[:4] == (70, 200.0, 201.5, False)
    assert told.request.isdigit()
    assert (told.protocol, told.address, told.port) == (protocol, "", 0)
    assert rest == [ReplyToFront(3, Result(70, b"{}"))]


@pytest.mark.parametrize(
    ("url", "port"), [("http://x/mcp", 80), ("https://u:p@x/mcp", 443), ("https://x:8443/", 8443)]
)
def test_a_server_that_is_reached_by_url_is_far_and_has_an_address(url: str, port: int) -> None:
    talk = ready_legacy(url=url, command=())
    talk.call(3, 70, traced=True)
    first, _ = talk.answers("tools/call", {})
    told = times(first)
    assert told is not None
    assert (told.far, told.address, told.port) == (True, "x", port)


def test_an_error_is_an_answer_too() -> None:
    talk = ready_legacy()
    talk.call(3, 70, traced=True)
    first, second = talk.refuses("tools/call", -32000)
    told = times(first)
    assert told is not None
    assert told[:3] == (70, talk.now, talk.now)
    assert isinstance(second, ReplyToFront)
    assert isinstance(second.frame, Error)


def test_of_a_call_that_waited_its_turn_the_wait_is_not_the_servers() -> None:
    talk = ready_legacy(concurrency=1)
    talk.call(3, 70)
    talk.call(3, 71, traced=True)
    talk.now = 300.0
    assert talk.answers("tools/call", {}) == [ReplyToFront(3, Result(70, b"{}"))]
    talk.now = 301.0
    told = times(talk.answers("tools/call", {})[0])
    assert told is not None
    assert told[:3] == (71, 300.0, 301.0)


def test_of_other_calls_not_a_word_is_said() -> None:
    talk = ready_legacy()
    talk.call(3, 70)
    assert talk.answers("tools/call", {}) == [ReplyToFront(3, Result(70, b"{}"))]
