"""Tokens of an authorization server: forged ones, times, scopes, and when its keys are fetched."""

import base64
import hmac
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from msgspec import structs

from metamcp_worker.access import gate, oauth_token
from metamcp_worker.access.door import AuthenticatedPrincipal, Denial
from metamcp_worker.access.oauth_token import IssuerKeys, TokenUnfit
from metamcp_worker.ipc.spec import EndpointSpec, IssuerSpec

NOW = 1_800_000_000.0
ISSUER, AUDIENCE = "https://id.example", "https://gateway.example/metamcp/dev/mcp"
KEY, OTHER = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
RULES = IssuerSpec(issuer=ISSUER, audience=AUDIENCE)
CLAIMS: dict[str, object] = {
    "iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": NOW - 10, "exp": NOW + 600,
    "scope": "mcp:list mcp:call",
}  # fmt: skip


def jwk(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, name: str = "first") -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        made = RSAAlgorithm.to_jwk(key.public_key())
    else:
        made = ECAlgorithm.to_jwk(key.public_key())
    return {**json.loads(made), "kid": name, "use": "sig"}


def known() -> IssuerKeys:
    keys = IssuerKeys()
    keys.put(json.dumps({"keys": [jwk(KEY)]}).encode(), 0.0)
    return keys


def signed(
    key: Any = KEY, algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any
) -> str:
    head = {"kid": "first", "typ": "at+jwt"} | (header or {})
    return jwt.encode(CLAIMS | claims, key, algorithm, headers=head)


def endpoint(rules: IssuerSpec = RULES) -> EndpointSpec:
    return EndpointSpec(name="dev", servers=("git",), auth=("oauth",), oauth=rules)


def judged(token: str, rules: IssuerSpec = RULES) -> AuthenticatedPrincipal | Denial:
    """As the front does."""
    key = known().find(oauth_token.key_id(token), 1.0)
    if key is None:
        raise TokenUnfit("no key")
    return oauth_token.authorize_claims(
        oauth_token.claims_of(token, key, rules), endpoint(rules), NOW
    )


def principal(token: str, rules: IssuerSpec = RULES) -> gate.Principal:
    found = judged(token, rules)
    assert isinstance(found, AuthenticatedPrincipal)
    return found.principal


def changed_payload() -> str:
    head, _, signature = signed().split(".")
    payload = json.dumps(CLAIMS | {"sub": "root"}).encode()
    return f"{head}.{encoded(payload)}.{signature}"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def headed(head: dict[str, object]) -> str:
    return f"{encoded(json.dumps(head).encode())}.e30.x"


def with_public_key_as_secret() -> str:
    """What an issuer's public key would sign if somebody took it for a shared secret."""
    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = {"alg": "HS256", "kid": "first", "typ": "at+jwt"}
    parts = [encoded(json.dumps(part).encode()) for part in (head, CLAIMS)]
    return ".".join([*parts, encoded(hmac.digest(public, ".".join(parts).encode(), "sha256"))])


def without_key_id() -> str:
    return jwt.encode(CLAIMS, KEY, "RS256", headers={"typ": "at+jwt"})


FORGED: dict[str, Callable[[], str]] = {
    "another audience": partial(signed, aud="https://gateway.example/metamcp/other/mcp"),
    "another issuer": partial(signed, iss="https://id.example/"),
    "no signature": partial(signed, None, "none"),
    "public key as secret": with_public_key_as_secret,
    "changed payload": changed_payload,
    "unknown key": partial(signed, OTHER, header={"kid": "second"}),
    "no key id": without_key_id,
    "key of its own": partial(signed, OTHER, header={"jku": "https://evil.example/jwks"}),
    "another algorithm of the key": partial(signed, KEY, "RS512"),
    "critical extension": partial(signed, header={"crit": ["b64"], "b64": True}),
    "an ID token": partial(signed, header={"typ": "JWT"}),
    "no type": partial(signed, header={"typ": None}),
    "no subject": partial(signed, sub=None),
    "a long subject": partial(signed, sub="x" * 256),
    "a life too long": partial(signed, iat=NOW - 10, exp=NOW + 3600),
    "expired": partial(signed, iat=NOW - 600, exp=NOW - 31),
    "not valid yet": partial(signed, nbf=NOW + 31),
    "issued tomorrow": partial(signed, iat=NOW + 31),
    "no time": partial(signed, exp=None),
    "a time that is a word": partial(signed, exp="tomorrow"),
    "a subject of two lines": partial(signed, sub="ann\nroot"),
    "an algorithm that is a list": lambda: headed({"alg": [], "typ": "at+jwt"}),
    "an opaque one": lambda: "opaque",
    "garbage": lambda: "a.b.c",
}


@pytest.mark.promise("M65")
@pytest.mark.parametrize("name", ["exp", "iat", "nbf"])
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -1, -1.5, True, False, 10**400, 2**53 + 1, "1", [], {}],
    ids=lambda value: repr(value)[:20],
)
def test_a_time_is_a_number_of_seconds_since_the_epoch(name: str, value: Any) -> None:
    with pytest.raises(TokenUnfit, match=f"the token's {name} is not a time"):
        judged(signed(**{name: value}))
    with pytest.raises(TokenUnfit, match=f"the token's {name} is not a time"):
        oauth_token.authorize_claims(
            CLAIMS | {name: value}, endpoint(), NOW, from_introspection=True
        )


@pytest.mark.promise("M65")
@pytest.mark.parametrize("how", FORGED)
def test_a_forged_token_is_refused(how: str) -> None:
    with pytest.raises(TokenUnfit):
        judged(FORGED[how]())


@pytest.mark.promise("M65")
def test_a_token_gives_the_principal_of_its_subject_until_it_ends() -> None:
    found = judged(signed(scope="mcp:list mcp:call openid"))
    assert isinstance(found, AuthenticatedPrincipal)
    assert found.until == NOW + 600 + oauth_token.LEEWAY_S
    who = found.principal
    assert (who.name, who.workspace, who.key) == (f"oauth:{ISSUER}:ann", "default", "")
    assert who.scopes == frozenset({"mcp:list", "mcp:call"})


@pytest.mark.parametrize(
    ("claims", "scopes", "servers"),
    [
        ({"scope": "mcp:list mcp:call:git"}, {"mcp:list", "mcp:call"}, frozenset({"git"})),
        ({"scope": None, "scp": ["mcp:read"]}, {"mcp:read"}, None),
        ({"scope": ["mcp:read", 7]}, {"mcp:read"}, None),
        ({"scope": "openid"}, set[str](), None),
        ({"scope": ""}, set[str](), None),
    ],
)
def test_a_token_may_do_what_its_scopes_say_and_nothing_without_one(
    claims: dict[str, Any], scopes: set[str], servers: frozenset[str] | None
) -> None:
    who = principal(signed(**claims))
    assert (set(who.scopes or ()), who.servers) == (scopes, servers)
    with pytest.raises(gate.ScopeMissing) as missing:
        gate.authorize(who, "dev", "resources/subscribe", "")
    assert missing.value.challenge(RULES.metadata)[1].endswith(
        b'resource_metadata="https://gateway.example/.well-known/oauth-protected-resource'
        b'/metamcp/dev/mcp"'
    )


def test_scopes_of_the_operator_let_in_and_scopes_of_the_gateway_limit() -> None:
    own = structs.replace(RULES, scopes=("staff",))
    assert principal(signed(scope="staff openid"), own).scopes is None
    assert principal(signed(scope="staff mcp:list"), own).scopes == frozenset({"mcp:list"})
    refused = judged(signed(scope="mcp:list"), own)
    assert isinstance(refused, Denial)
    assert refused.status == 403
    assert b'scope="staff"' in refused.headers[0][1]


@pytest.mark.parametrize(
    ("answer", "fit"),
    [
        ({}, True),
        ({"aud": ["https://x.example", AUDIENCE]}, True),
        ({"sub": None, "client_id": "robot"}, False),
        ({"active": False}, False),
        ({"active": "true"}, False),
        ({"aud": "https://x.example"}, False),
        ({"aud": None}, False),
        ({"iss": "https://x.example"}, False),
        ({"exp": NOW - 60}, False),
        ({"exp": 0}, False),
    ],
)
def test_what_an_issuer_says_of_a_token_counts_for_a_minute(
    answer: dict[str, Any], fit: bool
) -> None:
    said = json.dumps({"active": True} | CLAIMS | answer).encode()
    try:
        claims = oauth_token.parse_introspection(said, RULES)
        found = oauth_token.authorize_claims(claims, endpoint(), NOW, from_introspection=True)
    except TokenUnfit:
        assert not fit
    else:
        assert fit
        assert isinstance(found, AuthenticatedPrincipal)
        assert found.until == NOW + oauth_token.INTROSPECTED_S_MAX


def test_a_client_without_a_user_has_a_name_that_no_user_has() -> None:
    def name(**claims: str) -> str:
        found = oauth_token.authorize_claims(
            {"exp": NOW + 600, **claims}, endpoint(), NOW, from_introspection=True
        )
        assert isinstance(found, AuthenticatedPrincipal)
        return found.principal.name

    client = name(client_id="ann")
    assert client not in (name(sub="ann", client_id="ann"), name(sub="client:ann"))
    assert client != name(client_id="bob")


@pytest.mark.parametrize("answer", [b"", b"[]", b"null", b"{", b'{"active":1}'])
def test_an_answer_that_is_not_one_makes_no_token_valid(answer: bytes) -> None:
    with pytest.raises(TokenUnfit):
        oauth_token.parse_introspection(answer, RULES)


def test_keys_are_fetched_when_they_are_old_or_unknown_and_never_more_often_than_that() -> None:
    keys = IssuerKeys()
    assert keys.due("first", 0.0)
    keys.note_fetch(0.0)
    keys.put(json.dumps({"keys": [jwk(KEY)]}).encode(), 0.0)
    assert not keys.due("first", 299.0)
    assert not keys.due("second", 29.0)  # somebody could make the gateway ask and ask
    assert keys.due("second", 31.0)
    assert keys.due("first", 301.0)
    keys.note_fetch(301.0)  # in vain
    assert keys.find("first", 302.0)
    assert not keys.due("first", 330.0)
    assert keys.find("first", 301.0 + 3600) is None
    assert not keys.usable(301.0 + 3600)


def test_keys_that_cannot_be_used_are_left_out() -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    written = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}, {"kty": "new", "kid": "unknown"}, 7,
        {**jwk(KEY, "for encryption"), "use": "enc"}, {**jwk(KEY), "kid": None},
        jwk(curve, "curve"),
    ]  # fmt: skip
    keys = IssuerKeys()
    keys.put(json.dumps({"keys": written}).encode(), 0.0)
    assert keys.find("curve", 1.0)
    assert not any(keys.find(name, 1.0) for name in ("shared", "unknown", "for encryption", ""))
    for bad in (b"", b"{}", b'{"keys":{}}', b'{"keys":[]}', b'{"keys":[{"kty":"oct"}]}', b"[]"):
        with pytest.raises(TokenUnfit):
            keys.put(bad, 2.0)
    assert keys.find("curve", 3.0)
