"""Views of a front as the supervisor and operators deal with them.

Owns: what is in view now, as the supervisor says, orders about views, the round in which clients
hear of changed lists (`Disclosing`); questions of operators about a call and about tools in view.
Never: views (`front_views`), what a tool decides, messages about anything else (`run`).

The lists of all fronts change before any client hears of it: otherwise a client that asks another
front than its own would find the old list. Fronts announce changes by servers in the same way, if
there are several fronts: each front asks for a round, and one round is enough for all.
"""

import asyncio
import time
from collections.abc import Callable

from metamcp_worker.access import gate
from metamcp_worker.access.gate import Principal
from metamcp_worker.builtin_tools.builtin import ToolReply
from metamcp_worker.catalog import call_path
from metamcp_worker.catalog.call_path import HypotheticalCall
from metamcp_worker.catalog.views import View
from metamcp_worker.front.compose import FrontSteps
from metamcp_worker.front_calls.front_views import Changed as ListChanges
from metamcp_worker.front_calls.request_facts import HttpRefused
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.disclosure import (
    DisclosureApplied,
    DisclosureDelta,
    DisclosureState,
    ListsAnnounced,
    OrderOutcome,
    OrderRequest,
    ServerListsChanged,
    ViewOrder,
)
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.figures import (
    KEY_NEEDED,
    CallPath,
    PathQuery,
    PathStep,
    ShownTools,
    ToolQuery,
)
from metamcp_worker.ipc.messages import DisclosureUpdate, Message


class Disclosing:
    """Views and orders of one front. `tell`: sends a message to the supervisor, with descriptors;
    `clients`: notifies the clients whose lists have changed; `several`: whether there are other
    fronts."""

    def __init__(self, steps: FrontSteps, tell: Callable[[Message, tuple[int, ...]], None]) -> None:
        self._calls, self._builtins = steps.calls, steps.builtins
        self._tell = tell
        self._held: dict[int, list[ListChanges]] = {}
        """Changes by the number of the round in which clients hear of them."""
        self._fresh: list[ListChanges] = []
        """Changes for the next round."""
        self._round = 0
        """Number of the round whose changes are being carried out; otherwise 0."""
        self._far = 0
        """Number of the last round that was carried out."""
        self.several = False
        self.clients: Callable[[ListChanges], None] = lambda changed: None
        self._calls.lists_changed = self._on_list_changes
        self._builtins.send = self._order

    def on_disclosure(self, message: DisclosureUpdate, blob: bytes) -> None:
        """Take over what is in view now. Raises codec.Malformed."""
        builtins = self._builtins
        if message.whole:
            builtins.disclose(codec.decode_as(DisclosureState, blob))
        else:
            builtins.shift(codec.decode_as(DisclosureDelta, blob))
        if message.number:
            self._round = self._far = message.number
            self._held[message.number], self._fresh = self._fresh, []
            try:
                self._calls.refresh()
            finally:
                self._round = 0
            self._tell(DisclosureApplied(number=message.number), ())

    def announce(self, number: int) -> None:
        """Notify the clients, because all fronts have carried out this round."""
        for due_number in [each for each in self._held if each <= number]:
            for changed in self._held.pop(due_number):
                self.clients(changed)
        self._tell(ListsAnnounced(number=number), ())

    def finish(self) -> None:
        """Notify all clients at once, now and from now on, because this front ends and cannot do it
        later."""
        self.several = False
        self.announce(self._far)
        fresh, self._fresh = self._fresh, []
        for changed in fresh:
            self.clients(changed)
        self._calls.refresh()  # lists that wait for the end of a pause

    def _on_list_changes(self, changed: ListChanges) -> None:
        if self._round:
            self._held[self._round].append(changed)
        elif self.several:
            self._fresh.append(changed)
            if len(self._fresh) == 1:
                self._tell(ServerListsChanged(number=self._far), ())
        else:
            self.clients(changed)

    def _order(self, ticket: int, wish: ViewOrder) -> None:
        try:
            self._tell(OrderRequest(ticket=ticket), (packets.blob(codec.dump(wish)),))
        except (OSError, TooLarge) as error:
            self._builtins.on_order_outcome(
                ticket, OrderOutcome(error=f"it could not be sent: {error}")
            )


class ViewUnseen(Exception):
    """Raised if the holder of a key sees no view. `endpoint`: empty for an unknown one."""

    def __init__(self, endpoint: str = "", reason: str = "") -> None:
        super().__init__(reason)
        self.endpoint = endpoint


def explain_call(steps: FrontSteps, query: PathQuery) -> CallPath:
    """Return what would happen to a call."""
    now, date = asyncio.get_running_loop().time(), _date()
    try:
        who, view = _find_view(steps, query, date)
    except ViewUnseen as unseen:
        if not str(unseen):
            return CallPath(endpoint=unseen.endpoint)
        stop = PathStep("gate", str(unseen), stops=True)
        return CallPath(endpoint=unseen.endpoint, server="-", steps=(stop,))
    calls, viewers = steps.calls, steps.calls.viewers
    planned_call = HypotheticalCall(query.tool, who, bytes(query.arguments), now, date)
    everything, rules = viewers.find_merged(view.endpoint), viewers.rules(view.endpoint)
    return call_path.explain(view, everything, planned_call, calls.meters, rules)


def list_tools(steps: FrontSteps, query: ToolQuery, done: Callable[[bytes], None]) -> None:
    """Call `done` with the tools that a client sees, encoded, at once or when they are found."""
    try:
        _, view = _find_view(steps, query, _date())
    except ViewUnseen as unseen:
        done(codec.dump(ShownTools(endpoint=unseen.endpoint, refused=str(unseen))))
        return
    endpoint = view.whole

    def on_reply(reply: ToolReply) -> None:
        done(codec.dump({"endpoint": endpoint, **(reply.structured or {})}))

    steps.builtins.list_view_tools(view, query, on_reply)


def _date() -> float:
    return time.time_ns() / 1e9


def _find_view(
    steps: FrontSteps, query: PathQuery | ToolQuery, date: float
) -> tuple[Principal, View]:
    """Return the holder of the key that is meant, and the view that the holder sees. Raises
    ViewUnseen."""
    viewers, app = steps.calls.viewers, steps.app
    specs = {name: view.spec for name, view in viewers.local.items() if not view.spec.part_of}
    default = next((name for name, spec in specs.items() if spec.default), "")
    endpoint = query.endpoint or default
    if app is None or endpoint not in specs:
        raise ViewUnseen
    who = app.door.holder(query.key) if query.key else gate.USER
    if who is None or (
        specs[endpoint].auth and (who is gate.USER or not app.door.still(who, endpoint, date))
    ):
        refusal = "the key is not accepted here" if query.key else KEY_NEEDED
        raise ViewUnseen(endpoint, refusal)
    try:
        name = app.part(endpoint, gate.USER if not specs[endpoint].auth else who)
    except HttpRefused as refusal:
        raise ViewUnseen(endpoint, str(refusal)) from None
    view = viewers.get(name, who.name)
    if view is None:
        raise ViewUnseen(endpoint)
    return who, view
