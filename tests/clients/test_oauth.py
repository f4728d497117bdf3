"""Endpoints that take tokens of a real identity provider: clients that log in by themselves, tokens
for programs, opaque tokens, and tokens that are not good enough."""

import http.client
import json
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp.client.client import Client as Sdk
from mcp.client.streamable_http import streamable_http_client

from tests.clients import programs
from tests.clients.provider import SECRET, Person, Provider, provider
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake

pytestmark = [pytest.mark.live, pytest.mark.promise("M65")]

ISSUER = """
[endpoints.{name}.oauth]
issuer = "{issuer}"
allow_private = true
"""
OPAQUE = """
introspection = "{issuer}/token/introspection"
client_id = "gateway"
client_secret = "${{env:METAMCP_TEST_SECRET}}"
"""


@pytest.fixture(scope="module")
def issuer() -> Generator[Provider]:
    if why := programs.missing():
        pytest.skip(why)
    with provider() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(issuer: Provider) -> Generator[Gateway]:
    kinds = {
        "tokens": '"oauth"',
        "few": '"oauth"',
        "opaque": '"oauth"',
        "both": '["keys", "oauth"]',
    }
    extra = "".join(
        f'[endpoints.{name}]\nnamespace = "default"\nauth = {auth}\n'
        + ISSUER.format(name=name, issuer=issuer.issuer)
        + (OPAQUE.format(issuer=issuer.issuer) if name == "opaque" else "")
        + ('scopes = ["mcp:list", "mcp:call"]\n' if name == "few" else "")
        for name, auth in kinds.items()
    )
    running = Gateway({"new": fake("--era", "modern", "--resources")}, extra=extra)
    running.environ["METAMCP_TEST_SECRET"] = SECRET
    with running:
        yield running


def url(gateway: Gateway, endpoint: str) -> str:
    return f"http://127.0.0.1:{gateway.port}/metamcp/{endpoint}/mcp"


def ask(
    gateway: Gateway, endpoint: str, token: str = "", method: str = "tools/list"
) -> tuple[int, str]:
    """Status of a request with this token, and the challenge of its answer."""
    client = Client(gateway.port, MODERN)
    params = {"uri": "test://x"} if method == "resources/read" else {}
    body = {
        "jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": client.meta()}
    }  # fmt: skip
    headers = client.headers(method, params.get("uri", ""))
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    connection.request("POST", f"/metamcp/{endpoint}/mcp", json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, answer.getheader("www-authenticate", "")


@asynccontextmanager
async def logged_in(gateway: Gateway, endpoint: str, person: Person) -> AsyncGenerator[Sdk]:
    async with (
        httpx2.AsyncClient(auth=person.auth, timeout=30) as web,
        Sdk(streamable_http_client(url(gateway, endpoint), http_client=web)) as client,
    ):
        answer = await client.call_tool("new__echo", {"text": "with a token"})
        assert "with a token" in str(answer.content)
        yield client


async def test_a_client_that_has_nothing_registers_logs_in_and_may_do_everything(
    gateway: Gateway,
) -> None:
    person = Person(url(gateway, "tokens"))
    async with logged_in(gateway, "tokens", person) as client:
        await client.read_resource((await client.list_resources()).resources[0].uri)
    (asked,) = person.asked
    assert asked >= {"mcp:list", "mcp:call", "mcp:read", "mcp:subscribe"}


async def test_a_client_with_few_scopes_asks_for_one_more_when_it_needs_it(
    gateway: Gateway,
) -> None:
    person = Person(url(gateway, "few"), client_id="laptop")
    async with logged_in(gateway, "few", person) as client:
        assert person.asked == [{"mcp:call", "mcp:list"}]
        await client.read_resource((await client.list_resources()).resources[0].uri)
        assert person.asked[1:] == [{"mcp:call", "mcp:list", "mcp:read"}]


def test_a_client_without_a_token_learns_where_to_get_one(
    gateway: Gateway, issuer: Provider
) -> None:
    status, challenge = ask(gateway, "tokens")
    place = (
        f"http://127.0.0.1:{gateway.port}/.well-known/oauth-protected-resource/metamcp/tokens/mcp"
    )
    assert status == 401
    assert challenge.startswith('Bearer realm="metamcp", scope="mcp:call mcp:list mcp:meta ')
    assert challenge.endswith(f'", resource_metadata="{place}"')
    found = httpx2.get(place, trust_env=False).json()
    assert found["resource"] == url(gateway, "tokens")
    assert found["authorization_servers"] == [issuer.issuer]
    assert {"mcp:list", "mcp:call"} <= set(found["scopes_supported"])


def test_a_token_opens_the_endpoint_that_it_is_for_and_no_other(
    gateway: Gateway, issuer: Provider
) -> None:
    token = issuer.token(url(gateway, "tokens"))
    assert [ask(gateway, name, token)[0] for name in ("tokens", "both", "opaque")] == [
        200,
        401,
        401,
    ]
    assert ask(gateway, "both", issuer.token(url(gateway, "both")))[0] == 200


def test_a_token_without_a_scope_gets_told_which_one_it_lacks(
    gateway: Gateway, issuer: Provider
) -> None:
    token = issuer.token(url(gateway, "tokens"), "mcp:call")
    status, challenge = ask(gateway, "tokens", token)
    assert status == 403
    assert 'error="insufficient_scope", scope="mcp:call mcp:list"' in challenge
    assert "/.well-known/oauth-protected-resource/metamcp/tokens/mcp" in challenge


def test_an_opaque_token_is_worth_what_its_issuer_says(gateway: Gateway, issuer: Provider) -> None:
    token, revoked = (issuer.token(url(gateway, "opaque")) for _ in range(2))
    assert token.count(".") == 0
    issuer.revoke(revoked)
    assert [ask(gateway, "opaque", one)[0] for one in (token, revoked, token)] == [200, 401, 200]
    assert ask(gateway, "tokens", token)[0] == 401


def test_keys_and_tokens_are_accepted_side_by_side(gateway: Gateway, issuer: Provider) -> None:
    command = [*gateway.command("keys"), "create", "beside", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    key = json.loads(done.stdout)["key"]
    assert [ask(gateway, name, key)[0] for name in ("both", "tokens")] == [200, 401]


def test_neither_a_token_nor_the_secret_is_written_anywhere(
    gateway: Gateway, issuer: Provider
) -> None:
    token = issuer.token(url(gateway, "tokens"))
    ask(gateway, "tokens", token)
    seen = gateway.log.read_text() + gateway.ctl("status", "--json", ok=(0, 3))
    seen += gateway.ctl("events", "--json")
    assert token not in seen
    assert SECRET not in seen


def test_while_an_issuer_is_away_its_tokens_stay_valid_and_nobody_is_sent_to_log_in() -> None:
    if why := programs.missing():
        pytest.skip(why)
    with provider() as issuer:
        extra = "".join(
            f'[endpoints.{name}]\nnamespace = "default"\nauth = "oauth"\n'
            + ISSUER.format(name=name, issuer=issuer.issuer)
            for name in ("seen", "unseen")
        )
        gateway = Gateway({"new": fake("--era", "modern")}, extra=extra)
        first, second, unseen = (
            issuer.token(url(gateway, name)) for name in ("seen", "seen", "unseen")
        )
        with gateway:
            assert ask(gateway, "seen", first)[0] == 200
            issuer.stop()
            assert ask(gateway, "seen", second)[0] == 200
            assert ask(gateway, "unseen", unseen)[0] == 503
            said = gateway.log.read_text()
            assert f"the keys of {issuer.issuer} cannot be fetched" in said
