"""Tools as plain HTTP, over a real socket and a real pipe."""

import re
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import Raw, structs

from metamcp_worker.http import web_pages
from metamcp_worker.http.web_pages import OpenApiTool
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import (
    BODY_BYTES_MAX,
    CallFrame,
    Error,
    Progress,
    QuestionFrame,
    ReplyFrame,
    Result,
    ServerGone,
)
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.spec import EndpointSpec
from tests.worker.front.door import Door, bodiless, opened_door
from tests.worker.front.offers import offer, tool

from ..rawhttp import Client, post

API = "/metamcp/default/api"
REFERS = Raw(
    b'{"name":"refers","title":"Refers","description":"d\\u00e9","inputSchema":'
    b'{"type":"object", "properties":{"default":{"$ref":"#/$defs/A"},"b":{"items":[{"$ref":"#"}]}},'
    b'"$defs":{"A":{"minimum":1.0,"default":{"$ref":"#/x"},"not":{"$ref":"#there"}}}},'
    b'"outputSchema":{"type":"object", "x":1.0}}'
)


def get(path: str = "") -> bytes:
    return bodiless("GET", path=API + path)


async def called(door: Door, tool_path: str, body: bytes = b"{}") -> tuple[Client, CallFrame]:
    client = await door.connect()
    client.send(post(body, "Accept", path=f"{API}/{tool_path}"))
    return client, await door.peer.call()


@pytest.mark.promise("M4")
async def test_the_list_shows_what_a_caller_needs_to_know_as_servers_wrote_it() -> None:
    async with opened_door() as door:
        door.offer(offer(REFERS, "t"))
        reply = await door.ask(get())
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        refers, plain = codec.items(codec.level(reply.body)["tools"])
        members = codec.level(REFERS)
        del members["title"]
        assert codec.level(refers) == members
        assert codec.value(plain) == {"name": "t", "inputSchema": {"type": "object"}}
        for path in ("/", "?x=1"):
            assert (await door.ask(get(path))).body == reply.body
        assert (await door.ask(bodiless("GET", path="/api"))).body == reply.body
        door.offer(offer("other"))
        assert b'"other"' in (await door.ask(get())).body


@pytest.mark.promise("M4")
async def test_a_tool_is_called_with_the_body_and_answers_with_its_result_byte_for_byte() -> None:
    async with opened_door() as door:
        client, call = await called(door, "t", b'{"n": 1.0, "x":[ ]}')
        assert call.params == b'{"name":"t","arguments":{"n": 1.0, "x":[ ]}}'
        assert codec.value(call.caller) == {
            "clientCapabilities": {},
            "clientInfo": {"name": "metamcp-rest", "version": "1.2.3"},
        }
        assert not call.wants_progress
        door.peer.write(Progress(call.id, b'{"progress":1}'))
        result = b'{"content":[ ],"x":1.0,"isError":false,"resultType":"complete"}'
        door.peer.write(Result(call.id, result))
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, result)


@pytest.mark.promise("M4")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"content":[],"isError": true,"resultType":"complete"}', 422),
        (b'{"content":[{"isError":true}],"resultType":"complete"}', 200),
        (b'["isError"]', 200),
        (b'{"resultType":"input_required","requestState":"x"}', 501),
    ],
)
async def test_a_result_that_is_no_success_has_a_status_that_says_so(
    body: bytes, status: int
) -> None:
    async with opened_door() as door:
        client, call = await called(door, "t")
        door.peer.write(Result(call.id, body))
        reply = await client.reply()
        assert reply.status == status
        assert (reply.body == body) is (status != 501)


@pytest.mark.promise("M4")
@pytest.mark.parametrize(
    ("code", "status"),
    [(-32602, 400), (-32603, 502), (-32000, 502), (-32021, 501), (-10002, 503), (-10003, 504)],
)
async def test_an_error_keeps_its_bytes_and_has_a_status(code: int, status: int) -> None:
    async with opened_door() as door:
        client, call = await called(door, "t")
        error = b'{"message":"no","code":%d,"data":{"n":1.0},"x":[ ]}' % code
        door.peer.write(Error(call.id, error))
        reply = await client.reply()
        assert (reply.status, reply.body) == (status, b'{"error":%b}' % error)


async def test_a_server_that_goes_down_is_a_bad_gateway() -> None:
    async with opened_door() as door:
        client, _ = await called(door, "t")
        door.peer.write(ServerGone(b'{"reason":"exit","message":"it exited"}'))
        reply = await client.reply()
        assert reply.status == 502
        assert reply.json["error"]["code"] == Code.SERVER_DOWN


@pytest.mark.parametrize("path", ["v", "..", "%2e%2e", "t/", "t/t", "%00", "%ff", "T", "%zz", "/t"])
async def test_a_path_that_names_no_tool_is_not_found(path: str) -> None:
    async with opened_door() as door:
        reply = await door.ask(post(b"{}", path=f"{API}/{path}"))
        assert reply.status == 404
        assert reply.json["error"]["code"] == Code.INVALID_PARAMS
        assert door.peer.quiet()


@pytest.mark.parametrize(
    ("letter", "count", "status"),
    [("_", 124, 502), ("_", 125, 404), ("é", 62, 502), ("é", 63, 404)],
)
async def test_a_name_that_is_too_long_for_any_tool_waits_for_no_server(
    letter: str, count: int, status: int
) -> None:
    """`late` has not reported yet what it offers, and does not come."""
    served = EndpointSpec(name="default", servers=("s", "late"), default=True)
    async with opened_door(served) as door:
        door.calls.server_state(ServerState(server="late", state="stopped", listed=True))
        reply = await door.ask(post(b"{}", path=f"{API}/{quote('late' + letter * count)}"))
        assert reply.status == status
        assert len(reply.json["error"]["message"]) < 400


@pytest.mark.parametrize(("path", "name"), [("a%2Fb", "a/b"), ("%74", "t"), ("%C3%A9", "é")])
async def test_a_name_may_be_written_with_percent_signs(path: str, name: str) -> None:
    async with opened_door() as door:
        door.offer(offer("a/b", "t", "é"))
        exposed = [one["name"] for one in (await door.ask(get())).json["tools"]]
        if name not in exposed:  # this endpoint exposes it under another
            return
        client, call = await called(door, path)
        assert codec.value(call.params)["name"] == name
        door.peer.write(Result(call.id, b"{}"))
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("body", [b"[]", b"7", b"{", b'{"a":"\xff"}', b'{"a":1}x', b"null"])
async def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    async with opened_door() as door:
        reply = await door.ask(post(body, path=f"{API}/t"))
        assert reply.status == 400
        assert "must be a JSON object" in reply.message
        assert door.peer.quiet()


async def test_no_body_is_no_arguments() -> None:
    async with opened_door() as door:
        _, call = await called(door, "t", b"")
        assert call.params == b'{"name":"t","arguments":{}}'


@pytest.mark.promise("M4")
async def test_requests_from_pages_of_other_sites_and_of_other_kinds_come_to_nothing() -> None:
    async with opened_door() as door:

        async def status(*headers: str, path: str = "/t", method: str = "POST") -> int:
            data = post(b"{}", *headers, path=API + path, method=method)
            return (await door.ask(data)).status

        assert await status("Origin: http://evil.example") == 403
        assert await status("Host: evil.example") == 421
        assert await status("Content-Type: text/plain") == 415
        assert await status(f"Content-Length: {BODY_BYTES_MAX + 1}") == 413
        assert await status(method="PUT") == 405
        assert (await status(path=""), await status(path="/openapi.json")) == (405, 404)
        reply = await door.ask(get("/t"))
        assert (reply.status, reply.headers["allow"]) == (405, "POST, OPTIONS")
        for path, allowed in (("/t", "POST, OPTIONS"), ("", "GET, OPTIONS")):
            reply = await door.ask(bodiless("OPTIONS", path=API + path))
            assert (reply.status, reply.headers["allow"]) == (204, allowed)
        assert door.peer.quiet()


@pytest.mark.promise("M4")
async def test_a_server_that_asks_is_refused_and_a_client_that_goes_away_cancels() -> None:
    async with opened_door() as door:
        client, call = await called(door, "t")
        door.peer.write(QuestionFrame(call.id, 5, "elicitation/create", b"{}"))
        reply = await door.peer.read()
        assert isinstance(reply, ReplyFrame)
        assert reply.failed
        await client.close()
        assert (await door.peer.cancelled()).id == call.id


async def test_an_endpoint_without_rest_has_no_such_paths() -> None:
    async with opened_door() as door:
        plain = tuple(structs.replace(one, rest=False) for one in door.spec.endpoints)
        door.app.reconfigure(structs.replace(door.spec, endpoints=plain))
        assert (await door.ask(get())).status == 404
        assert (await door.ask(post(b"{}", path=f"{API}/t"))).status == 404


# --- the document ---------------------------------------------------------------------------


def references(value: Any) -> list[str]:
    """Where the document refers to."""
    match value:
        case {"$ref": str(reference)}:
            return [reference]
        case {**members}:
            return [found for one in members.values() for found in references(one)]
        case [*items]:
            return [found for one in items for found in references(one)]
        case _:
            return []


@pytest.mark.promise("M4")
async def test_the_document_describes_each_tool_with_the_schemas_of_its_server() -> None:
    async with opened_door() as door:
        door.offer(offer(REFERS, "t"))
        reply = await door.ask(get("/openapi.json"))
        assert b'{"type":"object", "x":1.0}' in reply.body
        found = reply.json
        assert (found["openapi"], found["info"]["version"]) == ("3.1.0", "1.2.3")
        assert found["servers"] == [{"url": API}]
        operation = found["paths"]["/refers"]["post"]
        assert operation["operationId"] == "refers"
        assert (operation["summary"], operation["description"]) == ("Refers", "dé")
        assert set(operation["responses"]) == {
            "200", "400", "401", "403", "404", "413", "415", "422", "429",
            "501", "502", "503", "504",
        }  # fmt: skip
        assert operation["requestBody"]["required"]
        assert "security" not in found
        schemas = found["components"]["schemas"]
        here = "#/components/schemas/refers.input"
        assert schemas["refers.input"]["properties"] == {
            "default": {"$ref": here + "/$defs/A"}, "b": {"items": [{"$ref": here}]},
        }  # fmt: skip
        inner = {"default": {"$ref": "#/x"}, "not": {"$ref": "#there"}}
        assert schemas["refers.input"]["$defs"]["A"] == {"minimum": 1.0, **inner}


def test_the_document_says_that_a_protected_endpoint_needs_a_credential() -> None:
    endpoint = EndpointSpec(name="e", servers=(), auth=("keys",))
    found = codec.value(web_pages.document(endpoint, [], "1", None))
    (scheme,) = found["components"]["securitySchemes"].values()
    assert scheme == {"type": "http", "scheme": "bearer"}
    assert [list(one) for one in found["security"]] == [
        list(found["components"]["securitySchemes"])
    ]


def test_the_document_is_sound_whatever_servers_call_their_tools() -> None:
    names = ["a/b", "é {x}", "1.", "input.1", "Result", "plain"]
    tools = [OpenApiTool(name, codec.level(tool(name))) for name in names]
    tools.append(OpenApiTool("odd", {"title": Raw(b"7"), "inputSchema": Raw(b"null")}))
    tools.append(OpenApiTool("own", {"inputSchema": Raw(b'{"$id":"x:y","allOf":[{"$ref":"#"}]}')}))
    endpoint = EndpointSpec(name="e", servers=())
    found = codec.value(web_pages.document(endpoint, tools, "1", "Read this."))
    assert found["info"]["description"] == "Read this."
    operations = [path["post"]["operationId"] for path in found["paths"].values()]
    assert operations == [*names, "odd", "own"]
    assert "/%C3%A9%20%7Bx%7D" in found["paths"]
    schemas = found["components"]["schemas"]
    assert len(schemas) == len(operations) + 2
    assert all(re.fullmatch("[A-Za-z0-9._-]+", key) for key in schemas)
    assert schemas["odd.input"] == {"type": "object"}
    assert schemas["own.input"] == {"$id": "x:y", "allOf": [{"$ref": "#"}]}
    assert set(references(found)) - {"#"} <= {f"#/components/schemas/{key}" for key in schemas}
