"""The bridge in the modern era: headers that repeat a body, and calls refused for them."""

import json
from typing import Any

import pytest

from metamcp_supervisor.bridge import modern_era as era
from metamcp_supervisor.bridge.http_requests import Failure, Send, StopExchange, WriteLine
from metamcp_supervisor.bridge.session import BridgeSession
from tests.supervisor.bridge.talk import STAMP, line, made, modern, refusal, result, send

MISMATCH = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"m"}}'


def tool(name: str, header: object = "Region") -> dict[str, Any]:
    wanted: dict[str, Any] = {"type": "string", "x-mcp-header": header}
    return {"name": name, "inputSchema": {"type": "object", "properties": {"region": wanted}}}


def call(bridge: BridgeSession, number: int = 1) -> Send:
    return send(bridge.on_line(modern("tools/call", number, name="t", arguments={"region": "é"})))


def refused(bridge: BridgeSession, asked: Send) -> list[Any]:
    bridge.head(asked.number, 400, b"")
    return bridge.message(asked.number, MISMATCH)


def listed(bridge: BridgeSession, asked: Send, *tools: object, **more: Any) -> list[Any]:
    bridge.head(asked.number, 200, b"")
    return bridge.message(asked.number, result("metamcp-connect", tools=tools, **more))


def test_a_request_says_in_headers_what_its_body_says() -> None:
    raw = modern("tools/call", 1, name="caf\u00e9")
    asked = send(made().on_line(raw))
    assert asked.body == raw
    assert asked.headers == {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "=?base64?Y2Fmw6k=?=",
    }


def test_an_answer_is_passed_on_as_it_is() -> None:
    bridge = made()
    asked = call(bridge)
    bridge.head(asked.number, 200, b"")
    assert bridge.message(asked.number, result(1)) == [WriteLine(result(1))]


def test_an_error_with_a_status_is_passed_on_with_the_id_of_the_request() -> None:
    bridge = made()
    asked = send(bridge.on_line(modern("x", "a")))
    bridge.head(asked.number, 404, b"")
    error = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"m","more":1.0}}'
    (action,) = bridge.message(asked.number, error)
    assert action == WriteLine(error.replace(b"null", b'"a"'))


@pytest.mark.parametrize("method", ["tools/call", "subscriptions/listen"])
def test_a_cancelled_request_is_ended_and_has_no_answer(method: str) -> None:
    bridge = made()
    asked = send(bridge.on_line(modern(method, 7)))
    assert bridge.on_line(line("notifications/cancelled", requestId=7)) == [
        StopExchange(asked.number)
    ]
    assert bridge.on_exchange_end(asked.number, Failure("cut")) == []
    assert bridge.idle


def test_a_subscription_is_nothing_to_wait_for_at_the_end() -> None:
    bridge = made()
    bridge.on_line(modern("subscriptions/listen", 7))
    assert bridge.idle
    call(bridge)
    assert not bridge.idle


def test_a_notification_in_this_era_says_its_revision() -> None:
    bridge = made()
    asked = call(bridge)
    bridge.head(asked.number, 200, b"")
    bridge.message(asked.number, result(1))
    notice = send(bridge.on_line(line("notifications/custom")))
    assert notice.headers["MCP-Protocol-Version"] == "2026-07-28"
    assert notice.headers["Mcp-Method"] == "notifications/custom"


def test_arguments_are_repeated_that_the_clients_own_list_says_are_wanted() -> None:
    bridge = made()
    asked = send(bridge.on_line(modern("tools/list", 0)))
    bridge.head(asked.number, 200, b"")
    tools: list[Any] = [tool("t"), tool("unfit", 7), {"inputSchema": {}}, 5]
    bridge.message(asked.number, result(0, tools=tools))
    assert call(bridge).headers["Mcp-Param-Region"] == "=?base64?w6k=?="
    unfit = send(bridge.on_line(modern("tools/call", 2, name="unfit", arguments={"region": "a"})))
    assert not any(name.startswith("Mcp-Param") for name in unfit.headers)


def test_a_number_that_python_cannot_hold_ends_nothing() -> None:
    bridge = made()
    asked = send(bridge.on_line(modern("tools/list", 0)))
    bridge.head(asked.number, 200, b"")
    bridge.message(asked.number, result(0, tools=[tool("t")]))
    raw = modern("tools/call", 1, name="t", arguments={"region": "us", "n": 9})
    again = send(bridge.on_line(raw.replace(b'"n": 9', b'"n": 1e999')))
    assert again.headers["Mcp-Param-Region"] == "us"


def test_a_call_that_is_refused_for_its_headers_goes_again_with_those_that_are_wanted() -> None:
    bridge = made()
    asked = call(bridge)
    listing = send(refused(bridge, asked))
    message = json.loads(listing.body)
    assert (message["method"], message["params"]["_meta"]) == ("tools/list", STAMP)
    assert listing.headers["Mcp-Method"] == "tools/list"
    more = send(listed(bridge, listing, tool("other"), nextCursor=""))
    assert json.loads(more.body)["params"]["cursor"] == ""
    again = send(listed(bridge, more, tool("t")))
    assert again.body == asked.body
    assert again.headers["Mcp-Param-Region"] == "=?base64?w6k=?="
    bridge.head(again.number, 200, b"")
    assert bridge.message(again.number, result(1)) == [WriteLine(result(1))]


def test_the_tools_are_listed_once_for_all_calls_that_are_refused_meanwhile() -> None:
    bridge = made()
    one, two = call(bridge, 1), call(bridge, 2)
    listing = send(refused(bridge, one))
    assert refused(bridge, two) == []
    assert [each.body for each in listed(bridge, listing, tool("t"))] == [one.body, two.body]


def test_a_refusal_that_no_list_explains_is_the_answer() -> None:
    bridge = made()
    listing = send(refused(bridge, call(bridge)))
    assert refusal(listed(bridge, listing, tool("other"))) == (1, -32020)
    listing = send(refused(bridge, call(bridge)))
    assert refusal(bridge.on_exchange_end(listing.number, Failure("broken"))[1:]) == (1, -32020)
    listing = send(refused(bridge, call(bridge)))
    again = send(listed(bridge, listing, tool("t")))
    assert refusal(refused(bridge, again)) == (1, -32020)


def test_a_list_without_end_ends() -> None:
    bridge = made()
    listing = send(refused(bridge, call(bridge)))
    for _ in range(era.PAGES_MAX - 1):
        listing = send(listed(bridge, listing, nextCursor="same"))
    assert refusal(listed(bridge, listing, nextCursor="same")) == (1, -32020)


def test_a_call_that_is_cancelled_while_its_headers_are_looked_up_is_over() -> None:
    bridge = made()
    listing = send(refused(bridge, call(bridge)))
    assert bridge.on_line(line("notifications/cancelled", requestId=1)) == []
    assert listed(bridge, listing, tool("t")) == []
    assert bridge.idle


def test_a_tool_that_wants_nothing_any_more_gets_nothing() -> None:
    bridge = made()
    listing = send(refused(bridge, call(bridge)))
    again = send(listed(bridge, listing, tool("t")))
    bridge.head(again.number, 200, b"")
    bridge.message(again.number, result(1))
    listing = send(refused(bridge, call(bridge, 2)))
    plain = send(listed(bridge, listing, {"name": "t"}))
    assert "Mcp-Param-Region" not in plain.headers
