"""The record of what operators decided: what it has, what is dropped, and a file that is unfit."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.servers import decisions
from metamcp_supervisor.servers.decisions import (
    ABSENT_S_MAX,
    DECISIONS_MAX,
    DRAIN,
    QUARANTINE,
    SET,
    STOP,
    Decisions,
)
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import Decision

NOW = 1_800_000_000.0
"""Seconds since the epoch."""
pytestmark = [pytest.mark.process, pytest.mark.promise("M125")]


def record(folder: Path) -> tuple[Decisions, Journal]:
    journal = Journal(time.time)
    return Decisions(folder, journal, lambda: NOW), journal


def loaded(folder: Path, *servers: str) -> Decisions:
    every, _ = record(folder)
    every.load(servers)
    return every


def decision(server: str, kind: str = STOP, **members: Any) -> Decision:
    return Decision(server=server, kind=kind, who="ann", when=NOW, **members)


def setting(server: str, key: str, value: str, ends: float = 9.0) -> Decision:
    return decision(server, SET, setting=f"{key}={value}", ends=ends)


async def stored(folder: Path, *every: Decision) -> None:
    before = loaded(folder)
    for each in every:
        before.put(each)
    assert await before.save() == ""


async def test_what_is_decided_is_read_again(tmp_path: Path) -> None:
    every = (
        decision("a", QUARANTINE, why="it is evil: \N{SNOWMAN}\n", reason="operator"),
        decision("b"),
        decision("c", DRAIN),
        setting("b", "timeout", "5s"),
        setting("", "log.level", "debug"),
    )
    await stored(tmp_path, *every)
    file = tmp_path / "decisions.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["decisions.json"]
    assert json.loads(file.read_text())[1] == {
        "server": "b", "kind": "stop", "who": "ann", "when": NOW,
    }  # fmt: skip
    again = loaded(tmp_path, "a")
    assert again.list_servers() == {each.server: each for each in every[:3]}
    assert again.list_settings() == [*every[3:]]
    assert again.find("b", "timeout") == every[3]


async def test_a_server_has_one_decision_and_each_setting_has_one(tmp_path: Path) -> None:
    await stored(tmp_path, decision("a"), setting("a", "timeout", "1s"), decision("a", DRAIN))
    await stored(tmp_path, setting("a", "timeout", "2s"))
    again = loaded(tmp_path)
    assert again.list_servers() == {"a": decision("a", DRAIN)}
    assert [each.setting for each in again.list_settings()] == ["timeout=2s"]


async def test_only_decisions_of_these_kinds_are_lifted(tmp_path: Path) -> None:
    await stored(tmp_path, decision("a"), decision("b", DRAIN), setting("a", "retry", "never"))
    again = loaded(tmp_path)
    again.lift("a", QUARANTINE, STOP)
    again.lift("b", QUARANTINE, STOP)
    again.lift("nobody", STOP)
    await again.save()
    again = loaded(tmp_path)
    assert again.list_servers() == {"b": decision("b", DRAIN)}
    assert again.find("a", "retry")


async def test_settings_that_are_over_are_dropped(tmp_path: Path) -> None:
    await stored(tmp_path, setting("a", "timeout", "5s"), setting("", "log.level", "debug"))
    again = loaded(tmp_path)
    again.retain(["a"], {("a", "timeout")})
    await again.save()
    assert [each.key for each in loaded(tmp_path).list_settings()] == ["timeout"]


async def test_decisions_about_an_absent_server_stay_for_a_while(tmp_path: Path) -> None:
    recent, old = NOW - ABSENT_S_MAX, NOW - ABSENT_S_MAX - 1
    await stored(
        tmp_path,
        decision("new"),
        decision("recent", QUARANTINE, absent=recent),
        decision("old", QUARANTINE, absent=old),
        decision("back", QUARANTINE, absent=old),
    )
    again = loaded(tmp_path)
    again.retain(["back"], ())
    await again.save()
    every = loaded(tmp_path).list_servers()
    assert list(every) == ["new", "recent", "back"]
    assert every["new"].absent == NOW
    assert every["recent"].absent == recent
    assert every["back"].absent == 0.0


async def test_what_is_unchanged_is_not_written(tmp_path: Path) -> None:
    await stored(tmp_path, decision("a"))
    again = loaded(tmp_path)
    (tmp_path / "decisions.json").unlink()
    again.retain(["a"], ())
    again.lift("a", DRAIN)
    assert not again.busy
    await again.close()
    assert os.listdir(tmp_path) == []


async def test_an_absent_server_makes_room_and_else_the_answer_says_that_there_is_none(
    tmp_path: Path,
) -> None:
    every, journal = record(tmp_path)
    for number in range(DECISIONS_MAX - 1):
        every.put(decision(f"s{number}"))
    every.put(decision("gone", QUARANTINE, absent=7.0))
    every.put(decision("more"))
    assert await every.save() == ""
    assert every.find("more")
    assert every.find("gone") is None
    every.put(decision("too-many", QUARANTINE))
    sentence = f"this does not outlast a restart of the gateway: {decisions.TOO_MANY}"
    assert await every.save() == sentence
    assert await every.save() == "", "it is said once"
    assert [event.cause for event in journal.since(0)] == [sentence]
    every.put(decision("s1", DRAIN))
    assert await every.save() == ""


async def test_the_file_stays_below_the_limit_for_its_size(tmp_path: Path) -> None:
    every, _ = record(tmp_path)
    for number in range(DECISIONS_MAX):
        name = f"s{number}".ljust(64, "x")
        every.put(decision(name, QUARANTINE, why="\x01" * 10_000, reason="operator"))
    assert await every.save() == ""
    assert len(loaded(tmp_path).list_servers()) == DECISIONS_MAX


async def test_what_cannot_be_written_is_said_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("a file in place of the folder")
    every, journal = record(folder)
    every.put(decision("a"))
    warning = await every.save()
    assert warning.startswith("this does not outlast a restart of the gateway: ")
    assert f"{folder}/decisions.json cannot be written: " in warning
    assert [event.what for event in journal.since(0)] == ["note"]
    folder.unlink()
    await every.close()
    assert every.problem == ""
    assert loaded(folder).list_servers() == {"a": decision("a")}


async def test_members_and_kinds_of_a_later_version_do_no_harm(tmp_path: Path) -> None:
    later = {"server": "a", "kind": "mask", "who": "ann", "when": 5.0, "more": [1]}
    (tmp_path / "decisions.json").write_text(json.dumps([later]))
    again = loaded(tmp_path, "a")
    again.put(decision("b"))
    await again.save()
    assert list(loaded(tmp_path).list_servers()) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('[{"server":"a"', "is not a list of decisions"),
        ("", "is not a list of decisions"),
        ('[{"server":"a"}]', "is not a list of decisions"),
        ("{}", "is not a list of decisions"),
    ],
)
def test_a_broken_file_keeps_every_server_out_and_is_moved_aside(
    tmp_path: Path, content: str, problem: str
) -> None:
    (tmp_path / "decisions.json").write_text(content)
    every, journal = record(tmp_path)
    every.load(["a", "b"])
    assert problem in check(every, journal, ["a", "b"])
    assert (tmp_path / "decisions.json.broken").read_text() == content
    assert sorted(os.listdir(tmp_path)) == ["decisions.json", "decisions.json.broken"]
    assert loaded(tmp_path).list_servers().keys() == {"a", "b"}, "also after another start"


def test_a_file_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "decisions.json").write_text("[]")
    (tmp_path / "decisions.json").chmod(0o622)
    every, journal = record(tmp_path)
    every.load(["a"])
    assert "may be written by others" in check(every, journal, ["a"])


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "decisions.json")
    every, journal = record(tmp_path)
    every.load(["a"])
    assert "is a FIFO" in check(every, journal, ["a"])


def test_a_broken_file_that_cannot_be_moved_stays(tmp_path: Path) -> None:
    (tmp_path / "decisions.json").write_text("broken")
    (tmp_path / "decisions.json.broken").mkdir()
    every, journal = record(tmp_path)
    every.load(["a"])
    assert "the file stays where it is" in check(every, journal, ["a"])
    assert (tmp_path / "decisions.json").read_text() == "broken"


def test_without_a_file_nothing_is_decided_and_nothing_written(tmp_path: Path) -> None:
    every, journal = record(tmp_path / "state")
    every.load(["a"])
    assert every.list_servers() == {}
    assert not journal.since(0)
    assert not (tmp_path / "state").exists()


def check(every: Decisions, journal: Journal, servers: Sequence[str]) -> str:
    """Check that every server is in quarantine; return what the journal says."""
    found = every.list_servers()
    assert [*found] == [*servers]
    assert {each.kind for each in found.values()} == {QUARANTINE}
    assert {each.who for each in found.values()} == {"the gateway"}
    (event,) = journal.since(0)
    assert "what operators decided cannot be read: " in event.cause
    assert "every server is in quarantine until 'metamcp ctl clear NAME'" in event.cause
    return event.cause
