"""From the first word to a server that is ready, and its lists as they change.

Owns: the order of handshake and lists, the catalogue, when lists are read again. Never: calls of
fronts, what is sent when; requests are made by `own`.
"""

from collections.abc import Iterable

from msgspec import Raw

from metamcp_worker.child import wire
from metamcp_worker.child.actions import (
    Actions,
    Announce,
    Fail,
    Purpose,
    Ready,
    Relisted,
    Warn,
    Write,
)
from metamcp_worker.child.faults import unauthorized
from metamcp_worker.child.handshake import PROBE_S_MAX, ROUTABLE, Handshake, Met, Phase, Refused
from metamcp_worker.child.listing import Listing, declared
from metamcp_worker.child.own import Own
from metamcp_worker.child.sessions import NOTHING, askable
from metamcp_worker.child.wire import Ask
from metamcp_worker.ipc import codec, server_catalog
from metamcp_worker.ipc.frames import Notice
from metamcp_worker.ipc.roots import Asked, wider
from metamcp_worker.ipc.server_catalog import DISCOVER, Hint, ServerCatalogue
from metamcp_worker.ipc.spec import ServerSpec

RELIST_S_MIN, RELIST_S_MAX = 0.5, 8.0
"""Between two readings of the lists, however often the server says that they changed: after RELISTS
in a row twice as long each time, until it was quiet for a while."""
RELISTS = 8
"""More changes than an honest server has in a few seconds."""


class Opening:
    """`met`: the server, as soon as it is known. `ready`: its lists have been read once."""

    def __init__(self, spec: ServerSpec, version: str, own: Own, now: float) -> None:
        self._spec = spec
        self._own = own
        self._start_by = now + spec.start_timeout_s
        probe_s = min(PROBE_S_MAX, spec.start_timeout_s / 4)
        self._handshake = Handshake(
            version, era=spec.era, now=now, probe_s=probe_s, capabilities=_declared(spec)
        )
        self._listing: Listing | None = None
        self._page_by = 0.0
        self._changed: frozenset[str] = frozenset()
        self._said: set[str] = set()
        self._judged: set[str] = set()
        self._list_again_at = 0.0
        self._relist_s = RELIST_S_MIN
        self._relists = 0
        self._lists: dict[str, tuple[Raw, ...]] = {}
        self._hints: dict[str, Hint] = {}
        self._list_hash = ""
        self._asks_roots: Asked = spec.asks_roots
        self.met: Met | None = None

    @property
    def ready(self) -> bool:
        return bool(self._list_hash)

    @property
    def asks_ahead(self) -> bool:
        """Is the server one that asks for roots before there is any call?"""
        return self._asks_roots == "ahead"

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

    def changed(self, lists: Iterable[str], now: float, said: str = "") -> Actions:
        """These lists may be others now. `said`: the notification that says so."""
        self._changed |= frozenset(lists)
        if said:
            self._said.add(said)
        return self._relist(now)

    def asked_for_roots(self, when: Asked) -> Actions:
        """The server asked for the roots of its client. Whoever knew that already is not told."""
        before, self._asks_roots = self._asks_roots, wider(self._asks_roots, when)
        if self._asks_roots == before:
            return []
        return [Relisted(self._catalogue(), self._list_hash)] if self.ready else []

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
        self._judged, self._said = self._said, set()
        quiet = now - self._list_again_at > self._relist_s
        self._relists = 1 if quiet else self._relists + 1
        slower = 2 ** max(0, self._relists - RELISTS)
        self._relist_s = min(RELIST_S_MAX, RELIST_S_MIN * slower)
        self._list_again_at = now + self._relist_s
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
        self._list_hash = server_catalog.list_hash(found)
        if not was_ready:
            return [*actions, Ready(found, self._list_hash)]
        if self._list_hash != before:
            return [*actions, Relisted(found, self._list_hash)]
        # Fronts pass it on where this is the only server, as it would say it without a gateway.
        said = () if done.failed else sorted(self._judged)
        return [*actions, *(Announce(Notice(method, b"{}")) for method in said)]

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
            asksRoots=self._asks_roots,
        )


def _declared(spec: ServerSpec) -> Raw:
    """What is said of the client in `initialize`: what the only client says of itself, or what any
    of all clients might. Over HTTP the transport has a session for each kind of these, in which it
    declares what that can."""
    if spec.caller:
        return Raw(askable(spec.caller.encode()))
    return Raw(codec.dump(ROUTABLE) if spec.url is None else NOTHING)
