"""The book of forked workers: each end is told once, and never before the birth.

Owns: which workers there are, and what was heard of those whose `fork` has not returned yet. Never:
processes, sockets, the event loop (`nursery`).

Theory. A worker may die before the coroutine that asked for it runs again: both pieces of news come
in one read of the nursery's socket. So a worker is first *expected* and what is heard of it waits;
when it is *claimed* it is its caller's, and the news follows. A worker whose caller has left is
*disowned*: nobody is told of its end. An end closes the entry, so a second one finds none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker is gone and everything that descended from it as well.

    `code`: exit status, or None when a signal ended it; `signal`: its number, or 0; `orphans`: how
    many descendants had to be killed (of workers that died together the first is told all);
    `stacks`: what its threads were doing when it was last asked, or crashed.
    """

    pid: int
    code: int | None
    signal: int
    orphans: int
    cause: Literal["exit", "nursery died"]
    stacks: str = ""


class Workers:
    """`on_exit`: the end of a worker; `on_halt(pid, halted)`: it was stopped or resumed."""

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
        """A worker that the program before had claimed."""
        self._claimed.add(pid)

    def expect(self, pid: int) -> None:
        self._expected[pid] = []

    def claim(self, pid: int) -> list[Callable[[], None]]:
        """What was heard of it meanwhile, to be called once its caller has noted the worker."""
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
