"""HTTP request of a client and its one answer.

Owns: writing an answer as JSON, as an empty response, or as a stream once there is progress to
send. Never: eras, methods, deciding what to answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from metamcp_worker.catalog.views import View
from metamcp_worker.front import answers
from metamcp_worker.front.calls import Call, CallAnswer
from metamcp_worker.front.guard import RequestFacts
from metamcp_worker.front.streams import Stream, Streams, WaitingStream
from metamcp_worker.front.wrong_front import NOBODY, Elsewhere
from metamcp_worker.http import http1
from metamcp_worker.http.http1 import Headers
from metamcp_worker.http.requests import HttpRequest, Pending
from metamcp_worker.ipc.errors import Code

_OK = http1.head(200, [http1.JSON])


class Declined(Exception):
    """Raised for a request that is refused by HTTP, not by the protocol. `reason`: a word for the
    counters."""

    def __init__(
        self, status: int, message: str, reason: str, code: int = Code.INVALID_REQUEST
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.code = code


class Exchange(HttpRequest):
    """Request of a client of a front. `facts`: as the header policy found them; `streams`: of the
    front; `on_over`: called once, when the request and all work for it are over."""

    waits = True
    facts: RequestFacts
    streams: Streams
    on_over: Callable[[], None]
    _expecting = False
    _stream: Stream | None = None
    _running: asyncio.Task[None] | None = None

    # --- its course -----------------------------------------------------------------------------

    def attend(self, step: Callable[[], Pending]) -> Pending:
        """Take a step towards the answer, and return its rest."""
        rest: Pending = None
        try:
            rest = step()
        finally:
            if rest is None and not self._expecting:
                self._over()
        return None if rest is None else self._until(rest)

    def expect(self, call: Call, then: Callable[[CallAnswer | None], Pending]) -> Pending:
        """Call `then` with the answer of the call (None: it was cancelled). No task is needed,
        because nothing has to be awaited until then."""
        self._expecting = True
        call.answer.add_done_callback(partial(self._brought, then))
        return None

    def _brought(
        self, then: Callable[[CallAnswer | None], Pending], brought: asyncio.Future[CallAnswer]
    ) -> None:
        self._expecting = False
        answer = None if brought.cancelled() else brought.result()
        self.run(partial(self.attend, partial(then, answer)))

    async def _until(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        finally:
            if not self._expecting:
                self._over()

    def _over(self) -> None:
        if self._stream is not None:
            self._stream.end()  # also if the code that was to answer has failed
        self.on_over()

    # --- the answer -----------------------------------------------------------------------------

    def json(self, status: int, body: bytes, headers: Headers = ()) -> None:
        usual = status == 200 and not headers
        head = _OK if usual else http1.head(status, [http1.JSON, *headers])
        self.answer(head, body)

    def page(self, body: bytes) -> None:
        """Answer with a page for a browser."""
        kind = (b"content-type", b"text/html; charset=utf-8")
        self.answer(http1.head(200, [kind, (b"cache-control", b"no-store")]), body)

    def result(self, raw_id: bytes, body: bytes) -> Pending:
        """Answer with a raw result, as `finish` does, but without a copy: a result may be large."""
        if self._stream is not None:
            return self.finish(200, answers.result(raw_id, body))
        self.answer(_OK, answers.HEAD, raw_id, answers.MIDDLE, body, answers.TAIL)
        return None

    def empty(self, status: int, headers: Headers = ()) -> None:
        self.answer(http1.head(status, headers))

    def stream(self, farewell: bytes = b"") -> Stream:
        return Stream(self.streams, self, farewell)

    async def stand(self, stream: Stream, view: View, news: Mapping[str, bytes]) -> None:
        """Answer with a stream of these notifications, until one side ends it."""
        self.watch(stream.end)
        address = self.address
        try:
            await self.streams.stand(
                WaitingStream(stream, view.endpoint, view.principal, address, news)
            )
        finally:
            self.unwatch()

    async def follow(self, stream: Stream) -> None:
        """Answer with a stream that other code fills and ends."""
        self.watch(stream.end)
        try:
            await stream.run()
        finally:
            self.unwatch()

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` if the client goes away."""
        self.on_lost = on_lost

    def unwatch(self) -> None:
        """Do not call `on_lost` any more."""
        self.on_lost = None

    def check_stream(self) -> None:
        """Raise Declined if this client cannot have a standing stream."""
        if not self.facts.accepts_sse:
            raise Declined(406, "Accept must allow text/event-stream.", "accept")
        if self.streams.full(self.address):
            message = "There are as many streams as there may be; try again later."
            raise Declined(503, message, "streams", Code.OVERLOADED)

    def check_staying(self, *, movable: bool = True) -> None:
        """Raise Declined if this front ends, so no stream can stand here; or Elsewhere if another
        front may have the stream. `movable`: the stream belongs to nothing in this front."""
        if self.streams.closed:
            message = "This process of the gateway is ending; try again in a moment."
            declined = Declined(503, message, "streams", Code.OVERLOADED)
            raise Elsewhere("", NOBODY, declined) if movable and self.streams.heirs else declined

    def begin_stream(self) -> Stream | None:
        """Turn the answer into a stream, if it is not a stream yet, and return the stream; None if
        this client does not read streams."""
        if self._stream is None and self.facts.accepts_sse:
            self._stream = self.stream()
            self._running = asyncio.get_running_loop().create_task(self._stream.run())
        return self._stream

    def put(self, event: bytes) -> bool:
        """Send an event before the answer; the first event turns the answer into a stream. Returns
        False if this client does not read streams."""
        stream = self.begin_stream()
        if stream is None:
            return False
        stream.put(event)
        return True

    def finish(self, status: int, body: bytes) -> Pending:
        """Send the one answer to the request, after the events that were sent before it."""
        if self._stream is None:
            self.json(status, body)
            return None
        self._stream.close(answers.event(body))
        return self.settle()

    async def settle(self) -> None:
        """End the stream of a request that is over, and wait until it has ended."""
        if self._stream is not None and self._running is not None:
            self._stream.end()
            await self._running


async def outcome(call: Call) -> CallAnswer | None:
    """Wait for the answer of the call; None if the call was cancelled."""
    try:
        return await call.answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not call.answer.cancelled() or (task is not None and task.cancelling()):
            raise  # this request was cancelled, and with it the future that it waited for
        return None


def message(raw_id: bytes, answer: CallAnswer | None) -> bytes:
    """Return the JSON-RPC message for the answer of a call; None: the call was cancelled."""
    if answer is None:
        return answers.error(raw_id, answers.REQUEST_CANCELLED, "Request cancelled")
    if answer.code:
        return answers.raw_error(raw_id, answer.body)
    return answers.result(raw_id, answer.body)
