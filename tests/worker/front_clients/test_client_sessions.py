"""The table of sessions, with values."""

from collections.abc import Callable, Sequence
from typing import Any

from metamcp_worker.child.frontless_calls import ORPHAN_S
from metamcp_worker.front_clients import client_sessions
from metamcp_worker.front_clients.client_sessions import (
    HANDSHAKE_VERSIONS,
    IDLE_S,
    LEFT_S,
    ROOM_IDLE_S,
    ClientSession,
    ClientSessions,
    negotiate_version,
    request_key,
)
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import SessionRecord

LISTS = ("notifications/prompts/list_changed", "notifications/tools/list_changed")


class Part:
    """A stream or a call that remembers what was told on it and how it ended."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.told: list[dict[str, Any]] = []

    def put(self, event: bytes) -> None:
        self.told.append(codec.value(event.partition(b"data: ")[2]))

    def end(self) -> None:
        self.said.append("end")

    def cancel(self, reason: str) -> None:
        self.said.append(reason)

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.told]


class Table:
    """A table of sessions. `over`: the ids of the sessions that have ended, in order."""

    def __init__(self) -> None:
        self.over: list[str] = []
        self.sessions = ClientSessions("n", lambda ended: self.over.extend(one.id for one in ended))

    def start(self, name: str, now: float = 0.0, endpoint: str = "default") -> ClientSession | None:
        record = SessionRecord(
            id=name, endpoint=endpoint, protocol=HANDSHAKE_VERSIONS[0], caller='{"a":1}'
        )
        return self.sessions.open(record, now)

    def seek(self, name: str, now: float, endpoint: str = "default") -> ClientSession | None:
        return self.sessions.find(name, endpoint, "local", now)


def opened(table: Table, name: str, now: float = 0.0, endpoint: str = "default") -> ClientSession:
    found = table.start(name, now, endpoint)
    assert found is not None
    return found


def test_a_session_is_found_by_its_id_on_its_endpoint_by_its_principal_alone() -> None:
    table = Table()
    one = opened(table, "a")
    assert table.seek("a", 1.0) is one
    assert table.seek("a", 1.0, "other") is None
    assert table.seek("b", 1.0) is None
    assert table.sessions.find("a", "default", "somebody", 1.0) is None


def test_no_two_sessions_of_a_front_have_the_same_number() -> None:
    table = Table()
    numbers: list[int] = []
    for name in ("a", "b", "a"):
        one = opened(table, name)
        numbers.append(one.number)
        table.sessions.close(one)
    assert sorted(set(numbers)) == numbers
    assert min(numbers) > 0  # zero is a call that stands alone


def test_a_session_is_over_when_nothing_was_asked_for_long() -> None:
    table = Table()
    opened(table, "a")
    assert table.seek("a", IDLE_S - 1) is not None
    assert table.seek("a", 2 * IDLE_S - 2) is not None  # the use before counts
    assert table.seek("a", 3 * IDLE_S) is None
    assert (len(table.sessions), table.over) == (0, ["a"])


def test_a_request_or_a_stream_holds_its_session() -> None:
    table = Table()
    calling, streaming, idle = (opened(table, name) for name in "abc")
    calling.inflight[b"1"] = Part()
    stream = Part()
    streaming.attach(stream)
    table.sessions.expire(IDLE_S)
    assert len(table.sessions) == 2
    assert table.seek(idle.id, IDLE_S) is None
    streaming.detach(stream, IDLE_S)  # the countdown starts when the stream ends
    table.sessions.expire(2 * IDLE_S - 1)
    assert table.seek("b", 2 * IDLE_S - 1) is streaming


def test_the_newest_stream_replaces_the_one_before() -> None:
    one = opened(Table(), "a")
    first, second = Part(), Part()
    one.attach(first)
    one.attach(second)
    assert (first.said, second.said) == (["end"], [])
    one.detach(first, 5.0)  # it learns of its end later
    assert one.stream is second


def news(*methods: str) -> Callable[[str, str, str], Sequence[str]]:
    """Lists of the default endpoint have changed."""
    return lambda endpoint, principal, who: sorted(methods) if endpoint == "default" else ()


def test_changed_lists_without_a_stream_are_told_on_the_next_one_once() -> None:
    table = Table()
    one, other = opened(table, "a"), opened(table, "b", endpoint="dev")
    table.sessions.notify_list_changes(news(*LISTS[:1]))
    table.sessions.notify_list_changes(news(*LISTS))
    stream, later, of_other = Part(), Part(), Part()
    one.attach(stream)
    one.catch_up()
    assert stream.methods == list(LISTS)
    table.sessions.notify_list_changes(news(*LISTS[1:]))
    assert stream.methods == [*LISTS, LISTS[1]]
    one.detach(stream, 1.0)
    for session_, part in ((one, later), (other, of_other)):
        session_.attach(part)
        session_.catch_up()
    assert (later.told, of_other.told) == ([], [])


def test_updates_without_a_stream_are_told_on_the_next_one_once_and_only_so_many() -> None:
    one = opened(Table(), "a")
    for number in [*range(client_sessions.MISSED_MAX + 1), 1]:
        one.send_resource_updated(b'{"uri":"r:%d"}' % number)
    one.send_resource_updated(b'{"uri":"%b"}' % (b"x" * client_sessions.MISSED_BYTES_MAX))
    stream = Part()
    one.attach(stream)
    one.catch_up()
    uris = [message["params"]["uri"] for message in stream.told]
    assert uris == [f"r:{number}" for number in [*range(2, client_sessions.MISSED_MAX + 1), 1]]
    one.send_resource_updated(b'{"uri":"now"}')
    assert stream.told[-1]["params"] == {"uri": "now"}


def test_the_end_of_a_session_ends_all_of_it_once() -> None:
    table = Table()
    one = opened(table, "a")
    stream, call = Part(), Part()
    one.attach(stream)
    one.inflight[b"1"] = call
    table.sessions.close(one)
    table.sessions.close(one)
    assert (stream.said, call.said) == (["end"], ["the session has ended"])
    assert (table.seek("a", 0.0), table.over) == (None, ["a"])


def test_when_all_places_are_taken_the_session_that_is_idle_longest_makes_room() -> None:
    table = Table()
    for number in range(client_sessions.SESSIONS_MAX):
        opened(table, str(number), now=float(number % 7))
    for name, part in (("0", Part()), ("7", Part())):
        found = table.seek(name, 0.0)
        assert found is not None
        found.attach(part)
    calling = table.seek("14", 0.0)
    assert calling is not None
    calling.inflight[b"1"] = Part()
    for number in range(3):
        opened(table, f"new {number}", now=ROOM_IDLE_S + 1)
    assert table.over == ["21", "28", "35"]  # of those that began first, the others are in use
    assert len(table.sessions) == client_sessions.SESSIONS_MAX


def test_a_newcomer_waits_while_all_sessions_are_in_use() -> None:
    table = Table()
    for number in range(client_sessions.SESSIONS_MAX):
        opened(table, str(number))
    assert table.start("x", ROOM_IDLE_S - 2) is None
    assert table.start("x", ROOM_IDLE_S - 1.5) is None  # nobody looks again so soon
    used = table.seek("0", ROOM_IDLE_S - 1)
    assert used is not None
    assert table.start("x", ROOM_IDLE_S) is not None
    assert table.over == ["1"]


def test_sessions_that_were_used_again_in_the_meantime_stay() -> None:
    table = Table()
    for number in range(client_sessions.SESSIONS_MAX):
        opened(table, str(number))
    opened(table, "x", ROOM_IDLE_S)  # from here on it is known who goes next
    table.seek("1", ROOM_IDLE_S)
    opened(table, "y", ROOM_IDLE_S)
    assert table.over == ["0", "2"]


def test_sessions_of_endpoints_that_are_gone_end() -> None:
    table = Table()
    opened(table, "a")
    opened(table, "b", endpoint="dev")
    table.sessions.keep(frozenset({"dev"}))
    assert table.seek("a", 0.0) is None
    assert table.sessions.by_protocol()[HANDSHAKE_VERSIONS[0]] == 1


def test_the_level_is_part_of_what_servers_are_told_of_the_client() -> None:
    one = opened(Table(), "a")
    one.set_level("info")
    one.set_level("error")
    assert (one.level, codec.value(one.caller)) == ("error", {"a": 1, "logLevel": "error"})


def test_a_session_goes_on_in_another_front_from_its_record() -> None:
    one = opened(Table(), "a")
    one.set_level("error")
    one.watched["r:1"] = None
    record = one.record()
    assert record == SessionRecord(
        id="a", endpoint="default", protocol=HANDSHAKE_VERSIONS[0], caller='{"a":1}',
        level="error", subscriptions=("r:1",),
    )  # fmt: skip
    other = Table().sessions.open(record, 5.0)
    assert other is not None
    assert (other.caller, other.level, other.used_at) == (one.caller, "error", 5.0)
    assert list(other.watched) == ["r:1"]


def test_what_another_front_has_left_of_a_session_is_over_after_a_while() -> None:
    table = Table()
    own, adopted = opened(table, "own", 50.0), opened(table, "adopted", 50.0)
    adopted.adopted_at = 50.0
    assert not own.inherits(50.0)
    assert adopted.inherits(50.0)
    assert LEFT_S > 2 * ORPHAN_S
    assert not adopted.inherits(50.0 + LEFT_S)


def test_only_so_many_visits_to_urls_are_remembered() -> None:
    one = opened(Table(), "a")
    for number in range(client_sessions.ELICITATIONS_MAX + 1):
        one.note_elicitation("s", str(number))
    assert ("s", "0") not in one.elicitations
    assert ("s", "1") in one.elicitations


def test_ids_are_compared_by_type_and_value() -> None:
    assert request_key(b'"a\\u0062"') == request_key(b'"ab"')
    assert len({request_key(raw) for raw in (b"7", b'"7"', b'"\\u0037"', b"70")}) == 3


def test_an_unknown_revision_is_answered_with_the_newest() -> None:
    assert [negotiate_version(version) for version in HANDSHAKE_VERSIONS] == list(
        HANDSHAKE_VERSIONS
    )
    for version in ("2026-07-28", "1900-01-01", ""):
        assert negotiate_version(version) == "2025-11-25"
