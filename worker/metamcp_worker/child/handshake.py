"""The first words with a server: which era it speaks, and who it is.

Owns: the probe, the fallback to `initialize`, and the verdict. Never: lines, ids, clocks, lists.

The theory. Whether a server is modern cannot be asked without a modern request, so
`server/discover` goes first. Only an answer that proves a modern server counts; any other answer,
and silence, mean `initialize` (a list of proofs, not a list of refusals: servers refuse in many
ways). Requests are read in order, so a server that is merely slow to start reads the probe first
even when `initialize` is already behind it. If it is modern it then refuses `initialize` with
-32022, which proves the era as well: it is probed once more.

Some servers take any first request but `initialize` for a fatal error and exit (all that were built
on the Rust SDK before its version 3). For them, and where a server that speaks both eras is to be
spoken to in the older one, `initialize` goes first. If it is refused, the other era is worth a try.
"""

from collections.abc import Mapping
from enum import Enum, auto

from msgspec import Raw, Struct

from metamcp_worker.child.wire import LEGACY, MODERN, Ask, gateway_info, server_info
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.server_catalog import Hint, hint
from metamcp_worker.ipc.spec import First

PROBE_S_MAX = 2.0
"""How long a server may be silent about the probe. A longer wait would only delay the start of
servers that ignore what they do not know; slow ones are recognised later (see above)."""


ROUTABLE: Mapping[str, object] = {
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
    "sampling": {},
}
"""What a server that all clients share may ask for: it goes to the client whose call it serves.
What that client cannot do is refused in its name; the session is older than the client."""


class Phase(Enum):
    PROBE = auto()
    INITIALIZE = auto()
    PROBE_AGAIN = auto()


class Met(Struct, frozen=True):
    """The server is known. `initialized`: it waits for the notification of that name. `hint`: how
    long all this may be kept."""

    protocol: str
    server_info: Raw
    capabilities: Raw
    instructions: str | None
    initialized: bool
    hint: Hint = Hint()


class Refused(Struct, frozen=True):
    """There is no common ground. `message` is a sentence."""

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
    """One negotiation. Each method gives what to do next; a request is answered at most once.

    `capabilities`: of the client, raw.
    """

    def __init__(
        self, version: str, *, era: First, now: float, probe_s: float, capabilities: Raw
    ) -> None:
        self._capabilities = capabilities
        self._era = era
        self.phase = Phase.INITIALIZE if era in ("legacy", "legacy-first") else Phase.PROBE
        self._refusal = ""
        self._info = gateway_info(version)
        self._silent_at = now + probe_s

    def ask(self) -> Ask:
        """The request of this phase."""
        if self.phase is not Phase.INITIALIZE:
            return Ask("server/discover")
        params: dict[str, object] = {
            "protocolVersion": LEGACY[0],
            "capabilities": self._capabilities,
            "clientInfo": Raw(self._info),
        }
        return Ask("initialize", codec.dump(params))

    def silent(self, now: float) -> bool:
        """Has the probe waited long enough? Then `ask` gives `initialize`."""
        if self.phase is Phase.PROBE and self._era == "auto" and now >= self._silent_at:
            self.phase = Phase.INITIALIZE
            return True
        return False

    def answered(self, result: bytes) -> Ask | Met | Refused:
        if self.phase is Phase.INITIALIZE:
            return _initialized(result)
        return _discovered(result) or self._not_modern("its answer to the probe names no version")

    def failed(self, error: bytes) -> Ask | Met | Refused:
        """The request of this phase was answered with an error."""
        failure = _failure(error)
        supported = _supported(failure)
        if self.phase is Phase.INITIALIZE:
            refusal = f"it refused initialize: {failure.message[:200]} ({failure.code})"
            another = MODERN in supported or self._era == "legacy-first"
            if self._era == "legacy" or not another:
                return Refused(refusal)
            self._refusal = "" if MODERN in supported else refusal
            self.phase = Phase.PROBE_AGAIN
            return self.ask()
        if MODERN in supported and self.phase is Phase.PROBE:
            self.phase = Phase.PROBE_AGAIN
            return self.ask()
        if supported and not {MODERN, *LEGACY} & set(supported):
            return Refused(
                f"it speaks only {', '.join(supported)[:200]}, the gateway {MODERN} and "
                f"{LEGACY[-1]} to {LEGACY[0]}"
            )
        return self._not_modern(f"it refused server/discover: {failure.message[:200]}")

    def _not_modern(self, contradiction: str) -> Ask | Refused:
        if self.phase is Phase.PROBE_AGAIN:
            return Refused(self._refusal or f"it claims {MODERN}, but {contradiction}")
        if self._era == "modern":
            return Refused(
                f'it does not speak {MODERN}, which era = "modern" wants: {contradiction}'
            )
        self.phase = Phase.INITIALIZE
        return self.ask()


def _discovered(result: bytes) -> Met | None:
    """The server of a DiscoverResult, or None if that is no proof of a modern one."""
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


def _initialized(result: bytes) -> Met | Refused:
    try:
        found = _read_initialized(result)
    except codec.Malformed as error:
        return Refused(f"its answer to initialize is not what it has to be: {error}")
    if found.protocol_version not in LEGACY:
        return Refused(
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
    """`raw` if it is an object, else an empty one."""
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
    """The versions that a refusal for the version's sake names."""
    if failure.code != Code.UNSUPPORTED_VERSION:
        return ()
    try:
        return tuple(_read_supported(failure.data).supported)
    except codec.Malformed:
        return ()
