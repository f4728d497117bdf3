"""A person gets the gateway authorized: discovery, the client, the flow, and what is refused."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from metamcp_worker.http.fetch import Unreachable
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.oauth.challenge import NotAuthorized
from metamcp_worker.oauth.vault import vault_of
from tests.fakes.oauth_server import CANARY, World, protected
from tests.worker.oauth.people import DOCUMENT, Person, callback_port, known, spec, stored

pytestmark = pytest.mark.process

METADATA = "/.well-known/oauth-authorization-server"


def query(link: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}


@pytest.mark.promise("M11")
async def test_a_gateway_that_nobody_knows_registers_itself_and_gets_tokens(tmp_path: Path) -> None:
    async with protected() as world:
        person = Person()
        record = await person.login(spec(world, tmp_path))
        assert world.paths() == [METADATA, "/register", "/authorize", "/token"]
        assert record.access_token in world.access
        assert (record.issuer, record.scope) == (world.issuer, "read")
        (asked,) = world.said("/register")
        assert (asked["client_name"], asked["application_type"]) == ("MetaMCP", "native")
        said = query(person.links[0])
        assert (said["resource"], said["code_challenge_method"]) == (world.url, "S256")
        port = callback_port(world.issuer)
        assert asked["redirect_uris"] == [f"http://127.0.0.1:{port}/callback"]
        assert said["redirect_uri"] in asked["redirect_uris"]
        assert world.said("/token")[0]["resource"] == world.url
        assert "You can close this page" in await person.pages[0]


async def test_the_second_login_is_as_the_same_client(tmp_path: Path) -> None:
    async with protected() as world:
        first = await Person().login(spec(world, tmp_path))
        second = await Person().login(spec(world, tmp_path))
        assert world.paths().count("/register") == 1
        assert first.access_token != second.access_token
        assert [one.access_token for one in stored(spec(world, tmp_path))] == [second.access_token]


async def test_a_client_that_was_registered_beforehand_is_used_and_shows_its_secret(
    tmp_path: Path,
) -> None:
    async with protected() as world:
        world.registers = False
        world.clients = known("me", client_secret="s3cret")
        of = spec(world, tmp_path, client_id="me", client_secret="s3cret", scopes=("read", "x"))
        person = Person()
        record = await person.login(of)
        assert query(person.links[0])["client_id"] == "me"
        assert record.scope == "read x"
        assert "client_secret" not in world.said("/token")[0]
        assert record.given


async def test_the_secret_goes_into_the_form_where_nothing_else_is_taken(tmp_path: Path) -> None:
    async with protected() as world:
        world.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
        world.clients = known("me", client_secret="s3cret")
        of = spec(world, tmp_path, client_id="me", client_secret="s3cret")
        await Person().login(of)
        assert world.said("/token")[0]["client_secret"] == "s3cret"


async def test_a_client_with_a_document_needs_no_registration(tmp_path: Path) -> None:
    async with protected() as world:
        world.documents = True
        person = Person()
        await person.login(spec(world, tmp_path, client_metadata_url=DOCUMENT))
        assert "/register" not in world.paths()
        assert query(person.links[0])["client_id"] == DOCUMENT


async def test_a_document_is_no_use_where_nobody_reads_it(tmp_path: Path) -> None:
    async with protected() as world:
        await Person().login(spec(world, tmp_path, client_metadata_url=DOCUMENT))
        assert "/register" in world.paths()


def nobody(world: World) -> None:
    world.registers = False


def unregistered(world: World) -> None:
    world.trouble["/register"] = 403


def no_token(world: World) -> None:
    world.trouble["/token"] = 400


def down(world: World) -> None:
    world.trouble["/token"] = 503


def denied(world: World) -> None:
    world.agrees = False


def other_issuer(world: World) -> None:
    world.metadata = {"issuer": "https://evil.example"}


def script(world: World) -> None:
    world.metadata = {"authorization_endpoint": "http://as.example/authorize"}


def local_file(world: World) -> None:
    world.metadata = {"token_endpoint": "file:///etc/passwd"}


def javascript(world: World) -> None:
    world.metadata = {"authorization_endpoint": "javascript:alert(1)"}


def no_pkce(world: World) -> None:
    world.metadata = {"code_challenge_methods_supported": ["plain"]}


def silent_about_pkce(world: World) -> None:
    world.metadata = {"code_challenge_methods_supported": None}


def far_token(world: World) -> None:
    world.metadata = {"token_endpoint": "http://10.0.0.1/token"}


def near_metadata(world: World) -> None:
    world.resource = {"resource": world.url, "authorization_servers": ["https://169.254.169.254"]}


def other_resource(world: World) -> None:
    world.resource = {
        "resource": "https://evil.example/mcp", "authorization_servers": [world.issuer],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (nobody, r"server http://\S+ takes no registrations by itself; register a client there, "),
        (nobody, r"with the redirect URI http://127\.0\.0\.1:\d+/callback, and set `client_id`"),
        (unregistered, r"http://\S+ did not register the gateway \(HTTP 403, canary_error, "),
        (no_token, r"^was not authorized: http://\S+ gave no token \(HTTP 400, canary_error\)$"),
        (down, r"its authorization server http://\S+ answered HTTP 503"),
        (denied, "^was not authorized: access_denied$"),
        (other_issuer, r"metadata issuer mismatch: https://evil\.example"),
        (script, "leads to http://as.example, where credentials would cross the network unencr"),
        (local_file, "metadata names 'file:///etc/passwd' as `token_endpoint`, which is not a web"),
        (javascript, r"names 'javascript:alert\(1\)' as `authorization_endpoint`, which is not a"),
        (no_pkce, "does not name S256 .* set `require_pkce = false` in `oauth` of this server"),
        (silent_about_pkce, "does not name S256"),
        (far_token, "leads to http://10.0.0.1, where credentials would cross the network"),
        (near_metadata, "leads to https://169.254.169.254, which is not asked"),
        (other_resource, r"Protected resource https://evil\.example/mcp does not match"),
    ],
)  # fmt: skip
async def test_what_goes_wrong_is_told_and_nothing_is_kept(
    tmp_path: Path, change: Callable[[World], Any], sentence: str
) -> None:
    async with protected() as world:
        change(world)
        of = spec(world, tmp_path)
        with pytest.raises(Unreachable) as caught:
            await Person().login(of)
        assert re.search(sentence, str(caught.value)), str(caught.value)
        assert not [one for one in stored(of) if one.access_token]
        # The description that comes with the refusal repeats what was sent: the code.
        assert CANARY not in str(caught.value)


async def test_an_authorization_server_without_word_of_pkce_can_be_allowed(tmp_path: Path) -> None:
    async with protected() as world:
        silent_about_pkce(world)
        person = Person()
        await person.login(spec(world, tmp_path, require_pkce=False))
        assert query(person.links[0])["code_challenge_method"] == "S256"


async def test_an_answer_of_another_authorization_server_is_not_taken(tmp_path: Path) -> None:
    def elsewhere(link: str) -> str:
        asked = query(link)
        return f"{asked['redirect_uri']}?code=x&state={asked['state']}&iss=https://evil.example"

    async with protected() as world:
        with pytest.raises(NotAuthorized, match="iss mismatch"):
            await Person(elsewhere).login(spec(world, tmp_path))
        assert "/token" not in world.paths()


async def test_nothing_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with protected() as world:
        with caplog.at_level(logging.INFO):
            await Person().login(spec(world, tmp_path))
            world.trouble["/token"] = 400
            with pytest.raises(NotAuthorized):
                await Person().login(spec(world, tmp_path))
    assert CANARY not in caplog.text


async def test_nobody_agrees_and_it_ends(tmp_path: Path) -> None:
    async with protected() as world:
        person = Person(lambda link: world.issuer)
        with pytest.raises(NotAuthorized, match=r"nobody agreed within 0\.2 s"):
            await person.login(spec(world, tmp_path), person_s=0.2)


async def test_the_secret_of_a_client_goes_to_no_other_authorization_server(tmp_path: Path) -> None:
    async with protected() as world, protected() as evil:
        for one in (world, evil):
            one.clients = known("me", client_secret=f"s-{CANARY}")
        of = spec(world, tmp_path, client_id="me", client_secret=f"s-{CANARY}")
        await Person().login(of)
        world.resource = {"resource": world.url, "authorization_servers": [evil.issuer]}
        sentence = rf"names {evil.issuer} as its .* used with {world.issuer}; if that is meant,"
        with pytest.raises(NotAuthorized, match=sentence):
            await Person().login(of)
        assert evil.paths() == [METADATA]
        assert vault_of(of).forget(of.name)
        assert (await Person().login(of)).issuer == evil.issuer


async def test_a_server_that_moves_to_another_authorization_server_is_registered_there(
    tmp_path: Path,
) -> None:
    async with protected() as world, protected() as other:
        of = spec(world, tmp_path)
        await Person().login(of)
        world.resource = {"resource": world.url, "authorization_servers": [other.issuer]}
        other.clients = known("somebody")
        moved = await Person().login(of)
        assert moved.issuer == other.issuer
        assert "/register" in other.paths()
        assert "client-0" not in [form.get("client_id") for _, form in other.seen]
        assert {one.issuer for one in stored(of)} == {world.issuer, other.issuer}
        world.resource = {}
        await Person().login(of)
        assert world.paths().count("/register") == 1


async def test_a_server_without_oauth_is_told_so(tmp_path: Path) -> None:
    async with protected() as world:
        world.trouble = {METADATA: 404, "/register": 404}
        with pytest.raises(NotAuthorized, match="it has no metadata for OAuth clients"):
            await Person().login(spec(world, tmp_path, url=f"{world.issuer}/none"))


async def test_logout_leaves_nothing(tmp_path: Path) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        assert not vault_of(of).forget(of.name)
        await Person().login(of)
        assert vault_of(of).forget(of.name)
        assert stored(of) == []
        assert list((tmp_path / "oauth").iterdir()) == []


async def test_tokens_that_cannot_be_stored_are_told(tmp_path: Path) -> None:
    async with protected() as world:
        (tmp_path / "oauth").write_text("a file")
        with pytest.raises(MetaMCPError, match="tokens for server 'far' cannot be stored in"):
            await Person().login(spec(world, tmp_path))
