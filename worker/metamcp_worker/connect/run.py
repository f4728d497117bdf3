"""The bridge at work: threads for the pipes, one task per HTTP request.

Owns: doing what the session wants, the order in which messages leave, finding the gateway again,
the end of everything when the client is gone. Never: what a message means (`session`).

Messages leave in the order in which the client wrote them: the next one goes when the last is
written, and behind a notification when it is taken. So a cancellation never overtakes its request.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial

from metamcp_worker import loop, sse
from metamcp_worker.connect.exchanges import Action, Failure, Send, Stop, Warn, Write
from metamcp_worker.connect.pipes import LINE_BYTES_MAX, Input, Output, Overlong, apart
from metamcp_worker.connect.session import Session
from metamcp_worker.errors import MetaMCPError, TooLarge
from metamcp_worker.fetch import Broken, Origin, Response, Unreachable

ANSWER_S = 24 * 3600.0
"""For the gateway to answer, or to say something on a stream. It bounds calls itself; this is for a
gateway that is gone without a trace."""
TAKE_S = 10.0
"""For the gateway to take a notification, and for the whole of an answer that is no stream."""
DRAIN_S = 1.0
"""For a stream to end behind the answer; then its connection can be used again."""
EOF_S = 1.0
"""For answers to what was asked before the input ended. Clients give a server two seconds."""
GOODBYE_S = 1.0
"""For the gateway to close the session, and then for the client to read what it was sent."""
WORDS_BYTES_MAX = 64 * 1024
"""Of sentences that wait for somebody to read them; more are lost."""
LOCATE_S = 1.0
"""Between two looks whether the gateway is elsewhere now."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as every shell says it: 128 and the number of SIGINT."""

Locate = Callable[[], str]
"""The URL of the gateway's endpoint. Raises MetaMCPError with a sentence. May block for seconds."""


def run(url: str, locate: Locate, *, remedy: str = "") -> int:
    """Bridge standard input and output to the gateway until the client is gone. Returns an exit
    code. `remedy`: a sentence on what to do when the gateway cannot be reached. Raises MetaMCPError
    for a URL that is none."""
    # What a library prints would be taken for a message.
    out = os.dup(1)
    os.dup2(2, 1)
    return loop.run(_main(url, locate, remedy, out))


async def _main(url: str, locate: Locate, remedy: str, out: int) -> int:
    bridge = Bridge(url, locate, remedy=remedy, fd_in=0, fd_out=out, fd_err=2)
    running = asyncio.get_running_loop()
    for number, code in ((signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, INTERRUPTED)):
        if signal.getsignal(number) != signal.SIG_IGN:
            running.add_signal_handler(number, bridge.stop, code)
    return await bridge.run()


class Bridge:
    """One client, one gateway."""

    def __init__(
        self, url: str, locate: Locate, *, remedy: str, fd_in: int, fd_out: int, fd_err: int
    ) -> None:
        self._url: str = url
        self._origin = Origin(url)
        self._locate = locate
        self._located_at = 0.0
        self._remedy = remedy
        self._moving = asyncio.Lock()
        self._session = Session(_name(self._origin))
        self._input = Input(fd_in)
        self._output = Output(fd_out, self.stop)
        self._errors = Output(fd_err, lambda: None, limit_bytes=WORDS_BYTES_MAX)
        self._sends: asyncio.Queue[Send] = asyncio.Queue()  # the session bounds what is in it
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._answered = asyncio.Event()
        self._code = 0

    def stop(self, code: int = 0) -> None:
        """End without waiting for answers."""
        self._code = code
        self._stopped.set()

    async def run(self) -> int:
        """Until the client is gone, or `stop`."""
        sender = self._loop.create_task(self._send_in_order())
        pump = self._loop.create_task(self._pump())
        ended = self._loop.create_task(self._input.ended.wait())
        stopped = self._loop.create_task(self._stopped.wait())
        first = asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait({ended, stopped, pump, sender}, return_when=first)
            await asyncio.wait({stopped, pump}, timeout=EOF_S, return_when=first)
        finally:
            for task in (ended, stopped):
                task.cancel()
            await self._end(pump, sender)
        return self._code

    async def _end(self, pump: asyncio.Task[None], sender: asyncio.Task[None]) -> None:
        pump.cancel()
        self._do(self._session.goodbye())
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._sends.join()
                while self._tasks:
                    await asyncio.wait(self._tasks.values())
        except TimeoutError:
            pass
        for task in (sender, *self._tasks.values()):
            task.cancel()
        outcomes = await asyncio.gather(pump, sender, *self._tasks.values(), return_exceptions=True)
        await self._origin.close()
        await self._output.close(GOODBYE_S)
        await self._errors.close(GOODBYE_S)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _pump(self) -> None:
        """Lines of the client, one after the other; at their end until all are answered."""
        async for line in self._input.lines():
            if isinstance(line, Overlong):
                self._do(self._session.overlong(line.raw_id, LINE_BYTES_MAX))
            else:
                self._do(self._session.received(line))
            await self._sends.join()
            await self._output.room()
        while not self._session.idle:
            self._answered.clear()
            await self._answered.wait()

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Write(line):
                    self._output.put(line)
                    self._answered.set()
                case Send():
                    self._sends.put_nowait(action)
                case Stop(number):
                    if number in self._tasks:
                        self._tasks[number].cancel()
                case Warn(text):
                    self._warn(text)

    def _warn(self, text: str) -> None:
        if not self._errors.full:
            self._errors.put(b"metamcp: " + text.encode(errors="replace"))

    async def _send_in_order(self) -> None:
        while True:
            send = await self._sends.get()
            gone_on = asyncio.Event()
            task = self._loop.create_task(self._exchange(send, gone_on))
            self._tasks[send.number] = task
            task.add_done_callback(partial(self._finished, send.number, gone_on))
            at_once = not send.after_s
            del send, task
            if at_once:
                await gone_on.wait()
            self._sends.task_done()

    def _finished(self, number: int, gone_on: asyncio.Event, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        gone_on.set()
        if not task.cancelled():
            task.result()  # a bug of the session is told by the loop

    async def _exchange(self, send: Send, gone_on: asyncio.Event) -> None:
        """One HTTP request, from the pause before it to the end of its answer. `gone_on`: the next
        one may go."""
        number = send.number
        failure: Failure | None = None
        retry_ms: int | None = None
        try:
            await asyncio.sleep(send.after_s)
            response = await self._reach(send, gone_on)
            gone_on.set()
            del send  # it holds the body, and an answer may take long
            async with response:
                retry_ms = await self._read(number, response)
        except Unreachable as why:
            failure = Failure(f"{_sentence(why)} {self._remedy}".strip(), may_have_run=False)
        except (Broken, TooLarge) as why:
            failure = Failure(_sentence(why))
        except Exception as bug:  # noqa: BLE001 - the root of a task; the client is to be answered
            failure = Failure(f"The bridge failed: {type(bug).__name__}: {bug}.")
        self._do(self._session.over(number, failure, retry_ms))

    async def _reach(self, send: Send, gone_on: asyncio.Event) -> Response:
        """The head of the answer; if the gateway has moved, of the gateway where it is now."""
        written = None if send.settles else gone_on.set
        answer_s = TAKE_S if send.settles else ANSWER_S
        asked, origin = (send.verb, send.headers, send.body), self._origin
        try:
            return await origin.send(*asked, answer_s=answer_s, written=written)
        except Unreachable:
            async with self._moving:
                if origin is self._origin and not await self._moved():
                    raise
        return await self._origin.send(*asked, answer_s=answer_s, written=written)

    async def _moved(self) -> bool:
        """Is the gateway elsewhere now?"""
        if self._loop.time() - self._located_at < LOCATE_S:
            return False
        try:
            url: str = await apart(self._locate)
            if url == self._url:
                return False
            origin = Origin(url)
        except MetaMCPError:
            return False
        finally:
            self._located_at = self._loop.time()
        self._url = url
        old, self._origin = self._origin, origin
        self._session.gateway = _name(origin)
        await old.close()
        return True

    async def _read(self, number: int, response: Response) -> int | None:
        """Tell the session what comes; returns the pause that a stream asked for."""
        session = response.header("mcp-session-id").encode("latin-1", "replace")
        self._do(self._session.head(number, response.status, session))
        retry_ms: int | None = None
        if response.media_type != "text/event-stream":
            # The largest message of a server has grown a little on its way, like an event.
            data = await response.read(wait_s=TAKE_S, limit_bytes=sse.EVENT_BYTES_MAX)
            await self._output.room()
            if data:
                self._do(self._session.message(number, data))
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


def _name(origin: Origin) -> str:
    return f"The gateway at {origin}"


def _sentence(why: Exception) -> str:
    return f"No answer from the gateway: {why}."
