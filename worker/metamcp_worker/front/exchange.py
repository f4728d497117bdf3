"""One HTTP request of a client and the one answer that it gets.

Owns: writing an answer as JSON, as nothing, or as a stream once there is progress to tell. Never:
eras, methods, deciding what to answer.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from metamcp_worker.asgi import CONNECTION, Peer, Receive, Scope, Send
from metamcp_worker.errors import Code
from metamcp_worker.front import answers
from metamcp_worker.front.calls import Answer, Call
from metamcp_worker.front.elsewhere import NOBODY, Elsewhere
from metamcp_worker.front.guard import Facts
from metamcp_worker.front.streams import Standing, Stream, Streams

LINGER_S = 2.0
"""How long a client may go on sending a body that was refused. Closing at once would make the
kernel throw away the refusal before the client has read it."""

Headers = Sequence[tuple[bytes, bytes]]
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_JSON = (b"content-type", b"application/json")
_CLOSE = (b"connection", b"close")


class Declined(Exception):
    """No answer of the protocol but one of HTTP. `reason`: a word for the counters."""

    def __init__(
        self, status: int, message: str, reason: str, code: int = Code.INVALID_REQUEST
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.code = code


class Exchange:
    """`facts`: what the policy found; `peer`: the connection."""

    __slots__ = ("_address", "_running", "_send", "_stream", "_streams", "facts", "peer")

    def __init__(self, scope: Scope, send: Send, facts: Facts, streams: Streams) -> None:
        self.facts = facts
        self.peer: Peer = scope[CONNECTION]
        client = scope["client"]
        self._address: str = client[0] if client else ""
        self._send = send
        self._streams = streams
        self._stream: Stream | None = None
        self._running: asyncio.Task[None] | None = None

    async def json(self, status: int, body: bytes, headers: Headers = ()) -> None:
        if status == 200 and not headers and self.peer.answer(_OK, body):
            return
        length = (b"content-length", b"%d" % len(body))
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [_JSON, length, *headers]}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def result(self, raw_id: bytes, body: bytes) -> None:
        """The same as `finish`, for a raw result: it may be large, so no copy is made of it."""
        parts = (answers.HEAD, raw_id, answers.MIDDLE, body, answers.TAIL)
        if self._stream is not None or not self.peer.answer(_OK, *parts):
            await self.finish(200, answers.result(raw_id, body))

    async def empty(self, status: int, headers: Headers = ()) -> None:
        length = () if status == 204 else ((b"content-length", b"0"),)
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*length, *headers]}
        )
        await self._send({"type": "http.response.body", "body": b""})

    async def last(self, status: int, body: bytes, receive: Receive) -> None:
        """The answer to a body that is unwelcome: said at once, closed when the client stops."""
        headers = [_JSON, (b"content-length", b"%d" % len(body)), _CLOSE]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body"):
                    pass
        except TimeoutError:
            pass
        await self._send({"type": "http.response.body", "body": b""})

    def stream(self, farewell: bytes = b"") -> Stream:
        return Stream(self._streams, self._send, self.peer, farewell)

    async def stand(self, stream: Stream, endpoint: str, news: Mapping[str, bytes]) -> None:
        """Answer with a stream that tells these news, until one side ends it."""
        self.watch(stream.end)
        try:
            await self._streams.stand(Standing(stream, endpoint, self._address, news))
        finally:
            self.unwatch(stream.end)

    async def follow(self, stream: Stream) -> None:
        """Answer with a stream that somebody else fills and ends."""
        self.watch(stream.end)
        try:
            await stream.run()
        finally:
            self.unwatch(stream.end)

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call this if the client goes."""
        self.peer.on_lost = on_lost

    def unwatch(self, on_lost: Callable[[], None]) -> None:
        """Not any more. By now the connection may belong to its next request."""
        if self.peer.on_lost == on_lost:
            self.peer.on_lost = None

    def check_stream(self) -> None:
        """Raises Declined if this client cannot have a standing stream."""
        if not self.facts.accepts_sse:
            raise Declined(406, "Accept must allow text/event-stream.", "accept")
        if self._streams.full(self._address):
            message = "There are as many streams as there may be; try again later."
            raise Declined(503, message, "streams", Code.OVERLOADED)

    def check_staying(self, *, movable: bool = True) -> None:
        """Raises Declined if this front ends, so that no stream can stand here, or Elsewhere if any
        other may have it. `movable`: it belongs to nothing that is here."""
        if self._streams.closed:
            message = "This process of the gateway is ending; try again in a moment."
            declined = Declined(503, message, "streams", Code.OVERLOADED)
            raise Elsewhere("", NOBODY, declined) if movable and self._streams.heirs else declined

    def begin(self) -> Stream | None:
        """The answer becomes a stream, if it is none yet. None if this client reads none."""
        if self._stream is None and self.facts.accepts_sse:
            self._stream = self.stream()
            self._running = asyncio.get_running_loop().create_task(self._stream.run())
        return self._stream

    def put(self, event: bytes) -> bool:
        """Tell something before the answer: with the first event the answer becomes a stream.
        False if this client reads none."""
        stream = self.begin()
        if stream is None:
            return False
        stream.put(event)
        return True

    async def finish(self, status: int, body: bytes) -> None:
        """The one answer to the request, behind what was told before it."""
        if self._stream is None:
            await self.json(status, body)
        else:
            self._stream.close(answers.event(body))
            await self.settle()

    async def settle(self) -> None:
        """The request is over: nothing of it goes on."""
        if self._stream is not None and self._running is not None:
            self._stream.end()
            await self._running


async def outcome(call: Call) -> Answer | None:
    """What the call brings, when it does; None: it was cancelled."""
    try:
        return await call.answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not call.answer.cancelled() or (task is not None and task.cancelling()):
            raise  # not the call was cancelled but this request, and what it waited for with it
        return None


def message(raw_id: bytes, answer: Answer | None) -> bytes:
    """The JSON-RPC message for what a call brought; None: it was cancelled."""
    if answer is None:
        return answers.error(raw_id, answers.REQUEST_CANCELLED, "Request cancelled")
    if answer.code:
        return answers.raw_error(raw_id, answer.body)
    return answers.result(raw_id, answer.body)
