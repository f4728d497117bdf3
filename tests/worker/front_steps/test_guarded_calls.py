"""Calls that have to be let through: what their server gets, and how each ends that it does not."""

from typing import Any

import pytest
from msgspec.structs import replace

from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.guard.held_calls import HeldCall
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Progress, Result
from metamcp_worker.ipc.spec import ConsentRule, ConsentSpec, FrontSpec, GuardEffect
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import Caller, answer_of
from tests.worker.front.offers import MODERN, endpoint, offer, prompt, tool

pytestmark = pytest.mark.promise("M97")

CALL = b'{"name":"git__push","arguments":{"to":"main"}}'


class Keeper:
    """A step that keeps every call for the test."""

    def __init__(self) -> None:
        self.held: list[HeldCall] = []
        self.dropped: list[HeldCall] = []

    def take(self, held: HeldCall) -> bool:
        self.held.append(held)
        return False

    def drop(self, held: HeldCall) -> None:
        self.dropped.append(held)


def guard(front: Front, effect: GuardEffect = "ask", *match: str) -> Keeper:
    """The front with one rule, and its only step."""
    rule = ConsentRule(match=match or ("git/push",), effect=effect)
    endpoints = tuple(front.calls.viewers.local[name].spec for name in front.calls.viewers.local)
    spec = FrontSpec(version="1", endpoints=endpoints, hosts=(), consent=ConsentSpec(rules=(rule,)))
    front.steps.configure(spec)
    front.calls.refresh()
    keeper = Keeper()
    front.steps.guard.held.step = keeper
    return keeper


def start(front: Front, params: bytes = CALL, caller: Caller | None = None, **more: Any) -> Call:
    return front.calls.start(front.view, request("tools/call", params, **more), caller)


def said(answer: CallAnswer) -> str:
    body = codec.value(answer.body)
    assert body["isError"] is True
    (block,) = body["content"]
    text: str = block["text"]
    return text


async def sent(front: Front) -> CallFrame:
    return await front.peers["git"].call()


async def test_a_call_goes_to_its_server_as_it_was_held_and_all_that_follows_passes() -> None:
    async with opened_front(git=offer("push", "log")) as front:
        keeper, caller = guard(front), Caller()
        call = start(front, caller=caller, modern=False)
        assert front.peers["git"].quiet()
        assert [state for _, state in front.calls.under_way()] == ["asking"]
        (held,) = keeper.held
        assert (held.guard.path, held.facts.arguments) == ("git/push", b'{"to":"main"}')
        held.go_on()
        held.go_on()
        held.refuse("too late")
        frame = await sent(front)
        assert codec.value(frame.params) == {"name": "push", "arguments": {"to": "main"}}
        front.peers["git"].write(Progress(frame.id, b'{"progress":1}'))
        front.peers["git"].write(Result(frame.id, b'{"content":[],"isError":false}'))
        assert (await answer_of(call)).body == b'{"content":[],"isError":false}'
        assert caller.progress == [b'{"progress":1}']


@pytest.mark.parametrize("era", ["2025-11-25", MODERN])
@pytest.mark.parametrize("modern", [True, False])
async def test_a_refusal_is_a_result_that_a_model_reads(era: str, *, modern: bool) -> None:
    async with opened_front(git=offer("push", protocol=era)) as front:
        guard(front, "deny")
        call = start(front, modern=modern)
        assert said(await answer_of(call)) == "The rules of this gateway do not allow git/push."
        assert ("resultType" in codec.value((await answer_of(call)).body)) is modern
        assert front.peers["git"].quiet()
        assert [state for _, state in front.calls.under_way()] == []


async def test_what_no_rule_concerns_is_not_held() -> None:
    async with opened_front(git=offer("log", prompts=[prompt("push")])) as front:
        keeper = guard(front, "deny", "*/push")
        start(front, b'{"name":"git__log"}')
        assert codec.value((await sent(front)).params) == {"name": "log"}
        asked = request("prompts/get", b'{"name":"git__push"}')
        front.calls.start(front.view, asked, None)
        await sent(front)
        front.calls.start(front.view, request("resources/read", b'{"uri":"a:push"}'), None)
        await sent(front)
        assert keeper.held == []


async def test_a_name_that_no_list_has_is_no_way_around() -> None:
    async with opened_front(replace(endpoint("git", style="bare")), git=offer("log")) as front:
        guard(front, "deny")
        assert "do not allow git/push" in said(await answer_of(start(front, b'{"name":"push"}')))


async def test_a_client_that_goes_away_ends_its_call_and_the_step_hears_of_it() -> None:
    async with opened_front(git=offer("push")) as front:
        keeper = guard(front)
        call = start(front)
        call.cancel("the client went away")
        call.cancel("again")
        assert call.answer.is_cancelled()
        assert keeper.dropped == keeper.held
        keeper.held[0].go_on()
        keeper.held[0].refuse("late")
        assert front.peers["git"].quiet()


@pytest.mark.parametrize("change", ["definition", "gone", "endpoint"])
async def test_a_call_that_is_not_the_same_any_more_reaches_no_server(change: str) -> None:
    async with opened_front(git=offer("push")) as front:
        keeper = guard(front)
        call = start(front)
        if change == "endpoint":
            front.steps.configure(FrontSpec(version="1", endpoints=(), hosts=()))
        else:
            left = tool("push", description="other") if change == "definition" else "log"
            front.calls.catalogue("git", offer(left))
        front.calls.refresh()
        keeper.held[0].go_on()
        why = said(await answer_of(call))
        assert ("call it again" if change != "endpoint" else "not served") in why
        assert front.peers["git"].quiet()


async def test_a_credential_that_was_revoked_meanwhile_reaches_no_server() -> None:
    async with opened_front(git=offer("push")) as front:
        keeper = guard(front)
        asked = request("tools/call", CALL)
        asked.principal = replace(asked.principal, auth="keys", key="abc")
        call = front.calls.start(front.view, asked, None)
        front.steps.guard.still = lambda who, endpoint, now: False
        keeper.held[0].go_on()
        assert "revoked" in said(await answer_of(call))


async def test_a_front_that_ends_refuses_what_it_holds_and_answers_everything() -> None:
    async with opened_front(git=offer("push")) as front:
        guard(front)
        call = start(front)
        await front.calls.close()
        assert "stopping" in said(await answer_of(call))


async def test_the_time_of_a_server_begins_when_it_is_called_and_its_end_is_told() -> None:
    async with opened_front(git=offer("push")) as front:
        keeper = guard(front)
        call = start(front)
        before = call.started
        keeper.held[0].go_on()
        assert call.started > before
        await sent(front)
        front.peers["git"].close()
        assert (await answer_of(call)).code == Code.SERVER_DOWN
