"""I/O of the bridge: carry out the session's actions until the client is gone.

Owns: carrying out the actions, the order in which messages leave, finding the gateway again, the
end of everything when the client is gone. Never: the meaning of a message (`session`).

Messages leave in the order in which the client wrote them: a message is sent when the one before it
is written, or after a notification, when the gateway has taken the notification. So a cancellation
never overtakes its request.

A request that finds a free connection, and whose answer is one message that comes in one read, is
handled in callbacks (`_at_once`, `_came`); every other request has a task.
"""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from metamcp_supervisor.bridge.http_client import (
    GatewayReply,
    PlainHttpClient,
    Trust,
    allow,
    build_client,
)
from metamcp_supervisor.bridge.http_requests import (
    Action,
    Failure,
    Send,
    StopExchange,
    WarnPeople,
    WriteLine,
)
from metamcp_supervisor.bridge.pipes import (
    LINE_BYTES_MAX,
    InputPipe,
    Output,
    OverlongInput,
    run_in_thread,
)
from metamcp_supervisor.bridge.session import BridgeSession
from metamcp_worker.http import sse
from metamcp_worker.http.fetch import ConnectionBroken, Origin, Response, TlsFailed, Unreachable
from metamcp_worker.http.mcp_headers import EVENTS
from metamcp_worker.ipc.errors import MetaMCPError, TooLarge
from metamcp_worker.runtime import loop

ANSWER_S = 24 * 3600.0
"""Seconds for the gateway to answer, or to send something on a stream. The gateway limits calls
itself; this limit is for a gateway that is gone without a trace."""
TAKE_S = 10.0
"""Seconds for the gateway to take a notification, and for each piece of an answer that is not a
stream."""
READS_MAX = 4
"""Maximum answers in many parts that are read at once; each may be large, and then waits for the
client."""
DRAIN_S = 1.0
"""Seconds for a stream to end after the answer; then its connection can be used again."""
EOF_S = 1.0
"""Seconds for answers to requests from before the end of the input. Clients give a server two
seconds."""
GOODBYE_S = 1.0
"""Seconds for the gateway to close the session, and then for the client to read the last lines."""
WORDS_BYTES_MAX = 64 * 1024
"""Maximum bytes of sentences that wait for a reader of standard error; further sentences are
lost."""
LOCATE_S = 1.0
"""Minimum seconds between two looks whether the gateway has moved."""

AUTHORITY = "Name the authority of its certificate with --ca FILE, or in the variable METAMCP_CA."
MAYBE_TLS = "If this port speaks TLS, write https:// in the URL."
_UNKNOWN_AUTHORITY = "self-signed", "self signed", "issuer"
"""Words of OpenSSL for a certificate whose authority is not among those that are trusted."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as every shell has it: 128 and the number of SIGINT."""

Locate = Callable[[], str]
"""Function that returns the URL of the gateway's endpoint. Raises MetaMCPError with a sentence. May
block for seconds."""


def run(
    url: str,
    locate: Locate,
    *,
    remedy: str = "",
    trust: Trust = Trust(),  # noqa: B008 - frozen
) -> int:
    """Bridge standard input and output to the gateway until the client is gone. Returns an exit
    code. `remedy`: sentence on what to do when the gateway cannot be reached; `trust`: its
    credential. Raises MetaMCPError for an invalid URL."""
    allow()
    # The client would take the prints of a library for messages.
    out = os.dup(1)
    os.dup2(2, 1)
    return loop.run(_main(url, locate, remedy, out, trust))


async def _main(url: str, locate: Locate, remedy: str, out: int, trust: Trust) -> int:
    try:
        directory = os.getcwd()
    except OSError:  # it was removed
        directory = ""
    bridge = Bridge(
        url, locate, remedy=remedy, fd_in=0, fd_out=out, fd_err=2, directory=directory, trust=trust
    )
    running = asyncio.get_running_loop()
    for number, code in ((signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, INTERRUPTED)):
        if signal.getsignal(number) != signal.SIG_IGN:
            running.add_signal_handler(number, bridge.stop, code)
    return await bridge.run()


class Bridge:
    """Bridge between one client and one gateway. `directory`: folder that the client works in."""

    def __init__(
        self,
        url: str,
        locate: Locate,
        *,
        remedy: str,
        fd_in: int,
        fd_out: int,
        fd_err: int,
        directory: str = "",
        trust: Trust = Trust(),  # noqa: B008 - frozen
    ) -> None:
        self._url: str = url
        self._directory, self._trust = directory, trust
        self._origin: PlainHttpClient | Origin = build_client(url, directory=directory, trust=trust)
        self._left: list[
            PlainHttpClient | Origin
        ] = []  # where the gateway was last, and may still answer
        self._locate = locate
        self._located_at = 0.0
        self._remedy = remedy
        self._moving = asyncio.Lock()
        self._session = BridgeSession(_name(self._origin))
        self._input = InputPipe(fd_in)
        self._output = Output(fd_out, self.stop)
        self._errors = Output(fd_err, lambda: None, limit_bytes=WORDS_BYTES_MAX)
        self._running: dict[int, GatewayReply | asyncio.Task[None]] = {}
        self._waiting: deque[Send] = deque()  # the session bounds what is in it
        self._held = 0  # the exchange that has to go on before the next one may begin
        self._beginning = False
        self._all_begun = asyncio.Event()
        self._all_begun.set()
        self._one_ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.Semaphore(READS_MAX)
        self._stopped = asyncio.Event()
        self._answered = asyncio.Event()
        self._code = 0
        self._heard = False
        """Whether an answer has begun."""

    def stop(self, code: int = 0) -> None:
        """End without waiting for answers."""
        self._code = code
        self._stopped.set()

    async def run(self) -> int:
        """Run until the client is gone, or until `stop`. Return the exit code."""
        pump = self._loop.create_task(self._pump())
        ended = self._loop.create_task(self._input.ended.wait())
        stopped = self._loop.create_task(self._stopped.wait())
        try:
            await asyncio.wait({ended, stopped, pump}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({stopped, pump}, timeout=EOF_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, stopped):
                task.cancel()
            await self._end(pump)
        return self._code

    async def _end(self, pump: asyncio.Task[None]) -> None:
        if not self._input.ended.is_set():
            pump.cancel()
        self._input.close()
        self._do(self._session.goodbye())
        self._answered.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.wait({pump})  # what else the client asked is refused
                await self._all_begun.wait()
                while self._running:
                    self._one_ended.clear()
                    await self._one_ended.wait()
        pump.cancel()
        self._waiting.clear()
        tasks = [task for task in self._running.values() if isinstance(task, asyncio.Task)]
        for number in list(self._running):
            self._stop(number)
        outcomes = await asyncio.gather(pump, *tasks, return_exceptions=True)
        for origin in (self._origin, *self._left):
            await origin.close()
        await self._output.close(GOODBYE_S)
        await self._errors.close(GOODBYE_S)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _pump(self) -> None:
        """Take the client's lines one after the other; at their end, wait for all answers."""
        async for line in self._input.lines():
            if isinstance(line, OverlongInput):
                self._do(self._session.overlong(line.seen, LINE_BYTES_MAX))
            else:
                self._do(self._session.on_line(line))
            await self._all_begun.wait()
            await self._output.room()
        while not self._session.idle:
            self._answered.clear()
            await self._answered.wait()

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case WriteLine(line):
                    self._output.put(line)
                    self._answered.set()
                case Send():
                    self._waiting.append(action)
                    self._begin()
                case StopExchange(number):
                    self._stop(number)
                case WarnPeople(text):
                    self._warn(text)

    def _warn(self, text: str) -> None:
        if not self._errors.full:
            self._errors.put(b"metamcp: " + text.encode(errors="replace"))

    # The order of requests

    def _begin(self) -> None:
        """Begin waiting requests, until the next one has to wait for the last."""
        if self._beginning:  # by the one that begins, and is written already
            return
        self._beginning = True
        try:
            while self._waiting and not self._held:
                send = self._waiting.popleft()
                self._held = 0 if send.after_s else send.number
                if not self._at_once(send):
                    self._in_task(send.number, partial(self._exchange, send))
        finally:
            self._beginning = False
        if self._held:
            self._all_begun.clear()
        else:
            self._all_begun.set()

    def _gone_on(self, number: int) -> None:
        """Begin the requests that wait for this one, which has gone far enough."""
        if self._held == number:
            self._held = 0
            self._begin()

    def _on_request_end(self, number: int) -> None:
        del self._running[number]
        self._gone_on(number)
        self._one_ended.set()

    def _stop(self, number: int) -> None:
        running = self._running.get(number)
        if running is None:
            self._waiting = deque(send for send in self._waiting if send.number != number)
            return
        running.cancel()
        if isinstance(running, GatewayReply):  # a task reports its end itself
            self._on_request_end(number)

    # One request in callbacks

    def _at_once(self, send: Send) -> bool:
        """Send a request on a free connection. Return False if that is impossible; then nothing has
        happened."""
        if send.after_s or not isinstance(self._origin, PlainHttpClient):
            return False
        written, answer_s = self._terms(send)

        def on_reply(got: GatewayReply | MetaMCPError) -> None:
            # As late as for a task, so that the answers of both ways stay in the order of arrival.
            self._loop.call_soon(self._came, send, got)

        request = send.verb, send.headers, send.body
        try:
            reply = self._origin.at_once(
                *request, answer_s=answer_s, then=on_reply, written=written
            )
        except (Unreachable, UnicodeError):
            return False  # it does not fit into HTTP: that is said where it is tried again
        if reply is None:
            return False
        self._running[send.number] = reply
        return True

    def _came(self, send: Send, got: GatewayReply | MetaMCPError) -> None:
        """Take the head of an answer, or the error that came instead."""
        number = send.number
        if number not in self._running:  # it was stopped
            return
        if isinstance(got, Unreachable):  # the gateway cannot have processed it: once more
            self._in_task(number, partial(self._exchange, send))
            return
        self._gone_on(number)
        if not isinstance(got, GatewayReply):
            self._finish_exchange(number, self._failure(got))
        elif got.whole and got.media_type != EVENTS and not self._output.full:
            failure: Failure | None = None
            try:
                self._begins(number, got)
                self._on_message(number, got.answer.take())
            except Exception as bug:  # noqa: BLE001 - as in `_to_its_end`
                failure = self._failure(bug)
            self._finish_exchange(number, failure)
        else:
            task = self._in_task(number, partial(self._take, number, got))
            task.add_done_callback(lambda _: got.cancel())  # it may end before it begins

    def _finish_exchange(self, number: int, failure: Failure | None) -> None:
        self._do(self._session.on_exchange_end(number, failure))
        if number in self._running:  # else it has been stopped
            self._on_request_end(number)

    # One request in a task

    def _in_task(
        self, number: int, work: Callable[[], Awaitable[int | None]]
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(self._to_its_end(number, work))
        self._running[number] = task
        task.add_done_callback(partial(self._on_task_done, number))
        return task

    def _on_task_done(self, number: int, task: asyncio.Task[None]) -> None:
        self._on_request_end(number)
        if not task.cancelled():
            task.result()  # the loop reports a bug of the session

    async def _to_its_end(self, number: int, work: Callable[[], Awaitable[int | None]]) -> None:
        """Run the task of one request. `work` returns the pause that a stream asked for."""
        failure: Failure | None = None
        retry_ms: int | None = None
        try:
            running = work()
            del work  # it holds the body, and an answer may take long
            retry_ms = await running
        except Exception as error:  # noqa: BLE001 - the root of a task; the client is to be answered
            failure = self._failure(error)
        self._do(self._session.on_exchange_end(number, failure, retry_ms))

    def _failure(self, error: Exception) -> Failure:
        text = f"No answer from the gateway: {error}."
        if isinstance(error, TlsFailed):
            unknown = any(word in text for word in _UNKNOWN_AUTHORITY)
            return Failure(f"{text} {AUTHORITY if unknown else ''}".strip(), may_have_run=False)
        if isinstance(error, Unreachable):
            return Failure(f"{text} {self._remedy}".strip(), may_have_run=False)
        if isinstance(error, ConnectionBroken | TooLarge):
            plain = isinstance(self._origin, PlainHttpClient) and not self._heard
            return Failure(f"{text} {MAYBE_TLS}" if plain else text)
        return Failure(f"The bridge failed: {type(error).__name__}: {error}.")

    async def _exchange(self, send: Send) -> int | None:
        """Run one HTTP request, from the pause before it to the end of its answer."""
        number = send.number
        if send.after_s:
            await asyncio.sleep(send.after_s)
        response = await self._reach(send)
        self._gone_on(number)
        del send  # as above
        return await self._take(number, response)

    async def _take(self, number: int, response: Response | GatewayReply) -> int | None:
        async with response:
            return await self._read(number, response)

    def _terms(self, send: Send) -> tuple[Callable[[], None] | None, float]:
        """Return the function to call when a request is written, and the seconds for its answer."""
        if send.settles:
            return None, TAKE_S
        return partial(self._gone_on, send.number), ANSWER_S

    async def _reach(self, send: Send) -> Response | GatewayReply:
        """Return the head of the answer; if the gateway has moved, from its new place."""
        written, answer_s = self._terms(send)
        request, origin = (send.verb, send.headers, send.body), self._origin
        try:
            return await origin.send(*request, answer_s=answer_s, written=written)
        except Unreachable:
            async with self._moving:
                if origin is self._origin and not await self._relocate():
                    raise
        return await self._origin.send(*request, answer_s=answer_s, written=written)

    async def _relocate(self) -> bool:
        """Look whether the gateway has moved, and use its new URL if so."""
        if self._loop.time() - self._located_at < LOCATE_S:
            return False
        try:
            url: str = await run_in_thread(self._locate)
            if url == self._url:
                return False
            origin = build_client(url, directory=self._directory, trust=self._trust)
        except MetaMCPError:
            return False
        finally:
            self._located_at = self._loop.time()
        self._url = url
        former_origins, self._left, self._origin = self._left, [self._origin], origin
        self._session.gateway = _name(origin)
        for old in former_origins:
            await old.close()
        return True

    # Answers

    def _begins(self, number: int, response: Response | GatewayReply) -> None:
        self._heard = True
        session = response.header("mcp-session-id").encode("latin-1", "replace")
        self._do(self._session.head(number, response.status, session))

    def _on_message(self, number: int, data: bytes) -> None:
        if data:
            self._do(self._session.message(number, data))

    async def _read(self, number: int, response: Response | GatewayReply) -> int | None:
        """Pass the answer on to the session. Return the pause that a stream asked for."""
        self._begins(number, response)
        retry_ms: int | None = None
        if response.media_type != EVENTS:
            # The largest message of a server has grown a little on its way, like an event.
            async with self._reading:
                await self._output.room()
                data = await response.read(wait_s=TAKE_S, limit_bytes=sse.EVENT_BYTES_MAX)
            self._on_message(number, data)
            return retry_ms
        reader = sse.EventReader()
        while self._session.cares(number):
            await self._output.room()
            piece = await response.piece(wait_s=ANSWER_S)
            if not piece:
                return retry_ms
            for event in reader.feed(piece):
                retry_ms = event.retry_ms if event.retry_ms is not None else retry_ms
                self._do(self._session.event(number, event))
                del event  # or the last one would be kept until the next one comes
        await response.piece(wait_s=DRAIN_S)
        return retry_ms


def _name(origin: PlainHttpClient | Origin) -> str:
    return f"The gateway at {origin}"
