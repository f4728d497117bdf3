"""Calls that are sent once more when their server dies, and those that are not."""

import pytest

from metamcp_worker.front_calls import call_router, server_links
from metamcp_worker.front_calls.call_faults import Retries
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import (
    Error,
    Frame,
    Notice,
    Progress,
    QuestionFrame,
    Result,
    ServerGone,
)
from tests.worker.front.called import opened_front as opened_calls
from tests.worker.front.called import request
from tests.worker.front.callers import Caller, answer_of
from tests.worker.front.offers import endpoint, offer, resource, tool
from tests.worker.front.peers import WAIT_S, error_data
from tests.worker.front.routed import attached_front

SERVERS = {"reads": "read-only", "again": "idempotent", "odd": "sometimes"}


def hinted() -> Retries:
    retries = Retries()
    retries.configure(SERVERS)
    offered = offer(
        tool("look", annotations={"readOnlyHint": True}),
        tool("put", annotations={"idempotentHint": True, "readOnlyHint": False}),
        tool("pay", annotations={"destructiveHint": False}),
        tool("bare"),
        tool("odd", annotations={"readOnlyHint": "true"}),
        tool("pay", annotations={"readOnlyHint": True}),
    )
    for server in (*SERVERS, "plain"):
        retries.learn(server, offered)
    return retries


@pytest.mark.promise("M75")
@pytest.mark.parametrize(
    ("server", "tools"),
    [("reads", ["look"]), ("again", ["look", "put"]), ("odd", []), ("plain", [])],
)
def test_tools_are_called_twice_as_their_hints_and_the_policy_allow(
    server: str, tools: list[str]
) -> None:
    retries = hinted()
    names = ("look", "put", "pay", "bare", "odd", "unlisted")
    found = [name for name in names if retries.may(server, "tools/call", f'"{name}"'.encode())]
    assert found == tools
    retries.forget(server)
    assert not retries.may(server, "tools/call", b'"look"')


def test_methods_that_read_need_no_hint_and_others_are_never_repeated() -> None:
    retries = hinted()
    for method in ("resources/read", "prompts/get", "completion/complete", "tools/list"):
        assert retries.may("reads", method, b"")
        assert not retries.may("plain", method, b"")
    for method in ("resources/subscribe", "tasks/cancel", "example.com/any"):
        assert not retries.may("again", method, b"")
    assert retries.any
    retries.configure({"git": "never"})
    assert not retries.any


@pytest.mark.promise("M75")
@pytest.mark.parametrize("told", [True, False])
async def test_a_call_goes_to_the_next_generation_and_its_client_sees_one_answer(
    told: bool,
) -> None:
    async with attached_front() as (front, first):
        call = front.call(b'{"n":1}', repeatable=True)
        asked = await first.call()
        first.write(ServerGone(b"{}")) if told else first.close()
        front.state("error", generation=1, retry_after_ms=10)
        front.state("warming", generation=2)
        second = await front.attach(generation=2)
        again = await second.call()
        assert (again.id, again.params, asked.deadline_ms) == (asked.id, b'{"n":1}', 0)
        assert 0 < again.deadline_ms <= WAIT_S * 1000
        second.write(Result(again.id, b'"right"'))
        assert await answer_of(call) == CallAnswer(b'"right"')
        assert front.ended == [(call.id, CallAnswer(b'"right"'))]


async def test_a_call_that_may_not_be_repeated_fails_beside_one_that_may() -> None:
    async with attached_front() as (front, first):
        may, may_not = front.call(repeatable=True), front.call()
        await first.call()
        await first.call()
        second = await front.attach(generation=2)
        first.close()
        data = error_data((await answer_of(may_not)).body)
        assert (data["may_have_run"], "attempts" in data) == (True, False)
        second.write(Result((await second.call()).id, b"{}"))
        assert await answer_of(may) == CallAnswer(b"{}")


@pytest.mark.promise("M75")
async def test_a_call_whose_second_server_dies_too_is_told_so_and_not_sent_again() -> None:
    async with attached_front() as (front, first):
        call = front.call(repeatable=True)
        await first.call()
        second = await front.attach(generation=3)
        first.close()
        await second.call()
        second.write(ServerGone(b'{"reason":"signal","message":"It was killed."}'))
        answer = await answer_of(call)
        assert b"went down twice" in answer.body
        data = error_data(answer.body)
        assert (data["attempts"], data["may_have_run"], data["generation"]) == (2, True, 3)
        last = await front.attach(generation=4)
        assert last.quiet()


@pytest.mark.parametrize("what", ["progress", "notice", "question"])
async def test_what_a_client_has_heard_of_is_not_run_again(what: str) -> None:
    async with attached_front() as (front, first):
        caller = Caller()
        call = front.call(caller=caller, repeatable=True)
        number = (await first.call()).id
        frames: dict[str, Frame] = {
            "progress": Progress(number, b"{}"),
            "notice": Notice("notifications/message", b"{}", number),
            "question": QuestionFrame(number, 1, "roots/list", b"{}"),
        }
        first.write(frames[what])
        second = await front.attach(generation=2)
        first.close()
        assert (await answer_of(call)).code == Code.SERVER_DOWN
        assert second.quiet()


async def test_what_nobody_takes_is_not_heard() -> None:
    async with attached_front() as (front, first):
        call = front.call(repeatable=True)
        first.write(Progress((await first.call()).id, b"{}"))
        first.close()
        second = await front.attach(generation=2)
        second.write(Result((await second.call()).id, b"{}"))
        assert await answer_of(call) == CallAnswer(b"{}")


@pytest.mark.promise("M75")
@pytest.mark.parametrize("state", ["stopped", "error", "draining"])
async def test_a_repeatable_call_of_a_server_that_does_not_come_back_may_have_run(
    state: str,
) -> None:
    async with attached_front() as (front, first):
        call = front.call(repeatable=True)
        await first.call()
        first.write(ServerGone(b"{}"))
        front.state(state, generation=1)
        answer = await answer_of(call)
        assert answer.code == Code.SERVER_DOWN
        assert error_data(answer.body)["may_have_run"] is True


async def test_a_repeatable_call_waits_no_longer_than_any_other_and_may_have_run() -> None:
    async with attached_front(hold_s=0.01) as (front, first):
        call = front.call(repeatable=True)
        await first.call()
        first.close()
        answer = await answer_of(call)
        assert b"could not be asked again" in answer.body
        assert error_data(answer.body)["may_have_run"] is True


async def test_a_call_without_time_left_is_not_sent_again() -> None:
    async with attached_front(timeout_s=0.0) as (front, first):
        call = front.call(repeatable=True)
        await first.call()
        second = await front.attach(generation=2)
        first.close()
        assert (await answer_of(call)).code == Code.SERVER_DOWN
        assert second.quiet()


async def test_the_second_try_is_part_of_the_time_of_the_first() -> None:
    async with attached_front() as (front, first):
        call = front.call(repeatable=True)
        deadline = call.deadline
        await first.call()
        second = await front.attach(generation=2)
        first.close()
        await second.call()
        assert call.deadline == deadline


async def test_a_call_that_is_cancelled_between_two_servers_reaches_no_other() -> None:
    async with attached_front() as (front, first):
        call, other = front.call(repeatable=True), front.call()
        await first.call()
        first.close()
        await answer_of(other)  # with the error
        assert front.routing.count_held_calls() == 1
        call.cancel("the client is gone")
        assert front.ended[1:] == [(call.id, None)]
        second = await front.attach(generation=2)
        assert second.quiet()


@pytest.mark.promise("M98")
async def test_what_is_kept_is_bounded_and_given_back_when_the_call_is_over() -> None:
    async with attached_front() as (front, peer):
        most = server_links.SPARE_BYTES_MAX // 2 - server_links.SPARE_CALL_BYTES
        calls = [front.call(b"x" * size, repeatable=True) for size in (most, most, 1)]
        asked = [await peer.call() for _ in calls]
        assert calls[0].wire is not None
        link = calls[0].wire.link
        assert [call.spare is not None for call in calls] == [True, True, False]
        assert link.spare_bytes == server_links.SPARE_BYTES_MAX
        peer.write(Error(asked[0].id, b'{"code":1}'))
        await answer_of(calls[0])
        calls[1].cancel("")
        assert link.spare_bytes == 0
        peer.close()
        assert (await answer_of(calls[2])).code == Code.SERVER_DOWN


async def test_a_call_that_times_out_gives_back_what_was_kept_for_it() -> None:
    async with attached_front(timeout_s=-call_router.MARGIN_S) as (front, peer):
        call = front.call(repeatable=True)
        await peer.call()
        assert call.wire is not None
        link = call.wire.link
        assert link.spare_bytes > 0
        assert (await answer_of(call)).code == Code.TIMED_OUT
        assert link.spare_bytes == 0


async def test_nothing_is_sent_again_when_the_front_stops() -> None:
    async with attached_front() as (front, peer):
        call = front.call(repeatable=True)
        await peer.call()
        await front.routing.close()
        assert call.answer.result().code == Code.SERVER_DOWN
        assert front.routing.count_held_calls() == 0


async def test_calls_of_clients_are_repeated_as_configured_and_counted() -> None:
    async with opened_calls(endpoint("git")) as front:
        front.retry({"git": "read-only"})
        looks = tool("look", annotations={"readOnlyHint": True})
        await front.add("git", offer(looks, "pay", resources=[resource("x://a")]))
        started = [
            front.calls.start(front.view, request("tools/call", b'{"name":"git__look"}'), None),
            front.calls.start(front.view, request("tools/call", b'{"name":"git__pay"}'), None),
            front.calls.start(front.view, request("resources/read", b'{"uri":"x://a"}'), None),
        ]
        first = front.peers["git"]
        for _ in started:
            await first.call()
        second = await front.attach("git", 2)
        first.close()
        for _ in range(2):
            asked = await second.call()
            second.write(Result(asked.id, b'{"method":"%b"}' % asked.method.encode()))
        answers = [await answer_of(call) for call in started]
        assert [answer.code for answer in answers] == [0, Code.SERVER_DOWN, 0]
        assert front.stats.retries == {"git": {"answered": 2}}
