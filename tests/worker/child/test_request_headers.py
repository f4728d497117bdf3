"""What of a message is said in HTTP headers."""

import base64
import json
from typing import Any

import pytest

from metamcp_worker.child import request_headers
from metamcp_worker.child.lists import ITEM_BYTES_MAX
from metamcp_worker.child.request_headers import RequestHeaders, encode_header, filter_headers
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


@pytest.mark.parametrize("plain", ["us-west1", "us west 1", "x", "", "=?base64?x", "{}:,\"'"])
def test_plain_values_are_sent_as_they_are(plain: str) -> None:
    assert encode_header(plain) == plain


@pytest.mark.parametrize(
    "value", ["Hello, 世界", " padded ", "line1\nline2", "\tin", "=?base64?x?=", "a\x7f", "é"]
)
def test_values_that_would_not_come_through_are_sent_as_base64(value: str) -> None:
    said = encode_header(value)
    assert base64.b64decode(said.removeprefix("=?base64?").removesuffix("?=")).decode() == value


def test_a_modern_request_says_its_revision_method_and_name() -> None:
    mirror = RequestHeaders()
    said = mirror.headers("resources/read", dump({"uri": "file:///ä"}))
    assert said["MCP-Protocol-Version"] == "2026-07-28"
    assert said["Mcp-Method"] == "resources/read"
    assert said["Mcp-Name"] == encode_header("file:///ä") != "file:///ä"
    assert said["Accept"] == "application/json, text/event-stream"
    assert mirror.headers("prompts/get", dump({"name": "p"}))["Mcp-Name"] == "p"
    assert mirror.headers("tasks/get", dump({"taskId": "7"}))["Mcp-Name"] == "7"


@pytest.mark.parametrize("params", [b"{}", b'{"name":7}', b"[]", b"{"])
def test_a_request_without_a_name_says_none(params: bytes) -> None:
    said = RequestHeaders().headers("tools/call", params)
    assert "Mcp-Name" not in said
    assert "Mcp-Name" not in RequestHeaders().headers("tools/list", b'{"name":"n"}')


def test_a_method_that_no_header_can_carry_is_encoded() -> None:
    assert RequestHeaders().headers("a\r\nX: y", b"{}")["Mcp-Method"].startswith("=?base64?")


def test_a_name_that_no_server_would_take_is_refused_here() -> None:
    with pytest.raises(TooLarge):
        RequestHeaders().headers(
            "resources/read", dump({"uri": "x" * request_headers.HEADERS_BYTES_MAX})
        )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("eu", "eu"), ("", ""), (" eu", "=?base64?IGV1?="), (True, "true"), (False, "false"),
        (42, "42"), (-7, "-7"), (42.0, "42"), (2**70, str(2**70)), (3.5, "3.5"),
    ],
)  # fmt: skip
def test_annotated_arguments_are_mirrored(value: object, said: str) -> None:
    assert mirrored(schema(a=marked(), b={"type": "string"}), {"a": value, "b": "no"}) == {
        "Region": said
    }


@pytest.mark.parametrize("arguments", [{}, {"a": None}, {"a": ["x"]}, {"a": {"b": "x"}}])
def test_without_a_simple_value_there_is_no_header(arguments: Json) -> None:
    assert mirrored(schema(a=marked()), arguments) == {}


def test_nested_properties_are_mirrored_from_their_own_place() -> None:
    properties = schema(a=schema(b=marked("integer", "Deep")), b=marked("boolean", "Flat"))
    assert mirrored(properties, {"a": {"b": 1}, "b": True}) == {"Deep": "1", "Flat": "true"}
    assert mirrored(properties, {"a": "x"}) == {}


def test_an_annotation_written_with_escapes_counts_too() -> None:
    mirror = RequestHeaders()
    mirror.learn(listed(schema(a=marked())).replace(b"x-mcp", b"x-\\u006dcp"))
    said = mirror.headers("tools/call", dump({"name": "t0", "arguments": {"a": "v"}}))
    assert said["Mcp-Param-Region"] == "v"


@pytest.mark.parametrize(
    "bad",
    [
        schema(a=marked(name="")),
        schema(a=marked(name="My Region")),
        schema(a=marked(name="Region:1")),
        schema(a=marked(name="Région")),
        schema(a=marked(name="R\t1")),
        schema(a=marked(name=7)),
        schema(a=marked("object")),
        schema(a=marked("array")),
        schema(a=marked("null")),
        schema(a=marked("number")),
        schema(a=marked(["string"])),
        schema(a={"x-mcp-header": "NoType"}),
        schema(a=marked(), b=marked(name="REGION")),
        {"x-mcp-header": "Root", "type": "string"},
        schema(a={"type": "array", "items": marked()}),
        schema(a={"anyOf": [marked()]}),
        {"$defs": {"d": schema(a=marked())}, "type": "object"},
        {"if": schema(a=marked())},
        schema(
            **{f"p{at}": marked(name=f"H{at}") for at in range(request_headers.ANNOTATIONS_MAX + 1)}
        ),
    ],
)
def test_a_tool_with_an_invalid_annotation_is_left_out_with_a_warning(bad: Json) -> None:
    answer, warnings = RequestHeaders().learn(listed(schema(), bad, schema(a=marked())))
    found = json.loads(answer)
    assert [tool["name"] for tool in found["result"]["tools"]] == ["t0", "t2"]
    assert found["result"]["nextCursor"] == "c"
    assert found["id"] == 1
    assert len(warnings) == 1
    assert "'t1'" in warnings[0]


def test_a_tool_that_is_too_large_for_any_list_is_not_looked_into() -> None:
    large: Json = {"description": "x" * ITEM_BYTES_MAX}
    answer = listed(schema(a=marked("object"), b=large))
    assert RequestHeaders().learn(answer) == (answer, [])
    assert mirrored(schema(a=marked(), b=large), {"a": "v"}) == {}


def test_data_that_looks_like_an_annotation_is_none() -> None:
    data = schema(a={"type": "object", "default": marked("array"), "examples": [marked("null")]})
    assert mirrored(data, {"a": "x"}) == {}
    assert mirrored(schema(properties=marked()), {"properties": "p"}) == {"Region": "p"}


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


def test_a_session_without_id_is_told_the_revision_only() -> None:
    assert "Mcp-Session-Id" not in request_headers.session("", "2025-06-18")
    said = request_headers.session("s1", "2025-06-18")
    assert (said["Mcp-Session-Id"], said["MCP-Protocol-Version"]) == ("s1", "2025-06-18")
