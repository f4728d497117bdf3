"""The sweep, in a small process of its own: this one must not become a subreaper."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from metamcp_worker.runtime import orphans
from tests.fakes.nursery_hand import FAKES


@pytest.fixture(scope="module", name="swept")
def _swept() -> dict[str, Any]:
    command = (sys.executable, str(FAKES / "nursery_sweeper.py"))
    run = subprocess.run(command, capture_output=True, timeout=30, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_orphans_come_to_the_subreaper(swept: dict[str, Any]) -> None:
    assert swept["able"]
    assert swept["orphans"] == 4


@pytest.mark.promise("M74")
def test_a_sweep_takes_every_orphan_and_what_it_hands_up(swept: dict[str, Any]) -> None:
    assert swept["killed"] >= swept["orphans"]
    assert swept["left"] == 0


def test_a_sweep_spares_known_children(swept: dict[str, Any]) -> None:
    assert swept["spared"]


def test_both_ways_to_find_children_agree(swept: dict[str, Any]) -> None:
    assert swept["agree"]


def test_a_parent_that_is_dead_already_is_noticed(swept: dict[str, Any]) -> None:
    assert swept["parent"] == [True, False]


def test_children_are_listed_as_long_as_they_are_not_reaped() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid in orphans.children()
    child.wait()
    assert child.pid not in orphans.children()


def test_a_sweep_without_strangers_kills_nobody() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    assert orphans.sweep(orphans.children()) == 0
    assert child.poll() is None
    child.kill()
    child.wait()
