"""The table of bad requests against a real front, the paths, the eras, and the end."""

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import BODY_BYTES_MAX, Result

from ..rawhttp import WAIT_S, Client, post, until
from .door import LEGACY, MODERN, bodiless, legacy, modern, opened_door, opened_session
from .offers import offer

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


def message(**members: Any) -> bytes:
    return post(codec.dump({"jsonrpc": "2.0", "id": 1, "method": "ping", **members}))


def raw(body: bytes) -> bytes:
    return post(body)


#: What is sent, and the HTTP status and JSON-RPC code of the refusal.
TABLE: dict[str, tuple[bytes, int, int]] = {
    "bad JSON": (raw(b"{"), 400, -32700),
    "empty body": (raw(b""), 400, -32700),
    "not UTF-8": (raw(b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}'), 400, -32700),
    "UTF-16": (raw(PING.decode().encode("utf-16")), 400, -32700),
    "byte order mark": (raw(b"\xef\xbb\xbf" + PING), 400, -32700),
    "NaN": (raw(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":NaN}}'), 400, -32700),
    "100,000 nesting": (
        raw(b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 100_000), 400, -32700,
    ),
    "batch": (raw(b"[" + PING + b"]"), 400, -32600),
    "empty batch": (raw(b"[]"), 400, -32600),
    "a string": (raw(b'"ping"'), 400, -32600),
    "method 5": (message(method=5), 400, -32600),
    "method null": (message(method=None), 400, -32600),
    "method of 300 bytes": (message(method="m" * 300), 400, -32600),
    "id null": (message(id=None), 400, -32600),
    "id true": (message(id=True), 400, -32600),
    "id 1.5": (message(id=1.5), 400, -32600),
    "id []": (message(id=[]), 400, -32600),
    "id {}": (message(id={}), 400, -32600),
    "id 2^70": (message(id=2**60), 400, -32600),
    "id of 100 kB": (message(id="x" * 100_000), 400, -32600),
    "jsonrpc 1.0": (message(jsonrpc="1.0"), 400, -32600),
    "no jsonrpc": (raw(b'{"id":1,"method":"ping"}'), 400, -32600),
    "result and method": (message(result={}), 400, -32600),
    "neither": (raw(b'{"jsonrpc":"2.0","id":1}'), 400, -32600),
    "two methods": (raw(PING[:-1] + b',"method":"tools/call"}'), 400, -32600),
    "two methods, one escaped": (
        raw(PING[:-1] + b',"m\\u0065thod":"x","a":{"method":1}}'), 400, -32600,
    ),
    "two ids": (raw(PING[:-1] + b',"id":2}'), 400, -32600),
    "two params": (raw(PING[:-1] + b',"params":{},"params":{"a":{}}}'), 400, -32600),
    "params []": (message(params=[]), 400, -32602),
    "_meta 5": (message(params={"_meta": 5}), 400, -32602),
    "Content-Type application/jsonx": (post(PING, "Content-Type: application/jsonx"), 415, -32600),
    "Content-Type text/plain": (post(PING, "Content-Type: text/plain"), 415, -32600),
    "charset utf-16": (post(PING, "Content-Type: application/json; charset=utf-16"), 415, -32600),
    "no Content-Type": (post(PING, "Content-Type"), 415, -32600),
    "two Content-Types": (
        post(PING, "Content-Type: application/json", "Content-Type: a/b"), 400, -32600,
    ),
    "Accept text/html": (post(PING, "Accept: text/html"), 406, -32600),
    "Accept q=0": (post(PING, "Accept: application/json;q=0, text/event-stream"), 406, -32600),
    "foreign Host": (post(PING, host="evil.example"), 421, -32600),
    "foreign Host with our name in front": (post(PING, host="localhost.evil.example"), 421, -32600),
    "Host with a path": (post(PING, host="127.0.0.1:80/admin?x="), 400, -32600),
    "Host with a user": (post(PING, host="a@127.0.0.1"), 400, -32600),
    "Host with a bad port": (post(PING, host="127.0.0.1:99999"), 400, -32600),
    "empty Host": (post(PING, host=""), 400, -32600),
    "no Host": (post(PING, "Host"), 400, -32600),
    "no Host, HTTP/1.0": (post(PING, "Host").replace(b"HTTP/1.1", b"HTTP/1.0"), 400, -32600),
    "two Hosts": (post(PING, "Host: localhost", "Host: localhost"), 400, -32600),
    "foreign Origin": (post(PING, "Origin: https://evil.example"), 403, -32600),
    "Origin null": (post(PING, "Origin: null"), 403, -32600),
    "Origin with a suffix": (post(PING, "Origin: http://localhost.evil.example"), 403, -32600),
    "two Origins": (post(PING, "Origin: http://localhost", "Origin: http://a"), 400, -32600),
    "absolute target, other host": (post(PING, path="http://evil.example/mcp"), 400, -32600),
    "unknown path": (post(PING, path="/"), 404, -32600),
    "unknown endpoint": (post(PING, path="/metamcp/nope/mcp"), 404, -32600),
    "path traversal": (post(PING, path="/x/../mcp"), 404, -32600),
    "encoded slash": (post(PING, path="/metamcp/dev%2Fmcp"), 404, -32600),
    "encoded letter": (post(PING, path="/mc%70"), 404, -32600),
    "upper case": (post(PING, path="/MCP"), 404, -32600),
    "PUT": (post(PING, method="PUT"), 405, -32600),
    "HEAD": (bodiless("HEAD"), 405, 0),
    "declared too large": (post(PING, f"Content-Length: {BODY_BYTES_MAX + 1}"), 413, -32600),
    "unknown session": (legacy("ping", session="nope"), 404, -32600),
    "no session": (legacy("ping"), 400, -32600),
    "other version in the header": (
        modern("tools/list", None, "MCP-Protocol-Version: 1900-01-01"), 400, -32020,
    ),
    "name mismatch": (modern("tools/call", {"name": "t"}, "Mcp-Name: u"), 400, -32020),
    "method mismatch": (modern("tools/list", None, "Mcp-Method: tools/call"), 400, -32020),
    "a method of the other era": (modern("ping"), 404, -32601),
    "tool name of 129 bytes": (modern("tools/call", {"name": "t" * 129}), 400, -32602),
    "URI of 2,049 bytes": (modern("resources/read", {"uri": "x" * 2049}), 400, -32602),
}  # fmt: skip


@pytest.mark.promise("M98", "M99")
@pytest.mark.parametrize("case", TABLE)
async def test_bad_request_gets_its_status_and_one_sentence(case: str) -> None:
    data, status, code = TABLE[case]
    async with opened_door() as door:
        client = await door.connect()
        client.send(data)
        reply = await (client.head() if case == "HEAD" else client.reply())
        assert reply.outcome == (status, code)
        if reply.body:
            assert reply.message
            assert b"\n" not in reply.body
            assert reply.json["jsonrpc"] == "2.0"
            assert "id" in reply.json
        if status == 405:
            assert reply.headers["allow"] == "POST, GET, DELETE, OPTIONS"
        assert sum(door.stats.refusals.values()) == 1 or code == -32601
        assert door.peer.quiet()  # no server has seen any of it


GOOD = {
    "plain": post(PING),
    "charset": post(PING, 'Content-Type: Application/JSON; charset="UTF-8"'),
    "any type": post(PING, "Accept: */*"),
    "no Accept": post(PING, "Accept"),
    "JSON alone": post(PING, "Accept: application/*;q=0.5"),
    "Accept twice": post(PING, "Accept: text/event-stream", "Accept: application/json"),
    "IPv6": post(PING, host="[0:0:0:0:0:0:0:1]:6270"),
    "capitals": post(PING, host="LOCALHOST:1"),
    "own Origin": post(PING, "Origin: http://127.0.0.1:3000"),
    "absolute target": post(PING, path="http://localhost:99/mcp?a=b"),
    "query": post(PING, path="/mcp?a=b"),
    "named endpoint": post(PING, path="/metamcp/default/mcp"),
    "names in arguments": post(
        PING[:-1] + b',"params":{"id":1,"method":{"params":[]},"id2":"id"}}'
    ),
}


@pytest.mark.promise("M2")
@pytest.mark.parametrize("case", GOOD)
async def test_every_right_spelling_is_served(case: str) -> None:
    async with opened_session() as (door, session):
        head, _, body = GOOD[case].partition(b"\r\n")
        reply = await door.ask(head + f"\r\nMcp-Session-Id: {session}\r\n".encode() + body)
        assert reply.json == {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.promise("M98")
async def test_a_body_over_the_limit_is_refused_while_it_comes() -> None:
    async with opened_door() as door:
        client = await door.connect()
        client.send(post(b"", "Content-Length", "Transfer-Encoding: chunked"))
        part = b"%x\r\n%b\r\n" % (2**20, b" " * 2**20)
        for _ in range(BODY_BYTES_MAX // 2**20):
            client.send(part)
        client.send(b"1\r\n \r\n")
        reply = await client.reply()
        assert (reply.outcome, reply.headers["connection"]) == ((413, -32600), "close")
        client.half_close()
        assert await client.closed() == b""
        assert door.stats.refusals == {"too_large": 1}


async def test_a_body_of_the_limit_is_read() -> None:
    async with opened_door() as door:
        body = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"'
        body += b"a" * (BODY_BYTES_MAX - len(body) - 3) + b'"}}'
        assert (await door.ask(post(body))).outcome == (400, -32600)  # it has no session


@pytest.mark.promise("M1")
async def test_the_header_chooses_the_era_of_each_request() -> None:
    async with opened_session() as (door, session):
        client = await door.connect()
        assert (
            "resultType"
            not in (await client.ask(legacy("tools/list", session=session))).json["result"]
        )
        reply = await client.ask(modern("tools/list"))
        assert reply.json["result"]["resultType"] == "complete"
        ours = legacy("tools/list", None, f"MCP-Protocol-Version: {LEGACY}", session=session)
        assert "resultType" not in (await client.ask(ours)).json["result"]


async def test_a_modern_message_without_the_modern_header_is_told_so() -> None:
    async with opened_door() as door:
        for header in ("MCP-Protocol-Version", f"MCP-Protocol-Version: {LEGACY}"):
            reply = await door.ask(modern("tools/list", None, header))
            assert reply.outcome == (400, -32020)
            assert reply.json["id"] == 1


async def test_options_names_the_methods_and_modern_clients_have_only_post() -> None:
    async with opened_door() as door:
        reply = await door.ask(bodiless("OPTIONS"))
        assert (reply.status, reply.headers["allow"]) == (204, "POST, GET, DELETE, OPTIONS")
        for method in ("GET", "DELETE"):
            reply = await door.ask(bodiless(method, f"MCP-Protocol-Version: {MODERN}"))
            assert (reply.status, reply.headers["allow"]) == (405, "POST, OPTIONS")


async def test_an_endpoint_that_is_gone_is_not_served_any_more() -> None:
    async with opened_session(path="/metamcp/dev/mcp") as (door, session):
        ping = legacy("ping", session=session, path="/metamcp/dev/mcp")
        assert (await door.ask(ping)).status == 200
        assert door.app.counts().sessions[LEGACY] == 1
        door.serve_only("default")
        assert (await door.ask(ping)).status == 404
        assert door.app.counts().sessions[LEGACY] == 0


@pytest.mark.promise("M79")
async def test_a_drain_waits_for_calls_and_ends_streams() -> None:
    async with opened_session() as (door, session):
        news = await door.connect()
        news.send(bodiless("GET", f"Mcp-Session-Id: {session}"))
        assert (await news.head()).status == 200
        caller = await door.connect()
        caller.send(modern("tools/call", {"name": "t"}))
        call = await door.peer.call()
        drained = asyncio.gather(door.server.drain(WAIT_S), door.app.drain(WAIT_S))
        assert await news.event() is None
        door.peer.write(Result(call.id, b'{"done":1}'))
        assert (await caller.reply()).json["result"]["done"] == 1
        await drained
        assert door.server.connections == 0


@pytest.mark.promise("M28")
async def test_every_client_that_wants_to_know_is_told_of_a_changed_list() -> None:
    async with opened_session() as (door, session):
        old, new = await door.connect(), await door.connect()
        other = await door.connect()
        old.send(bodiless("GET", f"Mcp-Session-Id: {session}"))
        await old.head()
        wish = {"notifications": {"toolsListChanged": True}}
        for client, path in ((new, "/mcp"), (other, "/metamcp/dev/mcp")):
            client.send(modern("subscriptions/listen", wish, path=path))
            await client.head()
            await client.event()
        await until(lambda: door.app.counts().streams == 3)
        door.offer(offer("t", "u", "w"))
        for client in (old, new, other):
            assert (await client.event())["method"] == "notifications/tools/list_changed"


async def test_a_request_builds_the_lists_that_wait_and_clients_hear_of_it() -> None:
    async with opened_door() as door:
        news = await door.news(await door.initialize())
        door.calls.catalogue("s", offer("new"))
        door.calls.viewers.defer()
        (tool,) = (await door.ask(modern("tools/list"))).json["result"]["tools"]
        assert tool["name"] == "new"
        assert (await news.event())["method"] == "notifications/tools/list_changed"


async def test_requests_on_one_connection_follow_each_other_in_both_eras() -> None:
    async with opened_door() as door:
        client: Client = await door.connect()
        session = await door.initialize()
        for number in range(3):
            client.send(modern("tools/call", {"name": "t"}, id=number))
            call = await door.peer.call()
            door.peer.write(Result(call.id, b"{}"))
            assert (await client.reply()).json["id"] == number
            assert (await client.ask(legacy("ping", id="p", session=session))).json["id"] == "p"


@pytest.mark.parametrize("era", [legacy, modern])
async def test_a_call_that_waits_for_its_answer_does_not_hold_its_body(
    era: Callable[..., bytes],
) -> None:
    async with opened_session() as (door, session):
        tracemalloc.start()
        try:
            for number in range(8):
                client = await door.connect()
                options: dict[str, str] = {"session": session} if era is legacy else {}
                call = {"name": "t", "arguments": {"text": "x" * 1_000_000}}
                client.send(era("tools/call", call, id=number, **options))
                del call
                await door.peer.call()
            assert tracemalloc.get_traced_memory()[0] < 4_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("era", [modern, legacy])
async def test_a_call_that_waits_for_its_server_needs_no_task_and_a_drain_waits_for_it(
    era: Callable[..., bytes],
) -> None:
    async with opened_session() as (door, session):
        client = await door.connect()
        options: dict[str, str] = {"session": session} if era is legacy else {}
        client.send(era("tools/call", {"name": "t"}, **options))
        call = await door.peer.call()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        drain = asyncio.create_task(door.app.drain(WAIT_S))
        assert not (await asyncio.wait([drain], timeout=0.05))[0]
        door.peer.write(Result(call.id, b"{}"))
        assert (await client.reply()).status == 200
        await drain
