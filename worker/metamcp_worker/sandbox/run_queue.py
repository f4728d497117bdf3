"""Queue of runs: whose turn it is, and how many sandboxes are to be there.

Owns: the number of runs at once, the turns of connections. Never: processes, runs themselves.

Connections take turns, each with its oldest run, so many runs of one client delay another client by
one run. All clients of a front share its connection.

An inner run begins at once, beyond the number of runs: the code of another run waits for it, and if
it had to wait for a place, both might wait for ever.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

WAITING_MAX = 1024
"""Maximum runs that wait; more are refused at once."""


class RunQueue(Generic[T]):
    """`runs_max`: runs at once."""

    def __init__(self, runs_max: int) -> None:
        self.runs_max = runs_max
        self._taken = 0
        self._inner_running = 0
        self._inner: deque[tuple[int, T]] = deque()
        """Inner runs that may begin, each with its connection."""
        self._waiting: dict[int, deque[T]] = {}
        self._count = 0

    @property
    def running_count(self) -> int:
        """Number of runs that have begun and not ended."""
        return self._taken + self._inner_running

    def __len__(self) -> int:
        """Number of runs that wait."""
        return self._count + len(self._inner)

    @property
    def due(self) -> int:
        """Number of waiting runs that may begin now."""
        return len(self._inner) + max(0, min(self._count, self.runs_max - self._taken))

    def add(self, connection: int, run: T, *, inner: bool = False) -> bool:
        """Put a run at the end of its connection's; return False if too many wait."""
        if len(self) >= WAITING_MAX:
            return False
        if inner:
            self._inner.append((connection, run))
            return True
        self._waiting.setdefault(connection, deque()).append(run)
        self._count += 1
        return True

    def begin(self) -> T | None:
        """Take the run whose turn it is, which begins; None if none may."""
        if self._inner:
            self._inner_running += 1
            return self._inner.popleft()[1]
        if not self.due:
            return None
        connection = next(iter(self._waiting))
        runs = self._waiting.pop(connection)
        run = runs.popleft()
        if runs:  # behind all others
            self._waiting[connection] = runs
        self._count -= 1
        self._taken += 1
        return run

    def end(self, *, inner: bool = False) -> None:
        """Note that a run that had begun has ended."""
        if inner:
            self._inner_running -= 1
        else:
            self._taken -= 1

    def remove(self, connection: int, run: T) -> None:
        """Take out a run that nobody waits for any more, if it has not begun."""
        runs = self._waiting.get(connection, deque())
        if (connection, run) in self._inner:
            self._inner.remove((connection, run))
        if run in runs:
            runs.remove(run)
            self._count -= 1
        if not runs:
            self._waiting.pop(connection, None)

    def drop(self, connection: int) -> None:
        """Take out the runs of a connection that has ended."""
        self._count -= len(self._waiting.pop(connection, ()))
        self._inner = deque(each for each in self._inner if each[0] != connection)

    def clear(self) -> list[T]:
        """Take out and return all runs that wait."""
        waiting = [run for _, run in self._inner]
        waiting += [run for runs in self._waiting.values() for run in runs]
        self._inner.clear()
        self._waiting.clear()
        self._count = 0
        return waiting
