"""Opening of a connection: which era the server speaks, who it is, and its lists.

Owns: the probe, the fallback to `initialize` and the verdict (`Handshake`); the time that a start
may take, when the lists are read, first and again, and the catalogue built from them
(`ConnectionSetup`). Never: lines, ids, clocks, the reading of one list (`lists`).

The theory. Whether a server is modern cannot be asked without a modern request, so
`server/discover` goes first. Only an answer that proves a modern server counts; any other answer,
and silence, mean `initialize` (a list of proofs, not a list of refusals: servers refuse in many
ways). Requests are read in order, so a server that is merely slow to start reads the probe first
even when `initialize` is already behind it. A modern server then refuses `initialize`: with -32022,
which proves the era as well, or with any error (the Go SDK calls it a duplicate). So a server that
refuses after it was silent about the probe is probed once more.

Some servers take any first request but `initialize` for a fatal error and exit (all that were built
on the Rust SDK before its version 3). For them, and where a server that speaks both eras is to be
spoken to in the older one, `initialize` goes first. If it is refused, the other era is worth a try.

A server is to answer `initialize` with a revision of its own, and some refuse it instead, with any
error. The gateway asks again, for the revisions that the error names, else for each older one.
"""

import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from itertools import chain

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
from metamcp_worker.child.http_sessions import askable, build_shared_capabilities
from metamcp_worker.child.jsonrpc_lines import (
    LEGACY,
    MODERN,
    describe_auth_error,
    gateway_info,
    server_info,
)
from metamcp_worker.child.lists import TOOLS_S_MAX, Listing, find_declared_lists
from metamcp_worker.child.own_requests import OwnRequest, OwnRequests
from metamcp_worker.ipc import codec, server_catalog
from metamcp_worker.ipc.envelope import ErrorObject
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Notice
from metamcp_worker.ipc.roots import Asked, wider
from metamcp_worker.ipc.server_catalog import DISCOVER, CachingHint, ServerCatalogue, hint
from metamcp_worker.ipc.spec import First, ServerSpec

PROBE_S_MAX = 2.0
"""Maximum seconds that a server may be silent about the probe. A longer wait would only delay the
start of servers that ignore unknown requests; slow servers are recognised later (see above)."""
REVISIONS_S_MAX = 10.0
"""Maximum seconds from the first refusal of a revision until one is accepted."""
_REVISION = re.compile(rb"20\d\d-\d\d-\d\d")
_UNKNOWN_METHOD = frozenset({Code.INVALID_REQUEST, Code.METHOD_NOT_FOUND})
"""Errors that refuse `initialize` itself, not its parameters."""


OPENINGS = frozenset({"server/discover", "initialize"})
"""Requests that open a connection; a server sends none."""
ECHOES = "it writes back what it reads, as cat or a terminal does, so it is not an MCP server"
ROUTABLE: Mapping[str, object] = {
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
    "sampling": {},
}
"""Capabilities declared to a server that all clients share. A question of the server goes to the
client whose call it serves, and is refused in the name of a client that cannot do it: the session
is older than the client."""


class HandshakePhase(Enum):
    PROBE = auto()
    INITIALIZE = auto()
    PROBE_AGAIN = auto()


class HandshakeResult(Struct, frozen=True):
    """A server that answered the handshake. `initialized`: whether the server waits for the
    notification of that name. `hint`: how long all this may be kept."""

    protocol: str
    server_info: Raw
    capabilities: Raw
    instructions: str | None
    initialized: bool
    hint: CachingHint = CachingHint()


class HandshakeRefused(Struct, frozen=True):
    """Handshake that failed: server and gateway have no version in common. `message`: a
    sentence."""

    message: str


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


_read_supported = codec.reader(_Supported)
_read_discovered = codec.reader(_Discovered)
_read_initialized = codec.reader(_Initialized)


class Handshake:
    """Negotiation with one server. Methods return the next step; each request is answered at most
    once.

    `capabilities`: raw capabilities of the client. `protocol`: the only revision to ask for, or
    empty; `known_protocol`: the revision that the server spoke last, or empty.
    """

    def __init__(
        self,
        version: str,
        *,
        era: First,
        now: float,
        probe_s: float,
        capabilities: Raw,
        protocol: str = "",
        known_protocol: str = "",
    ) -> None:
        self._capabilities = capabilities
        self._era = era
        self.phase = (
            HandshakePhase.INITIALIZE if era in ("legacy", "legacy-first") else HandshakePhase.PROBE
        )
        self._offered = [protocol or (known_protocol if known_protocol in LEGACY else LEGACY[0])]
        self._others = (
            [] if protocol else [revision for revision in LEGACY if revision != self._offered[0]]
        )
        self._refusal = ""
        self._silent = self._again = False
        self._info = gateway_info(version)
        self._silent_at = now + probe_s
        self._accepted_by = math.inf

    def ask(self) -> OwnRequest:
        """Return the request of this phase."""
        if self.phase is not HandshakePhase.INITIALIZE:
            return OwnRequest("server/discover")
        params: dict[str, object] = {
            "protocolVersion": self._offered[-1],
            "capabilities": self._capabilities,
            "clientInfo": Raw(self._info),
        }
        return OwnRequest("initialize", codec.dump(params))

    def tick(self, now: float) -> OwnRequest | HandshakeRefused | None:
        """Return the next step if the server was silent for long enough, else None."""
        if now >= self._accepted_by:
            return self._give_up()
        if self.phase is HandshakePhase.PROBE and self._era == "auto" and now >= self._silent_at:
            self.phase = HandshakePhase.INITIALIZE
            self._silent = True
            return self.ask()
        return None

    def on_answer(self, result: bytes) -> OwnRequest | HandshakeResult | HandshakeRefused:
        if self.phase is HandshakePhase.INITIALIZE:
            return _parse_initialize_result(result)
        return _parse_discover_result(result) or self._not_modern(
            "its answer to the probe names no version"
        )

    def on_error(self, error: bytes, now: float) -> OwnRequest | HandshakeResult | HandshakeRefused:
        """Return the next step after the request of this phase was answered with an error."""
        failure = codec.error_object(error)
        supported = _parse_supported_versions(failure)
        if self.phase is HandshakePhase.INITIALIZE:
            return self._on_refusal(error, failure, now)
        if MODERN in supported and self.phase is HandshakePhase.PROBE:
            return self._probe_again()
        if supported and not {MODERN, *LEGACY} & set(supported):
            return HandshakeRefused(
                f"it speaks only {', '.join(supported)[:200]}, the gateway {MODERN} and "
                f"{LEGACY[-1]} to {LEGACY[0]}"
            )
        named = _find_revisions(error) - {MODERN}  # which may only repeat what was asked for
        if named and self._others:
            self._others = [revision for revision in LEGACY if revision in named]
            self._offered = [self._others.pop(0)]
        return self._not_modern(f"it refused server/discover: {failure.message[:200]}")

    def _on_refusal(
        self, error: bytes, failure: ErrorObject, now: float
    ) -> OwnRequest | HandshakeRefused:
        """Return the next step after `initialize` was refused."""
        refusal = f"it refused initialize: {failure.message[:200]} ({failure.code})"
        self._refusal = self._refusal or refusal
        named = _find_revisions(error) - set(self._offered)
        if named:
            self._others = [revision for revision in self._others if revision in named]
        unknown = self._era == "legacy-first" and failure.code in _UNKNOWN_METHOD
        if (MODERN in named or unknown or self._silent) and self._may_probe:
            return self._probe_again()
        self._accepted_by = min(self._accepted_by, now + REVISIONS_S_MAX)
        return self._ask_for_another()

    @property
    def _may_probe(self) -> bool:
        return self._era != "legacy" and not self._again

    def _probe_again(self) -> OwnRequest:
        self._again = True
        self.phase = HandshakePhase.PROBE_AGAIN
        return self.ask()

    def _ask_for_another(self) -> OwnRequest | HandshakeRefused:
        """Ask for the next revision, or, where nobody asked yet, whether the server is modern."""
        if self._others:
            self._offered.append(self._others.pop(0))
            self.phase = HandshakePhase.INITIALIZE
            return self.ask()
        if self._era == "legacy-first" and self._may_probe:
            return self._probe_again()
        return self._give_up()

    def _give_up(self) -> HandshakeRefused:
        if len(self._offered) == 1:
            return HandshakeRefused(self._refusal)
        return HandshakeRefused(f"{self._refusal}; it was asked for {', '.join(self._offered)}")

    def _not_modern(self, contradiction: str) -> OwnRequest | HandshakeRefused:
        if self._refusal:
            return self._ask_for_another()
        if self.phase is HandshakePhase.PROBE_AGAIN:
            return HandshakeRefused(f"it claims {MODERN}, but {contradiction}")
        if self._era == "modern":
            return HandshakeRefused(
                f"it does not speak {MODERN}, which its configuration wants: {contradiction}"
            )
        self.phase = HandshakePhase.INITIALIZE
        return self.ask()


def _parse_discover_result(result: bytes) -> HandshakeResult | None:
    """Return the server of a DiscoverResult, or None if the result does not prove a modern
    server."""
    try:
        answer = _read_discovered(result)
    except codec.Malformed:
        return None
    if MODERN not in answer.supported_versions:
        return None
    return HandshakeResult(
        MODERN,
        server_info(answer.meta),
        _object(answer.capabilities),
        answer.instructions,
        initialized=False,
        hint=hint(codec.level(result)),
    )


def _parse_initialize_result(result: bytes) -> HandshakeResult | HandshakeRefused:
    try:
        answer = _read_initialized(result)
    except codec.Malformed as error:
        return HandshakeRefused(f"its answer to initialize is not what it has to be: {error}")
    if answer.protocol_version not in LEGACY:
        return HandshakeRefused(
            f"it wants to speak {answer.protocol_version[:40]!r}, the gateway speaks {MODERN} and "
            f"{LEGACY[-1]} to {LEGACY[0]}"
        )
    return HandshakeResult(
        answer.protocol_version,
        _object(answer.server_info),
        _object(answer.capabilities),
        answer.instructions,
        initialized=True,
    )


def _object(raw: Raw) -> Raw:
    """Return `raw` if it is an object, else an empty object."""
    try:
        codec.level(raw)
    except codec.Malformed:
        return Raw(b"{}")
    return raw


def _parse_supported_versions(failure: ErrorObject) -> tuple[str, ...]:
    """Return the versions that the data of an error names as supported; empty for any other."""
    try:
        return tuple(_read_supported(failure.data).supported)
    except codec.Malformed:
        return ()


def _find_revisions(error: bytes) -> set[str]:
    """Return the revisions that occur anywhere in an error and that the gateway speaks."""
    return {revision.decode() for revision in _REVISION.findall(error)} & {MODERN, *LEGACY}


RELIST_S_MIN, RELIST_S_MAX = 0.5, 8.0
"""Minimum seconds between two readings of the lists, however often the server says that they
changed. After RELISTS readings in a row the time doubles with each one, up to the maximum, until
the server was quiet for a while."""
RELISTS = 8
"""Number of readings in a row before they are slowed down: more changes than an honest server has
in a few seconds."""


class ConnectionSetup:
    """Opening of one connection. `met`: the server, as soon as it is known. `ready`: whether its
    lists have been read once."""

    def __init__(self, spec: ServerSpec, version: str, own: OwnRequests, now: float) -> None:
        self._spec = spec
        self._own = own
        self._start_by = now + spec.start_timeout_s
        probe_s = min(PROBE_S_MAX, spec.start_timeout_s / 4)
        self._handshake = Handshake(
            version, era=spec.era, now=now, probe_s=probe_s, capabilities=_build_capabilities(spec),
            protocol=spec.protocol, known_protocol=spec.known_protocol,
        )  # fmt: skip
        self._listing = Listing(
            own, list_s=spec.list_timeout_s,
            tools_s=max(min(spec.timeout_s, TOOLS_S_MAX), spec.start_timeout_s),
            at_once=spec.concurrency,
        )  # fmt: skip
        self._changed: frozenset[str] = frozenset()
        self._said: set[str] = set()
        self._judged: set[str] = set()
        self._list_again_at = 0.0
        self._relist_s = RELIST_S_MIN
        self._relists = 0
        self._list_hash = ""
        self._unread: tuple[str, ...] = ()
        self._asks_roots: Asked = spec.asks_roots
        self.met: HandshakeResult | None = None

    @property
    def ready(self) -> bool:
        return bool(self._list_hash)

    @property
    def is_probing(self) -> bool:
        """Whether the server is being asked if it is modern."""
        return self.met is None and self._handshake.phase is HandshakePhase.PROBE

    def start(self) -> Actions:
        """Send the first request, because the server runs."""
        return [self._own.ask(RequestPurpose.HANDSHAKE, self._handshake.ask())]

    def on_answer(
        self, key: bytes, purpose: RequestPurpose, result: bytes, error: bytes, now: float
    ) -> Actions:
        """Handle the answer to a request of the gateway: a raw result or a raw error."""
        if error and not self.ready and (problem := describe_auth_error(error, self._spec.name)):
            return [Fail("authorization", f"it {problem}")]
        if purpose is RequestPurpose.HANDSHAKE:
            if error:
                return self._shaken(self._handshake.on_error(error, now), now)
            return self._shaken(self._handshake.on_answer(result), now)
        return [*self._listing.on_answer(key, result, error, now), *self._publish(now)]

    def on_list_changed(self, lists: Iterable[str], now: float, notification: str = "") -> Actions:
        """Note that these lists may have changed, and read them. `notification`: method of the
        one that says so."""
        self._changed |= frozenset(lists)
        if notification:
            self._said.add(notification)
        return self._relist(now)

    def asked_for_roots(self, when: Asked) -> Actions:
        """Note that the server asked for the roots of its client. The action reports it only if
        this is news."""
        before, self._asks_roots = self._asks_roots, wider(self._asks_roots, when)
        if self._asks_roots == before:
            return []
        return [Relisted(self._catalogue())] if self.ready else []

    @property
    def busy(self) -> bool:
        """Whether the server is not ready, its lists are being read, or they have changed."""
        if not self.ready or self._listing.open or self.met is None:
            return True
        return bool(self._changed and self._changed & find_declared_lists(self.met.capabilities))

    def tick(self, now: float) -> Actions:
        if self.met is None:
            return self._start_tick(now)
        return [*self._listing.tick(now), *self._publish(now), *self._relist(now)]

    def _start_tick(self, now: float) -> Actions:
        if now >= self._start_by:
            waits = "the answer to initialize or server/discover"
            message = f"it did not give {waits} within {self._spec.start_timeout_s:g} s"
            return [Fail("start_timeout", message)]
        shaken = self._handshake.tick(now)
        return [] if shaken is None else self._shaken(shaken, now)

    def _shaken(
        self, outcome: OwnRequest | HandshakeResult | HandshakeRefused, now: float
    ) -> Actions:
        if isinstance(outcome, OwnRequest):
            return [self._own.ask(RequestPurpose.HANDSHAKE, outcome)]
        if isinstance(outcome, HandshakeRefused):
            return [Fail("protocol", outcome.message)]
        self.met = outcome
        self._own.set_protocol(outcome.protocol)
        first: Actions = []
        if outcome.initialized:
            first = [WriteToServer(jsonrpc_lines.notification("notifications/initialized"))]
        reads = self._listing.read(find_declared_lists(outcome.capabilities), now)
        return [*first, *reads, *self._publish(now)]

    def _relist(self, now: float) -> Actions:
        """Read the changed lists again, unless lists were read just now or are being read."""
        if not self.ready or not self._changed or self.met is None or self._listing.busy(now):
            return []
        changed = (self._changed & find_declared_lists(self.met.capabilities)) - set(
            self._listing.open
        )
        if not changed or now < self._list_again_at:
            return []
        self._changed -= changed
        self._judged, self._said = self._said, set()
        quiet = now - self._list_again_at > self._relist_s
        self._relists = 1 if quiet else self._relists + 1
        slower = 2 ** max(0, self._relists - RELISTS)
        self._relist_s = min(RELIST_S_MAX, RELIST_S_MIN * slower)
        self._list_again_at = now + self._relist_s
        return self._listing.read(changed, now)

    def _publish(self, now: float) -> Actions:
        """Report the lists that were read, unless others will be read in a moment."""
        listing = self._listing
        if listing.busy(now) or (self.ready and not listing.news):
            return []
        listing.news = False
        actions: Actions = [WarnInLog(text) for text in listing.warnings()]
        for method in () if self.ready else listing.open.values():
            actions.append(WarnInLog(f"{method} is not answered yet; the list follows"))
        catalogue = self._catalogue()
        was_ready, before = self.ready, (self._list_hash, self._unread)
        self._list_hash, self._unread = server_catalog.list_hash(catalogue), catalogue.unread
        if not was_ready:
            return [*actions, Ready(catalogue, self._list_hash)]
        if (self._list_hash, self._unread) != before:
            return [*actions, Relisted(catalogue)]
        # Fronts pass it on where this is the only server, as it would say it without a gateway.
        methods, self._judged = () if listing.has_failed else sorted(self._judged), set()
        return [*actions, *(TellFronts(Notice(method, b"{}")) for method in methods)]

    def _catalogue(self) -> ServerCatalogue:
        assert self.met is not None
        lists = self._listing.lists
        return ServerCatalogue(
            protocol=self.met.protocol,
            serverInfo=self.met.server_info,
            capabilities=self.met.capabilities,
            instructions=self.met.instructions,
            tools=lists.get("tools", ()),
            prompts=lists.get("prompts", ()),
            resources=lists.get("resources", ()),
            resourceTemplates=lists.get("resourceTemplates", ()),
            hints={**self._listing.hints, DISCOVER: self.met.hint},
            asksRoots=self._asks_roots,
            gateways=tuple(dict.fromkeys(chain.from_iterable(self._listing.gateways.values()))),
            unread=self._listing.unread,
            schemas=self._listing.schemas,
        )


def _build_capabilities(spec: ServerSpec) -> Raw:
    """Return the capabilities to declare in `initialize`: those of the only client, or all that any
    of many clients might have. Over HTTP only extensions are declared here, because the transport
    has a session for each kind of client and declares in it what that kind can do."""
    if spec.caller:
        return Raw(askable(spec.caller.encode()))
    routable: Mapping[str, object] = ROUTABLE if spec.url is None else {}
    return Raw(codec.dump({**routable, **codec.level(build_shared_capabilities(spec))}))


def own_caller(spec: ServerSpec) -> bytes:
    """Return the client on whose behalf the gateway's own requests are made, as in
    `frames.CallFrame`: the only client, or one with the extensions that are declared for all."""
    return spec.caller.encode() or b'{"clientCapabilities":%b}' % build_shared_capabilities(spec)
