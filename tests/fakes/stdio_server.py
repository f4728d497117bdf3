"""A scripted MCP server on stdio: a small true program whose manners are chosen by flags.

    python tests/fakes/stdio_server.py --era both --tools 30 --page 7

It speaks both eras, puts members that no specification knows into everything that it sends, and can
misbehave in the ways that real servers do. It needs nothing but the standard library.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
META = "io.modelcontextprotocol/"
INFO = {"name": "scripted", "version": "1.0", "x-unknown": {"kept": True}}
NOISE = (b"starting up ...", b"{", b"[]", b"null", b"1", b"", b"\x1b[32mready\x1b[0m", b'{"a":1}')
DEEP = 100_000
FOREVER_S = 3600.0


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--era", choices=("legacy", "modern", "both"), default="both")
    option("--tools", type=int, default=0, metavar="N", help="so many more tools: t000, t001, ...")
    option("--page", type=int, default=0, metavar="N", help="items per page of every list")
    option("--slow-start", type=int, default=0, metavar="MS", help="before the first read")
    option("--exit-after", type=int, default=0, metavar="MS")
    option("--prompts", action="store_true")
    option("--resources", action="store_true")
    option("--cursor-loop", action="store_true", help="every page names the same next page")
    option("--list-error", action="store_true", help="lists are answered with an error")
    option("--garbage", action="store_true", help="lines of noise before every message")
    option("--bad-utf8", action="store_true", help="such a line before every message")
    option("--half-lines", action="store_true", help="writes a few bytes at a time")
    option("--string-ids", action="store_true", help='answers 7 with the id "7"')
    option("--stderr-flood", action="store_true")
    option("--stdout-flood", action="store_true")
    option("--huge-line", action="store_true", help="answers a call with a line without end")
    option("--deaf", action="store_true", help="reads nothing")
    option("--hang", action="store_true", help="reads and never answers")
    option("--silent-probe", action="store_true", help="does not answer unknown methods")
    option("--exit-on-probe", action="store_true", help="exits unless initialize comes first")
    option("--ignore-eof", action="store_true")
    option("--ignore-term", action="store_true")
    return parser.parse_args()


class Refused(Exception):
    """An answer with an error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        more = {} if data is None else {"data": data}
        self.error: Json = {"code": code, "message": message, "x-error": ["kept"], **more}


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.changes = 0
        self.listeners: list[object] = []
        self.asked: object = None
        self.deaf = options.deaf
        self.first = True
        self.line = b""
        self.token: object = None

    # --- bytes ------------------------------------------------------------------------------

    def run(self) -> None:
        if self.options.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(self.options.slow_start / 1000)
        if self.options.exit_after:
            self.later(self.options.exit_after, lambda: os._exit(7))
        if self.options.stderr_flood:
            self.later(0, lambda: flood(2, threading.Lock()))
        if self.options.stdout_flood:
            self.later(0, lambda: flood(1, self.lock))
        while not self.deaf:
            line = sys.stdin.buffer.readline()
            if not line:
                break
            if not self.options.hang:
                self.received(line)
        if self.deaf or self.options.ignore_eof:
            time.sleep(FOREVER_S)

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

    # --- messages ---------------------------------------------------------------------------

    def received(self, line: bytes) -> None:
        message: Json = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if method is None and self.asked is not None:
            # The gateway answered a request of ours: that ends the call that made us ask.
            self.reply(self.asked, result=content(line.decode()))
        if method is None or "id" not in message:
            return
        if self.options.exit_on_probe and self.first and method != "initialize":
            sys.exit(f"expected initialize, got {method}")
        self.first = False
        try:
            result = self.handle(message["id"], method, params, line)
        except Refused as refusal:
            self.reply(message["id"], error=refusal.error)
            return
        if result is not None:
            self.reply(message["id"], result=self.dressed(result, params))

    def reply(self, number: object, **outcome: object) -> None:
        if self.options.string_ids:
            number = str(number)
        self.send({"id": number, **outcome})

    def dressed(self, result: Json, params: Json) -> Json:
        """The result with what its era wants, and with what nobody knows."""
        result = {**result, "x-result": {"kept": [1, 2.50, None]}}
        if modern(params):
            result.setdefault("resultType", "complete")
            result["_meta"] = {**result.get("_meta", {}), META + "serverInfo": INFO}
        return result

    def handle(self, number: object, method: str, params: Json, line: bytes) -> Json | None:
        """The result of a request; None if it is answered later, or never."""
        if method == "initialize":
            return self.initialize(params)
        if method == "ping":
            return {}
        if self.options.era == "legacy" and (modern(params) or method == "server/discover"):
            if self.options.silent_probe:
                return None
            raise Refused(-32601, f"unknown method {method}")
        if self.options.era == "modern" and not modern(params):
            raise Refused(-32602, "no protocol version in _meta")
        if method == "server/discover":
            return {"supportedVersions": [MODERN], "capabilities": self.capabilities(), **hints()}
        if method == "subscriptions/listen":
            self.listeners.append(number)
            self.notify("notifications/subscriptions/acknowledged", notifications={}, of=number)
            return None
        if method == "tools/call":
            return self.call(number, params, line)
        return self.listed(method, params)

    def initialize(self, params: Json) -> Json:
        if self.options.era == "modern":
            data = {"supported": [MODERN], "requested": params.get("protocolVersion")}
            raise Refused(-32022, "Unsupported protocol version", data)
        asked = params["protocolVersion"]
        return {
            "protocolVersion": asked if asked in LEGACY else LEGACY[0],
            "capabilities": self.capabilities(),
            "serverInfo": INFO,
            "instructions": "Call echo.",
        }

    def capabilities(self) -> Json:
        found: Json = {"tools": {"listChanged": True}, "x-capability": {}}
        if self.options.prompts:
            found["prompts"] = {"listChanged": True}
        if self.options.resources:
            found["resources"] = {"subscribe": True, "listChanged": True}
        return found

    def notify(self, method: str, of: object = None, **params: object) -> None:
        if of is not None:
            params["_meta"] = {META + "subscriptionId": of}
        self.send({"method": method, "params": params})

    # --- lists ------------------------------------------------------------------------------

    def listed(self, method: str, params: Json) -> Json:
        lists: dict[str, tuple[str, Callable[[], list[Json]]]] = {
            "tools/list": ("tools", self.tools),
            "prompts/list": ("prompts", prompts),
            "resources/list": ("resources", resources),
        }
        if method in lists:
            if self.options.list_error:
                raise Refused(-32603, "the lists are lost")
            name, items = lists[method]
            return {**self.page(name, items(), params), **(hints() if modern(params) else {})}
        if method == "prompts/get" and params.get("name") == "greet":
            who = params.get("arguments", {}).get("who", "nobody")
            message = {"role": "user", "content": {"type": "text", "text": f"Greet {who}"}}
            return {"messages": [message]}
        if method == "resources/read" and params.get("uri") == "fake://one":
            return {"contents": [{"uri": "fake://one", "text": "one", "x-content": 1}]}
        raise Refused(-32601, f"unknown method {method}")

    def page(self, name: str, items: list[Json], params: Json) -> Json:
        """One page; the second one has the empty string as its cursor."""
        size = self.options.page or len(items) or 1
        cursor = params.get("cursor")
        at = 0 if cursor is None else size if cursor == "" else int(cursor)
        result: Json = {name: items[at : at + size]}
        if self.options.cursor_loop:
            result["nextCursor"] = "7"
        elif at + size < len(items):
            result["nextCursor"] = "" if at == 0 else str(at + size)
        return result

    def tools(self) -> list[Json]:
        names = [name[5:] for name in dir(self) if name.startswith("tool_")]
        names += [f"t{number:03}" for number in range(self.options.tools)]
        return [tool(name) for name in names + [f"new{n}" for n in range(self.changes)]]

    # --- tools ------------------------------------------------------------------------------

    def call(self, number: object, params: Json, line: bytes) -> Json | None:
        name: str = params.get("name", "")
        arguments: Json = params.get("arguments") or {}
        while self.options.huge_line:
            write(b"x" * 65536)
        if name not in {one["name"] for one in self.tools()}:
            raise Refused(-32602, f"unknown tool {name}")
        self.line, self.token = line, params.get("_meta", {}).get("progressToken")
        work: Callable[..., Json | None] = getattr(self, f"tool_{name}", self.tool_pid)
        return work(number, **arguments)

    def tool_echo(self, _: object, text: str = "") -> Json:
        return {**content(text), "structuredContent": {"text": text, "x": 1.0}}

    def tool_blob(self, _: object, kib: int = 1) -> Json:
        return content("x" * (kib * 1024))

    def tool_sleep(self, number: object, ms: float = 0) -> None:
        self.later(ms, lambda: self.reply(number, result=content(f"slept {ms} ms")))

    def tool_pid(self, _: object) -> Json:
        return content(str(os.getpid()))

    def tool_environ(self, _: object) -> Json:
        return content(json.dumps({"environ": dict(os.environ), "cwd": os.getcwd()}))

    def tool_fail(self, _: object) -> Json:
        return {**content("it did not work"), "isError": True}

    def tool_error(self, _: object, code: int = -32050) -> Json:
        raise Refused(code, "a failure", {"reason": "scripted", "n": 1.0})

    def tool_raw(self, _: object, **__: object) -> Json:
        """The parameters of this very call, byte for byte."""
        whole = self.line.decode()
        start = whole.index('"params":') + len('"params":')
        return content(whole[start : json.JSONDecoder().raw_decode(whole, start)[1]])

    def tool_progress(self, _: object, n: int = 3) -> Json:
        for step in range(1, n + 1) if self.token is not None else ():
            self.notify("notifications/progress", progressToken=self.token, progress=step, total=n)
        return content(f"{n} steps")

    def tool_crash(self, _: object, code: int = 3) -> Json:
        os.write(2, b"crashing with %d\n" % code)
        os._exit(code)

    def tool_change(self, _: object) -> Json:
        """One more tool, announced to whoever has to be told."""
        self.changes += 1
        for listener in self.listeners or [None]:
            self.notify("notifications/tools/list_changed", of=listener)
        return content(f"new{self.changes - 1}")

    def tool_log(self, _: object, text: str = "") -> Json:
        self.notify("notifications/message", level="info", data=text)
        return content(text)

    def tool_ask(self, number: object, method: str = "sampling/createMessage") -> None:
        """A request to the client; the call ends with what was answered."""
        self.asked = number
        self.send({"id": "s1", "method": method, "params": {}})

    def tool_spawn_daemon(self, _: object) -> Json:
        """A process that nobody's group or session holds; its pid."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            grandchild = os.fork()
            if grandchild:
                os.write(writing, str(grandchild).encode())
                os._exit(0)
            time.sleep(FOREVER_S)
            os._exit(0)
        os.waitpid(child, 0)
        return content(os.read(reading, 20).decode())

    def tool_deafen(self, _: object) -> Json:
        self.deaf = True
        return content("reads no more")

    def tool_close_stdout(self, _: object) -> None:
        os.close(1)

    def tool_odd(self, number: int, kind: str = "both") -> None:
        """Answers that are none."""
        result = content("odd")
        if kind == "both":
            self.send({"id": number, "result": result, "error": {"code": 1, "message": "odd"}})
        elif kind == "neither":
            self.send({"id": number})
        elif kind == "deep":
            deep = b"[" * DEEP + b"]" * DEEP
            self.send_line(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, deep))
        elif kind == "bad-utf8":
            self.send_line(b'{"result":{"text":"\xff"},"jsonrpc":"2.0","id":%d}' % number)
        elif kind == "float-id":
            self.send_line(b'{"jsonrpc":"2.0","id":%d.0,"result":{}}' % number)
        elif kind == "string-id":
            self.send({"id": str(number), "result": result})
        elif kind == "twice":
            self.send({"id": number + 1000, "result": result})
            self.send({"id": number, "result": result})
            self.send({"id": number, "result": content("again")})


def modern(params: Json) -> bool:
    return META + "protocolVersion" in params.get("_meta", {})


def hints() -> Json:
    return {"ttlMs": 1000, "cacheScope": "public"}


def content(words: str) -> Json:
    return {"content": [{"type": "text", "text": words, "x-content": {"kept": 1}}]}


def tool(name: str) -> Json:
    return {
        "name": name,
        "title": f"The {name}",
        "description": f"Does {name}.",
        "inputSchema": {"type": "object", "x-schema": 1},
        "annotations": {"readOnlyHint": True, "x-hint": "kept"},
        "_meta": {"example.com/vendor": {"kept": 1.0}},
        "x-tool": [None],
    }


def prompts() -> list[Json]:
    return [{"name": "greet", "arguments": [{"name": "who"}], "x-prompt": True}]


def resources() -> list[Json]:
    return [{"uri": f"fake://{word}", "name": word, "x-resource": 0} for word in ("one", "two")]


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def flood(fd: int, lock: threading.Lock) -> None:
    lines = b"".join(b"noise number %d\n" % number for number in range(2000))
    while True:
        with lock:
            os.write(fd, lines)
        time.sleep(0)


if __name__ == "__main__":
    Server(flags()).run()
