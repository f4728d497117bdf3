"""The service log: lines of JSON through a thread."""

import json
import logging
import os

from metamcp_supervisor.cli import outlet
from metamcp_supervisor.cli.jsonlines import JsonLines
from metamcp_supervisor.verbs import Event, LogLine


def test_events_lines_and_records_are_one_object_each() -> None:
    read, write = os.pipe()
    lines = JsonLines(write)
    lines.event(Event(seq=1, time=1.5, who="git", what="ready→backoff", cause="x", generation=2))
    lines.log_line(LogLine(seq=1, time=2.5, server="git", stream="stderr", text="a\nb"))
    lines.emit(logging.LogRecord("metamcp", logging.ERROR, "", 0, "oh %s", ("no",), None))
    lines.close()
    os.close(write)
    with open(read, encoding="utf-8") as file:
        event, line, record = map(json.loads, file)
    assert event == {
        "time": 1.5, "who": "git", "what": "ready→backoff", "cause": "x", "generation": 2,
    }  # fmt: skip
    assert line == {"time": 2.5, "server": "git", "stream": "stderr", "text": "a\nb"}
    assert (record["level"], record["text"]) == ("error", "oh no")


def test_a_reader_that_stops_costs_lines_and_never_time() -> None:
    read, write = os.pipe()
    lines = JsonLines(write)
    for number in range(outlet.LINES_MAX * 2):
        lines.event(Event(seq=number, time=0.0, who="x" * 100, what="y"))
    os.close(read)  # the writer finds nobody, and goes on with nothing
    lines.close()
    os.close(write)
