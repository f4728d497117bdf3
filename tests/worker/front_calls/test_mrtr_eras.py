"""What an answer becomes for a client of the other era, with values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.jsonrpc_bytes import convert_answer


@pytest.mark.promise("M22")
@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("tools/call", b'{"content":[]}', b'{"resultType":"complete","content":[]}'),
        ("tools/call", b"{}", b'{"resultType":"complete"}'),
        ("tools/call", b'{"resultType":"x"}', b'{"resultType":"x"}'),
        (
            "tools/call",
            b'{"content":["resultType"]}',
            b'{"resultType":"complete","content":["resultType"]}',
        ),
        ("prompts/get", b'{"x": 1.0}', b'{"resultType":"complete","x": 1.0}'),
        ("tools/call", b'[{"isError":true}]', b'[{"isError":true}]'),
        ("tools/call", b'[{"resultType":1}]', b'[{"resultType":1}]'),
        (
            "resources/read",
            b'{"contents":[]}',
            b'{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}',
        ),
        (
            "resources/read",
            b'{"ttlMs":5}',
            b'{"resultType":"complete","cacheScope":"private","ttlMs":5}',
        ),
    ],
)
def test_results_of_legacy_servers_get_what_a_modern_client_needs(
    method: str, body: bytes, expected: bytes
) -> None:
    assert convert_answer(method, body, 0, modern=True) == (expected, 0)


@pytest.mark.promise("M22")
@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        (
            "tools/call",
            b'{"content": [1.0],"structuredContent" : [1],"x":{ }}',
            b'{"content":[1.0],"x":{ }}',
        ),
        ("tools/call", b'{"structuredContent":null,"x":1}', b'{"x":1}'),
        ("tools/call", b'{"structuredContent": {"a" : 1}}', None),
        ("tools/call", b'{"resultType":"complete","content":[]}', None),
        ("tools/call", b'{"x":{"structuredContent":[1]}}', None),
        ("tools/call", b'["structuredContent",{"structuredContent":1}]', None),
        ("x/custom", b'{"structuredContent":[1]}', None),
    ],
)
def test_results_of_modern_servers_lose_what_a_legacy_client_refuses(
    method: str, body: bytes, expected: bytes | None
) -> None:
    assert convert_answer(method, body, 0, modern=False) == (expected or body, 0)


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("method", "modern", "code", "expected"),
    [
        ("resources/read", True, -32002, -32602),
        ("resources/subscribe", True, -32002, -32602),
        ("resources/read", False, -32602, -32002),
        ("tools/call", False, -32602, -32602),
        ("resources/read", True, -32602, -32602),
        ("tools/call", True, -32042, -32042),
        ("resources/read", False, -32603, -32603),
    ],
)
def test_a_missing_resource_has_the_code_of_the_clients_era(
    method: str, modern: bool, code: int, expected: int
) -> None:
    body = b'{"code":%d,"message":"gone","data":{"uri":"r:"},"x":1.0}'
    assert convert_answer(method, body % code, code, modern=modern) == (body % expected, expected)


def test_an_error_that_is_no_object_keeps_its_code() -> None:
    assert convert_answer("resources/read", b"[]", -32002, modern=True) == (b"[]", -32002)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(["structuredContent", "resultType", "ttlMs", "cacheScope", "content"])


@given(
    st.dictionaries(KEYS | st.text(max_size=3), JSON),
    st.sampled_from(["tools/call", "resources/read"]),
    st.booleans(),
)
def test_any_result_keeps_everything_else(
    members: dict[str, object], method: str, modern: bool
) -> None:
    body, code = convert_answer(method, codec.dump(members), 0, modern=modern)
    found = codec.value(body)
    assert code == 0
    if modern:
        assert found == {**found, **members}
        assert set(found) - set(members) <= {"resultType", "ttlMs", "cacheScope"}
        assert "resultType" in found
    elif method == "tools/call" and not isinstance(members.get("structuredContent", {}), dict):
        assert found == {k: v for k, v in members.items() if k != "structuredContent"}
    else:
        assert body == codec.dump(members)
