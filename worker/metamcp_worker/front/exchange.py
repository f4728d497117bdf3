"""One HTTP request of a client and the one answer that it gets.

Owns: writing an answer as JSON, as nothing, or as a stream once there is progress to tell. Never:
eras, methods, deciding what to answer.
"""

import asyncio
from collections.abc import Mapping, Sequence

from metamcp_worker.asgi import CONNECTION, Peer, Receive, Scope, Send
from metamcp_worker.errors import Code
from metamcp_worker.front import answers
from metamcp_worker.front.calls import Answer, Call
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
        self.peer.on_lost = stream.end
        try:
            await self._streams.stand(Standing(stream, endpoint, self._address, news))
        finally:
            self.peer.on_lost = None

    def check_stream(self) -> None:
        """Raises Declined if this client cannot have a standing stream."""
        if not self.facts.accepts_sse:
            raise Declined(406, "Accept must allow text/event-stream.", "accept")
        if self._streams.full(self._address):
            message = "There are as many streams as there may be; try again later."
            raise Declined(503, message, "streams", Code.OVERLOADED)

    def put(self, event: bytes) -> bool:
        """Tell something before the answer: with the first event the answer becomes a stream.
        False if this client reads none."""
        if self._stream is None:
            if not self.facts.accepts_sse:
                return False
            self._stream = self.stream()
            self._running = asyncio.get_running_loop().create_task(self._stream.run())
        self._stream.put(event)
        return True

    async def finish(self, status: int, body: bytes) -> None:
        """The one answer to the request, behind what was told before it."""
        if self._stream is None:
            await self.json(status, body)
        else:
            self._stream.farewell = answers.event(body)
            await self.settle()

    async def settle(self) -> None:
        """The request is over: nothing of it goes on."""
        if self._stream is not None and self._running is not None:
            self._stream.end()
            await self._running

    async def relay(self, call: Call, raw_id: bytes, statuses: Mapping[int, int]) -> None:
        """What the call brings, when it does. `statuses`: by the code of an error, 200 for
        others."""
        answer = await outcome(call)
        code = 0 if answer is None else answer.code
        await self.finish(statuses.get(code, 200) if code else 200, message(raw_id, answer))


async def outcome(call: Call) -> Answer | None:
    """What the call brings, when it does; None: it was cancelled."""
    try:
        return await call.answer
    except asyncio.CancelledError:
        if not call.answer.cancelled():
            raise  # not the call was cancelled but this request
        return None


def message(raw_id: bytes, answer: Answer | None) -> bytes:
    """The JSON-RPC message for what a call brought; None: it was cancelled."""
    if answer is None:
        return answers.error(raw_id, answers.REQUEST_CANCELLED, "Request cancelled")
    if answer.code:
        return answers.raw_error(raw_id, answer.body)
    return answers.result(raw_id, answer.body)
