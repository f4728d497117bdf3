"""Revision 2026-07-28, over a real socket and a real pipe."""

from typing import Any

import pytest

from metamcp_worker.front_clients.client_sessions import CALLER_BYTES_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Error, Notice, Progress, Result
from tests.worker.front.door import META, MODERN, VERSION_KEY, modern, opened_door
from tests.worker.front.offers import offer, resource

from ..rawhttp import post, until

LEVEL = "io.modelcontextprotocol/logLevel"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
TOKEN: dict[str, Any] = {**META, "progressToken": "p"}


@pytest.mark.promise("M22")
async def test_a_call_reaches_its_server_and_its_result_comes_back_byte_for_byte() -> None:
    async with opened_door() as door:
        client = await door.connect()
        meta = {**META, "io.modelcontextprotocol/logLevel": "info", "traceparent": "00-x", "a/b": 1}
        client.send(modern("tools/call", {"name": "t", "arguments": {"id": 1}}, id="7", meta=meta))
        call = await door.peer.call()
        assert call.params == b'{"name":"t","arguments":{"id":1}}'
        assert codec.value(call.meta) == {"traceparent": "00-x", "a/b": 1}
        assert codec.value(call.caller) == {
            "clientCapabilities": {},
            "clientInfo": META["io.modelcontextprotocol/clientInfo"],
            "logLevel": "info",
        }
        assert not call.wants_progress
        result = b'{"content":[ ],"x":1.0,"resultType":"complete"}'
        door.peer.write(Result(call.id, result))
        reply = await client.reply()
        assert reply.body == b'{"jsonrpc":"2.0","id":"7","result":%b}' % result
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")


@pytest.mark.promise("M22")
@pytest.mark.parametrize(
    ("code", "status"), [(-32601, 404), (-32602, 400), (-32000, 200), (7, 200)]
)
async def test_an_error_of_a_server_keeps_its_bytes_and_sets_the_status(
    code: int, status: int
) -> None:
    async with opened_door() as door:
        client = await door.connect()
        client.send(modern("tools/call", {"name": "t"}))
        call = await door.peer.call()
        error = b'{"message":"no","code":%d,"data":{"n":1.0},"x":[ ]}' % code
        door.peer.write(Error(call.id, error))
        reply = await client.reply()
        assert reply.status == status
        assert reply.body == b'{"jsonrpc":"2.0","id":1,"error":%b}' % error


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in META.items() if name != key}


ALL_VERSIONS = [MODERN, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
FUTURE = {**META, VERSION_KEY: "2027-01-01"}
#: What is wrong, and the code and text of the refusal; the first rule that is broken counts.
LADDER: dict[str, tuple[bytes, int, str]] = {
    "routing header twice": (
        modern("ping", None, "Mcp-Method: ping", "Mcp-Method: ping", meta={"x": 1}),
        Code.HEADER_MISMATCH, "Mcp-Method came more than once",
    ),
    "version header twice": (
        modern("ping", None, f"MCP-Protocol-Version: {MODERN}", "MCP-Protocol-Version: 2025-11-25"),
        Code.HEADER_MISMATCH, "Mcp-Protocol-Version came more than once",
    ),
    "no _meta": (
        post(b'{"jsonrpc":"2.0","id":1,"method":"m"}', f"MCP-Protocol-Version: {MODERN}"),
        Code.INVALID_PARAMS, f"lacks {VERSION_KEY} and {CAPABILITIES}",
    ),
    "no version": (
        modern("ping", meta=without(VERSION_KEY)), Code.INVALID_PARAMS, f"lacks {VERSION_KEY}",
    ),
    "no capabilities": (
        modern("ping", meta=without(CAPABILITIES)), Code.INVALID_PARAMS, f"lacks {CAPABILITIES}",
    ),
    "capabilities null": (
        modern("ping", meta={**META, CAPABILITIES: None}), Code.INVALID_PARAMS, "must be an object",
    ),
    "other version in the body": (
        modern("ping", meta={**META, VERSION_KEY: "2027-01-01"}),
        Code.HEADER_MISMATCH, "MCP-Protocol-Version is not",
    ),
    "a version that is no string": (
        modern("ping", meta={**META, VERSION_KEY: 5}),
        Code.HEADER_MISMATCH, "MCP-Protocol-Version is not",
    ),
    "no Mcp-Method": (
        modern("ping", None, "Mcp-Method"), Code.HEADER_MISMATCH, "Mcp-Method is not",
    ),
    "other case of the method": (
        modern("ping", None, "Mcp-Method: PING"), Code.HEADER_MISMATCH, "Mcp-Method is not",
    ),
    "no Mcp-Name": (
        modern("tools/call", {"name": "t"}, "Mcp-Name"), Code.HEADER_MISMATCH, "params.name",
    ),
    "Mcp-Name of a resource": (
        modern("resources/read", {"uri": "a:b"}, "Mcp-Name: a:c"),
        Code.HEADER_MISMATCH, "params.uri",
    ),
    "a name that is no string": (
        modern("tools/call", {"name": 5}), Code.HEADER_MISMATCH, "params.name",
    ),
    "broken base64": (
        modern("tools/call", {"name": "t"}, "Mcp-Name: =?base64?dB=?="),
        Code.HEADER_MISMATCH, "name",
    ),
    "base64 with other bits": (
        modern("tools/call", {"name": "t"}, "Mcp-Name: =?base64?dB==?="),
        Code.HEADER_MISMATCH, "name",
    ),
    "version of the future": (
        modern("m", None, "MCP-Protocol-Version: 2027-01-01", meta=FUTURE),
        Code.UNSUPPORTED_VERSION, "Unsupported protocol version",
    ),
    "token that is no token": (
        modern("tools/call", {"name": "t"}, meta={**META, "progressToken": None}),
        Code.INVALID_PARAMS, "progress token",
    ),
    "a level that nobody knows": (
        modern("tools/call", {"name": "t"}, meta={**META, LEVEL: "loud"}),
        Code.INVALID_PARAMS, "must be one of debug",
    ),
    "capabilities beyond the limit": (
        modern("ping", meta={**META, CAPABILITIES: {"x": "y" * CALLER_BYTES_MAX}}),
        Code.INVALID_PARAMS, f"more than {CALLER_BYTES_MAX} bytes",
    ),
    "no tool": (modern("tools/call"), Code.INVALID_PARAMS, "needs the tool"),
    "bad cursor": (modern("tools/list", {"cursor": "x"}), Code.INVALID_PARAMS, "Invalid cursor"),
}  # fmt: skip


@pytest.mark.promise("M98")
@pytest.mark.parametrize("known", [False, True], ids=["new client", "known client"])
@pytest.mark.parametrize("case", LADDER)
async def test_what_a_request_lacks_is_named(case: str, known: bool) -> None:
    data, code, text = LADDER[case]
    async with opened_door() as door:
        if known:
            assert (await door.ask(modern("tools/list"))).status == 200
        reply = await door.ask(data)
        assert reply.outcome == (400, code)
        assert text in reply.message
        assert reply.json["id"] == 1
        if code == Code.UNSUPPORTED_VERSION:
            assert reply.json["error"]["data"] == {
                "supported": ALL_VERSIONS,
                "requested": "2027-01-01",
            }


@pytest.mark.parametrize(
    "method",
    ["ping", "initialize", "logging/setLevel", "resources/subscribe", "tasks/list"],
)
async def test_methods_of_the_other_era_do_not_exist(method: str) -> None:
    async with opened_door() as door:
        assert (await door.ask(modern(method))).outcome == (404, -32601)
        assert door.peer.quiet()


@pytest.mark.parametrize(
    ("uri", "header"),
    [
        ("a:t", "Mcp-Name:\t a:t \t"),
        ("a:t", "Mcp-Name: =?base64?YTp0?="),
        ("ä b", "Mcp-Name: =?base64?w6QgYg==?="),
        ("=?base64?dA==?=", "Mcp-Name: =?base64?PT9iYXNlNjQ/ZEE9PT89?="),
        ("=?t", "Mcp-Name: =?t"),
        ('a"\\', 'Mcp-Name: a"\\'),
    ],
)
async def test_a_name_may_be_spelled_in_each_way_of_the_protocol(uri: str, header: str) -> None:
    async with opened_door() as door:
        door.offer(offer(resources=[resource(uri)]))
        client = await door.connect()
        client.send(modern("resources/read", {"uri": uri}, header))
        call = await door.peer.call()
        assert codec.value(call.params) == {"uri": uri}
        door.peer.write(Result(call.id, b"{}"))
        assert (await client.reply()).status == 200


async def test_discovery_says_what_this_era_needs_to_know() -> None:
    async with opened_door() as door:
        result = (await door.ask(modern("server/discover"))).json["result"]
        assert result["supportedVersions"] == ALL_VERSIONS
        assert result["capabilities"] == {"tools": {"listChanged": True}}
        assert result["resultType"] == "complete"
        assert {"ttlMs", "cacheScope"} < set(result)
        info = result["_meta"]["io.modelcontextprotocol/serverInfo"]
        assert info == {"name": "metamcp", "version": "1.2.3"}


@pytest.mark.promise("M20")
async def test_lists_come_from_the_view() -> None:
    async with opened_door() as door:
        result = (await door.ask(modern("tools/list"))).json["result"]
        assert [tool["name"] for tool in result["tools"]] == ["t", "u"]


async def test_a_notification_is_accepted_and_an_answer_is_not() -> None:
    async with opened_door() as door:
        note = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
        reply = await door.ask(post(note, f"MCP-Protocol-Version: {MODERN}"))
        assert (reply.status, reply.body) == (202, b"")
        assert (await door.ask(post(note, "MCP-Protocol-Version: 1900"))).outcome == (400, -32022)
        answer = b'{"jsonrpc":"2.0","id":1,"result":{}}'
        reply = await door.ask(post(answer, f"MCP-Protocol-Version: {MODERN}"))
        assert reply.outcome == (400, -32600)


@pytest.mark.promise("M23")
async def test_a_client_that_goes_away_cancels_its_call() -> None:
    async with opened_door() as door:
        for meta in (META, TOKEN):
            client = await door.connect()
            client.send(modern("tools/call", {"name": "t"}, meta=meta))
            call = await door.peer.call()
            await client.close()
            assert (await door.peer.cancelled()).id == call.id
        await until(lambda: door.server.connections == 0)


@pytest.mark.promise("M23")
async def test_progress_makes_a_stream_of_the_answer_and_bears_the_clients_token() -> None:
    async with opened_door() as door:
        for token in ("p", 7):
            client = await door.connect()
            meta = {**META, "progressToken": token}
            client.send(modern("tools/call", {"name": "t"}, meta=meta, id="x"))
            call = await door.peer.call()
            assert call.wants_progress
            assert call.meta == b""
            door.peer.write(Progress(call.id, b'{"progress":0.5}'))
            head = await client.head()
            assert head.headers["content-type"] == "text/event-stream"
            assert head.headers["x-accel-buffering"] == "no"
            assert head.headers["cache-control"] == "no-cache"
            params = {"progressToken": token, "progress": 0.5}
            assert (await client.event())["params"] == params
            door.peer.write(Result(call.id, b'{"resultType":"x"}'))
            result = {"resultType": "x"}
            assert await client.event() == {"jsonrpc": "2.0", "id": "x", "result": result}
            assert await client.event() is None


@pytest.mark.promise("M23")
async def test_without_progress_or_without_a_token_or_a_reader_the_answer_is_json() -> None:
    async with opened_door() as door:
        client = await door.connect()
        client.send(modern("tools/call", {"name": "t"}, meta=TOKEN))
        door.peer.write(Result((await door.peer.call()).id, b"{}"))
        assert (await client.reply()).json["result"] is not None
        client.send(modern("tools/call", {"name": "t"}, "Accept: application/json", meta=TOKEN))
        call = await door.peer.call()
        assert not call.wants_progress
        door.peer.write(Progress(call.id, b'{"progress":1}'))
        door.peer.write(Error(call.id, b'{"code":-32602,"message":"x"}'))
        assert (await client.reply()).outcome == (400, -32602)


@pytest.mark.promise("M21")
@pytest.mark.parametrize(
    ("level", "heard"),
    [
        (None, []),
        ("debug", ["info", "error", "unheard-of"]),
        ("warning", ["error", "unheard-of"]),
    ],
)
async def test_log_messages_go_to_the_request_that_asked_for_them(
    level: str | None, heard: list[str]
) -> None:
    async with opened_door() as door:
        client = await door.connect()
        meta = META if level is None else {**META, LEVEL: level}
        client.send(modern("tools/call", {"name": "t"}, meta=meta))
        call = await door.peer.call()
        for said in ("info", "error", "unheard-of"):
            params = b'{"level":"%b","data":1.0}' % said.encode()
            door.peer.write(Notice("notifications/message", params, call.id))
        door.peer.write(Notice("notifications/elicitation/complete", b"{}", call.id))
        door.peer.write(Notice("notifications/example.com/x", b'{"n":1.0}', call.id))
        door.peer.write(Result(call.id, b"{}"))
        await client.head()
        for said in heard:
            assert (await client.event())["params"] == {"level": said, "data": 1.0}
        assert (await client.event())["method"] == "notifications/example.com/x"
        assert (await client.event())["id"] == 1
