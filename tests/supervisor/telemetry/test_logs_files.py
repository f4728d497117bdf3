"""Files of events and of lines: what the next program finds, and how much of it."""

import itertools
import os
from pathlib import Path

import pytest

from metamcp_supervisor.telemetry.journal import ENDS_MAX, EVENTS_KEPT_MAX, EVENTS_MAX, Journal
from metamcp_supervisor.telemetry.logs import (
    FOLDER,
    LOG_FILES_BYTES_MAX,
    SERVER_FILES_BYTES_MAX,
    LineFile,
    LogFiles,
    ServerLogs,
    event_file,
)
from metamcp_supervisor.verbs import JournalEvent, LogLine
from metamcp_worker.ipc import codec

pytestmark = pytest.mark.promise("M125")


class Disk:
    """A state directory, and the sentences about what it refused."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.folder = self.state / FOLDER
        self.events = self.folder / "events.jsonl"
        self.sentences: list[str] = []

    def store(self) -> LineFile[JournalEvent]:
        return event_file(self.state, self.sentences.append)

    def journal(self, now: float = 0.0) -> Journal:
        """The journal of a new program."""
        journal = Journal(lambda: now, store=self.store())
        journal.begin()
        return journal

    def logs(self, *servers: str, now: float = 0.0) -> ServerLogs:
        """The lines of a new program with these servers."""
        logs = ServerLogs(lambda: now, files=LogFiles(self.state, self.sentences.append))
        logs.begin(servers)
        return logs

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*.jsonl"))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def numbers(events: list[JournalEvent]) -> list[int]:
    return [event.seq for event in events]


# Events


def test_the_next_program_has_the_events_of_before_and_goes_on_with_their_numbers(
    disk: Disk,
) -> None:
    first = disk.journal(now=7.5)
    before = [first.add("git", "ready→error", "exit: 3", generation=2), first.add("gateway", "x")]
    second = disk.journal(now=9.0)
    assert (second.since(0), second.last, second.inherited) == (before, 2, 2)
    added = second.add("git", "error→warming")
    assert added.seq == 3
    assert second.since(0) == [*before, added]
    assert second.since(1) == [before[1], added]
    assert second.since(second.inherited) == [added]
    assert second.since(0, seconds=1.0) == [added]
    assert disk.sentences == []


def test_events_before_the_store_may_be_used_get_the_next_numbers(disk: Disk) -> None:
    disk.journal().add("gateway", "first")
    journal = Journal(lambda: 0.0, store=disk.store())
    journal.add("gateway", "early")
    assert numbers(journal.since(0)) == [1]
    journal.begin()
    assert [(event.seq, event.what) for event in journal.since(0)] == [(1, "first"), (2, "early")]
    assert journal.add("gateway", "later").seq == 3
    assert numbers(disk.journal().since(0)) == [1, 2, 3]


def test_the_last_ten_thousand_events_are_given_and_older_ones_leave_the_disk(
    disk: Disk,
) -> None:
    journal = disk.journal()
    count = 2 * EVENTS_KEPT_MAX + 10
    for number in range(1, count + 1):
        journal.add("git", str(number))
    oldest = count - EVENTS_KEPT_MAX + 1
    for program in (journal, disk.journal()):
        assert numbers(program.since(0)) == list(range(oldest, count + 1))
        assert numbers(program.since(count - EVENTS_MAX - 5)) == [
            *range(count - EVENTS_MAX - 4, count + 1)
        ]
    assert len(list(disk.store().read())) == EVENTS_KEPT_MAX + 11


def test_a_line_that_is_torn_or_foreign_costs_only_itself(disk: Disk) -> None:
    journal = disk.journal()
    journal.add("git", "one")
    with disk.events.open("ab") as file:
        file.write(b'not an event\n[]\n{"seq":2}\n\xff\n{"seq":2,"time":1.0,"wh')
    assert [event.what for event in disk.journal().since(0)] == ["one"]
    assert disk.journal().add("git", "two").seq == 2
    assert [event.what for event in disk.journal().since(0)] == ["one", "two"]


def test_members_of_a_later_version_are_passed_over(disk: Disk) -> None:
    disk.folder.mkdir(parents=True)
    disk.events.write_text('{"seq":4,"time":1.0,"who":"git","what":"roll","later":[1]}\n')
    assert disk.journal().since(0) == [JournalEvent(seq=4, time=1.0, who="git", what="roll")]


def test_of_a_server_the_ends_of_before_are_remembered_and_its_state_is_not(disk: Disk) -> None:
    first = disk.journal(now=5.0)
    first.add("git", "warming→ready")
    for number in range(ENDS_MAX + 5):
        first.add("git", "ready→error", f"exit: code {number}", generation=number)
    first.add("fs", "warming→ready", "235 ms")
    ends = first.histories.of("git").ends
    assert len(ends) == ENDS_MAX
    second = disk.journal().histories
    history = second.of("git")
    assert (history.ends, history.since, history.because) == (ends, 0.0, "")
    assert set(second.all()) == {"git"}


def test_an_upgrade_goes_on_with_what_is_handed_over_and_writes_what_no_file_has(
    disk: Disk,
) -> None:
    older = Journal(lambda: 0.0)
    events = [older.add("git", str(number)) for number in range(3)]
    first = Journal(lambda: 0.0, store=disk.store())
    first.begin(events, older.last)
    assert (first.since(0), first.inherited) == (events, 3)
    events.append(first.add("git", "four"))
    second = Journal(lambda: 0.0, store=disk.store())
    second.begin(first.since(0), first.last)
    assert second.since(0) == events
    assert disk.journal().since(0) == events


def test_only_the_user_of_the_gateway_may_read_the_files(disk: Disk) -> None:
    disk.journal().add("git", "one")
    disk.logs("git").add("git", "stderr", ["a"])
    files = {path.name: path.stat().st_mode & 0o777 for path in disk.state.rglob("*")}
    assert files == {
        FOLDER: 0o700, "events.jsonl": 0o600, "servers": 0o700, "git.jsonl": 0o600,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_what_is_not_a_file_is_left_alone_and_events_stay_in_memory(disk: Disk, kind: str) -> None:
    disk.folder.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(disk.events)
    elif kind == "folder":
        disk.events.mkdir()
    else:
        disk.events.symlink_to(disk.state / "elsewhere")
    journal = disk.journal()
    added = [journal.add("git", "one"), journal.add("git", "two")]
    assert journal.since(0) == added
    assert all(str(disk.events) in sentence for sentence in disk.sentences)
    assert disk.sentences
    assert not (disk.state / "elsewhere").exists()


def test_the_name_of_a_file_that_is_not_text_costs_its_own_event_only(disk: Disk) -> None:
    journal = disk.journal()
    for cause in ("before", os.fsdecode(b"\xff.toml"), "after"):
        journal.add("gateway", "note", cause)
    assert numbers(journal.since(0)) == [1, 2, 3]
    assert [event.cause for event in disk.journal().since(0)] == ["before", "after"]


def test_a_folder_that_was_removed_is_created_again(disk: Disk) -> None:
    journal = disk.journal()
    journal.add("git", "one")
    disk.events.unlink()
    disk.folder.rmdir()
    journal.add("git", "two")
    assert numbers(disk.journal().since(0)) == [2]
    assert numbers(journal.since(0)) == [1, 2]


def test_a_file_of_items_has_at_most_half_of_the_bytes(tmp_path: Path) -> None:
    read = codec.reader(JournalEvent)
    file = LineFile(str(tmp_path / "events"), 2000, read, pytest.fail)
    grown = 0
    for number in range(1, 200):
        grown += file.append([JournalEvent(seq=number, time=0.0, who="git", what="x" * 50)])
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert max(sizes) <= 1000
        assert grown == sum(sizes)
    stored = numbers(list(file.read()))
    assert stored == list(range(stored[0], 200))
    assert len(stored) >= 1000 // 110
    assert numbers(list(file.read(3))) == [197, 198, 199]
    remaining = file.shrink()
    assert remaining == (tmp_path / "events.jsonl").stat().st_size
    assert (file.shrink(), list(tmp_path.iterdir())) == (0, [])


# Lines


def test_the_next_program_has_the_last_lines_and_goes_on_with_their_numbers(disk: Disk) -> None:
    first = disk.logs("git", "fs", now=5.0)
    first.add("git", "stderr", ["a\n\u2028é", "b"])
    first.add("fs", "stdout", ["c"])
    before = first.past("git")
    second = disk.logs("git", "fs", now=8.0)
    assert second.past("git") == before
    assert second.tail("git", 1, earlier=True) == before[-1:]
    assert second.tail("git", 1) == [], "not a line of this program"
    second.add("git", "stderr", ["d"])
    assert [(line.seq, line.text) for line in second.past("git")] == [
        (1, "a\n\u2028é"), (2, "b"), (4, "d"),
    ]  # fmt: skip
    assert texts(second.tail("git", 2, earlier=True)) == ["b", "d"]
    assert texts(second.past("git", seconds=1.0)) == ["d"]
    assert texts(second.past("fs")) == ["c"]


def test_numbers_go_on_although_the_last_line_is_torn(disk: Disk) -> None:
    disk.logs("git").add("git", "stderr", ["a", "b"])
    with (disk.folder / "servers" / "git.jsonl").open("ab") as file:
        file.write(b'{"seq":3,"ti')
    logs = disk.logs("git")
    logs.add("git", "stderr", ["c"])
    assert [(line.seq, line.text) for line in logs.past("git")] == [(1, "a"), (2, "b"), (3, "c")]
    assert texts(disk.logs("git").past("git")) == ["a", "b", "c"]


def test_a_server_that_writes_without_end_pushes_out_no_line_of_another(disk: Disk) -> None:
    logs = disk.logs("git", "fs")
    logs.add("fs", "stderr", ["quiet"])
    for number in range(200):
        logs.add("git", "stderr", [f"{number:04}" + "x" * 996] * 30)
        assert disk.bytes() <= SERVER_FILES_BYTES_MAX + 1000
    last = disk.logs("git", "fs")
    assert texts(last.past("fs")) == ["quiet"]
    kept = last.past("git")
    assert len(kept) > SERVER_FILES_BYTES_MAX / 2 / 1100 - 30
    assert [line.seq for line in kept] == list(range(kept[0].seq, 200 * 30 + 2))


def test_all_servers_together_have_a_limit_and_the_one_with_most_loses_lines(disk: Disk) -> None:
    names = [f"s{number}" for number in range(150)]
    logs = disk.logs("quiet", *names)
    logs.add("quiet", "stderr", ["a"])
    block = ["x" * 1000] * 220
    for _, name in itertools.product(range(2), names):
        logs.add(name, "stderr", block)
    assert disk.bytes() <= LOG_FILES_BYTES_MAX
    assert texts(disk.logs("quiet", *names).past("quiet")) == ["a"]
    assert len(disk.logs("quiet", *names).past("s149")) >= 220


def test_a_server_that_is_removed_and_a_process_for_one_client_leave_no_lines(
    disk: Disk,
) -> None:
    logs = disk.logs("git", "fs", "old")
    for name in ("git", "fs", "old", "git@8f00"):
        logs.add(name, "stderr", ["a"])
    assert texts(logs.past("git@8f00")) == ["a"]
    logs.forget("git@8f00")
    logs.forget("fs")
    folder = disk.folder / "servers"
    assert {path.name for path in folder.iterdir()} == {"git.jsonl", "old.jsonl"}
    (folder / "notes.txt").touch()
    logs = disk.logs("git")
    assert {path.name for path in folder.iterdir()} == {"git.jsonl", "notes.txt"}
    assert logs.past("old") == []


def test_lines_that_an_older_program_hands_over_are_written_once(disk: Disk) -> None:
    older = ServerLogs(lambda: 0.0)
    older.add("git", "stderr", ["a", "b"])
    for _ in range(2):
        logs = ServerLogs(lambda: 0.0, files=LogFiles(disk.state, disk.sentences.append))
        logs.begin(["git"], older.newest(10**6), older.last)
        assert texts(logs.past("git")) == ["a", "b"]
    assert texts(disk.logs("git").past("git")) == ["a", "b"]
    assert disk.logs("git").last == 2


def test_a_place_that_cannot_be_written_costs_no_line_of_memory(disk: Disk) -> None:
    disk.state.mkdir()
    (disk.state / FOLDER).touch()
    logs = disk.logs("git")
    logs.add("git", "stderr", ["a"])
    logs.add("git", "stderr", ["b"])
    assert texts(logs.past("git")) == ["a", "b"]
    assert all("do not outlast this gateway" in sentence for sentence in disk.sentences)
    assert disk.sentences
