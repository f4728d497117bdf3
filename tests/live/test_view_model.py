"""Any interleaving of orders, crashes, returns and reloads, from several clients of a true gateway:
every list is what the model says, and its tools answer; nobody else is told of a change."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as some
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.live.view_checks import Checks
from tests.live.view_clients import Watcher
from tests.live.view_world import ALL, FIRST, FRONTS, OFF, PLACES, TOOLS, World
from tests.viewmodel import Place, Tool, exposed

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

EXAMPLES = 4
"""The first is always the plainest there is."""
STEPS = 25
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
CRASHES_MAX = 3
"""Of one server in one history: each start waits longer than the one before."""
NEW_MAX = 3
"""Tools that a server gets while it runs."""

BEGIN: dict[str, tuple[Tool, ...]] = {
    "dev": (("a", "echo"), ("b", "pid"), ("c", "echo")), "data": (("a", "pid"), ("b", "echo")),
}  # fmt: skip
"""Tool sets that there are from the start, so that most orders can be carried out."""
SETS = some.sampled_from(["dev", "data"])
CHOICE = some.lists(
    some.tuples(some.sampled_from([*FIRST, *ALL]), some.sampled_from([*TOOLS, "new0"])),
    min_size=1, max_size=3,
).map(tuple)  # fmt: skip
EQUIPPING = some.sampled_from(["sets", "desk"])
SEARCHING = some.sampled_from(["find", "strict"])
BOUNDED = some.sampled_from([name for name, place in PLACES.items() if place.exposure != "all"])


class Views(Checks, RuleBasedStateMachine):
    """`world`: one gateway for all histories."""

    world: World

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        world = self.world
        Checks.__init__(self, world)
        self.crashes: dict[str, int] = dict.fromkeys(ALL, 0)
        self.killed = False
        for name, tools in BEGIN.items():
            assert self.model.build(name, tools)
            assert world.order("Build", toolset=name, tools=tools)
        self.settle(None)

    def teardown(self) -> None:
        """As it was, for the next history."""
        for one in [*self.watchers, self.stubborn]:
            one.end()
        for name in self.world.toolsets():
            self.world.order("Delete", toolset=name)
        for endpoint in PLACES:
            self.world.order("Unequip", endpoint)
        self.world.reload(FIRST, off=False)
        for server in FIRST:
            self.world.mend_server(server)
        self.world.ask("wait", {"names": [], "for": "ready", "timeout_s": 30.0, "above": {}})

    def one(self, endpoint: str, at: int) -> Watcher:
        found = [one for one in self.watchers if one.endpoint == endpoint]
        return found[at % len(found)]

    def ordered(self, one: Watcher, possible: bool, tool: str, /, **arguments: object) -> None:
        result = one.call(tool, **arguments)
        assert bool(result.get("isError")) is not possible, (one, tool, arguments, result)
        self.settle(set(), at_once=True)

    # --- orders of clients --------------------------------------------------------------------

    @rule(
        endpoint=EQUIPPING, at=some.integers(0, 2), name=SETS, tools=CHOICE, equip=some.booleans()
    )
    def build(
        self, endpoint: str, at: int, name: str, tools: tuple[Tool, ...], equip: bool
    ) -> None:
        one = self.one(endpoint, at)
        possible = set(tools) <= set(self.model.possible(endpoint))
        possible = possible and self.model.build(name, tools)
        if possible and equip:
            self.model.equip(self.who(one), name)
        wanted = [{"namespacedName": ".".join(tool)} for tool in tools]
        self.ordered(one, possible, "build-toolset", name=name, tools=wanted, autoEquip=equip)

    @rule(endpoint=EQUIPPING, at=some.integers(0, 2), name=SETS)
    def equip(self, endpoint: str, at: int, name: str) -> None:
        one = self.one(endpoint, at)
        possible = bool(self.model.hopeful(endpoint, self.model.sets.get(name, ())))
        possible = possible and self.model.equip(self.who(one), name)
        self.ordered(one, possible, "equip-toolset", name=name)

    @rule(endpoint=EQUIPPING, at=some.integers(0, 2))
    def unequip(self, endpoint: str, at: int) -> None:
        one = self.one(endpoint, at)
        self.ordered(one, self.model.unequip(self.who(one)), "unequip-toolset")

    @rule(endpoint=EQUIPPING, at=some.integers(0, 2), name=SETS)
    def delete(self, endpoint: str, at: int, name: str) -> None:
        one = self.one(endpoint, at)
        self.ordered(one, self.model.delete(name), "delete-toolset", name=name, confirm=True)

    @rule(at=some.integers(0, 2), server=some.sampled_from(["a", "b"]), active=some.booleans())
    def activate(self, at: int, server: str, active: bool) -> None:
        one = self.one("whole", at)
        if active and server in self.broken:
            return  # whether such a one can be activated depends on whether it is tried just then
        if not active:
            possible = self.model.deactivate(self.who(one), server)
            self.ordered(one, possible, "gateway_deactivate", name=server)
        else:
            possible = server in self.model.there
            possible = possible and self.model.activate(self.who(one), server)
            self.ordered(one, possible, "gateway_activate", name=server)

    @rule(endpoint=SEARCHING, at=some.integers(0, 2), tools=CHOICE, exposes=some.booleans())
    def load(self, endpoint: str, at: int, tools: tuple[Tool, ...], exposes: bool) -> None:
        one = self.one(endpoint, at)
        possible = bool(tools) and set(tools) <= set(self.model.possible(endpoint))
        possible = possible and self.model.load(self.who(one), tools)
        wanted = [exposed(tool) if exposes else ".".join(tool) for tool in tools]
        self.ordered(one, possible, "load_tool", name=wanted)

    @rule(endpoint=SEARCHING, at=some.integers(0, 2), tools=CHOICE)
    def unload(self, endpoint: str, at: int, tools: tuple[Tool, ...]) -> None:
        one = self.one(endpoint, at)
        loaded = self.model.seen(self.who(one)).tools
        chosen = loaded[1:] if set(tools) & set(loaded) else tools
        possible = bool(chosen) and set(chosen) <= set(loaded)
        possible = possible and self.model.unload(self.who(one), chosen)
        self.ordered(one, possible, "unload_tool", name=[".".join(tool) for tool in chosen])

    @rule(endpoint=SEARCHING, at=some.integers(0, 2), name=SETS)
    def load_set(self, endpoint: str, at: int, name: str) -> None:
        one = self.one(endpoint, at)
        tools = self.model.hopeful(endpoint, self.model.sets.get(name, ()))
        possible = bool(tools) and self.model.load(self.who(one), tools)
        self.ordered(one, possible, "load_tool_set", name=name)

    @rule(endpoint=SEARCHING, at=some.integers(0, 2), name=SETS)
    def save_set(self, endpoint: str, at: int, name: str) -> None:
        one = self.one(endpoint, at)
        possible = self.model.save(self.who(one), name)
        self.ordered(one, possible, "save_tool_set", name=name)

    @rule(at=some.sampled_from([0, 2]))
    def leave(self, at: int) -> None:
        """The session is over, and its client begins another one."""
        one = self.one("desk", at)
        assert one.name
        one.end()
        self.model.over(one.name)
        one.begin()
        self.settle(None)

    # --- orders of an operator ----------------------------------------------------------------

    @rule(endpoint=BOUNDED, name=SETS, equip=some.booleans())
    def equip_for_all(self, endpoint: str, name: str, equip: bool) -> None:
        who = (endpoint, "local", "")
        if equip:
            knows_sets = self.model.places[endpoint].exposure != "servers"
            possible = knows_sets and self.model.equip(who, name)
            assert self.world.order("Equip", endpoint, toolset=name) is possible
        else:
            self.model.unequip(who)
            assert self.world.order("Unequip", endpoint)
        self.settle(set(), at_once=True)

    @rule(name=SETS, add=CHOICE, remove=CHOICE)
    def amend(self, name: str, add: tuple[Tool, ...], remove: tuple[Tool, ...]) -> None:
        servers = self.model.places["everything"].servers
        possible = all(
            server in servers and tool in self.model.offers[server] for server, tool in add
        )
        possible = possible and self.model.amend(name, add, remove)
        assert self.world.order("Amend", toolset=name, add=add, remove=remove) is possible
        self.settle(set(), at_once=True)

    # --- what happens to servers, fronts and the gateway --------------------------------------

    def up(self, *servers: str) -> list[str]:
        return [server for server in servers if server in self.model.there]

    @precondition(lambda self: self.up("a") and self.crashes["a"] < CRASHES_MAX)
    @rule()
    def crash(self) -> None:
        self.crashes["a"] += 1
        self.world.crash("a")
        self.model.offers["a"] = TOOLS
        self.settle({"a"})

    @precondition(lambda self: any(self.crashes[one] < CRASHES_MAX for one in self.up("b", "c")))
    @rule(data=some.data())
    def break_server(self, data: some.DataObject) -> None:
        able = [one for one in self.up("b", "c") if self.crashes[one] < CRASHES_MAX]
        server = data.draw(some.sampled_from(able))
        self.crashes[server] += 1
        self.world.break_server(server)
        self.model.there.discard(server)
        self.broken.add(server)
        self.settle({server})

    @precondition(lambda self: self.up(*FIRST))
    @rule(data=some.data())
    def stop(self, data: some.DataObject) -> None:
        server = data.draw(some.sampled_from(self.up(*FIRST)))
        self.world.stop_server(server)
        self.model.there.discard(server)
        self.settle({server})

    @precondition(lambda self: len(self.up(*FIRST)) < len(FIRST))
    @rule(data=some.data())
    def comes_back(self, data: some.DataObject) -> None:
        away = [one for one in FIRST if one not in self.model.there]
        server = data.draw(some.sampled_from(away))
        self.world.mend_server(server)
        self.model.there.add(server)
        self.broken.discard(server)
        self.model.offers[server] = TOOLS
        self.settle({server})

    @precondition(lambda self: self.growing())
    @rule(data=some.data())
    def gets_a_tool(self, data: some.DataObject) -> None:
        server = data.draw(some.sampled_from(self.growing()))
        new = self.one("everything", 0).text(f"{server}__change")
        self.model.offers[server] += (new,)
        self.settle({server})

    def growing(self) -> list[str]:
        room = len(TOOLS) + NEW_MAX
        return [one for one in self.up(*ALL) if len(self.model.offers[one]) < room]

    @rule(at=some.integers(0, FRONTS - 1))
    def kill_front(self, at: int) -> None:
        self.world.kill_front(at)
        for one in self.watchers:
            one.ear.close()
            one.listen()
        self.settle(None)

    @rule(more=some.booleans(), off=some.booleans())
    def reload(self, more: bool, off: bool) -> None:
        servers = ALL if more else FIRST
        began = more and "d" not in self.model.places["everything"].servers
        self.world.reload(servers, off=off)
        if began:
            self.world.until_server("d", "ready")
            self.model.offers["d"] = TOOLS
        (self.model.there.add if more else self.model.there.discard)("d")
        switched = frozenset({OFF}) if off else frozenset[Tool]()
        for name, place in PLACES.items():
            bounded = name in ("whole", "strict")
            self.model.places[name] = Place(
                place.exposure, place.servers if bounded else servers, place.per_session,
                place.call_hidden, switched if bounded else frozenset(),
            )  # fmt: skip
        self.settle({"a", "d"})

    @precondition(lambda self: not self.killed)
    @rule()
    def kill_gateway(self) -> None:
        """Once in a history. Whoever has a session begins a new one."""
        self.killed = True
        for server in FIRST:
            self.world.bar(server).unlink(missing_ok=True)
        self.world.kill()
        running = self.model.places["everything"].servers
        for server in running:
            self.world.until_server(server, "ready")
            self.model.offers[server] = TOOLS
        self.model.there, self.broken = set(running), set()
        self.crashes = dict.fromkeys(ALL, 0)
        for name in ("s1", "s2"):
            self.model.over(name)
        for one in [*self.watchers, self.stubborn]:
            one.again()
        self.settle(None)


@pytest.fixture
def world() -> Iterator[World]:
    with World() as running:
        running.until_fronts()
        yield running


@pytest.mark.promise("M28", "M34", "M37")
def test_any_history_leaves_every_client_with_the_list_of_the_model(world: World) -> None:
    class Here(Views):
        pass

    Here.world = world
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None,
            phases=(Phase.generate,), suppress_health_check=SLOW,
        ),
    )  # fmt: skip
