"""Two workspaces and whatever their clients do in whatever order: no byte of one reaches the other,
and every request gets one answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples

from .door import bodiless, legacy
from .tenants import OWN, SHARED, Actor, Pending, Seat, World
from .test_http_keys import STREAM

SLOTS = st.sampled_from(["A1", "A2", "B1", "B2"])
PICK = st.integers(0, 1000)


class Isolation(RuleBasedStateMachine):
    """Any order of what clients and servers do."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.runner.__enter__()
        self.world = self.runner.run(World.opened())

    def run_(self, what: Coroutine[Any, Any, None]) -> None:
        self.runner.run(what)

    def teardown(self) -> None:
        self.run_(self.world.close())
        self.runner.close()

    def of(self, slot: str, at: int) -> tuple[Actor, Seat]:
        actor = self.world.slots[slot]
        return actor, actor.seats[at % len(actor.seats)]

    def calls(self, *, asked: bool | None = None, token: bool = False) -> list[Pending]:
        return [
            call
            for call in self.world.pending
            if (asked is None or bool(call.question) is asked) and (call.token or not token)
        ]

    @rule(slot=SLOTS, era=st.sampled_from(["legacy", "sse"]))
    def seat(self, slot: str, era: str) -> None:
        self.run_(self.world.seat(self.world.slots[slot], era))

    @rule(slot=SLOTS, at=PICK, tool=st.sampled_from(["t", "t", "c"]), token=st.booleans())
    def call(self, slot: str, at: int, tool: str, token: bool) -> None:
        self.run_(self.world.call(*self.of(slot, at), tool, token=token))

    @rule(slot=SLOTS, at=PICK)
    def list_all(self, slot: str, at: int) -> None:
        actor, seat = self.of(slot, at)

        async def lists() -> None:
            found = await self.world.request(actor, seat, "tools/list", {})
            names = [one["name"] for one in found["result"]["tools"]]
            assert names == ["t", "c", f"only{actor.workspace}"]
            found = await self.world.request(actor, seat, "resources/list", {})
            uris = [one["uri"] for one in found["result"]["resources"]]
            assert uris == ["x:shared", "x:own"]
            answers: list[str] = []
            for name in (f"only{'AB'.replace(actor.workspace, '')}", "onlyX"):
                found = await self.world.request(actor, seat, "tools/call", {"name": name})
                answers.append(found["error"]["message"].replace(name, "…"))
            assert answers[0] == answers[1]

        self.run_(lists())

    @precondition(lambda self: self.calls(asked=False))
    @rule(at=PICK)
    def answer(self, at: int) -> None:
        calls = self.calls(asked=False)
        self.run_(self.world.answer(calls[at % len(calls)]))

    @precondition(lambda self: self.calls(asked=False))
    @rule(at=PICK)
    def cancel(self, at: int) -> None:
        calls = self.calls(asked=False)
        self.run_(self.world.cancel(calls[at % len(calls)]))

    @precondition(lambda self: self.calls(asked=False, token=True))
    @rule(at=PICK)
    def progress(self, at: int) -> None:
        calls = self.calls(asked=False, token=True)
        self.run_(self.world.progress(calls[at % len(calls)]))

    @precondition(lambda self: self.calls(asked=False))
    @rule(at=PICK)
    def question(self, at: int) -> None:
        calls = self.calls(asked=False)
        self.run_(self.world.question(calls[at % len(calls)]))

    @precondition(lambda self: self.calls(asked=True))
    @rule(at=PICK, thief=SLOTS)
    def reply(self, at: int, thief: str) -> None:
        calls = self.calls(asked=True)
        call = calls[at % len(calls)]
        if self.world.slots[thief] is not call.actor:
            self.run_(self.world.reply(call, self.world.slots[thief]))

    @precondition(lambda self: self.calls(asked=False))
    @rule(at=PICK)
    def log_in_a_call(self, at: int) -> None:
        calls = self.calls(asked=False)
        call = calls[at % len(calls)]
        self.run_(self.world.log(call.server, call))

    @rule(server=st.sampled_from([SHARED, *OWN.values()]))
    def log(self, server: str) -> None:
        self.run_(self.world.log(server))

    @rule(slot=SLOTS, at=PICK, shared=st.booleans())
    def watch(self, slot: str, at: int, shared: bool) -> None:
        actor, seat = self.of(slot, at)
        server = SHARED if shared else OWN[actor.workspace]
        self.run_(self.world.watch(actor, seat, server))

    @rule(server=st.sampled_from([SHARED, *OWN.values()]))
    def update(self, server: str) -> None:
        self.run_(self.world.update(server))

    @precondition(lambda self: self.world.watched)
    @rule(at=PICK)
    def stop_watching(self, at: int) -> None:
        """The watch of another one goes on."""
        watched = self.world.watched
        _, actor, wire = watched[at % len(watched)]
        if all(seat.news is not wire for seat in actor.seats):
            self.world.watched = [one for one in watched if one[2] is not wire]
            wire.abort()

    @rule(slot=SLOTS, victim=SLOTS, at=PICK)
    def use_a_foreign_handle(self, slot: str, victim: str, at: int) -> None:
        actor, (owner, seat) = self.world.slots[slot], self.of(victim, at)
        if actor is owner or seat.era == "modern":
            return
        held, path = [actor.bearer], seat.where or actor.path
        if seat.session:
            held.append(f"Mcp-Session-Id: {seat.session}")
        requests = [
            legacy("tools/list", {}, *held, path=path),
            legacy("notifications/cancelled", {"requestId": 1}, *held, id=None, path=path),
        ]
        if seat.session:
            requests.append(bodiless("GET", STREAM, *held, path=path))
            requests.append(bodiless("DELETE", *held, path=path))

        async def ask() -> None:
            for request in requests:
                await self.world.foreign(actor, seat, request)

        self.run_(ask())

    @rule(slot=SLOTS)
    def revoke(self, slot: str) -> None:
        self.run_(self.world.revoke(slot))

    @invariant()
    def nothing_crosses(self) -> None:
        self.world.check()


Isolation.TestCase.settings = settings(
    max_examples=examples(400), stateful_step_count=40, deadline=None
)
TestIsolation = pytest.mark.promise("M60")(Isolation.TestCase)
