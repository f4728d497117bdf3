"""What an operator sees of calls that are under way, and what never."""

import asyncio
import time

from metamcp_worker.front_calls.request_facts import CLIENT_CHARACTERS_MAX
from metamcp_worker.front_calls.stats import describe_calls
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import QuestionFrame, Result
from metamcp_worker.ipc.messages import CallUnderWay, ServerState
from metamcp_worker.ipc.spec import FrontSpec
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import Caller
from tests.worker.front.offers import endpoint, offer, resource

LATER_S = 1000.0
RAW = b'{"clientInfo":{"name":"claude-code","version":"1"},"clientCapabilities":{}}'


def looked(
    front: Front, after_s: float = 0.01, **how: object
) -> tuple[list[tuple[int, CallUnderWay]], int]:
    now = time.monotonic() + after_s
    wanted = {"most": 100, **how}
    return describe_calls(front.calls.under_way(), now, **wanted)  # type: ignore[arg-type] # by name


async def test_a_call_shows_who_waits_for_what_and_nothing_that_it_holds() -> None:
    async with opened_front(a=offer("t")) as front:
        asked = request("tools/call", b'{"name":"a__t","arguments":{"key":"hunter2"}}', caller=RAW)
        asked.who, asked.wants_progress = "5f8a", True
        frame = await front.sent("a", asked)
        (((number, one),), more) = looked(front, LATER_S)
        assert more == 0
        assert one.age_s >= LATER_S
        assert (number, one.server, one.method, one.name) == (frame.id, "a", "tools/call", "a__t")
        assert (one.endpoint, one.state, one.progress) == ("default", "running", True)
        assert (one.client, one.session) == ("claude-code", "5f8a")
        assert b"hunter2" not in codec.dump(one)
        front.peers["a"].write(Result(frame.id, b"{}"))
        while looked(front)[0]:
            await asyncio.to_thread(front.peers["a"].quiet)


async def test_a_uri_is_no_name_and_a_client_need_not_have_one() -> None:
    async with opened_front(a=offer(resource("file:///hunter2"))) as front:
        for said in (
            b"",
            b"[]",
            b'{"clientInfo":7}',
            b'{"clientInfo":{"name":"%b"}}' % (b"x" * 999),
        ):
            asked = request("resources/read", b'{"uri":"file:///hunter2"}', caller=said)
            await front.sent("a", asked)
        found, _ = looked(front)
        assert [one.client for _, one in found] == ["", "", "", "x" * CLIENT_CHARACTERS_MAX]
        assert b"hunter2" not in codec.dump(found)
        front.calls.ask("a", "ping", b"{}")
        assert [one.client for _, one in looked(front)[0] if one.method == "ping"] == [""]


async def test_a_call_is_held_while_its_server_is_away_and_asking_while_its_client_is_asked() -> (
    None
):
    async with opened_front(a=offer("t")) as front:
        asked = request("tools/call", b'{"name":"a__t"}')
        call = front.calls.start(front.view, asked, caller := Caller())
        frame = await front.peers["a"].call()
        front.peers["a"].write(QuestionFrame(frame.id, 1, "elicitation/create", b"{}"))
        while not caller.questions:
            await asyncio.to_thread(front.peers["a"].quiet)
        assert looked(front)[0][0][1].state == "asking"
        call.cancel("enough")
        front.calls.server_state(
            ServerState(server="a", state="warming", listed=True, generation=2)
        )
        front.calls.start(front.view, asked, None)
        assert looked(front)[0][0][1].state == "held"


async def test_the_longest_are_shown_and_the_others_are_counted() -> None:
    async with opened_front(a=offer("t"), b=offer("t")) as front:
        sent = [
            await front.sent(s, request("tools/call", b'{"name":"%b__t"}' % s.encode()))
            for s in "aba"
        ]
        found, more = looked(front, most=2)
        assert ([number for number, _ in found], more) == ([frame.id for frame in sent[:2]], 1)
        assert [one.server for _, one in looked(front, servers=("b",))[0]] == ["b"]
        assert looked(front, slow_s=LATER_S) == ([], 0)
        assert len(looked(front, LATER_S + 1.0, slow_s=LATER_S)[0]) == 3


async def test_the_time_that_a_call_may_take_is_that_of_the_newest_configuration() -> None:
    async with opened_front(a=offer("t")) as front:
        asked = request("tools/call", b'{"name":"a__t"}')
        assert (await front.sent("a", asked)).deadline_ms == 0, "the server's own"
        for timeout_s in (5.0, 90.0):
            front.steps.configure(
                FrontSpec(
                    version="1", endpoints=(endpoint("a"),), hosts=(), timeouts_s={"a": timeout_s}
                )
            )
            front.calls.refresh()
            assert (await front.sent("a", asked)).deadline_ms == timeout_s * 1000
