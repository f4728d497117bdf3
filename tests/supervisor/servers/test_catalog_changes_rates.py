"""How often the lists of clients may change because a server comes and goes."""

from pathlib import Path

import pytest

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers.catalog_changes import (
    LIST_CHANGES_MAX,
    LIST_CHANGES_S,
    add_change,
    wait_s,
)
from tests.supervisor.stage import staged_front, states, until


def test_two_changes_a_minute_are_shown_at_once_and_the_next_one_waits() -> None:
    changes: tuple[float, ...] = ()
    for now in (10.0, 20.0):
        assert wait_s(changes, now) == 0.0
        changes = add_change(changes, now)
    assert wait_s(changes, 30.0) == LIST_CHANGES_S - 20.0
    assert wait_s(changes, 10.0 + LIST_CHANGES_S) == 0.0


def test_no_minute_has_more_changes_than_it_may_have() -> None:
    changes, shown = tuple[float, ...](), list[float]()
    for now in map(float, range(600)):
        if not wait_s(changes, now):
            changes = add_change(changes, now)
            shown.append(now)
    for start in shown:
        within = [one for one in shown if start <= one < start + LIST_CHANGES_S]
        assert len(within) <= LIST_CHANGES_MAX
    assert len(changes) == LIST_CHANGES_MAX


@pytest.mark.process
@pytest.mark.promise("M28")
async def test_tools_that_went_and_came_back_stay_listed_through_the_next_crash(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path) as (stage, front):
        stage.manager.add(Server(name="git", source="x", command=("x",), hide_after_s=0.0))
        (await stage.up("git")).down()
        await until(lambda: not states(front)[-1][1], "hidden")
        second = await stage.up("git", 2)
        await until(lambda: states(front)[-1] == ("ready", True), "listed again")
        before = len(states(front))
        second.down()
        (await stage.up("git", 3)).down()
        await stage.up("git", 4)
        await until(lambda: len(states(front)) > before + 2, "it came and went")
        assert all(listed for _, listed in states(front)[before:])


@pytest.mark.process
@pytest.mark.promise("M28")
async def test_a_restart_that_an_operator_wants_is_shown_at_once_however_often(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path) as (stage, front):
        stage.manager.add(Server(name="git", source="x", command=("x",)))
        (await stage.up("git")).down()
        for generation in (2, 3, 4, 5):
            worker = await stage.up("git", generation)
            await until(lambda: states(front)[-1] == ("ready", True), "listed")
            stage.manager.stop("git")
            await until(lambda: not states(front)[-1][1], "hidden")
            worker.leave(0)
            await stage.phase("git", "disabled")
            stage.manager.start("git")
