"""How long a call waits for a server: as the server says, or as for any."""

import pytest

from metamcp_worker.front_calls import call_router
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Result, ServerGone
from tests.worker.front.callers import answer_of
from tests.worker.front.peers import WAIT_S, error_data
from tests.worker.front.routed import attached_front, opened_front

from ..rawhttp import until

LONG_MS = int(WAIT_S * 1000)


@pytest.mark.promise("M75")
async def test_a_call_waits_for_a_server_that_starts_on_the_first_call() -> None:
    async with opened_front(hold_s=0.001) as front:
        front.state("idle", hold_ms=LONG_MS)
        call = front.call()
        assert front.wanted == ["git"]
        front.state("warming", generation=1, hold_ms=LONG_MS)
        peer = await front.attach(generation=1)
        peer.write(Result((await peer.call()).id, b'"started"'))
        assert await answer_of(call) == CallAnswer(b'"started"')


@pytest.mark.promise("M72")
async def test_a_call_that_came_before_the_news_of_its_servers_end_is_a_reason_to_start_too() -> (
    None
):
    async with attached_front() as (front, peer):
        running = front.call()
        await peer.call()
        peer.write(ServerGone(b"{}"))
        await answer_of(running)
        call = front.call()
        assert front.wanted == []
        front.state("error", generation=1, retry_after_ms=300)
        assert front.wanted == ["git"]
        assert not call.answer.is_done()


async def test_a_server_that_is_not_to_be_waited_for_answers_at_once() -> None:
    async with opened_front() as front:
        front.state("idle", hold_ms=0)
        assert front.call().answer.result().code == Code.SERVER_DOWN
        assert front.wanted == ["git"]


async def test_a_call_that_waited_in_vain_is_told_that_the_server_is_still_starting() -> None:
    async with opened_front() as front:
        front.state("idle", hold_ms=1)
        call = front.call()
        front.state("warming", generation=1, hold_ms=1)
        answer = await answer_of(call)
        message = codec.value(answer.body)["message"]
        assert "'git' is not available: it is still starting after 0.001 s" in message
        assert error_data(answer.body)["may_have_run"] is False


async def test_a_server_that_says_later_how_long_it_takes_is_waited_for_as_long() -> None:
    async with opened_front(hold_s=1.0) as front:
        call = front.call()
        front.state("warming", generation=1, hold_ms=LONG_MS)
        assert call.deadline == call.started + WAIT_S
        front.state("warming", generation=1)
        assert call.deadline == call.started + WAIT_S


async def test_the_hold_decides_whether_the_next_start_is_near() -> None:
    async with opened_front(hold_s=1.0) as front:
        front.state("error", retry_after_ms=5000)
        assert front.call().answer.is_done()
        front.state("error", retry_after_ms=5000, hold_ms=LONG_MS)
        assert not front.call().answer.is_done()
        front.state("error", retry_after_ms=LONG_MS + 1, hold_ms=LONG_MS)
        assert front.call().answer.is_done()


@pytest.mark.promise("M72")
async def test_a_call_that_starts_a_failed_server_waits_for_it_and_is_told_of_its_new_failure() -> (
    None
):
    async with opened_front() as front:
        front.state("error", call_after_ms=LONG_MS)
        assert front.call().answer.is_done(), "no call starts it yet"
        now = front.routing.loop.time()
        await until(lambda: front.routing.loop.time() > now)
        front.state("error", call_after_ms=0)
        call = front.call()
        assert front.wanted == ["git", "git"]
        front.state("warming", generation=2)
        assert not call.answer.is_done()
        front.state("error", generation=2, call_after_ms=LONG_MS)
        assert "r-error" in error_data(call.answer.result().body)["reason"]


@pytest.mark.promise("M98")
async def test_calls_that_waited_in_vain_leave_room_for_others() -> None:
    async with opened_front() as front:
        front.state("warming", hold_ms=1)
        most = bytes(call_router.HELD_BYTES_MAX)
        assert (await answer_of(front.call(most))).code == Code.SERVER_DOWN
        front.state("warming", hold_ms=LONG_MS)
        assert not front.call(most).answer.is_done()


async def test_calls_with_different_times_end_each_in_its_own() -> None:
    async with opened_front() as front:
        front.state("warming", hold_ms=LONG_MS)
        long = front.call(b"1")
        front.state("warming", hold_ms=1)
        short = front.call(b"2")
        assert (await answer_of(short)).code == Code.SERVER_DOWN
        assert not long.answer.is_done()
        assert front.routing.count_held_calls() == 1
        peer = await front.attach()
        assert (await peer.call()).params == b"1"
