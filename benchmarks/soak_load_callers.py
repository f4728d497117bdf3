"""The callers of a soak of load, beside those that a soak with faults has.

Owns: results of every size, progress, calls that are given up, sessions that come and go, and those
whose answers are timed. Never: what an end of a request means (`soak_ledger`), how many of each.
"""

import asyncio
import json
import subprocess
import time
from random import Random

from benchmarks.machine import CHILD
from tests.faults.soak_clients import Caller, Field, Legacy, Modern, Question, Rest, Streaming, call
from tests.faults.soak_rude import Rude
from tests.faults.soak_wire import Broken, Wire

SIZES_KIB = tuple(1 << power for power in range(11))
"""From 1 KiB to 1 MiB."""
STEPS_MAX = 12
LEAVE = 0.3
"""Of visitors who have been answered, so many close their session."""
SLOW_MS = 3000
"""Of a call that is going to be given up."""
CANCELLED = -32800
"""How the request itself is answered then, so that its connection can go on."""
TIMED_HASTE = 5.0


class Large(Modern):
    """Results of every size."""

    kind = "large"

    def question(self) -> Question:
        return sized(self)


class LargeEvents(Streaming):
    """The same, as events."""

    kind = "large events"

    def question(self) -> Question:
        return sized(self)


def sized(caller: Caller) -> Question:
    caller.sequence += 1
    kib = caller.dice.choice(SIZES_KIB)
    server = caller.dice.choice(caller.field.servers)
    return Question(server, "blob", {"kib": kib}, "x" * (kib * 1024))


class Visitor(Legacy):
    """Opens a session, asks a little, closes it, comes again."""

    kind = "visitor"

    async def once(self) -> None:
        await super().once()
        if self.greeted and self.dice.random() < LEAVE and await self.short("DELETE", b"", 200):
            self.session, self.greeted = "", False


class Progressing(Streaming):
    """Wants to know of every step; then the answer. No step may be left out, come twice, late or
    for another call."""

    kind = "progress"

    async def once(self) -> None:
        if not self.greeted and not await self.greet():
            return
        self.sequence += 1
        server, steps = self.dice.choice(self.field.servers), self.dice.randrange(1, STEPS_MAX)
        question = Question(server, "progress", {"n": steps}, f"{steps} steps")
        key = self.ask(question)
        body = call(self.sequence, question, {"progressToken": self.sequence})
        answer = await self.over_http(key, "POST", "/mcp", self.headers(), body)
        if answer is None:
            return
        *before, last = answer.messages() or [{}]
        told = [
            (one["params"]["progressToken"], one["params"]["progress"])
            for one in before
            if one.get("method") == "notifications/progress"
        ]
        if told == [(self.sequence, step) for step in range(1, steps + 1)]:
            self.judge(key, self.sequence, question, last)
        else:
            how = f"the progress {told} of {steps} steps, then {answer.status} {last}"
            self.ledger.wrong(key, how, time.monotonic())


class Canceller(Legacy):
    """Asks for what takes long, and takes it back in the same session."""

    kind = "cancel"

    def __init__(self, field: Field, number: int, dice: Random) -> None:
        super().__init__(field, number, dice)
        self._other = Wire(field.port)

    async def once(self) -> None:
        if not self.greeted and not await self.greet():
            return
        self.sequence += 1
        server = self.dice.choice(self.field.servers)
        question = Question(server, "slow_echo", {"text": "late", "ms": SLOW_MS}, "late")
        key = self.ask(question)
        asking = asyncio.create_task(
            self.over_http(key, "POST", "/mcp", self.headers(), call(self.sequence, question))
        )
        await self.field.pause(self.dice.random() * self.field.think_s)
        given_up = {"method": "notifications/cancelled", "params": {"requestId": self.sequence}}
        body = json.dumps({"jsonrpc": "2.0", **given_up}).encode()
        try:
            await self._other.request("POST", "/mcp", self.headers(), body)
        except Broken as why:
            self.ledger.stray(self.who, f"its cancellation: {why}", time.monotonic())
        answer = await asking
        if answer is None:
            return
        for found in answer.messages():
            if found.get("error", {}).get("code") == CANCELLED and found["id"] == self.sequence:
                self.ledger.right(key, time.monotonic())
            elif "method" not in found:
                self.judge(key, self.sequence, question, found)

    async def quit(self) -> None:
        self._other.drop()
        await super().quit()


class Leaver(Caller):
    """Goes away after any byte of its request, or while it waits."""

    kind = "leaver"

    def __init__(self, field: Field, number: int, dice: Random) -> None:
        super().__init__(field, number, dice)
        self._rude = Rude(field)

    async def once(self) -> None:
        await self._rude.leave(self.dice)


# --- timed ------------------------------------------------------------------------------------


class Timed(Caller):
    """Its requests are small and many, and their answers are timed. `took`: (moment, seconds)."""

    haste = TIMED_HASTE

    def __init__(self, field: Field, number: int, dice: Random) -> None:
        super().__init__(field, number, dice)
        self.took: list[tuple[float, float]] = []

    async def once(self) -> None:
        begun = time.monotonic()
        await super().once()
        self.took.append((begun, time.monotonic() - begun))

    def question(self) -> Question:
        self.sequence += 1
        server = self.dice.choice(self.field.servers)
        word = f"{self.who}-{self.sequence}-{self.dice.getrandbits(48):x}"
        return Question(server, "echo", {"text": word}, word)


class TimedModern(Timed, Modern):
    kind = "modern, timed"


class TimedLegacy(Timed, Legacy):
    kind = "legacy, timed"


class TimedRest(Timed, Rest):
    kind = "rest, timed"


class Floor(Timed):
    """Asks a server straight over its pipes: what the machine and this loop cost by themselves."""

    kind = "straight"

    async def run(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            await super().run()
        finally:
            self._process.kill()
            await self._process.wait()

    async def once(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = self.question()
        begun = time.monotonic()
        self._process.stdin.write(call(self.sequence, straight(question)) + b"\n")
        line = await self._process.stdout.readline()
        self.took.append((begun, time.monotonic() - begun))
        key = self.ask(question)
        self.judge(key, self.sequence, question, json.loads(line))

    async def quit(self) -> None:
        """There is no connection."""


def straight(question: Question) -> Question:
    """To a server that knows its tools by their own names."""
    return Unnamed(question.server, question.tool, question.arguments, question.word)


class Unnamed(Question):
    @property
    def name(self) -> str:
        return self.tool
