"""Tokens of an authorization server: what makes a token valid, and which principal it gives.

Owns: the algorithms, the claims that a token must have (RFC 9068, section 4), its scopes, when the
keys of an issuer are fetched again (`IssuerKeys`), the document about an endpoint (RFC 9728).
Never: fetching anything (`token_issuers`), API keys, the answers to clients (`door`).

A client learns nothing about why its token is not valid; `TokenUnfit` says it, for the log.
"""

import binascii
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jwt
from msgspec import Struct

from metamcp_worker.access import gate
from metamcp_worker.access.door import OAUTH, AuthenticatedPrincipal, Denial, Found
from metamcp_worker.access.gate import Principal
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import EndpointSpec, IssuerSpec

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Signatures by keys that the gateway cannot sign with."""
TYPES = frozenset({"at+jwt", "application/at+jwt"})
LEEWAY_S = 30.0
"""Seconds that the clocks of the issuer and of this machine may differ."""
LIFE_S_MAX = 3600.0
"""Maximum seconds from the issue of a token to its end."""
TIME_S_MAX = 2**53
"""Largest time of a token, seconds since the epoch: all readers of JSON take it for the same."""
SUBJECT_CHARS_MAX = 255
INTROSPECTED_S_MAX = 60.0
"""Seconds for which an answer of the issuer about a token is used, at most."""
FRESH_S = 300.0
"""Seconds for which keys of an issuer are used without fetching them again."""
STALE_S_MAX = 3600.0
"""Seconds for which keys are used while the issuer cannot be reached."""
ASK_S = 30.0
"""Seconds between two tries to fetch the keys of an issuer."""
KEYS_MAX = 100
"""Maximum keys of one issuer; issuers have two or three."""

Claims = Mapping[str, object]


class TokenUnfit(Exception):
    """Raised for a token that is not valid. The text says why, without anything of the token."""


class IssuerKeys:
    """Public keys of one issuer, by their ids. Times are seconds of a clock that never jumps."""

    def __init__(self) -> None:
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched = self._asked = float("-inf")

    def find(self, key_id: str, now: float) -> jwt.PyJWK | None:
        """Return the key; None if there is none with this id, or it is too old."""
        return self._keys.get(key_id) if self.usable(now) else None

    def usable(self, now: float) -> bool:
        return now - self._fetched < FRESH_S + STALE_S_MAX

    def due(self, key_id: str, now: float) -> bool:
        """Whether the keys should be fetched before a token with this key is judged."""
        if now - self._asked < ASK_S:
            return False
        return now - self._fetched >= FRESH_S or key_id not in self._keys

    def note_fetch(self, now: float) -> None:
        self._asked = now

    def put(self, document: bytes, now: float) -> None:
        """Use the keys of this document (RFC 7517) from now on. Keys that cannot be used are left
        out. Raises TokenUnfit if the document has no other."""
        written = members(document).get("keys")
        listed = cast(list[object], written) if isinstance(written, list) else []
        parsed_keys = [_key(written_key) for written_key in listed[:KEYS_MAX]]
        keys = {key.key_id: key for key in parsed_keys if key is not None and key.key_id}
        if not keys:
            raise TokenUnfit("the keys of the issuer cannot be used")
        self._keys, self._fetched = keys, now


def _key(written: object) -> jwt.PyJWK | None:
    """Return a key of a document; None if signatures cannot be checked with it."""
    try:
        key = jwt.PyJWK(cast(dict[str, Any], written))
    except (jwt.PyJWTError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return key if key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig") else None


def key_id(token: str) -> str:
    """Return the id of the key that signed the token, by its own words. Raises TokenUnfit."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, binascii.Error):
        raise TokenUnfit("the token cannot be read") from None
    if str(header.get("typ", "")).lower() not in TYPES:
        raise TokenUnfit("the type in the token's header is not 'at+jwt'")
    if str(header.get("alg")) not in ALGORITHMS:
        raise TokenUnfit("the algorithm of the token's signature is not accepted")
    if "crit" in header:
        raise TokenUnfit("the token's header has critical extensions")
    kid = header.get("kid")
    if not isinstance(kid, str) or not kid:
        raise TokenUnfit("the token does not name its key")
    return kid


def claims_of(token: str, key: jwt.PyJWK, rules: IssuerSpec) -> Claims:
    """Return the claims of a token that this key signed, for this audience, by this issuer. Times
    are not checked. Raises TokenUnfit."""
    try:
        claims: dict[str, object] = jwt.decode(
            token, key, algorithms=[key.algorithm_name], audience=rules.audience,
            issuer=rules.issuer,
            options={
                "require": ["aud", "exp", "iat", "iss", "sub"], "verify_exp": False,
                "verify_iat": False, "verify_nbf": False, "enforce_minimum_key_length": True,
            },
        )  # fmt: skip
    except (jwt.PyJWTError, ValueError) as error:
        raise TokenUnfit(_describe_error(error)) from None
    return claims


def _describe_error(error: Exception) -> str:
    sentences: dict[type[Exception], str] = {
        jwt.InvalidAudienceError: "the token is for another audience",
        jwt.InvalidIssuerError: "the token is of another issuer",
        jwt.InvalidSignatureError: "the token's signature is wrong",
        jwt.MissingRequiredClaimError: f"the token lacks {getattr(error, 'claim', 'a claim')}",
    }
    return sentences.get(type(error), "the token is not valid")


def parse_introspection(answer: bytes, rules: IssuerSpec) -> Claims:
    """Return what the issuer says of a token (RFC 7662, section 2.2). Raises TokenUnfit unless the
    token is active and for this audience."""
    claims = members(answer)
    if claims.get("active") is not True:
        raise TokenUnfit("the token is not active")
    audience = claims.get("aud")
    if rules.audience not in (
        cast(list[object], audience) if isinstance(audience, list) else [audience]
    ):
        raise TokenUnfit("the token is for another audience")
    if claims.get("iss", rules.issuer) != rules.issuer:
        raise TokenUnfit("the token is of another issuer")
    return claims


def members(answer: bytes) -> Mapping[str, object]:
    """Return the members of an object of JSON. Raises TokenUnfit for anything else."""
    try:
        value: object = codec.value(answer)
    except codec.Malformed:
        value = None
    if not isinstance(value, dict):
        raise TokenUnfit("the issuer does not answer with a JSON object")
    return cast(Mapping[str, object], value)


def authorize_claims(
    claims: Claims, spec: EndpointSpec, date: float, *, from_introspection: bool = False
) -> Found:
    """Return the principal of these claims at this endpoint, or the answer 403 if a scope is
    missing that the endpoint wants of all. `date`: seconds since the epoch;
    `from_introspection`: the claims are what the issuer answered. Raises TokenUnfit."""
    rules = spec.oauth
    assert rules is not None
    expires = _times(claims, date, from_introspection=from_introspection)
    # Clients have names of their own, not those of users.
    client = from_introspection and "sub" not in claims
    subject = claims.get("client_id" if client else "sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARS_MAX:
        raise TokenUnfit("the token does not name its subject")
    if not subject.isprintable():
        raise TokenUnfit("the token's subject has characters that cannot be printed")
    token_scopes = scopes_of(claims)
    if not token_scopes.issuperset(rules.scopes):
        return build_scope_denial(rules)
    ours = [scope for scope in token_scopes if _is_ours(scope)]
    if ours or not rules.scopes or any(map(_is_ours, rules.scopes)):
        scopes, servers = gate.parse_scopes(ours or [_NOTHING])
        assert scopes is not None
    else:  # the operator's own scopes say who may come in, and who comes in may do everything
        scopes, servers = None, None
    principal = Principal(
        name=f"oauth:{'client:' if client else ''}{rules.issuer}:{subject}",
        workspace=spec.workspace, scopes=scopes, servers=servers, auth=OAUTH, expires=expires,
        held=frozenset({*ours, *rules.scopes}),
    )  # fmt: skip
    return AuthenticatedPrincipal(
        principal, min(expires, date + INTROSPECTED_S_MAX) if from_introspection else expires
    )


_NOTHING = "none"
"""Scope that grants nothing: no scope at all would grant everything."""


def _is_ours(scope: str) -> bool:
    return scope in gate.SCOPES or scope.startswith(gate.CALL_OF)


def _times(claims: Claims, date: float, *, from_introspection: bool) -> float:
    """Return when the token ends, seconds since the epoch. Raises TokenUnfit unless it is valid
    now."""
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    begins = _time(claims, "nbf") or issued
    if from_introspection:
        expires = date + INTROSPECTED_S_MAX if expires is None else expires
    elif expires is None or issued is None or expires - issued > LIFE_S_MAX:
        raise TokenUnfit(f"the token is made to last longer than {LIFE_S_MAX:.0f} s")
    if date >= expires + LEEWAY_S:
        raise TokenUnfit("the token has expired")
    if max(begins or 0.0, issued or 0.0) > date + LEEWAY_S:
        raise TokenUnfit("the token is not valid yet; compare the clocks")
    return expires + LEEWAY_S


def _time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenUnfit(f"the token's {name} is not a time")
    if not 0 <= value <= TIME_S_MAX:  # NaN is neither
        raise TokenUnfit(f"the token's {name} is not a time")
    return float(value)


def scopes_of(claims: Claims) -> frozenset[str]:
    """Return the scopes of a token: `scope`, words in a string (RFC 9068, section 2.2.3), or a list
    as some issuers write it, also as `scp`."""
    claim = claims.get("scope") or claims.get("scp") or ""
    words: Sequence[object] = claim.split() if isinstance(claim, str) else ()
    if isinstance(claim, list):
        words = cast(list[object], claim)
    return frozenset(word for word in words if isinstance(word, str))


def build_scope_denial(rules: IssuerSpec) -> Denial:
    """Return the answer to a token that lacks a scope which the endpoint wants of all."""
    value = gate.challenge('error="insufficient_scope"', rules.scopes, rules.metadata)
    message = f"The scopes {' '.join(rules.scopes)} are needed at this endpoint."
    return Denial(403, message, "scope", ((b"www-authenticate", value),))


class ProtectedResource(Struct, frozen=True, kw_only=True):
    """Document about an endpoint for clients (RFC 9728, section 2)."""

    resource: str
    authorization_servers: tuple[str, ...]
    scopes_supported: tuple[str, ...]
    bearer_methods_supported: tuple[str, ...] = ("header",)
    resource_name: str = "MetaMCP"


def document(rules: IssuerSpec) -> bytes:
    """Return the document about an endpoint with these rules."""
    metadata = ProtectedResource(
        resource=rules.audience,
        authorization_servers=(rules.issuer,),
        scopes_supported=tuple(dict.fromkeys((*rules.scopes, *gate.SCOPES))),
    )
    return codec.dump(metadata)
