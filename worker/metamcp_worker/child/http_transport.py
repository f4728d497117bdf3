"""Common part of the transports to a remote server: the origin, tasks, their failures, bodies.

Owns: every task that works for a server and its end, the bytes that wait to be sent, the error for
each failure; the gate that a pause closes, how many large bodies are read at once. Never: the
protocol of a transport, the choice of a transport, the contents of a body.

Tasks are cancelled through scopes of anyio. The HTTP client below shields work that must not be
left half done, such as closing connections, in scopes of anyio, which a plain cancellation of a
task does not respect.

Many answers may come at once, and each may have the size of the largest message. So every body may
grow until it is large, but only a few may grow beyond that; the others wait in the buffers of the
system.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Hashable
from types import TracebackType
from typing import Any, Self

import anyio

from metamcp_worker.child.actions import Fail
from metamcp_worker.child.jsonrpc_lines import ServerErrors
from metamcp_worker.child.transport import RemoteTransportBase, TransportListener
from metamcp_worker.http.fetch import (
    ConnectionBroken,
    Origin,
    RedirectRefused,
    Response,
    TlsFailed,
    Unreachable,
)
from metamcp_worker.http.sse import EventReader
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, MetaMCPError, TooLarge
from metamcp_worker.ipc.frames import MESSAGE_BYTES
from metamcp_worker.ipc.messages import HTTP
from metamcp_worker.ipc.spec import ServerSpec

QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of requests that the server has not begun to answer; room for four of the largest
that a client can send."""
TELLS_MAX = 4096
"""Maximum number of notifications and answers that wait to be sent: more than there can be calls to
cancel."""
TELLS_AT_ONCE_MAX = 64
LINGERING_MAX = 128
"""Maximum number of answers whose end is waited for. A server that never ends them would use up all
requests."""
STARTS_AT_ONCE_MAX = 32
"""Maximum number of requests being sent. Many need a new connection, and servers have short queues
for those: a hundred is common, and connections beyond are reset."""
CLOSE_S_MAX = 2.0
"""Maximum seconds for cancelled tasks to close their connections."""

Work = Callable[[], Coroutine[Any, Any, None]]
"""Work of a task: a function that the task calls, because the task may be cancelled before."""


class RequestRefused(MetaMCPError):
    """Request that gets no answer of the server. `error`: the raw error object that says why.
    `retry_after_s`: seconds for which the server wants to be left alone."""

    def __init__(self, error: bytes, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(error.decode(errors="replace"))
        self.error = error
        self.status = status
        self.retry_after_s = retry_after_s


def _counter(error: Exception) -> str:
    """Return the counter of `messages.EventCounts` for a failed request; empty if the server kept
    the protocol."""
    match error:
        case RequestRefused(status=status) if status:
            return f"{HTTP}{status}"
        case ConnectionBroken():
            return "broken_answer"
        case TooLarge():
            return "too_large"
        case codec.Malformed():
            return "broken_reply"
        case _:
            return ""


def to_failure(error: Exception, problem: str) -> Fail:
    """Return the failure of a server that cannot be reached. `problem`: how a sentence goes on
    after "it"."""
    if isinstance(error, TlsFailed):
        return Fail("tls", f"it cannot be talked to: {error}")
    if isinstance(error, RedirectRefused):
        return Fail("redirect", f"it cannot be talked to: {error}")
    return Fail("exit", f"it {problem}: {error}")


class HttpTransport(RemoteTransportBase):
    """Common half of a `Transport` to a URL."""

    def __init__(self, spec: ServerSpec, listener: TransportListener, origin: Origin) -> None:
        super().__init__()
        self.gone = False
        """Whether the server is known to be gone, so that a goodbye is not needed."""
        self.spec = spec
        self.origin = origin
        self.faults = ServerErrors(spec.name)
        self.intake = ResponseLimiter(spec.message_bytes)
        self._listener = listener
        self._lost = False
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._scopes: dict[asyncio.Task[None], anyio.CancelScope | None] = {}
        self._queued: dict[bytes, int] = {}
        self._queued_bytes = 0
        self._tells = 0
        self._lingering = 0
        self.starts = asyncio.Semaphore(STARTS_AT_ONCE_MAX)
        self._telling = asyncio.Semaphore(TELLS_AT_ONCE_MAX)

    @property
    def is_lost(self) -> bool:
        return self._lost

    def stuck(self) -> bool:
        """Whether the server does not take the messages sent to it."""
        return self._queued_bytes > QUEUE_BYTES_MAX

    def pause(self) -> None:
        self.intake.pause()

    def resume(self) -> None:
        self.intake.resume()

    # --- news -------------------------------------------------------------------------------

    def deliver(self, message: bytes, stream: bytes | None, via: int) -> None:
        """Pass on a message that the server sent."""
        if not self._lost:
            with self._lose_on_error():
                self._listener.on_messages([message], stream, via)

    def noise(self, reader: EventReader) -> None:
        """Report the lines of a stream that carried no message, so that too many of them cost
        budget."""
        lines, size_bytes = reader.noise()
        if lines and not self._lost:
            with self._lose_on_error():
                self._listener.on_skip(size_bytes, lines)

    def fail(self, key: bytes, error: bytes) -> None:
        """Answer a request with this error, because the server does not answer it."""
        if not self._lost:
            with self._lose_on_error():
                self._listener.on_request_failed(key, error)

    def lose(self, failure: Fail) -> None:
        """Report that the server cannot be used any more."""
        if not self._lost:
            self._lost = True
            self.gone = failure.reason in {"exit", "tls", "redirect"}
            self._listener.on_server_lost(failure)

    def lose_touch(self, error: Exception, problem: str) -> None:
        """Report that the server cannot be reached any more. `problem`: as for `to_failure`."""
        self.lose(to_failure(error, problem))

    # --- tasks ------------------------------------------------------------------------------

    def ask(self, key: bytes, line: bytes, work: Work) -> None:
        """Run the work that gets the answer to the request `key`; if it fails, the request
        fails."""
        self._queued[key] = len(line)
        self._queued_bytes += len(line)
        task = self.start(key, lambda: self._run_request(key, work))
        task.add_done_callback(lambda _: self.on_answer_start(key))

    def on_answer_start(self, key: bytes) -> None:
        """Note that the server begins to answer this request."""
        self._queued_bytes -= self._queued.pop(key, 0)

    def tell(self, line: bytes, work: Work) -> bool:
        """Run the work that sends a message without an answer. Return False if too much waits
        already."""
        if self._lost or self._tells >= TELLS_MAX or self.stuck():
            return False
        size = len(line)

        def on_sent(_: asyncio.Task[None]) -> None:
            self._tells -= 1
            self._queued_bytes -= size

        async def one_of_few() -> None:
            async with self._telling:
                await work()

        self._tells += 1
        self._queued_bytes += size
        self.start(object(), one_of_few).add_done_callback(on_sent)
        return True

    def start(self, name: Hashable, work: Work) -> asyncio.Task[None]:
        """Run this work in a task until its end, until `cut`, or until all tasks are cancelled."""
        task = asyncio.get_running_loop().create_task(self._run_task(work))
        self._tasks[name] = task
        self._scopes[task] = None
        task.add_done_callback(lambda done: self._on_task_done(name, done))
        return task

    async def linger(self, end: Coroutine[Any, Any, None]) -> None:
        """Wait for the end of an answer, unless too many are waited for already."""
        if self._lingering >= LINGERING_MAX:
            end.close()
            return
        self._lingering += 1
        try:
            await end
        finally:
            self._lingering -= 1

    def is_running(self, name: Hashable) -> bool:
        return name in self._tasks

    def cut(self, name: Hashable) -> None:
        """Cancel the task of this name if it runs, which closes the response that it reads."""
        task = self._tasks.get(name)
        if task is not None:
            self._cancel(task)

    async def wait_for_task(self, name: Hashable) -> None:
        """Wait until the task of this name has ended, if it runs."""
        if name in self._tasks:
            await asyncio.wait({self._tasks[name]})

    def abort(self) -> None:
        """Cancel all tasks."""
        self._lost = True
        for task in self._scopes:
            self._cancel(task)

    async def kill(self) -> None:
        """Cancel all tasks, and wait for their end."""
        self.abort()
        if self._scopes:
            _, late = await asyncio.wait(list(self._scopes), timeout=CLOSE_S_MAX)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        await self.kill()
        await self.origin.close()

    # --- failures ---------------------------------------------------------------------------

    def to_error_object(self, error: Exception) -> bytes:
        """Return the error object for a request that failed with this exception."""
        match error:
            case RequestRefused(error=body):
                return body
            case Unreachable():
                return self._error(Code.SERVER_DOWN, f"was not reached: {error}", ran=False)
            case ConnectionBroken():
                return self._error(Code.SERVER_DOWN, f"did not answer: {error}", ran=True)
            case TooLarge(limit_bytes=limit):
                data: dict[str, object] = {"limit_bytes": limit, "may_have_run": True}
                return self.faults.body(Code.TOO_LARGE, f"sent too much: {error}", data)
            case codec.Malformed():
                problem = f"sent an answer that is not JSON-RPC: {error}"
                return self._error(Code.INTERNAL_ERROR, problem, ran=True)
            case _:
                problem = f"could not be asked: {type(error).__name__}: {str(error)[:500]}"
                return self._error(Code.INTERNAL_ERROR, problem, ran=True)

    def doubt(self) -> None:
        """Hook for the case that the server was not reached, or did not answer as it should: a
        transport may check whether the server is still the same."""

    async def _run_request(self, key: bytes, work: Work) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the caller must learn of any failure
            if counter := _counter(error):
                self._listener.count(counter)
            self.fail(key, self.to_error_object(error))
            if isinstance(error, Unreachable | ConnectionBroken):
                self.doubt()

    async def _run_task(self, work: Work) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            # In a task, as anyio knows its loop only there if sniffio is installed.
            with anyio.CancelScope() as self._scopes[task]:
                await work()
        except Exception as error:  # noqa: BLE001 - a task root
            self.lose(Fail("exit", f"its connection failed with {type(error).__name__}: {error}"))

    @contextlib.contextmanager
    def _lose_on_error(self) -> Generator[None]:
        """Turn an error of the gateway's own in handling a message into the end of the server, not
        into the failure of a call."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - see above
            self.lose(Fail("exit", f"what it sent led to {type(error).__name__}: {error}"))

    def _cancel(self, task: asyncio.Task[None]) -> None:
        scope = self._scopes[task]
        if scope is None:  # the task has not begun
            task.cancel()
        else:
            scope.cancel()

    def _on_task_done(self, name: Hashable, task: asyncio.Task[None]) -> None:
        del self._scopes[task]
        if self._tasks.get(name) is task:
            del self._tasks[name]

    def _error(self, code: Code, problem: str, *, ran: bool) -> bytes:
        return self.faults.body(code, problem, {"may_have_run": ran})


LARGE_BYTES = 64 * 1024
"""Maximum bytes held of an unfinished message without a place; a larger message needs a place."""
LARGE_AT_ONCE_MAX = 3
"""Maximum number of messages that grow beyond LARGE_BYTES at the same time."""


class ResponseLimiter:
    """Limits that all answers of one server share. `message_bytes`: maximum bytes of one of its
    messages."""

    def __init__(self, message_bytes: int = MESSAGE_BYTES) -> None:
        self.message_bytes = message_bytes
        self.places = asyncio.Semaphore(LARGE_AT_ONCE_MAX)
        self._open = asyncio.Event()
        self._open.set()

    def pause(self) -> None:
        """Stop reading for now; the buffers on the server's side fill up."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def wait_until_open(self) -> None:
        if not self._open.is_set():
            await self._open.wait()


class Body:
    """The body of one answer. Use it in `async with`, which closes the answer."""

    def __init__(self, intake: ResponseLimiter, response: Response) -> None:
        self._intake = intake
        self._response = response
        self._held = 0
        self._has_place = False

    async def piece(self, *, wait_s: float | None) -> bytes:
        """Return the next piece, empty at the end. Raises Broken."""
        await self._intake.wait_until_open()
        if self._held > LARGE_BYTES and not self._has_place:
            await self._intake.places.acquire()
            self._has_place = True
        data = await self._response.piece(wait_s=wait_s)
        self._held += len(data)
        return data

    async def whole(self, *, wait_s: float, limit_bytes: int = 0) -> bytes:
        """Return the whole body, of at most `limit_bytes` or, if that is 0, of the largest message.
        `wait_s`: maximum seconds for each piece. Raises Broken and TooLarge."""
        limit_bytes = limit_bytes or self._intake.message_bytes
        length = self._response.header("content-length")
        if length.isdecimal() and len(length) < 20 and int(length) > limit_bytes:
            raise TooLarge("the answer", int(length), limit_bytes)
        pieces: list[bytes] = []
        while data := await self.piece(wait_s=wait_s):
            if self._held > limit_bytes:
                raise TooLarge("the answer", self._held, limit_bytes)
            pieces.append(data)
        return b"".join(pieces)

    async def drain(self, *, wait_s: float) -> None:
        """Wait at most `wait_s` for the end of the body, so that the connection can be used
        again."""
        with contextlib.suppress(ConnectionBroken, TimeoutError):
            async with asyncio.timeout(wait_s):
                while await self._response.piece(wait_s=None):
                    pass

    def holds(self, size_bytes: int) -> None:
        """Note how many of the received bytes are still kept, because their message is
        unfinished."""
        self._held = size_bytes
        if self._has_place and size_bytes <= LARGE_BYTES:
            self._has_place = False
            self._intake.places.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.holds(0)
        await self._response.close()
