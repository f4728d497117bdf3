"""A front that asks for API keys, over real sockets: who gets in, what others see, what a revoked
key leaves behind."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from metamcp_worker.access import api_key
from metamcp_worker.access.door import FAILURES_MAX
from metamcp_worker.access.gate import PARTS_MAX
from metamcp_worker.front_clients.streams import PEER_STREAMS_MAX
from metamcp_worker.ipc.frames import Result
from metamcp_worker.ipc.key_table import KeyChanges, KeySpec
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.spec import EndpointSpec, NamingSpec, UseLimits

from ..rawhttp import post
from .door import OFF, Door, bodiless, legacy, modern, opened_door
from .offers import offer
from .peers import Peer

PEPPER = bytes(range(32))
KEY = api_key.make(bytes(range(40)))
OTHER = api_key.make(bytes(range(1, 41)))
FOREIGN = api_key.make(bytes(range(2, 42)))
GONE = api_key.make(bytes(range(3, 43)))
BEARER = f"Authorization: Bearer {KEY}"
HERE, FAR = "/metamcp/dev/mcp", "/metamcp/far/mcp"
STREAM = "Accept: text/event-stream"


def spec(key: str, **fields: object) -> KeySpec:
    name = api_key.id_of(key)
    known = KeySpec(id=name, digest=api_key.digest(PEPPER, key), name="k", principal=name)
    return replace(known, **fields)


KEYS = (spec(KEY, url=True), spec(OTHER), spec(FOREIGN, workspace="acme"))


def endpoint(name: str, **fields: object) -> EndpointSpec:
    bare = NamingSpec(style="bare")
    known = EndpointSpec(name=name, servers=("s",), naming=bare, disabled=OFF, auth=("keys",))
    return replace(known, **fields)


ENDPOINTS = (
    endpoint("dev"),
    endpoint("web", url_keys=True),
    endpoint("far", workspace="acme"),
    endpoint("open", auth=()),
)


@asynccontextmanager
async def guarded_door(*keys: KeySpec) -> AsyncGenerator[Door]:
    async with opened_door(*ENDPOINTS) as door:
        door.app.keys_changed(KeyChanges(pepper=PEPPER, whole=True, put=keys or KEYS))
        yield door


def revoke(door: Door, key: str) -> None:
    door.app.keys_changed(KeyChanges(pepper=PEPPER, gone=(api_key.id_of(key),)))


async def test_a_key_lists_and_calls_in_both_eras() -> None:
    async with guarded_door() as door:
        reply = await door.ask(modern("tools/list", {}, BEARER, path=HERE))
        assert [tool["name"] for tool in reply.json["result"]["tools"]] == ["t", "u"]
        client = await door.connect()
        for _ in range(3):  # the head is recognized from the second request on
            client.send(modern("tools/call", {"name": "t"}, f"X-API-Key: {KEY}", path=HERE))
            call = await door.peer.call()
            door.peer.write(Result(call.id, b'{"content":[]}'))
            assert (await client.reply()).status == 200
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
        opened = await door.ask(legacy("initialize", params, BEARER, path=HERE))
        session = opened.headers["mcp-session-id"]
        listed = await door.ask(legacy("tools/list", None, BEARER, session=session, path=HERE))
        assert listed.status == 200
        assert (await door.ask(modern("tools/list", path="/metamcp/open/mcp"))).status == 200


def come_from(address: str) -> str:
    return f"X-Forwarded-For: 198.51.100.1, {address}"


async def test_clients_behind_a_trusted_proxy_have_limits_of_their_own() -> None:
    async with guarded_door() as door:
        wrong = f"X-API-Key: {OTHER[:-1]}"

        async def knock(address: str) -> int:
            lines = wrong, come_from(address)
            return (await door.ask(modern("tools/list", {}, *lines, path=HERE))).status

        door.app.reconfigure(replace(door.spec, trusted_proxies=("127.0.0.1",)))
        assert {await knock("203.0.113.9") for _ in range(FAILURES_MAX)} == {401}
        assert await knock("203.0.113.9") == 429
        assert await knock("203.0.113.10") == 401


async def test_clients_behind_a_trusted_proxy_have_streams_of_their_own() -> None:
    async with opened_door(endpoint("open", auth=())) as door:
        door.app.reconfigure(replace(door.spec, trusted_proxies=("127.0.0.1",)))

        async def listen(address: str) -> int:
            client = await door.connect()
            wanted = {"notifications": {"toolsListChanged": True}}
            client.send(
                modern("subscriptions/listen", wanted, come_from(address), path="/metamcp/open/mcp")
            )
            return (await client.head()).status

        assert {await listen("203.0.113.9") for _ in range(PEER_STREAMS_MAX)} == {200}
        assert await listen("203.0.113.9") == 503
        assert await listen("203.0.113.10") == 200


@pytest.mark.promise("M63")
async def test_a_key_for_some_servers_sees_no_others_however_often_it_asks() -> None:
    async with guarded_door(spec(KEY, scopes=("mcp:list", "mcp:call:other"))) as door:
        client = await door.connect()
        for _ in range(3):  # the first request makes the part of the endpoint that the key may see
            client.send(modern("tools/list", {}, BEARER, path=HERE))
            assert (await client.reply()).json["result"]["tools"] == []


async def test_more_sets_of_servers_than_parts_are_served_and_sessions_keep_their_parts() -> None:
    servers = tuple("abcdefghi")
    sets = [
        ["mcp:list"] + [f"mcp:call:{one}" for bit, one in enumerate(servers) if number >> bit & 1]
        for number in range(1, PARTS_MAX + 2)
    ]
    keys = [api_key.make(number.to_bytes(2) * 20) for number in range(1, PARTS_MAX + 2)]
    async with opened_door(endpoint("many", servers=servers)) as door:
        specs = tuple(
            spec(key, scopes=tuple(scopes)) for key, scopes in zip(keys, sets, strict=True)
        )
        door.app.keys_changed(KeyChanges(pepper=PEPPER, whole=True, put=specs))
        client = await door.connect()
        bearer, path = f"X-API-Key: {keys[0]}", "/metamcp/many/mcp"
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
        opened = await client.ask(legacy("initialize", params, bearer, path=path))
        for key in keys:
            asked = modern("tools/list", {}, f"X-API-Key: {key}", path=path)
            assert (await client.ask(asked)).status == 200
        session = opened.headers["mcp-session-id"]
        kept = await client.ask(legacy("ping", None, bearer, session=session, path=path))
        assert kept.status == 200


def requests(path: str, *headers: str) -> list[bytes]:
    """Requests of every kind to a path, with these headers."""
    return [
        modern("tools/list", {}, *headers, path=path),
        legacy("initialize", {}, *headers, path=path),
        bodiless("GET", STREAM, *headers, path=path),
        bodiless("DELETE", *headers, path=path),
        bodiless("PUT", *headers, path=path),
        bodiless("OPTIONS", *headers, path=path),
        post(b"{", "Content-Type: text/plain", *headers, path=path),
    ]


async def test_without_a_credential_everything_looks_the_same() -> None:
    async with guarded_door() as door:
        seen = set[tuple[int, bytes, tuple[tuple[str, str], ...]]]()
        asked = (
            request
            for path in (HERE, FAR, "/metamcp/none/mcp", "/metamcp/none/else", "/metamcp/")
            for headers in ((), (f"X-API-Key: {GONE}",), ("Authorization: Basic eDp5",))
            for request in requests(path, *headers)
        )
        for request in asked:
            reply = await door.ask(request)
            shown = {name: value for name, value in reply.headers.items() if name != "retry-after"}
            if reply.status != 429:  # failed credentials are counted, too
                seen.add((reply.status, reply.body, tuple(shown.items())))
        ((status, _, headers),) = seen
        assert status == 401
        assert dict(headers)["www-authenticate"] == 'Bearer realm="metamcp"'
        assert door.peer.quiet()


async def test_another_workspace_answers_byte_by_byte_like_nothing() -> None:
    async with guarded_door() as door:
        for there, nothing in zip(
            requests(FAR, BEARER), requests("/metamcp/none/mcp", BEARER), strict=True
        ):
            reply = await door.ask(there)
            assert reply == await door.ask(nothing)
            assert reply.status == 404


async def test_a_foreign_session_looks_like_an_unknown_one() -> None:
    async with guarded_door() as door:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
        opened = await door.ask(legacy("initialize", params, BEARER, path=HERE))
        session = opened.headers["mcp-session-id"]
        other = f"X-API-Key: {OTHER}"
        for name in (session, session[:-1], "x"):
            for request in (
                legacy("tools/list", None, other, session=name, path=HERE),
                bodiless("GET", STREAM, f"Mcp-Session-Id: {name}", other, path=HERE),
                bodiless("DELETE", f"Mcp-Session-Id: {name}", other, path=HERE),
            ):
                reply = await door.ask(request)
                assert (reply.status, "no such session" in reply.message) == (404, True)
        owned = await door.ask(legacy("tools/list", None, BEARER, session=session, path=HERE))
        assert owned.status == 200


async def test_an_endpoint_that_names_its_keys_accepts_no_others() -> None:
    async with opened_door(
        endpoint("id", keys=(api_key.id_of(KEY), "x")),
        endpoint("name", keys=("k",)),
        endpoint("nobody", keys=("x",)),
    ) as door:
        door.app.keys_changed(KeyChanges(pepper=PEPPER, whole=True, put=KEYS))
        for path, allowed in (("id", (KEY,)), ("name", (KEY, OTHER)), ("nobody", ())):
            asked = {
                key: await door.ask(
                    modern("tools/list", {}, f"X-API-Key: {key}", path=f"/metamcp/{path}/mcp")
                )
                for key in (KEY, OTHER)
            }
            assert tuple(key for key, one in asked.items() if one.status == 200) == allowed
            assert {one.status for one in asked.values()} <= {200, 401}


async def test_two_keys_of_one_principal_share_a_session() -> None:
    async with guarded_door(spec(KEY, principal="bob"), spec(OTHER, principal="bob")) as door:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
        opened = await door.ask(legacy("initialize", params, BEARER, path=HERE))
        session = opened.headers["mcp-session-id"]
        other = f"X-API-Key: {OTHER}"
        assert (
            await door.ask(legacy("ping", None, other, session=session, path=HERE))
        ).status == 200


async def test_a_missing_scope_is_named_and_a_second_credential_refused() -> None:
    async with guarded_door(spec(KEY, scopes=("mcp:list",))) as door:
        reply = await door.ask(modern("tools/call", {"name": "t"}, BEARER, path=HERE))
        assert reply.status == 403
        assert 'error="insufficient_scope", scope="mcp:call"' in reply.headers["www-authenticate"]
        rest = await door.ask(post(b"{}", BEARER, path="/metamcp/dev/api/t"))
        assert rest.status == 403
        twice = modern("tools/list", {}, BEARER, f"X-API-Key: {KEY}", path=HERE)
        assert (await door.ask(twice)).status == 400
        assert door.peer.quiet()


async def test_a_key_for_one_server_does_not_see_the_others() -> None:
    async with guarded_door(spec(KEY, scopes=("mcp:list", "mcp:call:other")), spec(OTHER)) as door:
        listed = await door.ask(modern("tools/list", {}, BEARER, path=HERE))
        assert listed.json["result"]["tools"] == []
        call = modern("tools/call", {"name": "t"}, BEARER, path=HERE)
        never = modern("tools/call", {"name": "never"}, BEARER, path=HERE)
        refused, unknown = await door.ask(call), await door.ask(never)
        assert refused.status == unknown.status == 400
        assert refused.message == unknown.message.replace("never", "t")
        whole = await door.ask(modern("tools/list", {}, f"X-API-Key: {OTHER}", path=HERE))
        assert len(whole.json["result"]["tools"]) == 2
        assert door.peer.quiet()


async def test_a_key_in_the_url_opens_a_stream_to_which_its_client_can_post() -> None:
    async with guarded_door() as door:
        client = await door.connect()
        client.send(bodiless("GET", path=f"/metamcp/web/sse?api_key={KEY}"))
        assert (await client.head()).status == 200
        event = await client.chunk()
        where = event.decode().partition("data: ")[2].strip()
        assert KEY not in where
        assert (await door.ask(legacy("ping", path=where))).status == 202
        wrong = where.partition("&token=")[0] + "&token=x"
        assert (await door.ask(legacy("ping", path=wrong))).status == 401
        assert (await door.ask(legacy("ping", path=where.partition("&token=")[0]))).status == 401


@pytest.mark.promise("M63")
async def test_the_token_of_a_stream_does_not_tell_which_other_endpoints_there_are() -> None:
    async with guarded_door() as door:
        client = await door.connect()
        client.send(bodiless("GET", path=f"/metamcp/web/sse?api_key={KEY}"))
        assert (await client.head()).status == 200
        where = (await client.chunk()).decode().partition("data: ")[2].strip()
        for other in ("far", "dev", "none"):
            reply = await door.ask(legacy("ping", path=where.replace("web", other)))
            assert (reply.status, "credential" in reply.message) == (401, True)


@pytest.mark.parametrize(
    "change", [{"url_keys": False}, {"keys": ("x",)}, {"workspace": "acme"}, {"auth": ("oauth",)}]
)
async def test_a_reload_that_lets_in_others_leaves_no_stream_and_no_session(
    change: dict[str, object],
) -> None:
    async with guarded_door() as door:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
        web, dev = [
            (await door.ask(legacy("initialize", params, BEARER, path=path))).headers
            for path in ("/metamcp/web/mcp", HERE)
        ]
        client, other = await door.connect(), await door.connect()
        client.send(bodiless("GET", path=f"/metamcp/web/sse?api_key={KEY}"))
        other.send(bodiless("GET", BEARER, path="/metamcp/dev/sse"))
        assert (await client.head()).status == (await other.head()).status == 200
        where = (await client.chunk()).decode().partition("data: ")[2].strip()
        there = (await other.chunk()).decode().partition("data: ")[2].strip()

        served = tuple(replace(one, **change) if one.name == "web" else one for one in ENDPOINTS)
        spec = replace(door.spec, endpoints=served)
        door.steps.configure(spec)
        door.calls.refresh()
        door.app.reconfigure(spec)

        assert (await door.ask(legacy("ping", path=where))).status in (401, 404)
        while await client.chunk():
            pass
        assert door.over == [web["mcp-session-id"]]
        assert (await door.ask(legacy("ping", None, BEARER, path=there))).status == 202
        session = dev["mcp-session-id"]
        kept = await door.ask(legacy("ping", None, BEARER, session=session, path=HERE))
        assert kept.status == 200


async def test_a_revoked_key_leaves_no_stream_no_session_and_no_call() -> None:
    async with guarded_door() as door:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
        opened = await door.ask(legacy("initialize", params, BEARER, path=HERE))
        session = f"Mcp-Session-Id: {opened.headers['mcp-session-id']}"
        news = await door.connect()
        news.send(bodiless("GET", STREAM, session, BEARER, path=HERE))
        assert (await news.head()).status == 200
        call = await door.connect()
        call.send(modern("tools/call", {"name": "t"}, BEARER, path=HERE))
        sent = await door.peer.call()
        upload = await door.connect()
        whole = modern("tools/call", {"name": "t"}, BEARER, path=HERE)
        upload.send(whole[:-10])
        kept = await door.connect()
        assert (await kept.ask(modern("tools/list", {}, BEARER, path=HERE))).status == 200

        revoke(door, KEY)

        assert (await kept.ask(modern("tools/list", {}, BEARER, path=HERE))).status == 401
        while await news.chunk():
            pass
        assert "cancelled" in (await call.reply()).message
        await door.peer.cancelled()
        upload.send(whole[-10:])
        assert (await upload.reply()).status == 401
        assert door.over == [opened.headers["mcp-session-id"]]
        other = modern("tools/list", {}, f"X-API-Key: {OTHER}", path=HERE)
        assert (await door.ask(other)).status == 200
        assert sent.id


@pytest.mark.parametrize("rest", [False, True])
async def test_a_call_that_waits_for_a_first_start_does_not_run_with_a_revoked_key(
    rest: bool,
) -> None:
    async with opened_door(endpoint("two", servers=("s", "q"))) as door:
        starting = Peer()
        await door.calls.attach("q", 1, starting.fd)
        state = ServerState(server="q", state="ready", listed=False, generation=1)
        door.calls.server_state(state)
        door.app.keys_changed(KeyChanges(pepper=PEPPER, whole=True, put=KEYS))
        call = await door.connect()
        path, tool = "/metamcp/two/api/q_t", {"name": "q_t"}
        sent = post(b"{}", BEARER, path=path) if rest else modern(
            "tools/call", tool, BEARER, path="/metamcp/two/mcp"
        )  # fmt: skip
        call.send(sent)
        first = await starting.call()
        revoke(door, KEY)
        door.calls.catalogue("q", offer("q_t"))
        door.calls.refresh()
        starting.write(Result(first.id, b'{"tools":[]}'))
        assert (await call.reply()).status == 401
        assert starting.quiet()
        starting.close()


async def test_a_call_above_a_limit_of_its_key_is_refused_and_rest_says_429() -> None:
    async with guarded_door(
        spec(KEY, limits=UseLimits(in_flight=1, streams=1, body_max=1024))
    ) as door:
        call = await door.connect()
        call.send(modern("tools/call", {"name": "t"}, BEARER, path=HERE))
        first = await door.peer.call()
        refused = await door.ask(modern("tools/call", {"name": "t"}, BEARER, path=HERE))
        assert refused.json["error"]["data"] == {"reason": "limit", "limit": "in_flight"}
        rest = await door.ask(post(b"{}", BEARER, path="/metamcp/dev/api/t"))
        assert (rest.status, rest.headers["retry-after"]) == (429, "1")
        door.peer.write(Result(first.id, b'{"content":[]}'))
        assert (await call.reply()).status == 200
        call.send(modern("tools/call", {"name": "t"}, BEARER, path=HERE))
        assert (await door.peer.call()).id
        stream = {"notifications": {"toolsListChanged": True}}
        open_one = await door.connect()
        open_one.send(modern("subscriptions/listen", stream, BEARER, path=HERE))
        assert (await open_one.head()).status == 200
        more = await door.ask(modern("subscriptions/listen", stream, BEARER, path=HERE))
        assert more.status == 429
        large = await door.ask(modern("tools/list", {"x": "y" * 2000}, BEARER, path=HERE))
        assert large.status == 413
