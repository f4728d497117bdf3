"""What is seen of a message that nobody reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import ENDS_BYTES, ScannedId, glimpse

FILL = b'"x":"' + b"x" * 2 * ENDS_BYTES + b'"'


@pytest.mark.parametrize(
    ("message", "raw_id", "answer"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{%b}}', b"7", False),
        (b'{"method":"m","params":{%b},"jsonrpc":"2.0","id":7}', b"7", False),
        (b'{"method":"m","params":{%b}, "id": "a\\"b", "jsonrpc": "2.0" } \r', b'"a\\"b"', False),
        (b'{"method":"m","params":{%b},"id":-7}', b"-7", False),
        (b'{"jsonrpc":"2.0","id":7,"result":{%b}}', b"7", True),
        (b'{"id":"q","jsonrpc":"2.0","error":{%b}}', b'"q"', True),
        (b'{"result":{%b},"jsonrpc":"2.0","id":7}', b"7", True),
        (b'{"method":"m","params":{%b,"id":7}}', b"", False),
        (b'{"method":"m","params":{"id":7,%b}}', b"", False),
        (b'{"method":"m","params":{%b,"t":",\\"id\\":7}"}}', b"", False),
        (b'{"method":"m","params":{%b},"x":"y,\\"id\\":7}"}', b"", False),
        (b"[%b", b"", False),
    ],
)
def test_an_id_is_seen_where_it_can_be_nothing_else(
    message: bytes, raw_id: bytes, answer: bool
) -> None:
    whole = message % FILL
    assert glimpse(whole, whole) == ScannedId(raw_id, answer)


KEYS = st.sampled_from(["id", "jsonrpc", "method", "params", "result", "x"])
LEAVES = st.one_of(st.integers(), st.text(), st.sampled_from(["2.0", ',"id":7}', '"id":7,']))
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=9)


@given(st.dictionaries(KEYS, TREES))
def test_what_is_seen_is_never_of_something_inside(message: dict[str, object]) -> None:
    raw = codec.dump(message)
    seen = glimpse(raw, raw)
    assert not seen.raw_id or codec.value(seen.raw_id) == message["id"]
