"""Transport by HTTP+SSE of 2024-11-05, to servers older than streamable HTTP.

Owns: the one stream on which all messages come, the endpoint that it names, the order of the first
messages. Never: the meaning of a message.

The stream is the session, and its end counts as the end of the server. Messages go to an endpoint
that the server names first. The endpoint must be of the same origin, or a server could make the
gateway send messages, credentials included, to any place.
"""

import asyncio
import time

from metamcp_worker.child import http_exchange, request_headers
from metamcp_worker.child.actions import Drop, Fail, ServerRequest
from metamcp_worker.child.http_exchange_io import OPEN_S_MAX, tell
from metamcp_worker.child.http_transport import Body, HttpTransport, RequestRefused
from metamcp_worker.http.fetch import Broken, Response, Unreachable
from metamcp_worker.http.sse import FIELDS_BYTES_MAX, EventReader, SseEvent
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, MetaMCPError, TooLarge
from metamcp_worker.oauth.challenge import NotAuthorized

ENDPOINT_BYTES_MAX = 8192
"""Maximum bytes of the endpoint's URL; servers do not take longer URLs."""


class Sse2024:
    """Protocol of one server. `because`: why this protocol was chosen, if another one was tried
    before."""

    def __init__(self, link: HttpTransport, because: str = "") -> None:
        self._link = link
        self._because = because
        self._endpoint = ""
        self._named: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link.start("stream", self._listen)

    def request(self, request: ServerRequest) -> None:
        work = self._undiscovered if request.method == "server/discover" else self._post
        self._link.ask(request.key, request.line, lambda: work(request))

    def write(self, line: bytes, via: int) -> bool:
        if not self._greeted.done() and codec.envelope(line).method == "notifications/initialized":
            return self._link.tell(line, lambda: self._greet(line))
        return self._link.tell(line, lambda: self._send(line))

    def drop(self, drop: Drop) -> bool:
        return self._link.tell(drop.line, lambda: self._cancel(drop))

    def tick(self, now: float) -> None:
        """Do nothing: this protocol has no work that is due at a time."""

    async def farewell(self) -> None:
        """Do nothing: the end of the stream is the goodbye."""

    def doubt(self) -> None:
        """Do nothing: the end of the stream shows that a server is gone."""

    # --- to the server ----------------------------------------------------------------------

    async def _undiscovered(self, request: ServerRequest) -> None:
        """Refuse `server/discover`, because modern servers do not speak this protocol, and older
        ones may fail on the request. Raises RequestRefused."""
        why = "is spoken to by HTTP+SSE, which has no server/discover"
        raise RequestRefused(self._link.faults.body(Code.METHOD_NOT_FOUND, why))

    async def _post(self, request: ServerRequest) -> None:
        if request.method != "initialize":
            await asyncio.shield(self._greeted)
        status = await self._sent(request.line)
        if status >= 300:
            raise RequestRefused(http_exchange.trouble(self._link.faults, status), status)

    async def _greet(self, line: bytes) -> None:
        """Send `notifications/initialized`, and let the requests go that wait for that."""
        await self._send(line)
        self._greeted.set_result(None)

    async def _send(self, line: bytes) -> None:
        try:
            status = await self._sent(line)
        except MetaMCPError as error:
            self._link.warn(f"a notification or an answer to it was lost: {error}")
            return
        if status >= 300:
            why = http_exchange.named(status)
            self._link.warn(f"it refused a notification, or an answer to it: {why}")

    async def _cancel(self, drop: Drop) -> None:
        """Send a cancellation after its request, or the server would not know the id."""
        await self._link.ended(drop.key)
        await self._send(drop.line)

    async def _sent(self, line: bytes) -> int:
        """Send a message and return the status. Some servers answer only when they are done with
        the request."""
        await asyncio.shield(self._named)
        answer_s = max(OPEN_S_MAX, self._link.spec.timeout_s)
        return await tell(
            self._link, line, request_headers.MESSAGE, answer_s=answer_s, url=self._endpoint
        )

    # --- from the server --------------------------------------------------------------------

    async def _listen(self) -> None:
        """Read the stream until its end, which is the end of the server."""
        try:
            response = await self._link.origin.send(
                "GET", {"Accept": request_headers.EVENTS}, answer_s=OPEN_S_MAX
            )
            async with Body(self._link.intake, response) as body:
                if response.status != 200 or response.media_type != request_headers.EVENTS:
                    self._link.lose(self._no_stream(response))
                    return
                await self._events(body)
        except NotAuthorized as error:
            self._link.lose(Fail("authorization", f"it {error}"))
        except (Unreachable, Broken) as error:
            self._link.lose_touch(error, "has no event stream")
        except TooLarge as error:
            self._link.lose(Fail("limit", f"it sent too much: {error}"))
        else:
            self._link.lose(Fail("exit", "it ended its event stream"))

    async def _events(self, body: Body) -> None:
        reader = EventReader(self._link.intake.message_bytes + FIELDS_BYTES_MAX)
        while piece := await body.piece(wait_s=None if self._named.done() else OPEN_S_MAX):
            self._take(reader.feed(piece))
            self._link.noise(reader)
            body.holds(reader.held_bytes)

    def _take(self, events: list[SseEvent]) -> None:
        """Pass on these events, in a separate function, because the variable of a loop would keep
        the last event in memory until the next one comes."""
        for event in events:
            if event.event == "endpoint" and not self._named.done():
                self._name(event)
            elif event.event == "message" and event.data:
                self._link.deliver(
                    http_exchange.numbered(http_exchange.one_line(event.data)), None, 0
                )

    def _name(self, event: SseEvent) -> None:
        """Take the endpoint that the server names."""
        where = event.data[:ENDPOINT_BYTES_MAX].decode(errors="replace").strip()
        try:
            self._endpoint = self._link.origin.join(where)
        except Unreachable as error:
            self._link.lose(Fail("protocol", f"it names an endpoint that is refused: {error}"))
            return
        self._named.set_result(None)

    def _no_stream(self, response: Response) -> Fail:
        status = response.status
        why = f"it {http_exchange.sentence(status)} where an event stream was expected"
        if self._because:
            why = f"{why}, and before that: {self._because}"
        wait_s = http_exchange.retry_after_s(response.header("retry-after"), time.time())
        return Fail("protocol" if status < 500 and status != 429 else "exit", why, wait_s)
