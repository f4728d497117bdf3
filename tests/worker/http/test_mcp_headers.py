"""Headers that repeat a body: how they are written, and which of them a tool may ask for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import Raw

from metamcp_worker.http import mcp_headers
from metamcp_worker.http.mcp_headers import HeaderRuleUnfit, Wishes
from metamcp_worker.ipc import codec


def schema(**properties: object) -> bytes:
    return json.dumps({"type": "object", "properties": properties}).encode()


def test_plain_values_are_written_as_they_are_and_others_in_base64() -> None:
    assert mcp_headers.encode_value("us-west1 a") == "us-west1 a"
    assert mcp_headers.encode_value("") == ""
    assert mcp_headers.encode_value("é") == "=?base64?w6k=?="
    assert mcp_headers.encode_value(" a") == "=?base64?IGE=?="
    assert mcp_headers.encode_value("a\r\nb") == "=?base64?YQ0KYg==?="
    assert mcp_headers.encode_value("=?base64?YQ==?=") == "=?base64?PT9iYXNlNjQ/WVE9PT89?="


@given(st.text())
def test_every_text_survives_and_is_written_as_others_write_it(text: str) -> None:
    written = mcp_headers.encode_value(text)
    assert written == inbound.encode_header_value(text)
    assert inbound.decode_header_value(written) == text


def name_of(method: str, params: bytes) -> str | None:
    said = mcp_headers.build_modern_headers("2026-07-28", method, codec.level(params))
    assert (said["MCP-Protocol-Version"], said["Mcp-Method"]) == ("2026-07-28", method)
    assert said["Accept"] == "application/json, text/event-stream"
    return said.get("Mcp-Name")


def test_a_request_repeats_its_method_and_what_it_is_about() -> None:
    params = b'{"name":"caf\\u00e9","uri":"x:y","taskId":7}'
    assert name_of("tools/call", params) == name_of("prompts/get", params) == "=?base64?Y2Fmw6k=?="
    assert name_of("resources/read", params) == "x:y"
    assert name_of("tasks/get", params) is name_of("tools/list", params) is None
    assert name_of("tools/call", b"{}") is name_of("tools/call", b'{"name":7}') is None
    assert name_of("tasks/result", b'{"taskId":"7"}') == "7"


def test_a_session_without_id_is_told_the_revision_only() -> None:
    assert "Mcp-Session-Id" not in mcp_headers.build_session_headers("", "2025-06-18")
    said = mcp_headers.build_session_headers("s1", "2025-06-18")
    assert (said["Mcp-Session-Id"], said["MCP-Protocol-Version"]) == ("s1", "2025-06-18")


def test_arguments_are_repeated_that_the_tool_wants_to_be() -> None:
    found = mcp_headers.find_header_params(
        schema(
            region={"type": "string", "x-mcp-header": "Region"},
            count={"type": "integer", "x-mcp-header": "Count"},
            dry={"type": "boolean", "x-mcp-header": "Dry"},
            ratio={"type": "integer", "x-mcp-header": "Ratio"},
            inner={"type": "object", "properties": {
                "zone": {"type": "string", "x-mcp-header": "Zone"}}},
            other={"type": "string", "default": {"x-mcp-header": "no"}},
            properties={"type": "string", "x-mcp-header": "Properties"},
        )
    )  # fmt: skip
    arguments = (
        b'{"region":"\xc3\xa9","count":42,"dry":false,"ratio":42.0,'
        b'"inner":{"zone":"z"},"other":"o","properties":"p"}'
    )
    assert mcp_headers.build_param_headers(found, arguments) == {
        "Mcp-Param-Region": "=?base64?w6k=?=",
        "Mcp-Param-Count": "42",
        "Mcp-Param-Dry": "false",
        "Mcp-Param-Properties": "p",
        "Mcp-Param-Ratio": "42",
        "Mcp-Param-Zone": "z",
    }
    assert mcp_headers.build_param_headers(found, b'{"count":-7,"ratio":3.5,"dry":true}') == {
        "Mcp-Param-Count": "-7",
        "Mcp-Param-Dry": "true",
        "Mcp-Param-Ratio": "3.5",
    }


@pytest.mark.parametrize(
    "arguments",
    [b"", b"null", b"{}", b"[]", b'{"a":null}', b'{"a":{}}', b'{"a":[1]}', b'{"b":{"c":1}}'],
)
def test_what_has_no_value_has_no_header(arguments: bytes) -> None:
    found = mcp_headers.find_header_params(schema(a={"type": "string", "x-mcp-header": "A"}))
    assert mcp_headers.build_param_headers(found, Raw(arguments)) == {}
    assert mcp_headers.build_param_headers({}, b"never looked at") == {}


def test_a_way_that_leads_through_no_object_has_no_header() -> None:
    assert mcp_headers.build_param_headers({("a", "b"): "X"}, b'{"a":7}') == {}
    assert mcp_headers.build_param_headers({("a",): "X"}, b'{"a":%d}' % (1 << 5000)) == {}


def test_numbers_that_python_cannot_hold_concern_only_their_own_header() -> None:
    wishes: Wishes = {("a",): "A", ("b",): "B"}
    assert mcp_headers.build_param_headers(wishes, b'{"a":1e999,"b":"x","c":1e999}') == {
        "Mcp-Param-B": "x"
    }


@pytest.mark.parametrize("raw", [b"{}", b"true", b'{"description":"caf\\u00e9"}'])
def test_a_schema_without_annotations_wants_nothing(raw: bytes) -> None:
    assert mcp_headers.find_header_params(raw) == {}


UNFIT = [
    schema(a={"type": "string", "x-mcp-header": ""}),
    schema(a={"type": "string", "x-mcp-header": 7}),
    schema(a={"type": "string", "x-mcp-header": "My Region"}),
    schema(a={"type": "string", "x-mcp-header": "Région"}),
    schema(a={"type": "string", "x-mcp-header": "A:B"}),
    schema(a={"type": "string", "x-mcp-header": "A\t1"}),
    schema(a={"type": "number", "x-mcp-header": "A"}),
    schema(a={"type": "object", "x-mcp-header": "A"}),
    schema(a={"type": ["string", "null"], "x-mcp-header": "A"}),
    schema(a={"x-mcp-header": "A"}),
    schema(
        a={"type": "string", "x-mcp-header": "A"}, b={"type": "string", "x-mcp-header": "a"}
    ),
    schema(a={"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}),
    schema(a={"anyOf": [{"type": "string", "x-mcp-header": "A"}]}),
    b'{"if":%b}' % schema(a={"type": "string", "x-mcp-header": "A"}),
    schema(a={"$defs": {"d": {"type": "string", "x-mcp-header": "A"}}}),
    schema(a={"items": {"properties": {"b": {"type": "string", "x-mcp-header": "A"}}}}),
    b'{"x-mcp-header":"A","type":"string"}',
    b'{"properties":{"a":{"x\\u002dmcp-header":""}}}',
]  # fmt: skip


@pytest.mark.parametrize("raw", UNFIT)
def test_an_annotation_that_is_not_allowed_is_told(raw: bytes) -> None:
    with pytest.raises(HeaderRuleUnfit, match="x-mcp-header"):
        mcp_headers.find_header_params(raw)
    assert inbound.find_invalid_x_mcp_header(json.loads(raw)) is not None


def test_a_tool_must_not_want_more_headers_than_servers_take() -> None:
    wanted = [{"type": "string", "x-mcp-header": f"H{at}"} for at in range(65)]
    properties = {f"p{at}": annotated for at, annotated in enumerate(wanted)}
    with pytest.raises(HeaderRuleUnfit, match="too many"):
        mcp_headers.find_header_params(schema(**properties))
    del properties["p0"]
    assert len(mcp_headers.find_header_params(schema(**properties))) == mcp_headers.ANNOTATIONS_MAX
