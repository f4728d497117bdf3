"""One connection to a gateway, and the request that is under way on it.

Owns: what of a failed request may have been processed, back-pressure towards the gateway, how long
an answer may take. Never: which connection (`plain`), what HTTP looks like (`answers`), retries.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Protocol, cast

from metamcp_worker.bridge.answers import Answer, Malformed, Reader
from metamcp_worker.http import tcp
from metamcp_worker.http.fetch import Broken, Unreachable
from metamcp_worker.http.response import Incoming
from metamcp_worker.ipc.errors import MetaMCPError

AHEAD_BYTES = 64 * 1024
"""Of an answer that nobody takes: then nothing more is read."""

_REDIRECTS = frozenset({301, 302, 307, 308})

Then = Callable[["Reply | MetaMCPError"], None]
"""Called once: with the head of an answer, or with Unreachable or Broken. It does not raise."""


class Redirected(Unreachable):
    """The request is for another address: nothing was processed."""


class Owner(Protocol):
    """What connections belong to. It is called in sentences what `str` makes of it."""

    def made(self, line: "Line") -> None: ...

    def rest(self, line: "Line") -> None:
        """Another request may use it."""

    def gone(self, line: "Line") -> None:
        """Perhaps not for the first time."""


class Reply(Incoming):
    """One request and its answer."""

    def __init__(self, line: "Line", answer: Answer) -> None:
        self.answer = answer
        self._line: Line | None = line
        self._origin = str(line.owner)
        self._failure: Broken | None = None
        self._more: asyncio.Future[None] | None = None

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def whole(self) -> bool:
        """Is all of the body there?"""
        return self.answer.whole

    @property
    def origin(self) -> str:
        return self._origin

    def header(self, name: str) -> str:
        return self.answer.header(name)

    async def piece(self, *, wait_s: float | None) -> bytes:
        while not self.answer.held:
            if self._failure is not None:
                raise self._failure
            if self.answer.whole:
                return b""
            self._more = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(wait_s):
                    await self._more
            except TimeoutError:
                raise Broken(f"{self._origin} sent nothing for {wait_s:g} s") from None
        data = self.answer.take()
        if self._line is not None:
            self._line.taken()
        return data

    def cancel(self) -> None:
        """Nobody wants it any more; before its end this closes the connection, so that the gateway
        learns of it. Nothing is called back then."""
        line, self._line = self._line, None
        if line is not None:
            line.abort()

    async def close(self) -> None:
        self.cancel()

    # What its connection calls

    def came(self) -> None:
        more, self._more = self._more, None
        if more is not None and not more.done():
            more.set_result(None)

    def ended(self, failure: Broken | None) -> None:
        """The connection is for others now, or gone."""
        self._line = None
        self._failure = failure
        self.came()


class Line(asyncio.Protocol):
    """One connection."""

    _transport: asyncio.Transport

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.idle_since = 0.0
        self._reader = Reader()
        self._readable = select.poll()
        self._reply: Reply | None = None
        self._then: Then | None = None
        self._written: Callable[[], None] | None = None
        self._sent = False  # is all of the request with the kernel?
        self._paused = False
        self._late: asyncio.TimerHandle | None = None

    @property
    def stale(self) -> bool:
        """Has the gateway closed it, perhaps without the loop having looked?"""
        return self._transport.is_closing() or bool(self._readable.poll(0))

    def send(
        self, said: bytes, answer_s: float, then: Then, written: Callable[[], None] | None
    ) -> Reply:
        reply = self._reply = Reply(self, self._reader.expect())
        self._then = then
        self._written = written
        self._sent = False
        self._late = asyncio.get_running_loop().call_later(answer_s, self._too_late, answer_s)
        self._transport.write(said)
        if not self._transport.get_write_buffer_size():
            self.resume_writing()
        return reply

    def taken(self) -> None:
        """Somebody has read what was there."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close it without a word to anybody."""
        self._forget()
        self._transport.abort()

    def drop(self) -> None:
        """Close it; what is under way breaks."""
        self._fail(f"the connection to {self.owner} was closed")

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's, so no isinstance here.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # then it says when all is written
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.owner.made(self)

    def resume_writing(self) -> None:
        written, self._written = self._written, None
        self._sent = True
        if written is not None:
            written()

    def eof_received(self) -> None:
        if not self._sent:
            self._transport.abort()  # or the rest would still be sent, and the request be whole

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.abort()
            return
        try:
            self._reader.feed(data)
        except Malformed as why:
            self._fail(str(why))
            return
        answer = reply.answer
        if answer.begun:
            self._begun(reply)
        if answer.whole:  # behind its head: who has enough connections closes this one
            self._ended(reply)
        elif answer.held_bytes > AHEAD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        reply.came()

    def connection_lost(self, exc: Exception | None) -> None:
        reply = self._reply
        try:
            self._reader.ended()
        except Malformed as why:
            self._fail(tcp.words(exc) if exc else str(why))
        else:
            if reply is not None:
                self._ended(reply)
        self._forget()

    # The request under way

    def _begun(self, reply: Reply) -> None:
        """The head is there: tell it, once."""
        then, self._then = self._then, None
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if then is None:
            return
        coding = reply.header("content-encoding").lower()
        if reply.status in _REDIRECTS and reply.header("location"):
            reply.cancel()
            then(Redirected(f"{self.owner} redirects"))
        elif coding not in {"", "identity"}:
            reply.cancel()
            what = "it compresses its answer, which it was not asked to"
            then(Broken(f"the connection to {self.owner} broke: {what}"))
        else:
            then(reply)

    def _ended(self, reply: Reply) -> None:
        self._reply = None
        reply.ended(None)
        if self._reader.reusable and self._sent and not self._transport.is_closing():
            self.owner.rest(self)
        else:
            self._transport.abort()

    def _fail(self, why: str) -> None:
        """What is under way has no answer, or not the whole of one."""
        reply, then, sent = self._reply, self._then, self._sent
        self.abort()
        if reply is None:
            return
        if then is None:
            what = f"the connection to {self.owner} broke in the middle of an answer"
            reply.ended(Broken(f"{what}: {why}"))
        elif sent:
            then(Broken(f"the connection to {self.owner} broke: {why}"))
        else:
            then(Unreachable(f"the connection to {self.owner} broke before it had all: {why}"))

    def _too_late(self, answer_s: float) -> None:
        then = self._then
        self.abort()
        if then is not None:
            then(Broken(f"{self.owner} gave no answer in {answer_s:g} s"))

    def _forget(self) -> None:
        self._reply = self._then = self._written = None
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self.owner.gone(self)
