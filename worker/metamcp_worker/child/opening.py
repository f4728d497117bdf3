"""From the first word to a server that is ready, and its lists as they change.

Owns: the order of handshake and lists, the catalogue, when lists are read again. Never: calls of
fronts, what is sent when; requests are made by `own`.
"""

from collections.abc import Iterable

from msgspec import Raw

from metamcp_worker import catalogue
from metamcp_worker.catalogue import DISCOVER, Hint, ServerCatalogue
from metamcp_worker.child import wire
from metamcp_worker.child.actions import Actions, Fail, Purpose, Ready, Relisted, Warn, Write
from metamcp_worker.child.faults import unauthorized
from metamcp_worker.child.handshake import PROBE_S_MAX, Handshake, Met, Phase, Refused
from metamcp_worker.child.listing import Listing, declared
from metamcp_worker.child.own import Own
from metamcp_worker.child.wire import Ask
from metamcp_worker.spec import ServerSpec

RELIST_S_MIN = 0.5
"""Between two readings of the lists, however often the server says that they changed."""


class Opening:
    """`met`: the server, as soon as it is known. `ready`: its lists have been read once."""

    def __init__(self, spec: ServerSpec, version: str, own: Own, now: float) -> None:
        self._spec = spec
        self._own = own
        self._start_by = now + spec.start_timeout_s
        probe_s = min(PROBE_S_MAX, spec.start_timeout_s / 4)
        # Over HTTP the transport has a session for each kind of client and declares what it can.
        self._handshake = Handshake(
            version, probe=spec.probe, now=now, probe_s=probe_s, shared=spec.url is None
        )
        self._listing: Listing | None = None
        self._page_by = 0.0
        self._changed: frozenset[str] = frozenset()
        self._list_again_at = 0.0
        self._lists: dict[str, tuple[Raw, ...]] = {}
        self._hints: dict[str, Hint] = {}
        self._list_hash = ""
        self.met: Met | None = None

    @property
    def ready(self) -> bool:
        return bool(self._list_hash)

    @property
    def probing(self) -> bool:
        """Is the server being asked whether it is modern?"""
        return self.met is None and self._handshake.phase is Phase.PROBE

    def start(self) -> Actions:
        """The server runs: say the first words."""
        return [self._own.ask(Purpose.HANDSHAKE, self._handshake.ask())]

    def answered(self, purpose: Purpose, result: bytes, error: bytes, now: float) -> Actions:
        """The answer to a request of ours: a raw result or a raw error."""
        if error and not self.ready and (why := unauthorized(error, self._spec.name)):
            return [Fail("authorization", f"it {why}")]
        if purpose is Purpose.HANDSHAKE:
            shaken = self._handshake.failed(error) if error else self._handshake.answered(result)
            return self._shaken(shaken, now)
        if self._listing is None:
            return []
        if error:
            self._listing.refused(error)
        else:
            self._listing.answered(result)
        return self._next_page(now)

    def changed(self, lists: Iterable[str], now: float) -> Actions:
        """These lists may be others now."""
        self._changed |= frozenset(lists)
        return self._relist(now)

    def tick(self, now: float) -> Actions:
        if not self.ready:
            return self._start_tick(now)
        if self._listing is not None and now >= self._page_by:
            self._listing.silent()
            return [*self._next_page(now), *self._relist(now)]
        return self._relist(now)

    def _start_tick(self, now: float) -> Actions:
        if now >= self._start_by:
            waits = "the answer to initialize or server/discover" if not self.met else "its lists"
            message = f"it did not give {waits} within {self._spec.start_timeout_s:g} s"
            return [Fail("start_timeout", message)]
        if self.met is None and self._handshake.silent(now):
            return [self._own.ask(Purpose.HANDSHAKE, self._handshake.ask())]
        return []

    def _shaken(self, found: Ask | Met | Refused, now: float) -> Actions:
        if isinstance(found, Ask):
            return [self._own.ask(Purpose.HANDSHAKE, found)]
        if isinstance(found, Refused):
            return [Fail("protocol", found.message)]
        self.met = found
        self._own.met(found.protocol)
        first: Actions = []
        if found.initialized:
            first = [Write(wire.notification("notifications/initialized"))]
        self._listing = Listing(declared(found.capabilities))
        return [*first, *self._next_page(now)]

    def _relist(self, now: float) -> Actions:
        """Read again what changed, unless that happened just now or still goes on."""
        if not self.ready or self._listing is not None or self.met is None:
            return []
        changed = self._changed & declared(self.met.capabilities) if self._changed else ()
        if not changed or now < self._list_again_at:
            return []
        self._changed = frozenset()
        self._list_again_at = now + RELIST_S_MIN
        self._listing = Listing(changed)
        return self._next_page(now)

    def _next_page(self, now: float) -> Actions:
        assert self._listing is not None
        ask = self._listing.ask()
        if ask is None:
            return self._listed(self._listing)
        self._page_by = now + self._spec.timeout_s
        return [self._own.ask(Purpose.LIST, ask)]

    def _listed(self, done: Listing) -> Actions:
        self._listing = None
        actions: Actions = [Warn(text) for text in done.warnings]
        if done.failed and not self.ready:
            return [*actions, Fail("protocol", done.failed)]
        if done.failed:
            actions.append(Warn(f"{done.failed}; the list stays as it was"))
        self._lists |= done.lists
        self._hints |= done.hints
        found = self._catalogue()
        was_ready, before = self.ready, self._list_hash
        self._list_hash = catalogue.list_hash(found)
        if not was_ready:
            return [*actions, Ready(found, self._list_hash)]
        if self._list_hash != before:
            actions.append(Relisted(found, self._list_hash))
        return actions

    def _catalogue(self) -> ServerCatalogue:
        assert self.met is not None
        return ServerCatalogue(
            protocol=self.met.protocol,
            serverInfo=self.met.server_info,
            capabilities=self.met.capabilities,
            instructions=self.met.instructions,
            tools=self._lists.get("tools", ()),
            prompts=self._lists.get("prompts", ()),
            resources=self._lists.get("resources", ()),
            resourceTemplates=self._lists.get("resourceTemplates", ()),
            hints={**self._hints, DISCOVER: self.met.hint},
        )
