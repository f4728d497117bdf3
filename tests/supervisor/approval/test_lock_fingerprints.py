"""The fingerprint of a definition moves when it says something else, and only then."""

import hashlib
import json
from typing import Any

import pytest

from metamcp_supervisor.approval.lock import (
    DEPTH_MAX,
    MEMBERS,
    Ambiguous,
    canonical,
    fingerprint,
    number,
    read_definition,
    same,
)
from metamcp_worker.ipc.codec import Malformed

PLAIN = b'{"name":"add","inputSchema":{"type":"object","properties":{"a":{"minimum":1}}}}'


@pytest.mark.parametrize(
    "other",
    [
        b'{"inputSchema":{"properties":{"a":{"minimum":1}},"type":"object"},"name":"add"}',
        b'{ "name" : "add",\n"inputSchema":{"type":"object","properties":{"a":{"minimum":1.0}}}}',
        b'{"name":"\\u0061dd","inputSchema":{"type":"object","properties":{"a":{"minimum":1e0}}}}',
        b'{"name":"add","_meta":{"at":1},"x-of-a-program":2,' + PLAIN[len(b'{"name":"add",') :],
    ],
)
def test_another_way_to_write_it_is_the_same_definition(other: bytes) -> None:
    assert fingerprint(other) == fingerprint(PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"add"', b'"add\xe2\x80\x8b"'),  # a space without width
        (b'"add"', b'"Add"'),
        (b'"minimum":1', b'"minimum":true'),
        (b'"minimum":1', b'"minimum":"1"'),
        (b'"minimum":1', b'"minimum":1.0000000000000002'),
        (b'"minimum":1', b'"minimum":9007199254740993'),
        (b'"minimum":1', b'"minimum":null'),
        (b'{"name"', b'{"title":null,"name"'),
        (b'{"name"', b'{"annotations":{},"name"'),
    ],
)
def test_every_difference_that_counts_moves_it(old: bytes, new: bytes) -> None:
    assert fingerprint(PLAIN.replace(old, new, 1)) != fingerprint(PLAIN)


def test_long_numbers_that_a_double_makes_alike_are_told_apart() -> None:
    one, other = (
        PLAIN.replace(b'"minimum":1', b'"minimum":%d' % value) for value in (2**53, 2**53 + 1)
    )
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("member", MEMBERS)
def test_each_member_that_counts_does(member: str) -> None:
    whole: dict[str, Any] = {"name": "a", "inputSchema": {}}
    assert fingerprint(json.dumps(whole | {member: "x"}).encode()) != fingerprint(
        json.dumps(whole | {member: "y"}).encode()
    )


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"name":1e400}',
        b'{"name":' + b"9" * 5000 + b"}",
        b'{"name":"a","name":"b"}',
        b'{"inputSchema":{"a":1,"a":1}}',
        b'{"name":NaN}',
        b'{"inputSchema":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"inputSchema":' + b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1) + b"}",
    ],
)
def test_what_has_no_one_reading_goes_by_its_bytes(broken: bytes) -> None:
    assert fingerprint(broken) == "raw:" + hashlib.sha256(broken).hexdigest()


def test_a_member_that_is_there_twice_is_no_reading_that_all_programs_share() -> None:
    with pytest.raises(Ambiguous, match="has a member twice"):
        read_definition(b'{"description":"what one sees","description":"what another sees"}')
    with pytest.raises(Malformed, match="is not a JSON object"):
        read_definition(b"[1]")


def test_the_spelling_is_that_of_rfc_8785() -> None:
    """The examples of its section 3.2 and appendix B, but for whole numbers beyond 2^53."""
    keys = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\xf6": 7}
    assert [*json.loads(canonical(keys))] == [
        "\r",
        "1",
        "\x80",
        "\xf6",
        "\u20ac",
        "\U0001f600",
        "\ufb33",
    ]
    text = '\u20ac$\u000f\nA\'B"\\\\"/'
    assert canonical(text) == '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()
    numbers = {
        333333333.33333329: "333333333.3333333", 4.50: "4.5", 2e-3: "0.002", 1e-27: "1e-27",
        1e-6: "0.000001", 1e-7: "1e-7", -1.5e-5: "-0.000015", 5e-324: "5e-324", -0.0: "0",
        1e21: "1" + "0" * 21,
    }  # fmt: skip
    assert {value: number(value) for value in numbers} == numbers
    nothing: list[Any] = [None, True, [], {}]
    assert canonical(nothing) == b"[null,true,[],{}]"


def test_true_is_not_one() -> None:
    assert not same({"a": [True]}, {"a": [1]})
    assert same({"a": [1.0], "b": 2}, {"b": 2, "a": [1]})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}])
def test_what_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(Ambiguous):
        canonical(value)
