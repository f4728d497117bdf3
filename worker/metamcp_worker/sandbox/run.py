"""Process of the sandboxes: it runs the code that fronts send, each run in a process of its own.

Owns: connections of fronts, runs with their sandboxes, the time of a run, news for the
supervisor. Never: what a guest may send (`code_run`), whose turn it is (`run_queue`), sandboxes
without a run (`sandbox_pool`), the calls of the code, which its front makes.

A sandbox has one run and is killed after it, however that ended.
"""

import asyncio
import itertools
import logging
import socket
import time
from collections import Counter
from functools import partial

from msgspec import structs

from metamcp_worker.confinement import kernel
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.code_runs import (
    FRAME_BYTES_MAX,
    CodeFigures,
    CodeOn,
    EndRun,
    HoldRun,
    HostReply,
    StartRun,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Stop, Tune
from metamcp_worker.runtime import loop
from metamcp_worker.runtime.role_worker import RoleWorker
from metamcp_worker.sandbox import code_run, confinement, monty_guest
from metamcp_worker.sandbox.code_run import CodeRun, FrameBuffer
from metamcp_worker.sandbox.run_queue import WAITING_MAX, RunQueue
from metamcp_worker.sandbox.sandbox_pool import SandboxPool
from metamcp_worker.sandbox.sandbox_process import ByteStream, DenoSpec, SandboxProcess, boot_file

RETIRE_STEP_S = 0.02
"""Seconds between two checks whether fronts have read the ends of their runs."""
BUSY_S = 0.02
"""Seconds of processor time after which a run leaves one processor to fronts and servers, and
seconds between two looks. Most runs are over by then, and use all processors."""
APART_S = 0.5
"""Seconds after such a run in which new sandboxes leave that processor from the beginning: starting
one takes as much of a processor as a run does."""
FRONTS_MAX = 64
"""Maximum connections: one for each front, and those of their heirs."""
_RETIRES = "the process of the sandboxes is being replaced: try again"

log = logging.getLogger("metamcp.code")
_read = codec.reader(CodeOn | Tune | Stop)
_read_front = codec.reader(StartRun | EndRun | HoldRun | HostReply)


def main(sock: socket.socket) -> int:
    """Run this process and return its exit code. `sock`: the control socket to the supervisor."""
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await CodeWorker(sock).run()


class _Front:
    """Connection of a front, with its runs that have not ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stream: ByteStream | None = None
        self.frames = FrameBuffer(FRAME_BYTES_MAX)
        self.runs: dict[int, _Run] = {}

    def send(self, message: Message) -> None:
        if self.stream is not None:
            self.stream.write(code_run.frame(codec.dump(message)))


class _Run:
    """Run with its front. `placed`: its turn has come; it has its sandbox, or waits for it in a
    pool. `left_s`: seconds that a run has whose time stands still; `began`: by the clock of
    performance, because the time of the loop is rounded."""

    def __init__(self, front: _Front, order: StartRun) -> None:
        self.front = front
        self.state = CodeRun(order)
        self.sandbox: SandboxProcess | None = None
        self.placed = False
        self.timer: asyncio.TimerHandle | None = None
        self.left_s = 0.0
        self.began = 0.0


class CodeWorker(RoleWorker):
    what = "the process of the sandboxes"
    log = log
    links_max = FRONTS_MAX

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _read)
        self._spec = CodeOn(deno="", runs_max=1)
        self._deno = DenoSpec("", 0, -1)
        self._confined = ""
        self._numbers = itertools.count(1)
        self._fronts: dict[int, _Front] = {}
        self._queue = RunQueue[_Run](1)
        self._pools = {
            python: SandboxPool[_Run](self._assign, self._on_start_failure)
            for python in (False, True)
        }
        """By whether they run Python."""
        self._version = -1
        """Version of Landlock; -1 to go without."""
        self._used = 0.0
        """Time of the loop of the last run."""
        self._counts: Counter[str] = Counter()
        self._retires = False
        self._lowered = confinement.lower_session()

    async def end(self) -> None:
        await super().end()
        for front in list(self._fronts.values()):
            self._drop(front)
        self._give_back()

    def take(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, CodeOn):
            self._begin(message, fds)

    def _begin(self, spec: CodeOn, fds: list[int]) -> None:
        """Begin, or go on with other limits. Raises OSError, codec.Malformed."""
        if fds or not self.accepts:
            self.accept(socket.socket(fileno=packets.take_fd(fds)))
        version = -1 if spec.confinement == "off" else kernel.landlock_version()
        if spec.confinement == "require" and not version:
            raise OSError('this kernel has no Landlock, and `confinement = "require"` asks for it')
        if spec.confinement == "prefer" and not version:
            log.warning("this kernel has no Landlock: code is confined by Deno and limits alone")
        self._confined = f"landlock-{version}" if version > 0 else "none"
        boot = self._deno.boot if self._deno.boot >= 0 else boot_file()
        self._deno = DenoSpec(spec.deno, spec.memory_bytes, boot, spec.jit, version)
        self._pools[False].spec = self._deno
        if self._pools[True].spec is not None:
            self._pools[True].spec = monty_guest.find(version)
        self._version = version
        self._spec = spec
        self._queue.runs_max = max(1, spec.runs_max)
        self._give_back()
        self._go()

    def retire(self, within_s: float) -> None:
        """Take nothing new, and end when the runs have ended, at most `within_s` seconds later."""
        if self._retires:
            return
        self._retires = True
        self.deafen()
        self._give_back()
        waiting = self._queue.clear()
        for run in waiting + [run for pool in self._pools.values() for run in pool.clear()]:
            run.state.fail("busy", _RETIRES)
            self._settle(run)
        for front in [front for front in self._fronts.values() if not front.runs]:
            self._drop(front)
        self._loop.call_later(within_s, self.finish, 0)
        self._go()

    # Fronts

    @property
    def links(self) -> int:
        return len(self._fronts)

    def on_connection(self, sock: socket.socket) -> None:
        front = _Front(next(self._numbers))
        front.stream = ByteStream(
            sock, lambda data: self._data(front, data), lambda: self._drop(front)
        )
        self._fronts[front.number] = front

    def _data(self, front: _Front, data: bytes) -> None:
        try:
            for body in front.frames.feed(data):
                self._message(front, body)
        except (codec.Malformed, TooLarge) as error:
            log.error("a front sent something that is not a message about code: %s", error)
            self._drop(front)

    def _message(self, front: _Front, body: bytes) -> None:
        """Carry out a message of a front. Raises codec.Malformed."""
        match _read_front(body):
            case StartRun() as order:
                self._start(front, order)
            case HostReply() as reply:
                run = front.runs.get(reply.run)
                if run is not None and run.sandbox is not None:
                    run.sandbox.write(run.state.reply(reply))
            case HoldRun(run=number, hold=hold):
                run = front.runs.get(number)
                if run is not None and run.timer is not None:
                    self._hold(run, run.timer, hold=hold)
            case EndRun(run=number):
                if (run := front.runs.pop(number, None)) is not None:
                    self._queue.remove(front.number, run)
                    self._let_go(run)
                    self._go()
            case _:
                pass

    def _drop(self, front: _Front) -> None:
        """End the runs of a front that has gone."""
        if self._fronts.pop(front.number, None) is not None and front.stream is not None:
            front.stream.close()
            self._queue.drop(front.number)
            for run in front.runs.values():
                self._let_go(run)
            self._go()

    # Runs

    def _start(self, front: _Front, order: StartRun) -> None:
        run = _Run(front, order)
        if order.run in front.runs:
            raise codec.Malformed(f"the run {order.run} runs already")
        front.runs[order.run] = run
        pool = self._pool(run)
        if pool.spec is None and (spec := monty_guest.find(self._version)) is not None:
            pool.spec = spec
        if pool.spec is None:
            run.state.fail("language", monty_guest.MISSING)
        elif self._retires:
            run.state.fail("busy", _RETIRES)
        elif not self._queue.add(front.number, run, inner=order.inner):
            run.state.fail("busy", f"{WAITING_MAX:,} runs wait already: try again later")
        else:
            pool.warm = self._spec.warm
        self._settle(run)
        self._go()

    def _pool(self, run: _Run) -> SandboxPool[_Run]:
        return self._pools[run.state.order.language == "python"]

    def _go(self) -> None:
        """Let the runs begin whose turn it is."""
        if self._retires:
            if any(front.stream and front.stream.unsent for front in self._fronts.values()):
                self._loop.call_later(RETIRE_STEP_S, self._go)
            elif not self._queue.running_count:
                self.finish(0)
            return
        while (run := self._queue.begin()) is not None:
            run.placed = True
            self._pool(run).add(run)
        for pool in self._pools.values():
            pool.go()

    def _assign(self, run: _Run, sandbox: SandboxProcess) -> None:
        """Give a run its sandbox."""
        limits = run.state.limits
        run.sandbox, run.began = sandbox, time.perf_counter()
        self._used = self._loop.time()
        sandbox.on_data = partial(self._guest, run)
        sandbox.on_exit = partial(self._on_exit, run)
        run.timer = self._loop.call_later(limits.timeout_ms / 1000, self._on_timeout, run)
        self._loop.call_later(BUSY_S, self._look, run, sandbox.cpu_s())
        try:
            sandbox.limit_memory(limits.memory_bytes)
            sandbox.write(run.state.begin())
        except (OSError, ValueError) as error:  # Malformed is a ValueError
            run.state.fail("crashed", f"the run cannot begin: {error}")
            self._settle(run)

    def _on_start_failure(self, run: _Run, reason: str) -> None:
        run.state.fail("crashed", reason)
        self._settle(run)

    def _guest(self, run: _Run, data: bytes) -> None:
        for call in run.state.read(data):
            run.front.send(call)
        self._settle(run)

    def _on_exit(self, run: _Run, code: int, stderr: str) -> None:
        run.state.on_exit(code, stderr)
        self._settle(run)

    def _hold(self, run: _Run, timer: asyncio.TimerHandle, *, hold: bool) -> None:
        """Let the time of a run stand still, or go on."""
        if hold and not timer.cancelled():
            run.left_s = timer.when() - self._loop.time()
            timer.cancel()
        elif not hold and timer.cancelled():
            run.timer = self._loop.call_later(run.left_s, self._on_timeout, run)

    def _look(self, run: _Run, begin_s: float) -> None:
        """Keep a busy run, and sandboxes that start soon, off one processor."""
        if run.sandbox is None:
            return
        used_s = run.sandbox.cpu_s()
        if used_s - begin_s >= BUSY_S:
            begin_s = used_s
            run.sandbox.leave_processor()
            for pool in self._pools.values():
                pool.apart_until = self._loop.time() + APART_S
        self._loop.call_later(BUSY_S, self._look, run, begin_s)

    def _on_timeout(self, run: _Run) -> None:
        run.state.on_timeout()
        self._settle(run)

    def _settle(self, run: _Run) -> None:
        """Report to the front how a run has ended, if it has."""
        if (end := run.state.end) is None:
            return
        if run.front.runs.pop(run.state.order.run, None) is None:
            return
        ms = (time.perf_counter() - run.began) * 1000 if run.began else 0.0
        self._counts[end.failure or "ok"] += 1
        run.front.send(structs.replace(end, ms=ms))
        self._let_go(run)
        self._loop.call_soon(self._go)

    def _let_go(self, run: _Run) -> None:
        """Kill the sandbox of a run."""
        if run.timer is not None:
            run.timer.cancel()
        if run.sandbox is not None:
            run.sandbox.kill()
            run.sandbox = None
        if run.placed:
            run.placed = False
            self._pool(run).remove(run)
            self._queue.end(inner=run.state.order.inner)

    def _give_back(self) -> None:
        """End the sandboxes without a run."""
        for pool in self._pools.values():
            pool.give_back()

    # News

    def on_heartbeat(self) -> None:
        if self._queue.running_count or len(self._queue):
            self._used = self._loop.time()
        elif self._loop.time() - self._used > self._spec.idle_s:
            self._give_back()
        self._lowered = self._lowered or confinement.lower_session()

    def figures(self) -> CodeFigures:
        return CodeFigures(
            counts=dict(self._counts), running=self._queue.running_count, waiting=len(self._queue),
            warm=sum(pool.ready for pool in self._pools.values()), confined=self._confined,
        )  # fmt: skip
