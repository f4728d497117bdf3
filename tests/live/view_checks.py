"""Clients of a true gateway beside the model of what they are to see: the comparison.

Owns: who watches, and what is compared after each step. Never: what happens in a step.
"""

from typing import Any

from tests.fakes import stdio_server
from tests.live.client import LEGACY, MODERN
from tests.live.view_clients import Watcher
from tests.live.view_world import FIRST, PLACES, TOOLS, World
from tests.viewmodel import BUILTINS, Model, Tool, Who, exposed
from tests.waiting import until

BARRIER = "nobody equips this"
"""A tool set that is written anew and again, so that all fronts have to say where they are."""


class Checks:
    """`broken`: servers that crashed and do not start; `number`: of the step; `stubborn`: never
    lists again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.broken: set[str] = set()
        self.number = 0
        self.model = Model(dict(PLACES), dict.fromkeys(FIRST, TOOLS), set(FIRST))
        self.watchers = [
            Watcher(world.port, era, endpoint, name)
            for endpoint in PLACES
            for era, name in ((LEGACY, "s1"), (MODERN, ""), (LEGACY, "s2"))
            if name != "s2" or endpoint == "desk"
        ]
        self.stubborn = Watcher(world.port, LEGACY, "sets", "never lists again")
        for server in FIRST:
            world.until_server(server, "ready")

    def who(self, one: Watcher) -> Who:
        return one.who(per_session=self.model.places[one.endpoint].per_session)

    def definitions(self, one: Watcher) -> list[dict[str, Any]]:
        """Of all tools of servers in its list, to the last member."""
        shown = self.model.shown(self.who(one))
        return [{**stdio_server.tool(tool[1]), "name": exposed(tool)} for tool in shown]

    def settle(self, passing: set[str] | None, *, at_once: bool = False) -> None:
        """Compare everybody with the model. `passing`: servers whose tools may have left the lists
        and come back meanwhile; None: nobody counts what was heard. `at_once`: an order was
        answered, so nothing is waited for."""
        if not at_once:
            self.wait()
        for one in self.watchers:
            before = one.listed
            assert self.seen(one) == self.definitions(one), one
            if passing is not None:
                self.check_heard(one, before, passing)
            one.heard = one.ear.count()
        self.number += 1
        for one in self.watchers:
            self.check_words(one)
            self.check_calls(one)
        self.check_stubborn()

    def wait(self) -> None:
        """Until some front has each list, and then until all fronts know as much: an order is
        answered when they do."""
        for one in self.watchers:
            expected, first = self.definitions(one), len(self.builtins(one))
            until(lambda: one.list()[first:] == expected, f"{one}: {names(expected)}")  # noqa: B023 - called here
        tools = [("a", "pid")]
        why = f"after step {self.number}"
        assert self.world.order(
            "Build", toolset=BARRIER, tools=tools, description=why, replace=True
        )
        self.model.build(BARRIER, tools, replacing=True)

    def builtins(self, one: Watcher) -> tuple[str, ...]:
        return BUILTINS[self.model.places[one.endpoint].exposure]

    def seen(self, one: Watcher) -> list[dict[str, Any]]:
        """Its list behind the built-in tools, which are as always."""
        one.listed = one.list()
        builtins = self.builtins(one)
        assert tuple(tool["name"] for tool in one.listed[: len(builtins)]) == builtins
        return one.listed[len(builtins) :]

    def check_heard(self, one: Watcher, before: list[dict[str, Any]], passing: set[str]) -> None:
        """It was told of its own changes and of nobody else's."""
        changed = one.listed != before
        both = [tool["name"].partition("__")[0] for tool in [*before, *one.listed]]
        most = 4 if passing & set(both) else int(changed)
        if changed:
            until(lambda: one.ear.count() > one.heard, f"{one} hears of its list")
        assert one.ear.count() - one.heard <= most, one

    def check_words(self, one: Watcher) -> None:
        """What the built-in tools tell is what the list shows."""
        place, who = self.model.places[one.endpoint], self.who(one)
        names = [exposed(tool) for tool in self.model.shown(who)]
        seen = self.model.seen(who)
        if place.exposure == "toolset":
            told = one.told("get-active-toolset")
            assert (told["equipped"], told.get("toolset", {}).get("name", "")) == (
                bool(seen.toolset), seen.toolset,
            )  # fmt: skip
            assert told["toolSummary"]["currentlyExposed"] == len(names)
            assert told["toolSummary"]["totalDiscovered"] == len(self.model.possible(one.endpoint))
            if seen.toolset:
                assert [tool["exposedName"] for tool in told["exposedTools"]] == names
        elif place.exposure == "search":
            told = one.told("list_loaded_tools")
            assert [tool["exposedName"] for tool in told["tools"]] == names
            assert told["toolsets"] == sorted(self.model.sets)
        elif place.exposure == "servers":
            states = {one["name"]: one for one in one.told("gateway_status")["servers"]}
            assert tuple(states) == place.servers
            for server, state in states.items():
                there = server in self.model.there
                assert state["active"] is (there and server in seen.servers), state
                assert state["ready"] is there, state
                tried = state["state"] in ("error", "warming")
                assert tried is (server in self.broken), state

    def check_calls(self, one: Watcher) -> None:
        """A listed tool answers, another one in turn, and so does one that is not listed, where
        that is allowed."""
        who = self.who(one)
        listed, allowed = self.model.shown(who), self.model.callable(who)
        hidden = [
            tool
            for tool in self.model.possible(one.endpoint)
            if tool not in listed and tool[0] in self.model.there
        ]
        for tools in (listed, hidden):
            calm = [tool for tool in tools if tool[1] != "change"]
            if calm:
                tool = calm[self.number % len(calm)]
                self.check_call(one, tool, refused=tool not in allowed)

    def check_call(self, one: Watcher, tool: Tool, *, refused: bool) -> None:
        text = f"step {self.number}"
        arguments = {"text": text} if tool[1] == "echo" else {}
        answer = one.answer(exposed(tool), **arguments)
        if refused:
            assert answer["error"]["code"] == -32602, (one, tool, answer)
        else:
            found = answer["result"]["content"][0]["text"]
            assert found == (text if arguments else str(self.world.pids[tool[0]])), (one, tool)

    def check_stubborn(self) -> None:
        """Who never lists again uses each equipped tool by its name."""
        one = self.stubborn
        calm = [tool for tool in self.model.shown(self.who(one)) if tool[1] != "change"]
        if calm:
            self.check_call(one, calm[self.number % len(calm)], refused=False)


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["name"] for tool in tools]
