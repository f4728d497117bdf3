"""A model for tests: a local endpoint of both APIs that answers from a script.

Each request takes the next line of the script. The conversations are checked as the real endpoints
check them: every call of a tool has its answer, roles alternate, names are known.
"""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

OPENAI = "/v1/chat/completions"
ANTHROPIC = "/v1/messages"
KEY = "sk-a-key-for-tests-0123456789"


@dataclass(frozen=True)
class Says:
    """An answer with words, calls of tools as pairs of name and arguments, and why it stops."""

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    stop: str = ""
    tokens: tuple[int, int] = (100, 10)


@dataclass(frozen=True)
class Fails:
    """An answer with another status."""

    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Sends:
    """An answer with these bytes as its body."""

    body: bytes


@dataclass(frozen=True)
class Waits:
    """No answer until the server closes, or the client has gone: `left` is set then."""


Line = Says | Fails | Sends | Waits
Script = Callable[[dict[str, Any]], Line]


def call(tool: str, /, **arguments: Any) -> Says:
    return Says(calls=[(tool, arguments)])


def run(code: str) -> Says:
    return call("run_code", code=code)


class ModelServer:
    """Listens on loopback while the `with` block lasts. `script`: its lines, one for each request,
    the last one again and again; or a function of the request. `asked`: bodies of the requests;
    `headers`: theirs; `left`: set when a client has gone without its answer."""

    def __init__(self, script: Sequence[Line] | Script, *, key: str = KEY) -> None:
        self.script = script
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.left = threading.Event()
        self._open = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self, key))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def line(self, body: dict[str, Any], headers: dict[str, str]) -> Line:
        with self._lock:
            self.asked.append(body)
            self.headers.append(headers)
            if callable(self.script):
                return self.script(body)
            return self.script[min(len(self.asked), len(self.script)) - 1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def handler(model: ModelServer, key: str) -> type[BaseHTTPRequestHandler]:
    """Answers requests for this model."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = {name.lower(): text for name, text in self.headers.items()}
            if self.path not in (OPENAI, ANTHROPIC):
                self.send(404, {"error": {"message": f"there is nothing at {self.path}"}})
            elif key not in (given.get("x-api-key"), given.get("authorization", "")[7:]):
                self.send(401, {"error": {"message": f"a wrong key: {key}"}})
            else:
                self.say(body, model.line(body, given))

        def say(self, body: dict[str, Any], line: Line) -> None:
            anthropic = self.path == ANTHROPIC
            if why := (wrong_anthropic if anthropic else wrong_openai)(body):
                line = Fails(400, why)
            match line:
                case Says():
                    shape = as_anthropic if anthropic else as_openai
                    self.send(200, shape(body, line, len(model.asked)))
                case Fails(status=status, message=message, headers=headers):
                    error = {"type": "api_error", "message": message}
                    self.send(status, {"type": "error", "error": error}, headers)
                case Sends(body=data):
                    self.write(200, data, {})
                case Waits():
                    self.connection.settimeout(30)
                    try:
                        if not self.rfile.read(1):
                            model.left.set()
                    except OSError:
                        model.left.set()
                    self.close_connection = True

        def send(
            self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
        ) -> None:
            self.write(status, json.dumps(body).encode(), headers or {})

        def write(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            pass

    return Handler


def as_openai(body: dict[str, Any], line: Says, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": line.text or None, "refusal": None}
    if line.calls:
        message["tool_calls"] = [
            {"id": f"call_{number}_{at}", "type": "function", "function": {
                "name": name,
                "arguments": given if isinstance(given, str) else json.dumps(given),
            }}
            for at, (name, given) in enumerate(line.calls)
        ]  # fmt: skip
    stop = {"": "tool_calls" if line.calls else "stop", "refused": "content_filter"}
    read, written = line.tokens
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {
        "id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "usage": usage,
        "model": body["model"],
        "choices": [{
            "index": 0, "message": message, "finish_reason": stop.get(line.stop, line.stop),
            "logprobs": None,
        }],
    }  # fmt: skip


def as_anthropic(body: dict[str, Any], line: Says, number: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": line.text}] if line.text else []
    content += [
        {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": name, "input": given}
        for at, (name, given) in enumerate(line.calls)
    ]
    stop = {"": "tool_use" if line.calls else "end_turn", "length": "max_tokens",
            "refused": "refusal"}  # fmt: skip
    read, written = line.tokens
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"],
        "content": content, "stop_reason": stop[line.stop], "stop_sequence": None,
        "usage": {"input_tokens": read, "output_tokens": written},
    }  # fmt: skip


def wrong_openai(body: dict[str, Any]) -> str:
    """What the real endpoint would refuse."""
    open_: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_:
                return f"no call has the id {message['tool_call_id']}"
            open_.remove(message["tool_call_id"])
            continue
        if open_:
            return f"calls have no answer: {sorted(open_)}"
        for one in message.get("tool_calls", ()):
            json.loads(one["function"]["arguments"])
            open_.add(one["id"])
        if not message.get("content") and not message.get("tool_calls"):
            return "a message is empty"
    return "" if not open_ else f"calls have no answer: {sorted(open_)}"


def wrong_anthropic(body: dict[str, Any]) -> str:
    """What the real endpoint would refuse."""
    if body["max_tokens"] < 1 or not body["messages"]:
        return "max_tokens and messages are required"
    open_: set[str] = set()
    role = "assistant"
    for message in body["messages"]:
        if message["role"] == role:
            return f"two messages of {role} follow each other"
        role = message["role"]
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        answered = {one["tool_use_id"] for one in parts if one["type"] == "tool_result"}
        if answered != open_:
            return f"calls {sorted(open_)} have the answers {sorted(answered)}"
        open_ = {one["id"] for one in parts if one["type"] == "tool_use"}
        if not parts or any(one["type"] == "text" and not one["text"].strip() for one in parts):
            return "a message is empty"
    return "" if role == "user" else "the last message is of the assistant"
