"""Whatever happens to a server in whatever order: every call ends once, and runs twice at most."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.ipc.frames import CallFrame, Notice, Result, ServerGone
from tests.examples import examples
from tests.worker.front.peers import Peer
from tests.worker.front.routed import Front, opened_front

EVENTS = [
    "call", "call", "repeatable", "repeatable", "answer", "cancel", "down", "attach", "warming",
    "retry soon", "error", "idle",
]  # fmt: skip


class Play:
    """One server through its generations, with what each of them was sent."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.generation = 0
        self.calls: list[Call] = []
        self.plain: set[int] = set()
        self.ran: Counter[int] = Counter()
        self.peer: Peer | None = None
        self.has: list[int] = []
        """The calls of the peer that it did not answer yet."""

    async def happens(self, what: str) -> None:
        if what in {"call", "repeatable"}:
            self.calls.append(self.front.call(repeatable=what == "repeatable"))
            self.plain |= {self.calls[-1].id} if what == "call" else set()
        elif what == "cancel" and self.calls:
            self.calls[len(self.calls) // 2].cancel("")
        elif what == "attach":
            self.generation += 1
            self.peer, self.has = await self.front.attach(self.generation), []
        elif what in {"warming", "error", "idle"}:
            self.front.state(what)
        elif what == "retry soon":
            self.front.state("error", retry_after_ms=100)
        elif self.peer is not None:
            await self.does(self.peer, what)

    async def does(self, peer: Peer, what: str) -> None:
        await self.reads(peer)
        if what == "down":
            peer.write(ServerGone(b"{}"))
            self.peer = None
        elif self.has:
            peer.write(Result(self.has.pop(0), b'"done"'))
        peer.write(Notice("heard", b""))
        await self.front.notices.get()

    async def reads(self, peer: Peer) -> None:
        while not peer.quiet():
            frame = await peer.read()
            if isinstance(frame, CallFrame):
                self.has.append(frame.id)
                self.ran[frame.id] += 1


@pytest.mark.promise("M75")
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=40))
def test_every_call_ends_exactly_once_and_runs_no_more_often_than_it_may(
    events: list[str],
) -> None:
    async def main() -> None:
        async with opened_front() as front, AsyncExitStack() as ending:
            play = Play(front)
            ending.push_async_callback(front.routing.close)
            for what in events:
                await play.happens(what)
            if play.peer is not None:
                await play.reads(play.peer)
        ended = Counter(number for number, _ in front.ended)
        assert ended == Counter(call.id for call in play.calls)
        assert all(play.ran[number] <= (1 if number in play.plain else 2) for number in play.ran)
        answered = {number for number, answer in front.ended if answer == CallAnswer(b'"done"')}
        assert answered <= set(play.ran)
        assert front.routing.inflight().get("git", 0) == 0

    asyncio.run(main())
