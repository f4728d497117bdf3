"""Queue of runs: whose turn it is, and how many sandboxes are to be there.

Owns: the number of runs at once, the turns of connections, the number of sandboxes that start or
wait. Never: processes, runs themselves.

Connections take turns, each with its oldest run, so many runs of one client delay another client by
one run. All clients of a front share its connection.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

WAITING_MAX = 1024
"""Maximum runs that wait; more are refused at once."""


class RunQueue(Generic[T]):
    """`runs_max`: runs at once. `running`: runs that have begun and not ended."""

    def __init__(self, runs_max: int) -> None:
        self.runs_max = runs_max
        self.running = 0
        self._waiting: dict[int, deque[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of runs that wait."""
        return self._count

    @property
    def due(self) -> int:
        """Number of waiting runs that may begin now."""
        return max(0, min(self._count, self.runs_max - self.running))

    def add(self, connection: int, run: T) -> bool:
        """Put a run at the end of its connection's; return False if too many wait."""
        if self._count >= WAITING_MAX:
            return False
        self._waiting.setdefault(connection, deque()).append(run)
        self._count += 1
        return True

    def begin(self) -> T | None:
        """Take the run whose turn it is, which begins; None if none may."""
        if not self.due:
            return None
        connection = next(iter(self._waiting))
        runs = self._waiting.pop(connection)
        run = runs.popleft()
        if runs:  # behind all others
            self._waiting[connection] = runs
        self._count -= 1
        self.running += 1
        return run

    def end(self) -> None:
        """Note that a run that had begun has ended."""
        self.running -= 1

    def remove(self, connection: int, run: T) -> None:
        """Take out a run that nobody waits for any more, if it has not begun."""
        runs = self._waiting.get(connection, deque())
        if run in runs:
            runs.remove(run)
            self._count -= 1
        if not runs:
            self._waiting.pop(connection, None)

    def drop(self, connection: int) -> None:
        """Take out the runs of a connection that has ended."""
        self._count -= len(self._waiting.pop(connection, ()))

    def clear(self) -> list[T]:
        """Take out and return all runs that wait."""
        found = [run for runs in self._waiting.values() for run in runs]
        self._waiting.clear()
        self._count = 0
        return found

    def missing(self, sandboxes: int, warm: int) -> int:
        """Return how many sandboxes to start, if `sandboxes` start or wait and `warm` are to wait
        for later runs. Never more than all runs at once need, and the warm ones."""
        return max(0, self.due + warm - sandboxes)
