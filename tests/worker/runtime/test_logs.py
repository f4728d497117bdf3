"""What a process of the gateway says: as JSON, as text, masked, at its levels, within limits."""

import fcntl
import json
import logging
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.ipc.records import MESSAGE_CHARACTERS_MAX
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import logs
from metamcp_worker.runtime.masking import LINES_MAX
from tests.waiting import WAIT_S, until
from tests.worker.runtime.journald import Journal

pytestmark = pytest.mark.promise("M89")

JSON = LogSpec(format="json")
room = logging.getLogger("metamcp.http")


@pytest.fixture
def said() -> Generator[list[bytes], None, None]:
    """What this process says, as JSON; as before at the end."""
    own, root = logging.getLogger("metamcp"), logging.getLogger()
    before = own.handlers[:], own.propagate, root.handlers[:], own.level
    found: list[bytes] = []
    logs.begin(JSON, found.append, about={"front": 3})
    yield found
    logs.tune(LogSpec())
    own.handlers[:], own.propagate, root.handlers[:] = before[:3]
    own.setLevel(before[3])


def parsed(said: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said]


def test_a_line_is_one_object_with_its_members(said: list[bytes]) -> None:
    room.warning("request %d failed", 7, extra={"server": "git", "call": 12, "generation": 2})
    (line,) = parsed(said)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning", "room": "http", "message": "request 7 failed", "server": "git",
        "call": 12, "front": 3, "generation": 2, "pid": os.getpid(),
    }  # fmt: skip


def test_an_error_has_its_traceback_as_one_text(said: list[bytes]) -> None:
    try:
        raise ValueError("token=abcdefgh")
    except ValueError:
        room.exception("request failed")
    (line,) = parsed(said)
    assert line["error"].startswith("Traceback")
    assert line["error"].endswith("ValueError: token=***")


def test_libraries_speak_in_the_same_form_from_warnings_on(said: list[bytes]) -> None:
    library = logging.getLogger("asyncio")
    library.info("not this")
    library.warning("but this")
    assert [(line["room"], line["message"]) for line in parsed(said)] == [("asyncio", "but this")]


def test_levels_are_set_by_room_and_taken_back(said: list[bytes]) -> None:
    room.debug("before")
    logs.tune(LogSpec(format="json", level="error", levels={"http": "debug"}))
    room.debug("asked for")
    logging.getLogger("metamcp.front").warning("not asked for")
    logs.tune(JSON)
    room.debug("after")
    assert [line["message"] for line in parsed(said)] == ["asked for"]


def test_a_flood_is_cut_and_its_end_is_counted(said: list[bytes]) -> None:
    for number in range(LINES_MAX + 4213):
        room.error("request %d failed", number)
    logging.getLogger("metamcp").handlers[0].close()
    messages = [line["message"] for line in parsed(said)]
    assert len(messages) == LINES_MAX + 1
    assert messages[-1] == "… 4,213 more of these in the last 10 s: request %d failed"


def test_half_of_a_line_spoils_no_other() -> None:
    """Nobody reads for a moment: there is room for the first piece of a line and no more."""
    reading, writing = os.pipe()
    put = logs.Stderr(writing).put
    line = b"x" * (2 * logs.PIECE_BYTES_MAX) + b"\n"
    try:
        os.set_blocking(reading, False)
        put(b"-" * (fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ) - len(line) + 1))
        put(line)
        os.read(reading, 2**20)
        put(b"a\n")
        put(b"b\n")
        assert os.read(reading, 100) == b"\na\nb\n"
    finally:
        os.close(reading)
        os.close(writing)


def test_text_is_for_people(said: list[bytes]) -> None:
    logs.tune(LogSpec(format="text"))
    room.error("no \x1b[31mcolour", extra={"server": "git"})
    text = said[0].decode()
    assert "error   http: no \\x1b[31mcolour  (server=git front=3" in text
    assert "\x1b" not in text


def test_the_journal_of_systemd_gets_the_level_before_each_line(said: list[bytes]) -> None:
    logs.tune(LogSpec(format="text"))
    handler = logging.getLogger("metamcp").handlers[0]
    assert isinstance(handler, logs.LogHandler)
    handler.journal = True
    try:
        raise ValueError("x")
    except ValueError:
        room.exception("request failed")
    lines = said[0].decode().splitlines()
    assert lines[0].startswith("<3>http: request failed  (front=3")
    assert all(line.startswith("<3>") for line in lines)


@pytest.fixture
def journal(tmp_path: Path) -> Generator[Journal]:
    """The socket of a journal."""
    made = Journal(tmp_path / "socket")
    yield made
    made.close()


@pytest.fixture
def native(said: list[bytes], journal: Journal) -> Generator[logs.LogHandler]:
    """The handler of this process, which writes to the journal."""
    handler = logging.getLogger("metamcp").handlers[0]
    assert isinstance(handler, logs.LogHandler)
    handler.socket, handler.text = logs.JournalSocket(journal.path, pause_s=0.0), True
    handler.to_journal = True
    yield handler
    handler.to_journal = False
    if handler.socket is not None:
        handler.socket.close()


@pytest.mark.usefixtures("native")
def test_the_socket_of_the_journal_gets_each_member_as_a_field(
    said: list[bytes], journal: Journal
) -> None:
    extra = {"server": "ops:git@7f", "call": 12, "generation": 2}
    room.warning("request %d \x1b failed", 7, extra=extra)
    assert journal.records() == [{
        "MESSAGE": "http: request 7 \\x1b failed"
        "  (server=ops:git@7f call=12 front=3 generation=2)",
        "PRIORITY": "4", "SYSLOG_IDENTIFIER": "metamcp", "METAMCP_ROOM": "http",
        "METAMCP_SERVER": "ops:git", "METAMCP_WORKSPACE": "ops", "METAMCP_CALL": "12",
        "METAMCP_FRONT": "3", "METAMCP_GENERATION": "2",
    }]  # fmt: skip
    assert said == []


@pytest.mark.usefixtures("native")
def test_a_traceback_is_part_of_the_one_record_of_the_journal(journal: Journal) -> None:
    try:
        raise ValueError("x=1\nPRIORITY=0")
    except ValueError:
        room.exception("request failed")
    (record,) = journal.records()
    first, *others = record["MESSAGE"].splitlines()
    assert first == "http: request failed  (front=3)"
    assert others[0] == "Traceback (most recent call last):"
    assert others[-1] == "PRIORITY=0", "it is text, and no field"
    assert record["PRIORITY"] == "3"


@pytest.mark.usefixtures("native")
def test_what_the_journal_does_not_take_now_is_written_once(
    said: list[bytes], journal: Journal
) -> None:
    rooms = [logging.getLogger(f"metamcp.http.{number}") for number in range(200)]
    began = time.monotonic()
    for each in rooms:
        each.error("full")
    assert time.monotonic() - began < WAIT_S, "nobody waits for it"
    taken, written = journal.records(), len(said)
    assert taken
    assert written
    assert len(taken) + written == len(rooms)
    room.error("there is room")
    assert [record["MESSAGE"] for record in journal.records()] == ["http: there is room  (front=3)"]
    assert len(said) == written


def test_a_journal_that_is_behind_gets_no_record_before_those_that_went_elsewhere(
    journal: Journal,
) -> None:
    socket = logs.JournalSocket(journal.path, pause_s=0.1)
    until(lambda: not socket.send(b"MESSAGE=x\n"), "it is behind")
    journal.records()
    assert not socket.send(b"MESSAGE=early\n"), "there is room, but others are on their way"
    until(lambda: socket.send(b"MESSAGE=later\n"), "it gets records again")
    assert journal.records() == [{"MESSAGE": "later"}]
    socket.close()


def test_a_process_that_lost_its_environment_finds_the_journal_after_json(
    native: logs.LogHandler,
) -> None:
    logs.tune(JSON)
    assert native.socket is None
    again = logs.begin(LogSpec(), lambda data: None)
    assert again.to_journal
    again.to_journal = False


def test_a_journal_that_begins_again_is_found(native: logs.LogHandler, journal: Journal) -> None:
    journal.close()
    os.unlink(journal.path)
    room.error("lost")
    again = Journal(Path(journal.path))
    room.error("found")
    assert [record["MESSAGE"] for record in again.records()] == ["http: found  (front=3)"]
    again.close()


@pytest.mark.usefixtures("native")
def test_lines_are_written_while_there_is_no_journal(said: list[bytes], journal: Journal) -> None:
    journal.close()
    room.error("not lost")
    assert b"not lost" in said[0]
    os.unlink(journal.path)
    room.error("nor this")
    assert b"nor this" in said[1]
    assert not logs.JournalSocket(journal.path).is_connected


def test_a_record_that_is_too_large_for_the_socket_is_refused_as_a_whole(journal: Journal) -> None:
    socket = logs.JournalSocket(journal.path)
    assert not socket.send(b"MESSAGE=" + b"x" * 4 * logs.SEND_BYTES + b"\n")
    assert socket.send(b"MESSAGE=x\n")
    assert journal.records() == [{"MESSAGE": "x"}]
    socket.close()


def test_a_process_whose_environment_is_its_servers_goes_on(
    native: logs.LogHandler, journal: Journal
) -> None:
    assert "JOURNAL_STREAM" not in os.environ
    logs.tune(LogSpec(secrets=("hunter2-hunter2",)))
    room.error("it got hunter2-hunter2")
    assert [record["MESSAGE"] for record in journal.records()] == ["http: it got ***  (front=3)"]
    assert native.text


def test_who_wants_json_gets_it_in_the_journal(native: logs.LogHandler, said: list[bytes]) -> None:
    logs.tune(JSON)
    room.error("as JSON")
    assert native.socket is None
    assert parsed(said)[0]["message"] == "as JSON"


@given(st.text(st.characters(min_codepoint=48, max_codepoint=122), min_size=8, max_size=30))
def test_no_known_secret_is_in_a_line(secret: str) -> None:
    found: list[bytes] = []
    handler = logs.LogHandler(found.append)
    handler.hide([secret])
    try:
        raise ValueError(secret)
    except ValueError as error:
        record = logging.LogRecord(
            "metamcp.http", 40, "", 0, "it said %s", (secret,), (ValueError, error, None)
        )
    handler.emit(record)
    (line,) = parsed(found)
    assert secret not in line["message"]
    assert secret not in line["error"]


def test_a_line_has_none_of_the_secrets_that_came_last() -> None:
    found: list[bytes] = []
    handler = logs.LogHandler(found.append)
    for secrets in (["hunter2-hunter2"], ["hunter3-hunter3"]):
        handler.hide(secrets)
        handler.emit(logging.LogRecord("metamcp.http", 40, "", 0, f"got {secrets[0]}", None, None))
    assert not [line for line in parsed(found) if "hunter" in line["message"]]


def test_a_line_that_cannot_be_made_is_told_without_what_was_to_be_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: list[bytes] = []
    secret = ("hunter2-hunter2",)
    logs.LogHandler(found.append).emit(
        logging.LogRecord("metamcp.http", 40, "", 0, "got %d", secret, None)
    )
    (line,) = parsed(found)
    assert (line["room"], line["level"]) == ("http", "error")
    assert line["message"] == "a line cannot be made of 'got %d': TypeError"
    assert "hunter2" not in capsys.readouterr().err


@given(st.integers(0, 40), st.sampled_from([0, 5, 500]))
def test_no_part_of_a_secret_is_left_where_a_message_is_cut(before: int, after: int) -> None:
    secret = "hunter2-hunter2-hunter2"
    found: list[bytes] = []
    handler = logs.LogHandler(found.append)
    handler.hide([secret])
    message = "x" * (MESSAGE_CHARACTERS_MAX - before) + secret + "y" * after
    handler.emit(logging.LogRecord("metamcp.http", 40, "", 0, message, None, None))
    (line,) = parsed(found)
    assert "hunt" not in line["message"]
    assert MESSAGE_CHARACTERS_MAX - 64 < len(line["message"]) <= MESSAGE_CHARACTERS_MAX


def test_a_name_that_is_no_text_is_spelled_out(said: list[bytes]) -> None:
    # What pytest hears in a test it may have to tell another of its processes, as text.
    own = logging.getLogger("metamcp")
    own.handlers[:] = [handler for handler in own.handlers if isinstance(handler, logs.LogHandler)]
    room.error("cannot open %s", "a\udcff")
    try:
        raise ValueError("a\udcff")
    except ValueError:
        room.exception("failed")
    first, second = parsed(said)
    assert first["message"] == "cannot open a\\udcff"
    assert second["error"].endswith("ValueError: a\\udcff")
