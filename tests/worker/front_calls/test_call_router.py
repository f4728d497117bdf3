"""Calls on their way, over real pipes: sent, held, answered once, failed at once."""

import os

import pytest

from metamcp_worker.front_calls import call_router
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import (
    BODY_BYTES_MAX,
    FRAME_BYTES_MAX,
    CallFrame,
    Error,
    Notice,
    Progress,
    Result,
    ServerGone,
)
from tests.worker.front.callers import Caller, answer_of
from tests.worker.front.peers import WAIT_S, error_data
from tests.worker.front.routed import attached_front, opened_front


@pytest.mark.promise("M21")
async def test_each_answer_reaches_the_call_that_asked() -> None:
    async with attached_front() as (front, peer):
        first, second = front.call(b'{"n":1}'), front.call(b'{"n":2}')
        asked = [await peer.call(), await peer.call()]
        assert [one.params for one in asked] == [b'{"n":1}', b'{"n":2}']
        assert front.routing.inflight() == {"git": 2}
        peer.write(Result(asked[1].id, b'"two"'))
        peer.write(Error(asked[0].id, b'{"code":-31999,"message":"no","data":[1.0]}'))
        assert await answer_of(second) == CallAnswer(b'"two"')
        expected = CallAnswer(b'{"code":-31999,"message":"no","data":[1.0]}', -31999)
        assert await answer_of(first) == expected
        assert front.routing.inflight() == {"git": 0}


@pytest.mark.promise("M23")
async def test_progress_reaches_its_call_in_order_and_before_the_answer() -> None:
    async with attached_front() as (front, peer):
        caller = Caller()
        call = front.call(caller=caller)
        asked = await peer.call()
        silent = Progress(asked.id, b"")  # of a token that is the gateway's own
        heard = (Progress(asked.id, b"1"), Progress(999, b"x"), Progress(asked.id, b"2"))
        for frame in (silent, *heard):
            peer.write(frame)
        peer.write(Result(asked.id, b"{}"))
        await answer_of(call)
        assert caller.progress == [b"1", b"2"]


@pytest.mark.promise("M75")
@pytest.mark.parametrize("told", [True, False])
async def test_a_dead_server_answers_every_waiting_call_with_a_typed_error(told: bool) -> None:
    async with opened_front() as front:
        peer = await front.attach(generation=7)
        calls = [front.call() for _ in range(3)]
        for _ in calls:
            await peer.call()
        if told:
            peer.write(ServerGone(b'{"reason":"signal","message":"It was killed by SIGKILL."}'))
        else:
            peer.close()
        for call in calls:
            answer = await answer_of(call)
            assert answer.code == Code.SERVER_DOWN
            assert error_data(answer.body) == {
                "reason": "signal" if told else "worker",
                "server": "git",
                "generation": 7,
                "retry_after_ms": None,
                "may_have_run": True,
            }
            assert told == (b"It was killed by SIGKILL." in answer.body)


@pytest.mark.promise("M75")
async def test_calls_for_a_server_that_comes_back_wait_and_go_in_order() -> None:
    async with opened_front() as front:
        front.state("warming", generation=2)
        calls = [front.call(b"%d" % number) for number in range(5)]
        assert front.routing.count_held_calls() == 5
        peer = await front.attach(generation=2)
        for number, call in enumerate(calls):
            asked = await peer.call()
            assert asked.params == b"%d" % number
            peer.write(Result(asked.id, b"{}"))
            await answer_of(call)


async def test_calls_after_a_crash_wait_for_the_next_generation() -> None:
    async with attached_front() as (front, peer):
        running = front.call()
        await peer.call()
        peer.write(ServerGone(b"{}"))
        assert (await answer_of(running)).code == Code.SERVER_DOWN
        waiting = front.call()
        front.state("error", generation=1, retry_after_ms=500)
        front.state("warming", generation=2)
        assert not waiting.answer.is_done()
        again = await front.attach(generation=2)
        again.write(Result((await again.call()).id, b'"ran"'))
        assert await answer_of(waiting) == CallAnswer(b'"ran"')


@pytest.mark.promise("M75")
@pytest.mark.parametrize("state", ["stopped", "error", "draining"])
async def test_a_server_that_does_not_come_back_answers_at_once(state: str) -> None:
    async with opened_front() as front:
        held = front.call()
        front.state(state, generation=3)
        later = front.call()
        for call in (held, later):
            assert call.answer.is_done()
            assert error_data(call.answer.result().body) == {
                "reason": f"r-{state}",
                "server": "git",
                "generation": 3,
                "retry_after_ms": None,
                "may_have_run": False,
            }


async def test_a_restart_that_is_further_away_than_the_hold_is_told_with_its_time() -> None:
    async with opened_front() as front:
        front.state("error", retry_after_ms=60_000)
        call = front.call()
        assert error_data(call.answer.result().body)["retry_after_ms"] == 60_000


async def test_a_call_is_held_no_longer_than_the_hold() -> None:
    async with opened_front(hold_s=0.01) as front:
        front.state("warming")
        answer = await answer_of(front.call())
        assert answer.code == Code.SERVER_DOWN
        assert not error_data(answer.body)["may_have_run"]


@pytest.mark.promise("M98")
async def test_more_bytes_than_may_be_held_are_overload_until_some_are_gone() -> None:
    async with opened_front() as front:
        half = bytes(call_router.HELD_BYTES_MAX // 2)
        first, second, third = front.call(half), front.call(half), front.call(b"0")
        assert third.answer.result().code == Code.OVERLOADED
        first.cancel("")
        assert not front.call(half).answer.is_done()
        front.state("stopped")
        assert second.answer.result().code == Code.SERVER_DOWN


@pytest.mark.promise("M98")
async def test_more_calls_than_may_be_held_are_overload() -> None:
    async with opened_front() as front:
        calls = [front.call() for _ in range(call_router.HELD_MAX + 1)]
        assert [call.answer.is_done() for call in calls] == [False] * call_router.HELD_MAX + [True]
        assert calls[-1].answer.result().code == Code.OVERLOADED


async def test_an_idle_server_is_wanted_once_however_many_ask() -> None:
    async with opened_front() as front:
        front.state("idle")
        calls = [front.call(), front.call()]
        assert front.wanted == ["git"]
        assert not any(call.answer.is_done() for call in calls)


@pytest.mark.promise("M23")
async def test_a_cancelled_call_is_told_to_its_server_and_its_late_answer_is_dropped() -> None:
    async with attached_front() as (front, peer):
        call = front.call()
        asked = await peer.call()
        call.cancel("the client is gone")
        call.cancel("twice")
        cancelled = await peer.cancelled()
        assert (cancelled.id, cancelled.reason) == (asked.id, b"the client is gone")
        assert call.answer.is_cancelled()
        peer.write(Result(asked.id, b"{}"))
        assert await front.late.get() == "git"
        assert front.ended == [(call.id, None)]
        assert peer.quiet()


async def test_a_held_call_that_is_cancelled_never_reaches_the_server() -> None:
    async with opened_front() as front:
        gone, stays = front.call(b"1"), front.call(b"2")
        gone.cancel("")
        peer = await front.attach()
        assert (await peer.call()).params == b"2"
        assert peer.quiet()
        assert not stays.answer.is_done()


async def test_a_worker_that_never_answers_meets_the_deadline_of_the_front() -> None:
    async with opened_front(timeout_s=-call_router.MARGIN_S) as front:
        peer = await front.attach(generation=4)
        call = front.call()
        asked = await peer.call()
        answer = await answer_of(call)
        assert answer.code == Code.TIMED_OUT
        assert error_data(answer.body)["generation"] == 4
        assert (await peer.cancelled()).id == asked.id


@pytest.mark.promise("M78")
async def test_a_newer_generation_takes_new_calls_while_the_old_one_answers_its_own() -> None:
    async with attached_front() as (front, old):
        first = front.call(b"1")
        asked = await old.call()
        new = await front.attach(generation=2)
        second = front.call(b"2")
        new.write(Result((await new.call()).id, b'"new"'))
        old.write(Result(asked.id, b'"old"'))
        assert await answer_of(first) == CallAnswer(b'"old"')
        assert await answer_of(second) == CallAnswer(b'"new"')
        old.close()
        third = front.call(b"3")
        new.write(Result((await new.call()).id, b"3"))
        assert await answer_of(third) == CallAnswer(b"3")


async def test_news_of_an_older_generation_do_not_touch_the_newer_one() -> None:
    async with opened_front() as front:
        peer = await front.attach(generation=2)
        front.state("error", generation=1)
        call = front.call()
        peer.write(Result((await peer.call()).id, b"{}"))
        assert await answer_of(call) == CallAnswer(b"{}")


async def test_a_forgotten_server_answers_what_it_has_and_takes_nothing_more() -> None:
    async with attached_front() as (front, peer):
        call = front.call()
        asked = await peer.call()
        front.routing.forget("git")
        peer.write(Result(asked.id, b"{}"))
        assert await answer_of(call) == CallAnswer(b"{}")
        held = front.call()
        front.routing.forget("git")
        assert held.answer.result().code == Code.SERVER_DOWN


@pytest.mark.promise("M98")
async def test_a_request_that_no_frame_can_hold_is_too_large() -> None:
    async with opened_front() as front:
        await front.attach()
        call = front.call(bytes(FRAME_BYTES_MAX))
        assert call.answer.result().code == Code.TOO_LARGE


@pytest.mark.process
@pytest.mark.promise("M98")
async def test_a_worker_that_does_not_read_is_overload_for_whoever_calls_next() -> None:
    async with opened_front() as front:
        await front.attach()
        body = b'"' + b"x" * BODY_BYTES_MAX + b'"'
        calls = [front.call(body) for _ in range(5)]
        assert calls[-1].answer.result().code == Code.OVERLOADED
        assert not calls[0].answer.is_done()


async def test_frames_that_are_no_answers_disturb_nobody() -> None:
    async with attached_front() as (front, peer):
        call = front.call()
        peer.write(Notice("notifications/message", b"{}"))
        peer.write(CallFrame(1, "ping", b"{}"))
        peer.write(Result((await peer.call()).id, b"{}"))
        assert await answer_of(call) == CallAnswer(b"{}")


@pytest.mark.parametrize("body", [b"[]", b'{"message":"no code"}', b'{"code":0}', b'{"code":"x"}'])
async def test_an_error_without_a_usable_code_is_still_an_error(body: bytes) -> None:
    async with attached_front() as (front, peer):
        call = front.call()
        peer.write(Error((await peer.call()).id, body))
        assert await answer_of(call) == CallAnswer(body, Code.INTERNAL_ERROR)


async def test_closing_answers_everybody() -> None:
    async with opened_front() as front:
        held = front.call()
        await front.routing.close()
        peer = await front.attach()
        sent = front.call()
        await peer.call()
        await front.routing.close()
        assert codec.value(sent.answer.result().body)["code"] == Code.SERVER_DOWN
        assert codec.value(held.answer.result().body)["code"] == Code.SERVER_DOWN


async def test_a_descriptor_that_is_no_pipe_is_refused_and_closed() -> None:
    async with opened_front() as front:
        fd = os.open(os.devnull, os.O_RDONLY)
        with pytest.raises(OSError, match="not a pipe"):
            await front.routing.attach("git", 1, fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            await front.routing.attach("git", 1, fd)


async def test_a_pipe_to_an_older_generation_takes_no_calls() -> None:
    async with opened_front() as front:
        new = await front.attach(generation=2)
        old = await front.attach(generation=1)
        front.call()
        assert (await new.call()).method == "tools/call"
        assert old.quiet()


@pytest.mark.process
@pytest.mark.promise("M98")
async def test_more_calls_than_one_worker_could_ever_queue_are_overload() -> None:
    async with opened_front() as front:
        await front.attach()
        calls = [front.call() for _ in range(call_router.WAITING_MAX + 1)]
        assert not calls[-2].answer.is_done()
        assert calls[-1].answer.result().code == Code.OVERLOADED


async def test_a_new_timeout_counts_for_the_calls_that_follow() -> None:
    async with opened_front() as front:
        await front.attach()
        front.routing.configure({"git": -call_router.MARGIN_S}, WAIT_S)
        assert (await answer_of(front.call())).code == Code.TIMED_OUT
