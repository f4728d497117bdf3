"""The bridge with values: lines and answers in, what it wants done out."""

import json

import pytest

from metamcp_supervisor.bridge import session
from metamcp_supervisor.bridge.http_requests import Failure, StopExchange, WarnPeople, WriteLine
from metamcp_worker.http.sse import SseEvent
from metamcp_worker.ipc.envelope import ScannedId
from tests.supervisor.bridge.talk import (
    AWAY,
    line,
    made,
    modern,
    opened,
    refusal,
    result,
    send,
    sends,
    written,
)

# What comes in


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
    ],
)
def test_what_is_no_message_is_refused_and_goes_nowhere(raw: bytes, code: int) -> None:
    actions = made().on_line(raw)
    assert refusal(actions) == (None, code)
    assert not sends(actions)


def test_a_line_above_the_limit_is_answered_if_its_id_was_seen() -> None:
    actions = made().overlong(ScannedId(b'"a"'), 10)
    assert refusal(actions) == ("a", -10004)
    assert any(isinstance(action, WarnPeople) for action in actions)


def test_what_cannot_be_read_takes_no_answer_away_from_another_request() -> None:
    bridge = made()
    opened(bridge)
    send(bridge.on_line(line("ping", 7)))
    assert refusal(bridge.overlong(ScannedId(b"7"), 10)) == (None, -10004)
    assert refusal(bridge.overlong(ScannedId(b"9" * 300), 10)) == (None, -10004)


def test_an_answer_above_the_limit_is_an_error_for_the_server_that_asked() -> None:
    bridge = made()
    opened(bridge)
    send(bridge.on_line(line("ping", 7)))
    actions = bridge.overlong(ScannedId(b"7", answer=True), 10)
    assert written(actions) == []
    told = json.loads(send(actions).body)
    assert (told["id"], told["error"]["code"]) == (7, -10004)
    assert not sends(bridge.overlong(ScannedId(b"", answer=True), 10))


def test_a_request_that_is_nested_too_deeply_is_refused_under_its_id() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    early = b'{"jsonrpc":"2.0","id":7,"method":"x","params":' + deep + b"}"
    late = b'{"method":"x","params":' + deep + b',"jsonrpc":"2.0","id":"a"}'
    bridge = made()
    opened(bridge)
    assert refusal(bridge.on_line(early)) == (7, -32700)
    assert refusal(bridge.on_line(late)) == ("a", -32700)


def test_requests_above_the_limit_are_refused_and_so_is_an_id_that_is_in_use() -> None:
    bridge = made()
    opened(bridge)
    for number in range(session.INFLIGHT_MAX):
        send(bridge.on_line(line("ping", number)))
    assert refusal(bridge.on_line(line("ping", "one more"))) == ("one more", -10002)
    bridge = made()
    opened(bridge)
    send(bridge.on_line(line("ping", "\u00e9")))
    assert refusal(bridge.on_line(line("ping", "é"))) == ("é", -32600)
    send(bridge.on_line(line("ping", "7")))
    send(bridge.on_line(line("ping", 7)))


# The handshake era


def test_a_session_is_opened_with_the_clients_own_bytes_and_used_from_then_on() -> None:
    bridge = made()
    raw = line("initialize", 0, protocolVersion="2025-11-25")
    hello = send(bridge.on_line(raw))
    assert (hello.verb, hello.body) == ("POST", raw)
    assert "Mcp-Session-Id" not in hello.headers
    bridge = made()
    stream = opened(bridge)
    assert (stream.verb, stream.body) == ("GET", b"")
    call = send(bridge.on_line(line("tools/call", 1, name="a")))
    for each in (stream, call):
        assert each.headers["Mcp-Session-Id"] == b"s1"
        assert each.headers["MCP-Protocol-Version"] == "2025-11-25"
    assert stream.headers["Accept"] == "text/event-stream"


def test_what_follows_initialize_too_early_waits_for_its_answer() -> None:
    bridge = made()
    hello = send(bridge.on_line(line("initialize", 0)))
    assert bridge.on_line(line("tools/list", 1)) == []
    assert bridge.on_line(line("notifications/x")) == []
    bridge.head(hello.number, 200, b"s1")
    actions = bridge.message(hello.number, result(0, protocolVersion="2025-06-18"))
    assert [json.loads(each.body)["method"] for each in sends(actions)] == [
        "tools/list",
        "notifications/x",
    ]
    assert isinstance(actions[0], WriteLine)


def test_a_refused_initialize_fails_what_waited_for_it() -> None:
    bridge = made()
    hello = send(bridge.on_line(line("initialize", 0)))
    bridge.on_line(line("tools/list", 1))
    bridge.head(hello.number, 400, b"")
    refused = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"m","x":1}}'
    answers = written(bridge.message(hello.number, refused))
    assert answers[0] == {
        "jsonrpc": "2.0", "id": 0, "error": {"code": -32602, "message": "m", "x": 1}
    }  # fmt: skip
    assert answers[1]["id"] == 1
    assert bridge.on_exchange_end(hello.number) == []
    assert bridge.idle


def test_people_hear_once_what_to_do_about_a_key_that_is_refused() -> None:
    for status, word in ((401, "--key-file"), (404, "another workspace")):
        bridge = made()
        first, second = (send(bridge.on_line(modern("tools/list", n))) for n in (1, 2))
        (told,) = bridge.head(first.number, status, b"")
        assert isinstance(told, WarnPeople)
        assert word in told.text
        assert bridge.head(second.number, status, b"") == []


def test_messages_of_the_gateway_are_passed_on_as_they_are() -> None:
    bridge = made()
    stream = opened(bridge)
    call = send(bridge.on_line(line("tools/call", 1)))
    bridge.head(call.number, 200, b"")
    progress = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"x":1.0}}'
    ask = b'{ "jsonrpc":"2.0", "id":"q", "method":"elicitation/create","params":{} }'
    assert bridge.event(call.number, SseEvent(progress)) == [WriteLine(progress)]
    assert bridge.event(call.number, SseEvent(ask)) == [WriteLine(ask)]
    assert bridge.event(stream.number, SseEvent(progress)) == [WriteLine(progress)]
    answer = send(bridge.on_line(b'{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}'))
    assert answer.settles
    assert answer.headers["Mcp-Session-Id"] == b"s1"
    assert bridge.event(call.number, SseEvent(result(1, a=1))) == [WriteLine(result(1, a=1))]
    assert not bridge.cares(call.number)
    assert bridge.on_exchange_end(call.number) == []


def test_a_message_with_line_ends_is_written_as_one_line() -> None:
    bridge = made()
    opened(bridge)
    call = send(bridge.on_line(line("ping", 1)))
    bridge.head(call.number, 200, b"")
    answer = b'{\r\n "jsonrpc": "2.0",\n "id": 1,\n "result": {"t": "a\\nb"}\r\n}\r\n'
    (action,) = bridge.message(call.number, answer)
    assert isinstance(action, WriteLine)
    assert b"\n" not in action.line
    assert b"\r" not in action.line
    assert json.loads(action.line) == json.loads(answer)


def test_an_answer_finds_its_request_on_whatever_stream_it_comes() -> None:
    bridge = made()
    stream = opened(bridge)
    one = send(bridge.on_line(line("ping", "a")))
    two = send(bridge.on_line(line("ping", "b")))
    ended = [WriteLine(result("a")), StopExchange(one.number)]
    assert bridge.event(stream.number, SseEvent(result("a"))) == ended
    assert bridge.event(two.number, SseEvent(result("nobody"))) == []
    three = send(bridge.on_line(line("ping", "c")))
    ended = [WriteLine(result("c")), StopExchange(three.number)]
    assert bridge.event(two.number, SseEvent(result("c"))) == ended
    assert [bridge.cares(each.number) for each in (one, two, three)] == [False, True, False]


def test_what_the_gateway_sends_that_is_no_message_is_told_and_dropped() -> None:
    bridge = made()
    opened(bridge)
    call = send(bridge.on_line(line("ping", 1)))
    (told,) = bridge.message(call.number, b"<html>")
    assert isinstance(told, WarnPeople)
    bridge.head(call.number, 502, b"")
    actions = bridge.on_exchange_end(call.number)
    assert refusal(actions) == (1, -10001)


def test_a_cancelled_request_gets_no_answer_and_the_gateway_is_told() -> None:
    bridge = made()
    opened(bridge)
    call = send(bridge.on_line(line("tools/call", 1)))
    cancel = line("notifications/cancelled", requestId=1, reason="r")
    told = send(bridge.on_line(cancel))
    assert (told.body, told.settles) == (cancel, True)
    bridge.head(call.number, 200, b"")
    progress = b'{"jsonrpc":"2.0","method":"notifications/progress"}'
    assert bridge.event(call.number, SseEvent(progress)) == []
    assert bridge.message(call.number, result(1)) == []
    assert bridge.on_line(cancel) == []
    assert bridge.idle


def test_a_request_that_waits_for_the_session_is_cancelled_without_leaving() -> None:
    bridge = made()
    hello = send(bridge.on_line(line("initialize", 0)))
    bridge.on_line(line("tools/call", 1))
    assert bridge.on_line(line("notifications/cancelled", requestId=1)) == []
    bridge.head(hello.number, 200, b"s1")
    assert not sends(bridge.message(hello.number, result(0, protocolVersion="x")))


def test_the_end_of_the_client_ends_everything_and_the_session() -> None:
    bridge = made()
    stream = opened(bridge)
    call = send(bridge.on_line(line("tools/call", 1)))
    actions = bridge.goodbye()
    assert {action.number for action in actions if isinstance(action, StopExchange)} == {
        stream.number,
        call.number,
    }
    assert (send(actions).verb, send(actions).headers["Mcp-Session-Id"]) == ("DELETE", b"s1")
    assert made().goodbye() == []


def test_what_waits_at_the_end_is_answered_and_what_comes_then_is_refused() -> None:
    bridge = made()
    hello = send(bridge.on_line(line("initialize", 0)))
    bridge.on_line(line("ping", 1))
    known, parked = written(bridge.goodbye())
    assert (known["id"], parked["id"]) == (0, 1)
    assert "may have been processed" in known["error"]["message"]
    assert "processed" not in parked["error"]["message"]
    assert bridge.idle
    assert bridge.message(hello.number, result(0)) == []
    assert refusal(bridge.on_line(line("ping", 2))) == (2, -10001)
    assert refusal(bridge.on_line(modern("ping", 3))) == (3, -10001)
    assert bridge.on_line(line("notifications/x")) == []
    assert bridge.on_line(result("q")) == []


def test_at_the_end_a_cancelled_request_has_no_answer() -> None:
    bridge = made()
    opened(bridge)
    send(bridge.on_line(line("ping", 1)))
    send(bridge.on_line(line("notifications/cancelled", requestId=1)))
    assert written(bridge.goodbye()) == []
    assert bridge.idle


# Failures


@pytest.mark.parametrize(
    ("status", "may_have_run"),
    [(200, True), (202, True), (400, False), (404, False), (500, True), (502, True), (504, True)],
)
def test_an_answer_without_a_message_says_what_may_have_happened(
    status: int, may_have_run: bool
) -> None:
    bridge = made()
    call = send(bridge.on_line(modern("tools/call", 1)))
    bridge.head(call.number, status, b"")
    (answer,) = written(bridge.on_exchange_end(call.number))
    assert ("may have been processed" in answer["error"]["message"]) == may_have_run


def test_an_unreachable_gateway_is_an_error_for_each_request_and_one_sentence() -> None:
    bridge = made()
    first = send(bridge.on_line(line("initialize", 0)))
    actions = bridge.on_exchange_end(first.number, AWAY)
    assert refusal(actions) == (0, -10001)
    assert [action for action in actions if isinstance(action, WarnPeople)] == [
        WarnPeople(AWAY.text)
    ]
    again = send(bridge.on_line(modern("server/discover", 1)))
    actions = bridge.on_exchange_end(again.number, AWAY)
    assert refusal(actions) == (1, -10001)
    assert not any(isinstance(action, WarnPeople) for action in actions)
    back = send(bridge.on_line(line("initialize", 2)))
    assert bridge.head(back.number, 200, b"s") == [WarnPeople("The gateway is back.")]


def test_a_broken_connection_says_that_the_request_may_have_been_processed() -> None:
    bridge = made()
    opened(bridge)
    call = send(bridge.on_line(line("tools/call", 1)))
    actions = bridge.on_exchange_end(call.number, Failure("The connection broke."))
    (answer,) = written(actions)
    assert "may have been processed" in answer["error"]["message"]


def test_a_gateway_that_is_not_ready_is_asked_again_for_a_while() -> None:
    bridge = made()
    call = send(bridge.on_line(line("initialize", 0)))
    for _ in range(session.BUSY_MAX):
        again = send(bridge.head(call.number, 503, b""))
        assert (again.body, again.after_s) == (call.body, session.BUSY_S)
        assert not bridge.cares(call.number)
        call = again
    assert bridge.head(call.number, 503, b"") == []
    refused = b'{"jsonrpc":"2.0","id":null,"error":{"code":-10002,"message":"m"}}'
    assert refusal(bridge.message(call.number, refused)) == (0, -10002)


def test_a_refused_notification_is_told_to_people() -> None:
    bridge = made()
    opened(bridge)
    notice = send(bridge.on_line(line("notifications/x")))
    bridge.head(notice.number, 400, b"")
    (told,) = bridge.on_exchange_end(notice.number)
    assert isinstance(told, WarnPeople)
    assert "notifications/x" in told.text


# The era


def test_the_first_request_that_the_gateway_answers_decides_the_era() -> None:
    bridge = made()
    call = send(bridge.on_line(modern("server/discover", 0)))
    bridge.on_exchange_end(call.number, AWAY)
    opened(bridge)
    assert refusal(bridge.on_line(modern("tools/list", 1))) == (1, -32600)
    bridge = made()
    call = send(bridge.on_line(modern("server/discover", 0)))
    bridge.head(call.number, 200, b"")
    bridge.message(call.number, result(0))
    (answer,) = written(bridge.on_line(line("initialize", 1, protocolVersion="2025-11-25")))
    assert answer["error"]["code"] == -32022
    assert answer["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}
