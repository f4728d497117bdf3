"""Clients hear of other lists when all fronts have them; of one front, at once."""

import pytest
from msgspec.structs import replace

from metamcp_worker.access import gate
from metamcp_worker.front.compose import FrontSteps
from metamcp_worker.front.view_orders import Disclosing
from metamcp_worker.front_calls.front_views import Changed
from metamcp_worker.front_calls.stats import Stats
from metamcp_worker.ipc import codec, disclosure
from metamcp_worker.ipc.disclosure import (
    DisclosureApplied,
    DisclosureDelta,
    DisclosureState,
    DisclosureUpdate,
    ServerListsChanged,
    ViewContent,
    ViewOwner,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.spec import FrontSpec

from .offers import endpoint, offer

HERE = ViewOwner("default", gate.LOCAL)
NOTHING = DisclosureDelta()
TOOLS: Changed = {HERE: frozenset({"tools"})}


class Told:
    """A front with two servers, and what it told the supervisor and its clients."""

    def __init__(self, *, several: bool = True) -> None:
        steps = FrontSteps(Stats(), lambda message, fds: None)
        self.calls = steps.calls
        self.supervisor: list[Message] = []
        self.clients: list[Changed] = []
        self.disclosing = Disclosing(steps, lambda message, fds: self.supervisor.append(message))
        self.disclosing.clients = self.clients.append
        both = (
            replace(endpoint("a", "b"), name="default"),
            replace(endpoint("a", "b"), name="desk", exposure="servers"),
        )
        steps.configure(FrontSpec(version="1", endpoints=both, hosts=()))
        for server in ("a", "b"):
            self.calls.catalogue(server, offer("t"))
            self.listed(server, yes=True)
        self.supervisor.clear()
        self.clients.clear()
        self.disclosing.several = several

    def listed(self, server: str, *, yes: bool) -> None:
        state = "ready" if yes else "error"
        self.calls.server_state(ServerState(server=server, state=state, listed=yes))
        self.calls.refresh()

    def round(self, number: int, news: DisclosureDelta = NOTHING) -> None:
        self.disclosing.on_disclosure(
            DisclosureUpdate(number=number, whole=False), codec.dump(news)
        )


async def test_the_only_front_tells_its_clients_at_once_what_servers_change() -> None:
    front = Told(several=False)
    front.listed("a", yes=False)
    assert front.clients == [TOOLS]
    assert front.supervisor == []


@pytest.mark.promise("M28")
async def test_one_of_several_fronts_tells_them_with_the_next_round() -> None:
    front = Told()
    front.listed("a", yes=False)
    front.listed("b", yes=False)
    assert front.supervisor == [ServerListsChanged(number=0)], "once is enough"
    front.disclosing.announce(0)
    assert front.clients == []
    front.round(1)
    front.listed("a", yes=True)
    told = disclosure.ListsAnnounced(number=0)
    assert front.supervisor[1:] == [
        told,
        DisclosureApplied(number=1),
        ServerListsChanged(number=1),
    ]
    front.disclosing.announce(1)
    assert front.clients == [TOOLS, TOOLS]
    front.round(2)
    front.disclosing.announce(2)
    assert front.clients == [TOOLS] * 3
    front.disclosing.announce(3)
    assert front.clients == [TOOLS] * 3


async def test_the_supervisor_hears_that_clients_were_told_once_they_were() -> None:
    front = Told()
    front.listed("a", yes=False)
    front.round(1)
    front.disclosing.clients = lambda changed: front.supervisor.append(ServerListsChanged(number=7))
    front.supervisor.clear()
    front.disclosing.announce(1)
    assert front.supervisor == [
        ServerListsChanged(number=7),
        disclosure.ListsAnnounced(number=1),
    ]


async def test_what_a_server_and_an_order_change_is_announced_together() -> None:
    front = Told()
    desk = ViewOwner("desk", gate.LOCAL)
    front.listed("a", yes=False)
    front.round(4, DisclosureDelta(((ViewContent(servers=("b",)), (desk,)),)))
    front.disclosing.announce(4)
    assert front.clients == [TOOLS, {desk: frozenset({"tools"})}]


async def test_a_front_that_ends_tells_everything_it_has_kept_and_keeps_nothing_more() -> None:
    front = Told()
    front.listed("a", yes=False)
    front.round(1)
    front.listed("b", yes=False)
    front.calls.server_state(ServerState(server="a", state="ready", listed=True))
    front.calls.viewers.defer()
    front.disclosing.finish()
    assert front.clients == [TOOLS] * 3
    front.listed("b", yes=True)
    assert front.clients == [TOOLS] * 4


async def test_everything_anew_that_nobody_waits_for_begins_a_round_of_its_own() -> None:
    front = Told()
    desk = ViewOwner("desk", gate.LOCAL)
    everything = DisclosureState(((desk, ViewContent(servers=("b",))),))
    front.disclosing.on_disclosure(DisclosureUpdate(), codec.dump(everything))
    front.calls.refresh()
    assert front.supervisor == [ServerListsChanged(number=0)]
    assert front.clients == []
