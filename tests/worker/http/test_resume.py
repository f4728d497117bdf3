"""Streams that a client goes on with after its connection broke, with values."""

import pytest

from metamcp_worker.http import resume
from metamcp_worker.http.resume import EventLog, EventLogs, EventLogStore


class Reader:
    """A connection that keeps what it is told. `ended`: nothing follows."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.ended = False

    def put(self, event: bytes) -> None:
        assert not self.ended
        self.events.append(event)

    def close(self, event: bytes) -> None:
        self.put(event)
        self.end()

    def end(self) -> None:
        self.ended = True

    @property
    def ids(self) -> list[bytes]:
        return [event.partition(b"\n")[0][4:] for event in self.events]

    @property
    def told(self) -> list[bytes]:
        return [event.partition(b"\n")[2] for event in self.events]


def tape_of(event_logs: EventLogs, *events: bytes) -> tuple[EventLog, Reader]:
    reader = Reader()
    event_log = event_logs.open(reader)
    for event in events:
        event_log.put(event)
    return event_log, reader


def test_events_have_ids_that_no_other_event_has() -> None:
    event_logs = EventLogs(EventLogStore("n"))
    readers = [tape_of(event_logs, b"a", b"b")[1] for _ in range(2)]
    ids = [name for reader in readers for name in reader.ids]
    assert len(set(ids)) == 4
    assert readers[0].told == [b"a", b"b"]


def test_a_client_that_comes_back_gets_what_it_has_not_then_what_follows_then_the_end() -> None:
    event_logs = EventLogs(EventLogStore("n"))
    event_log, first = tape_of(event_logs, b"a", b"b")
    event_log.lose(first)
    event_log.put(b"c")
    second = Reader()
    found = event_logs.find(first.ids[0])
    assert found is not None
    assert found[0] is event_log
    event_log.resume(second, found[1])
    event_log.put(b"d")
    event_log.end(b"e", 0.0)
    assert (second.told, second.ended) == ([b"b", b"c", b"d", b"e"], True)
    assert (first.told, first.ended) == ([b"a", b"b"], False)


def test_the_newest_connection_of_a_stream_replaces_the_one_before() -> None:
    event_logs = EventLogs(EventLogStore("n"))
    event_log, first = tape_of(event_logs, b"a")
    second = Reader()
    event_log.resume(second, event_log.after(1))
    event_log.lose(first)  # it learns of its end later
    event_log.put(b"b")
    assert (first.told, first.ended, second.told) == ([b"a"], True, [b"b"])


@pytest.mark.parametrize(("known", "told"), [(0, [b"c"]), (1, [])])
def test_a_stream_that_ended_without_its_reader_can_still_be_read(
    known: int, told: list[bytes]
) -> None:
    event_logs = EventLogs(EventLogStore("n"))
    event_log, first = tape_of(event_logs, b"a", b"b")
    if not known:
        event_log.lose(first)
        told = [b"b", *told]
    event_log.end(b"c", 0.0)
    second = Reader()
    found = event_logs.find(first.ids[0] if not known else first.ids[-1])
    assert found is not None
    found[0].resume(second, found[1])
    assert (second.told, second.ended) == (told, True)


@pytest.mark.parametrize(
    "name", [b"", b"n-1-", b"n-1-3", b"n-2-1", b"m-1-1", b"n-1-1-1", b"n--1", b"n-1-0x1", b"\xff"]
)
def test_no_other_id_names_an_event(name: bytes) -> None:
    event_logs = EventLogs(EventLogStore("n"))
    tape_of(event_logs, b"a", b"b")
    assert event_logs.find(name) is None
    assert event_logs.find(b" n-1-1\t") is not None  # what stands around a header is not part of it


def test_no_session_finds_the_streams_of_another() -> None:
    memory = EventLogStore("n")
    one, other = EventLogs(memory), EventLogs(memory)
    _, reader = tape_of(one, b"a")
    assert one.find(reader.ids[0]) is not None
    assert other.find(reader.ids[0]) is None


@pytest.mark.promise("M98")
def test_of_one_session_only_so_much_is_kept_and_the_youngest_last() -> None:
    event_logs = EventLogs(EventLogStore("n"))
    large = b"x" * (resume.RESUME_BYTES_MAX // 4)
    old, reader = tape_of(event_logs, *[b"o"] * 10)
    over, _ = tape_of(event_logs)
    over.end(b"e", 0.0)
    tape_of(event_logs, *[b"n"] * resume.RESUME_EVENTS_MAX)
    assert (event_logs.events, len(old.events)) == (resume.RESUME_EVENTS_MAX, 0)
    assert over not in event_logs.memory.over  # with its last event it is gone altogether
    new, _ = tape_of(event_logs, *[large] * 5)
    assert event_logs.size_bytes <= resume.RESUME_BYTES_MAX
    assert len(new.events) == 3  # with their ids four are too many
    assert new.after(1) == list(new.events)  # what is left of what was asked for
    found = event_logs.find(reader.ids[0])
    assert found is not None
    assert found[1] == []


@pytest.mark.promise("M98")
def test_an_answer_of_the_largest_size_is_kept_although_it_fills_everything() -> None:
    event_logs = EventLogs(EventLogStore("n"))
    event_log, reader = tape_of(event_logs, b"a")
    event_log.lose(reader)
    event_log.end(b"x" * (resume.RESUME_BYTES_MAX + 1), 0.0)
    assert [len(event) > resume.RESUME_BYTES_MAX for event in event_log.events] == [True]


@pytest.mark.promise("M98")
def test_of_all_sessions_together_only_so_much_is_kept_and_what_has_ended_goes_first() -> None:
    memory = EventLogStore("n")
    ended, going = EventLogs(memory), EventLogs(memory)
    large = b"x" * (resume.RESUME_BYTES_MAX - 100)
    for event_logs in (ended, going):
        event_log, reader = tape_of(event_logs)
        event_log.lose(reader)
        if event_logs is ended:
            event_log.end(large, 0.0)
        else:
            event_log.put(large)
    others = [tape_of(EventLogs(memory), large)[0] for _ in range(4)]
    assert memory.size_bytes <= resume.FRONT_BYTES_MAX
    assert (ended.events, going.events) == (0, 1)
    assert ended.find(b"n-1-1") is None
    assert [len(one.events) for one in others] == [1, 1, 1, 0]  # what goes on elsewhere stays


def test_of_a_stream_that_never_ends_the_youngest_events_are_kept() -> None:
    event_logs = EventLogs(EventLogStore("n"))
    event_log = event_logs.open(Reader(), 2)
    for event in (b"a", b"b", b"c"):
        event_log.put(event)
    assert [event.partition(b"\n")[2] for event in event_log.after(0)] == [b"b", b"c"]
    assert event_log.after(2) == list(event_log.events)[1:]


def test_what_has_ended_is_kept_for_a_while_unless_it_is_large_and_was_read() -> None:
    memory = EventLogStore("n")
    event_logs = EventLogs(memory)
    small, _ = tape_of(event_logs)
    large, _ = tape_of(event_logs)
    lost, reader = tape_of(event_logs)
    lost.lose(reader)
    small.end(b"s", 0.0)
    for event_log in (large, lost):
        event_log.end(b"x" * resume.WHOLE_BYTES_MAX, 1.0)
    assert [event_logs.find(b"n-%d-1" % n) is not None for n in (1, 2, 3)] == [True, False, True]
    memory.expire(resume.RESUME_S)
    assert [event_logs.find(b"n-%d-1" % n) is not None for n in (1, 2, 3)] == [False, False, True]
    memory.expire(resume.RESUME_S + 1)
    assert (memory.size_bytes, event_logs.events, event_logs.size_bytes) == (0, 0, 0)


def test_the_end_of_a_session_frees_what_was_kept_of_it() -> None:
    memory = EventLogStore("n")
    event_logs = EventLogs(memory)
    over, _ = tape_of(event_logs, b"a")
    over.end(b"b", 0.0)
    going, _ = tape_of(event_logs, b"a")
    event_logs.clear()
    assert (memory.size_bytes, memory.over, event_logs.find(b"n-1-1")) == (0, {}, None)
    going.forget()  # the request of it ends later
    assert memory.size_bytes == 0


def test_the_first_event_of_a_stream_may_be_one_that_says_nothing() -> None:
    event_log, reader = tape_of(EventLogs(EventLogStore("n")))
    event_log.prime()
    assert reader.events == [b"id: n-1-1\nretry: %d\ndata: \n\n" % resume.RETRY_MS]
