"""Use of quotas: the calls of the day, kept over the ends of fronts and of the gateway.

Owns: the counts of `calls_per_day` by owner, their rows in the database, which of them a new front
gets. Never: refusing a call (fronts do), the limits themselves.

Fronts report their calls once a second, and when they end. Each has its share of a quota, and what
it has used belongs to its place: the front that takes the place goes on from there. After a start
of the gateway, every place gets its share of what was used before. Counts of another day than today
count no more.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.store.database import Database, Rows, StoreError
from metamcp_worker.access.use_limits import DAY_S, Owner
from metamcp_worker.ipc.figures import DayCount, DayCounts

CLOSE_S_MAX = 10.0
"""Maximum seconds for the last write when the gateway ends."""


class Quotas:
    """Counts of the day. `clock`: seconds since the epoch; `serving`: returns the fronts;
    `places`: returns the number of fronts that share the limits; `note`: called with a sentence
    about an error."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float],
        serving: Callable[[], Iterable[FrontProcess]],
        places: Callable[[], int],
        note: Callable[[str], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._serving = serving
        self._places = places
        self._note = note
        self._day = 0
        self._before: Counter[Owner] = Counter()
        """Calls of the day before this program began."""
        self._used: dict[int, Counter[Owner]] = {}
        """Calls since then, by the place (`FrontProcess.slot`) of the front that made them."""
        self._unwritten: set[Owner] = set()
        self._write: asyncio.Task[None] | None = None
        self._failed = False
        self._unread = True
        """The counts before this program are not read yet."""

    @property
    def busy(self) -> bool:
        """Whether counts are being written."""
        return self._write is not None

    async def begin(self) -> None:
        """Read the counts of today. An error is noted; then counting starts again."""
        self._day = self._today()
        try:
            await self._read()
        except StoreError as error:
            self._note(f"the calls of today before now do not count: {error}")

    async def _read(self) -> None:
        """Read the counts before this program began. Raises StoreError."""
        day = self._day
        none: Counter[Owner] = Counter()
        self._before = await self._database.read(lambda rows: _read_counts(rows, day), none)
        self._unread = False

    def today(self) -> Counter[Owner]:
        """Return the calls of today by owner, as far as fronts have reported them."""
        if self._day != self._today():
            return Counter()
        return sum(self._used.values(), self._before)

    def welcome(self, front: FrontProcess) -> None:
        """Send a new front the calls that were used of its share."""
        if self._day != self._today():
            return
        places = max(1, self._places())
        used = Counter({owner: -(-calls // places) for owner, calls in self._before.items()})
        used += self._used.get(front.slot, Counter())
        for message in DayCounts.of([DayCount(*owner, self._day, n) for owner, n in used.items()]):
            front.send(message)

    def on_day_counts(self, front: FrontProcess, counts: Sequence[DayCount]) -> None:
        """Count calls of this front, and send them to the front that takes its place already."""
        today = self._today()
        if self._day != today:
            self._day = today
            self._before.clear()
            self._used.clear()
        calls = Counter(
            {(count.kind, count.name): count.calls for count in counts if count.day == today}
        )
        self._used.setdefault(front.slot, Counter()).update(calls)
        for other in self._serving():
            if other.slot == front.slot and other.number > front.number:
                other.send(DayCounts(counts=tuple(counts)))
        self._unwritten |= calls.keys()
        if self._unwritten and self._write is None:
            self._write = asyncio.create_task(self._store())

    async def close(self) -> None:
        """Wait until everything is written, unless the disk hangs; call this before the database is
        closed."""
        if self._write is not None:
            await asyncio.wait([self._write], timeout=CLOSE_S_MAX)

    def _today(self) -> int:
        return int(self._clock() // DAY_S)

    def _calls(self, owner: Owner) -> int:
        return self._before[owner] + sum(calls[owner] for calls in self._used.values())

    async def _store(self) -> None:
        """Write all changes, also those that come during the write. After an error they are written
        with the next change."""
        try:
            while owners := self._unwritten:
                self._unwritten = set()
                day = self._day
                try:
                    if self._unread:
                        await self._read()
                    rows = [(*owner, day, n) for owner in owners if (n := self._calls(owner))]
                    put = partial(_put, day=day, counts=rows)
                    await self._database.write(put, repeats=True)
                except StoreError as error:
                    self._unwritten |= owners
                    if not self._failed:
                        self._note(f"a restart would forget calls of today: {error}")
                    self._failed = True
                    return
                self._failed = False
        finally:
            self._write = None


def _read_counts(rows: Rows, day: int) -> Counter[Owner]:
    records = rows.read("SELECT kind, name, used FROM quota WHERE day = ?", (day,))
    return Counter({(kind, name): used for kind, name, used in records})


def _put(rows: Rows, day: int, counts: Sequence[tuple[str, str, int, int]]) -> None:
    rows.change("DELETE FROM quota WHERE day <> ?", [(day,)])
    rows.change(
        "INSERT INTO quota VALUES (?, ?, ?, ?)"
        " ON CONFLICT (kind, name) DO UPDATE SET day = excluded.day, used = excluded.used",
        counts,
    )
