"""The forked workers: each end is reported once, and never before `fork` has returned the worker.

Owns: the set of workers, and the news of workers whose `fork` has not returned yet. Never:
processes, sockets, the event loop (`nursery`).

Theory. A worker may die before the coroutine that asked for it runs again: both pieces of news come
in one read of the nursery's socket. So a worker is first *expected*, and news of it waits; when the
worker is *claimed* it belongs to its caller, and the news follows. A worker whose caller has left
is *disowned*: its end is not reported. An end removes the entry, so a second end is ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker and all its descendants are gone.

    `code`: exit status, or None when a signal ended the worker; `signal`: its number, or 0;
    `orphans`: how many descendants had to be killed (of workers that died together the first has
    the number for all); `stacks`: the last stacks that the worker wrote, on request or at a crash.
    """

    pid: int
    code: int | None
    signal: int
    orphans: int
    cause: Literal["exit", "nursery died"]
    stacks: str = ""


class WorkerTable:
    """`on_exit`: called at the end of a worker; `on_halt(pid, halted)`: called when a worker was
    stopped or resumed."""

    def __init__(
        self, on_exit: Callable[[WorkerExit], None], on_halt: Callable[[int, bool], None]
    ) -> None:
        self._on_exit = on_exit
        self._on_halt = on_halt
        self._expected: dict[int, list[Callable[[], None]]] = {}
        self._claimed: set[int] = set()

    def pids(self) -> list[int]:
        return [*self._expected, *self._claimed]

    def knows(self, pid: int) -> bool:
        return pid in self._claimed or pid in self._expected

    def adopt(self, pid: int) -> None:
        """Add a worker that the previous program had claimed."""
        self._claimed.add(pid)

    def expect(self, pid: int) -> None:
        self._expected[pid] = []

    def claim(self, pid: int) -> list[Callable[[], None]]:
        """Give a worker to its caller. Return the news that waited, to be called once the caller
        has noted the worker."""
        self._claimed.add(pid)
        return self._expected.pop(pid)

    def disown(self, pid: int) -> None:
        self._expected.pop(pid, None)

    def halted(self, pid: int, halted: bool) -> None:
        if pid in self._expected:
            self._expected[pid].append(partial(self.halted, pid, halted))
        elif pid in self._claimed:
            self._on_halt(pid, halted)

    def exited(self, report: WorkerExit) -> None:
        if report.pid in self._expected:
            self._expected[report.pid].append(partial(self.exited, report))
        elif report.pid in self._claimed:
            self._claimed.remove(report.pid)
            self._on_exit(report)
