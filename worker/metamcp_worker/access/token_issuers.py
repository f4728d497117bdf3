"""Authorization servers of a front: fetches their keys, and asks them about tokens.

Owns: requests to issuers, one at a time for the keys of each, and the answers about tokens that
cannot be judged here, for how long they are kept (`TokenIssuers`). Never: what makes a token valid
(`access.oauth_token`), which addresses are asked (`oauth.checked_http`), the door.

A front imports this module when an endpoint takes tokens, because it loads the libraries for HTTP
and for signatures.
"""

import asyncio
import hashlib
import logging
from base64 import b64encode
from collections.abc import Awaitable, Iterable
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx2

from metamcp_worker.access import oauth_token
from metamcp_worker.access.door import UNAUTHORIZED, Denial, Found
from metamcp_worker.access.oauth_token import IssuerKeys, TokenUnfit
from metamcp_worker.http.fetch import Unreachable
from metamcp_worker.ipc.spec import EndpointSpec, IssuerSpec
from metamcp_worker.oauth.addresses import Reach
from metamcp_worker.oauth.challenge import NotAuthorized
from metamcp_worker.oauth.checked_http import CheckedHttpClient

ANSWERS_MAX = 1000
"""Maximum valid tokens whose answers are kept; beyond, the oldest answer is forgotten."""
REFUSED_MAX = 200
"""Maximum tokens that are remembered as not valid; anybody can send such tokens."""
QUESTIONS_MAX = 32
"""Maximum questions about tokens that are under way at one issuer; more get 503."""
TOLD_S = 60.0
"""Seconds between two lines of the log about tokens of one issuer that are not valid."""

log = logging.getLogger("metamcp.front")

_WELL_KNOWN = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"
_OK = 200
_AWAY = Denial(
    503, "The authorization server of this endpoint does not answer; try again later.", "issuer",
    ((b"retry-after", b"10"),),
)  # fmt: skip


class TokenIssuers:
    """Issuers of the endpoints of a front."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._issuers: dict[IssuerSpec, _Issuer] = {}

    def configure(self, endpoints: Iterable[EndpointSpec]) -> None:
        """Accept the tokens of these endpoints. Keys that were fetched are kept."""
        issuer_rules = {endpoint.oauth for endpoint in endpoints if endpoint.oauth is not None}
        before = self._issuers
        self._issuers = {rules: before.get(rules) or _Issuer(rules) for rules in issuer_rules}

    def document(self, spec: EndpointSpec) -> bytes:
        """Return the document about an endpoint that takes tokens."""
        assert spec.oauth is not None
        return oauth_token.document(spec.oauth)

    def verify(
        self, spec: EndpointSpec, token: str, date: float, ask: bool
    ) -> Found | Awaitable[Found]:
        """Return what a token is worth at this endpoint, as in `door.Verify`."""
        assert spec.oauth is not None
        issuer, now = self._issuers[spec.oauth], self._loop.time()
        try:
            name = oauth_token.key_id(token)
        except TokenUnfit as error:
            if spec.oauth.introspection:
                return issuer.judge_by_introspection(spec, token, date, now, ask=ask)
            return issuer.refuse_token(spec, error, now)
        if issuer.keys.due(name, now):
            fetch = issuer.fetch()
            if issuer.keys.find(name, now) is None:
                return issuer.judge_after_fetch(fetch, spec, token, name, date)
        return issuer.verify_token(spec, token, name, date, now)


class _Issuer:
    """Issuer of one endpoint. `keys`: as they were fetched last."""

    def __init__(self, rules: IssuerSpec) -> None:
        self.keys = IssuerKeys()
        self._rules = rules
        reach = None if rules.allow_private else Reach.PUBLIC
        self._http = CheckedHttpClient(rules.issuer, reach=reach)
        self._loop = asyncio.get_running_loop()
        self._fetching: asyncio.Task[None] | None = None
        self._answers: dict[bytes, tuple[float, oauth_token.Claims]] = {}
        """When the answer ends (seconds of the clock of the loop), and what the issuer says."""
        self._refused: dict[bytes, float] = {}
        """When the answer ends that a token is not valid."""
        self._questions = 0
        self._told = float("-inf")

    def verify_token(
        self, spec: EndpointSpec, token: str, name: str, date: float, now: float
    ) -> Found:
        """Judge a token by the keys that are there."""
        if not self.keys.usable(now):
            return _AWAY
        key = self.keys.find(name, now)
        if key is None:
            return self.refuse_token(spec, TokenUnfit("no key of the issuer has signed it"), now)
        try:
            claims = oauth_token.claims_of(token, key, self._rules)
            return oauth_token.authorize_claims(claims, spec, date)
        except TokenUnfit as error:
            return self.refuse_token(spec, error, now)

    def fetch(self) -> asyncio.Task[None]:
        """Fetch the keys, unless that is under way."""
        if self._fetching is None:
            self._fetching = self._loop.create_task(self._fetch())
        return self._fetching

    async def judge_after_fetch(
        self, fetch: asyncio.Task[None], spec: EndpointSpec, token: str, name: str, date: float
    ) -> Found:
        """Judge a token after the keys were fetched; by those before, if they cannot be."""
        await asyncio.shield(fetch)
        return self.verify_token(spec, token, name, date, self._loop.time())

    async def _fetch(self) -> None:
        try:
            self.keys.put(await self._get(await self._keys_url()), self._loop.time())
        except (Unreachable, NotAuthorized, TokenUnfit) as error:
            log.warning("the keys of %s cannot be fetched: %s", self._rules.issuer, error)
        finally:
            self.keys.note_fetch(self._loop.time())
            self._fetching = None

    async def _keys_url(self) -> str:
        """Return where the keys are, as the metadata of the issuer say (RFC 8414, section 3; OpenID
        Connect Discovery, section 4). Raises Unreachable, NotAuthorized and TokenUnfit."""
        parts = urlsplit(self._rules.issuer)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        urls = dict.fromkeys(
            (f"{origin}{_WELL_KNOWN}{path}", f"{origin}{_OPENID}{path}", f"{origin}{path}{_OPENID}")
        )
        for url in urls:
            try:
                metadata = oauth_token.members(await self._get(url))
            except TokenUnfit:
                continue
            if metadata.get("issuer") == self._rules.issuer:
                return str(metadata.get("jwks_uri"))
        raise TokenUnfit("the issuer has no metadata, or they name another issuer")

    async def _get(self, url: str) -> bytes:
        request = httpx2.Request("GET", url, headers={"accept": "application/json"})
        answer = await self._http.send(request)
        if answer.status_code != _OK:
            raise TokenUnfit(f"the issuer answers with status {answer.status_code}")
        return answer.content

    def judge_by_introspection(
        self, spec: EndpointSpec, token: str, date: float, now: float, *, ask: bool
    ) -> Found | Awaitable[Found]:
        """Judge a token by what the issuer says of it, or said a short time ago. Without `ask` only
        tokens that it has spoken of are valid."""
        digest = hashlib.sha256(token.encode()).digest()
        until, claims = self._answers.get(digest, (0.0, {}))
        if now < until:
            return self._judge_claims(spec, claims, date, now)
        if not ask or now < self._refused.get(digest, 0.0):
            return UNAUTHORIZED
        if self._questions >= QUESTIONS_MAX:
            return _AWAY
        return self._introspect(spec, token, digest, date)

    async def _introspect(
        self, spec: EndpointSpec, token: str, digest: bytes, date: float
    ) -> Found:
        rules = self._rules
        words = f"{quote_plus(rules.client_id)}:{quote_plus(rules.client_secret)}".encode()
        headers = {
            "accept": "application/json", "content-type": "application/x-www-form-urlencoded",
            "authorization": f"Basic {b64encode(words).decode()}",
        }  # fmt: skip
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        request = httpx2.Request("POST", rules.introspection, headers=headers, content=form)
        self._questions += 1
        try:
            answer = await self._http.send(request)
        except (Unreachable, NotAuthorized) as error:
            log.warning("%s cannot be asked about a token: %s", rules.issuer, error)
            return _AWAY
        finally:
            self._questions -= 1
        if answer.status_code != _OK:
            log.warning(
                "%s answers a question about a token with status %d; compare client_id and"
                " client_secret", rules.issuer, answer.status_code,
            )  # fmt: skip
            return _AWAY
        now = self._loop.time()
        until = now + oauth_token.INTROSPECTED_S_MAX
        try:
            claims = oauth_token.parse_introspection(answer.content, rules)
        except TokenUnfit as error:
            self._refused[digest] = until
            if len(self._refused) > REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            return self.refuse_token(spec, error, now)
        self._answers[digest] = until, claims
        if len(self._answers) > ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        return self._judge_claims(spec, claims, date, now)

    def _judge_claims(
        self, spec: EndpointSpec, claims: oauth_token.Claims, date: float, now: float
    ) -> Found:
        try:
            return oauth_token.authorize_claims(claims, spec, date, from_introspection=True)
        except TokenUnfit as error:
            return self.refuse_token(spec, error, now)

    def refuse_token(self, spec: EndpointSpec, error: TokenUnfit, now: float) -> Found:
        """Tell the operator now and then why tokens are not valid; clients do not learn it."""
        if now - self._told >= TOLD_S:
            self._told = now
            log.info("a token was refused at the endpoint '%s': %s", spec.name, error)
        return UNAUTHORIZED
