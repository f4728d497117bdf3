"""Opening of a connection: which era the server speaks, who it is, and its lists.

Owns: the probe, the fallback to `initialize` and the verdict (`Handshake`); the time that a start
may take, when the lists are read, first and again, and the catalogue made of them (`Opening`).
Never: lines, ids, clocks, the reading of one list (`lists`).

The theory. Whether a server is modern cannot be asked without a modern request, so
`server/discover` goes first. Only an answer that proves a modern server counts; any other answer,
and silence, mean `initialize` (a list of proofs, not a list of refusals: servers refuse in many
ways). Requests are read in order, so a server that is merely slow to start reads the probe first
even when `initialize` is already behind it. A modern server then refuses `initialize` with
-32022, which proves the era as well, and is probed once more.

Some servers take any first request but `initialize` for a fatal error and exit (all that were built
on the Rust SDK before its version 3). For them, and where a server that speaks both eras is to be
spoken to in the older one, `initialize` goes first. If it is refused, the other era is worth a try.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from msgspec import Raw, Struct

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import (
    Actions,
    Fail,
    Ready,
    Relisted,
    RequestPurpose,
    TellFronts,
    WarnInLog,
    WriteToServer,
)
from metamcp_worker.child.http_sessions import NOTHING, askable
from metamcp_worker.child.jsonrpc_lines import (
    LEGACY,
    MODERN,
    gateway_info,
    server_info,
    unauthorized,
)
from metamcp_worker.child.lists import ListReader, declared
from metamcp_worker.child.own_requests import Own, OwnRequest
from metamcp_worker.ipc import codec, server_catalog
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Notice
from metamcp_worker.ipc.roots import Asked, wider
from metamcp_worker.ipc.server_catalog import DISCOVER, Hint, ServerCatalogue, hint
from metamcp_worker.ipc.spec import First, ServerSpec

PROBE_S_MAX = 2.0
"""Maximum seconds that a server may be silent about the probe. A longer wait would only delay the
start of servers that ignore unknown requests; slow servers are recognised later (see above)."""


ROUTABLE: Mapping[str, object] = {
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
    "sampling": {},
}
"""Capabilities declared to a server that all clients share. A question of the server goes to the
client whose call it serves, and is refused in the name of a client that cannot do it: the session
is older than the client."""


class HandshakePhase(Enum):
    PROBE = auto()
    INITIALIZE = auto()
    PROBE_AGAIN = auto()


class Met(Struct, frozen=True):
    """A server that answered the handshake. `initialized`: whether the server waits for the
    notification of that name. `hint`: how long all this may be kept."""

    protocol: str
    server_info: Raw
    capabilities: Raw
    instructions: str | None
    initialized: bool
    hint: Hint = Hint()


class HandshakeRefused(Struct, frozen=True):
    """Handshake that failed: server and gateway have no version in common. `message`: a
    sentence."""

    message: str


class _Failure(Struct):
    code: int = 0
    message: str = ""
    data: Raw = Raw(b"null")


class _Supported(Struct):
    supported: list[str] = []


class _Discovered(Struct, rename={"supported_versions": "supportedVersions", "meta": "_meta"}):
    supported_versions: list[str]
    capabilities: Raw = Raw(b"{}")
    instructions: str | None = None
    meta: Raw = Raw(b"{}")


class _Initialized(Struct, rename="camel"):
    protocol_version: str
    capabilities: Raw = Raw(b"{}")
    server_info: Raw = Raw(b"{}")
    instructions: str | None = None


_read_failure = codec.reader(_Failure)
_read_supported = codec.reader(_Supported)
_read_discovered = codec.reader(_Discovered)
_read_initialized = codec.reader(_Initialized)


class Handshake:
    """Negotiation with one server. Methods return the next step; each request is answered at most
    once.

    `capabilities`: raw capabilities of the client.
    """

    def __init__(
        self, version: str, *, era: First, now: float, probe_s: float, capabilities: Raw
    ) -> None:
        self._capabilities = capabilities
        self._era = era
        self.phase = (
            HandshakePhase.INITIALIZE if era in ("legacy", "legacy-first") else HandshakePhase.PROBE
        )
        self._refusal = ""
        self._info = gateway_info(version)
        self._silent_at = now + probe_s

    def ask(self) -> OwnRequest:
        """Return the request of this phase."""
        if self.phase is not HandshakePhase.INITIALIZE:
            return OwnRequest("server/discover")
        params: dict[str, object] = {
            "protocolVersion": LEGACY[0],
            "capabilities": self._capabilities,
            "clientInfo": Raw(self._info),
        }
        return OwnRequest("initialize", codec.dump(params))

    def silent(self, now: float) -> bool:
        """Whether the probe has waited long enough; if so, `ask` returns `initialize` from now
        on."""
        if self.phase is HandshakePhase.PROBE and self._era == "auto" and now >= self._silent_at:
            self.phase = HandshakePhase.INITIALIZE
            return True
        return False

    def answered(self, result: bytes) -> OwnRequest | Met | HandshakeRefused:
        if self.phase is HandshakePhase.INITIALIZE:
            return _initialized(result)
        return _discovered(result) or self._not_modern("its answer to the probe names no version")

    def failed(self, error: bytes) -> OwnRequest | Met | HandshakeRefused:
        """Return the next step after the request of this phase was answered with an error."""
        failure = _failure(error)
        supported = _supported(failure)
        if self.phase is HandshakePhase.INITIALIZE:
            refusal = f"it refused initialize: {failure.message[:200]} ({failure.code})"
            another = MODERN in supported or self._era == "legacy-first"
            if self._era == "legacy" or not another:
                return HandshakeRefused(refusal)
            self._refusal = "" if MODERN in supported else refusal
            self.phase = HandshakePhase.PROBE_AGAIN
            return self.ask()
        if MODERN in supported and self.phase is HandshakePhase.PROBE:
            self.phase = HandshakePhase.PROBE_AGAIN
            return self.ask()
        if supported and not {MODERN, *LEGACY} & set(supported):
            return HandshakeRefused(
                f"it speaks only {', '.join(supported)[:200]}, the gateway {MODERN} and "
                f"{LEGACY[-1]} to {LEGACY[0]}"
            )
        return self._not_modern(f"it refused server/discover: {failure.message[:200]}")

    def _not_modern(self, contradiction: str) -> OwnRequest | HandshakeRefused:
        if self.phase is HandshakePhase.PROBE_AGAIN:
            return HandshakeRefused(self._refusal or f"it claims {MODERN}, but {contradiction}")
        if self._era == "modern":
            return HandshakeRefused(
                f'it does not speak {MODERN}, which era = "modern" wants: {contradiction}'
            )
        self.phase = HandshakePhase.INITIALIZE
        return self.ask()


def _discovered(result: bytes) -> Met | None:
    """Return the server of a DiscoverResult, or None if the result does not prove a modern
    server."""
    try:
        found = _read_discovered(result)
    except codec.Malformed:
        return None
    if MODERN not in found.supported_versions:
        return None
    return Met(
        MODERN,
        server_info(found.meta),
        _object(found.capabilities),
        found.instructions,
        initialized=False,
        hint=hint(codec.level(result)),
    )


def _initialized(result: bytes) -> Met | HandshakeRefused:
    try:
        found = _read_initialized(result)
    except codec.Malformed as error:
        return HandshakeRefused(f"its answer to initialize is not what it has to be: {error}")
    if found.protocol_version not in LEGACY:
        return HandshakeRefused(
            f"it wants to speak {found.protocol_version[:40]!r}, the gateway speaks {MODERN} and "
            f"{LEGACY[-1]} to {LEGACY[0]}"
        )
    return Met(
        found.protocol_version,
        _object(found.server_info),
        _object(found.capabilities),
        found.instructions,
        initialized=True,
    )


def _object(raw: Raw) -> Raw:
    """Return `raw` if it is an object, else an empty object."""
    try:
        codec.level(raw)
    except codec.Malformed:
        return Raw(b"{}")
    return raw


def _failure(error: bytes) -> _Failure:
    try:
        return _read_failure(error)
    except codec.Malformed:
        return _Failure(message="an error that cannot be read")


def _supported(failure: _Failure) -> tuple[str, ...]:
    """Return the versions that an error about an unsupported version names; empty for any other."""
    if failure.code != Code.UNSUPPORTED_VERSION:
        return ()
    try:
        return tuple(_read_supported(failure.data).supported)
    except codec.Malformed:
        return ()


RELIST_S_MIN, RELIST_S_MAX = 0.5, 8.0
"""Minimum seconds between two readings of the lists, however often the server says that they
changed. After RELISTS readings in a row the time doubles with each one, up to the maximum, until
the server was quiet for a while."""
RELISTS = 8
"""Number of readings in a row before they are slowed down: more changes than an honest server has
in a few seconds."""


class Opening:
    """Opening of one connection. `met`: the server, as soon as it is known. `ready`: whether its
    lists have been read once."""

    def __init__(self, spec: ServerSpec, version: str, own: Own, now: float) -> None:
        self._spec = spec
        self._own = own
        self._start_by = now + spec.start_timeout_s
        probe_s = min(PROBE_S_MAX, spec.start_timeout_s / 4)
        self._handshake = Handshake(
            version, era=spec.era, now=now, probe_s=probe_s, capabilities=_declared(spec)
        )
        self._listing: ListReader | None = None
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
        """Whether the server asks for roots before there is any call."""
        return self._asks_roots == "ahead"

    @property
    def probing(self) -> bool:
        """Whether the server is being asked if it is modern."""
        return self.met is None and self._handshake.phase is HandshakePhase.PROBE

    def start(self) -> Actions:
        """Send the first request, because the server runs."""
        return [self._own.ask(RequestPurpose.HANDSHAKE, self._handshake.ask())]

    def answered(self, purpose: RequestPurpose, result: bytes, error: bytes, now: float) -> Actions:
        """Handle the answer to a request of the gateway: a raw result or a raw error."""
        if error and not self.ready and (why := unauthorized(error, self._spec.name)):
            return [Fail("authorization", f"it {why}")]
        if purpose is RequestPurpose.HANDSHAKE:
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
        """Note that these lists may have changed, and read them. `said`: the notification that says
        so."""
        self._changed |= frozenset(lists)
        if said:
            self._said.add(said)
        return self._relist(now)

    def asked_for_roots(self, when: Asked) -> Actions:
        """Note that the server asked for the roots of its client. The action tells about it only if
        this is news."""
        before, self._asks_roots = self._asks_roots, wider(self._asks_roots, when)
        if self._asks_roots == before:
            return []
        return [Relisted(self._catalogue())] if self.ready else []

    @property
    def busy(self) -> bool:
        """Whether the server is not ready, its lists are being read, or they have changed."""
        if not self.ready or self._listing is not None or self.met is None:
            return True
        return bool(self._changed and self._changed & declared(self.met.capabilities))

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
            return [self._own.ask(RequestPurpose.HANDSHAKE, self._handshake.ask())]
        return []

    def _shaken(self, found: OwnRequest | Met | HandshakeRefused, now: float) -> Actions:
        if isinstance(found, OwnRequest):
            return [self._own.ask(RequestPurpose.HANDSHAKE, found)]
        if isinstance(found, HandshakeRefused):
            return [Fail("protocol", found.message)]
        self.met = found
        self._own.met(found.protocol)
        first: Actions = []
        if found.initialized:
            first = [WriteToServer(jsonrpc_lines.notification("notifications/initialized"))]
        self._listing = ListReader(declared(found.capabilities))
        return [*first, *self._next_page(now)]

    def _relist(self, now: float) -> Actions:
        """Read the changed lists again, unless lists were read just now or are being read."""
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
        self._listing = ListReader(changed)
        return self._next_page(now)

    def _next_page(self, now: float) -> Actions:
        assert self._listing is not None
        ask = self._listing.ask()
        if ask is None:
            return self._listed(self._listing)
        self._page_by = now + self._spec.timeout_s
        return [self._own.ask(RequestPurpose.LIST, ask)]

    def _listed(self, done: ListReader) -> Actions:
        self._listing = None
        actions: Actions = [WarnInLog(text) for text in done.warnings]
        if done.failed and not self.ready:
            return [*actions, Fail("protocol", done.failed)]
        if done.failed:
            actions.append(WarnInLog(f"{done.failed}; the list stays as it was"))
        self._lists |= done.lists
        self._hints |= done.hints
        found = self._catalogue()
        was_ready, before = self.ready, self._list_hash
        self._list_hash = server_catalog.list_hash(found)
        if not was_ready:
            return [*actions, Ready(found, self._list_hash)]
        if self._list_hash != before:
            return [*actions, Relisted(found)]
        # Fronts pass it on where this is the only server, as it would say it without a gateway.
        said = () if done.failed else sorted(self._judged)
        return [*actions, *(TellFronts(Notice(method, b"{}")) for method in said)]

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
    """Return the capabilities to declare in `initialize`: those of the only client, or all that any
    of many clients might have. Over HTTP nothing is declared here, because the transport has a
    session for each kind of client and declares in it what that kind can do."""
    if spec.caller:
        return Raw(askable(spec.caller.encode()))
    return Raw(codec.dump(ROUTABLE) if spec.url is None else NOTHING)
