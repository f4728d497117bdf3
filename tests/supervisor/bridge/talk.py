"""What a client and a gateway say to the bridge, and what of its actions tests look at."""

import json
from typing import Any

from metamcp_supervisor.bridge.http_requests import Action, Failure, Send, WriteLine
from metamcp_supervisor.bridge.session import BridgeSession

META = "io.modelcontextprotocol/"
STAMP: dict[str, Any] = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
AWAY = Failure("The gateway cannot be reached.", may_have_run=False)


def made() -> BridgeSession:
    return BridgeSession("The gateway")


def line(method: str, number: object = None, **params: Any) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if number is None else {**message, "id": number}).encode()


def modern(method: str, number: object = None, **params: Any) -> bytes:
    return line(method, number, **{**params, "_meta": STAMP})


def result(number: object, **members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": members}).encode()


def sends(actions: list[Action]) -> list[Send]:
    return [action for action in actions if isinstance(action, Send)]


def send(actions: list[Action]) -> Send:
    (only,) = sends(actions)
    return only


def written(actions: list[Action]) -> list[Any]:
    return [json.loads(action.line) for action in actions if isinstance(action, WriteLine)]


def refusal(actions: list[Action]) -> tuple[object, int]:
    (answer,) = written(actions)
    return answer["id"], answer["error"]["code"]


def opened(bridge: BridgeSession, session_id: str = "s1", **capabilities: Any) -> Send:
    """A session, and its stream."""
    hello = send(bridge.on_line(line("initialize", 0, protocolVersion="2025-11-25")))
    bridge.head(hello.number, 200, session_id.encode())
    answer = result(0, protocolVersion="2025-11-25", capabilities=capabilities)
    assert bridge.message(hello.number, answer) == [WriteLine(answer)]
    notice = send(bridge.on_line(line("notifications/initialized")))
    assert notice.settles
    stream = send(bridge.head(notice.number, 202, b""))
    bridge.on_exchange_end(notice.number)
    bridge.head(stream.number, 200, b"")
    return stream
