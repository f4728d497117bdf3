"""Headers that repeat what a body says, as the front checks them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import Raw

from metamcp_worker.front_calls import mcp_request
from metamcp_worker.http import mcp_headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frames import Result
from tests.worker.front.door import modern, opened_door
from tests.worker.front.offers import offer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "deep": {
            "type": "object",
            "properties": {"dry": {"type": "boolean", "x-mcp-header": "Dry-Run"}},
        },
        "plain": {"type": "string"},
    },
}
TOOL = codec.dump({"name": "t", "inputSchema": SCHEMA})
WISHES = mcp_request.collect_wishes([("t", TOOL)])["t"]


def why_not(arguments: object, *given: tuple[str, str]) -> str:
    """The refusal, or nothing."""
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in given]
    try:
        mcp_request.check(WISHES, Raw(codec.dump(arguments)), raw)
    except ProtocolError as refused:
        return refused.message if refused.code == Code.HEADER_MISMATCH else "another code"
    return ""


REGION, COUNT, DRY = "Mcp-Param-Region", "Mcp-Param-Count", "Mcp-Param-Dry-Run"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ({}, ()),
        ({"plain": "x"}, [("Mcp-Param-Other", "y")]),
        ({"region": None}, ()),
        ({"region": ["a"], "deep": 7}, ()),
        ({"region": "us"}, [(REGION, "us")]),
        ({"region": "us"}, [("MCP-PARAM-REGION", " \tus ")]),
        ({"region": "us"}, [(REGION, "=?base64?dXM=?=")]),
        ({"region": " é"}, [(REGION, "=?base64?IMOp?=")]),
        ({"region": ""}, [(REGION, "")]),
        ({"count": 42}, [(COUNT, "42")]),
        ({"count": 42}, [(COUNT, "42.0")]),
        ({"count": -7}, [(COUNT, "-7")]),
        ({"count": 42.0}, [(COUNT, "42")]),
        ({"count": 1.5}, [(COUNT, "1.5")]),
        ({"deep": {"dry": True}}, [(DRY, "true")]),
    ],
)
def test_headers_that_say_what_the_arguments_say_pass(
    arguments: object, given: list[tuple[str, str]]
) -> None:
    assert why_not(arguments, *given) == ""


@pytest.mark.parametrize(
    ("arguments", "given", "why"),
    [
        ({"region": "us"}, (), "Mcp-Param-Region is missing; it repeats the argument region."),
        ({"region": "us"}, [(REGION, "eu")], "Mcp-Param-Region is not the argument region."),
        ({"region": "us"}, [(REGION, "US")], "is not the argument"),
        ({"region": "us"}, [(REGION, "us"), (REGION, "us")], "came more than once"),
        ({"region": "us"}, [(REGION, "=?base64?dXM?=")], "is not the argument"),
        ({"region": "42"}, [(REGION, "42.0")], "is not the argument"),
        ({"region": None}, [(REGION, "us")], "there is no argument region to repeat"),
        ({}, [(DRY, "false")], "there is no argument deep.dry to repeat"),
        ({"deep": {"dry": True}}, [(DRY, "True")], "is not the argument deep.dry"),
        ({"deep": {"dry": True}}, [(DRY, "1")], "is not"),
        ({"count": 42}, [(COUNT, "42.5")], "is not"),
        ({"count": 42}, [(COUNT, "4.2e1")], "is not"),
        ({"count": 42}, [(COUNT, "9" * 5000)], "is not"),
        ([], [(COUNT, "1")], "no argument"),
    ],
)
def test_headers_that_say_something_else_are_refused(
    arguments: object, given: list[tuple[str, str]], why: str
) -> None:
    assert why in why_not(arguments, *given)


@given(
    st.dictionaries(
        st.sampled_from(["region", "count", "deep"]),
        st.text() | st.integers(-(2**60), 2**60) | st.booleans() | st.none()
        | st.fixed_dictionaries({"dry": st.booleans()}),
    )
)  # fmt: skip
def test_what_others_send_for_any_arguments_passes(arguments: dict[str, Any]) -> None:
    sent = inbound.mcp_param_headers(inbound.x_mcp_header_map(SCHEMA), arguments)
    assert mcp_headers.build_param_headers(WISHES, codec.dump(arguments)) == sent
    assert why_not(arguments, *sent.items()) == ""


def test_only_tools_that_ask_for_headers_properly_are_looked_at() -> None:
    twice = {"a": {"type": "string", "x-mcp-header": "X"}, "b": {"x-mcp-header": "X"}}
    escaped = TOOL.replace(b"x-mcp-header", b"x\\u002dmcp-header")
    found = mcp_request.collect_wishes([
        ("plain", b'{"name":"plain","inputSchema":{}}'),
        ("twice", codec.dump({"name": "twice", "inputSchema": {"properties": twice}})),
        ("said", b'{"name":"said","description":"x-mcp-header"}'),
        ("broken", b'["x-mcp-header"]'),
        ("escaped", escaped),
    ])  # fmt: skip
    assert found == {"escaped": WISHES}


def test_header_values_that_cannot_be_read_are_nothing() -> None:
    assert mcp_request.header_text(b"=?base64?gA==?=") is None  # no UTF-8
    assert mcp_request.header_text(b"=?base64?d A==?=") is None
    assert mcp_request.header_text(b"=?base64?=") == "=?base64?="


@pytest.mark.promise("M21")
async def test_a_call_is_checked_against_the_schema_of_its_tool() -> None:
    async with opened_door() as door:
        door.offer(offer(Raw(TOOL), "u"))
        call = {"name": "t", "arguments": {"region": "us", "plain": "p"}}
        reply = await door.ask(modern("tools/call", call))
        assert reply.outcome == (400, Code.HEADER_MISMATCH)
        assert (await door.ask(modern("tools/call", call, f"{REGION}: eu"))).status == 400
        assert door.peer.quiet()
        client = await door.connect()
        for request in (
            modern("tools/call", call, f"{REGION}: us"),
            modern("tools/call", {**call, "name": "u"}),
        ):
            client.send(request)
            sent = await door.peer.call()
            assert codec.value(sent.params)["arguments"] == call["arguments"]
            door.peer.write(Result(sent.id, b"{}"))
            assert (await client.reply()).status == 200


def test_arguments_that_nobody_can_read_as_values_are_refused() -> None:
    with pytest.raises(ProtocolError) as refusal:
        mcp_request.check(WISHES, Raw(b'{"count":1e999}'), [])
    assert refusal.value.code == Code.INVALID_PARAMS
