"""The nursery that forks, and nurseries of previous programs that still have workers.

Owns: which nursery a worker belongs to, replacing the nursery that forks, closing nurseries without
workers. Never: a nursery itself (`nursery`), the choice of processes to fork (`server_copies`,
`fronts`).

A nursery is a copy of the program that started it, and so are its workers. After an upgrade the
new program starts a nursery of its own: from then on it forks there, and an older nursery ends
together with the last of its workers.
"""

import asyncio
from collections.abc import Callable, Sequence

from metamcp_supervisor.processes.nursery import (
    ForkedWorker,
    NotForked,
    Nursery,
    NurseryDown,
    NurserySnapshot,
)
from metamcp_worker.ipc.messages import WorkerExit


class Nurseries:
    """A `ports.Forker`. See `nursery.NurseryLoop` for the callbacks. `spared`: children of this
    process that are neither nurseries nor orphans."""

    def __init__(
        self,
        *,
        on_exit: Callable[[WorkerExit], None],
        on_halt: Callable[[int, bool], None],
        on_lost: Callable[[str], None],
        on_event: Callable[[str], None],
    ) -> None:
        self._on_exit = on_exit
        self._on_halt = on_halt
        self._on_lost = on_lost
        self._on_event = on_event
        self.spared: set[int] = set()
        self._older: list[Nursery] = []
        self._coming: Nursery | None = None
        self._ends: set[asyncio.Task[None]] = set()
        self._newest = self._another()

    @property
    def pid(self) -> int:
        """Process id of the nursery that forks; 0 while there is none."""
        return self._newest.pid

    @property
    def pids(self) -> list[int]:
        nurseries = [*self._all(), *filter(None, [self._coming])]
        return [pid for nursery in nurseries if (pid := nursery.pid)]

    async def start(self) -> None:
        """Start the nursery that forks. Raises NurseryDown."""
        await self._newest.start()

    def adopt(self, snapshots: Sequence[NurserySnapshot]) -> None:
        """Continue with the nurseries of the previous program; the last of them forks."""
        self._older = [self._another() for _ in snapshots[1:]]
        for nursery, snapshot in zip(self._all(), snapshots, strict=True):
            nursery.adopt(snapshot)
        for nursery in self._older:
            nursery.retired = True

    async def renew(self) -> bool:
        """Fork from a new nursery of this program from now on. Return False if the nursery does not
        start; then everything stays as it is."""
        another = self._coming = self._another()
        try:
            await another.start()
        except NurseryDown as error:
            self._on_event(f"{error}; fronts and workers are still of the program before")
            return False
        except asyncio.CancelledError:
            await another.close()
            raise
        finally:
            self._coming = None
        self._newest.retired = True
        self._older.append(self._newest)
        self._newest = another
        self._thin()
        return True

    def find_blocker(self) -> str:
        """Return why nurseries cannot be handed over now, as a sentence, or ""."""
        if self._coming or self._ends or not all(nursery.runs for nursery in self._all()):
            return "a nursery starts or ends, or a fork is under way"
        return ""

    def take_snapshot(self) -> tuple[NurserySnapshot, ...]:
        """Return the state that the program after this one needs. Call this only while
        `find_blocker` returns ""."""
        return tuple(nursery.take_snapshot() for nursery in self._all())

    async def fork(self, role: str, name: str) -> ForkedWorker:
        """Fork a worker in the nursery that forks now. Raises NotForked."""
        while True:
            nursery = self._newest
            try:
                return await nursery.fork(role, name)
            except NotForked:
                if nursery is self._newest:
                    raise
            finally:
                if nursery.retired:  # another one took over
                    self._thin()

    def signal(self, pid: int, number: int) -> None:
        self._of(pid).signal(pid, number)

    def tune(self) -> None:
        for nursery in self._all():
            nursery.tune()

    def suspect(self) -> None:
        for nursery in self._all():
            nursery.suspect()

    def pulse(self, pid: int) -> tuple[float, float] | None:
        """Return the time and the lag of the last pulse of a worker, None if it has none."""
        return self._of(pid).stacks.pulse(pid)

    async def dump(self, pid: int) -> str:
        """Return the current stacks of a worker. Raises stacks.NoStacks."""
        return await self._of(pid).stacks.dump(pid)

    async def close(self) -> None:
        """End all nurseries, with everything below them."""
        for end in list(self._ends):
            await end
        for nursery in self._all():
            await nursery.close()

    def _another(self) -> Nursery:
        return Nursery(
            on_exit=self._on_worker_exit,
            on_halt=self._on_halt,
            on_lost=self._on_lost,
            on_event=self._on_event,
            keep=lambda: {*self.pids, *self.spared},
        )

    def _all(self) -> list[Nursery]:
        return [*self._older, self._newest]

    def _of(self, pid: int) -> Nursery:
        return next((nursery for nursery in self._older if nursery.knows(pid)), self._newest)

    def _on_worker_exit(self, end: WorkerExit) -> None:
        self._on_exit(end)
        self._thin()

    def _thin(self) -> None:
        """Close older nurseries that have no workers left."""
        for nursery in list(self._older):
            if nursery.childless:
                self._older.remove(nursery)
                task = asyncio.create_task(nursery.close(), name="old nursery")
                self._ends.add(task)
                task.add_done_callback(self._ends.discard)
