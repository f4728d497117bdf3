"""A session without a server: the test says what the server says, and reads what it would read."""

import json
from collections.abc import Sequence
from typing import Any

from metamcp_worker.child.actions import (
    Action,
    CancelRequest,
    Ready,
    Relisted,
    ReplyToFront,
    ServerRequest,
    WriteToServer,
)
from metamcp_worker.child.jsonrpc_lines import LEGACY, MODERN
from metamcp_worker.child.server_session import ServerSession
from metamcp_worker.ipc import frames
from metamcp_worker.ipc.frames import CallFrame, Cancel, ClientNotice, Error, QuestionFrame
from metamcp_worker.ipc.spec import ServerSpec

Json = dict[str, Any]
TOOLS: Json = {"tools": {"listChanged": True}}
ECHO: Json = {"name": "echo", "inputSchema": {}}


class Talk:
    """`wrote`: every message to the server so far. `now`: the time that the session is told.
    `requests`, `vias`: what is known of the requests and of other messages beside their lines."""

    def __init__(self, **spec: Any) -> None:
        self.now = 100.0
        fields: Json = {"name": "fake", "command": ("fake",), **spec}
        self.session = ServerSession(ServerSpec(**fields), "1.0", self.now)
        self.wrote: list[Json] = []
        self.requests: list[ServerRequest] = []
        self.vias: list[int] = []
        self.actions: list[Action] = []
        self.note(self.session.start())

    def note(self, actions: Sequence[Action]) -> list[Action]:
        """Take note of actions; the ones that are no messages to the server."""
        for one in actions:
            if isinstance(one, ServerRequest | WriteToServer | CancelRequest):
                self.wrote.append(json.loads(one.line))
            if isinstance(one, ServerRequest):
                self.requests.append(one)
            if isinstance(one, WriteToServer):
                self.vias.append(one.via)
        others: list[Action] = [
            one
            for one in actions
            if not isinstance(one, ServerRequest | WriteToServer | CancelRequest)
        ]
        self.actions += others
        return others

    def says(
        self, message: Json | bytes, stream: bytes | None = None, via: int = 0
    ) -> list[Action]:
        """The server writes this line."""
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.note(self.session.receive(line, self.now, stream, via))

    def asked(self, method: str) -> Json:
        """The last request of this method that the server got."""
        return next(one for one in reversed(self.wrote) if one.get("method") == method)

    def answers(self, method: str, result: object) -> list[Action]:
        """The server answers the last request of this method."""
        return self.says({"jsonrpc": "2.0", "id": self.asked(method)["id"], "result": result})

    def refuses(self, method: str, code: int, data: object = None) -> list[Action]:
        error = {"code": code, "message": "no", "data": data}
        return self.says({"jsonrpc": "2.0", "id": self.asked(method)["id"], "error": error})

    def tells(self, method: str, stream: bytes | None = None, **params: object) -> list[Action]:
        """The server sends a notification."""
        return self.says({"jsonrpc": "2.0", "method": method, "params": params}, stream)

    def asks(self, number: object, method: str = "elicitation/create", **how: Any) -> list[Action]:
        """The server sends a request."""
        message: Json = {"jsonrpc": "2.0", "id": number, "method": method, "params": {}}
        return self.says(message, **how)

    def answered(self, number: object) -> list[Json]:
        """What the server got as answers to its request of this id."""
        return [one for one in self.wrote if "method" not in one and one["id"] == number]

    def replies(self, front: int, question: int, body: bytes, *, failed: bool = False) -> None:
        """A front answers a question; nothing is sent to any front then."""
        frame = frames.ReplyFrame(question, body, failed)
        assert self.note(self.session.reply(front, frame, self.now)) == []

    def tell(self, front: int, method: str, body: bytes = b"") -> list[Action]:
        """A front has a notification of a client."""
        return self.note(self.session.tell(front, ClientNotice(method, body), self.now))

    def cancel(self, front: int, number: int, reason: bytes = b"") -> list[Action]:
        return self.note(self.session.cancel(front, Cancel(number, reason), self.now))

    def tick(self, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        return self.note(self.session.tick(self.now))

    def call(self, front: int, number: int, **options: Any) -> list[Action]:
        options = {"method": "tools/call", "params": b'{"name":"echo"}', **options}
        return self.note(self.session.call(front, CallFrame(number, **options), self.now))

    def calls(self) -> list[Json]:
        """The tool calls that the server got."""
        return [one for one in self.wrote if one.get("method") == "tools/call"]

    def keys(self) -> list[bytes]:
        """Their ids."""
        return [one.key for one in self.requests if one.method == "tools/call"]

    def last_catalogue(self) -> Ready | Relisted:
        return next(one for one in reversed(self.actions) if isinstance(one, Ready | Relisted))


def legacy(capabilities: Json | None = None, version: str = LEGACY[0]) -> Json:
    """The result of initialize."""
    return {
        "protocolVersion": version,
        "capabilities": TOOLS if capabilities is None else capabilities,
        "serverInfo": {"name": "s"},
    }


def modern(capabilities: Json | None = None) -> Json:
    """The result of server/discover."""
    return {
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": TOOLS if capabilities is None else capabilities,
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "m", "x": 1}},
    }


def ready_legacy(capabilities: Json | None = None, **spec: Any) -> Talk:
    """A session with a legacy server that has one tool."""
    talk = Talk(**spec)
    talk.refuses("server/discover", -32601)
    talk.answers("initialize", legacy({**TOOLS, **(capabilities or {})}))
    talk.answers("tools/list", {"tools": [ECHO]})
    assert talk.session.ready
    return talk


def ready_modern(**spec: Any) -> Talk:
    talk = Talk(**spec)
    talk.answers("server/discover", modern())
    talk.answers("tools/list", {"tools": [ECHO]})
    assert talk.session.ready
    return talk


def error_of(actions: Sequence[Action]) -> Json:
    """The only error among the actions."""
    (found,) = [
        one.frame
        for one in actions
        if isinstance(one, ReplyToFront) and isinstance(one.frame, Error)
    ]
    error: Json = json.loads(found.body)
    return error


def question_of(actions: Sequence[Action]) -> QuestionFrame:
    """The only question to a client among the actions."""
    (found,) = [
        one.frame
        for one in actions
        if isinstance(one, ReplyToFront) and isinstance(one.frame, QuestionFrame)
    ]
    return found
