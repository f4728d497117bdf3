"""Views and tool sets: kept, changed by clients and operators, announced to the fronts.

Owns: the way of an order from a front and back, and how far each front is with the changes that all
fronts hear. Never: the rules of an order (`ledger`).

All fronts are told what changed, and only what changed; when the lists of all of them are new
(`Rounds`), their clients hear of it, and so does who ordered it. Lists that servers changed are
announced with a round, too, in which nothing else is told.
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
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.views.ledger_io import Keeper
from metamcp_supervisor.views.store import Store
from metamcp_worker.ipc import codec, packets, process_names, server_catalog
from metamcp_worker.ipc.disclosure import (
    Announce,
    Changed,
    Disclosed,
    Everything,
    Exposure,
    OrderOutcome,
    Pair,
    Shift,
    Wish,
    shift,
)
from metamcp_worker.ipc.messages import Message, SessionRecord


class Rounds:
    """`number`: of the last round; the first one is 1."""

    def __init__(self) -> None:
        self.number = 0
        self._behind: dict[int, int] = {}
        """How far each front is that is not as far as the last round."""

    @property
    def done(self) -> int:
        """The last round that no front is behind."""
        return min(self._behind.values(), default=self.number)

    def begin(self, fronts: Iterable[int]) -> int:
        """A new round, of these fronts; returns its number."""
        before = self.number
        self.number += 1
        self._behind = {front: self._behind.get(front, before) for front in fronts}
        return self.number

    def join(self, front: int) -> None:
        """A front that is new, and is told everything at once."""
        self._behind.pop(front, None)

    def applied(self, front: int, number: int) -> None:
        """This front is so far; one that nobody waits for says nothing new, and a number that is
        still to come is of the program before."""
        if number == self.number:
            self._behind.pop(front, None)
        elif front in self._behind and number < self.number:
            self._behind[front] = max(self._behind[front], number)

    def late(self, number: int) -> None:
        """Nobody waits any longer for those that are not even so far."""
        self._behind = {
            front: max(far, number) for front, far in self._behind.items() if number < self.number
        }

    def left(self, front: int) -> None:
        """A front is gone."""
        self._behind.pop(front, None)


NO_DESCRIPTOR = "the gateway has no free descriptor; try again in a moment"
APPLIED_S_MAX = 1.0
"""For fronts to build their lists: milliseconds. Others do not wait longer for one that hangs; with
the turns before (`keeper`) an order is still answered before its front gives up on it."""


class Views:
    """`config`: what is in force; `kept`: tools in quarantine. `begin` before a front is told
    anything."""

    def __init__(
        self,
        fronts: Fronts,
        routes: Routes,
        journal: Journal,
        config: Callable[[], Config],
        kept: Callable[[], frozenset[Pair]] = frozenset,
    ) -> None:
        self.kept = kept
        self._fronts = fronts
        self._routes = routes
        self._journal = journal
        self._config = config
        self._keeper = Keeper(
            Store(config().gateway.state_dir),
            self._tell,
            self._note,
            time.time,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: Everything | None = None
        """To all fronts; None: what they know is what the program before told them."""
        self._rounds = Rounds()
        self._announced = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def begin(self, records: Sequence[bytes] | None = None) -> None:
        """Read the database. `records`: of the sessions that live on from the program before, None
        without one. An error is written to the journal, and orders are refused then."""
        await self._keeper.begin([_word(record) for record in records or ()])
        if records is None:
            self._told = self._keeper.everything()  # each front hears that when it begins

    @property
    def busy(self) -> bool:
        """Is an order being carried out, or its outcome on its way, to clients as well?"""
        telling = any(front.owes for front in self._fronts.serving())
        return bool(self._tasks) or self._keeper.busy or bool(self._waiting) or telling

    async def close(self) -> None:
        """After the orders that are under way, unless the disk hangs."""
        await self._keeper.close()
        await asyncio.sleep(0)  # who waited for one of them sends its outcome
        for task in self._tasks:
            task.cancel()

    # For the fronts

    def welcome(self, front: FrontProcess) -> None:
        """Tell a new front everything. Raises OSError."""
        self._rounds.join(front.number)
        everything = self._keeper.everything()
        if everything != Everything():
            front.send(Disclosed(), [packets.blob(codec.dump(everything))])

    def asked(self, front: FrontProcess, ticket: int, blob: bytes) -> None:
        """A front has an order, and waits for the outcome. Raises codec.Malformed."""
        if not blob:
            outcome = OrderOutcome(error=NO_DESCRIPTOR)
            self._send(front, Changed(ticket=ticket), codec.dump(outcome))
        else:
            self._begin(self._answer(front, ticket, codec.typed(Wish, blob)))

    def news(self, number: int) -> None:
        """Servers have changed the lists of a front that is as far as this round. Whatever it was
        told of them, the others were told, too: they show it when a next round is done."""
        if number >= self._rounds.number:
            self._round(Shift(), whole=False)

    def left(self, number: int) -> None:
        """This front is gone: nobody waits for it."""
        self._rounds.left(number)
        self._settle()

    def ended(self, sessions: Sequence[str]) -> None:
        """These sessions of clients are over."""
        self._begin(self._keeper.forget([process_names.of_session(one) for one in sessions]))

    # For the control socket: steering.Shelf

    def everything(self) -> Everything:
        return self._keeper.everything()

    async def carry_out(self, wish: Wish) -> OrderOutcome:
        """Done when all fronts show it."""
        outcome = await self._keeper.carry_out(wish)
        if waiting := self._waiting.get(self._rounds.number):
            await asyncio.shield(waiting)
        return outcome

    def endpoints(self) -> Mapping[str, Exposure]:
        config = self._config()
        default = specs.default_endpoint(config)
        found: dict[str, Exposure] = {}
        if default is not None:
            found[default.name] = default.exposure
        for name, one in config.endpoints.items():
            found[name] = one.exposure
        return found

    def tools(self, server: str) -> frozenset[str]:
        packed = self._routes.handed(server).catalogue
        if not packed:
            return frozenset()
        named = (codec.level(tool).get("name", b"") for tool in server_catalog.unpack(packed).tools)
        return frozenset(name for raw in named if (name := codec.text(raw)) is not None)

    def _note(self, why: str) -> None:
        self._journal.add("gateway", "error", why)

    def _tell(self, everything: Everything) -> None:
        """Every front makes these its lists."""
        before, self._told = self._told, everything
        news = everything if before is None else shift(before, everything)
        self._round(news, whole=before is None)

    def _round(self, news: Everything | Shift, *, whole: bool) -> None:
        """Begin one, of all fronts; one that ended is waited for until another has its sessions,
        whose clients hear of it then."""
        fronts = self._fronts.serving()
        number = self._rounds.begin(front.number for front in self._fronts.roster.all())
        for front in self._fronts.roster.all():
            front.owes = number  # if it ends before, whoever takes its sessions tells their clients
        self._fronts.sessions.outdated()
        loop = asyncio.get_running_loop()
        self._waiting[number] = loop.create_future()
        loop.call_later(APPLIED_S_MAX, self._late, number)
        message, blob = Disclosed(number=number, whole=whole), codec.dump(news)
        for front in fronts:
            front.on_applied = partial(self._applied, front.number)
            self._send(front, message, blob)
        self._settle()

    def _applied(self, front: int, number: int) -> None:
        """The lists of this front are so far."""
        self._rounds.applied(front, number)
        self._settle()

    def _late(self, number: int) -> None:
        """Whoever is behind by now is not waited for any more."""
        self._rounds.late(number)
        self._settle()

    def _settle(self) -> None:
        """Have all fronts the lists of a round? Then it may be known."""
        done = self._rounds.done
        if done <= self._announced:
            return
        self._announced = done
        for front in self._fronts.serving():
            front.send(Announce(number=done))
        for number in [each for each in self._waiting if each <= done]:
            self._waiting.pop(number).set_result(None)

    async def _answer(self, front: FrontProcess, ticket: int, wish: Wish) -> None:
        outcome = await self.carry_out(wish)
        # One that is dead takes it in silence.
        self._send(front, Changed(ticket=ticket), codec.dump(outcome))

    def _send(self, front: FrontProcess, message: Message, blob: bytes) -> None:
        try:
            front.send(message, [packets.blob(blob)])
        except OSError as error:
            self._fronts.untold(front, error)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.add("gateway", "bug", repr(error))


def _word(record: bytes) -> str:
    """That stands for the session in views. What cannot be read is said by who adopts it."""
    try:
        return process_names.of_session(codec.typed(SessionRecord, record).id)
    except codec.Malformed:
        return ""
