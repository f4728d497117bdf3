"""Transport by HTTP+SSE of 2024-11-05, to servers older than streamable HTTP.

Owns: the one stream on which all messages come, the endpoint that it names, the order of the first
messages. Never: the meaning of a message.

The stream is the session, and its end counts as the end of the server. Messages go to an endpoint
that the server names first. The endpoint must be of the same origin, or a server could make the
gateway send messages, credentials included, to any place.
"""

import asyncio
import time

from metamcp_worker.child import http_exchange
from metamcp_worker.child.actions import CancelRequest, Fail, ServerRequest
from metamcp_worker.child.http_exchange_io import OPEN_S_MAX, Post, hand_in, tell
from metamcp_worker.child.http_transport import Body, HttpTransport, RequestRefused, to_failure
from metamcp_worker.http import mcp_headers
from metamcp_worker.http.fetch import ConnectionBroken, Response, Unreachable
from metamcp_worker.http.sse import FIELDS_BYTES_MAX, EventReader, SseEvent
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, MetaMCPError, TooLarge
from metamcp_worker.oauth.challenge import NotAuthorized

ENDPOINT_BYTES_MAX = 8192
"""Maximum bytes of the endpoint's URL; servers do not take longer URLs."""
TRIAL_S_MAX = 5.0
"""Maximum seconds for the endpoint of a server that may be of another protocol: servers of
streamable HTTP may have an event stream, too, and name no endpoint on it."""


class Sse2024:
    """Protocol of one server. `trial`: whether the server may not speak it."""

    def __init__(self, link: HttpTransport, *, trial: bool = False) -> None:
        self._link = link
        self._endpoint = ""
        self._on_trial = trial
        self._named: asyncio.Future[Fail | None] = asyncio.get_running_loop().create_future()
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link.start("stream", self._listen)

    async def try_out(self) -> Fail | None:
        """Wait for the endpoint. Return why there is none, None if there is one."""
        limit_s = min(TRIAL_S_MAX, self._link.spec.start_timeout_s / 4)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(self._named)
        except TimeoutError:
            self._link.cut("stream")
            return Fail("protocol", f"it named no endpoint within {limit_s:g} s")
        finally:
            self._on_trial = False

    def request(self, request: ServerRequest) -> None:
        work = self._refuse_discover if request.method == "server/discover" else self._post
        self._link.ask(request.key, request.line, lambda: work(request))

    def write(self, line: bytes, via: int) -> bool:
        if not self._greeted.done() and codec.envelope(line).method == "notifications/initialized":
            return self._link.tell(line, lambda: self._greet(line))
        return self._link.tell(line, lambda: self._send(line))

    def drop(self, drop: CancelRequest) -> bool:
        return self._link.tell(drop.line, lambda: self._cancel(drop))

    def tick(self, now: float) -> None:
        """Do nothing: this protocol has no work that is due at a time."""

    async def farewell(self) -> None:
        """Do nothing: the end of the stream is the goodbye."""

    def doubt(self) -> None:
        """Do nothing: the end of the stream shows that a server is gone."""

    # --- to the server ----------------------------------------------------------------------

    async def _refuse_discover(self, request: ServerRequest) -> None:
        """Refuse `server/discover`, because modern servers do not speak this protocol, and older
        ones may fail on the request. Raises RequestRefused."""
        problem = "is spoken to by HTTP+SSE, which has no server/discover"
        raise RequestRefused(self._link.faults.body(Code.METHOD_NOT_FOUND, problem))

    async def _post(self, request: ServerRequest) -> None:
        if request.method != "initialize":
            await asyncio.shield(self._greeted)
        await asyncio.shield(self._named)
        post = Post(request.key, request.line, mcp_headers.MESSAGE, b"", answer_s=self._answer_s)
        if refusal := await hand_in(self._link, post, self._endpoint):
            self._link.deliver(refusal, None, 0)

    async def _greet(self, line: bytes) -> None:
        """Send `notifications/initialized`, and let the requests go that wait for that."""
        await self._send(line)
        self._greeted.set_result(None)

    async def _send(self, line: bytes) -> None:
        try:
            status = await self._send_line(line)
        except MetaMCPError as error:
            self._link.warn(f"a notification or an answer to it was lost: {error}")
            return
        if status >= 300:
            reason = http_exchange.format_status(status)
            self._link.warn(f"it refused a notification, or an answer to it: {reason}")

    async def _cancel(self, drop: CancelRequest) -> None:
        """Send a cancellation after its request, or the server would not know the id."""
        await self._link.wait_for_task(drop.key)
        await self._send(drop.line)

    async def _send_line(self, line: bytes) -> int:
        """Send a message and return the status."""
        await asyncio.shield(self._named)
        return await tell(
            self._link, line, mcp_headers.MESSAGE, answer_s=self._answer_s, url=self._endpoint
        )

    @property
    def _answer_s(self) -> float:
        """Maximum seconds for the status of a message: some servers answer only when they are done
        with the request."""
        return max(OPEN_S_MAX, self._link.spec.timeout_s, self._link.spec.timeout_max_s)

    # --- from the server --------------------------------------------------------------------

    async def _listen(self) -> None:
        """Read the stream until its end, which is the end of the server."""
        try:
            response = await self._link.origin.send(
                "GET", {"Accept": mcp_headers.EVENTS}, answer_s=OPEN_S_MAX
            )
            async with Body(self._link.intake, response) as body:
                if response.status != 200 or response.media_type != mcp_headers.EVENTS:
                    self._lose(self._no_stream(response))
                    return
                await self._events(body)
        except NotAuthorized as error:
            self._lose(Fail("authorization", f"it {error}"))
        except (Unreachable, ConnectionBroken) as error:
            self._lose(to_failure(error, "has no event stream"))
        except TooLarge as error:
            self._lose(Fail("limit", f"it sent too much: {error}"))
        else:
            self._lose(Fail("exit", "it ended its event stream"))

    def _lose(self, failure: Fail) -> None:
        """Report that the server cannot be used, or, on trial, not by this protocol."""
        if not self._on_trial:
            self._link.lose(failure)
        elif not self._named.done():
            self._named.set_result(failure)

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
                    http_exchange.with_number_id(http_exchange.one_line(event.data)), None, 0
                )

    def _name(self, event: SseEvent) -> None:
        """Take the endpoint that the server names."""
        endpoint = event.data[:ENDPOINT_BYTES_MAX].decode(errors="replace").strip()
        try:
            self._endpoint = self._link.origin.join(endpoint)
        except Unreachable as error:
            self._lose(Fail("protocol", f"it names an endpoint that is refused: {error}"))
            return
        self._named.set_result(None)

    def _no_stream(self, response: Response) -> Fail:
        status = response.status
        message = f"it {http_exchange.sentence(status)} where an event stream was expected"
        wait_s = http_exchange.retry_after_s(response.header("retry-after"), time.time())
        return Fail("protocol" if status < 500 and status != 429 else "exit", message, wait_s)
