"""The codec: what is only forwarded stays the bytes it was."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.codec import Malformed


class Holder(Struct, frozen=True):
    raw: Raw
    text: str


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=6), json_values, max_size=5)


@given(objects)
def test_a_level_written_again_keeps_order_and_every_value(data: dict[str, Any]) -> None:
    raw = json.dumps(data).encode()
    again = codec.dump(codec.level(raw))
    assert list(json.loads(again).items()) == list(data.items())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"a"'])
def test_what_is_no_object_has_no_members(data: bytes) -> None:
    assert codec.members(data) == codec.members(Raw(data)) == {}
    assert codec.members(b'{"a": [1]}') == {"a": Raw(b"[1]")}


def test_numbers_that_python_cannot_hold_stay_as_they_are() -> None:
    raw = b'{"a":123456789012345678901234567890,"b":1.0,"c":1e400,"d":-0.0}'
    assert codec.dump(codec.level(raw)) == raw


@given(objects, objects)
def test_splice_adds_members_and_leaves_the_rest(
    data: dict[str, Any], extra: dict[str, Any]
) -> None:
    extra = {key: item for key, item in extra.items() if key not in data}
    raws = {key: json.dumps(item).encode() for key, item in extra.items()}
    spliced = codec.splice(json.dumps(data).encode(), raws)
    assert json.loads(spliced) == {**extra, **data}


@pytest.mark.parametrize("raw", [b"{}", b"{ }", b" {\n} "])
def test_splice_into_an_empty_object_is_an_object(raw: bytes) -> None:
    assert codec.splice(raw, {"a": b"1"}) == b'{"a":1}'


@pytest.mark.parametrize(
    "raw",
    [
        *(b'"a"', b'""', b"0", b"-1", b"9007199254740993", b"-9223372036854775809"),
        *(b"1" * 256, b'"' + b"x" * 254 + b'"'),
    ],
)
def test_strings_and_integers_are_ids(raw: bytes) -> None:
    assert codec.id_ok(raw)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"null", b"true", b"1.5", b"1.0", b"1e3", b"[]", b"{}", b"01", b"1 "),
        *(b"1" * 257, b'"' + b"x" * 255 + b'"'),
    ],
)
def test_nothing_else_is_an_id(raw: bytes) -> None:
    assert not codec.id_ok(raw)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"[]", b"NaN", b"\xff", b"\xef\xbb\xbf{}", b'{"id":1}x', b"[" * 200_000),
        *(b'{"params":' * 100_000, b'{"method":1}'),
    ],
)
def test_what_is_no_message_is_malformed_and_never_worse(raw: bytes) -> None:
    with pytest.raises(Malformed):
        codec.envelope(raw)


def test_absent_members_of_an_envelope_are_empty() -> None:
    found = codec.envelope(b'{"jsonrpc":"2.0","result":null}')
    assert (bytes(found.id), found.method, bytes(found.result)) == (b"", None, b"null")


HALVES = [
    rb'"ok \ud83d"',
    rb'"\uDE00 at the start, \ud83d\ude00 whole"',
    rb'"\ud83d\ud83d\ude00\ude00\\\ud83d"',
    rb'"\n\ud83d\"\ude00\\ud83d"',
    b'"\xef\xb7\x90d83d\xef\xb7\x90 \\ud83d"',
]


@pytest.mark.parametrize("raw", HALVES)
def test_half_of_a_surrogate_pair_stays_the_bytes_it_is_and_is_replaced_where_it_is_read(
    raw: bytes,
) -> None:
    message = b'{"jsonrpc":"2.0","id":1,"result":{"a":[%b],"b": 1.0}}' % raw
    result = codec.envelope(message).result
    assert bytes(result) == b'{"a":[%b],"b": 1.0}' % raw
    members = codec.level(result)
    assert bytes(members["a"]) == b"[%b]" % raw
    assert [bytes(one) for one in codec.items(members["a"])] == [raw]
    codec.check(result)
    assert bytes(codec.decode_as(Holder, b'{"raw":%b,"text":%b}' % (raw, raw)).raw) == raw
    units = str(json.loads(raw)).encode("utf-16-le", "surrogatepass")
    read = units.decode("utf-16-le", "replace")
    assert codec.text(raw) == read
    assert codec.decode_as(Holder, b'{"raw":%b,"text":%b}' % (raw, raw)).text == read
    assert list(codec.level(b"{%b:1}" % raw)) == [read]


@pytest.mark.parametrize("mark", [rb"\ufdd0", rb"\uFDD0", b"\xef\xb7\x90"])
def test_what_stands_between_two_marks_is_read_as_it_is(mark: bytes) -> None:
    raw = b'"%b;rm %b \\ud83d"' % (mark, mark)
    assert codec.text(raw) == "\ufdd0;rm \ufdd0 \ufffd"
    assert list(codec.level(b"{%b:1}" % raw)) == ["\ufdd0;rm \ufdd0 \ufffd"]


def test_half_of_a_surrogate_pair_deep_inside_is_read_or_malformed() -> None:
    raw = b'%b"\\ud83d"%b' % (b"[" * 900, b"]" * 900)
    with suppress(Malformed):  # Python has fewer levels than machine code
        assert str(codec.value(raw)).count("[") == 900
    assert bytes(codec.level(b'{"a":%b}' % raw)["a"]) == raw


@pytest.mark.parametrize(
    "raw",
    [rb'{"a":"\ud83d",}', rb'{"a":"\ud83d"}}', rb'{"a":"\ud83"}', b'{"a":"\0\\ud83d"}',
     b'{"a":"%b"}' % (rb"\ud83d" * (codec.HALVES_MAX + 1))],
)  # fmt: skip
def test_half_of_a_surrogate_pair_excuses_nothing_else(raw: bytes) -> None:
    with pytest.raises(codec.Malformed):
        codec.level(raw)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":{"id":8,"result":{}}}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"t":"\xc3\xa4,\\"result\\":{}}"}}',
        b'{"result":{"a":{}},"jsonrpc":"2.0","id":7}',
        b'{"result":{"a":{"b":1,"jsonrpc":"2.0","id":8}},"jsonrpc":"2.0","id":7}',
    ],
)
def test_a_plain_answer_is_read_as_its_envelope_is(line: bytes) -> None:
    found = codec.envelope(line)
    assert codec.plain_answer(line) == (bytes(found.id), bytes(found.result))


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":07,"result":{}}',
        b'{"jsonrpc":"2.0","id":"7","result":{}}',
        b'{"jsonrpc":"2.0","id":7,"x":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":{},"error":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":{}}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":}}',
        b'{"jsonrpc":"2.0","id":7,"result":null}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":{}}',
        b'{"jsonrpc":"2.0","id":7,"error":{}}',
        b'{"jsonrpc":"2.0","id":7}',
        b'{"result":{},"jsonrpc":"2.0","id":7,"x":1}',
        b'{"result":{},"result":{},"jsonrpc":"2.0","id":7}',
        b'{"result":{"a":{},"jsonrpc":"2.0","id":7}}',
        b'{"result":{"jsonrpc":"2.0","id":7}',
        b'{"result":{},"id":7}',
        b'{"result":}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":"%b"}}' % (b"x" * codec.KNOWN_BODY_BYTES_MAX),
        b"",
    ],
)
def test_any_other_answer_is_not_a_plain_one(line: bytes) -> None:
    assert codec.plain_answer(line) == (b"", b"")
