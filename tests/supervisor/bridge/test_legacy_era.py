"""The bridge when the gateway forgets the session, or a stream breaks off."""

import json
from typing import Any

from metamcp_supervisor.bridge import legacy_era, session
from metamcp_supervisor.bridge.http_requests import (
    Failure,
    Send,
    StopExchange,
    WarnPeople,
    WriteLine,
)
from metamcp_supervisor.bridge.session import BridgeSession
from metamcp_worker.http.sse import SseEvent
from tests.supervisor.bridge.talk import (
    AWAY,
    line,
    made,
    opened,
    refusal,
    result,
    send,
    sends,
    written,
)

LISTS = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"listChanged": True}}


def forgotten(bridge: BridgeSession, call: Send) -> Send:
    """The gateway does not know the session of this request: our own initialize."""
    actions = bridge.head(call.number, 404, b"")
    assert [type(action) for action in actions[-2:]] == [WarnPeople, Send]
    assert not bridge.cares(call.number)
    return send(actions)


def renewed(bridge: BridgeSession, hello: Send, **capabilities: Any) -> list[Any]:
    bridge.head(hello.number, 200, b"s2")
    return bridge.message(
        hello.number, result(0, protocolVersion="2025-11-25", capabilities=capabilities)
    )


def test_a_forgotten_session_is_opened_again_and_the_request_sent_again() -> None:
    bridge = made()
    opened(bridge)
    call = send(bridge.on_line(line("tools/call", 1)))
    hello = forgotten(bridge, call)
    assert json.loads(hello.body)["method"] == "initialize"
    assert "Mcp-Session-Id" not in hello.headers
    actions = renewed(bridge, hello, **LISTS)
    welcome, again, stream = sends(actions)
    assert json.loads(welcome.body) == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert welcome.settles
    assert again.body == call.body
    assert stream.verb == "GET"
    for each in (welcome, again, stream):
        assert each.headers["Mcp-Session-Id"] == b"s2"
    assert [told["method"] for told in written(actions)] == [
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
    ]
    bridge.head(again.number, 200, b"")
    assert bridge.message(again.number, result(1)) == [WriteLine(result(1))]


def test_it_is_opened_once_however_many_requests_notice() -> None:
    bridge = made()
    stream = opened(bridge)
    calls = [send(bridge.on_line(line("ping", number))) for number in (1, 2, 3)]
    hello = forgotten(bridge, calls[0])
    assert bridge.head(calls[1].number, 404, b"") == []
    assert bridge.head(stream.number, 404, b"") == []
    assert bridge.on_line(line("notifications/x")) == []
    again = sends(renewed(bridge, hello))
    assert [each.body for each in again[1:4]] == [
        calls[0].body,
        calls[1].body,
        line("notifications/x"),
    ]
    late = send(bridge.head(calls[2].number, 404, b""))
    assert (late.body, late.headers["Mcp-Session-Id"]) == (calls[2].body, b"s2")


def test_a_request_is_not_sent_to_a_third_session() -> None:
    bridge = made()
    opened(bridge)
    hello = forgotten(bridge, send(bridge.on_line(line("ping", 1))))
    _, again, _ = sends(renewed(bridge, hello))
    assert bridge.head(again.number, 404, b"") == []
    refused = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"m"}}'
    assert refusal(bridge.message(again.number, refused)) == (1, -32600)


def test_a_session_that_cannot_be_opened_fails_what_waits_and_is_tried_later() -> None:
    bridge = made()
    stream = send(bridge.on_exchange_end(opened(bridge).number))
    hello = forgotten(bridge, send(bridge.on_line(line("ping", 1))))
    bridge.on_line(line("ping", 2))
    actions = bridge.on_exchange_end(hello.number, AWAY)
    assert [answer["id"] for answer in written(actions)] == [1, 2]
    assert not sends(actions), "a stream is asked for already"
    hello = forgotten(bridge, stream)
    refused = b'{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"m"}}'
    bridge.head(hello.number, 200, b"")
    stream = send(bridge.message(hello.number, refused))
    assert (stream.verb, stream.after_s) == ("GET", 2 * legacy_era.PAUSE_S_MIN)
    hello = forgotten(bridge, send(bridge.on_line(line("ping", 4))))
    actions = renewed(bridge, hello)
    assert len(sends(actions)) == 3
    assert [action for action in actions if isinstance(action, StopExchange)] == [
        StopExchange(stream.number)
    ]


def test_an_idle_client_hears_from_the_new_session_too() -> None:
    bridge = made()
    stream = opened(bridge)
    again = send(bridge.on_exchange_end(stream.number))
    hello = forgotten(bridge, again)
    actions = renewed(bridge, hello, **LISTS)
    assert len(written(actions)) == 2
    assert [each.verb for each in sends(actions)] == ["POST", "GET"]


def test_what_the_client_asked_of_the_session_is_asked_of_the_next() -> None:
    bridge = made()
    opened(bridge)
    asked = [
        line("logging/setLevel", 1, level="debug"),
        line("resources/subscribe", 2, uri="a:a"),
        line("resources/subscribe", 3, uri="a:b"),
        line("resources/unsubscribe", 4, uri="a:a"),
        line("resources/subscribe", 5, uri="a:refused"),
        line("logging/setLevel", 6, level="error"),
    ]
    for number, raw in enumerate(asked, 1):
        call = send(bridge.on_line(raw))
        bridge.head(call.number, 200, b"")
        refused = b'{"jsonrpc":"2.0","id":5,"error":{"code":-32602,"message":"m"}}'
        bridge.message(call.number, refused if number == 5 else result(number))
    hello = forgotten(bridge, send(bridge.on_line(line("ping", 7))))
    said = [each.body for each in sends(renewed(bridge, hello))]
    assert said[1:-2] == [asked[5], asked[2]]
    replay = send(bridge.on_line(line("ping", 8)))
    assert bridge.message(replay.number - 2, result(6)) == []


def test_notifications_that_wait_for_a_session_are_bounded() -> None:
    bridge = made()
    bridge.on_line(line("initialize", 0))
    for _ in range(legacy_era.NOTICES_MAX):
        assert bridge.on_line(line("notifications/x")) == []
    (told,) = bridge.on_line(b'{"jsonrpc":"2.0","id":9,"result":{}}')
    assert isinstance(told, WarnPeople)
    assert "an answer" in told.text


def test_the_stream_of_the_session_is_asked_for_again_with_growing_pauses() -> None:
    bridge = made()
    stream = opened(bridge)
    bridge.event(stream.number, SseEvent(b"", id=b"e7"))
    pauses: list[float] = []
    for _ in range(8):
        stream = send(bridge.on_exchange_end(stream.number, AWAY))
        pauses.append(stream.after_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    bridge.head(stream.number, 200, b"")
    assert send(bridge.on_exchange_end(stream.number)).after_s == 0.5


def test_a_stream_is_taken_up_where_it_broke_off_at_the_pace_the_gateway_asks_for() -> None:
    bridge = made()
    stream = opened(bridge)
    bridge.event(stream.number, SseEvent(b"", id=b"e7"))
    again = send(bridge.on_exchange_end(stream.number, None, 3000))
    assert (again.headers["Last-Event-ID"], again.after_s) == (b"e7", 3.0)


def test_a_gateway_without_such_a_stream_is_not_asked_again() -> None:
    bridge = made()
    stream = opened(bridge)
    again = send(bridge.on_exchange_end(stream.number))
    bridge.head(again.number, 405, b"")
    assert bridge.on_exchange_end(again.number) == []


def test_the_stream_of_a_request_is_taken_up_where_it_broke_off() -> None:
    bridge = made()
    opened(bridge)
    call = send(bridge.on_line(line("tools/call", 1)))
    bridge.head(call.number, 200, b"")
    bridge.event(call.number, SseEvent(b"", id=b"c1"))
    again = send(bridge.on_exchange_end(call.number, None, 100))
    assert (again.verb, again.body, again.after_s) == ("GET", b"", 0.1)
    assert again.headers["Last-Event-ID"] == b"c1"
    bridge.head(again.number, 200, b"")
    assert bridge.event(again.number, SseEvent(result(1))) == [WriteLine(result(1))]


def test_a_stream_that_cannot_be_taken_up_fails_its_request() -> None:
    bridge = made()
    opened(bridge)
    call = send(bridge.on_line(line("tools/call", 1)))
    bridge.head(call.number, 200, b"")
    bridge.event(call.number, SseEvent(b"", id=b"c1"))
    for _ in range(session.RESUMES_MAX):
        call = send(bridge.on_exchange_end(call.number, AWAY))
        assert call.after_s == session.RESUME_S
    assert refusal(bridge.on_exchange_end(call.number, AWAY)) == (1, -10001)
    call = send(bridge.on_line(line("tools/call", 2)))
    bridge.head(call.number, 200, b"")
    bridge.event(call.number, SseEvent(b"", id=b"c2"))
    again = send(bridge.on_exchange_end(call.number))
    assert bridge.head(again.number, 404, b"") == []
    assert refusal(bridge.on_exchange_end(again.number)) == (2, -10001)


def broken_off(bridge: BridgeSession) -> Send:
    """A call whose stream broke off, on its way to be taken up again."""
    call = send(bridge.on_line(line("tools/call", 1)))
    bridge.head(call.number, 200, b"")
    bridge.event(call.number, SseEvent(b"", id=b"c1"))
    return send(bridge.on_exchange_end(call.number))


def test_a_gateway_that_is_not_ready_for_a_broken_stream_is_asked_for_it_again() -> None:
    bridge = made()
    opened(bridge)
    call = broken_off(bridge)
    again = send(bridge.head(call.number, 503, b""))
    assert (again.verb, again.body, again.after_s) == ("GET", b"", session.BUSY_S)
    assert again.headers["Last-Event-ID"] == b"c1"


def test_a_refused_stream_never_says_that_its_request_was_refused() -> None:
    bridge = made()
    opened(bridge)
    call = broken_off(bridge)
    bridge.head(call.number, 404, b"")
    refused = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"unknown session"}}'
    assert bridge.message(call.number, refused) == []
    (answer,) = written(bridge.on_exchange_end(call.number))
    assert "may have been processed" in answer["error"]["message"]


def test_a_cancelled_request_is_never_sent_again() -> None:
    for status in (503, 404):
        bridge = made()
        opened(bridge)
        call = send(bridge.on_line(line("tools/call", 1)))
        send(bridge.on_line(line("notifications/cancelled", requestId=1)))
        assert bridge.head(call.number, status, b"") == []
        assert bridge.on_exchange_end(call.number) == []
        assert bridge.idle
    bridge = made()
    opened(bridge)
    call = broken_off(bridge)
    send(bridge.on_line(line("notifications/cancelled", requestId=1)))
    bridge.head(call.number, 200, b"")
    assert bridge.on_exchange_end(call.number) == []
    assert bridge.idle


def test_what_waits_for_a_cancelled_initialize_does_not_wait_for_ever() -> None:
    bridge = made()
    hello = send(bridge.on_line(line("initialize", 0)))
    bridge.on_line(line("notifications/cancelled", requestId=0))
    bridge.on_line(line("ping", 1))
    again = send(bridge.head(hello.number, 503, b""))
    assert refusal(bridge.on_exchange_end(again.number, AWAY)) == (1, -10001)


def test_a_stream_without_ids_that_ends_early_fails_its_request() -> None:
    bridge = made()
    opened(bridge)
    call = send(bridge.on_line(line("tools/call", 1)))
    bridge.head(call.number, 200, b"")
    (answer,) = written(bridge.on_exchange_end(call.number))
    assert "ended the stream" in answer["error"]["message"]
    assert refusal(bridge.on_line(line("x", None) + b"x")) == (None, -32700)


def test_a_second_initialize_begins_a_second_session() -> None:
    bridge = made()
    old = opened(bridge)
    opened(bridge, "s2")
    assert bridge.on_exchange_end(old.number) == []
    assert send(bridge.on_line(line("ping", 1))).headers["Mcp-Session-Id"] == b"s2"


def test_a_failed_goodbye_is_nobodys_concern() -> None:
    bridge = made()
    opened(bridge)
    farewell = send(bridge.goodbye())
    assert bridge.on_exchange_end(farewell.number, Failure("The connection broke.")) == []
