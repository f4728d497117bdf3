"""The door finds the principal of a request, and shows nothing without a valid credential."""

import pytest
from msgspec.structs import replace

from metamcp_worker.access import api_key, door, gate
from metamcp_worker.access.door import (
    AuthenticatedPrincipal,
    Authenticator,
    AuthRequest,
    Denial,
    Failures,
)
from metamcp_worker.ipc.key_table import KeyChanges, KeySpec
from metamcp_worker.ipc.spec import EndpointSpec

PEPPER = bytes(range(32))
KEY = api_key.make(bytes(range(40)))
OTHER = api_key.make(bytes(range(1, 41)))
UNKNOWN = api_key.make(bytes(range(2, 42)))
BEARER = (b"authorization", f"Bearer {KEY}".encode())
ENDPOINTS = (
    EndpointSpec(name="open", servers=()),
    EndpointSpec(name="dev", servers=(), auth=("keys",)),
    EndpointSpec(name="web", servers=(), auth=("keys",), url_keys=True),
    EndpointSpec(name="far", servers=(), auth=("keys",), workspace="acme"),
    EndpointSpec(name="sso", servers=(), auth=("oauth",)),
)


def spec(key: str = KEY, **fields: object) -> KeySpec:
    name = api_key.id_of(key)
    known = KeySpec(id=name, digest=api_key.digest(PEPPER, key), name="laptop", principal=name)
    return replace(known, **fields)


def made(*keys: KeySpec) -> Authenticator:
    found = Authenticator()
    found.configure(ENDPOINTS)
    found.change(KeyChanges(pepper=PEPPER, whole=True, put=keys))
    return found


def knock(
    at: Authenticator, endpoint: str | None, *headers: tuple[bytes, bytes], **more: object
) -> object:
    return at.enter(replace(AuthRequest(endpoint, headers, date=100.0), **more))


def principal(found: object) -> gate.Principal:
    assert isinstance(found, AuthenticatedPrincipal), found
    return found.principal


def test_a_key_enters_as_bearer_or_as_x_api_key() -> None:
    at = made(spec(principal="bob", scopes=("mcp:list",)))
    for header in (
        BEARER,
        (b"x-api-key", KEY.encode()),
        (b"authorization", b"bearer " + KEY.encode()),
    ):
        who = principal(knock(at, "dev", header))
        assert (who.name, who.key, who.auth) == ("key:bob", api_key.id_of(KEY), "keys")
        assert who.scopes == frozenset({"mcp:list"})


def test_an_endpoint_without_auth_asks_for_nothing() -> None:
    assert principal(knock(made(), "open")) is gate.USER
    assert principal(knock(made(), "open", (b"authorization", b"Basic x"))) is gate.USER


@pytest.mark.parametrize("endpoint", ["dev", "far", "none", None])
@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"authorization", b"Bearer"),),
        ((b"authorization", b"Basic dXNlcjpwYXNz"),),
        ((b"authorization", b"Bearer x"),),
        ((b"authorization", f"Bearer {UNKNOWN}".encode()),),
        ((b"x-api-key", b"' OR 1=1 --"),),
        ((b"x-api-key", b"x" * 20_000),),
        ((b"authorization", b"Bearer e30.e30.e30"),),
    ],
)
def test_nobody_learns_more_than_that_a_credential_is_needed(
    endpoint: str | None, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    assert knock(made(spec()), endpoint, *headers) == door.UNAUTHORIZED


def test_an_expired_key_and_a_key_for_another_endpoint_look_unknown() -> None:
    assert knock(made(spec(expires=100.0)), "dev", BEARER) == door.UNAUTHORIZED
    assert knock(made(spec(endpoints=("web",))), "dev", BEARER) == door.UNAUTHORIZED
    assert principal(knock(made(spec(expires=100.1, endpoints=("dev",))), "dev", BEARER))


def test_another_workspace_looks_like_an_endpoint_that_does_not_exist() -> None:
    at = made(spec())
    for endpoint in ("far", "none", None):  # the audit alone learns which key it was
        assert knock(at, endpoint, BEARER) == replace(door.ABSENT, key=spec().id)


def test_several_credentials_are_refused_even_if_each_is_valid() -> None:
    at = made(spec(url=True))
    query = b"api_key=" + KEY.encode()
    for headers, asked in (
        ((BEARER, BEARER), b""),
        ((BEARER, (b"x-api-key", KEY.encode())), b""),
        ((BEARER,), query),
        ((), query + b"&" + query),
    ):
        assert knock(at, "web", *headers, query=asked) == door.SEVERAL


def test_a_key_in_the_url_needs_the_consent_of_key_and_endpoint() -> None:
    query = b"x=1&api_key=" + KEY.encode()
    assert principal(knock(made(spec(url=True)), "web", query=query)).key
    assert knock(made(spec(url=True)), "dev", query=query) == door.UNAUTHORIZED
    assert knock(made(spec()), "web", query=query) == door.UNAUTHORIZED


def test_a_key_that_is_gone_or_replaced_does_not_enter() -> None:
    at = made(spec(), spec(OTHER))
    version = at.version
    assert at.change(KeyChanges(pepper=PEPPER, gone=(api_key.id_of(KEY),))) == {api_key.id_of(KEY)}
    assert at.version > version
    assert knock(at, "dev", BEARER) == door.UNAUTHORIZED
    whole = KeyChanges(pepper=PEPPER, whole=True, put=(spec(),))
    assert at.change(whole) == {api_key.id_of(OTHER)}
    assert principal(knock(at, "dev", BEARER))


def test_a_token_is_never_looked_up_as_a_key_and_a_key_never_verified_as_a_token() -> None:
    at = made(spec())
    asked: list[str] = []

    def verify(endpoint: EndpointSpec, token: str, date: float, ask: bool) -> Denial:
        asked.append(token)
        return door.UNAUTHORIZED

    at.verify = verify
    assert knock(at, "sso", BEARER) == door.UNAUTHORIZED
    assert knock(at, "dev", (b"authorization", b"Bearer e30.e30.e30")) == door.UNAUTHORIZED
    assert asked == []
    knock(at, "sso", (b"authorization", b"Bearer e30.e30.e30"))
    assert asked == ["e30.e30.e30"]


def test_ten_failures_a_minute_from_one_address_then_429_but_a_valid_key_enters() -> None:
    at = made(spec())
    wrong = (b"x-api-key", b"wrong")
    for _ in range(10):
        assert knock(at, "dev", wrong, address="::1") == door.UNAUTHORIZED
    found = knock(at, "dev", wrong, address="::1")
    assert isinstance(found, Denial)
    assert found.status == 429
    assert dict(found.headers)[b"retry-after"] == b"6"
    assert knock(at, "dev", wrong, address="::2") == door.UNAUTHORIZED
    assert principal(knock(at, "dev", BEARER, address="::1"))
    assert knock(at, "dev", address="::1") == door.UNAUTHORIZED
    assert knock(at, "dev", wrong, address="::1", now=6.5) == door.UNAUTHORIZED


def test_failures_are_counted_for_a_bounded_number_of_addresses() -> None:
    failures = Failures()
    for number in range(door.ADDRESSES_MAX + 5):
        failures.count_failure(str(number), 0.0)
    assert len(failures) == door.ADDRESSES_MAX


def test_keys_of_an_older_pepper_enter_until_the_door_forgets_it() -> None:
    at = made(spec())
    new = b"\7" * 32
    fresh = replace(spec(OTHER), digest=api_key.digest(new, OTHER))
    at.change(KeyChanges(pepper=new, older=(b"\5" * 32, PEPPER), put=(fresh,)))
    assert principal(knock(at, "dev", BEARER)).key == api_key.id_of(KEY)
    other = (b"authorization", f"Bearer {OTHER}".encode())
    assert principal(knock(at, "dev", other)).key == api_key.id_of(OTHER)
    unknown = (b"authorization", f"Bearer {UNKNOWN}".encode())
    assert isinstance(knock(at, "dev", unknown), Denial)
    at.change(KeyChanges(pepper=new))
    assert isinstance(knock(at, "dev", BEARER), Denial)
    assert principal(knock(at, "dev", other)).key == api_key.id_of(OTHER)
