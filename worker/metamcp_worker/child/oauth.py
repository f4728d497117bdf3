"""OAuth for a remote server: the tokens of its requests, and the errors without them.

Owns: the token of each request, when new tokens are fetched, that each flow runs only once at a
time, the error for a caller when a person is needed. Never: the flows (`metamcp_worker.oauth`),
HTTP.

Requests never wait for a person. When a person is needed, the flow goes on by itself, for as long
as that person may take, and every call during this time is answered at once with an error that has
the link to open; later calls just work. A server that needs a person before its lists were read
cannot be used yet: it is down with this reason until the operator has run `metamcp login`.

The flows use the SDK, which is imported when the first flow runs. A server with a valid token does
not need it.
"""

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import httpx2
from msgspec import Struct

from metamcp_worker.child.http_transport import HttpTransport, RequestRefused
from metamcp_worker.child.streamable_http import remote
from metamcp_worker.child.transport import SpawnFailed, Transport, TransportListener
from metamcp_worker.http.fetch import Auth, Unreachable
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.spec import OAuthSpec, ServerSpec
from metamcp_worker.oauth import WHOLE_SDK
from metamcp_worker.oauth.challenge import Challenge, NotAuthorized, scopes
from metamcp_worker.oauth.vault import KEY_BYTES, TokenRecord, Vault, bare
from metamcp_worker.runtime import lazy_import

if TYPE_CHECKING:
    from metamcp_worker.oauth.flow import Flow

SENDS_MAX = 4
"""Maximum number of times that one request is sent: with the token at hand, with a refreshed token,
with the token of a new authorization, and with more scopes."""
EXPIRY_S_MARGIN = 10.0
"""Seconds before its end at which a token is renewed, because clocks differ and requests take
time."""
RENEW_S_MAX = 60.0
"""Maximum seconds to wait until a flow ends or needs a person."""
FAILURE_S = 5.0
"""Seconds until a flow that failed is tried again, since many calls may want it: twice as many
after each further failure."""
FAILURE_S_MAX = 300.0

Work = Callable[["Flow"], Awaitable[TokenRecord | None]]


def build_oauth_transport(spec: ServerSpec, version: str, listener: TransportListener) -> Transport:
    """Return the transport to `spec.url` that `remote` makes, with tokens. Raises SpawnFailed."""
    auth = ServerTokens(spec, listener)
    made = remote(spec, version, listener, auth)
    assert isinstance(made, HttpTransport)
    auth.attach(made)
    return made


class _OAuthFlow:
    """Flow under way. `moved`: set when the flow is over, or waits for a person to open `link`."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()
        self.link = ""
        self.over = False
        self.error: Unreachable | None = NotAuthorized("is being stopped")

    def show(self, link: str) -> None:
        self.link = link
        if link:
            self.moved.set()
        else:
            self.moved.clear()


class _Resource(Struct):
    """Metadata of a protected resource (RFC 9728, 2)."""

    resource: str


class _Failure(NamedTuple):
    """Failure of a flow, whose kind is not tried again before `over_at`, `rest_s` after the
    failure."""

    error: Unreachable
    rest_s: float
    over_at: float


class ServerTokens(Auth):
    """Authorization of every request to one server. `listener`: learns the tokens, to mask them."""

    def __init__(self, spec: ServerSpec, listener: TransportListener) -> None:
        assert spec.oauth is not None
        self._spec = spec
        self._listener = listener
        self._masked = ""
        self._oauth: OAuthSpec = spec.oauth
        self._url = bare(spec.url or "")
        self._vault = Vault(spec.oauth.store, _key(spec))
        self._record: TokenRecord | None = None
        self._loaded = False
        self._unproven = ""
        self._flights: dict[str, _OAuthFlow] = {}
        self._failures: dict[str, _Failure] = {}
        self._told: set[str] = set()
        self._link: HttpTransport | None = None

    def attach(self, link: HttpTransport) -> None:
        """Set the link whose tasks run the flows, which end with the link."""
        self._link = link

    def covers(self, url: str) -> bool:
        """Whether this URL is part of the resource that the tokens are for (RFC 8707, 2)."""
        resource = self._url
        if self._record is not None and self._record.resource:
            resource = codec.decode_as(_Resource, self._record.resource.encode()).resource
        resource_parts, url_parts = urlsplit(resource), urlsplit(url)
        below = f"{url_parts.path}/".startswith(f"{resource_parts.path.rstrip('/')}/")
        return below and (resource_parts.scheme, resource_parts.netloc) == (
            url_parts.scheme,
            url_parts.netloc,
        )

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with a token, and again with a new token when the server demands it.
        Without authorization raises RequestRefused for a POST, whose error the caller gets, and
        NotAuthorized for other methods; raises also Unreachable."""
        try:
            for _ in range(SENDS_MAX):
                token = await self._token()
                request.headers.pop("Authorization", None)
                if token:
                    self._mask(token)
                    request.headers["Authorization"] = f"Bearer {token}"
                response = yield request
                challenge = Challenge.of(
                    response.status_code,
                    str(response.headers.get("www-authenticate", "")),
                    str(request.headers.get("mcp-protocol-version", "")),
                )
                if challenge is None:
                    self._on_accepted(token)
                    return
                await self._renew(token, challenge)
        except NotAuthorized as error:
            if request.method == "POST":
                raise RequestRefused(self._error(error)) from None
            remedy = f": run 'metamcp login {self._spec.name}'" if error.link else ""
            raise NotAuthorized(f"{error}{remedy}") from None

    # --- tokens -----------------------------------------------------------------------------

    async def _token(self) -> str:
        """Return the token to send, or an empty string. Raises NotAuthorized and Unreachable."""
        if not self._loaded:
            self._loaded = True
            self._record = self._find_record()
        record = self._record
        if record is None or not record.access_token:
            return ""
        left_s = record.expires_at - time.time() if record.expires_at else EXPIRY_S_MARGIN + 1
        if left_s > EXPIRY_S_MARGIN or not record.refresh_token:
            return record.access_token
        try:
            await self._refresh(record)
        except Unreachable:
            if left_s <= 0:
                raise
        return self._record.access_token if self._record is not None else ""

    def _mask(self, token: str) -> None:
        if token != self._masked:
            self._masked = token
            refresh = self._record.refresh_token if self._record is not None else ""
            for each in filter(None, (token, refresh)):
                self._listener.secret(each)

    def _on_accepted(self, token: str) -> None:
        if token == self._unproven:
            self._unproven = ""

    async def _renew(self, token: str, challenge: Challenge) -> None:
        """Get a token to send in place of `token`. Raises NotAuthorized and Unreachable."""
        record = self._record
        if record is None or record.access_token == token:
            # The operator may have run `metamcp login`.
            record = self._find_record() or record
        if record is not None and record.access_token != token:
            self._record = record
            return
        if challenge.status == 403 and record is not None:
            missing = set(challenge.scopes) - set(scopes(record.scope))
            if challenge.scopes and not missing:
                named = " ".join(challenge.scopes)
                raise NotAuthorized(f"refuses this although it was granted what it wants: {named}")
        elif token and token == self._unproven:
            self._unproven = ""
            raise NotAuthorized("refuses the token that its authorization server has just given")
        elif token and record is not None and record.refresh_token:
            await self._refresh(record)
            return
        await self._fly("authorize", lambda flow: flow.authorize(challenge))

    async def _refresh(self, record: TokenRecord) -> None:
        """Replace the token: by a newer one from the store, or by a refresh. Raises NotAuthorized
        and Unreachable."""
        stored = self._find_record()
        if stored is not None and stored.access_token != record.access_token:
            self._record = stored
        else:
            await self._fly("refresh", lambda flow: flow.refresh(record.access_token))

    def _find_record(self) -> TokenRecord | None:
        record = self._vault.find_usable(self._spec.name, self._url, self._oauth.client_id)
        self._tell_warnings()
        return record

    # --- flows ------------------------------------------------------------------------------

    async def _fly(self, kind: str, work: Work) -> None:
        """Wait for the flow of this kind; start it if none is under way. Raises NotAuthorized, with
        a link if a person is needed, and Unreachable."""
        flight = self._flights.get(kind)
        if flight is None:
            failure = self._failures.get(kind)
            if failure is not None and time.monotonic() < failure.over_at:
                raise _copy_error(failure.error)
            flight = self._start(kind, work)
        try:
            async with asyncio.timeout(RENEW_S_MAX):
                await flight.moved.wait()
        except TimeoutError:
            raise Unreachable(f"its authorization takes more than {RENEW_S_MAX:g} s") from None
        if not flight.over:
            raise NotAuthorized("needs authorization", flight.link)
        if flight.error is not None:
            raise _copy_error(flight.error)

    def _start(self, kind: str, work: Work) -> _OAuthFlow:
        assert self._link is not None
        flight = self._flights[kind] = _OAuthFlow()
        self._link.start(("oauth", kind), lambda: self._run(kind, flight, work))
        return flight

    async def _run(self, kind: str, flight: _OAuthFlow, work: Work) -> None:
        try:
            # The import takes half a second, and the worker must not wait for it.
            module = await asyncio.to_thread(
                lazy_import.import_from, WHOLE_SDK, "metamcp_worker.oauth.flow"
            )
            self._record = await work(module.Flow(self._spec, self._vault, flight.show))
            self._unproven = self._record.access_token if self._record is not None else ""
            flight.error = None
        except Unreachable as error:
            flight.error = error
        except Exception as error:  # noqa: BLE001 - a task root; its text may hold what is secret
            flight.error = NotAuthorized(f"was not authorized: {type(error).__name__}")
        finally:
            flight.over = True
            flight.moved.set()
            del self._flights[kind]
        if flight.error is None:
            self._failures.pop(kind, None)
        else:
            before = self._failures.get(kind)
            rest_s = min(FAILURE_S if before is None else 2 * before.rest_s, FAILURE_S_MAX)
            self._failures[kind] = _Failure(flight.error, rest_s, time.monotonic() + rest_s)
            not_authorized = isinstance(flight.error, NotAuthorized)
            self._warn(
                f"it {flight.error}" if not_authorized else f"no authorization: {flight.error}"
            )
        self._tell_warnings()

    # --- words ------------------------------------------------------------------------------

    def _error(self, error: NotAuthorized) -> bytes:
        """Return the error object of a request that was refused and never run."""
        assert self._link is not None
        data: dict[str, object] = {"may_have_run": False}
        problem = str(error)
        if error.link:
            data["authorization_url"] = error.link
            problem = (
                f"{problem}: open {error.link} in a browser on the machine of the gateway, or run"
                f" 'metamcp login {self._spec.name}'"
            )
        return self._link.faults.body(Code.AUTHORIZATION_NEEDED, problem, data)

    def _warn(self, text: str) -> None:
        if self._link is not None:
            self._link.warn(text)

    def _tell_warnings(self) -> None:
        """Log the warnings of the vault, each only once, because the same files are read
        repeatedly."""
        for text in set(self._vault.warnings) - self._told:
            self._warn(text)
            self._told.add(text)
        self._vault.warnings.clear()


def _copy_error(error: Unreachable) -> Unreachable:
    """Return a new exception with the same text, for another caller, without a link."""
    return (
        NotAuthorized(str(error)) if isinstance(error, NotAuthorized) else Unreachable(str(error))
    )


def _key(spec: ServerSpec) -> bytes:
    assert spec.oauth is not None
    try:
        key = base64.b64decode(spec.oauth.key, validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SpawnFailed(f"cannot connect to {spec.name}: the key for its tokens is none")
    return key
