"""Which request goes in which session of a legacy server."""

import json
from typing import Any

import pytest

from metamcp_worker.child import http_sessions
from metamcp_worker.child.actions import ServerRequest
from metamcp_worker.child.http_sessions import HttpSession, HttpSessions, askable


def request(
    caller: object = None, method: str = "tools/call", params: bytes = b"{}"
) -> ServerRequest:
    raw = json.dumps({"clientCapabilities": caller}).encode() if caller is not None else b""
    return ServerRequest(b"1", b"", method, params, raw)


def opened(session_id: str = "s") -> HttpSessions:
    """With a base session that the server gave this id."""
    found = HttpSessions()
    found.base.open(session_id, "2025-11-25")
    return found


def of(table: HttpSessions, caller: object) -> HttpSession:
    found = table.of(request(caller))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ({}, {}),
        ({"elicitation": {}}, {"elicitation": {}}),
        ({"roots": {"a": True}, "experimental": {"x": {}}}, {"roots": {"a": True}}),
        ({"sampling": {"b": {}, "a": {}}}, {"sampling": {"a": {}, "b": {}}}),
        ({"sampling": True, "roots": None}, {}),
        ({"extensions": {"e": {}}, "tasks": {}}, {"extensions": {"e": {}}}),
        ({"extensions": {"io.modelcontextprotocol/tasks": {}}}, {}),
        ({"elicitation": {"x": "y" * 5000}}, {}),
        ("nonsense", {}),
    ],
)  # fmt: skip
def test_only_what_a_server_can_ask_is_declared(declared: Any, found: Any) -> None:
    caller = json.dumps({"clientCapabilities": declared}).encode()
    assert askable(caller) == json.dumps(found, separators=(",", ":")).encode()


@pytest.mark.parametrize("caller", [b"", b"[]", b"{", b'{"clientCapabilities":{"roots":{"a":}}}'])
def test_a_caller_that_cannot_be_read_can_be_asked_nothing(caller: bytes) -> None:
    assert askable(caller) == b"{}"


def test_capabilities_without_end_are_none() -> None:
    deep = b'{"a":' * 680 + b"1" + b"}" * 680
    assert askable(b'{"clientCapabilities":{"roots":%b}}' % deep) in {b"{}", b'{"roots":%b}' % deep}


def test_callers_that_can_be_asked_the_same_share_a_session() -> None:
    table = opened()
    one = of(table, {"elicitation": {}, "roots": {}})
    assert one.via == 1
    assert of(table, {"roots": {}, "elicitation": {}, "other": {}}) is one
    assert of(table, {"elicitation": {}}).via == 2
    assert table.of(request({})) is table.of(request()) is table.base
    assert table.by_via(1) is one
    assert table.by_via(9) is None


def test_a_server_without_session_ids_has_the_base_session_only() -> None:
    table = opened("")
    assert of(table, {"elicitation": {}}) is table.base


def fill(table: HttpSessions, *, busy: bool) -> list[HttpSession]:
    made = [of(table, {"roots": {"n": number}}) for number in range(http_sessions.SESSIONS_MAX)]
    for number, one in enumerate(made):
        one.busy = int(busy)
        one.idle_since = float(number)
    return made


def test_with_all_sessions_in_use_a_new_kind_of_client_is_refused() -> None:
    table = opened()
    made = fill(table, busy=True)
    assert table.of(request({"elicitation": {}})) is None
    assert table.of(request({"roots": {"n": 3}})) is made[3]
    assert table.of(request()) is table.base


def test_the_session_that_was_idle_for_longest_makes_room() -> None:
    table = opened()
    made = fill(table, busy=False)
    assert of(table, {"elicitation": {}}).via == http_sessions.SESSIONS_MAX + 1
    assert table.take_closable(1.0) == [made[0]]
    assert table.take_closable(1.0) == []
    assert made[0] not in table.all()


def test_an_idle_session_is_closed_after_a_while_and_the_base_session_never() -> None:
    table = opened()
    one = of(table, {"roots": {}})
    one.idle_since = 100.0
    assert table.take_closable(100.0 + http_sessions.IDLE_S_MAX) == []
    assert table.take_closable(101.0 + http_sessions.IDLE_S_MAX) == [one]
    assert table.all() == [table.base]


def test_what_was_set_in_a_session_is_set_again() -> None:
    table = opened()
    base = table.base
    base.remember(request(method="logging/setLevel", params=b'{"level":"info"}'))
    base.remember(request(method="resources/subscribe", params=b'{"uri":"a"}'))
    base.remember(request(method="resources/subscribe", params=b'{"uri":"b"}'))
    base.remember(request(method="resources/unsubscribe", params=b'{"uri":"a","x":1}'))
    base.remember(request(method="tools/call"))
    assert [(one.method, one.params) for one in base.settings()] == [
        ("logging/setLevel", b'{"level":"info"}'),
        ("resources/subscribe", b'{"uri":"b"}'),
    ]


def test_the_level_of_a_session_that_was_closed_is_set_in_its_next() -> None:
    table = opened()
    one = of(table, {"roots": {}})
    one.remember(request(method="logging/setLevel", params=b'{"level":"debug"}'))
    table.forget(one)
    again = of(table, {"roots": {}})
    assert again is not one
    assert [one.params for one in again.settings()] == [b'{"level":"debug"}']


def test_what_is_remembered_has_bounds() -> None:
    table = opened()
    base = table.base
    for number in range(http_sessions.SUBSCRIPTIONS_MAX + 1):
        base.remember(request(method="resources/subscribe", params=b'{"uri":%d}' % number))
    assert len(base.subscribed) == http_sessions.SUBSCRIPTIONS_MAX
    for number in range(http_sessions.CALLERS_MAX + 1):
        one = of(table, {"roots": {"n": number}})
        one.remember(request(method="logging/setLevel", params=b"{}"))
        table.forget(one)
    assert of(table, {"roots": {"n": 0}}).level == b""
    assert of(table, {"roots": {"n": http_sessions.CALLERS_MAX}}).level == b"{}"
    long: dict[str, Any] = {"roots": {}, "other": "x" * 3 * http_sessions.CAPABILITIES_BYTES_MAX}
    assert of(table, long) is of(table, {"roots": {}})


def test_parameters_that_cannot_be_read_are_one_subscription() -> None:
    base = opened().base
    base.remember(request(method="resources/subscribe", params=b"["))
    base.remember(request(method="resources/subscribe", params=b"{}"))
    assert base.subscribed == {b"null": b"{}"}
