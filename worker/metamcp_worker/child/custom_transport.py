"""Transport to a server by the code of an installed package.

Owns: finding the package by its entry point, the one task in which its code runs, the queue of
messages to send. Never: the meaning of messages, the work of that code.

The code of the package runs in the loop of this worker, which has no other server. The code sees
whole JSON-RPC messages only: `docs/transports.md` describes what the package must offer.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib import metadata
from typing import Protocol, cast

from metamcp_worker.child import http_exchange, transport
from metamcp_worker.child.actions import CancelRequest, Fail, ServerRequest
from metamcp_worker.child.transport import (
    RemoteTransportBase,
    SpawnFailed,
    Transport,
    TransportListener,
)
from metamcp_worker.ipc.envelope import OverlongLine, glimpse
from metamcp_worker.ipc.spec import ServerSpec

GROUP = "metamcp.transports"
QUEUE_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes of messages that the code of the package has not taken; room for two of the largest
messages of a client."""
SEND_S_MAX = 5.0
"""Seconds without a message taken after which no more calls are made, until the code takes one."""
CLOSE_S_MAX = 2.0
"""Seconds between the cancellation of the task and its end. A task that takes longer is left to the
end of the worker."""
REASON_CHARS_MAX = 500


class CustomChannel(Protocol):
    """A connected transport: iterating over it gives the messages of the server."""

    async def send(self, message: bytes) -> None:
        """Send one message."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


Connect = Callable[[Mapping[str, str]], AbstractAsyncContextManager[CustomChannel]]
"""Function that an entry point names; the argument holds the server's `name` and `options`."""


def custom(spec: ServerSpec, listener: TransportListener) -> Transport:
    """Return the transport that `spec.transport` names. Raises SpawnFailed if its package cannot be
    found or loaded, or the working directory cannot be entered."""
    try:
        if spec.cwd is not None:
            os.chdir(spec.cwd)
    except OSError as error:
        raise SpawnFailed(f"cannot start in {spec.cwd}: {error.strerror}") from None
    if spec.env:
        # All of this process is there for this server.
        os.environ.clear()
        os.environ.update(spec.env)
    transport.prepare()
    return CustomTransport(spec, _find(spec.transport), listener)


class CustomTransport(RemoteTransportBase):
    """A `Transport` that the code of a package carries."""

    def __init__(self, spec: ServerSpec, connect: Connect, listener: TransportListener) -> None:
        super().__init__()
        self._spec = spec
        self._listener = listener
        self._lost = False
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._moved_at = 0.0
        self._filled = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._task = asyncio.get_running_loop().create_task(self._live(connect))

    @property
    def is_lost(self) -> bool:
        return self._lost

    def stuck(self) -> bool:
        late = self._queued_bytes > 0 and self._clock() - self._moved_at > SEND_S_MAX
        return late or self._queued_bytes > QUEUE_BYTES_MAX

    def request(self, request: ServerRequest) -> bool:
        return self.write(request.line)

    def write(self, line: bytes, via: int = 0) -> bool:
        if self._lost or self._queued_bytes > QUEUE_BYTES_MAX:
            return False
        if not self._queued_bytes:
            self._moved_at = self._clock()
        self._queue.append(line)
        self._queued_bytes += len(line)
        self._filled.set()
        return True

    def drop(self, drop: CancelRequest) -> bool:
        return self.write(drop.line)

    def pause(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def tick(self) -> None:
        """Do nothing: this transport has no work that is due at a time."""

    async def stop(self) -> None:
        """Leave the context of the transport, within the time that a server has for its end."""
        self.abort()
        await self._ended_within(self._spec.stop_grace_s)

    async def kill(self) -> None:
        self.abort()
        await self._ended_within(CLOSE_S_MAX)

    def abort(self) -> None:
        self._lost = True
        self._task.cancel()

    async def close(self) -> None:
        if not self._task.done():
            await self.kill()

    async def _ended_within(self, time_s: float) -> None:
        await asyncio.wait({self._task}, timeout=time_s)
        if not self._task.done():
            self.warn(f"its transport did not end within {time_s:g} s of being cancelled")

    # --- its one task -----------------------------------------------------------------------

    async def _live(self, connect: Connect) -> None:
        """Connect, and read until the end. Contexts are left in the task that entered them."""
        try:
            async with AsyncExitStack() as stack:
                channel = await self._open_channel(connect, stack)
                if channel is not None:
                    await self._converse(channel)
        # Whatever the code of a user raises ends here.
        except Exception as error:  # noqa: BLE001 - a task root
            self._lose(Fail("exit", f"its transport failed with {_describe_error(error)}"))

    async def _open_channel(self, connect: Connect, stack: AsyncExitStack) -> CustomChannel | None:
        options = {**self._spec.options, "name": self._spec.name}
        limit = asyncio.timeout(self._spec.start_timeout_s)
        try:
            async with limit:
                return await stack.enter_async_context(connect(options))
        except TimeoutError:
            if not limit.expired():
                raise
        message = f"its transport did not connect within {self._spec.start_timeout_s:g} s"
        self._lose(Fail("start_timeout", message))
        return None

    async def _converse(self, channel: CustomChannel) -> None:
        sender = asyncio.create_task(self._send(channel))
        try:
            await self._read(channel)
        finally:
            sender.cancel()
            await asyncio.wait({sender}, timeout=CLOSE_S_MAX)

    async def _read(self, channel: CustomChannel) -> None:
        async for message in channel:
            if not isinstance(cast(object, message), bytes):
                kind = type(message).__name__
                problem = f"its transport gave a message that is {kind}, not bytes"
                self._lose(Fail("protocol", problem))
                return
            if self._lost:
                pass
            elif len(message) > self._spec.message_bytes:
                seen = glimpse(message, message)
                self._listener.overlong(OverlongLine(len(message), seen))
            else:
                self._listener.on_messages([http_exchange.one_line(message)])
            del message  # or it would be kept until the next one comes
            await self._open.wait()
        self._lose(Fail("exit", "it ended the connection"))

    async def _send(self, channel: CustomChannel) -> None:
        try:
            while True:
                await self._filled.wait()
                message = self._queue.popleft()
                await channel.send(message.rstrip(b"\n"))
                self._queued_bytes -= len(message)
                self._moved_at = self._clock()
                if not self._queue:
                    self._filled.clear()
        # Whatever the code of a user raises ends here.
        except Exception as error:  # noqa: BLE001 - a task root
            self._lose(Fail("exit", f"its transport could not send: {_describe_error(error)}"))

    def _lose(self, failure: Fail) -> None:
        if not self._lost:
            self._lost = True
            self._listener.on_server_lost(failure)


def _find(name: str) -> Connect:
    entry_points = metadata.entry_points(group=GROUP)
    named = [entry_point for entry_point in entry_points if entry_point.name == name]
    if not named:
        have = ", ".join(sorted({entry_point.name for entry_point in entry_points})) or "none"
        raise SpawnFailed(f"no installed package brings the transport {name!r}; there are: {have}")
    try:
        connect = named[0].load()
    # Whatever the code of a user raises at import ends here.
    except (Exception, SystemExit) as error:  # noqa: BLE001 - see above
        raise SpawnFailed(
            f"the transport {name!r} cannot be loaded: {_describe_error(error)}"
        ) from None
    if not callable(connect):
        kind = type(connect).__name__
        raise SpawnFailed(f"the transport {name!r} is of the type {kind}, not a function")
    return cast(Connect, connect)


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
