"""Calls of code that need consent: who is asked, and whose time stands still."""

from typing import Any

import pytest
from msgspec.structs import replace

from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import HoldRun, HostReply, RunEnded
from metamcp_worker.ipc.frames import Result
from metamcp_worker.ipc.spec import ConsentRule, ConsentSpec, FrontSpec, Unaskable
from tests.worker.front.called import Front
from tests.worker.front.callers import Client, answer_of
from tests.worker.front.sandboxes import Sandboxes

from .test_code_calls import SPEC, TEXT, asked, begin, opened_sandboxes

pytestmark = pytest.mark.promise("M97")

ABLE = codec.dump({"clientCapabilities": {"elicitation": {}}})
YES = b'{"action":"accept","content":{"consent":"once"}}'
NO = b'{"action":"decline"}'


def ask(front: Front, sandboxes: Sandboxes, unaskable: Unaskable = "deny") -> None:
    """A rule for the tool `t`."""
    rule = ConsentRule(match=("a/t",), effect="ask")
    consent = ConsentSpec(rules=(rule,), unaskable=unaskable)
    spec = FrontSpec(version="1", endpoints=(SPEC,), hosts=(), roles=(sandboxes.role,))
    front.steps.configure(replace(spec, consent=consent))
    front.calls.refresh()


def begun(front: Front, client: Client) -> Call:
    """A run of code for a client that can be asked."""
    return front.calls.start(front.view, asked({"code": "…"}, caller=ABLE), client)


async def test_the_client_of_the_code_is_asked_and_the_code_stands_still() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        ask(front, sandboxes)
        client = Client()
        call = begun(front, client)
        run = await sandboxes.started()
        for number in (1, 2):
            sandboxes.asked(run, number, "a_t", arguments={"n": number})
        assert await sandboxes.read(HoldRun) == HoldRun(run=run, hold=True)
        first, second = [await client.questions.get() for _ in range(2)]
        assert '"n":1' in codec.value(first.params)["message"]
        assert "made by code" in codec.value(first.params)["message"]
        first.answer(YES)
        sent = await front.peers["a"].call()
        assert codec.value(sent.params)["arguments"] == {"n": 1}
        second.answer(NO)
        assert await sandboxes.read(HoldRun) == HoldRun(run=run, hold=False)
        refused = await sandboxes.read(HostReply)
        assert "did not agree" in str(codec.value(refused.result))
        front.peers["a"].write(Result(sent.id, TEXT))
        assert (await sandboxes.read(HostReply)).call == 1
        sandboxes.write(RunEnded(run=run))
        await answer_of(call)


@pytest.mark.parametrize(("unaskable", "runs"), [("deny", False), ("allow", True)])
async def test_code_of_a_client_that_cannot_ask_gets_what_is_configured(
    unaskable: Any, runs: bool
) -> None:
    async with opened_sandboxes() as (front, sandboxes):
        ask(front, sandboxes, unaskable)
        call = begin(front, Client())
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        if runs:
            sent = await front.peers["a"].call()
            front.peers["a"].write(Result(sent.id, TEXT))
        told = str(codec.value((await sandboxes.read(HostReply)).result))
        assert ("cannot ask" in told) is not runs
        sandboxes.write(RunEnded(run=run))
        await answer_of(call)


async def test_code_that_ends_takes_its_questions_back() -> None:
    async with opened_sandboxes() as (front, sandboxes):
        ask(front, sandboxes)
        client = Client()
        call = begun(front, client)
        run = await sandboxes.started()
        sandboxes.asked(run, 1, "a_t")
        question = await client.questions.get()
        call.cancel("over")
        assert not question.open
        question.answer(YES)
        assert front.peers["a"].quiet()
        assert front.steps.guard.consent.counts == {"left": 1}
