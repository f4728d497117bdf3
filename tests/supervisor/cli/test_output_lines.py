"""The log of a service: lines through a thread, as JSON or as text."""

import json
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from metamcp_supervisor.cli import output
from metamcp_supervisor.cli.output import ServiceLines, level_of
from metamcp_supervisor.verbs import JournalEvent, LogLine
from metamcp_worker.ipc.spec import LogSpec

EVENT = JournalEvent(seq=1, time=1.5, who="git", what="ready→error", cause="x", generation=2)
LINE = LogLine(seq=1, time=2.5, server="git", stream="stderr", text="a\nb")


@contextmanager
def speaking(form: str, written: list[str]) -> Generator[ServiceLines, None, None]:
    """`written`: all lines, at the end. The loggers are then as before."""
    own, root = logging.getLogger("metamcp"), logging.getLogger()
    before = own.handlers[:], own.propagate, root.handlers[:], own.level
    read, write = os.pipe()
    lines = ServiceLines(write, LogSpec(format=form))
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


@pytest.mark.parametrize(
    ("what", "level"),
    [("bug", "error"), ("error", "error"), ("ready→quarantined", "warning"),
     ("warming→ready", "info"), ("reloaded", "info"), ("order refused", "warning")],
)  # fmt: skip
def test_what_somebody_must_look_at_has_a_higher_level(what: str, level: str) -> None:
    assert level_of(what) == level


def test_a_reader_that_stops_costs_lines_and_never_time() -> None:
    written: list[str] = []
    with speaking("json", written) as lines:
        for number in range(output.LINES_MAX * 2):
            lines.event(JournalEvent(seq=number, time=0.0, who="x" * 100, what="y"))
    assert len(written) < output.LINES_MAX * 2
