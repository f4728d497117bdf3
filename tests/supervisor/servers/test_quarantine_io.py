"""A quarantine on its way: from a catalogue that arrives to the fronts, journal and disk."""

import asyncio
import os
import resource
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from metamcp_supervisor.approval import lock as locks
from metamcp_supervisor.approval import lock_io
from metamcp_supervisor.approval.lock import Lock
from metamcp_supervisor.approval.lock_drift import with_lock_change
from metamcp_supervisor.config.config import Config, ConfigInvalid, Pinning
from metamcp_supervisor.config.reload import plan
from metamcp_supervisor.servers.quarantine_io import ToolQuarantine
from metamcp_worker.ipc import codec, process_names, server_catalog
from metamcp_worker.ipc.messages import (
    Catalogue,
    CatalogueChanged,
    Reconfigure,
    ServeOn,
    ServerReady,
)
from metamcp_worker.ipc.spec import FrontSpec
from tests.supervisor.configs import config, server
from tests.supervisor.locked import ADDITIVE, BREAKING, approved, lock, tool
from tests.supervisor.stage import Player, Stage, front_up, opened_stage, staged_front, until

pytestmark = pytest.mark.process
GIT = server("git")


def blob(*tools: bytes) -> bytes:
    found = server_catalog.ServerCatalogue(protocol="2025-11-25", tools=tuple(map(Raw, tools)))
    return server_catalog.pack(found)


def ready(worker: Player, *tools: bytes) -> None:
    """Its server is up, and offers this."""
    worker.say(ServerReady(protocol="2025-11-25", start_s=0.1, list_hash=""), blob(*tools))


def quarantined(front: Player) -> list[Sequence[str]]:
    """What the front has heard of quarantines and catalogues, in order: tools, or `catalogue`."""
    found: list[Sequence[str]] = []
    for message, fds in front.sent:
        if isinstance(message, ServeOn | Reconfigure):
            size = os.fstat(fds[0]).st_size
            spec = codec.decode_as(FrontSpec, os.pread(fds[0], size, 0))
            found.append([each[1] for each in spec.quarantined])
        elif isinstance(message, Catalogue):
            found.append("catalogue")
    return found


def files(folder: Path, held: Lock | None, pinning: Pinning | None = None) -> Config:
    """A configuration in this folder, with this lock beside it."""
    path = folder / lock_io.FILE
    if held is None:
        path.unlink(missing_ok=True)
    else:
        lock_io.save(path, held)
    found = config(replace(GIT, pinning=pinning))
    return replace(found, files=(folder / "metamcp.toml",))


@pytest.mark.promise("M40")
async def test_fronts_hear_what_they_must_keep_back_before_the_catalogue_that_has_it(
    tmp_path: Path,
) -> None:
    found = files(tmp_path, lock(git=approved(tool("a"), tool("b"), tool("c"))))
    async with opened_stage(tmp_path) as stage:
        assert not await stage.manager.approvals.begin(found)
        front = await front_up(stage)
        stage.manager.add(GIT)
        worker = await stage.player("git#1")
        ready(worker, tool("a"), tool("b"), tool("c"))
        await until(lambda: "catalogue" in quarantined(front), "as approved")
        assert quarantined(front) == [[], "catalogue"]
        other = tool("a"), tool("b", inputSchema=ADDITIVE), tool("c", inputSchema=BREAKING)
        worker.say(CatalogueChanged(), blob(*other))
        await until(lambda: not stage.manager.approvals.busy and len(front.sent) > 4, "judged")
        await until(lambda: len(quarantined(front)) == 5, "released")
        assert quarantined(front)[2:] == [["b", "c"], "catalogue", ["c"]]
        assert [m.vital for m in front.told(Reconfigure)] == [True, True]
        assert "tools drifted" in stage.told("git")
        new = await front_up_again(stage)
        assert quarantined(new)[:2] == [["c"], "catalogue"]


@pytest.mark.promise("M40")
async def test_fronts_hear_which_servers_are_held_to_what_is_approved_and_must(
    tmp_path: Path,
) -> None:
    approves = lock(git=approved(tool("a")))
    async with opened_stage(tmp_path) as stage:
        approvals = stage.manager.approvals
        await approvals.begin(files(tmp_path, approves))
        front = await front_up(stage)
        stage.manager.add(GIT)
        cases: tuple[tuple[Lock | None, Pinning | None, bool], ...] = (
            (None, None, False),
            (None, "enforce", True),
            (approves, "record", False),
            (approves, None, True),
        )
        for there, pinning, held in cases:
            before = len(front.told(Reconfigure))
            approvals.adopt(await approvals.draft(files(tmp_path, there, pinning), there))
            assert (approvals.enforced_servers(), approvals.list_quarantined()) == (
                ("git",) * held,
                (),
            )
            stage.fronts.reconfigure()
            await until(partial(_more_than, front, before), "it is told")
            assert front.told(Reconfigure)[-1].vital is held


def _more_than(front: Player, before: int) -> bool:
    return len(front.told(Reconfigure)) > before


async def front_up_again(stage: Stage) -> Player:
    """Another front, after the first one was killed."""
    old = await stage.player("front-0")
    stage.signal(old.pid, 9)
    await until(lambda: any(p.name == "front-0" and p is not old for p in stage.players), "new")
    new = await stage.player("front-0")
    await until(lambda: "catalogue" in quarantined(new), "it is told")
    return new


async def test_a_front_that_is_given_up_hears_nothing_more(tmp_path: Path) -> None:
    async with staged_front(tmp_path) as (stage, front):
        stage.deaf = True
        before = len(front.heard)
        stage.fronts.untold(stage.fronts.list_serving()[0], OSError(24, "Too many open files"))
        stage.manager.add(GIT)
        ready(await stage.player("git#1"), tool("a"))
        await stage.phase("git", "ready")
        assert len(front.heard) == before
        stage.deaf = False
        stage.signal(front.pid, 9)


async def test_what_is_seen_first_is_on_the_disk_and_held_to_by_the_next_gateway(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        await stage.manager.approvals.begin(files(tmp_path, None, "enforce"))
        stage.manager.approvals.on_catalogue("git", blob(tool("a"), tool("b")))
        await until(lambda: not stage.manager.approvals.busy, "it is written")
        seen = lock_io.load(tmp_path / lock_io.SEEN)
        (name,) = locks.definitions([GIT]).values()
        assert seen == lock(**{name: approved(tool("a"), tool("b"), name="", version="")})
    async with opened_stage(tmp_path) as stage:
        await stage.manager.approvals.begin(files(tmp_path, None, "enforce"))
        stage.manager.approvals.on_catalogue("git", blob(tool("a", title="x"), tool("b")))
        assert [each[1] for each in stage.manager.approvals.list_quarantined()] == ["a"]
        await until(lambda: not stage.manager.approvals.busy, "judged")
        assert [each[1] for each in stage.manager.approvals.list_quarantined()] == ["a"]
        assert stage.manager.approvals.drift == {"git": {"quarantined": 1}}


async def test_a_process_for_one_client_is_held_to_what_it_offers_whatever_its_server_offers(
    tmp_path: Path,
) -> None:
    own = process_names.own("git", "word")
    async with opened_stage(tmp_path) as stage:
        approvals = stage.manager.approvals
        await approvals.begin(files(tmp_path, lock(git=approved(tool("a")))))
        for name in ("git", own):
            approvals.on_catalogue(name, blob(tool("a", title="x")))
        await until(lambda: not approvals.busy, "judged")
        assert [each[0] for each in approvals.list_quarantined()] == ["git"], "it holds for both"
        approvals.on_catalogue("git", blob(tool("a")))
        assert [each[:2] for each in approvals.list_quarantined()] == [(own, "a")]
        await until(lambda: not approvals.busy, "judged again")
        assert [each[:2] for each in approvals.list_quarantined()] == [(own, "a")]
        approvals.on_catalogue(own, blob(tool("a")))
        assert approvals.list_quarantined() == ()


async def test_a_judgement_without_a_descriptor_to_load_what_compares_is_made_later(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        approvals = stage.manager.approvals
        await approvals.begin(files(tmp_path, lock(git=approved(tool("a")))))
        await asyncio.to_thread(os.getpid)  # there is a thread for it
        loaded = sys.modules.pop("metamcp_supervisor.approval.comparison", None)  # by other tests
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            approvals.on_catalogue("git", blob(tool("a", inputSchema=ADDITIVE)))
            await until(lambda: "error" in stage.told("git"), "it has no descriptor")
            assert [each[1] for each in approvals.list_quarantined()] == ["a"]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: not approvals.list_quarantined(), "judged, and released")
        if loaded is not None:
            sys.modules[loaded.__name__] = loaded


async def test_a_first_sight_that_cannot_be_read_is_told_and_never_written(tmp_path: Path) -> None:
    (tmp_path / lock_io.SEEN).write_text("{")
    async with opened_stage(tmp_path) as stage:
        approvals = stage.manager.approvals
        await approvals.begin(files(tmp_path, None, "enforce"))
        approvals.on_catalogue("git", blob(tool("a")))
        assert [each[1] for each in approvals.list_quarantined()] == ["a"]
        await until(lambda: not approvals.busy, "judged")
        assert [each[1] for each in approvals.list_quarantined()] == ["a"]
        assert "error" in stage.told("gateway")
        assert (tmp_path / lock_io.SEEN).read_text() == "{"


async def test_another_lock_is_judged_before_it_is_in_force_and_releases_what_it_approves(
    tmp_path: Path,
) -> None:
    held = lock(git=approved(tool("a"), tool("b")))
    async with opened_stage(tmp_path) as stage:
        approvals = stage.manager.approvals
        await approvals.begin(files(tmp_path, held))
        approvals.on_catalogue("git", blob(tool("a", title="x"), tool("b", title="y")))
        await until(lambda: not approvals.busy, "judged")
        assert [each[1] for each in approvals.list_quarantined()] == ["a", "b"]
        better = lock(git=approved(tool("a", title="x"), tool("b")))
        draft = await approvals.draft(files(tmp_path, better), better)
        assert [each[1] for each in approvals.list_quarantined()] == ["a", "b"], "not yet"
        approvals.adopt(draft)
        assert [each[1] for each in approvals.list_quarantined()] == ["b"]
        approvals.adopt(await approvals.draft(files(tmp_path, None), None))
        assert approvals.list_quarantined() == ()
        assert stage.told("gateway") == ["metamcp.lock", "metamcp.lock"]
        assert approvals.drift == {}


async def test_a_catalogue_that_comes_while_a_lock_is_read_is_held_to_the_new_one(
    tmp_path: Path,
) -> None:
    one, other = lock(git=approved(tool("a"))), lock(git=approved(tool("a", title="x")))
    async with opened_stage(tmp_path) as stage:
        approvals = stage.manager.approvals
        await approvals.begin(files(tmp_path, one))
        approvals.on_catalogue("git", blob(tool("a")))
        await until(lambda: not approvals.busy, "judged")
        draft = await approvals.draft(files(tmp_path, other), other)
        approvals.on_catalogue("git", blob(tool("a", title="x")))
        approvals.adopt(draft)
        assert approvals.list_quarantined() == ()
        await until(lambda: not approvals.busy, "judged again")
        assert approvals.list_quarantined() == ()


async def test_a_lock_that_cannot_be_read_is_refused_with_its_mistakes(tmp_path: Path) -> None:
    found = files(tmp_path, lock(git=approved(tool("a"))))
    (tmp_path / lock_io.FILE).write_text("<<<<<<< ours\n")
    async with opened_stage(tmp_path) as stage:
        with pytest.raises(ConfigInvalid, match="a conflict that a merge left"):
            await stage.manager.approvals.begin(found)


async def test_a_server_that_is_gone_keeps_nothing_back(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        told: list[int] = []
        approvals = ToolQuarantine(tmp_path, stage.journal, lambda: told.append(1))
        await approvals.begin(files(tmp_path, lock(git=approved(tool("a")))))
        approvals.on_catalogue("git", blob(tool("a", title="x")))
        await until(lambda: not approvals.busy, "judged")
        before = len(told)
        approvals.forget("git")
        approvals.forget("git")
        assert (approvals.list_quarantined(), len(told)) == ((), before + 1)


async def test_a_process_for_one_client_that_offers_what_its_server_does_has_nothing_to_itself(
    tmp_path: Path,
) -> None:
    own = "git@0123456789ab"
    async with opened_stage(tmp_path) as stage:
        approvals = stage.manager.approvals
        await approvals.begin(files(tmp_path, lock(git=approved(tool("a"), tool("b")))))
        approvals.on_catalogue("git", blob(tool("a", title="x"), tool("b")))
        approvals.on_catalogue(own, blob(tool("a"), tool("b", title="y")))
        await until(lambda: not approvals.busy, "judged")
        assert [each[:2] for each in approvals.list_quarantined()] == [
            ("git", "a"),
            (own, "b"),
        ]
        approvals.on_catalogue(own, blob(tool("a", title="x"), tool("b")))
        assert [each[:2] for each in approvals.list_quarantined()] == [("git", "a")]
        assert not approvals.busy


def test_a_plan_names_the_lock_and_is_another_plan_with_it(tmp_path: Path) -> None:
    same = plan(config(GIT), config(GIT))
    with_it = with_lock_change(same, None, lock(git=approved(tool("a"))))
    assert with_it.hash != same.hash
    change = with_it.changes[-1]
    assert (change.server, change.action) == ("metamcp.lock", "add")
    assert change.why == (
        "1 tool of 1 server is approved, in a file that was not there before; new: git.a"
    )
    assert locks.difference(Lock(), None).startswith("it is gone")


def test_a_plan_names_the_tools_about_which_the_lock_says_something_else() -> None:
    others = [tool(f"t{number}") for number in range(7)]
    before = lock(git=approved(tool("a"), tool("b"), tool("c")), wiki=approved(tool("x")))
    after = lock(git=approved(tool("a"), tool("b", title="B"), tool("w\x1b"), *others))
    assert locks.difference(before, after) == (
        "10 tools of 1 server are approved; new: git.t0, git.t1, git.t2, git.t3, git.t4 and 3 more;"
        " otherwise than before: git.b; no longer: git.c, wiki.x"
    )
    assert locks.difference(Lock(), lock(git=approved(tool("w\x1b")))).endswith("new: git.w\\u001b")
    assert locks.difference(after, after) == "10 tools of 1 server are approved"
    folded = locks.fold_lock(after)
    assert locks.difference(folded, folded) == locks.difference(after, after)
