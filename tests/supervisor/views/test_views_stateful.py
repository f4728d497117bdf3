"""Views of many principals and sessions: the supervisor's decisions joined with what several fronts
make of them, without processes. Any history comes to what the model says, for everybody."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, rule
from msgspec import Raw

from metamcp_supervisor.views.ledger import Delta, Ledger, OrderImpossible
from metamcp_worker.builtin_tools.builtin import ToolReply
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls.front_views import Viewers
from metamcp_worker.front_calls.request_facts import McpRequest
from metamcp_worker.front_steps.builtin_calls import Builtins
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import (
    Activate,
    Amend,
    AnyOrder,
    Build,
    Deactivate,
    Delete,
    DisclosureDelta,
    DisclosureState,
    Equip,
    Load,
    Save,
    Unequip,
    Unload,
    ViewContent,
    ViewOrder,
    ViewOwner,
    shift,
)
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec
from tests.examples import examples
from tests.viewmodel import BUILTINS, Exposure, Model, Place, Seen, Tool, Who, exposed

pytestmark = [pytest.mark.promise("M37"), pytest.mark.promise("M28")]

SERVERS = ("a", "b", "c")
TOOLS = ("t", "u")
PLACES = {
    "sets": Place("toolset", SERVERS),
    "desk": Place("toolset", SERVERS, per_session=True),
    "whole": Place("servers", ("b", "a"), call_hidden=False),
    "find": Place("search", SERVERS, per_session=True, call_hidden=False),
    "all": Place("all", ("a", "c")),
}
CLIENTS: tuple[Who, ...] = tuple(
    (endpoint, principal, session)
    for endpoint in PLACES
    for principal, session in (
        ("local", ""), ("local", "s1"), ("local", "s2"), ("ann", ""), ("ann", "s3"), ("bob", ""),
    )
)  # fmt: skip
FRONTS = 2
EXAMPLES = 100

clients = some.sampled_from(CLIENTS)
names = some.sampled_from(["dev", "data", "all"])
servers = some.sampled_from(SERVERS)
pairs = some.tuples(servers, some.sampled_from([*TOOLS, "new"]))
choices = some.lists(pairs, max_size=4).map(tuple)

Listed = list[tuple[str, bytes]]


class Front:
    """What it was sent and has not read yet, and the lists as it last told of them."""

    def __init__(self, spec: FrontSpec, begun: list[Callable[["Front"], None]]) -> None:
        self.viewers = Viewers()
        self.states: dict[str, ServerState] = {}
        self.builtins = Builtins(self.viewers, self.states)
        self.viewers.configure(spec)
        for step in begun:
            step(self)
        self.viewers.refresh()
        self.unread: list[Callable[[Front], None]] = []

    def read(self) -> dict[Who, bool]:
        """Everything that was sent, as one; for whom another list was told."""
        unread, self.unread = self.unread, []
        for step in unread:
            step(self)
        changed = self.viewers.refresh()
        return {
            who: "tools" in self.viewers.find_changed_kinds(changed, ViewOwner(*who))
            for who in CLIENTS
        }

    def view(self, who: Who) -> View:
        found = self.viewers.get(who[0], who[1])
        assert found is not None
        return self.viewers.own(found, who[2]) if found.spec.per_session else found

    def listed(self, who: Who) -> Listed:
        return [(one.key, one.item.raw) for one in self.view(who).merged.lists["tools"]]

    def says(self, who: Who, tool: str) -> Any:
        """The structured answer of a built-in tool that only looks."""
        reply = self.builtins.decide(
            self.view(who), tool, McpRequest("tools/call", {}, {}, b"", True)
        )
        assert isinstance(reply, ToolReply)
        return reply.structured


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(DisclosureState())
        self.model = Model(dict(PLACES), dict.fromkeys(SERVERS, TOOLS), set(SERVERS))
        self.edition: dict[str, int] = dict.fromkeys(SERVERS, 0)
        self.fronts = [Front(self.spec(), self.welcome()) for _ in range(FRONTS)]
        self.before = [{who: front.listed(who) for who in CLIENTS} for front in self.fronts]

    # What fronts are told

    def spec(self) -> FrontSpec:
        endpoints = tuple(
            EndpointSpec(
                name=name, servers=place.servers, exposure=place.exposure,
                per_session=place.per_session, call_hidden=place.call_hidden,
                disabled=tuple(sorted(place.off)),
            )
            for name, place in self.model.places.items()
        )  # fmt: skip
        return FrontSpec(version="1", endpoints=endpoints, hosts=())

    def welcome(self) -> list[Callable[[Front], None]]:
        """For a front that begins."""
        steps = [step for server in SERVERS for step in self.about(server)]
        return [*steps, self.disclosed()]

    def about(self, server: str) -> list[Callable[[Front], None]]:
        there = server in self.model.there
        offer = ServerCatalogue(protocol="2025-11-25", tools=self.definitions(server))
        state = ServerState(server=server, state="ready" if there else "error", listed=there)
        return [
            lambda front: front.viewers.put(server, offer),
            lambda front: front.viewers.set_listed(server, there),
            lambda front: front.states.update({state.server: state}),
        ]

    def definitions(self, server: str) -> tuple[Raw, ...]:
        schema = {"type": "object", "x-edition": self.edition[server]}
        return tuple(
            Raw(codec.dump({"name": tool, "inputSchema": schema}))
            for tool in self.model.offers[server]
        )

    def disclosed(self) -> Callable[[Front], None]:
        everything = codec.decode_as(DisclosureState, codec.dump(self.ledger.read_everything()))
        return lambda front: front.builtins.disclose(everything)

    def apply(self, delta: Delta) -> None:
        """Fronts are told only what is other than before."""
        before = self.ledger.read_everything()
        self.ledger.apply(delta)
        news = codec.decode_as(
            DisclosureDelta, codec.dump(shift(before, self.ledger.read_everything()))
        )
        self.tell(lambda front: front.builtins.shift(news))

    def tell(self, *steps: Callable[[Front], None]) -> None:
        for front in self.fronts:
            front.unread += steps

    def whose(self, who: Who) -> Who:
        """A session is named only where each has a view of its own."""
        return who if self.model.places[who[0]].per_session else (who[0], who[1], "")

    # Orders

    def order(self, client: Who, order: AnyOrder, *, possible: bool) -> None:
        whose = ViewOwner(*self.whose(client))
        try:
            delta = self.ledger.decide(ViewOrder(whose, order), 1.0)
        except OrderImpossible:
            assert not possible
            return
        assert possible
        if self.ledger.changes(delta):
            self.apply(delta)

    @rule(client=clients, name=names, tools=choices, equip=some.booleans(), again=some.booleans())
    def build(
        self, client: Who, name: str, tools: tuple[Tool, ...], equip: bool, again: bool
    ) -> None:
        possible = self.model.build(name, tools, replacing=again)
        if possible and equip:
            self.model.equip(self.whose(client), name)
        self.order(client, Build(name, tools, equip=equip, replace=again), possible=possible)

    @rule(client=clients, name=names)
    def equip(self, client: Who, name: str) -> None:
        self.order(client, Equip(name), possible=self.model.equip(self.whose(client), name))

    @rule(client=clients)
    def unequip(self, client: Who) -> None:
        self.order(client, Unequip(), possible=self.model.unequip(self.whose(client)))

    @rule(client=clients, server=servers)
    def activate(self, client: Who, server: str) -> None:
        self.order(
            client, Activate(server), possible=self.model.activate(self.whose(client), server)
        )

    @rule(client=clients, server=servers)
    def deactivate(self, client: Who, server: str) -> None:
        self.order(
            client, Deactivate(server), possible=self.model.deactivate(self.whose(client), server)
        )

    @rule(client=clients, tools=choices)
    def load(self, client: Who, tools: tuple[Tool, ...]) -> None:
        self.order(client, Load(tools), possible=self.model.load(self.whose(client), tools))

    @rule(client=clients, tools=choices)
    def unload(self, client: Who, tools: tuple[Tool, ...]) -> None:
        self.order(client, Unload(tools), possible=self.model.unload(self.whose(client), tools))

    @rule(client=clients, name=names)
    def save(self, client: Who, name: str) -> None:
        self.order(client, Save(name), possible=self.model.save(self.whose(client), name))

    @rule(client=clients, name=names, add=choices, remove=choices)
    def amend(
        self, client: Who, name: str, add: tuple[Tool, ...], remove: tuple[Tool, ...]
    ) -> None:
        possible = self.model.amend(name, add, remove)
        self.order(client, Amend(name, add, remove), possible=possible)

    @rule(client=clients, name=names)
    def delete(self, client: Who, name: str) -> None:
        self.order(client, Delete(name), possible=self.model.delete(name))

    # Servers, fronts, sessions, the configuration

    @rule(server=servers, there=some.booleans())
    def goes_or_comes(self, server: str, there: bool) -> None:
        (self.model.there.add if there else self.model.there.discard)(server)
        self.tell(*self.about(server))

    @rule(server=servers, tools=some.sampled_from([TOOLS, ("new", "u"), ("t",), ()]))
    def offers_others(self, server: str, tools: tuple[str, ...]) -> None:
        self.model.offers[server] = tools
        self.tell(*self.about(server))

    @rule(server=servers)
    def defines_them_anew(self, server: str) -> None:
        self.edition[server] += 1
        self.tell(*self.about(server))

    @rule(
        name=some.sampled_from(list(PLACES)), per_session=some.booleans(),
        hidden=some.booleans(), off=some.frozensets(pairs, max_size=2),
        behind=some.lists(servers, unique=True).map(tuple),
        other=some.none() | some.sampled_from(list(BUILTINS)),
    )  # fmt: skip
    def reload(
        self,
        name: str,
        per_session: bool,
        hidden: bool,
        off: frozenset[Tool],
        behind: tuple[str, ...],
        other: Exposure | None,
    ) -> None:
        exposure = other or self.model.places[name].exposure
        self.model.places[name] = Place(exposure, behind, per_session, hidden, off)
        spec = self.spec()
        self.tell(lambda front: front.viewers.configure(spec))

    @rule(session=some.sampled_from(["s1", "s2", "s3"]))
    def ends(self, session: str) -> None:
        self.model.over(session)
        if gone := self.ledger.sessions([session]):
            self.apply(Delta(tuple((whose, ViewContent()) for whose in gone)))

    @rule(at=some.integers(0, FRONTS - 1))
    def another_front(self, at: int) -> None:
        self.fronts[at] = Front(self.spec(), self.welcome())
        self.before[at] = {who: self.fronts[at].listed(who) for who in CLIENTS}

    @rule()
    def restart(self) -> None:
        """Everything but the sessions is there again."""
        for session in ("s1", "s2", "s3"):
            self.model.over(session)
        everything = self.ledger.read_everything()
        kept = tuple(one for one in everything.views if not one[0].session)
        self.ledger = Ledger(DisclosureState(kept, everything.toolsets))
        for at in range(FRONTS):
            self.another_front(at)

    @rule(at=some.integers(0, FRONTS - 1))
    def reads(self, at: int) -> None:
        """Whoever is told of another list has one, and nobody else is told anything."""
        front, before = self.fronts[at], self.before[at]
        told = front.read()
        now = {who: front.listed(who) for who in CLIENTS}
        for who in CLIENTS:
            assert told[who] is (now[who] != before[who]), who
        self.before[at] = now
        raws = {
            (server, tool): bytes(raw)
            for server in SERVERS
            for tool, raw in zip(self.model.offers[server], self.definitions(server), strict=True)
        }
        for who in CLIENTS:
            self.check(front, who, raws)
        views = {ViewOwner(*who): seen for who, seen in self.model.views.items()}
        for whose, shown in self.ledger.read_everything().views:
            assert Seen(shown.tools, shown.servers, shown.toolset) == views.pop(whose)
        assert all(seen == Seen() and not whose.session for whose, seen in views.items())

    def check(self, front: Front, who: Who, raws: dict[Tool, bytes]) -> None:
        """A list has the names and definitions of the model; what is listed can be called."""
        merged, place = front.view(who).merged, self.model.places[who[0]]
        whose = self.whose(who)
        listed, shown = self.before[self.fronts.index(front)][who], self.model.shown(whose)
        assert [name for name, _ in listed] == self.model.names(whose), who
        assert [raw for _, raw in listed[len(listed) - len(shown) :]] == [
            raws[tool] for tool in shown
        ]
        allowed = self.model.callable(whose)
        for tool in self.model.possible(who[0]):
            is_found = merged.tools.get(exposed(tool)) is not None
            if tool in allowed or tool[0] in self.model.there:
                assert is_found is (tool in allowed), (who, tool)
        self.check_words(front, who, whose, place)

    def check_words(self, front: Front, who: Who, whose: Who, place: Place) -> None:
        """What the built-in tools tell is what the list shows."""
        shown, seen = [exposed(tool) for tool in self.model.shown(whose)], self.model.visible(whose)
        if place.exposure == "toolset":
            told = front.says(who, "get-active-toolset")
            assert told["equipped"] is bool(seen.toolset)
            assert told["toolSummary"]["currentlyExposed"] == len(shown)
            if seen.toolset:
                assert told["toolset"]["name"] == seen.toolset
                assert told["toolset"]["toolCount"] == len(seen.tools)
        elif place.exposure == "search":
            told = front.says(who, "list_loaded_tools")
            assert [one["exposedName"] for one in told["tools"]] == shown
            assert told["loaded"] == len(shown)
            assert told["toolsets"] == sorted(self.model.sets)
        elif place.exposure == "servers":
            told = front.says(who, "gateway_status")
            assert [one["name"] for one in told["servers"]] == list(place.servers)
            for one in told["servers"]:
                there = one["name"] in self.model.there
                assert one["active"] is (there and one["name"] in seen.servers)
                assert one["ready"] is there


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=examples(EXAMPLES), stateful_step_count=40, deadline=None, database=None
)
