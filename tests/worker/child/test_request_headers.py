"""What of a message is said in HTTP headers."""

import json
from typing import Any

import pytest

from metamcp_worker.child import request_headers
from metamcp_worker.child.lists import ITEM_BYTES_MAX
from metamcp_worker.child.request_headers import RequestHeaders, filter_headers
from metamcp_worker.ipc.errors import TooLarge

Json = dict[str, Any]


def dump(value: object) -> bytes:
    return json.dumps(value).encode()


def listed(*schemas: Json) -> bytes:
    """The answer to `tools/list` with tools t0, t1, …"""
    tools = [{"name": f"t{at}", "inputSchema": one, "x": 1.0} for at, one in enumerate(schemas)]
    return dump({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools, "nextCursor": "c"}})


def schema(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def marked(kind: object = "string", name: object = "Region") -> Json:
    return {"type": kind, "x-mcp-header": name}


def mirrored(properties: Json, arguments: Json) -> Json:
    """The `Mcp-Param-` headers of a call of a tool with these properties."""
    mirror = RequestHeaders()
    answer, warnings = mirror.learn(listed(properties))
    assert answer == listed(properties)
    assert not warnings
    said = mirror.headers("tools/call", dump({"name": "t0", "arguments": arguments}))
    return {name[10:]: value for name, value in said.items() if name.startswith("Mcp-Param-")}


def test_a_modern_request_says_its_revision_method_and_name() -> None:
    mirror = RequestHeaders()
    said = mirror.headers("resources/read", dump({"uri": "file:///ä"}))
    assert said["MCP-Protocol-Version"] == "2026-07-28"
    assert said["Mcp-Method"] == "resources/read"
    assert said["Mcp-Name"] == "=?base64?ZmlsZTovLy/DpA==?="
    assert said["Accept"] == "application/json, text/event-stream"
    assert mirror.headers("prompts/get", dump({"name": "p"}))["Mcp-Name"] == "p"
    assert mirror.headers("tasks/get", dump({"taskId": "7"}))["Mcp-Name"] == "7"


@pytest.mark.parametrize("params", [b"{}", b'{"name":7}', b"[]", b"{"])
def test_a_request_without_a_name_says_none(params: bytes) -> None:
    said = RequestHeaders().headers("tools/call", params)
    assert "Mcp-Name" not in said
    assert "Mcp-Name" not in RequestHeaders().headers("tools/list", b'{"name":"n"}')


def test_a_name_that_no_server_would_take_is_refused_here() -> None:
    with pytest.raises(TooLarge):
        RequestHeaders().headers(
            "resources/read", dump({"uri": "x" * request_headers.HEADERS_BYTES_MAX})
        )


def test_annotated_arguments_are_mirrored() -> None:
    assert mirrored(schema(a=marked(), b={"type": "string"}), {"a": " eu", "b": "no"}) == {
        "Region": "=?base64?IGV1?="
    }


def test_a_tool_with_an_invalid_annotation_is_left_out_with_a_warning() -> None:
    bad = schema(a=marked(), b=marked(name="REGION"))
    answer, warnings = RequestHeaders().learn(listed(schema(), bad, schema(a=marked())))
    found = json.loads(answer)
    assert [tool["name"] for tool in found["result"]["tools"]] == ["t0", "t2"]
    assert found["result"]["nextCursor"] == "c"
    assert found["id"] == 1
    assert warnings == [
        "left out of tools: 't1': x-mcp-header of 'a' comes twice, or is one of too many"
    ]


def test_a_tool_that_is_too_large_for_any_list_is_not_looked_into() -> None:
    large: Json = {"description": "x" * ITEM_BYTES_MAX}
    answer = listed(schema(a=marked("object"), b=large))
    assert RequestHeaders().learn(answer) == (answer, [])
    assert mirrored(schema(a=marked(), b=large), {"a": "v"}) == {}


def test_a_tool_that_lost_its_annotation_is_not_mirrored_any_more() -> None:
    mirror = RequestHeaders()
    mirror.learn(listed(schema(a=marked())))
    mirror.learn(listed(schema(a={"type": "string"})))
    said = mirror.headers("tools/call", dump({"name": "t0", "arguments": {"a": "v"}}))
    assert "Mcp-Param-Region" not in said


@pytest.mark.parametrize(
    "answer", [b"{}", b'{"error":{}}', b'{"result":{"tools":1}}', b'{"result":{"tools":[1,{}]}}']
)
def test_what_is_no_list_of_tools_passes_as_it_is(answer: bytes) -> None:
    assert RequestHeaders().learn(answer) == (answer, [])


def test_what_is_remembered_has_a_bound() -> None:
    mirror = RequestHeaders()
    for start in range(0, request_headers.ANNOTATED_MAX + 1, 500):
        tools = [{"name": f"n{start + at}", "inputSchema": schema(a=marked())} for at in range(501)]
        mirror.learn(dump({"result": {"tools": tools}}))
    newest = f"n{request_headers.ANNOTATED_MAX + 500}"
    said = mirror.headers("tools/call", dump({"name": newest, "arguments": {"a": "v"}}))
    assert said["Mcp-Param-Region"] == "v"
    old = mirror.headers("tools/call", dump({"name": "n0", "arguments": {"a": "v"}}))
    assert "Mcp-Param-Region" not in old


def test_configured_headers_that_belong_to_the_protocol_are_not_sent() -> None:
    kept, refused = filter_headers({
        "Authorization": "Bearer x", "X-Team": "a", "mcp-session-id": "1", "Host": "h",
        "Content-Length": "3", "Accept": "*/*", "Bad Name": "v", "Last-Event-Id": "e",
    })  # fmt: skip
    assert kept == {"Authorization": "Bearer x", "X-Team": "a"}
    assert len(refused) == 6
