"""Connections of the engine, and what it asks of fronts through them.

Owns: frames of one connection, requests that wait for an answer of a front, which front is asked,
what a lost front means. Never: orders (`run`), what is asked and why, carrying it out.

The engine has no way to servers of its own. A front makes each request for the owner of the run.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable

from msgspec import Raw, structs

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import (
    FRAME,
    FRAME_BYTES_MAX,
    HostAsk,
    HostDone,
    HostDrop,
    Kind,
    OrderDone,
    OrderProgress,
    RunOwner,
)
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Span

FRONT_S_MAX = 15.0
"""Seconds that a request waits for a front that is not there, such as one that starts again."""
ASKS_MAX = 4096
"""Maximum requests of one connection without an answer."""
UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Maximum bytes that wait for a peer that does not read; with more, it is closed."""
LOST = "the front ended before it answered, and the call may have happened"
"""Error of a request whose front was lost."""


class EngineLink:
    """Connection of a front, or of one that only gives orders. `front`: its name after `Hello`,
    else empty."""

    def __init__(self, sock: socket.socket) -> None:
        self.front = ""
        self._sock = sock
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[HostDone]] = {}

    async def read(self, heard: Callable[[bytes], None]) -> None:
        """Hand over the body of each frame until the connection ends. Raises OSError, TooLarge and
        what `heard` raises."""
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
            while True:
                (size,) = FRAME.unpack(await reader.readexactly(FRAME.size))
                if size > FRAME_BYTES_MAX:
                    raise TooLarge("a frame", size, FRAME_BYTES_MAX)
                heard(await reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def send(self, message: HostAsk | HostDrop | OrderProgress | OrderDone) -> None:
        """Send a message, or drop it if the connection has ended."""
        if self._writer is None or self._writer.is_closing():
            return
        body = codec.dump(message)
        if len(body) > FRAME_BYTES_MAX:
            raise TooLarge("a frame", len(body), FRAME_BYTES_MAX)
        self._writer.write(FRAME.pack(len(body)) + body)
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._writer.transport.abort()

    def close(self) -> None:
        """End the connection; requests without an answer have lost their front."""
        if self._writer is None:
            self._sock.close()
        else:
            self._writer.close()
        for future in self._asked.values():
            if not future.done():
                future.set_result(HostDone(call=0, trouble="unavailable", error=LOST, lost=True))

    def on_answer(self, done: HostDone) -> None:
        future = self._asked.get(done.call)
        if future is not None and not future.done():
            future.set_result(done)

    async def ask(self, ask: HostAsk) -> HostDone:
        """Return the answer. Cancelling drops the request at the front too. `call` is set here."""
        if len(self._asked) >= ASKS_MAX:
            most = f"{ASKS_MAX:,} requests of the engine wait for this front already"
            return HostDone(call=0, trouble="unavailable", error=most, repeatable=True)
        number = next(self._numbers)
        future: asyncio.Future[HostDone] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            self.send(structs.replace(ask, call=number))
            return await future
        except TooLarge as error:
            return HostDone(call=0, trouble="error", error=str(error), repeatable=True)
        except asyncio.CancelledError:
            self.send(HostDrop(call=number))
            raise
        finally:
            del self._asked[number]


class FrontLinks:
    """FrontLinks that are connected."""

    def __init__(self) -> None:
        self._links: dict[EngineLink, None] = {}
        self._came = asyncio.Event()

    def add(self, link: EngineLink, front: str) -> None:
        link.front = front
        self._links[link] = None
        self._came.set()

    def remove(self, link: EngineLink) -> None:
        self._links.pop(link, None)
        if not self._links:
            self._came.clear()

    def has(self, link: EngineLink | None) -> bool:
        return link in self._links

    async def any(self) -> EngineLink | None:
        """Return a front, the one that came last; None if none comes in FRONT_S_MAX."""
        if not self._links:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FRONT_S_MAX):
                    await self._came.wait()
        return next(reversed(self._links), None)


class OrderHost:
    """Way to fronts for one order, or, without a link, for runs that no client waits for.
    `operator`: the order came from a connection that is not of a front."""

    def __init__(self, fronts: FrontLinks, link: EngineLink | None = None) -> None:
        self._fronts = fronts
        self._link = link
        self.operator = link is not None and not link.front

    def send_progress(self, order: int, step: str, state: str) -> None:
        """Send the state of a step to an operator who waits for this order, if there is one."""
        if self.operator and order and self._link is not None:
            message = f"{step}: {state}"
            self._link.send(OrderProgress(id=order, message=message, step=step, state=state))

    def send_span(self, span: Span) -> None:
        """Send a span to the front of the order, or drop it if that is gone: a front of an earlier
        version cannot read it."""
        if self._link is not None and self._fronts.has(self._link):
            self._link.send(OrderProgress(id=0, span=span))

    async def ask(
        self,
        owner: RunOwner,
        kind: Kind,
        *,
        name: str = "",
        server: str = "",
        arguments: bytes = b"{}",
        meta: bytes = b"{}",
        run: str = "",
        order: int = 0,
        timeout_ms: int = 0,
        consent: bool = False,
    ) -> HostDone:
        """Return what came of a `HostAsk` with these fields. The front of the order is asked if it
        is there, else another one, which cannot ask the client of the order. Without any the
        trouble is `unavailable`, and `repeatable` is true, because nothing has happened."""
        own = self._fronts.has(self._link)
        link = self._link if own else await self._fronts.any()
        if link is None:
            error = f"no front is there to make the request; none came within {FRONT_S_MAX:g} s"
            return HostDone(call=0, trouble="unavailable", error=error, repeatable=True)
        return await link.ask(
            HostAsk(
                call=0, owner=owner, kind=kind, name=name, server=server, arguments=Raw(arguments),
                meta=Raw(meta), run=run, order=order if own else 0, timeout_ms=timeout_ms,
                consent=consent,
            )
        )  # fmt: skip
