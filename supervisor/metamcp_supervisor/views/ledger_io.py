"""Orders about views and tool sets, carried out one after the other: decided, written, announced.

Owns: the turn of each order, which view is busy, the current views and tool sets, messages about
errors of the file. Never: the rules (`ledger`), the file (`store`), fronts.

Changes take effect only after they are written: an order that cannot be written changes nothing.
While the file cannot be read, views and tool sets are not known, and every order tries to read it
again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from metamcp_supervisor.store.database import StoreError
from metamcp_supervisor.views.ledger import Delta, Ledger, OrderImpossible
from metamcp_supervisor.views.store import Store
from metamcp_worker.ipc.disclosure import (
    Amend,
    Build,
    Delete,
    DeleteScript,
    DisclosureState,
    Equip,
    OrderOutcome,
    Save,
    SaveScript,
    ToolSet,
    ViewContent,
    ViewOrder,
    ViewOwner,
)
from metamcp_worker.ipc.saved_scripts import Script

T = TypeVar("T")

IN_PROGRESS = "operation in progress, please wait"
LATE = "the orders before it take too long, and nothing was changed; try again"
STOPS = "nothing is changed: the gateway stops"
TURN_S_MAX = 3.0
"""Maximum seconds that an order waits for the orders before it. Together with the time for the file
(`database.BUSY_S_MAX`, three times) the order is answered before its front stops waiting."""
CLOSE_S_MAX = 10.0
"""Maximum seconds for the last orders when the gateway ends."""
_NOTHING = ViewContent()


class LedgerKeeper:
    """Keeper of views and tool sets. `tell`: called with everything after each change. `note`:
    called once with the reason when the file cannot be used. `clock`: returns seconds since the
    epoch. Call `begin` first."""

    def __init__(
        self,
        store: Store,
        tell: Callable[[DisclosureState], None],
        note: Callable[[str], None],
        clock: Callable[[], float],
        *,
        turn_s: float = TURN_S_MAX,
    ) -> None:
        self._store = store
        self._tell = tell
        self._note = note
        self._clock = clock
        self._turn_s = turn_s
        self._ledger: Ledger | None = None
        self._living: frozenset[str] = frozenset()
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._busy: Counter[ViewOwner] = Counter()
        self._noted = ""
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether an order is being carried out or waits for its turn."""
        return bool(self._under_way)

    @property
    def unread(self) -> str:
        """Why nothing can be read; empty if it can."""
        return self._noted if self._ledger is None else ""

    async def read_again(self) -> None:
        """Read the file if that has failed so far; `unread` says whether it failed again."""
        if self._ledger is None:
            try:
                async with asyncio.timeout(self._turn_s), self._turn:
                    await self._readable()
            except StoreError as error:
                self._report_failure(error)
            except TimeoutError:
                return

    def read_everything(self) -> DisclosureState:
        return DisclosureState() if self._ledger is None else self._ledger.read_everything()

    async def begin(self, living: Collection[str]) -> None:
        """Read the file. `living`: words for sessions that go on."""
        self._living = frozenset(living)
        try:
            self._ledger = Ledger(await self._store.read(self._living))
        except StoreError as error:
            self._report_failure(error)

    async def carry_out(self, wish: ViewOrder) -> OrderOutcome:
        """Carry out an order and return its outcome. An order to equip is refused while another
        order for the same view is under way; all others wait."""
        whose, order = wish.whose, wish.order
        equips = isinstance(order, Equip) or (isinstance(order, Build) and order.equip)
        if self._closed:
            return self._refuse(whose, STOPS)
        if equips and self._busy[whose]:
            return self._refuse(whose, IN_PROGRESS)
        self._busy[whose] += 1
        try:
            return await self._whole(self._carried_out(wish))
        finally:
            self._busy[whose] -= 1
            if not self._busy[whose]:
                del self._busy[whose]

    async def versions(self, script: str) -> tuple[Script, ...]:
        """Return the versions of a script that are kept, the oldest first. Raises StoreError."""
        return await self._store.versions(script)

    async def forget(self, words: Collection[str]) -> None:
        """Remove the views that belong to these sessions only, because the sessions have ended."""
        self._living -= frozenset(words)
        if self._under_way or (self._ledger is not None and self._ledger.sessions(words)):
            await self._whole(self._forget_sessions(words))

    async def close(self) -> None:
        """Close the file after the orders that are under way, unless the disk hangs."""
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_S_MAX)
        if not self._under_way:
            await self._store.close()

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out the work to its end, even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _carried_out(self, wish: ViewOrder) -> OrderOutcome:
        whose, order = wish.whose, wish.order
        try:
            async with asyncio.timeout(self._turn_s):
                await self._turn.acquire()
        except TimeoutError:
            return self._refuse(whose, LATE)
        try:
            ledger = await self._readable()
            before = ledger.find_view(whose)
            delta = ledger.decide(wish, self._clock())
            if ledger.changes(delta):
                await self._store.write(delta)
                self._noted = ""
                self._apply(ledger, delta)
        except OrderImpossible as error:
            return self._refuse(whose, str(error))
        except StoreError as error:
            self._report_failure(error)
            return self._refuse(whose, str(error))
        finally:
            self._turn.release()
        about: ToolSet | None = None
        if isinstance(order, Equip | Build | Save | Amend | Delete):
            about = ledger.toolset(order.toolset)
        script: Script | None = None
        if isinstance(order, SaveScript | DeleteScript):
            script = ledger.script(order.script)
        return OrderOutcome("", before, ledger.find_view(whose), about, script)

    async def _readable(self) -> Ledger:
        """Return the ledger; read the file if that has failed so far. Raises StoreError."""
        if self._ledger is None:
            self._ledger = Ledger(await self._store.read(self._living))
            self._noted = ""
            self._tell(self._ledger.read_everything())
        return self._ledger

    async def _forget_sessions(self, words: Collection[str]) -> None:
        async with self._turn:
            ledger = self._ledger
            if ledger is None or not (owners := ledger.sessions(words)):
                return
            delta = Delta(tuple((whose, _NOTHING) for whose in owners))
            try:
                await self._store.write(delta)
            except StoreError as error:  # rows that stay on disk are not read again
                self._report_failure(error)
            self._apply(ledger, delta)

    def _apply(self, ledger: Ledger, delta: Delta) -> None:
        ledger.apply(delta)
        self._tell(ledger.read_everything())

    def _report_failure(self, error: StoreError) -> None:
        """Report an error of the file, once for each sentence."""
        if self._noted != str(error):
            self._noted = str(error)
            self._note(f"tool sets, views and scripts cannot be kept: {error}")

    def _refuse(self, whose: ViewOwner, reason: str) -> OrderOutcome:
        view = _NOTHING if self._ledger is None else self._ledger.find_view(whose)
        return OrderOutcome(error=reason, before=view, after=view)
