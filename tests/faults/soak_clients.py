"""The callers of a soak: each asks something, checks what comes, thinks for a while, asks again.

Owns: the kinds of clients over HTTP, their sessions, the words that must come back. Never: which
end of a request is a fault (`soak_ledger`), clients that misbehave (`soak_rude`), those with
streams that stay (`soak_streams`).
"""

import asyncio
import json
import time
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.faults.soak_ledger import ANSWER_S_MAX, Ledger
from tests.faults.soak_wire import Answer, Broken, Wire
from tests.live.client import MODERN
from tests.live.raw import PREFIX

LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26")
JSON_FIRST, EVENTS_FIRST = (
    "application/json, text/event-stream", "text/event-stream, application/json",
)  # fmt: skip
ABOUT: dict[str, Any] = {"capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}
STAMP: dict[str, Any] = {
    PREFIX + "protocolVersion": MODERN,
    PREFIX + "clientCapabilities": {},
    PREFIX + "clientInfo": ABOUT["clientInfo"],
}
TEXT_CHARS_MAX = 4000
MARGIN_S = 5.0
"""Beyond the longest answer: then a caller gives up."""
AGAIN_S = 0.2
"""Before a connection that broke is opened again."""


@dataclass(slots=True)
class Field:
    """What all callers share. `over`: no more requests; `think_s`: between two, on average."""

    port: int
    servers: list[str]
    ledger: Ledger
    over: asyncio.Event
    think_s: float

    async def pause(self, seconds: float) -> bool:
        """Let some time pass; True if all is over."""
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Question:
    """One call. `word` is unlike any other, and is the text of the answer."""

    server: str
    tool: str
    arguments: dict[str, Any]
    word: str

    @property
    def name(self) -> str:
        return f"{self.server}__{self.tool}"


class Caller:
    """One client. Its kind is its class; `run` is its life."""

    kind = ""
    once_s_max: float | None = ANSWER_S_MAX + MARGIN_S
    """For one request."""
    haste = 1.0
    """How many times as often as others it asks."""

    def __init__(self, field: Field, number: int, dice: Random) -> None:
        self.field, self.dice = field, dice
        self.ledger = field.ledger
        self.who = f"{self.kind}-{number}"
        self.wire = Wire(field.port)
        self.sequence: int = 0

    async def run(self) -> None:
        while not await self.field.pause(self.dice.expovariate(self.haste / self.field.think_s)):
            try:
                async with asyncio.timeout(self.once_s_max):
                    await self.once()
            except TimeoutError:  # it is in the books as overdue
                self.wire.drop()
        await self.quit()

    async def once(self) -> None:
        """One request, from its start to its end."""
        raise NotImplementedError

    async def quit(self) -> None:
        """Go away as polite clients do; nothing may be left to be read."""
        if rest := await self.wire.finish():
            self.ledger.stray(self.who, repr(rest[:200]), time.monotonic())

    def question(self) -> Question:
        self.sequence += 1
        server = self.dice.choice(self.field.servers)
        word = f"{self.who}-{self.sequence}-{self.dice.getrandbits(48):x}"
        luck = self.dice.random()
        if luck < 0.08:
            word += "x" * self.dice.randrange(TEXT_CHARS_MAX)
        if luck > 0.85:
            wait_ms = self.dice.randrange(1, 400)
            return Question(server, "slow_echo", {"text": word, "ms": wait_ms}, word)
        return Question(server, "echo", {"text": word}, word)

    def ask(self, question: Question) -> int:
        what = f"{question.name} {question.word[:40]}"
        return self.ledger.ask(self.who, self.kind, question.server, what, time.monotonic())

    async def over_http(
        self, key: int, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> Answer | None:
        """The answer; None if the connection broke, which is in the books then."""
        wire = self.wire
        since = time.monotonic()
        try:
            if not wire.is_open:
                await wire.open()
            return await wire.request(method, path, headers, body)
        except Broken as why:
            now = time.monotonic()
            cut = self.ledger.was_cut(wire.port, wire.opened, since, now)
            self.ledger.broken(key, str(why), cut=cut, now=now)
            await self.field.pause(AGAIN_S)
            return None

    def judge(self, key: int, number: object, question: Question, message: dict[str, Any]) -> None:
        """Settle a request by the message that answers it."""
        now = time.monotonic()
        if message.get("id") != number:
            self.ledger.wrong(key, f"the id {message.get('id')!r} for {number!r}", now)
        elif "error" in message:
            self.refused(key, message["error"])
        elif (found := text_of(message.get("result"))) != question.word:
            self.ledger.wrong(key, f"{found[:200]!r} for {question.word[:60]!r}", now)
        else:
            self.ledger.right(key, now)

    def refused(self, key: int, error: dict[str, Any]) -> None:
        about: dict[str, Any] = error.get("data") or {}
        server = str(about.get("server", ""))
        self.ledger.error(key, error["code"], error["message"], server, time.monotonic())


def text_of(result: Any) -> str:
    """The first text of a result, or all of it if it has none."""
    try:
        found: str = result["content"][0]["text"]
    except (KeyError, IndexError, TypeError):
        return repr(result)
    return found


def call(number: object, question: Question, meta: dict[str, Any] | None = None) -> bytes:
    params: dict[str, Any] = {"name": question.name, "arguments": question.arguments}
    if meta is not None:
        params["_meta"] = meta
    return message(number, "tools/call", params)


def message(number: object, method: str, params: dict[str, Any]) -> bytes:
    told: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(told if number is None else {**told, "id": number}).encode()


class Modern(Caller):
    """Revision 2026-07-28: no session; now and then a list."""

    kind = "modern"

    async def once(self) -> None:
        if self.dice.random() < 0.05:
            await self.list()
            return
        question = self.question()
        key = self.ask(question)
        headers = modern("tools/call", question.name)
        body = call(self.sequence, question, STAMP)
        answer = await self.over_http(key, "POST", "/mcp", headers, body)
        if answer is not None:
            for found in answer.messages():
                self.judge(key, self.sequence, question, found)

    async def list(self) -> None:
        self.sequence += 1
        now = time.monotonic()
        key = self.ledger.ask(self.who, self.kind, "", "tools/list", now)
        body = message(self.sequence, "tools/list", {"_meta": STAMP})
        answer = await self.over_http(key, "POST", "/mcp", modern("tools/list"), body)
        if answer is None:
            return
        (found,) = answer.messages()
        if "error" in found:
            self.refused(key, found["error"])
            return
        servers = {tool["name"].partition("__")[0] for tool in found["result"]["tools"]}
        now = time.monotonic()
        if self.ledger.calm - servers and not self.ledger.shaken(now, now):
            self.ledger.wrong(key, f"{self.ledger.calm - servers} are not in the list", now)
        else:
            self.ledger.right(key, now)


def modern(method: str, name: str = "") -> dict[str, str]:
    found = {
        "Content-Type": "application/json",
        "Accept": JSON_FIRST,
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
    }
    return found | ({"Mcp-Name": name} if name else {})


class Rest(Caller):
    kind = "rest"

    async def once(self) -> None:
        question = self.question()
        key = self.ask(question)
        body = json.dumps(question.arguments).encode()
        headers = {"Content-Type": "application/json"}
        answer = await self.over_http(key, "POST", f"/api/{question.name}", headers, body)
        if answer is None:
            return
        found, now = json.loads(answer.body), time.monotonic()
        if answer.status == 200 and text_of(found) == question.word:
            self.ledger.right(key, now)
        elif answer.status == 200:
            self.ledger.wrong(key, f"{answer.body[:200]!r}", now)
        else:
            error: dict[str, Any] = found.get("error", {})
            about: dict[str, Any] = error.get("data") or {}
            server = str(about.get("server", ""))
            text = f"{error.get('code')} {error.get('message')}"
            self.ledger.status(key, answer.status, text, server, now)


class Legacy(Caller):
    """A client with a session, which it keeps over whatever happens to its connections."""

    kind = "legacy"
    accept = JSON_FIRST

    def __init__(self, field: Field, number: int, dice: Random) -> None:
        super().__init__(field, number, dice)
        self.era = dice.choice(LEGACY)
        self.session = ""
        self.greeted = False

    async def once(self) -> None:
        if not self.greeted and not await self.greet():
            return
        question = self.question()
        key = self.ask(question)
        body = call(self.sequence, question)
        answer = await self.over_http(key, "POST", "/mcp", self.headers(), body)
        if answer is not None:
            self.settle(key, question, answer.messages())

    def settle(self, key: int, question: Question, messages: list[dict[str, Any]]) -> None:
        answers = [one for one in messages if "method" not in one]
        if not answers:
            self.ledger.wrong(key, f"no answer, but {messages!r}", time.monotonic())
        for found in answers:
            self.judge(key, self.sequence, question, found)

    def headers(self) -> dict[str, str]:
        found = {"Content-Type": "application/json", "Accept": self.accept}
        if self.session:
            found |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": self.era}
        return found

    async def greet(self) -> bool:
        """Open a session, unless there is one, and say that it is open."""
        if not self.session:
            self.sequence += 1
            now = time.monotonic()
            key = self.ledger.ask(self.who, self.kind, "", "initialize", now)
            body = message(self.sequence, "initialize", {"protocolVersion": self.era, **ABOUT})
            answer = await self.over_http(key, "POST", "/mcp", self.headers(), body)
            if answer is None:
                return False
            (found,) = [one for one in answer.messages() if "method" not in one]
            if answer.status != 200 or "result" not in found:
                self.ledger.wrong(key, f"{answer.status} {found}", time.monotonic())
                return False
            self.session = answer.headers["mcp-session-id"]
            self.ledger.right(key, time.monotonic())
        self.greeted = await self.short("POST", message(None, "notifications/initialized", {}), 202)
        return self.greeted

    async def short(self, method: str, body: bytes, status: int) -> bool:
        """A message that has no answer but its status."""
        now = time.monotonic()
        key = self.ledger.ask(self.who, self.kind, "", method, now)
        answer = await self.over_http(key, method, "/mcp", self.headers(), body)
        if answer is None:
            return False
        if answer.status != status:
            self.ledger.wrong(key, f"{answer.status} {answer.body[:200]!r}", time.monotonic())
            return False
        self.ledger.right(key, time.monotonic())
        return True

    async def quit(self) -> None:
        if self.session and not await self.short("DELETE", b"", 200):
            self.wire.drop()  # it was cut just then; that session ends when it has been idle
        await super().quit()


class Streaming(Legacy):
    """The same, and it wants every answer as a stream of events."""

    kind = "events"
    accept = EVENTS_FIRST
