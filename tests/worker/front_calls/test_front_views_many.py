"""Hundreds of sessions, each with a view of its own: what is equal is held once, what is over is
let go, and a change costs what it changes."""

import tracemalloc
from weakref import ref

from msgspec import Raw
from msgspec.structs import replace

from metamcp_worker.access import gate
from metamcp_worker.catalog.views import PageCache, View
from metamcp_worker.front_calls.front_views import Viewers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Pair, ViewContent, ViewOwner
from metamcp_worker.ipc.spec import FrontSpec
from tests.worker.front.offers import endpoint, offer

SESSIONS = 300
SERVERS = tuple(f"s{number:02}" for number in range(50))
TOOLS = tuple(f"t{number:02}" for number in range(20))
ALL: tuple[Pair, ...] = tuple((server, tool) for server in SERVERS for tool in TOOLS)
SHOWN = 200
VIEW_BYTES_MAX = 16 * 1024
"""Of a view with 200 tools that no other session has, without the bytes of its lists."""
WHO = [ViewOwner("default", gate.LOCAL, f"{number:012x}") for number in range(SESSIONS)]


def made() -> Viewers:
    found = Viewers()
    spec = replace(endpoint(*SERVERS), exposure="toolset", per_session=True)
    found.configure(FrontSpec(version="1", endpoints=(spec,), hosts=()))
    for server in SERVERS:
        found.put(server, offer(*TOOLS))
        found.set_listed(server, True)
    found.refresh()
    return found


def received(number: int = 0) -> ViewContent:
    """As it comes from the supervisor: no two of them have anything in common."""
    tools = ALL[number : number + SHOWN] if number + SHOWN <= len(ALL) else ALL[-SHOWN:]
    more = ALL[: number % 97]
    return codec.decode_as(
        ViewContent, codec.dump(ViewContent((*tools, *more), toolset=f"of {number}"))
    )


def view(viewers: Viewers, whose: ViewOwner) -> View:
    found = viewers.get("default")
    assert found is not None
    return viewers.own(found, whose.session)


def test_equal_views_of_many_sessions_are_one_value_with_one_list() -> None:
    viewers = made()
    viewers.shift((received(), (whose,)) for whose in WHO)
    assert len(viewers.refresh()) == SESSIONS
    assert len({id(view(viewers, whose)) for whose in WHO}) == 1
    page = view(viewers, WHO[0]).page("tools/list", {}, modern=False)
    assert view(viewers, WHO[-1]).page("tools/list", {}, modern=False) is page


def test_a_view_that_no_other_session_has_is_small() -> None:
    viewers = made()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        viewers.shift((received(number), (whose,)) for number, whose in enumerate(WHO))
        viewers.refresh()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len({id(view(viewers, whose)) for whose in WHO}) == SESSIONS
    assert (after - before) / SESSIONS <= VIEW_BYTES_MAX


def test_views_go_with_their_sessions() -> None:
    viewers = made()
    viewers.shift((received(number), (whose,)) for number, whose in enumerate(WHO))
    viewers.refresh()
    kept = [ref(view(viewers, whose)) for whose in WHO]
    view(viewers, WHO[1]).page("tools/list", {}, modern=False)
    viewers.shift([(ViewContent(), WHO[1:])])
    viewers.refresh()
    assert [one() is not None for one in kept] == [True] + [False] * (SESSIONS - 1)


def test_a_change_of_one_view_leaves_all_others_what_they_are() -> None:
    viewers = made()
    viewers.shift((received(number), (whose,)) for number, whose in enumerate(WHO))
    viewers.refresh()
    before = [view(viewers, whose) for whose in WHO]
    viewers.shift([(received(5), (WHO[0],)), (received(7), (WHO[7],))])
    assert set(viewers.refresh()) == {WHO[0]}
    after = [view(viewers, whose) for whose in WHO]
    assert [one is not other for one, other in zip(before, after, strict=True)] == [
        True, *[False] * (SESSIONS - 1)
    ]  # fmt: skip
    assert after[0] is before[5]


def test_lists_that_are_not_kept_are_made_again_and_those_of_a_view_go_with_it() -> None:
    shelf = PageCache(bytes_max=100)
    first, second = shelf.pages(), shelf.pages()
    place = ("tools", False, 0)
    first.put(place, b"x" * 60)
    second.put(place, b"y" * 60)
    assert (first.ready, shelf.bytes) == ({}, 60)
    first.put(place, b"z" * 30)
    assert (len(first.ready), len(second.ready), shelf.bytes) == (1, 1, 90)
    second.put(("tools", True, 0), b"y" * 200)
    assert (len(first.ready), len(second.ready), shelf.bytes) == (0, 2, 260)
    del second
    assert shelf.bytes == 0


def test_a_list_of_which_the_bytes_went_is_the_same_again() -> None:
    viewers = made()
    viewers.shift([(received(), (WHO[0],))])
    viewers.refresh()
    seen = view(viewers, WHO[0])
    page = seen.page("tools/list", {}, modern=True)
    seen.pages.ready.clear()
    again = seen.page("tools/list", {}, modern=True)
    assert again == page
    assert again is not page
    assert Raw(again)
