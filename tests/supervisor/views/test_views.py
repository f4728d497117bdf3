"""Orders about views from fronts that the tests play, over real control sockets, on a real disk."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from metamcp_supervisor.config.config import Endpoint
from metamcp_supervisor.store.database import FILE, DatabaseFile
from metamcp_supervisor.views.views import NO_DESCRIPTOR, Views
from metamcp_worker.ipc import codec, packets, process_names
from metamcp_worker.ipc.disclosure import (
    Activate,
    Amend,
    AnnounceLists,
    AnyOrder,
    Build,
    Delete,
    DisclosureApplied,
    DisclosureDelta,
    DisclosureState,
    Equip,
    ListsAnnounced,
    OrderOutcome,
    ServerListsChanged,
    Unequip,
    ViewContent,
    ViewOrder,
    ViewOwner,
)
from metamcp_worker.ipc.messages import (
    AdoptSessions,
    DisclosureUpdate,
    Heartbeat,
    Listen,
    Message,
    OrderReply,
    OrderRequest,
    ServeOn,
    SessionKept,
    SessionRecord,
    SessionsOver,
    WorkerExit,
)
from tests.supervisor.configs import config, server
from tests.supervisor.locker import locked
from tests.supervisor.stage import Player, Stage, opened_stage, until

pytestmark = pytest.mark.process

M = TypeVar("M", bound=Message)
ME = ViewOwner("desk", "local")
BUILD = Build("dev", (("git", "status"),), equip=True)
EQUIPPED = ViewContent((("git", "status"),), toolset="dev")


def blobs(player: Player, kind: type[M]) -> list[tuple[M, bytes]]:
    """What a front was told in such messages, with their content."""
    return [
        (message, packets.read_blob(os.dup(fds[0])))
        for message, fds in player.sent
        if isinstance(message, kind)
    ]


def seen(player: Player) -> DisclosureState | None:
    """What it knows of views."""
    known: DisclosureState | None = None
    for message, blob in blobs(player, DisclosureUpdate):
        if message.whole:
            known = codec.decode_as(DisclosureState, blob)
        else:
            known = shifted(known or DisclosureState(), codec.decode_as(DisclosureDelta, blob))
    return known


def shifted(known: DisclosureState, news: DisclosureDelta) -> DisclosureState:
    views = dict(known.views) | {whose: one for one, those in news.views for whose in those}
    sets = {one.name: one for one in (*known.toolsets, *news.put)}
    kept = tuple(sets[name] for name in sorted(sets.keys() - set(news.drop)))
    return DisclosureState(
        tuple((w, one) for w, one in views.items() if one != ViewContent()), kept
    )


async def outcome(player: Player, ticket: int) -> OrderOutcome:
    def found() -> OrderOutcome | None:
        told = [blob for message, blob in blobs(player, OrderReply) if message.ticket == ticket]
        return codec.decode_as(OrderOutcome, told[0]) if told else None

    return await until(found, f"the outcome of {ticket}")


async def ordered(
    player: Player, order: AnyOrder, ticket: int = 1, whose: ViewOwner = ME
) -> OrderOutcome:
    player.say(OrderRequest(ticket=ticket), codec.dump(ViewOrder(whose, order)))
    return await outcome(player, ticket)


async def up(stage: Stage, *names: str) -> list[Player]:
    found: list[Player] = []
    for name in names:
        player = await stage.player(name)
        player.ready()
        found.append(player)
    await until(lambda: [f for f in stage.fronts.list_serving() if f.ready], "they are ready")
    return found


@asynccontextmanager
async def opened_views(folder: Path, fronts: int = 2) -> AsyncGenerator[tuple[Stage, Views]]:
    """A stage with views, which begin before the fronts."""
    async with opened_stage(folder) as stage:
        wanted = config(server("git"), state_dir=folder)
        stage.views = Views(
            stage.fronts, stage.routes, stage.journal, lambda: wanted, DatabaseFile(folder)
        )
        await stage.views.begin()
        stage.fronts.start(fronts)
        try:
            yield stage, stage.views
        finally:
            await stage.views.close()


@pytest.mark.promise("M31")
async def test_every_front_knows_of_a_change_before_who_ordered_it_hears_that_it_is_done(
    tmp_path: Path,
) -> None:
    async with opened_views(tmp_path) as (stage, views):
        one, other = await up(stage, "front-0", "front-1")
        found = await ordered(one, BUILD)
        assert (found.error, found.before, found.after) == ("", ViewContent(), EQUIPPED)
        assert [type(each) for each in one.heard[-3:]] == [
            DisclosureUpdate,
            AnnounceLists,
            OrderReply,
        ]
        await until(lambda: seen(other), "the other front")
        everything = views.read_everything()
        assert everything.views == ((ME, EQUIPPED),)
        assert seen(one) == seen(other) == everything
        assert not other.told(OrderReply)


@pytest.mark.promise("M32")
async def test_nobody_hears_of_a_change_before_the_slowest_front_has_made_its_lists(
    tmp_path: Path,
) -> None:
    async with opened_views(tmp_path) as (stage, views):
        one, other = await up(stage, "front-0", "front-1")
        other.builds = False
        one.say(OrderRequest(ticket=1), codec.dump(ViewOrder(ME, BUILD)))
        await until(lambda: other.told(DisclosureUpdate), "the slow front is told")
        await until(lambda: not stage.fronts.find_blocker(), "a few turns")
        assert views.busy
        assert not one.told(AnnounceLists)
        assert not one.told(OrderReply)
        other.say(DisclosureApplied(number=other.told(DisclosureUpdate)[-1].number))
        await outcome(one, 1)
        assert len(one.told(AnnounceLists)) == len(other.told(AnnounceLists)) == 1


async def test_a_front_that_hangs_or_dies_keeps_a_change_from_nobody(tmp_path: Path) -> None:
    async with opened_views(tmp_path) as (stage, _):
        one, other = await up(stage, "front-0", "front-1")
        other.builds = False
        assert (await ordered(one, BUILD)).error == ""
        assert len(other.told(AnnounceLists)) == 1, "it finds it behind what it has not read yet"
        one.say(OrderRequest(ticket=2), codec.dump(ViewOrder(ME, Unequip())))
        await until(lambda: len(other.told(DisclosureUpdate)) == 2, "the second change")
        other.leave()
        assert (await outcome(one, 2)).after == ViewContent()


@pytest.mark.promise("M28")
async def test_lists_that_servers_changed_are_announced_when_all_fronts_have_them(
    tmp_path: Path,
) -> None:
    async with opened_views(tmp_path) as (stage, views):
        one, other = await up(stage, "front-0", "front-1")
        other.builds = False
        one.say(ServerListsChanged(number=0))
        (told,) = await until(lambda: other.told(DisclosureUpdate), "a round")
        other.say(ServerListsChanged(number=0))
        other.say(Heartbeat(seq=1, lag_ms=0, inflight=0, queued=0))
        await until(lambda: one.told(DisclosureUpdate), "the same one")
        assert views.busy
        assert not one.told(AnnounceLists)
        other.say(DisclosureApplied(number=told.number))
        await until(lambda: one.told(AnnounceLists) and other.told(AnnounceLists), "all have it")
        assert one.told(DisclosureUpdate) == other.told(DisclosureUpdate) == [told], (
            "one is enough for all"
        )
        assert blobs(one, DisclosureUpdate)[0][1] == codec.dump(DisclosureDelta())
        one.say(ServerListsChanged(number=told.number))
        await until(lambda: len(one.told(AnnounceLists)) == 2, "who hangs is not waited for longer")
        one.say(ServerListsChanged(number=told.number + 1))
        await until(lambda: len(other.told(DisclosureUpdate)) == 3, "the next one")
        other.leave()
        await until(lambda: len(one.told(AnnounceLists)) == 3, "nobody waits for who is gone")


async def test_who_inherits_the_sessions_of_a_front_has_them_before_a_change_is_announced(
    tmp_path: Path,
) -> None:
    record = SessionRecord(id="s", endpoint="desk", protocol="2025-11-25", caller="{}")
    async with opened_views(tmp_path) as (stage, _):
        one, other = await up(stage, "front-0", "front-1")
        other.say(SessionKept(), codec.dump(record))
        await until(lambda: stage.fronts.sessions.count_for_front(1), "its session is known")
        stage.exited(WorkerExit(pid=other.pid, code=1))
        await until(lambda: stage.fronts.roster.leaving, "it ended, and its socket did not")
        one.say(OrderRequest(ticket=1), codec.dump(ViewOrder(ME, BUILD)))
        await outcome(one, 1)
        assert [type(each) for each in one.heard[-4:]] == [
            DisclosureUpdate,
            AdoptSessions,
            AnnounceLists,
            OrderReply,
        ]


@pytest.mark.parametrize(
    ("says", "untold"),
    [
        pytest.param((), True, id="nothing"),
        pytest.param((DisclosureApplied(number=1),), True, id="that it has the lists"),
        pytest.param(
            (DisclosureApplied(number=1), ListsAnnounced(number=1)),
            False,
            id="that its clients know",
        ),
        pytest.param((ListsAnnounced(number=7),), True, id="something of the program before"),
    ],
)
async def test_what_a_front_may_not_have_told_its_clients_the_heir_of_their_sessions_tells(
    tmp_path: Path, says: tuple[Message, ...], untold: bool
) -> None:
    record = SessionRecord(id="s", endpoint="desk", protocol="2025-11-25", caller="{}")
    async with opened_views(tmp_path) as (stage, views):
        one, other = await up(stage, "front-0", "front-1")
        other.builds = False
        other.say(SessionKept(), codec.dump(record))
        one.say(OrderRequest(ticket=1), codec.dump(ViewOrder(ME, BUILD)))
        await until(lambda: other.told(DisclosureUpdate), "the round begins")
        for each in says:
            other.say(each)
        await outcome(one, 1)
        await until(lambda: views.busy == untold, "an upgrade waits for who has not told it")
        other.leave()
        (adopt,) = await until(lambda: one.told(AdoptSessions), "its session is with the other one")
        assert adopt.untold == untold


async def test_a_front_is_told_what_changed_and_not_all_that_there_is(tmp_path: Path) -> None:
    async with opened_views(tmp_path, fronts=1) as (stage, views):
        (one,) = await up(stage, "front-0")
        await ordered(one, BUILD, 1)
        for number in range(2, 5):
            await ordered(one, Equip("dev"), number, ViewOwner("desk", "local", f"s{number}"))
        last = codec.decode_as(DisclosureDelta, blobs(one, DisclosureUpdate)[-1][1])
        assert last == DisclosureDelta(((EQUIPPED, (ViewOwner("desk", "local", "s4"),)),))
        await ordered(one, Amend("dev", add=(("git", "log"),)), 5)
        (several,) = codec.decode_as(DisclosureDelta, blobs(one, DisclosureUpdate)[-1][1]).views
        assert len(several[1]) == 4, "what is shown to many is said once"
        assert seen(one) == views.read_everything()


async def test_a_front_that_starts_is_told_everything_before_it_listens(tmp_path: Path) -> None:
    async with opened_views(tmp_path, fronts=1) as (stage, views):
        (one,) = await up(stage, "front-0")
        assert [type(each) for each in one.heard] == [ServeOn, Listen], "there is nothing yet"
        await ordered(one, BUILD)
        one.leave()
        await until(lambda: stage.players[-1] is not one, "another front")
        (after,) = await up(stage, "front-0")
        assert [type(each) for each in after.heard] == [ServeOn, DisclosureUpdate, Listen]
        assert seen(after) == views.read_everything()
    async with opened_views(tmp_path, fronts=1) as (stage, views):
        (one,) = await up(stage, "front-0")
        assert [type(each) for each in one.heard] == [ServeOn, DisclosureUpdate, Listen]
        assert seen(one) == views.read_everything()
        assert views.read_everything().views == ((ME, EQUIPPED),)


@pytest.mark.promise("M31")
async def test_what_an_earlier_gateway_left_can_be_taken_away(tmp_path: Path) -> None:
    async with opened_views(tmp_path, fronts=1) as (stage, views):
        (one,) = await up(stage, "front-0")
        await ordered(one, BUILD)
    async with opened_views(tmp_path, fronts=1) as (stage, views):
        (one,) = await up(stage, "front-0")
        await ordered(one, Unequip(), 1)
        await ordered(one, Delete("dev"), 2)
        assert seen(one) == views.read_everything() == DisclosureState()


async def test_a_front_that_dies_between_its_order_and_the_outcome_costs_nothing(
    tmp_path: Path,
) -> None:
    async with opened_views(tmp_path) as (stage, views):
        one, other = await up(stage, "front-0", "front-1")
        await ordered(one, BUILD)
        with locked(tmp_path / FILE) as lock:
            one.say(OrderRequest(ticket=2), codec.dump(ViewOrder(ME, Unequip())))
            await until(lambda: views.busy, "the order is being carried out")
            one.leave()
            await until(lambda: stage.gone_fronts, "the front is gone")
            assert views.busy, "no upgrade begins now"
            lock.release()
            await until(lambda: not views.busy, "it is carried out")
        await until(lambda: (found := seen(other)) and not found.views, "the other front")
        await until(lambda: stage.players[-1] is not other, "a front in its place")
        (after,) = await up(stage, "front-0")
        assert views.read_everything().toolsets
        assert seen(after) == views.read_everything()


async def test_an_order_whose_content_was_lost_on_the_way_is_answered(tmp_path: Path) -> None:
    async with opened_views(tmp_path, fronts=1) as (stage, views):
        (one,) = await up(stage, "front-0")
        one.say(OrderRequest(ticket=7))
        assert await outcome(one, 7) == OrderOutcome(NO_DESCRIPTOR)
        assert views.read_everything() == DisclosureState()


async def test_the_view_of_a_session_goes_with_it(tmp_path: Path) -> None:
    async with opened_views(tmp_path, fronts=1) as (stage, views):
        (one,) = await up(stage, "front-0")
        own = ViewOwner("desk", "local", process_names.of_session("its-id"))
        await ordered(one, Activate("git"), 1)
        await ordered(one, Activate("git"), 2, own)
        assert len(views.read_everything().views) == 2
        one.say(SessionsOver(ids=("its-id",)))
        await until(lambda: len(views.read_everything().views) == 1, "its view is gone")
        await until(lambda: seen(one) == views.read_everything(), "and the front knows")


async def test_a_file_that_cannot_be_read_is_in_the_journal_and_orders_hear_of_it(
    tmp_path: Path,
) -> None:
    (tmp_path / FILE).write_bytes(b"no database\n" * 100)
    async with opened_views(tmp_path, fronts=1) as (stage, _):
        (one,) = await up(stage, "front-0")
        found = [await ordered(one, Unequip(), ticket) for ticket in (1, 2)]
        (event,) = [each for each in stage.journal.since(0) if each.what == "error"]
        assert event.who == "gateway"
        assert [event.cause] * 2 == [
            f"tool sets, views and scripts cannot be kept: {f.error}" for f in found
        ]


async def test_what_operators_may_name_is_what_servers_offered_and_what_is_configured(
    tmp_path: Path,
) -> None:
    async with opened_views(tmp_path, fronts=1) as (stage, views):
        await up(stage, "front-0")
        stage.manager.add(server("git"))
        assert views.tools("git") == frozenset()
        await stage.up("git")
        assert views.tools("git") == {"t0"}
        assert views.tools("nowhere") == frozenset()


@pytest.mark.parametrize("default", ["default", "b"])
async def test_the_default_endpoint_is_the_first(default: str, tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        names = ("b", "a", "default") if default == "default" else ("b", "a")
        made = {
            name: Endpoint(name=name, namespace="default", exposure="toolset") for name in names
        }
        wanted = config(endpoints=made)
        database = DatabaseFile(wanted.gateway.state_dir)
        views = Views(stage.fronts, stage.routes, stage.journal, lambda: wanted, database)
        found = views.endpoints()
        assert next(iter(found)) == default
        assert found == dict.fromkeys(names, "toolset")
