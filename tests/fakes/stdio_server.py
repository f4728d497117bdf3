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

# It is started as a file, in any directory and with any environment, thousands of times: what it
# imports counts.
sys.path.insert(0, os.path.realpath(f"{__file__}/../../.."))

from tests.fakes.stdio_asks import Asks
from tests.fakes.stdio_tasks import Tasks
from tests.fakes.stdio_tools import FOREVER_S, Tools
from tests.fakes.stdio_watch import Watch
from tests.fakes.stdio_wire import (
    META,
    MODERN,
    TASKS,
    Json,
    Refused,
    flood,
    flooding,
    is_modern,
    write,
)

LEAK_MS = 100
WIDTH = 100
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
INFO = {"name": "scripted", "version": "1.0", "x-unknown": {"kept": True}}


class Narrow(argparse.HelpFormatter):
    """Help that need not know how wide the terminal is, which takes four modules."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=WIDTH)


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Narrow)
    option = parser.add_argument
    option("--era", choices=("legacy", "modern", "both"), default="both")
    option("--tools", type=int, default=0, metavar="N", help="so many more tools: t000, t001, ...")
    option("--invalid", action="store_true", help="one more tool, without inputSchema")
    option("--page", type=int, default=0, metavar="N", help="items per page of every list")
    option("--slow-start", type=int, default=0, metavar="MS", help="before the first read")
    option("--exit-after", type=int, default=0, metavar="MS")
    option("--prompts", action="store_true")
    option("--resources", action="store_true", help="with templates and subscriptions")
    option("--cursor-loop", action="store_true", help="every page names the same next page")
    option("--list-error", action="store_true", help="lists are answered with an error")
    option("--garbage", action="store_true", help="lines of noise before every message")
    option("--bad-utf8", action="store_true", help="such a line before every message")
    option("--half-lines", action="store_true", help="writes a few bytes at a time")
    option("--string-ids", action="store_true", help='answers 7 with the id "7"')
    option("--stderr-flood", action="store_true")
    option("--stdout-flood", action="store_true")
    option("--flood", default="", metavar="KIND", help="of messages, see `flooding`")
    option("--huge-line", action="store_true", help="answers a call with a line without end")
    option(
        "--die-at", default="", metavar="METHOD", help="exits when it comes, half its answer said"
    )
    option("--words", default="", metavar="FILE", help="JSON: other members of tools, by name")
    option("--another", default="", metavar="FILE", help="one more tool with each start of it")
    option("--only", default="", metavar="NAMES", help="these of its tools, and new ones")
    option("--unlisted", default="", metavar="NAMES", help="beside --only: called, and in no list")
    option("--unless", default="", metavar="FILE", help="exits at once while that is there")
    option("--leak", type=int, default=0, metavar="MIB", help="so much more ten times a second")
    option("--daemons", type=int, default=0, metavar="N", help="forks so many that flee from it")
    option("--deaf", action="store_true", help="reads nothing")
    option("--hang", action="store_true", help="reads and never answers")
    option("--silent-probe", action="store_true", help="does not answer unknown methods")
    option("--exit-on-probe", action="store_true", help="exits unless initialize comes first")
    option("--ignore-eof", action="store_true")
    option("--ignore-term", action="store_true")
    option("--logging", action="store_true", help="declares it and takes logging/setLevel")
    option("--completions", action="store_true")
    option("--tasks", action="store_true", help="core tasks, or the extension")
    option(
        "--roots", action="store_true", help="asks for roots as soon as it may, if there are any"
    )
    option("--roots-late", action="store_true", help="asks and keeps them in the first call")
    option("--refuse-listen", action="store_true", help="subscriptions/listen is an error")
    return parser.parse_args()


class Server(Tools, Asks, Watch, Tasks):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.first = True
        self.begin()
        self.begin_tasks()

    # --- bytes ------------------------------------------------------------------------------

    def run(self) -> None:
        if self.options.unless and os.path.exists(self.options.unless):
            sys.exit("it is not to run")
        if self.options.another:
            with open(self.options.another, "a+") as starts:
                starts.write("x")
                self.changes = starts.tell()
        if self.options.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(self.options.slow_start / 1000)
        if self.options.exit_after:
            self.later(self.options.exit_after, lambda: os._exit(7))
        if self.options.leak:
            self.later(LEAK_MS, self.leak)
        for _ in range(self.options.daemons):
            self.tool_spawn_daemon(None)
        if self.options.stderr_flood:
            self.later(0, lambda: flood(2, threading.Lock()))
        if self.options.stdout_flood:
            self.later(0, lambda: flood(1, self.lock))
        if self.options.flood:
            self.later(0, lambda: flood(1, self.lock, flooding(self.options.flood)))
        while not self.deaf:
            line = sys.stdin.buffer.readline()
            if not line:
                break
            if not self.options.hang:
                self.received(line)
        if self.deaf or self.options.ignore_eof:
            time.sleep(FOREVER_S)

    def leak(self) -> None:
        self.tool_leak(None, self.options.leak)
        self.later(LEAK_MS, self.leak)

    # --- messages ---------------------------------------------------------------------------

    def noted(self, method: str, params: Json) -> None:
        super().noted(method, params)
        news = ("notifications/initialized", "notifications/roots/list_changed")
        wanted = self.options.roots or (self.options.roots_late and method == news[1])
        if wanted and method in news and "roots" in self.capabilities_of_client:
            self.request("roots/list", {}, self.rooted)

    def received(self, line: bytes) -> None:
        message: Json = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if self.options.die_at == method:
            write(
                b'{"jsonrpc":"2.0","id":%d,"result":{"' % message["id"] if "id" in message else b""
            )
            os._exit(9)
        if method is None:
            self.answered(message, line)
            return
        if "id" not in message:
            self.noted(method, params)
            return
        if self.options.exit_on_probe and self.first and method != "initialize":
            sys.exit(f"expected initialize, got {method}")
        self.first = False
        self.line, self.params = line, params
        try:
            result = self.handle(message["id"], method, params)
        except Refused as refusal:
            self.reply(message["id"], error=refusal.error)
            return
        if result is not None:
            self.reply(message["id"], result=self.dressed(result, params))

    def dressed(self, result: Json, params: Json) -> Json:
        """The result with what its era wants, and with what nobody knows."""
        result = {**result, "x-result": {"kept": [1, 2.50, None]}}
        if is_modern(params):
            result.setdefault("resultType", "complete")
            result["_meta"] = {**result.get("_meta", {}), META + "serverInfo": INFO}
        return result

    def handle(self, number: object, method: str, params: Json) -> Json | None:
        """The result of a request; None if it is answered later, or never."""
        if method == "initialize":
            return self.initialize(params)
        if method == "ping":
            return {}
        if self.options.era == "legacy" and (self.modern or method == "server/discover"):
            if self.options.silent_probe:
                return None
            raise Refused(-32601, f"unknown method {method}")
        if self.options.era == "modern" and not self.modern:
            raise Refused(-32602, "no protocol version in _meta")
        if method == "server/discover":
            return {"supportedVersions": [MODERN], "capabilities": self.capabilities(), **hints()}
        if method == "tools/call":
            return self.call(number, params)
        if method == "subscriptions/listen" and self.modern:
            self.listen(number, params)
            return None
        if method.startswith("tasks/") and self.options.tasks:
            return self.tasked(number, method, params)
        return self.sundry(method, params)

    def initialize(self, params: Json) -> Json:
        if self.options.era == "modern":
            data = {"supported": [MODERN], "requested": params.get("protocolVersion")}
            raise Refused(-32022, "Unsupported protocol version", data)
        self.declared = params
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
        if self.options.logging:
            found["logging"] = {}
        if self.options.completions:
            found["completions"] = {}
        if self.options.tasks and self.modern:
            found["extensions"] = {TASKS: {}}
        elif self.options.tasks:
            found["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        return found

    # --- lists and what is in them ----------------------------------------------------------

    def sundry(self, method: str, params: Json) -> Json:
        lists: dict[str, tuple[str, Callable[[], list[Json]]]] = {
            "tools/list": ("tools", self.tools),
            "prompts/list": ("prompts", prompts),
            "resources/list": ("resources", resources),
        }
        if self.options.resources:
            lists["resources/templates/list"] = ("resourceTemplates", templates)
        if method in lists:
            if self.options.list_error:
                raise Refused(-32603, "the lists are lost")
            name, items = lists[method]
            return {**self.page(name, items(), params), **(hints() if self.modern else {})}
        if method == "prompts/get" and params.get("name") == "greet":
            who = params.get("arguments", {}).get("who", "nobody")
            message = {"role": "user", "content": {"type": "text", "text": f"Greet {who}"}}
            return {"messages": [message]}
        if method == "resources/read":
            return self.read(params.get("uri", ""))
        if method in {"resources/subscribe", "resources/unsubscribe"} and not self.modern:
            return self.subscribe(method, params)
        if method == "logging/setLevel" and self.options.logging and not self.modern:
            return self.set_level(params)
        if method == "completion/complete" and self.options.completions:
            start: str = params["argument"]["value"]
            return {"completion": {"values": [start + "a", start + "b"], "x-kept": 1.0}}
        if method == "example.com/echo":
            return {"params": params}
        raise Refused(-32601, f"unknown method {method}")

    def read(self, uri: str) -> Json:
        if uri == "fake://one" or uri.startswith("fake://item/"):
            text = uri.removeprefix("fake://")
            result: Json = {"contents": [{"uri": uri, "text": text, "x-content": 1}]}
            return {**result, **(hints() if self.modern else {})}
        raise Refused(-32602 if self.modern else -32002, f"no resource {uri}", {"uri": uri})

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
        if self.options.only:
            names = self.options.only.split(",")
        names += [f"new{n}" for n in range(self.changes)]
        other: Json = {}
        if os.path.exists(self.options.words):
            with open(self.options.words) as words:
                other = json.load(words)
        invalid = [{"name": "invalid"}] if self.options.invalid else []
        return [{**tool(name), **other.get(name, {})} for name in names] + invalid

    # --- tools ------------------------------------------------------------------------------

    def call(self, number: object, params: Json) -> Json | None:
        name: str = params.get("name", "")
        arguments: Json = params.get("arguments") or {}
        while self.options.huge_line:
            write(b"x" * 65536)
        unlisted = name and name in self.options.unlisted.split(",")
        if not unlisted and name not in {one["name"] for one in self.tools()}:
            raise Refused(-32602, f"unknown tool {name}")
        work: Callable[..., Json | None] | None = getattr(self, f"tool_{name}", None)
        return self.tool_pid(number) if work is None else work(number, **arguments)


def hints() -> Json:
    return {"ttlMs": 1000, "cacheScope": "public"}


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


def templates() -> list[Json]:
    return [{"uriTemplate": "fake://item/{id}", "name": "item", "x-template": 0}]


if __name__ == "__main__":
    Server(flags()).run()
