"""The scripted server's lines: what it writes, what it asks, whom it tells."""

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Then = Callable[[Json, bytes], object]

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
TASKS = META + "tasks"
NOISE = (b"starting up ...", b"{", b"[]", b"null", b"1", b"", b"\x1b[32mready\x1b[0m", b'{"a":1}')


class Refused(Exception):
    """An answer with an error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        more = {} if data is None else {"data": data}
        self.error: Json = {"code": code, "message": message, "x-error": ["kept"], **more}


class Wire:
    """`line`, `params`: of the request that is being handled."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.deaf: bool = options.deaf
        self.line = b""
        self.params: Json = {}
        self.declared: Json = {}
        """The parameters of initialize."""
        self.asked = 0
        self.waiting: dict[str, Then] = {}

    @property
    def modern(self) -> bool:
        return is_modern(self.params)

    @property
    def token(self) -> object:
        return self.params.get("_meta", {}).get("progressToken")

    @property
    def capabilities_of_client(self) -> Json:
        meta: Json = self.params.get("_meta", {})
        declared: Json = self.declared.get("capabilities", {})
        found: Json = meta[META + "clientCapabilities"] if self.modern else declared
        return found

    def later(self, wait_ms: float, work: Callable[[], object]) -> None:
        timer = threading.Timer(wait_ms / 1000, work)
        timer.daemon = True
        timer.start()

    def send(self, message: Json) -> None:
        self.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def send_line(self, line: bytes) -> None:
        with self.lock:
            if self.options.garbage:
                write(b"\n".join(NOISE) + b"\n")
            if self.options.bad_utf8:
                write(b'{"jsonrpc":"2.0","method":"x","params":"\xff\xfe"}\n')
            if not self.options.half_lines:
                write(line + b"\n")
                return
            for at in range(0, len(line), 7):
                write(line[at : at + 7])
            write(b"\r\n")

    def reply(self, number: object, **outcome: object) -> None:
        if self.options.string_ids:
            number = str(number)
        self.send({"id": number, **outcome})

    def notify(self, method: str, of: object = None, **params: object) -> None:
        if of is not None:
            params["_meta"] = {META + "subscriptionId": of}
        self.send({"method": method, "params": params})

    def request(self, method: str, params: object, then: Then, number: object = None) -> object:
        """Ask the client something; `then` gets the answer and its line. The id of the request."""
        self.asked += 1
        number = f"s{self.asked}" if number is None else number
        self.waiting[json.dumps(number)] = then
        self.send({"id": number, "method": method, "params": params})
        return number

    def answered(self, message: Json, line: bytes) -> None:
        """The client answered a request of ours, or something that was none."""
        then = self.waiting.pop(json.dumps(message.get("id")), None)
        if then is None:
            os.write(2, b"unexpected answer " + line)
        else:
            then(message, line)


def is_modern(params: Json) -> bool:
    return META + "protocolVersion" in params.get("_meta", {})


def content(words: str) -> Json:
    return {"content": [{"type": "text", "text": words, "x-content": {"kept": 1}}]}


def outcome(message: Json) -> object:
    """What an answer says: its result, or the error as a member of that name."""
    return message["result"] if "result" in message else {"error": message.get("error")}


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def flooding(kind: str) -> bytes:
    """Messages that a server may send, and sends without end: `requests`, or a notification."""
    params: dict[str, Json] = {
        "requests": {"messages": [], "maxTokens": 1},
        "message": {"level": "error", "data": "x"},
        "progress": {"progressToken": 1, "progress": 1},
        "resources/updated": {"uri": "fake://a"},
    }
    lines: list[bytes] = []
    for number in range(2000):
        message: Json = {"jsonrpc": "2.0", "method": f"notifications/{kind}"}
        if kind == "requests":
            message |= {"id": number, "method": "sampling/createMessage"}
        lines.append(json.dumps(message | {"params": params.get(kind, {})}).encode() + b"\n")
    return b"".join(lines)


NOISY = b"".join(b"noise number %d\n" % number for number in range(2000))


def flood(fd: int, lock: threading.Lock, lines: bytes = NOISY) -> None:
    while True:
        with lock:
            os.write(fd, lines)
        time.sleep(0)
