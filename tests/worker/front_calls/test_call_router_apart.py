"""Calls of clients that have a process of their server for themselves."""

from functools import partial

import pytest

from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_calls.stats import Stats
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Result
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.process_names import By
from metamcp_worker.ipc.roots import Asked
from tests.worker.front.callers import answer_of
from tests.worker.front.peers import Peer, error_data
from tests.worker.front.routed import Front, opened_front

from ..rawhttp import until

WHO = "0123456789ab"
OWN = process_names.own("git", WHO)
OTHER = process_names.own("git", "ba9876543210")
ADA = McpRequest("tools/call", {}, {}, b"", modern=False, who=WHO, rooted="r", project="p")
NOBODY = McpRequest("tools/call", {}, {}, b"", modern=False)
CHOICES: list[tuple[By, Asked, str]] = [
    ("", "", "git"), ("", "ahead", "git@p"), ("client", "", OWN), ("client", "ahead", "git@r"),
    ("project", "ahead", "git@p"), ("", "", "git"),
]  # fmt: skip


def start(front: Front, name: str = OWN, *, repeatable: bool = False) -> Call:
    """A call of the client that has this."""
    routing = front.routing
    frame = CallFrame(routing.new_id(), "tools/call", b"{}")
    call = Call(name, frame, routing.cancel, routing.loop.time())
    call.repeatable = repeatable
    routing.start(call)
    return call


def settled(front: Front, call: Call) -> bool:
    """Was this call answered, or the supervisor asked for a process for it?"""
    return call.answer.is_done() or call.server in front.wanted


def told(front: Front, state: str, *, reason: str = "", message: str = "") -> None:
    front.routing.learn(
        ServerState(server=OWN, state=state, listed=False, reason=reason, message=message)
    )


async def test_the_first_call_is_the_reason_to_start_it_and_waits() -> None:
    async with opened_front() as front:
        call = start(front)
        assert front.wanted == [OWN]
        told(front, "warming")
        peer = Peer()
        await front.routing.attach(OWN, 1, peer.fd)
        assert front.routing.inflight() == {"git": 1}
        peer.write(Result((await peer.call()).id, b"1"))
        assert await answer_of(call) == CallAnswer(b"1")
        peer.close()


async def test_what_cannot_be_started_is_refused_under_the_name_of_its_server() -> None:
    async with opened_front() as front:
        call = start(front)
        told(front, "stopped")
        answer = await answer_of(call)
        assert answer.code == Code.SERVER_DOWN
        assert codec.value(answer.body)["message"].startswith("server 'git' is not available")
        assert error_data(answer.body)["server"] == "git"


@pytest.mark.promise("M77")
async def test_one_more_than_there_may_be_is_refused_as_overload() -> None:
    async with opened_front() as front:
        call = start(front)
        told(
            front, "error", reason=process_names.NO_PLACE, message="64 clients have a process of it"
        )
        answer = await answer_of(call)
        assert answer.code == Code.OVERLOADED
        assert "'git' has too much to do: 64 clients" in codec.value(answer.body)["message"]
        data = error_data(answer.body)
        assert (data["limit"], data["may_have_run"]) == (
            process_names.SESSIONS_PROCESSES_MAX,
            False,
        )
        front.routing.forget(OWN)
        assert front.wanted == [OWN]
        assert (await answer_of(start(front, OTHER))).code == Code.OVERLOADED
        assert front.wanted == [OWN]  # for a moment nobody is asked again
        shared = front.call()
        peer = await front.attach()
        peer.write(Result((await peer.call()).id, b"1"))
        assert await answer_of(shared) == CallAnswer(b"1")
        while front.wanted == [OWN]:
            await until(partial(settled, front, start(front, OTHER)))
        assert front.wanted == [OWN, OTHER]


async def test_a_call_that_comes_while_it_goes_is_a_reason_for_another() -> None:
    async with opened_front() as front:
        told(front, "idle")
        call = start(front)
        front.routing.forget(OWN)
        assert front.wanted == [OWN, OWN]
        told(front, "warming")
        peer = Peer()
        await front.routing.attach(OWN, 1, peer.fd)
        peer.write(Result((await peer.call()).id, b"1"))
        assert await answer_of(call) == CallAnswer(b"1")
        peer.close()


async def test_a_call_whose_process_dies_after_it_was_forgotten_is_answered_all_the_same() -> None:
    async with opened_front() as front:
        call = start(front, repeatable=True)
        peer = Peer()
        await front.routing.attach(OWN, 1, peer.fd)
        await peer.call()
        front.routing.learn(
            ServerState(server=OWN, state="error", listed=False, generation=1, retry_after_ms=0)
        )
        front.routing.forget(OWN)
        peer.close()
        assert (await answer_of(call)).code == Code.SERVER_DOWN


async def test_who_has_a_process_of_its_own_is_the_supervisors_word() -> None:
    calls = Calls(Stats(), lambda server: None)
    for by, roots, name in CHOICES:
        calls.server_state(
            ServerState(server="git", state="ready", listed=True, by=by, roots=roots)
        )
        assert calls.process("git", ADA) == name
        assert calls.process("git", NOBODY) == "git"
    await calls.close()


@pytest.mark.promise("M83")
async def test_a_call_in_an_era_that_its_server_does_not_speak_goes_to_the_server_itself() -> None:
    async with opened_front() as front:
        legacy = process_names.own("git", process_names.LEGACY)
        peer = await front.attach()
        call = start(front, legacy)
        front.routing.forget(legacy, "git")
        peer.write(Result((await peer.call()).id, b"1"))
        assert await answer_of(call) == CallAnswer(b"1")
        assert front.wanted == [legacy]


@pytest.mark.parametrize("legacy", [True, False])
async def test_a_call_is_answered_in_the_era_of_the_process_that_it_went_to(legacy: bool) -> None:
    async with opened_front() as front:
        call = start(front)
        call.legacy = not legacy
        peer = Peer()
        await front.routing.attach(OWN, 1, peer.fd, legacy=legacy)
        assert call.legacy is legacy
        peer.close()
