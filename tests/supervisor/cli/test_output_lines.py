"""The log of a service: lines through a thread, as JSON or as text."""

import json
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from metamcp_supervisor.cli import output
from metamcp_supervisor.cli.output import ServiceLines, level_of
from metamcp_supervisor.telemetry.logs import MINUTE_S, ServerBudgets
from metamcp_supervisor.verbs import JournalEvent, LogLine
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime.logs import JournalSocket, LogHandler
from tests.supervisor.stage import until
from tests.worker.runtime.journald import Journal

EVENT = JournalEvent(seq=1, time=1.5, who="git", what="ready→error", cause="x", generation=2)
LINE = LogLine(seq=1, time=2.5, server="git", stream="stderr", text="a\nb")


@contextmanager
def speaking(
    form: str, written: list[str], minute_s: float = MINUTE_S
) -> Generator[ServiceLines, None, None]:
    """`written`: all lines, at the end. The loggers are then as before."""
    own, root = logging.getLogger("metamcp"), logging.getLogger()
    before = own.handlers[:], own.propagate, root.handlers[:], own.level
    read, write = os.pipe()
    lines = ServiceLines(write, LogSpec(format=form), minute_s)
    try:
        yield lines
    finally:
        lines.close()
        own.handlers[:], own.propagate, root.handlers[:] = before[:3]
        own.setLevel(before[3])
        os.close(write)
        with open(read, encoding="utf-8") as file:
            written += file.read().splitlines()


@pytest.mark.promise("M89")
def test_events_lines_and_records_are_one_object_each() -> None:
    written: list[str] = []
    with speaking("json", written) as lines:
        lines.event(EVENT)
        lines.log_line(LINE)
        logging.getLogger("metamcp.control").error("oh %s", "no")
    event, line, record = map(json.loads, written)
    assert event == {
        "time": "1970-01-01T00:00:01.500Z", "level": "warning", "room": "events",
        "message": "git ready→error: x", "who": "git", "what": "ready→error", "cause": "x",
        "generation": 2,
    }  # fmt: skip
    assert line == {
        "time": "1970-01-01T00:00:02.500Z", "level": "info", "room": "server", "message": "a\nb",
        "server": "git", "stream": "stderr",
    }  # fmt: skip
    said: dict[str, Any] = record
    assert (said["level"], said["room"], said["message"]) == ("error", "control", "oh no")


@pytest.mark.promise("M89")
def test_people_get_lines_that_no_server_can_forge() -> None:
    written: list[str] = []
    with speaking("text", written) as lines:
        lines.event(EVENT)
        lines.log_line(LINE)
    first, second = written
    assert first.endswith("warning events: git ready→error: x  (generation=2)")
    assert second.endswith("info    server: a\\x0ab  (server=git)")


@pytest.mark.promise("M89")
def test_the_journal_of_systemd_gets_events_and_lines_with_their_server(tmp_path: Path) -> None:
    journal, written = Journal(tmp_path / "socket"), list[str]()
    with speaking("text", written) as lines:
        handler = logging.getLogger("metamcp").handlers[0]
        assert isinstance(handler, LogHandler)
        handler.socket = JournalSocket(journal.path)
        lines.is_server = {"git"}.__contains__
        lines.event(EVENT)
        lines.log_line(LINE)
        lines.event(structs.replace(EVENT, who="gateway", what="stopped", cause="", generation=0))
        handler.socket.close()
    event, line, other = journal.records()
    assert written == []
    names = {"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "METAMCP_WORKSPACE"}
    assert event["PRIORITY"] == "4"
    assert {key: text for key, text in event.items() if key not in names} == {
        "METAMCP_ROOM": "events", "METAMCP_SERVER": "git", "METAMCP_GENERATION": "2",
        "METAMCP_WHO": "git", "METAMCP_EVENT": "ready→error", "METAMCP_CAUSE": "x",
    }  # fmt: skip
    assert line["MESSAGE"] == "server: a\\x0ab  (server=git)"
    assert (line["METAMCP_SERVER"], line["METAMCP_STREAM"]) == ("git", "stderr")
    assert other["METAMCP_WHO"] == "gateway"
    assert "METAMCP_SERVER" not in other
    journal.close()


@pytest.mark.parametrize(
    ("what", "level"),
    [("bug", "error"), ("error", "error"), ("ready→quarantined", "warning"),
     ("warming→ready", "info"), ("reloaded", "info"), ("order refused", "warning")],
)  # fmt: skip
def test_what_somebody_must_look_at_has_a_higher_level(what: str, level: str) -> None:
    assert level_of(what) == level


def test_a_server_has_its_bytes_in_each_minute_and_what_is_left_out_is_counted() -> None:
    budgets = ServerBudgets()
    admitted = [budgets.admit("git", 400, 1000, now) for now in (0.0, 10.0, 20.0, 59.0, 59.5)]
    assert admitted == [True, True, True, False, False]
    assert budgets.admit("wiki", 400, 1000, 59.0)
    assert (budgets.take_over(59.9), budgets.has_left_out) == ([], True)
    sentence = "… 2 more lines (800 bytes) in the last 60 s are left out here"
    advice = "'metamcp ctl logs git' has the newest"
    assert budgets.take_over(60.0) == [("git", f"{sentence}; {advice}")]
    assert not budgets.has_left_out
    assert budgets.admit("git", 400, 1000, 60.0)


def test_the_processes_of_a_server_share_its_minute_and_a_larger_limit_waits_for_the_next() -> None:
    budgets = ServerBudgets()
    assert budgets.admit("git@ann", 100, 100, 0.0)
    assert not budgets.admit("git@bob", 100, 100, 1.0)
    assert not budgets.admit("git", 100, 1000, 2.0)
    assert len(budgets.take_over(61.0)) == 1


def test_a_minute_without_a_gap_ends_by_itself() -> None:
    budgets = ServerBudgets()
    assert all(budgets.admit("git", 100, 100, now) for now in (0.0, 60.0, 120.0))
    assert budgets.take_over(180.0) == []


async def test_what_was_left_out_of_the_log_is_said_when_the_minute_is_over() -> None:
    written: list[str] = []
    with speaking("json", written, minute_s=0.05) as lines:
        lines.server_max = lambda: 1
        for _ in range(3):
            lines.log_line(LINE)
        await until(lambda: not lines.budgets.has_left_out, "the minute is over")
        lines.log_line(LINE)
    first, count, second = map(json.loads, written)
    assert (first["message"], second["message"]) == ("a\nb", "a\nb")
    size = len(written[0].encode()) + 1
    assert count["message"].startswith(f"… 2 more lines ({2 * size} bytes) in the last 0.05 s are")
    assert (count["level"], count["room"], count["server"]) == ("warning", "server", "git")


async def test_the_end_of_the_log_says_what_is_left_out_too() -> None:
    written: list[str] = []
    with speaking("text", written) as lines:
        lines.server_max = lambda: 1
        for _ in range(3):
            lines.log_line(LINE)
    assert len(written) == 2
    assert "… 2 more lines" in written[1]


def test_a_reader_that_stops_costs_lines_and_never_time() -> None:
    written: list[str] = []
    with speaking("json", written) as lines:
        for number in range(output.LINES_MAX * 2):
            lines.event(JournalEvent(seq=number, time=0.0, who="x" * 100, what="y"))
    assert len(written) < output.LINES_MAX * 2
