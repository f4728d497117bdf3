"""The callers of a soak that are told things on a stream that stays: HTTP+SSE of 2024, those who
subscribe, and the bridge on stdio.

Owns: their streams, whose request an answer on one of them ends. Never: the judgment of an end
(`soak_ledger`).
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any

from tests.faults.soak_clients import (
    ABOUT,
    AGAIN_S,
    LEGACY,
    STAMP,
    Caller,
    Field,
    Question,
    call,
    message,
    modern,
)
from tests.faults.soak_ledger import ANSWER_S_MAX
from tests.faults.soak_wire import STREAM_BYTES_MAX, Broken, Wire, events

LEAVE_S_MAX = 20.0


async def told(wire: Wire, headers: dict[str, str]) -> AsyncIterator[tuple[bytes, bytes]]:
    """Each event of a stream, as (event, data). Raises OSError and EOFError."""
    rest = b""
    async for piece in wire.pieces(headers):
        whole, cut, rest = (rest + piece.replace(b"\r", b"")).rpartition(b"\n\n")
        for found in events((whole + cut).split(b"\n")):
            yield found


class Waiting(Caller):
    """A caller whose answers come elsewhere than where it asks. `_asked`: what waits for them."""

    def __init__(self, field: Field, number: int, dice: Random) -> None:
        super().__init__(field, number, dice)
        self._asked: dict[object, tuple[int, Question | None]] = {}
        self._answered = asyncio.Event()

    def expect(self, number: object, key: int, question: Question | None) -> None:
        self._answered.clear()
        self._asked[number] = (key, question)

    def answer(self, found: dict[str, Any]) -> None:
        if "method" in found:
            return
        key, question = self._asked.pop(found.get("id"), (0, None))
        if not key:
            self.ledger.stray(self.who, repr(found)[:200], time.monotonic())
        elif question is not None:
            self.judge(key, found["id"], question, found)
        elif "result" in found:
            self.ledger.right(key, time.monotonic())
        else:
            self.refused(key, found["error"])
        self._answered.set()

    def lose(self, why: str, *, cut: str) -> None:
        """Nothing that is still waited for will come."""
        for key, _ in self._asked.values():
            self.ledger.broken(key, why, cut=cut, now=time.monotonic())
        self._asked.clear()
        self._answered.set()

    async def wait(self) -> None:
        """For the answer that is expected, or for the end of what it would come on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S_MAX):
                await self._answered.wait()


NOT_THERE = frozenset({404, 503})
"""Status of a post whose stream ended, or whose front stands still or ended just now."""


class Sse(Waiting):
    """HTTP+SSE of revision 2024-11-05: posts on one connection, answers on another."""

    kind = "sse2024"

    def __init__(self, field: Field, number: int, dice: Random) -> None:
        super().__init__(field, number, dice)
        self._stream = Wire(field.port)
        self._reading: asyncio.Task[None] | None = None
        self._where = ""

    async def once(self) -> None:
        if self._reading is None or self._reading.done():
            await self._begin()
            return
        question = self.question()
        key = self.ask(question)
        await self._post(self.sequence, key, question, call(self.sequence, question))

    async def quit(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._stream.drop()
        await super().quit()

    async def _begin(self) -> None:
        """A stream, and the session on it."""
        self._stream.drop()
        self._where = ""
        self._answered.clear()
        self._reading = asyncio.create_task(self._read())
        await self.wait()
        if not self._where:
            await self.field.pause(AGAIN_S)
            return
        self.sequence += 1
        key = self.ledger.ask(self.who, self.kind, "", "initialize", time.monotonic())
        hello = message(self.sequence, "initialize", {"protocolVersion": "2024-11-05", **ABOUT})
        await self._post(self.sequence, key, None, hello)

    async def _post(self, number: int, key: int, question: Question | None, body: bytes) -> None:
        self.expect(number, key, question)
        since = time.monotonic()
        try:
            headers = {"Content-Type": "application/json"}
            answer = await self.wire.request("POST", self._where, headers, body)
        except Broken as why:
            # It may have arrived all the same: the stream begins anew, so that nothing is left.
            cut = self.ledger.was_cut(self.wire.port, self.wire.opened, since, time.monotonic())
            self.lose(f"the post: {why}", cut=cut or self._cut(since))
            self._stream.drop()
            return
        if answer.status in NOT_THERE and (cut := self._cut(since)):
            self.lose("its stream was cut", cut=cut)
            self._stream.drop()
        elif answer.status != 202:
            self.lose(f"{answer.status} {answer.body[:200]!r}", cut="")
        else:
            await self.wait()

    def _cut(self, since: float) -> str:
        stream = self._stream
        return self.ledger.stream_was_cut(stream.port, stream.opened, since, time.monotonic())

    async def _read(self) -> None:
        """The stream, to its end."""
        since, why = time.monotonic(), "the stream ended"
        try:
            status, headers = await self._stream.begin(
                "GET", "/sse", {"Accept": "text/event-stream"}
            )
            if status != 200:
                raise Broken(f"the status {status}")
            async for event, data in told(self._stream, headers):
                if event == b"endpoint":
                    self._where = data.decode()
                    self._answered.set()
                else:
                    self.answer(json.loads(data))
        except (Broken, OSError, EOFError) as error:
            why = f"the stream: {error!r}"
            if not self._where and not self._cut(since):
                self.ledger.stray(self.who, why, time.monotonic())
        finally:
            self.lose(why, cut=self._cut(since))


class Subscriber(Caller):
    """Listens for changed lists; its request lasts as long as the stream."""

    kind = "listen"
    once_s_max = None

    async def once(self) -> None:
        self.sequence += 1
        params: dict[str, Any] = {"notifications": {"toolsListChanged": True}, "_meta": STAMP}
        body = message(self.sequence, "subscriptions/listen", params)
        key = self.ledger.ask(self.who, self.kind, "", "subscriptions/listen", time.monotonic())
        reading = asyncio.create_task(self._read(key, body))
        over = asyncio.create_task(self.field.over.wait())
        await asyncio.wait([reading, over], return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not reading.done():
            reading.cancel()
            await asyncio.wait([reading])
        if key in self.ledger.open:  # all is over before the stream began
            self.ledger.left(key, time.monotonic())
        self.wire.drop()

    async def _read(self, key: int, body: bytes) -> None:
        since, wire = time.monotonic(), self.wire
        heard, why = False, "the end of its stream"
        try:
            status, headers = await wire.begin("POST", "/mcp", modern("subscriptions/listen"), body)
            if status != 200:
                raise Broken(f"the status {status}")
            async for _, data in told(wire, headers):
                found = json.loads(data)
                if not heard and found.get("method") != "notifications/subscriptions/acknowledged":
                    self.ledger.wrong(key, repr(data[:200]), time.monotonic())
                    return
                if not heard:
                    self.ledger.right(key, time.monotonic())
                heard = True
        except (Broken, OSError, EOFError) as error:
            why = repr(error)
        now = time.monotonic()
        cut = self.ledger.stream_was_cut(wire.port, wire.opened, since, now)
        if not heard:
            self.ledger.broken(key, why, cut=cut, now=now)
        elif not cut:
            self.ledger.stray(self.who, why, now)


class Bridged(Waiting):
    """A client of `metamcp connect`: a process, and lines on its pipes."""

    kind = "stdio"

    def __init__(self, field: Field, number: int, dice: Random, command: list[str]) -> None:
        super().__init__(field, number, dice)
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._modern = bool(number % 2)

    async def once(self) -> None:
        if self._process is None:
            await self._start()
        question = self.question()
        key = self.ask(question)
        self.expect(self.sequence, key, question)
        await self._tell(call(self.sequence, question, STAMP if self._modern else None))

    async def quit(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        if code:
            self.ledger.stray(self.who, f"the exit code {code} of its bridge", time.monotonic())
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=STREAM_BYTES_MAX,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        if not self._modern:
            self.sequence += 1
            key = self.ledger.ask(self.who, self.kind, "", "initialize", time.monotonic())
            self.expect(self.sequence, key, None)
            hello = {"protocolVersion": LEGACY[0], **ABOUT}
            await self._tell(message(self.sequence, "initialize", hello))
            await self._tell(message(None, "notifications/initialized", {}))

    async def _tell(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the bridge ended: its reader says so
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()
        await self.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self.answer(json.loads(line))
        self.lose("the bridge ended", cut="")
