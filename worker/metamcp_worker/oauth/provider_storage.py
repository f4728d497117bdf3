"""Storage for the SDK's providers: tokens, and the registration of the gateway as a client.

Owns: the conversion between the SDK's models and the vault's records, the choice of the client
(registered beforehand, by its document, or dynamically), the binding of credentials to one
authorization server. Never: the flow, files, the meaning of a scope.

A client that was registered beforehand belongs to the authorization server that it was first used
with. The MCP server names its authorization server, and may be hostile: it must not be able to send
the client's secret elsewhere by naming another authorization server.
"""

import contextlib
import re
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from msgspec import structs
from pydantic import AnyUrl, BaseModel, ValidationError

from metamcp_worker.http.fetch import Unreachable
from metamcp_worker.ipc.spec import OAuthSpec, ServerSpec
from metamcp_worker.oauth.callback import PATH
from metamcp_worker.oauth.challenge import NotAuthorized, scopes
from metamcp_worker.oauth.vault import (
    CHANGE,
    LOCK_S_MAX,
    REFRESH,
    TokenRecord,
    Vault,
    VaultBusy,
    VaultUnfit,
    bare,
)

TOKEN_CHARS_MAX = 16 * 1024
"""Maximum characters of a token, which every request carries; servers limit their headers."""
LIFETIME_S_MAX = 10 * 365 * 86400.0

M = TypeVar("M", bound=BaseModel)

_TOKEN = re.compile(r"[\x21-\x7e]+")
_BASIC, _POST = "client_secret_basic", "client_secret_post"


class ProviderStorage:
    """`TokenStorage` of one flow. `record`: stored state for the authorization server of the flow;
    `callback_url`: URL to which the browser comes back; empty if there is none."""

    def __init__(self, spec: ServerSpec, vault: Vault) -> None:
        assert spec.oauth is not None
        self.url = bare(spec.url or "")
        self.callback_url = ""
        self._server = spec.name
        self._oauth: OAuthSpec = spec.oauth
        self._vault = vault
        self._context: OAuthContext | None = None
        self._refreshed: str | None = None
        self._saved_at = 0.0
        self._records: list[TokenRecord] = []
        self.record: TokenRecord | None = None
        self.look()

    @property
    def callback_port(self) -> int:
        """Return the port that the client was registered with, else that of the configuration."""
        for url in _redirects(self.record):
            parts = urlsplit(url)
            if parts.hostname == "127.0.0.1" and parts.path == PATH and parts.port:
                return parts.port
        return self._oauth.callback_port

    # --- what the SDK reads and writes ------------------------------------------------------

    async def get_tokens(self) -> OAuthToken | None:
        record = self.record
        if record is None or not record.access_token:
            return None
        return OAuthToken(
            access_token=record.access_token,
            refresh_token=record.refresh_token or None,
            scope=record.scope or None,
        )

    async def set_tokens(self, tokens: OAuthToken) -> None:
        for token in (tokens.access_token, tokens.refresh_token or "-"):
            if len(token) > TOKEN_CHARS_MAX or not _TOKEN.fullmatch(token):
                raise NotAuthorized("was given a token that no header can hold")
        lifetime_s = 0.0 if tokens.expires_in is None else max(1.0, float(tokens.expires_in))
        granted = tokens.scope or ""
        async with self._change():
            if not self._mine():
                return
            before = self._of(self._issuer())
            ungranted = [scope for scope in scopes(before.wanted) if scope not in scopes(granted)]
            self._keep(
                structs.replace(
                    before,
                    access_token=tokens.access_token,
                    refresh_token=tokens.refresh_token or "",
                    scope=granted,
                    expires_at=time.time() + min(lifetime_s, LIFETIME_S_MAX) if lifetime_s else 0.0,
                    wanted=" ".join(ungranted),
                )
            )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        if self._oauth.client_id is not None:
            return OAuthClientInformationFull(
                client_id=self._oauth.client_id,
                client_secret=self._oauth.client_secret,
                redirect_uris=[AnyUrl(self.callback_url)] if self.callback_url else None,
            )
        return self._find_registration(self.record)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        if client_info.redirect_uris is None:
            client_info.redirect_uris = [AnyUrl(self.callback_url)]
        async with self._change():
            self._keep(self._of(client_info.issuer or self._issuer()))

    # --- what the flow asks -----------------------------------------------------------------

    def restore(self, context: OAuthContext) -> None:
        """Continue where an earlier flow ended, because the SDK does not remember metadata."""
        self._context = context
        record = self.record
        if record is None:
            return
        context.token_expiry_time = record.expires_at or None
        context.oauth_metadata = _read(OAuthMetadata, record.metadata)
        context.protected_resource_metadata = _read(ProtectedResourceMetadata, record.resource)
        if context.oauth_metadata is not None and context.protected_resource_metadata is not None:
            context.auth_server_url = record.issuer

    def choose(self, advertised: Sequence[str]) -> str:
        """Return an authorization server that knows the gateway, else the first of the list."""
        for record in self._records:
            for issuer in advertised:
                if issuers_match(issuer, record.issuer):
                    return issuer
        return advertised[0]

    def turn(self, issuer: str) -> None:
        """Switch to this authorization server, which must not get credentials of another."""
        context = self._context
        if context is None or (self.record and issuers_match(self.record.issuer, issuer)):
            return
        records = [record for record in self._records if issuers_match(record.issuer, issuer)]
        self.record = records[0] if records else None
        if self._oauth.client_id is None:
            context.client_info = self._find_registration(self.record)

    def settle(self, context: OAuthContext) -> None:
        """Check, before credentials are sent, that the authorization server is the right one, and
        choose how the client authenticates. Raises NotAuthorized."""
        issuer, client = self._issuer(), context.client_info
        has_client_id = self._oauth.client_id is not None
        bound = [record.issuer for record in self._records]
        if (
            has_client_id
            and bound
            and not any(issuers_match(bound_issuer, issuer) for bound_issuer in bound)
        ):
            raise NotAuthorized(
                f"names {issuer} as its authorization server, but its `client_id` was used with"
                f" {bound[0]}; if that is meant, run 'metamcp logout {self._server}' first"
            )
        metadata = context.oauth_metadata
        if client is not None and (has_client_id or client.token_endpoint_auth_method is None):
            client.token_endpoint_auth_method = _method(client, metadata)
        if metadata is None or not self.callback_url or not self._oauth.require_pkce:
            return  # Without metadata (revision 2025-03-26) every server must have PKCE.
        if "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise NotAuthorized(
                f"names {issuer} as its authorization server, whose metadata does not name S256"
                " among its code challenge methods, so it may have no PKCE; if its operator says"
                " that it has, set `require_pkce = false` in `oauth` of this server"
            )

    @contextlib.asynccontextmanager
    async def refresh(self, token: str) -> AsyncGenerator[None]:
        """Let only one process at a time replace this access token. Tokens that a person gets in
        that time stay. Raises Unreachable."""
        async with self._lock(REFRESH):
            self.look()
            self._refreshed = token
            try:
                yield
            finally:
                self._refreshed = None

    async def forget_tokens(self) -> None:
        """Remove the tokens, which are not valid any more, and keep the registration. Raises
        Unreachable."""
        async with self._change():
            if self.record is not None and self._mine():
                self._keep(structs.replace(self.record, access_token="", refresh_token=""))

    async def forget_client(self, client: str) -> None:
        """Remove a client that the authorization server does not know any more; next time the
        gateway registers again. The tokens of the client are removed too, because no other client
        can use them. `client`: the id that was sent; a client registered since stays. Raises
        Unreachable."""
        async with self._change():
            record = self.record
            if record is not None and not record.given and record.suits(client):
                self._keep(structs.replace(record, client="", access_token="", refresh_token=""))

    async def want(self, scope_names: Sequence[str]) -> None:
        """Remember scopes that the server asked for, until they are granted. Raises Unreachable."""
        async with self._change():
            if self.record is not None and scope_names:
                every = dict.fromkeys([*scopes(self.record.wanted), *scope_names])
                scope_text = " ".join(scopes(" ".join(every)))
                self._keep(structs.replace(self.record, wanted=scope_text))

    # --- helpers ----------------------------------------------------------------------------

    def _issuer(self) -> str:
        """Return the issuer; without metadata the server's origin, as in revision 2025-03-26."""
        context = self._context
        if context is not None and context.oauth_metadata is not None:
            return str(context.oauth_metadata.issuer)
        if context is not None and context.auth_server_url is not None:
            return context.auth_server_url
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def _of(self, issuer: str) -> TokenRecord:
        """Return the record of this issuer, with the current state of the provider."""
        record = self.record
        if record is None or not issuers_match(record.issuer, issuer):
            record = TokenRecord(server=self._server, issuer=issuer, url=self.url)
        context = self._context
        if context is None:
            return record
        return structs.replace(
            record,
            client=_dump_model(context.client_info) or record.client,
            given=self._oauth.client_id is not None,
            metadata=_dump_model(context.oauth_metadata),
            resource=_dump_model(context.protected_resource_metadata),
        )

    @contextlib.asynccontextmanager
    async def _lock(self, action: str) -> AsyncGenerator[None]:
        try:
            async with self._vault.lock(self._server, action):
                yield
        except VaultBusy:
            reason = f"its tokens are in use by another process for more than {LOCK_S_MAX:g} s"
            raise Unreachable(reason) from None

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncGenerator[None]:
        """Lock the record for a change, and load changes of other processes. Raises Unreachable."""
        async with self._lock(CHANGE):
            self.look()
            yield

    def _mine(self) -> bool:
        """Whether the stored tokens are still those that a refresh must replace."""
        access_token = "" if self.record is None else self.record.access_token
        return self._refreshed is None or access_token in ("", self._refreshed)

    def look(self) -> None:
        """Load records that other processes have stored since."""
        client_id = self._oauth.client_id
        records = self._vault.find(self._server, self.url)
        self._records = [record for record in records if record.suits(client_id)]
        mine = self.record
        for record in self._records:
            if mine is None or issuers_match(mine.issuer, record.issuer):
                if record.saved_at > self._saved_at:
                    self.record, self._saved_at = record, record.saved_at
                return

    def _keep(self, record: TokenRecord) -> None:
        """Store the record; if that fails, the record is valid as long as this process lives."""
        self.record = record
        try:
            self._saved_at = time.time()  # also if it cannot be stored: nothing older counts
            self._vault.put(record)
        except VaultUnfit as error:
            self._vault.warnings.append(str(error))

    def _find_registration(self, record: TokenRecord | None) -> OAuthClientInformationFull | None:
        """Return the registration, unless it has expired or names another redirect URI."""
        client = _read(OAuthClientInformationFull, record.client) if record is not None else None
        if client is None or 0 < (client.client_secret_expires_at or 0) < time.time():
            return None
        here = not self.callback_url or self.callback_url in _redirects(record)
        by_document = client.client_id == self._oauth.client_metadata_url
        return client if here or by_document else None


def _redirects(record: TokenRecord | None) -> list[str]:
    client = _read(OAuthClientInformationFull, record.client) if record is not None else None
    return [str(url) for url in (client.redirect_uris or [])] if client is not None else []


def _method(client: OAuthClientInformationFull, metadata: OAuthMetadata | None) -> str:
    """Return how the client authenticates, if its registration does not say so (RFC 8414, 2)."""
    if client.client_secret is None:
        return "none"
    offered = metadata.token_endpoint_auth_methods_supported if metadata is not None else None
    if offered is not None and _BASIC not in offered and _POST in offered:
        return _POST
    return _BASIC


def _dump_model(model: BaseModel | None) -> str:
    return model.model_dump_json(exclude_none=True) if model is not None else ""


def _read(model: type[M], text: str) -> M | None:
    try:
        return model.model_validate_json(text) if text else None
    except ValidationError:
        return None
