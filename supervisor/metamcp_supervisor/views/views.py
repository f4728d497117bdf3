"""Views, tool sets and scripts: kept, changed by clients and operators, announced to the fronts.

Owns: the way of an order from a front and back, and how many of the announced changes each front
has applied. Never: the rules of an order (`ledger`).

All fronts get each change, and only the change. When all of them have applied it (`Rounds`), they
notify their clients, and the client or operator with the order gets the outcome. Changes of lists
by servers are announced with a round, too, which has no other content.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.servers import specs
from metamcp_supervisor.servers.publish import Routes
from metamcp_supervisor.store.database import Database
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.views.ledger_io import LedgerKeeper
from metamcp_supervisor.views.store import Store
from metamcp_worker.ipc import codec, packets, process_names, server_catalog
from metamcp_worker.ipc.disclosure import (
    AnnounceLists,
    DisclosureDelta,
    DisclosureState,
    DisclosureUpdate,
    Exposure,
    OrderOutcome,
    OrderReply,
    Pair,
    ViewOrder,
    shift,
)
from metamcp_worker.ipc.messages import Message, SessionRecord
from metamcp_worker.ipc.saved_scripts import Script


class Rounds:
    """Rounds of changes, and the fronts that have not applied them yet. `number`: of the last
    round; the first round is 1."""

    def __init__(self) -> None:
        self.number = 0
        self._behind: dict[int, int] = {}
        """Last applied round of each front that has not applied the last round yet."""

    @property
    def applied_round(self) -> int:
        """Number of the last round that all fronts have applied."""
        return min(self._behind.values(), default=self.number)

    def begin(self, fronts: Iterable[int]) -> int:
        """Begin a new round with these fronts; return its number."""
        before = self.number
        self.number += 1
        self._behind = {front: self._behind.get(front, before) for front in fronts}
        return self.number

    def join(self, front: int) -> None:
        """Note a new front, which gets everything at once and so is not behind."""
        self._behind.pop(front, None)

    def on_round_applied(self, front: int, number: int) -> None:
        """Note that a front has applied a round. A front that is not behind is ignored, and so is a
        number above the last round, which is of the previous program."""
        if number == self.number:
            self._behind.pop(front, None)
        elif front in self._behind and number < self.number:
            self._behind[front] = max(self._behind[front], number)

    def on_timeout(self, number: int) -> None:
        """Stop waiting for the fronts that have not applied this round: count it as applied."""
        self._behind = {
            front: max(far, number) for front, far in self._behind.items() if number < self.number
        }

    def on_front_gone(self, front: int) -> None:
        """Forget a front that has ended."""
        self._behind.pop(front, None)


NO_DESCRIPTOR = "the gateway has no free descriptor; try again in a moment"
APPLIED_S_MAX = 1.0
"""Maximum seconds for fronts to build their lists, which usually takes milliseconds; other fronts
do not wait longer for a front that hangs. Together with the orders before (`ledger_io`) an order is
still answered before its front stops waiting."""


class Views:
    """Views and tool sets of one gateway. `config`: returns the configuration in force; `database`:
    where they are stored; `quarantined`: returns the tools in quarantine. Call `begin` before a
    front starts."""

    def __init__(
        self,
        fronts: Fronts,
        routes: Routes,
        journal: Journal,
        config: Callable[[], Config],
        database: Database,
        quarantined: Callable[[], frozenset[Pair]] = frozenset,
    ) -> None:
        self.list_quarantined = quarantined
        self._fronts = fronts
        self._routes = routes
        self._journal = journal
        self._config = config
        self._keeper = LedgerKeeper(
            Store(database),
            self._tell,
            self._note,
            time.time,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: DisclosureState | None = None
        """Content that all fronts have; None if they have the content of the previous program."""
        self._rounds = Rounds()
        self._announced = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def begin(self, records: Sequence[bytes] | None = None) -> None:
        """Read the database. `records`: of sessions that go on after an upgrade, None without an
        upgrade. After an error, which is written to the journal, orders are refused."""
        await self._keeper.begin([_word(record) for record in records or ()])
        if records is None:
            self._told = self._keeper.read_everything()  # each front hears that when it begins

    @property
    def busy(self) -> bool:
        """Whether an order is being carried out, or its outcome is on its way to fronts or
        clients."""
        telling = any(front.owes for front in self._fronts.list_serving())
        return bool(self._tasks) or self._keeper.busy or bool(self._waiting) or telling

    async def close(self) -> None:
        """Close the database after the orders that are under way, unless the disk hangs."""
        await self._keeper.close()
        await asyncio.sleep(0)  # tasks that waited for an order send its outcome
        for task in self._tasks:
            task.cancel()

    # For the fronts

    def welcome(self, front: FrontProcess) -> None:
        """Send all views and tool sets to a new front. Raises OSError."""
        self._rounds.join(front.number)
        everything = self._keeper.read_everything()
        if everything != DisclosureState():
            front.send(DisclosureUpdate(), [packets.blob(codec.dump(everything))])

    def carry_out_order(self, front: FrontProcess, ticket: int, blob: bytes) -> None:
        """Carry out an order of a front, which waits for the outcome. `blob`: empty if its
        descriptor was lost. Raises codec.Malformed."""
        if not blob:
            outcome = OrderOutcome(error=NO_DESCRIPTOR)
            self._send(front, OrderReply(ticket=ticket), codec.dump(outcome))
        else:
            self._begin(self._answer(front, ticket, codec.decode_as(ViewOrder, blob)))

    def news(self, number: int) -> None:
        """Begin a round, because servers have changed the lists of a front. `number`: the last
        round that the front has applied; a round that it has still to apply announces these
        changes, too. The other fronts know the same changes of servers, and show them when the
        round is done."""
        if number >= self._rounds.number:
            self._round(DisclosureDelta(), complete=False)

    def on_front_gone(self, number: int) -> None:
        """Stop waiting for a front that has ended."""
        self._rounds.on_front_gone(number)
        self._settle()

    def on_sessions_ended(self, sessions: Sequence[str]) -> None:
        """Remove the views of sessions that have ended."""
        self._begin(
            self._keeper.forget([process_names.of_session(session) for session in sessions])
        )

    # For the control socket: services.ViewStore

    @property
    def unread(self) -> str:
        return self._keeper.unread

    async def read_again(self) -> None:
        await self._keeper.read_again()

    def read_everything(self) -> DisclosureState:
        return self._keeper.read_everything()

    async def carry_out(self, wish: ViewOrder) -> OrderOutcome:
        """Carry out an order. Returns when all fronts have applied the change, or after
        APPLIED_S_MAX."""
        outcome = await self._keeper.carry_out(wish)
        if waiting := self._waiting.get(self._rounds.number):
            await asyncio.shield(waiting)
        return outcome

    async def versions(self, script: str) -> Sequence[Script]:
        return await self._keeper.versions(script)

    def endpoints(self) -> Mapping[str, Exposure]:
        config = self._config()
        default = specs.default_endpoint(config)
        exposures: dict[str, Exposure] = {}
        if default is not None:
            exposures[default.name] = default.exposure
        for name, endpoint in config.endpoints.items():
            exposures[name] = endpoint.exposure
        return exposures

    def tools(self, server: str) -> frozenset[str]:
        packed = self._routes.find_published(server).catalogue
        if not packed:
            return frozenset()
        named = (codec.level(tool).get("name", b"") for tool in server_catalog.unpack(packed).tools)
        return frozenset(name for raw in named if (name := codec.text(raw)) is not None)

    def _note(self, reason: str) -> None:
        self._journal.add("gateway", "error", reason)

    def _tell(self, everything: DisclosureState) -> None:
        """Send views and tool sets to all fronts: all of them, or the change since the last
        time."""
        before, self._told = self._told, everything
        news = everything if before is None else shift(before, everything)
        self._round(news, complete=before is None)

    def _round(self, news: DisclosureState | DisclosureDelta, *, complete: bool) -> None:
        """Begin a round with all fronts. The round also waits for a front that has ended, until
        another front has its sessions and can notify their clients."""
        fronts = self._fronts.list_serving()
        number = self._rounds.begin(front.number for front in self._fronts.roster.all())
        for front in self._fronts.roster.all():
            front.owes = number  # if it ends before, its heir notifies the clients
        self._fronts.sessions.mark_outdated()
        loop = asyncio.get_running_loop()
        self._waiting[number] = loop.create_future()
        loop.call_later(APPLIED_S_MAX, self._on_timeout, number)
        message, blob = DisclosureUpdate(number=number, whole=complete), codec.dump(news)
        for front in fronts:
            front.on_applied = partial(self._on_applied, front.number)
            self._send(front, message, blob)
        self._settle()

    def _on_applied(self, front: int, number: int) -> None:
        """Note that a front has applied a round."""
        self._rounds.on_round_applied(front, number)
        self._settle()

    def _on_timeout(self, number: int) -> None:
        """Stop waiting for the fronts that have not applied this round."""
        self._rounds.on_timeout(number)
        self._settle()

    def _settle(self) -> None:
        """Announce the rounds that all fronts have applied, so that they notify their clients."""
        done = self._rounds.applied_round
        if done <= self._announced:
            return
        self._announced = done
        for front in self._fronts.list_serving():
            front.send(AnnounceLists(number=done))
        for number in [each for each in self._waiting if each <= done]:
            self._waiting.pop(number).set_result(None)

    async def _answer(self, front: FrontProcess, ticket: int, wish: ViewOrder) -> None:
        outcome = await self.carry_out(wish)
        # A front that is dead ignores the message.
        self._send(front, OrderReply(ticket=ticket), codec.dump(outcome))

    def _send(self, front: FrontProcess, message: Message, blob: bytes) -> None:
        try:
            front.send(message, [packets.blob(blob)])
        except OSError as error:
            self._fronts.untold(front, error)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.add("gateway", "bug", repr(error))


def _word(record: bytes) -> str:
    """Return the word for a session in views; "" for a record that cannot be read, which is
    reported where the session is adopted."""
    try:
        return process_names.of_session(codec.decode_as(SessionRecord, record).id)
    except codec.Malformed:
        return ""
