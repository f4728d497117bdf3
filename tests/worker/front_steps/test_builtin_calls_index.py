"""Indexes that are built while the front does other things, and searches that come meanwhile."""

import asyncio

from metamcp_worker.front_calls.front_views import Viewers
from metamcp_worker.front_steps.builtin_calls import IndexBuilder
from metamcp_worker.ipc.disclosure import Exposure
from metamcp_worker.ipc.spec import FrontSpec
from tests.worker.builtin_tools.test_search_index_updates import names, spec
from tests.worker.front.offers import offer, tool

COUNT = 600
LATE = [tool(f"late_{number}", description="The last of many.") for number in range(COUNT)]


def viewers_with(*servers: str, exposure: Exposure = "search") -> Viewers:
    found = Viewers()
    found.configure(FrontSpec(version="1", endpoints=(spec(*servers),), hosts=()))
    for server in servers:
        found.put(server, offer(*LATE))
        found.set_listed(server, True)
    found.refresh()
    return found


async def test_a_search_waits_for_its_index_while_the_loop_has_other_turns() -> None:
    viewers = viewers_with("a", "b", "c")
    building, whole, turns = IndexBuilder(viewers.indexes), asyncio.Event(), list[bool]()

    def turn() -> None:
        turns.append(whole.is_set())
        if not whole.is_set():
            asyncio.get_running_loop().call_soon(turn)

    before = viewers.indexes.documents
    building.begin()
    building.when_whole("default", whole.set)
    assert not whole.is_set()
    turn()
    async with asyncio.timeout(30):
        await whole.wait()
    assert turns.count(False) > 2
    assert not viewers.indexes.behind
    assert viewers.indexes.documents - before == 3 * COUNT
    found = viewers.index("default").search("the last", 5)
    assert len(found.hits) + found.more == 3 * COUNT


async def test_what_is_whole_is_waited_for_by_nobody() -> None:
    viewers = viewers_with("a")
    building, told = IndexBuilder(viewers.indexes), list[str]()
    viewers.index("default")
    building.when_whole("default", lambda: told.append("at once"))
    building.when_whole("no such endpoint", lambda: told.append("nor this"))
    assert told == ["at once", "nor this"]


def test_a_step_is_small_whatever_one_server_brings() -> None:
    viewers = viewers_with("a")
    assert steps(viewers) > COUNT / 10
    viewers.put("a", offer("only"))
    viewers.refresh()
    assert steps(viewers) > COUNT / 10  # taking out is work, too
    assert names(viewers) == {"a__only"}


def steps(viewers: Viewers) -> int:
    """That it takes until there is no work left."""
    taken = 0
    while viewers.indexes.behind:
        viewers.indexes.step()
        taken += 1
    return taken


def test_an_index_is_whole_for_whoever_asks_in_the_middle_of_its_building() -> None:
    viewers = viewers_with("a", "b")
    for _ in range(20):
        viewers.indexes.step()
    viewers.put("b", offer("later"))
    viewers.refresh()
    found = viewers.index("default").search("", 1)
    assert found.more == COUNT
    assert viewers.index("default").search("b__later", 1).hits[0].document.exposed == "b__later"
    assert not viewers.indexes.behind


def test_an_endpoint_that_is_gone_is_not_built_to_the_end() -> None:
    viewers = viewers_with("a")
    viewers.indexes.step()
    viewers.configure(FrontSpec(version="1", endpoints=(), hosts=()))
    viewers.refresh()
    assert not viewers.indexes.behind
    assert names(viewers) == set()
