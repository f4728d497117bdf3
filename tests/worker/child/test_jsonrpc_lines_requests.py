"""The bytes of a request: every byte of the client's stays, and it is one line."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.jsonrpc_lines import LEGACY, MODERN, MetaBuilder
from metamcp_worker.ipc.frames import CallFrame
from tests.examples import examples

PREFIX = "io.modelcontextprotocol/"
json_of: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=examples(50))
@given(
    st.dictionaries(st.text().filter(lambda key: key != "_meta"), json_of, max_size=4),
    st.booleans(),
)
def test_a_request_is_one_line_that_says_the_same(params: dict[str, Any], pretty: bool) -> None:
    raw = json.dumps(params, indent=2 if pretty else None).replace("\n", "\r\n").encode()
    line = jsonrpc_lines.request(b"7", "tools/call", raw, b'{"progressToken":7}')
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"_meta": {"progressToken": 7}, **params},
    }


def test_arguments_stay_the_bytes_they_are() -> None:
    members = b'"name":"x","arguments":{ "z":1.0,"a" :1e400, "z":2, "u":"\\u00e9\\/"} }'
    line = jsonrpc_lines.request(b"1", "tools/call", b"{" + members, b'{"a":1}')
    assert line.endswith(b'"params":{"_meta":{"a":1},' + members + b"}\n")


@pytest.mark.parametrize("params", [b"", b"{}", b"{ }", b" {\n} "])
def test_empty_parameters_take_meta_too(params: bytes) -> None:
    for meta, expected in ((b'{"a":1}', {"_meta": {"a": 1}}), (b"", {})):
        assert json.loads(jsonrpc_lines.request(b"1", "x", params, meta))["params"] == expected


def test_a_method_is_escaped() -> None:
    line = jsonrpc_lines.request(b"1", 'x","id":2,"y":"\n', b"{}")
    assert json.loads(line)["method"] == 'x","id":2,"y":"\n'


def test_a_legacy_server_gets_what_the_client_said_and_no_more() -> None:
    stamp = MetaBuilder(LEGACY[0], "1.0")
    call = CallFrame(1, "completion/complete", b"{}", caller=b'{"clientInfo":{"name":"c"}}')
    assert stamp.of(call, b"9") == b""
    long = CallFrame(1, "tools/call", b"{}", caller=b'{"clientInfo":{"name":"c"}}')
    assert stamp.of(long, b"9") == b'{"progressToken":9}'
    assert stamp.own() == b""
    both = CallFrame(1, "tools/call", b"{}", meta=b'{"traceparent" : "00"}', wants_progress=True)
    assert stamp.of(both, b"9") == b'{"progressToken":9,"traceparent" : "00"}'


def test_a_modern_server_gets_the_client_that_made_the_request() -> None:
    caller = (
        b'{"clientInfo":{"name":"c","x":1.0},"clientCapabilities":{"roots":{}},"logLevel":"info"}'
    )
    call = CallFrame(1, "tools/call", b"{}", meta=b'{"v/x":2}', caller=caller, wants_progress=True)
    assert json.loads(MetaBuilder(MODERN, "1.0").of(call, b"9")) == {
        PREFIX + "protocolVersion": MODERN,
        PREFIX + "clientInfo": {"name": "c", "x": 1.0},
        PREFIX + "clientCapabilities": {"roots": {}},
        PREFIX + "logLevel": "info",
        "progressToken": 9,
        "v/x": 2,
    }


@pytest.mark.parametrize("caller", [b"", b"{}", b"[]", b"nonsense"])
def test_without_a_client_the_gateway_names_itself(caller: bytes) -> None:
    call = CallFrame(1, "completion/complete", b"{}", caller=caller)
    stamp = MetaBuilder(MODERN, "1.0")
    assert json.loads(stamp.of(call, b"9")) == {
        PREFIX + "protocolVersion": MODERN,
        PREFIX + "clientInfo": {"name": "metamcp", "version": "1.0"},
        PREFIX + "clientCapabilities": {},
    }
    assert stamp.of(call, b"9") == stamp.own()


def test_many_clients_do_not_fill_the_memory_of_stamps() -> None:
    stamp = MetaBuilder(MODERN, "1.0")
    for number in range(1000):
        caller = b'{"clientInfo":{"name":"%d"}}' % number
        assert b'"%d"' % number in stamp.of(CallFrame(1, "x", b"", caller=caller), b"1")


def test_a_cancellation_names_the_request_and_the_reason() -> None:
    assert json.loads(jsonrpc_lines.build_cancel_notification(b"12", b"changed my mind")) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 12, "reason": "changed my mind"},
    }


@pytest.mark.parametrize("meta", [b"", b"[]", b'{"io.modelcontextprotocol/serverInfo":3}', b"{}"])
def test_a_server_without_a_description_has_an_empty_one(meta: bytes) -> None:
    assert bytes(jsonrpc_lines.server_info(meta)) == b"{}"
