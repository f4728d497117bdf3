"""A worker whose server wants OAuth: which token a request carries, and what callers are told."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.run import launch
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.spec import ServerSpec
from metamcp_worker.oauth.vault import TokenRecord
from tests.fakes.oauth_server import CANARY, World, protected
from tests.worker.child.far import Ear, Far
from tests.worker.oauth.people import Person, browse, known, put, spec, stored
from tests.worker.rawhttp import until
from tests.worker.scripted import Wire, serving

pytestmark = pytest.mark.process

Json = dict[str, Any]


@contextlib.asynccontextmanager
async def worker(of: ServerSpec) -> AsyncGenerator[Far]:
    """What a worker has of this server; no token is in what it logs or tells."""
    ear = Ear()
    transport = launch(of, "1.0", ear)
    try:
        yield Far(ear, transport)
    finally:
        await transport.stop()
        await transport.close()
    told = f"{transport.take_log_lines()} {ear.failures} {ear.losses} {transport!r}"
    assert CANARY not in told


@contextlib.asynccontextmanager
async def met(world: World, of: ServerSpec) -> AsyncGenerator[Far]:
    """A worker that was authorized before, and has shaken hands."""
    await Person().login(of)
    async with worker(of) as there:
        assert "result" in await there.discover()
        yield there


def needed(answer: Json) -> Json:
    """The error that says that authorization is needed."""
    error: Json = answer["failed"]
    assert error["code"] == Code.AUTHORIZATION_NEEDED, error
    assert error["data"]["server"] == "far"
    assert error["data"]["may_have_run"] is False
    return error


def link(answer: Json) -> str:
    error = needed(answer)
    found = error["data"]["authorization_url"]
    assert isinstance(found, str)
    assert found in error["message"]
    assert "or run 'metamcp login far'" in error["message"]
    return found


def expire(of: ServerSpec, seconds: float = -1.0) -> None:
    (record,) = stored(of)
    put(of, structs.replace(record, expires_at=time.time() + seconds))


@pytest.mark.promise("M11")
async def test_who_was_never_authorized_is_told_where_to_get_it_and_then_it_works(
    tmp_path: Path,
) -> None:
    async with protected() as world, worker(spec(world, tmp_path)) as there:
        where = link(await there.discover())
        assert link(await there.discover()) == where
        assert "You can close this page" in await browse(where)
        assert "result" in await there.discover()
        assert await there.text(there.call("echo", text="hi")) == "hi"


@pytest.mark.promise("M11")
async def test_a_token_that_runs_out_is_refreshed_once_for_all_calls(tmp_path: Path) -> None:
    async with protected() as world, met(world, spec(world, tmp_path)) as there:
        old = world.access.popitem()
        calls = [there.call("echo", text=str(number)) for number in range(8)]
        assert [await there.text(key) for key in calls] == [str(n) for n in range(8)]
        grants = [form["grant_type"] for form in world.said("/token")]
        assert grants == ["authorization_code", "refresh_token"]
        (record,) = stored(spec(world, tmp_path))
        assert record.access_token in world.access
        assert old[0] not in world.access


async def test_a_token_whose_time_is_up_is_not_even_tried(tmp_path: Path) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        await Person().login(of)
        expire(of)
        async with worker(of) as there:
            assert "result" in await there.discover()
        # The token endpoint is the one of its metadata, known from the first time.
        assert world.paths()[-2:] == ["/authorize", "/token"][1:] * 2
        assert world.said("/token")[-1]["grant_type"] == "refresh_token"
        assert world.said("/token")[-1]["resource"] == world.url


async def test_a_good_token_is_used_while_a_refresh_fails_and_a_dead_one_is_not(
    tmp_path: Path,
) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        await Person().login(of)
        world.trouble["/token"] = 503
        expire(of, seconds=5)
        async with worker(of) as there:
            assert "result" in await there.discover()
        expire(of)
        async with worker(of) as there:
            error = (await there.discover())["failed"]
            assert error["code"] == Code.SERVER_DOWN
            assert "its authorization server" in error["message"]
            assert "HTTP 503" in error["message"]
            assert error["data"]["may_have_run"] is False
        world.trouble.clear()
        async with worker(of) as there:
            assert "result" in await there.discover()


@pytest.mark.promise("M11")
async def test_four_workers_that_need_a_new_token_use_the_old_one_once(tmp_path: Path) -> None:
    async with protected() as world, contextlib.AsyncExitStack() as stack:
        of = spec(world, tmp_path)
        await Person().login(of)
        there = [await stack.enter_async_context(worker(of)) for _ in range(4)]
        for one in there:
            assert "result" in await one.discover()
        for _ in range(5):
            world.access.clear()
            calls = [(one, one.call("echo", text="a")) for one in there]
            assert [await one.text(key) for one, key in calls] == ["a"] * 4
        assert world.reused == 0
        assert world.paths().count("/authorize") == 1
        assert world.paths().count("/token") == 6


@pytest.mark.parametrize("status", [400, 403, 404])
async def test_a_page_of_a_firewall_ends_no_token(tmp_path: Path, status: int) -> None:
    async with protected() as world, met(world, spec(world, tmp_path)) as there:
        world.access.clear()
        world.pages["/token"] = (status, "<h1>Blocked</h1>")
        error = (await there.outcome(there.call("echo", text="a")))["failed"]
        assert error["code"] == Code.SERVER_DOWN
        assert f"gave no new token (HTTP {status})" in error["message"]
        (record,) = stored(spec(world, tmp_path))
        assert record.refresh_token in world.refresh


async def test_an_authorization_server_that_is_busy_ends_no_token(tmp_path: Path) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        async with met(world, of) as there:
            world.access.clear()
            world.trouble["/token"], world.errors["/token"] = 400, "temporarily_unavailable"
            error = (await there.outcome(there.call("echo", text="a")))["failed"]
            assert error["code"] == Code.SERVER_DOWN
        world.trouble.clear()
        async with worker(of) as there:
            assert "result" in await there.discover()
        assert world.paths().count("/authorize") == 1


@pytest.mark.parametrize(("path", "goes_along"), [("/mcp/there", True), ("/elsewhere", False)])
async def test_a_redirect_takes_a_token_to_its_resource_only(
    tmp_path: Path, path: str, goes_along: bool
) -> None:
    seen: list[tuple[str, bool]] = []

    async def script(wire: Wire) -> None:
        while request := await wire.request():
            where = request.line.split()[1]
            seen.append((where, "authorization" in request.headers))
            if where == "/mcp":
                await wire.answer(b"", f"Location: {path}", status="307 Temporary Redirect")
            else:
                await wire.answer(request.body)

    async with protected() as world, serving(script) as url:
        of = spec(world, tmp_path, url=url)
        put(of, TokenRecord(server="far", url=url, access_token="t", issuer=world.issuer))
        async with worker(of) as there:
            found = await there.outcome(there.call("echo", text="a"))
        assert seen[0] == ("/mcp", True)
        assert ((path, True) in seen) is goes_along
        assert (path, False) not in seen
        if not goes_along:
            assert "redirects to /elsewhere, which is not part of" in str(found)


async def test_a_login_during_a_refresh_wins(tmp_path: Path) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        async with met(world, of) as there:
            world.access.clear()
            world.held = asyncio.Event()
            key = there.call("echo", text="a")
            await until(lambda: world.paths().count("/token") == 2)
            login = asyncio.ensure_future(Person().login(of))
            await until(lambda: world.paths().count("/token") == 3)
            world.refresh.clear()  # what the refresh shows is of no use any more
            world.held.set()
            got = await login
            assert await there.text(key) == "a"
            assert [one.access_token for one in stored(of)] == [got.access_token]


async def test_a_person_is_needed_when_nothing_can_be_refreshed(tmp_path: Path) -> None:
    async with protected() as world, met(world, spec(world, tmp_path)) as there:
        world.access.clear()
        world.refresh.clear()
        where = link(await there.outcome(there.call("echo", text="a")))
        assert link(await there.outcome(there.call("echo", text="b"))) == where
        await browse(where)
        assert await there.text(there.call("echo", text="c")) == "c"
        assert world.paths().count("/register") == 1


async def test_a_gateway_that_was_forgotten_registers_itself_anew(tmp_path: Path) -> None:
    async with protected() as world, met(world, spec(world, tmp_path)) as there:
        world.access.clear()
        world.clients = known("somebody")
        where = link(await there.outcome(there.call("echo", text="a")))
        assert world.paths().count("/register") == 2
        await browse(where)
        assert await there.text(there.call("echo", text="b")) == "b"


async def test_a_refresh_that_brings_nothing_is_tried_again_later(tmp_path: Path) -> None:
    async with protected() as world, met(world, spec(world, tmp_path)) as there:
        world.access.clear()
        world.trouble["/token"] = 201
        error = (await there.outcome(there.call("echo", text="a")))["failed"]
        assert error["code"] == Code.SERVER_DOWN
        assert "gave no new token" in error["message"]
        (record,) = stored(spec(world, tmp_path))
        assert record.refresh_token in world.refresh


@pytest.mark.promise("M11")
async def test_more_scopes_are_asked_for_when_a_call_needs_them_and_others_go_on(
    tmp_path: Path,
) -> None:
    async with protected() as world, met(world, spec(world, tmp_path)) as there:
        where = link(await there.outcome(there.call("write", text="a")))
        assert "scope=read+write" in where
        assert await there.text(there.call("echo", text="b")) == "b"
        await browse(where)
        assert await there.text(there.call("write", text="c")) == "written: c"


async def test_scopes_that_are_granted_already_are_not_asked_for_again(tmp_path: Path) -> None:
    async with protected() as world, met(world, spec(world, tmp_path)) as there:
        await browse(link(await there.outcome(there.call("write", text="a"))))
        assert await there.text(there.call("write", text="b")) == "written: b"
        for granted in world.access.values():
            granted.scope = "read"
        error = needed(await there.outcome(there.call("write", text="c")))
        assert "was granted what it wants: write" in error["message"]
        assert "authorization_url" not in error["data"]


async def test_scopes_that_were_missing_are_asked_for_at_the_next_login(tmp_path: Path) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        async with met(world, of) as there:
            link(await there.outcome(there.call("write", text="a")))
        record = await Person().login(of)
        assert (record.scope, record.wanted) == ("read write", "")


async def test_a_slow_call_holds_up_no_other(tmp_path: Path) -> None:
    async with protected() as world, met(world, spec(world, tmp_path)) as there:
        slow = there.call("wait")
        assert await there.text(there.call("echo", text="b")) == "b"
        world.access.clear()
        assert await there.text(there.call("echo", text="c")) == "c"
        world.released.set()
        assert await there.text(slow) == "waited"


async def test_a_login_elsewhere_is_noticed(tmp_path: Path) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        async with met(world, of) as there:
            world.access.clear()
            world.refresh.clear()
            await Person().login(of)
            assert await there.text(there.call("echo", text="c")) == "c"


@pytest.mark.promise("M11")
async def test_a_gateway_with_a_credential_of_its_own_needs_nobody(tmp_path: Path) -> None:
    async with protected() as world:
        world.clients = known("me", client_secret="s3cret")
        of = spec(
            world, tmp_path, client_id="me", client_secret="s3cret", scopes=("read",),
            grant="client_credentials",
        )  # fmt: skip
        async with worker(of) as there:
            assert "result" in await there.discover()
            world.access.clear()
            assert await there.text(there.call("echo", text="a")) == "a"
            assert await there.text(there.call("write", text="b")) == "written: b"
        assert "/authorize" not in world.paths()
        scopes = [form["scope"] for form in world.said("/token")]
        assert [set(scope.split()) for scope in scopes] == [
            {"read"},
            {"read"},
            {"read", "write"},
        ]


async def test_a_credential_that_is_refused_is_told_and_not_tried_again_and_again(
    tmp_path: Path,
) -> None:
    async with protected() as world:
        world.clients = known("me", client_secret="other")
        of = spec(
            world, tmp_path, client_id="me", client_secret=f"s-{CANARY}",
            grant="client_credentials",
        )  # fmt: skip
        async with worker(of) as there:
            for _ in range(3):
                error = needed(await there.discover())
                assert "check `client_id` and `client_secret`" in error["message"]
                assert "HTTP 401, invalid_client" in error["message"]
        assert len(world.said("/token")) == 1


async def test_a_token_that_is_refused_as_soon_as_it_was_given_is_not_got_again(
    tmp_path: Path,
) -> None:
    async def script(wire: Wire) -> None:
        while request := await wire.request():
            host = request.headers["host"]
            if request.line.startswith("POST /mcp"):
                await wire.answer(b"", status="401 Unauthorized")
            elif "authorization-server" in request.line:
                made = {"issuer": f"http://{host}", "token_endpoint": f"http://{host}/token"}
                made["authorization_endpoint"] = f"http://{host}/authorize"
                await wire.answer(json.dumps(made).encode())
            elif request.line.startswith("POST /token"):
                asked.append(request.line)
                await wire.answer(b'{"access_token":"x","token_type":"Bearer"}')
            else:
                await wire.answer(b"", status="404 Not Found")

    asked: list[str] = []
    async with serving(script) as url:
        machine = {"client_id": "a", "client_secret": "b", "grant": "client_credentials"}
        async with worker(spec(World(), tmp_path, url=url, **machine)) as there:
            error = needed(await there.discover())
            assert "refuses the token that its authorization server has just" in error["message"]
    assert len(asked) == 1


async def test_a_legacy_server_is_authorized_in_all_that_it_is_asked(tmp_path: Path) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        await Person().login(of)
        async with worker(of) as there:
            assert "result" in await there.initialize()
            assert await there.text(there.call("echo", text="a")) == "a"
            world.access.clear()
            assert await there.text(there.call("echo", text="b")) == "b"
            world.access.clear()
            world.refresh.clear()
            link(await there.outcome(there.call("echo", text="c")))
            assert there.transport.write(
                jsonrpc_lines.notification("notifications/roots/list_changed")
            )
            await browse(link(await there.outcome(there.call("echo", text="d"))))
            assert await there.text(there.call("echo", text="e")) == "e"
            assert there.ear.losses == []


async def test_a_server_of_the_old_event_streams_is_down_until_it_is_authorized(
    tmp_path: Path,
) -> None:
    async def script(wire: Wire) -> None:
        while request := await wire.request():
            status = "401 Unauthorized" if request.line.startswith("GET /mcp") else "404 Not Found"
            await wire.answer(b"", status=status)

    async with serving(script) as url:
        of = structs.replace(spec(World(), tmp_path, url=url), transport="sse")
        async with worker(of) as there:
            await there.ear.until(lambda: there.ear.losses)
            (failure,) = there.ear.losses
            assert failure.reason == "authorization"
            assert "has no metadata for OAuth clients" in failure.message


async def test_tokens_that_cannot_be_read_are_told_once_and_got_anew(tmp_path: Path) -> None:
    async with protected() as world:
        of = spec(world, tmp_path)
        await Person().login(of)
        (file,) = (tmp_path / "oauth").glob("*.token")
        file.write_bytes(file.read_bytes()[:-1])
        async with worker(of) as there:
            link(await there.discover())
            link(await there.discover())
            lines = [line for told in there.transport.take_log_lines() for line in told.lines]
            assert sum("written with another key, or damaged" in line for line in lines) == 1
