"""Levels of the gateway's log that are other than in the file, for a time."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config import overrides
from metamcp_supervisor.config.config import ConfigInvalid, Log
from metamcp_supervisor.config.overrides import (
    GATEWAY,
    KEYS,
    TimedOverrides,
    level_text,
    read_level,
)
from metamcp_worker.ipc.records import ROOMS
from tests.supervisor.configs import config, server

pytestmark = pytest.mark.promise("M89")

OPERATING = (Path(__file__).parents[3] / "docs/operating.md").read_text()
LOG = Log(format="json", level="warning", levels={"http": "error"})


@pytest.mark.parametrize(
    ("settings", "level", "rooms"),
    [
        ({"log.level": "debug"}, "debug", {"http": "error"}),
        ({"log.levels.front": "debug"}, "warning", {"http": "error", "front": "debug"}),
        ({"log.levels.http": "info"}, "warning", {"http": "info"}),
        ({"log.levels.mcp.client": "info"}, "warning", {"http": "error", "mcp.client": "info"}),
        ({"log.level": "info", "log.levels.http": "debug"}, "info", {"http": "debug"}),
        ({}, "warning", {"http": "error"}),
    ],
)
def test_levels_are_read_as_in_the_file(
    settings: dict[str, str], level: str, rooms: dict[str, str]
) -> None:
    assert read_level(LOG, settings) == Log(format="json", level=level, levels=rooms)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"log.level": "debgu"}, "log.level: 'debgu' is not a choice; did you mean 'debug'"),
        ({"log.level": ""}, "log.level: '' is not a choice"),
        ({"log.levels.http": "loud"}, "log.levels.http: 'loud' is not a level"),
        ({"log.format": "text"}, "log.format: cannot be set for a time; these can: log.level, "),
        ({"log.levels.": "debug"}, "cannot be set for a time"),
        ({"log.levels.a b": "debug"}, "cannot be set for a time"),
    ],
)
def test_what_is_no_level_is_refused_in_one_sentence(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        read_level(LOG, settings)
    (problem,) = caught.value.problems
    assert words in str(problem)
    assert len(str(problem).splitlines()) == 1


def test_levels_are_in_force_until_their_time_is_over_or_the_files_are_read_anew() -> None:
    whole = replace(config(server("git")), log=LOG)
    early = TimedOverrides().set_levels(LOG, {"log.level": "debug"}, 10.0)
    both = early.set_levels(early.apply(whole).log, {"log.levels.front": "info"}, 20.0)
    both = both.set(whole.servers["git"], {"timeout": "5s"}, 30.0)
    assert both.apply(whole).log == replace(
        LOG, level="debug", levels={"http": "error", "front": "info"}
    )
    assert both.apply(whole).servers["git"].timeout_s == 5.0
    left = both.after(10.0)
    assert left.apply(whole).log == replace(LOG, levels={"http": "error", "front": "info"})
    assert [each.key for each in both.restrict_to(whole).all] == ["timeout"]
    assert both.without(GATEWAY) == both.restrict_to(whole)
    again = early.set_levels(LOG, {"log.level": "error"}, 40.0)
    assert [(each.text, each.ends) for each in again.of(GATEWAY)] == [("error", 40.0)]


def test_every_room_can_be_named_and_has_what_counts_for_it() -> None:
    assert {"log.level", *(f"log.levels.{room}" for room in ROOMS)} == {*KEYS}
    keys = ("log.level", "log.levels.http", "log.levels.front")
    assert [level_text(LOG, key) for key in keys] == ["warning", "error", "none"]
    assert "debug" in overrides.WORDS
    assert "ctl set log.levels.front debug" in OPERATING
