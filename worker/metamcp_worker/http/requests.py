"""HTTP request as an application sees it, and its answer.

Owns: waiting for the body, the answer at once or as a stream, noticing that the client went away,
the bytes of a whole answer, the answer to the client when the application fails. Never: the bytes
of head and request (`request_head`), limits, the rest of the connection (`connection`).
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVarTuple, Unpack

from metamcp_worker.http import request_head
from metamcp_worker.http.request_head import Head, MovedConnection
from metamcp_worker.ipc.errors import Code, TooLarge

log = logging.getLogger("metamcp.http")

Given = TypeVarTuple("Given")

COPY_BYTES_MAX: Final = 64 * 1024
"""Maximum bytes of parts that are copied together; sending larger parts apart costs less."""
_FAILED = request_head.head(500, [request_head.JSON])
_FAILURE = request_head.error_body(
    Code.INTERNAL_ERROR, "The gateway failed to handle this request."
)

Pending = Awaitable[None] | None
"""Work of a handler or step that is still to be awaited; None if it is done."""


class RequestConnection(Protocol):
    """Connection of a request. `hops`: how often it has moved for this request; `address`: of its
    client, empty if it has none; `tasks`: of the server, for requests that wait."""

    transport: asyncio.Transport
    hops: int
    address: str
    tasks: set[asyncio.Task[None]]

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection speaks TLS, so that it cannot move."""
        ...

    def on_answer_sent(self) -> None:
        """Note that the answer has been given to the socket."""
        ...

    def throttle(self) -> None:
        """Read on, unless what was read has to wait."""
        ...

    async def writable(self) -> None:
        """Wait until the client has read most of what was sent."""
        ...

    def last_words(self, head: bytes, body: bytes) -> None:
        """Answer, read nothing more, and close when the client stops sending."""
        ...

    def leave(self, request: "HttpRequest", body: bytes) -> MovedConnection | None:
        """See `HttpRequest.leave`."""
        ...


class HttpRequest:
    """Request of a client. `head`: request line and headers; `whole`: the body is there; `begun`,
    `complete`: state of the answer; `lost`: no client reads an answer any more; `keeps_alive`: the
    connection stays open after it; `sent`: bytes of an answer in pieces. `on_lost`: called once if
    the client goes before the answer is complete."""

    whole = False
    begun = False
    complete = False
    lost = False
    wanted = False
    on_lost: Callable[[], None] | None = None
    size = 0
    sent = 0
    _chunked = True
    _body: bytes | list[bytes] = b""
    _news: asyncio.Future[None] | None = None

    def __init__(self, line: RequestConnection, head: Head, body: bytes | None = None) -> None:
        if body is not None:  # it came with the head
            self._body, self.size, self.whole = body, len(body), True
        self.head = head
        self.keeps_alive = head.keeps_alive
        self._line = line

    @property
    def address(self) -> str:
        """Address of the client, empty if it has none."""
        return self._line.address

    @property
    def hops(self) -> int:
        """How often the connection has moved for this request."""
        return self._line.hops

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection speaks TLS, so that it cannot move to another process."""
        return self._line.is_encrypted

    # --- the body -------------------------------------------------------------------------------

    def take(self) -> bytes:
        """Return the whole body and do not keep it any longer."""
        body, self._body = self._body, b""
        return body if isinstance(body, bytes) else b"".join(body)

    @property
    def came_so_far(self) -> bytes:
        """Bytes of the body that have come so far."""
        return self._body if isinstance(self._body, bytes) else b"".join(self._body)

    async def body(self, bytes_max: int = sys.maxsize) -> bytes | None:
        """Wait for the whole body and take it; None if the client went away. Raises TooLarge."""
        if self.head.awaits and not self.whole and not self.lost:
            self._line.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.wanted = True
        self._line.throttle()
        while not self.whole and not self.lost and self.size <= bytes_max:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self.lost:
            return None
        if self.size > bytes_max:
            raise TooLarge("the body", self.size, bytes_max)
        return self.take()

    # --- the answer -----------------------------------------------------------------------------

    def answer(self, head: bytes, *body: bytes) -> None:
        """Send a whole answer at once. `head`: status line and headers, without the length; `body`:
        in any number of parts."""
        if self.lost:
            return
        assert not self.begun, "a request has one answer"
        self.begun = True
        bare = self.head.method == "HEAD"
        parts = whole(head, body, last=not self.keeps_alive, bare=bare)
        if len(parts) == 1:
            self._line.transport.write(parts[0])
        else:
            self._line.transport.writelines(parts)
        self._complete()

    def last(self, head: bytes, body: bytes) -> None:
        """Answer without reading the rest of the body, and close the connection. `head`: as for
        `answer`."""
        if not self.lost:
            self.begun = True
            self._line.last_words(head, body)

    def begin(self, head: bytes) -> None:
        """Begin an answer that comes in pieces. `head`: as for `answer`."""
        if self.lost:
            return
        assert not self.begun, "a request has one answer"
        self.begun = True
        self._chunked = self.head.version == "1.1"
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        end = b"\r\n" if self.keeps_alive else b"connection: close\r\n\r\n"
        self._line.transport.write(b"".join((head, framing, end)))

    async def send(self, piece: bytes) -> None:
        """Send a piece of the answer, as soon as the client has read most of the earlier pieces."""
        if not self.lost:
            await self._line.writable()
        if piece and not self.lost:
            parts = (b"%x\r\n" % len(piece), piece, b"\r\n") if self._chunked else (piece,)
            data = b"".join(parts)
            self.sent += len(data)
            self._line.transport.write(data)

    def end(self) -> None:
        """End the answer after its last piece."""
        if not self.lost:
            if self._chunked:
                self._line.transport.write(b"0\r\n\r\n")
            self._complete()

    def abort(self) -> None:
        """Cut the connection without sending what waits."""
        self._line.transport.abort()

    def leave(self, body: bytes) -> MovedConnection | None:
        """Take the connection out of this process before the request is answered. `body`: the whole
        body of the request. Returns None if the connection cannot leave now."""
        return self._line.leave(self, body)

    # --- its course -----------------------------------------------------------------------------

    def run(self, step: Callable[[Unpack[Given]], Pending], *arguments: *Given) -> None:
        """Run a step of the application for the request now, and await what it returns. A failure
        becomes an answer and one line in the log, so that no other request is affected."""
        try:
            pending = step(*arguments)
        except Exception as error:  # noqa: BLE001 - the root of a request
            self.on_step_end()
            self._fail(error)
            return
        if pending is None:
            self.on_step_end()
            return
        task = asyncio.get_running_loop().create_task(self._await(pending))
        self._line.tasks.add(task)
        task.add_done_callback(self._line.tasks.discard)

    def on_step_end(self) -> None:
        """Note that a step has ended, well or not, and nothing of it is awaited any more."""

    async def _await(self, pending: Awaitable[None]) -> None:
        try:
            try:
                await pending
            finally:
                self.on_step_end()
        except asyncio.CancelledError:
            self.abort()  # the end of a drain; this is the root of the task
        except Exception as error:  # noqa: BLE001 - the root of a task
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        log.error("request failed", exc_info=error)
        if not self.begun:
            self.keeps_alive = False
            self.answer(_FAILED, _FAILURE)
        elif not self.complete:
            self.abort()

    def _complete(self) -> None:
        self.complete = True
        self._body = b""
        if not self.keeps_alive:
            self._line.transport.close()
        self._line.on_answer_sent()

    # --- called by the connection ---------------------------------------------------------------

    def came(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if not isinstance(self._body, list):
            self._body = []
        self._body.append(piece)
        self.size += len(piece)
        self._wake()

    def came_to_its_end(self) -> None:
        self.whole = True
        self._wake()

    def was_lost(self) -> None:
        """Note that the client is gone, or that the connection moved to another process."""
        self.lost = True
        self._wake()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


Handler = Callable[[HttpRequest], Pending]
"""Application. The server calls it when the head of a request is there and every earlier request of
the connection is answered; by then most bodies are there, too. A returned awaitable is awaited;
None: the application has answered, or will do so at a later event."""


def whole(head: bytes, body: Sequence[bytes], *, last: bool, bare: bool = False) -> Sequence[bytes]:
    """Return a whole HTTP answer: one part if it is small, else the parts that it came in. `head`:
    without the length; `last`: the connection closes after it; `bare`: leave out the body, for a
    HEAD request."""
    size = len(body[0]) if len(body) == 1 else sum(map(len, body))
    end = b"connection: close\r\n\r\n" if last else b"\r\n"
    if not size and head.startswith(b"HTTP/1.1 204 "):
        return (head + end,)
    length = b"content-length: %d\r\n" % size
    if size > COPY_BYTES_MAX:
        return (head, length, end, *(() if bare else body))
    text = b"" if bare else body[0] if len(body) == 1 else b"".join(body)
    return (b"".join((head, length, end, text)),)
