"""The door: which principal a request comes from, and what a request without a valid one gets.

Owns: finding the credential in a request, the table of API keys, the answers 400, 401, 404 and 429,
the count of failed credentials by address (`Failures`). Never: HTTP's own rules, which message a
principal may send (`gate`), verifying tokens of an authorization server (`verify` does).

Missing, malformed, unknown, expired and revoked credentials get the same bytes, whether the
endpoint exists or not. A credential of another workspace gets the bytes of an endpoint that does
not exist.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from urllib.parse import unquote_to_bytes

from msgspec import Struct, structs

from metamcp_worker.access import api_key, gate
from metamcp_worker.access.gate import Principal
from metamcp_worker.ipc.key_table import KeyChanges, KeySpec
from metamcp_worker.ipc.spec import UNLIMITED, EndpointSpec, SecretStruct, UseLimits

KEYS, OAUTH = "keys", "oauth"
FAILURES_MAX = 10
"""Maximum failed credentials of one address in `FAILURES_S`; more get 429. A valid credential is
accepted at any time, so nobody can lock out anybody; except a token about which its issuer would
have to be asked first, as everybody could use up these questions."""
FAILURES_S = 60.0
ADDRESSES_MAX = 10_000
"""Maximum addresses whose failures are counted; beyond, the oldest count is forgotten."""
CREDENTIAL_BYTES_MAX = 16 * 1024
"""Maximum bytes of a credential; a longer one is not looked at."""
QUERY_KEY = b"api_key"
QUERY_TOKEN = b"token"
"""Member of the query under which a client of HTTP+SSE posts that came with a key in its URL: the
stream named the token, which ends with the stream."""

_BLANKS = b" \t"
_BEARER = re.compile(rb"bearer +(?P<token>[^ ,]+)", re.IGNORECASE)
_CHALLENGE = (b"www-authenticate", gate.challenge("", (), ""))
_NEEDED = "A valid credential is needed: an API key as Authorization: Bearer or X-API-Key."
_SEVERAL = "The request carries more than one credential; send exactly one."
_MANY = "Too many failed credentials came from this address; try again later."

Headers = Sequence[tuple[bytes, bytes]]


class Denial(Struct, frozen=True, gc=False):
    """Answer to a request that does not pass. `reason`: a word for the counters; `headers`: further
    ones of the answer; `key`: id of the API key, if it is a valid one that may not be used here;
    `close`: the rest of the body is unwelcome; `endpoint`: where the path leads, None if that was
    not looked at or the path leads nowhere."""

    status: int
    message: str
    reason: str
    headers: Headers = ()
    key: str = ""
    close: bool = False
    endpoint: str | None = None


class AuthRequest(Struct, frozen=True, gc=False):
    """Request in front of the door. `endpoint`: where its path leads, None if it leads nowhere;
    `query`: the part behind the question mark; `address`: of the client; `date`: seconds since the
    epoch; `now`: seconds of a clock that never jumps."""

    endpoint: str | None
    headers: Headers
    query: bytes = b""
    address: str = ""
    date: float = 0.0
    now: float = 0.0


class Credential(SecretStruct, frozen=True, gc=False):
    """Credential of a request. `kind`: `bearer`, `header`, `url`, or `post` for the token of a
    stream of HTTP+SSE."""

    kind: str
    text: bytes


UNAUTHORIZED = Denial(401, _NEEDED, "credential", (_CHALLENGE,))
SEVERAL = Denial(400, _SEVERAL, "credentials")
#: A credential of another workspace, or an endpoint that does not exist.
ABSENT = Denial(404, "No endpoint is served at this path.", "path")


class AuthenticatedPrincipal(Struct, frozen=True, gc=False):
    """Principal that passed the door. `until`: seconds since the epoch up to which a request with
    the same head need not be looked at again, if the door has not changed; 0: look again."""

    principal: Principal
    until: float = 0.0


Found = AuthenticatedPrincipal | Denial
FOREVER = float("inf")
Verify = Callable[[EndpointSpec, str, float, bool], Found | Awaitable[Found]]
"""Verifies the token of an authorization server at an endpoint: `(endpoint, token, date, ask)`. An
awaitable means that somebody else has to be asked; without `ask` the issuer is asked about no
token."""


class Authenticator:
    """Door of a front. `guarded`: whether any endpoint asks for a credential; `version`: goes up
    with every change, so that earlier results do not count any more. `verify`: for tokens."""

    def __init__(self) -> None:
        self.guarded = False
        self.version = 0
        self.verify: Verify = lambda endpoint, token, date, ask: UNAUTHORIZED
        self._endpoints: Mapping[str, EndpointSpec] = {}
        self._pepper = b""
        self._older_peppers: tuple[bytes, ...] = ()
        self._keys: dict[bytes, tuple[KeySpec, Principal]] = {}
        self._digests: dict[str, bytes] = {}
        self._failures = Failures()

    def configure(self, endpoints: Iterable[EndpointSpec]) -> None:
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self.guarded = any(endpoint.auth for endpoint in self._endpoints.values())
        self.version += 1

    def change(self, changes: KeyChanges) -> frozenset[str]:
        """Change the table of keys, and return the ids of the keys that are gone."""
        removed_ids = set(changes.gone)
        if changes.whole:
            removed_ids |= self._digests.keys() - {key.id for key in changes.put}
        for name in removed_ids:
            self._keys.pop(self._digests.pop(name, b""), None)
        self._pepper, self._older_peppers = changes.pepper, changes.older
        for key in changes.put:
            self._keys.pop(self._digests.get(key.id, b""), None)
            self._digests[key.id] = key.digest
            self._keys[key.digest] = key, _principal(key)
        self.version += 1
        return frozenset(removed_ids)

    def limits(self) -> dict[str, UseLimits]:
        """Return the limits of use of each key, by its id."""
        return {key.id: key.limits for key, _ in self._keys.values() if key.limits != UNLIMITED}

    def metadata(self, endpoint: str) -> str:
        """Return the URL of the document about an endpoint that takes tokens, or nothing."""
        spec = self._endpoints.get(endpoint)
        return "" if spec is None else spec.metadata

    def holder(self, key: str) -> Principal | None:
        """Return the principal of the key with this id; None if no key has it."""
        return self._keys[self._digests[key]][1] if key in self._digests else None

    def has(self, key: str) -> bool:
        """Whether a key with this id can be used, or could before it expired."""
        return key in self._digests

    def still(self, principal: Principal, endpoint: str, date: float) -> bool:
        """Whether a principal that was let in to this endpoint would be let in now, too. `date`:
        seconds since the epoch."""
        if 0 < principal.expires <= date or (principal.key and not self.has(principal.key)):
            return False
        spec = self._endpoints.get(gate.whole_name(endpoint))
        if spec is None or not spec.auth:  # an endpoint that is gone has no view either
            return True
        if principal.auth not in spec.auth or principal.workspace != spec.workspace:
            return False
        return not principal.key or _key_fits_endpoint(
            self._keys[self._digests[principal.key]][0], spec
        )

    def enter(self, arrival: AuthRequest) -> Found | Credential | Awaitable[Found]:
        """Return who sends this request, or the answer for a request that does not pass; its
        credential, if that is the token of a stream of HTTP+SSE; or an awaitable, if somebody else
        has to be asked about the credential: pass its result to `answer_verdict`."""
        spec = self._spec(arrival)
        if spec is not None and not spec.auth:
            return AuthenticatedPrincipal(gate.USER, FOREVER)
        credentials = found_in(arrival.headers, arrival.query)
        if len(credentials) != 1:
            return SEVERAL if credentials else self._challenge(spec)
        credential = credentials[0]
        if credential.kind == "post":
            return credential
        verdict = self._principal(spec, credential, arrival)
        return (
            self.answer_verdict(verdict, arrival)
            if isinstance(verdict, AuthenticatedPrincipal | Denial)
            else verdict
        )

    def answer_verdict(self, verdict: Found, arrival: AuthRequest) -> Found:
        """Return the answer to a request whose credential was judged, and count a failed one."""
        return self.deny_credential(arrival) if verdict is UNAUTHORIZED else verdict

    def _spec(self, arrival: AuthRequest) -> EndpointSpec | None:
        return None if arrival.endpoint is None else self._endpoints.get(arrival.endpoint)

    def deny_credential(self, arrival: AuthRequest) -> Denial:
        """Count a failed credential, and return the answer to its request."""
        wait_s = self._failures.count_failure(arrival.address, arrival.now)
        if not wait_s:
            return self._challenge(self._spec(arrival))
        return Denial(429, _MANY, "failures", ((b"retry-after", b"%d" % wait_s),))

    def _find_key(self, text: bytes) -> tuple[KeySpec, Principal] | None:
        if not self._pepper:
            return None
        key = text.decode("latin-1")
        entry = self._keys.get(api_key.digest(self._pepper, key))
        if entry is None and self._older_peppers:
            for pepper in self._older_peppers:
                entry = entry or self._keys.get(api_key.digest(pepper, key))
        return entry

    def _challenge(self, spec: EndpointSpec | None) -> Denial:
        """Return the answer 401 of this endpoint; where tokens are accepted, clients learn where
        to get one."""
        if spec is None or spec.oauth is None:
            return UNAUTHORIZED
        value = gate.challenge("", spec.oauth.scopes or gate.SCOPES, spec.metadata)
        return structs.replace(UNAUTHORIZED, headers=((b"www-authenticate", value),))

    def _principal(
        self, spec: EndpointSpec | None, credential: Credential, arrival: AuthRequest
    ) -> Found | Awaitable[Found]:
        """Return who has this credential, whatever its kind is; the kind decides on the one way to
        verify it."""
        text = credential.text
        if len(text) > CREDENTIAL_BYTES_MAX:
            return UNAUTHORIZED
        if credential.kind == "bearer" and not text.startswith(api_key.PREFIX.encode()):
            if spec is None or OAUTH not in spec.auth:
                return UNAUTHORIZED
            ask = not self._failures.full(arrival.address, arrival.now)
            return self.verify(spec, text.decode("latin-1"), arrival.date, ask)
        entry = self._find_key(text)
        if entry is None:
            return UNAUTHORIZED
        key, principal = entry
        if key.expires and arrival.date >= key.expires:
            return UNAUTHORIZED
        if spec is None or key.workspace != spec.workspace:
            return structs.replace(ABSENT, key=key.id)
        if KEYS not in spec.auth or not _key_fits_endpoint(key, spec):
            return UNAUTHORIZED
        if credential.kind == "url" and not (key.url and spec.url_keys):
            return UNAUTHORIZED
        return AuthenticatedPrincipal(principal, key.expires or FOREVER)


def _key_fits_endpoint(key: KeySpec, spec: EndpointSpec) -> bool:
    """Whether the key names this endpoint, or names none, and the same the other way round."""
    if key.endpoints and spec.name not in key.endpoints:
        return False
    return not spec.keys or key.id in spec.keys or key.name in spec.keys


def _principal(key: KeySpec) -> Principal:
    scopes, servers = gate.parse_scopes(key.scopes)
    return Principal(
        name=f"key:{key.principal}", workspace=key.workspace, scopes=scopes, servers=servers,
        key=key.id, auth=KEYS, expires=key.expires, label=key.name,
    )  # fmt: skip


def found_in(headers: Headers, query: bytes) -> list[Credential]:
    """Return every credential that a request carries. An `Authorization` of another kind than
    Bearer counts as a credential, which is not valid."""
    credentials: list[Credential] = []
    for name, value in headers:
        if name == b"authorization":
            bearer = _BEARER.fullmatch(value.strip(_BLANKS))
            credentials.append(Credential("bearer", b"" if bearer is None else bearer["token"]))
        elif name == b"x-api-key":
            credentials.append(Credential("header", value.strip(_BLANKS)))
    if query:
        credentials += (
            Credential("url" if name == QUERY_KEY else "post", unquote_to_bytes(value))
            for name, _, value in (pair.partition(b"=") for pair in query.split(b"&"))
            if name in (QUERY_KEY, QUERY_TOKEN)
        )
    return credentials


class Failures:
    """Failed credentials by address: a bucket for each, which holds FAILURES_MAX and is full again
    after FAILURES_S."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}
        """Failures and the time of the last one, by address; the oldest first."""

    def __len__(self) -> int:
        return len(self._buckets)

    def full(self, address: str, now: float) -> bool:
        """Whether one more failure of this address would be too much."""
        return self._count(address, now) + 1 > FAILURES_MAX

    def _count(self, address: str, now: float) -> float:
        failures, last = self._buckets.get(address, (0.0, now))
        return max(0.0, failures - (now - last) * FAILURES_MAX / FAILURES_S)

    def count_failure(self, address: str, now: float) -> float:
        """Count a failure. Returns 0, or the seconds to wait if there were too many."""
        failures = self._count(address, now)
        self._buckets.pop(address, None)
        over = failures + 1 - FAILURES_MAX
        self._buckets[address] = (failures if over > 0 else failures + 1), now
        if len(self._buckets) > ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        return max(1.0, over * FAILURES_S / FAILURES_MAX) if over > 0 else 0.0
