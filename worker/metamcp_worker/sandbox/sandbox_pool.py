"""Sandboxes of one kind: those that start, those that wait for a run, and runs that wait for one.

Owns: how many there are, what happens when they do not start. Never: which run may begin (`run`),
what a run does with its sandbox.

Some sandboxes wait for their run, so that it begins at once; they are started at the first run and
end when none has come for a while.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.sandbox import code_run
from metamcp_worker.sandbox.code_run import FrameBuffer
from metamcp_worker.sandbox.sandbox_process import SandboxProcess, SandboxSpec

START_S_MAX = 20.0
"""Seconds in which a sandbox is to be ready; 0.02 is usual."""
START_FAILURES_MAX = 3
"""Sandboxes in a row that do not start, after which the runs that wait for one fail."""
_READY_BYTES_MAX = 1024

T = TypeVar("T")
log = logging.getLogger("metamcp.code")


class SandboxPool(Generic[T]):
    """`spec`: how to start one; `warm`: how many are to wait beyond those for runs; `apart_until`:
    time of the loop until which new ones leave one processor to others. `assign(run, sandbox)` and
    `fail(run, reason)` are called once for each run, not within `add`."""

    def __init__(
        self, assign: Callable[[T, SandboxProcess], None], fail: Callable[[T, str], None]
    ) -> None:
        self._assign, self._fail = assign, fail
        self._loop = asyncio.get_running_loop()
        self.spec: SandboxSpec | None = None
        self.warm = 0
        self.apart_until = 0.0
        self._due: deque[T] = deque()
        self._starting: dict[SandboxProcess, asyncio.TimerHandle] = {}
        self._ready: list[SandboxProcess] = []
        self._failures = 0

    @property
    def ready(self) -> int:
        """Number of sandboxes that wait."""
        return len(self._ready)

    def add(self, run: T) -> None:
        """Give this run a sandbox as soon as there is one; see `go`."""
        self._due.append(run)

    def remove(self, run: T) -> None:
        """Forget a run that wants a sandbox no longer."""
        if run in self._due:
            self._due.remove(run)

    def clear(self) -> list[T]:
        """Take out and return the runs that wait for a sandbox."""
        due, self._due = list(self._due), deque()
        return due

    def go(self) -> None:
        """Give runs their sandboxes, and start those that are missing."""
        while self._ready and self._due:
            sandbox = self._ready.pop()
            if sandbox.alive:
                self._assign(self._due.popleft(), sandbox)
        needed = len(self._due) + (0 if self._failures else self.warm)
        for _ in range(needed - len(self._ready) - len(self._starting)):
            self._spawn()

    def give_back(self) -> None:
        """End the sandboxes without a run, and let none wait until `warm` is set again."""
        self.warm = 0
        for sandbox, timer in self._starting.items():
            timer.cancel()
            sandbox.kill()
        for sandbox in self._ready:
            sandbox.kill()
        self._starting.clear()
        self._ready.clear()

    def _spawn(self) -> None:
        frames = FrameBuffer(_READY_BYTES_MAX)

        def on_data(data: bytes) -> None:
            try:
                for body in frames.feed(data):
                    code_run.check_ready(body)
                    self._on_ready(sandbox)
            except (codec.Malformed, TooLarge) as error:
                sandbox.kill()
                self._on_lost(sandbox, str(error))

        def on_exit(_: int, stderr: str) -> None:
            self._on_lost(sandbox, stderr.strip().partition("\n")[0] or "it ended")

        def slow() -> None:
            sandbox.kill()
            self._on_lost(sandbox, f"it was not ready within {START_S_MAX:g} s")

        assert self.spec is not None
        try:
            sandbox = SandboxProcess(self.spec, on_data, on_exit)
        except OSError as error:
            self._loop.call_soon(self._on_start_failure, str(error))
            return
        if self._loop.time() < self.apart_until:
            sandbox.leave_processor()
        self._starting[sandbox] = self._loop.call_later(START_S_MAX, slow)

    def _on_ready(self, sandbox: SandboxProcess) -> None:
        self._starting.pop(sandbox).cancel()
        self._failures = 0
        self._ready.append(sandbox)
        self.go()

    def _on_lost(self, sandbox: SandboxProcess, reason: str) -> None:
        """Note that a sandbox without a run is gone."""
        if sandbox in self._ready:
            self._ready.remove(sandbox)
            self.go()
        elif (timer := self._starting.pop(sandbox, None)) is not None:
            timer.cancel()
            self._on_start_failure(reason)

    def _on_start_failure(self, reason: str) -> None:
        """Note that a sandbox did not start; runs that wait fail after several."""
        self._failures += 1
        log.error("a sandbox does not start: %s", reason)
        if self._failures >= START_FAILURES_MAX:
            for run in self.clear():
                self._fail(run, f"the sandbox does not start: {reason}")
        self.go()
