"""Flows of OAuth with the official SDK: get and refresh the tokens for a server.

Owns: the setup and input of the SDK's providers, the meaning of an authorization server's answers,
the flow of `metamcp login`, while a person waits. Never: HTTP (`checked_http`), files (`vault`),
the choice of the client (`provider_storage`), when a flow is run.

The SDK's flow is written around one request: it sends that request in its middle, and all others
wait for the answer. Here the flow therefore runs apart from the requests. When it first tries to
send the request, it gets the refusal that the server already sent; when it tries again, it ends.
"""

import contextlib
import logging
import re
import warnings
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import (
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from mcp.shared.exceptions import MCPDeprecationWarning
from msgspec import Struct, structs
from pydantic import AnyUrl

from metamcp_worker.http.fetch import Origin, Unreachable
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.spec import OAuthSpec, ServerSpec
from metamcp_worker.oauth import checked_http
from metamcp_worker.oauth.callback import PERSON_S_MAX, Callback
from metamcp_worker.oauth.challenge import Challenge, NotAuthorized, scopes
from metamcp_worker.oauth.checked_http import CheckedHttpClient
from metamcp_worker.oauth.provider_storage import ProviderStorage
from metamcp_worker.oauth.vault import TokenRecord, Vault, VaultUnfit, bare, vault_of

ANSWER_S_MAX = 30.0
"""Seconds for a server to answer with its challenge."""

_PROTOCOL = "2026-07-28"
_PREFIX = "io.modelcontextprotocol"
#: Request without effects, which needs authorization at every server that wants authorization.
_QUESTION = (
    '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{'
    f'"{_PREFIX}/protocolVersion":"{_PROTOCOL}","{_PREFIX}/clientCapabilities":{{}},'
    f'"{_PREFIX}/clientInfo":{{"name":"metamcp","version":"1"}}}}}}}}'
).encode()
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": _PROTOCOL,
    "Mcp-Method": "tools/list",
}

DESCRIPTION_CHARS_MAX = 200
"""Maximum characters of an error in an authorization server's own words."""

_CODE = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
#: Members of a form that are credentials, or lead to some.
_SECRETS = ("client_secret", "code", "code_verifier", "refresh_token")
#: Error codes for a client that the authorization server does not know any more.
_UNKNOWN = frozenset({"invalid_client", "unauthorized_client"})
_SPENT = "invalid_grant"
"""Error code for a refresh token that is not valid any more (RFC 6749, 5.2). After other answers
the token may still be valid: they may come from a firewall or a busy server."""
_LATER = frozenset({408, 425, 429})
_METADATA = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")

# This logger writes whole answers of authorization servers, which may hold tokens.
logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)


class _IssuerAnswer(Struct, frozen=True):
    """Latest answer of an authorization server, as far as it may be shown."""

    origin: str = ""
    status: int = 0
    error: str = ""
    description: str = ""

    @property
    def reason(self) -> str:
        parts = [f"HTTP {self.status}", self.error, self.description]
        return ", ".join(text for text in parts if text)


class Flow:
    """Flow for one server. `show`: function that gets the link that a person must open, and an
    empty text when the link is not needed any more."""

    def __init__(
        self, spec: ServerSpec, vault: Vault, show: Callable[[str], None] | None = None
    ) -> None:
        assert spec.oauth is not None
        self._spec = spec
        self._oauth: OAuthSpec = spec.oauth
        self._show = show
        self._shelf = ProviderStorage(spec, vault)
        self._guarded = CheckedHttpClient(spec.url or "")
        self._callback: Callback | None = None
        self._state = ""
        self._person_s = PERSON_S_MAX
        self._last_answer = _IssuerAnswer()

    async def refresh(self, token: str) -> TokenRecord | None:
        """Get newer tokens than this access token; None if a new authorization is needed. Only one
        process at a time asks for new tokens, because an authorization server may take the second
        use of a refresh token for a theft. Raises NotAuthorized and Unreachable."""
        async with self._shelf.refresh(token):
            before = self._shelf.record
            if before is not None and before.access_token not in ("", token):
                return before  # another process or a person has got newer tokens
            if before is None or not before.refresh_token:
                return None
            provider = self._provider()
            await provider.begin(expired=True)
            await self._drive(provider, None)
            after = self._shelf.record
            if after is not None and after.access_token != before.access_token:
                return after
            answer = self._last_answer
            if answer.error == _SPENT:
                await self._shelf.forget_tokens()
                after = self._shelf.record
                return after if after is not None and after.access_token else None
            if answer.error not in _UNKNOWN:
                raise Unreachable(
                    f"its authorization server {answer.origin} gave no new token ({answer.reason})"
                )
            return None

    async def authorize(
        self, challenge: Challenge, *, person_s: float = PERSON_S_MAX
    ) -> TokenRecord:
        """Get the tokens that the server asks for. Raises NotAuthorized and Unreachable.

        `person_s`: seconds that a person may take, if a person is needed.
        """
        self._person_s = person_s
        if challenge.status == 403:
            await self._shelf.want(challenge.scopes)
        if self._oauth.grant == "authorization_code":
            try:
                self._callback = Callback(self._shelf.callback_port)
            except OSError as error:
                reason = f"no port of this machine can be listened at: {error.strerror}"
                raise NotAuthorized(f"needs authorization, but {reason}") from None
            self._shelf.callback_url = self._callback.url
        try:
            provider = self._provider()
            await provider.begin(expired=False)
            if challenge.status == 401:
                provider.context.clear_tokens()
            await self._drive(provider, self._add_scopes(challenge))
        finally:
            if self._callback is not None:
                self._callback.close()
        record = self._shelf.record
        if record is None or not record.access_token:
            raise NotAuthorized("was given no token")
        return record

    # --- the provider -----------------------------------------------------------------------

    def _provider(self) -> "_AuthorizationCodeGrant | _ClientCredentialsGrant":
        oauth, shelf = self._oauth, self._shelf
        if oauth.grant == "client_credentials":
            with warnings.catch_warnings():
                # The storage decides which issuer may get the credentials.
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                machine = _ClientCredentialsGrant(
                    shelf.url, shelf, oauth.client_id or "", oauth.client_secret or ""
                )
            machine.shelf = shelf
            return machine
        scope = shelf.record.scope if shelf.record is not None else ""
        back = shelf.callback_url or f"http://127.0.0.1:{oauth.callback_port}"
        person = _AuthorizationCodeGrant(
            shelf.url,
            OAuthClientMetadata(
                client_name="MetaMCP",
                redirect_uris=[AnyUrl(back)],
                scope=scope or None,
            ),
            shelf,
            redirect_handler=self._redirect,
            callback_handler=self._wait_for_code,
            client_metadata_url=oauth.client_metadata_url,
        )
        person.shelf = shelf
        return person

    def _add_scopes(self, challenge: Challenge) -> Challenge:
        """Return the challenge with the scopes of the server, else of the operator, and with the
        scopes that the server has asked for since."""
        record = self._shelf.record
        extra_scopes = scopes(record.wanted) if record is not None else ()
        base_scopes = challenge.scopes or (self._oauth.scopes if challenge.status == 401 else ())
        if extra_scopes and not base_scopes and record is not None:
            base_scopes = scopes(record.scope)
        return challenge.with_scopes(dict.fromkeys([*base_scopes, *extra_scopes]))

    async def _redirect(self, url: str) -> None:
        checked_http.page(url)
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        assert self._show is not None
        self._show(url)

    async def _wait_for_code(self) -> AuthorizationCodeResult:
        assert self._callback is not None
        answer = await self._callback.answer(self._state, wait_s=self._person_s)
        if self._show is not None:
            self._show("")
        if answer is None:
            raise NotAuthorized(f"was not authorized: nobody agreed within {self._person_s:g} s")
        if answer.error or not answer.code:
            code = answer.error if _CODE.fullmatch(answer.error) else "no code came back"
            raise NotAuthorized(f"was not authorized: {code}")
        return AuthorizationCodeResult(code=answer.code, state=self._state, iss=answer.iss)

    # --- the flow ---------------------------------------------------------------------------

    async def _drive(
        self,
        provider: "_AuthorizationCodeGrant | _ClientCredentialsGrant",
        challenge: Challenge | None,
    ) -> None:
        """Run the provider as if a request met this refusal. Without a refusal the provider only
        prepares the token. Raises NotAuthorized and Unreachable."""
        protocol = challenge.protocol if challenge is not None else ""
        headers = {"mcp-protocol-version": protocol} if protocol else {}
        real = httpx2.Request("POST", self._shelf.url, headers=headers)
        flow = provider.async_auth_flow(real)
        async with contextlib.aclosing(flow):
            try:
                request = await anext(flow)
                while request is not real or challenge is not None:
                    if request is real and challenge is not None:
                        answer = _refusal(challenge, real)
                        challenge = None
                    else:
                        answer = await self._send(provider.context, request)
                    request = await flow.asend(answer)
            except StopAsyncIteration:
                return
            except MetaMCPError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a foreign answer makes of the SDK
                raise self._make_error(error, provider.context) from None

    async def _send(self, context: OAuthContext, request: httpx2.Request) -> httpx2.Response:
        metadata = context.oauth_metadata
        registers = request.headers.get("content-type", "").startswith("application/json")
        if registers and metadata is not None and metadata.registration_endpoint is None:
            raise self._make_registration_error(
                str(metadata.issuer), "takes no registrations by itself"
            )
        answer = await self._guarded.send(request)
        self._last_answer = _parse_answer(request, answer)
        if self._last_answer.error in _UNKNOWN and context.client_info is not None:
            await self._shelf.forget_client(str(context.client_info.client_id))
        described = request.method == "GET" and request.url.path.startswith(_METADATA)
        if described and answer.is_success:
            _check_endpoints(answer)
        to_authorization_server = request.method == "POST" or described
        if to_authorization_server and (answer.status_code >= 500 or answer.status_code in _LATER):
            raise Unreachable(
                f"its authorization server {self._last_answer.origin} answered"
                f" {self._last_answer.reason}"
            )
        return answer

    # --- sentences --------------------------------------------------------------------------

    def _make_error(self, error: Exception, context: OAuthContext) -> NotAuthorized:
        """Return the error to raise, without words of the SDK that repeat an answer."""
        answer = self._last_answer
        match error:
            case OAuthRegistrationError() if context.oauth_metadata is None:
                return NotAuthorized(
                    "wants authorization and does not say where to get it: it has no metadata for"
                    " OAuth clients; set `headers` of this server instead of `oauth`"
                )
            case OAuthRegistrationError():
                return self._make_registration_error(
                    answer.origin, f"did not register the gateway ({answer.reason})"
                )
            case OAuthTokenError():
                remedy = "; check `client_id` and `client_secret`" if self._oauth.client_id else ""
                return NotAuthorized(
                    f"was not authorized: {answer.origin} gave no token ({answer.reason}){remedy}"
                )
            case OAuthFlowError():
                return NotAuthorized(f"was not authorized: {_plain(str(error))}")
            case _:
                return NotAuthorized(
                    f"was not authorized: what {answer.origin} answered is not what it has to be"
                )

    def _make_registration_error(self, issuer: str, problem: str) -> NotAuthorized:
        return NotAuthorized(
            f"needs authorization, but its authorization server {issuer} {problem}; register a"
            f" client there, with the redirect URI {self._shelf.callback_url}, and set `client_id`"
            " in `oauth` of this server"
        )


class _OAuthProvider(OAuthClientProvider):
    """Changes to the SDK that both grants need."""

    shelf: ProviderStorage

    async def begin(self, *, expired: bool) -> None:
        """Load the stored state. `expired`: whether to treat the token as expired."""
        await self._initialize()
        self.shelf.restore(self.context)
        if expired:
            self.context.token_expiry_time = 1.0

    def _select_authorization_server(self, advertised: list[str]) -> str:
        chosen = self.shelf.choose(advertised)
        self.shelf.turn(chosen)
        return chosen

    async def _perform_authorization(self) -> httpx2.Request:
        self.shelf.settle(self.context)
        return await super()._perform_authorization()


class _AuthorizationCodeGrant(_OAuthProvider):
    """Grant `authorization_code`: a person agrees in a browser."""


class _ClientCredentialsGrant(_OAuthProvider, ClientCredentialsOAuthProvider):
    """Grant `client_credentials`: the gateway has a credential of its own."""


def _refusal(challenge: Challenge, request: httpx2.Request) -> httpx2.Response:
    headers = {"www-authenticate": challenge.header}
    return httpx2.Response(challenge.status, headers=headers, request=request)


def _parse_answer(request: httpx2.Request, answer: httpx2.Response) -> _IssuerAnswer:
    origin = checked_http.origin(request.url)
    try:
        oauth_error = codec.decode_as(_Error, answer.content)
    except codec.Malformed:
        oauth_error = _Error()
    error = oauth_error.error if _CODE.fullmatch(oauth_error.error) else ""
    form = parse_qs(request.content.decode(errors="replace"))
    secrets = [value for name in _SECRETS for value in form.get(name, [])]
    has_secret = any(secret in oauth_error.error_description for secret in secrets if secret)
    description = "" if has_secret or answer.is_success else _plain(oauth_error.error_description)
    return _IssuerAnswer(
        origin, answer.status_code, "" if answer.is_success else error, description
    )


class _Error(Struct):
    error: str = ""
    error_description: str = ""


class _Endpoints(Struct):
    """Endpoints of an authorization server (RFC 8414, 2)."""

    authorization_endpoint: str = ""
    token_endpoint: str = ""
    registration_endpoint: str = ""


def _check_endpoints(metadata: httpx2.Response) -> None:
    """Check the endpoints of the metadata. Raises NotAuthorized for an endpoint that is not a web
    address, which the SDK would take for missing metadata."""
    try:
        endpoints = structs.asdict(codec.decode_as(_Endpoints, metadata.content))
    except codec.Malformed:
        return
    for name, url in endpoints.items():
        scheme = url.partition(":")[0].strip().lower()
        if url and scheme not in {"http", "https"}:
            raise NotAuthorized(
                f"has an authorization server whose metadata names {_plain(url)!r} as `{name}`,"
                " which is not a web address"
            )


def _plain(text: str) -> str:
    """Return the printable part of a foreign text that may be shown, cut to its limit."""
    return "".join(each if each.isprintable() else " " for each in text)[:DESCRIPTION_CHARS_MAX]


async def login(spec: ServerSpec, show: Callable[[str], None], *, person_s: float) -> TokenRecord:
    """Get tokens for this server and store them. `show`: function that gets the link that a person
    must open; `person_s`: seconds that the person may take; see `Flow`. Raises Unreachable,
    NotAuthorized, Broken and VaultUnfit; MetaMCPError for a server without `oauth`."""
    vault = vault_of(spec)
    record = await Flow(spec, vault, show).authorize(await _challenge(spec), person_s=person_s)
    stored_records = vault.find(spec.name, bare(spec.url or ""))
    if not any(stored.access_token == record.access_token for stored in stored_records):
        raise VaultUnfit("; ".join(vault.warnings) or "the tokens were not stored")
    return record


async def _challenge(spec: ServerSpec) -> Challenge:
    """Ask the server without a token for its challenge. Raises Unreachable and Broken."""
    origin = Origin(spec.url or "", headers=spec.headers)
    try:
        response = await origin.send("POST", _HEADERS, _QUESTION, answer_s=ANSWER_S_MAX)
        await response.close()
        if response.status in {404, 405}:
            # A server of the older transport answers only GET, with a stream of events.
            headers = {"Accept": "text/event-stream"}
            response = await origin.send("GET", headers, answer_s=ANSWER_S_MAX)
            await response.close()
        header = response.header("www-authenticate")
        return Challenge.of(response.status, header, _PROTOCOL) or Challenge(401, "", _PROTOCOL)
    finally:
        await origin.close()
