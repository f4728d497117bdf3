"""Orders to the supervisor about views, and the views that the supervisor sends.

Owns: the way of an order to the supervisor, changes that clients have not heard of yet. Never:
views (`front_views`), which orders there are (`builtin_calls`), how clients are told (`http`).

The lists of all fronts change before any client hears of it: otherwise a client that asks another
front than the one that told it would find the old list. Changes by servers are told in the same
way, if there are several fronts: each front asks for a round, and one round is enough for all.
"""

from collections.abc import Callable

from metamcp_worker.front.calls import Calls
from metamcp_worker.front.front_views import Changed
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.codec import Message
from metamcp_worker.ipc.disclosure import (
    Applied,
    Change,
    Disclosed,
    Everything,
    News,
    OrderOutcome,
    Shift,
    Told,
    Wish,
)
from metamcp_worker.ipc.errors import TooLarge


class Disclosing:
    """Views and orders of one front. `tell`: sends a message to the supervisor, with descriptors;
    `clients`: tells the clients whose lists have changed; `several`: whether there are other
    fronts."""

    def __init__(self, calls: Calls, tell: Callable[[Message, tuple[int, ...]], None]) -> None:
        self._calls = calls
        self._tell = tell
        self._held: dict[int, list[Changed]] = {}
        """Changes by the number of the round in which clients hear of them."""
        self._fresh: list[Changed] = []
        """Changes for the next round."""
        self._round = 0
        """Number of the round whose changes are being carried out; otherwise 0."""
        self._far = 0
        """Number of the last round that was carried out."""
        self.several = False
        self.clients: Callable[[Changed], None] = lambda changed: None
        calls.lists_changed = self._changed
        calls.builtins.send = self._order

    def disclosed(self, message: Disclosed, blob: bytes) -> None:
        """Take over what is in view now. Raises codec.Malformed."""
        builtins = self._calls.builtins
        if message.whole:
            builtins.disclose(codec.typed(Everything, blob))
        else:
            builtins.shift(codec.typed(Shift, blob))
        if message.number:
            self._round = self._far = message.number
            self._held[message.number], self._fresh = self._fresh, []
            try:
                self._calls.refresh()
            finally:
                self._round = 0
            self._tell(Applied(number=message.number), ())

    def announce(self, number: int) -> None:
        """Tell the clients, because all fronts have carried out this round."""
        for held in [each for each in self._held if each <= number]:
            for changed in self._held.pop(held):
                self.clients(changed)
        self._tell(Told(number=number), ())

    def finish(self) -> None:
        """Tell all clients at once, now and from now on, because this front ends and cannot tell
        them later."""
        self.several = False
        self.announce(self._far)
        fresh, self._fresh = self._fresh, []
        for changed in fresh:
            self.clients(changed)

    def _changed(self, changed: Changed) -> None:
        if self._round:
            self._held[self._round].append(changed)
        elif self.several:
            self._fresh.append(changed)
            if len(self._fresh) == 1:
                self._tell(News(number=self._far), ())
        else:
            self.clients(changed)

    def _order(self, ticket: int, wish: Wish) -> None:
        try:
            self._tell(Change(ticket=ticket), (packets.blob(codec.dump(wish)),))
        except (OSError, TooLarge) as error:
            self._calls.builtins.changed(
                ticket, OrderOutcome(error=f"it could not be sent: {error}")
            )
