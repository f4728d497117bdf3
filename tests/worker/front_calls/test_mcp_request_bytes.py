"""The bytes that go to a client, and those that come from one, without a socket."""

import contextlib
import json

import pytest
from hypothesis import given, settings, strategies

from metamcp_worker.front_calls import mcp_request
from metamcp_worker.http.request_head import Head
from metamcp_worker.ipc import codec, jsonrpc_bytes
from metamcp_worker.ipc.errors import Code, ProtocolError


@pytest.mark.promise("M22")
def test_results_and_errors_stay_the_bytes_they_are() -> None:
    body = b'{"a": 1.0,\n "b":[ ]}'
    assert (
        jsonrpc_bytes.result(b'"7"', body) == b'{"jsonrpc":"2.0","id":"7","result":' + body + b"}"
    )
    assert jsonrpc_bytes.raw_error(b"7", body) == b'{"jsonrpc":"2.0","id":7,"error":' + body + b"}"


def test_an_error_carries_its_data_as_it_is() -> None:
    why = ProtocolError(Code.INVALID_PARAMS, 'No "x"', b'{"n": 1.0}')
    expected = (
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"No \\"x\\"","data":'
        b'{"n": 1.0}}}'
    )
    assert jsonrpc_bytes.pack_refusal(jsonrpc_bytes.NO_ID, why) == expected
    assert b"data" not in jsonrpc_bytes.error(b"1", -32603, "x")


def test_an_event_is_one_line_whatever_stands_between_the_tokens() -> None:
    event = jsonrpc_bytes.event(b'{"a":\r\n1,"b":"\\n"}')
    assert event == b'event: message\ndata: {"a":  1,"b":"\\n"}\n\n'


def test_progress_bears_the_clients_own_token() -> None:
    sent = codec.value(jsonrpc_bytes.progress(b'"p\\u0031"', b'{"progress":1,"total":2.5}'))
    assert sent == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "p1", "progress": 1, "total": 2.5},
    }


def test_names_of_members_may_stand_in_parameters_as_often_as_they_like() -> None:
    params = b'{"id":1,"method":"x","params":{"id":[{"id":2}]},"s":"\\"id\\":\\\\"}'
    message = mcp_request.read(b'{"id":1,"jsonrpc":"2.0","params":%b,"method":"m"}' % params)
    assert (bytes(message.id), message.method, bytes(message.params)) == (b"1", "m", params)


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"m","id":1}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"id":1},"i\\u0064":2,"x":{"id":1}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":{"id":1}},"params":{"id":1}}',
        b'{"jsonrpc":"2.0","id":1,"params":{},"method":"m","x":[{"method":1}],"method":"m"}',
        rb'{"jsonrpc":"2.0","id":1,"method":"m","\u0069d":2}',
        rb'{"jsonrpc":"2.0","id":1,"m\u0065thod":"x","params":{"a":"\u0065"},"method":"m"}',
        rb'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1},"\u0070arams":{"a":2}}',
    ],
)
def test_a_member_that_comes_twice_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        mcp_request.read(body)
    assert refused.value.code == Code.INVALID_REQUEST


@pytest.mark.promise("M98")
def test_what_stands_beside_the_parameters_is_not_searched_for_long() -> None:
    head = b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b,"x":[%b]}'
    large = b'{"id":1},' * 10_000 + b"1"
    with pytest.raises(ProtocolError) as refused:
        mcp_request.read(head % (b"{}", large))
    assert refused.value.code == Code.INVALID_REQUEST
    assert mcp_request.read(head % (b'{"x":[%b]}' % large, b"")).method == "m"


@pytest.mark.parametrize("raw_id", [b"0", b"-1", b"9007199254740993", b'"a"', b'""', b'"\\u00e4"'])
def test_every_allowed_id_is_kept_as_it_is(raw_id: bytes) -> None:
    assert bytes(mcp_request.read(b'{"jsonrpc":"2.0","method":"m","id":%b}' % raw_id).id) == raw_id


def test_parameters_are_split_from_their_meta() -> None:
    message = mcp_request.read(
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"b":1.0,"_meta":{"x":[ ]},"a":null}}'
    )
    params, meta = mcp_request.parameters(message)
    assert {key: bytes(raw) for key, raw in params.items()} == {"b": b"1.0", "a": b"null"}
    assert {key: bytes(raw) for key, raw in meta.items()} == {"x": b"[ ]"}
    assert list(params) == ["b", "a"]
    for empty in (b"{}", b"null"):
        body = b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % empty
        assert mcp_request.parameters(mcp_request.read(body)) == ({}, {})


def test_a_method_may_have_many_characters_but_not_too_many_bytes() -> None:
    for method, good in (("m" * 256, True), ("ä" * 128, True), ("ä" * 129, False)):
        body = codec.dump({"jsonrpc": "2.0", "id": 1, "method": method})
        if good:
            assert mcp_request.read(body).method == method
        else:
            with pytest.raises(ProtocolError):
                mcp_request.read(body)


ENVELOPES = (
    b'{"jsonrpc":"2.0","id":%(id)b,"method":"tools/call","params":%(params)b}',
    b'{"method":"tools/call","params":%(params)b,"jsonrpc":"2.0","id":%(id)b}',
    b' {"id": %(id)b,"jsonrpc" :"2.0", "x":[{}],"params": %(params)b,"method":"tools/call"}\n',
    b'{"id":%(id)b,"x":{"params":{}},"p\\u0061rams":%(params)b,"jsonrpc":"2.0","method":"tools/call"}',
    b'{"x":{"id":%(id)b},"params":%(params)b,"jsonrpc":"2.0","i\\u0064":7,"method":"tools/call"}',
)
IDS = (b"7", b"0", b"07", b"-1", b"1" * 18, b"1" * 19, b'"7"', b"1.5", b"", b"7,", b"\xb2")
PARAMS = (
    b"{}", b'{"name":"t"}', b'{"id":1,"params":{"method":2}}', b'{"a":"\xc3\xa4"}', b'{"a":"\xe4"}',
    b"[]", b"null", b"1", b"", b"{", b"{}}", b'{},"id":8', b'{},"method":"ping"',
    b'{"a":1},"params":{}',
    b'{"jsonrpc":"2.0","id":', b'{},"jsonrpc":"2.0","id":9', b'{"a":",\\"method\\":"}', b" {} ",
    b'{"a":"%b"}' % (b"x" * codec.KNOWN_BODY_BYTES_MAX),
)  # fmt: skip


def outcome(body: bytes, head: Head | None) -> object:
    """What a reader finds in this body: the members of the message, or the error."""
    try:
        read = mcp_request.read(body) if head is None else mcp_request.read_again(body, head)
        params, meta = mcp_request.parameters(read)
    except ProtocolError as why:
        return why.code, why.message
    return read.jsonrpc, bytes(read.id), read.method, bytes(read.params).strip(), params, meta


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_an_envelope_that_comes_again_is_read_as_if_it_were_the_first(envelope: bytes) -> None:
    first = envelope % {b"id": b"12", b"params": b'{"name":"t","arguments":{}}'}
    for other in ENVELOPES:
        for raw_id in IDS:
            for params in PARAMS:
                head = Head("POST", b"/mcp", [])
                mcp_request.read_again(first, head)
                body = other % {b"id": raw_id, b"params": params}
                assert outcome(body, head) == outcome(body, None), body


def test_most_envelopes_are_decoded_once() -> None:
    for envelope in ENVELOPES[:3]:
        first = envelope % {b"id": b"1", b"params": b"{}"}
        known = codec.known_envelope(first, mcp_request.read(first))
        assert known is not None
        again = known.request(envelope % {b"id": b"23", b"params": b'{"name":"t"}'})
        assert again is not None
        assert (bytes(again.id), again.method) == (b"23", "tools/call")


JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
    max_leaves=8,
)
MEMBERS = strategies.sampled_from(["jsonrpc", "id", "method", "params", "result", "x"])


@pytest.mark.promise("M98")
@settings(deadline=None, database=None)
@given(strategies.lists(strategies.tuples(MEMBERS, JSON), max_size=6))
def test_whatever_passes_is_read_alike_by_the_standard_library(
    members: list[tuple[str, object]],
) -> None:
    members = [("jsonrpc", "2.0"), *members]
    text = ",".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in members)
    try:
        message = mcp_request.read(f"{{{text}}}".encode())
    except ProtocolError:
        return
    theirs = json.loads(f"{{{text}}}")
    assert message.method == theirs.get("method")
    for name in ("id", "method", "params"):
        assert [other for other, _ in members].count(name) <= 1
    if "id" in theirs:
        assert isinstance(theirs["id"], int | str)
        assert json.loads(bytes(message.id)) == theirs["id"]


@pytest.mark.promise("M98")
@settings(deadline=None, database=None)
@given(strategies.binary(max_size=64))
def test_no_bytes_do_worse_than_being_refused(body: bytes) -> None:
    for made in (body, b'{"jsonrpc":"2.0","id":' + body, b'{"method":"' + body + b'"}'):
        with contextlib.suppress(ProtocolError):
            mcp_request.parameters(mcp_request.read(made))
