"""The table of sessions, with values."""

from metamcp_worker.front import session
from metamcp_worker.front.session import (
    HANDSHAKE_VERSIONS,
    IDLE_S,
    Session,
    Sessions,
    negotiated,
    request_key,
)


class Part:
    """A stream or a call that remembers how it ended."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def end(self) -> None:
        self.said.append("end")

    def cancel(self, reason: str) -> None:
        self.said.append(reason)


def opened(table: Sessions, name: str, now: float = 0.0, endpoint: str = "default") -> Session:
    found = table.open(name, endpoint, HANDSHAKE_VERSIONS[0], b"{}", now)
    assert found is not None
    return found


def test_a_session_is_found_by_its_id_on_its_endpoint_alone() -> None:
    table = Sessions()
    one = opened(table, "a")
    assert table.find("a", "default", 1.0) is one
    assert table.find("a", "other", 1.0) is None
    assert table.find("b", "default", 1.0) is None


def test_a_session_is_over_when_nothing_was_asked_for_long() -> None:
    table = Sessions()
    opened(table, "a")
    assert table.find("a", "default", IDLE_S - 1) is not None
    assert table.find("a", "default", 2 * IDLE_S - 2) is not None  # the use before counts
    assert table.find("a", "default", 3 * IDLE_S) is None
    assert len(table) == 0


def test_a_request_or_a_stream_holds_its_session() -> None:
    table = Sessions()
    calling, streaming, idle = (opened(table, name) for name in "abc")
    calling.inflight[b"1"] = Part()
    stream = Part()
    streaming.attach(stream)
    table.expire(IDLE_S)
    assert len(table) == 2
    assert table.find(idle.id, "default", IDLE_S) is None
    streaming.detach(stream, IDLE_S)  # the countdown starts when the stream ends
    table.expire(2 * IDLE_S - 1)
    assert table.find("b", "default", 2 * IDLE_S - 1) is streaming


def test_the_newest_stream_replaces_the_one_before() -> None:
    one = opened(Sessions(), "a")
    first, second = Part(), Part()
    one.attach(first)
    one.attach(second)
    assert (first.said, second.said) == (["end"], [])
    one.detach(first, 5.0)  # it learns of its end later
    assert one.stream is second


def test_what_happens_without_a_stream_is_told_on_the_next_one_once() -> None:
    table = Sessions()
    one, other = opened(table, "a"), opened(table, "b", endpoint="dev")
    table.missed("default", frozenset({"n1"}))
    table.missed("default", frozenset({"n1", "n2"}))
    stream = Part()
    assert one.attach(stream) == {"n1", "n2"}
    assert other.attach(Part()) == set()
    table.missed("default", frozenset({"n3"}))  # told on the stream instead
    one.detach(stream, 1.0)
    assert one.attach(Part()) == set()


def test_the_end_of_a_session_ends_all_of_it() -> None:
    table = Sessions()
    one = opened(table, "a")
    stream, call = Part(), Part()
    one.attach(stream)
    one.inflight[b"1"] = call
    table.close(one)
    table.close(one)
    assert (stream.said, call.said) == (["end"], ["the session has ended"])
    assert table.find("a", "default", 0.0) is None


def test_there_are_only_so_many_sessions_and_idle_ones_make_room() -> None:
    table = Sessions()
    for number in range(session.SESSIONS_MAX):
        opened(table, str(number), now=float(number == 0))
    assert table.open("x", "default", HANDSHAKE_VERSIONS[0], b"", IDLE_S - 1) is None
    assert table.open("x", "default", HANDSHAKE_VERSIONS[0], b"", IDLE_S) is not None
    assert len(table) == 2


def test_sessions_of_endpoints_that_are_gone_end() -> None:
    table = Sessions()
    opened(table, "a")
    opened(table, "b", endpoint="dev")
    table.keep(frozenset({"dev"}))
    assert table.find("a", "default", 0.0) is None
    assert table.by_protocol()[HANDSHAKE_VERSIONS[0]] == 1


def test_ids_are_compared_by_type_and_value() -> None:
    assert request_key(b'"a\\u0062"') == request_key(b'"ab"')
    assert len({request_key(raw) for raw in (b"7", b'"7"', b'"\\u0037"', b"70")}) == 3


def test_an_unknown_revision_is_answered_with_the_newest() -> None:
    assert [negotiated(version) for version in HANDSHAKE_VERSIONS] == list(HANDSHAKE_VERSIONS)
    for version in ("2026-07-28", "1900-01-01", ""):
        assert negotiated(version) == "2025-11-25"
