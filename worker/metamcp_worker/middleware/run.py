"""Process of one middleware: it runs the hooks of a class that a package brings.

Owns: loading the class, connections of fronts, hooks under way, the limits that end
the process. Never: the order of middleware and its time limits (`chain`, `front_side`).

The class is code of others. An exception in it is the failure of one request. A loop that does not
turn, and memory beyond the limit, end the process: the kernel sees to both.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import metadata
from typing import Any

from msgspec import Raw

from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.code_runs import FRAME_BYTES_MAX
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.frame_link import FrameStream
from metamcp_worker.ipc.messages import Stop, Tune
from metamcp_worker.ipc.middleware_calls import (
    EXIT_MEMORY,
    HOOKS,
    SAME,
    EndHook,
    Hook,
    HookEnded,
    HookNext,
    ListsChanged,
    MiddlewareFigures,
    MiddlewareOn,
    MiddlewareReady,
    MiddlewareReplaced,
    NextDone,
    StartHook,
)
from metamcp_worker.middleware.api import (
    CallFailed,
    HookRequest,
    HookResult,
    PromptResult,
    ResourceResult,
    ToolResult,
    UnclearArguments,
)
from metamcp_worker.runtime import loop
from metamcp_worker.runtime.role_worker import RoleWorker

GROUP = "metamcp.middleware"
LOAD_S_MAX = 30.0
"""Seconds for importing the package and making the object."""
LINKS_MAX = 64
"""Maximum connections: one for each front, and those of their heirs."""
STUBBORN_MAX = 100
"""Maximum hooks that go on although they were cancelled; with more the process ends."""
RETIRE_STEP_S = 0.02
"""Seconds between two checks whether requests are under way."""
REASON_CHARACTERS_MAX = 200
_KINDS: dict[Hook, type[HookResult]] = {
    "on_call_tool": ToolResult,
    "on_get_prompt": PromptResult,
    "on_read_resource": ResourceResult,
}
CallNext = Callable[[HookRequest], Awaitable[Any]]

log = logging.getLogger("metamcp.middleware")
_read = codec.reader(MiddlewareOn | Tune | Stop)
_read_front = codec.reader(StartHook | NextDone | EndHook | ListsChanged)


def main(sock: socket.socket) -> int:
    """Run this process and return its exit code. `sock`: the control socket to the supervisor."""
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await MiddlewareWorker(sock).run()


class Unloadable(MetaMCPError):
    """A middleware cannot be loaded. The text says why, as words that follow its name."""


class _Front:
    """Connection of a front. `hooks`: those under way, by the number of their request."""

    def __init__(self) -> None:
        self.stream: FrameStream | None = None
        self.hooks: dict[int, _Hook] = {}

    def send(self, message: Message) -> None:
        if self.stream is not None:
            self.stream.send(message)


class _Hook:
    """Hook under way. `next`: waits for the result of `call_next`, None before it was called."""

    def __init__(self, front: _Front, start: StartHook) -> None:
        self.front = front
        self.start = start
        self.kind = _KINDS.get(start.hook)
        self.next: asyncio.Future[NextDone] | None = None
        self.task: asyncio.Task[None] | None = None
        self._result = b""
        self._error: CallFailed | None = None

    async def call_next(self, request: HookRequest) -> Any:
        if self.next is not None:
            raise RuntimeError("call_next can be awaited once in a request")
        self.next = asyncio.get_running_loop().create_future()
        arguments = request.raw_arguments
        same = bytes(arguments) == bytes(self.start.arguments)
        self.front.send(HookNext(id=self.start.id, arguments=SAME if same else arguments))
        done = await self.next
        if done.failed:
            self._error = CallFailed(bytes(done.result))
            raise self._error
        self._result = bytes(done.result)
        return codec.value(self._result) if self.kind is None else self.kind(self._result)

    def pack_result(self, result: object) -> HookEnded:
        """Return the message for what the hook has returned."""
        number = self.start.id
        if self.kind is None:
            raw = codec.dump(result)
        elif isinstance(result, self.kind):
            raw = result.raw
        else:
            failure = f"returned {type(result).__name__} and not {self.kind.__name__}"
            return HookEnded(id=number, failure=failure)
        if raw == self._result:
            return HookEnded(id=number)
        if len(raw) > FRAME_BYTES_MAX - 1024:
            return HookEnded(id=number, failure=f"returned a result of {len(raw):,} bytes")
        return HookEnded(id=number, result=Raw(raw))

    def build_failure(self, error: Exception) -> HookEnded:
        """Return the message for what the hook has raised."""
        if error is self._error:
            return HookEnded(id=self.start.id)
        if isinstance(error, UnclearArguments):
            failure = f"cannot read the arguments ({error})"
            return HookEnded(id=self.start.id, failure=failure, refuses=True)
        return HookEnded(id=self.start.id, failure=f"raised {type(error).__name__}")


class MiddlewareWorker(RoleWorker):
    what = "the process of a middleware"
    log = log
    links_max = LINKS_MAX

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _read)
        self._name = ""
        self._made: Any = None
        self._ready = MiddlewareReady()
        self._hang_s = LOAD_S_MAX
        self._fronts: set[_Front] = set()
        self._running: set[_Hook] = set()
        self._stubborn = 0
        self._requests = 0
        self._watching = False

    async def end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        await super().end()

    def take(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, MiddlewareOn):
            self._begin(message, fds)

    def _begin(self, spec: MiddlewareOn, fds: list[int]) -> None:
        """Load the class and take connections. Raises OSError."""
        self._name = spec.name
        signal.setitimer(signal.ITIMER_REAL, LOAD_S_MAX)
        try:
            self._made = _load_middleware(spec)
            hooks: list[Hook] = [
                hook for hook in HOOKS if callable(getattr(self._made, hook, None))
            ]
            listens = callable(getattr(self._made, "on_lists_changed", None))
            self._ready = MiddlewareReady(hooks=tuple(hooks), listens=listens)
        except Unloadable as error:
            log.error("middleware %s %s", spec.name, error)
            self._ready = MiddlewareReady(trouble=str(error))
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._hang_s = spec.hang_s
        _limit_memory(spec.memory_bytes)
        self.accept(socket.socket(fileno=packets.take_fd(fds)))

    def retire(self, within_s: float) -> None:
        """Let fronts connect to the next process, and end when nothing is under way here, at most
        `within_s` seconds later."""
        if not self.accepts:
            return
        self.deafen()
        for front in self._fronts:
            front.send(MiddlewareReplaced())
        self._loop.call_later(within_s, self.finish, 0)
        self._finish_when_idle()

    def _finish_when_idle(self) -> None:
        """End when the fronts have closed their connections."""
        if self._fronts:
            self._loop.call_later(RETIRE_STEP_S, self._finish_when_idle)
        else:
            self.finish(0)

    # Fronts

    @property
    def links(self) -> int:
        return len(self._fronts)

    def on_connection(self, sock: socket.socket) -> None:
        front = _Front()
        self._fronts.add(front)
        self._chores.begin(self._serve(front, sock))

    async def _serve(self, front: _Front, sock: socket.socket) -> None:
        over = asyncio.Event()
        stream = FrameStream("a front", partial(self._message, front), lambda _: over.set())
        try:
            await self._loop.connect_accepted_socket(lambda: stream, sock)
            front.stream = stream
            front.send(self._ready)
            await over.wait()
        finally:
            stream.close()
            self._fronts.discard(front)
            for hook in list(front.hooks.values()):
                self._cancel(hook)

    def _message(self, front: _Front, body: bytes) -> None:
        """Carry out a message of a front. Raises codec.Malformed."""
        match _read_front(body):
            case StartHook() as start:
                self._start(front, start)
            case NextDone(id=number) as done:
                hook = front.hooks.get(number)
                if hook is not None and hook.next is not None and not hook.next.done():
                    hook.next.set_result(done)
            case EndHook(id=number):
                if (hook := front.hooks.pop(number, None)) is not None:
                    self._cancel(hook)
            case ListsChanged(server=server):
                self._tell(server)
            case _:
                pass

    # Hooks

    def _start(self, front: _Front, start: StartHook) -> None:
        hook = _Hook(front, start)
        front.hooks[start.id] = hook
        self._running.add(hook)
        self._requests += 1
        self._watch()
        hook.task = self._loop.create_task(self._run(hook))
        hook.task.add_done_callback(partial(self._hook_over, hook))

    async def _run(self, hook: _Hook) -> None:
        start = hook.start
        request = HookRequest(
            server=start.server, name=start.name, arguments=start.arguments,
            annotations=start.annotations, caller=start.caller, endpoint=start.endpoint,
            workspace=start.workspace, principal=start.principal,
        )  # fmt: skip
        try:
            result = await getattr(self._made, start.hook)(request, hook.call_next)
            ended = hook.pack_result(result)
        except MemoryError:
            log.error("middleware %s has used up its memory", self._name)
            os._exit(EXIT_MEMORY)
        # The code of a user may raise anything, which is the failure of this request.
        except Exception as error:
            ended = hook.build_failure(error)
            if ended.failure:
                log.warning("middleware %s raised in %s", self._name, start.hook, exc_info=error)
        if hook.front.hooks.pop(start.id, None) is not None:
            hook.front.send(ended)

    def _cancel(self, hook: _Hook) -> None:
        """End a hook. A hook that goes on is counted, because it may never end."""
        if hook.task is not None and not hook.task.done():
            hook.task.cancel()
            self._stubborn += 1
            hook.task.add_done_callback(self._gave_in)
            if self._stubborn > STUBBORN_MAX:
                log.error("%d hooks go on although they were cancelled", self._stubborn)
                self.finish(1)

    def _gave_in(self, _: asyncio.Task[None]) -> None:
        self._stubborn -= 1

    def _hook_over(self, hook: _Hook, task: asyncio.Task[None]) -> None:
        self._running.discard(hook)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.faulty(error)

    def _tell(self, server: str) -> None:
        try:
            self._made.on_lists_changed(server)
        # As above.
        except Exception as error:
            log.warning("middleware %s raised in on_lists_changed", self._name, exc_info=error)

    # The watchdog

    def _watch(self) -> None:
        """Let the kernel end this process if the loop does not turn, as long as hooks run."""
        if not self._watching:
            self._watching = True
            self._turn()

    def _turn(self) -> None:
        self._watching = bool(self._running)
        signal.setitimer(signal.ITIMER_REAL, self._hang_s if self._watching else 0)
        if self._watching:
            self._loop.call_later(self._hang_s / 4, self._turn)

    # News

    def figures(self) -> MiddlewareFigures:
        return MiddlewareFigures(
            requests=self._requests, running=len(self._running), trouble=self._ready.trouble
        )


def _load_middleware(spec: MiddlewareOn) -> object:
    """Make the object of a middleware. Raises Unloadable."""
    entry_points = [
        entry_point
        for entry_point in metadata.entry_points(group=GROUP)
        if entry_point.name == spec.entry
    ]
    if not entry_points:
        raise Unloadable(f"is not installed: no package brings the entry point {spec.entry!r}")
    try:
        made: object = entry_points[0].load()(codec.value(spec.options))
    # The code of a user may raise anything.
    except (Exception, SystemExit) as error:  # noqa: BLE001 - see above
        reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
        raise Unloadable(f"cannot be loaded: {reason}") from None
    return made


def _limit_memory(most: int) -> None:
    """Limit the data of this process to so many bytes more than there are now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[5]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = now + most if hard == resource.RLIM_INFINITY else min(hard, now + most)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
