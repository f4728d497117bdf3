"""Requests and results as a hook has them."""

import json

import pytest
from msgspec import Raw

from metamcp_worker.middleware.api import (
    CallFailed,
    HookRequest,
    PromptResult,
    ResourceResult,
    ToolResult,
    UnclearArguments,
)

RAW = (
    b'{ "content": [{"type":"text","text":"a"},{"type":"image","data":"aa","mimeType":"a"},'
    b'{"type":"resource","resource":{"uri":"a","text":"a"}}],'
    b'"structuredContent": {"a": ["a", 1, {"b": "a"}]}, "later": "a" }'
)


def test_what_is_only_looked_at_stays_the_same_bytes() -> None:
    result = ToolResult(RAW)
    assert (result.content[0]["text"], result.structured["a"][1], result.is_error) == (
        "a",
        1,
        False,
    )
    assert result.raw == RAW
    assert result.map_text(lambda text: text) is result


def test_each_text_is_changed_and_nothing_else() -> None:
    found = json.loads(ToolResult(RAW).map_text(str.upper).raw)
    assert found == {
        "content": [
            {"type": "text", "text": "A"},
            {"type": "image", "data": "aa", "mimeType": "a"},
            {"type": "resource", "resource": {"uri": "a", "text": "A"}},
        ],
        "structuredContent": {"a": ["A", 1, {"b": "A"}]},
        "later": "a",
    }
    prompt = PromptResult(b'{"messages":[{"role":"user","content":{"type":"text","text":"a"}}]}')
    assert prompt.map_text(str.upper).messages[0]["content"]["text"] == "A"
    resource = ResourceResult(b'{"contents":[{"uri":"a","text":"a"},{"uri":"a","blob":"a"}]}')
    found = resource.map_text(str.upper).contents
    assert found == [{"uri": "a", "text": "A"}, {"uri": "a", "blob": "a"}]


def test_a_change_in_place_counts_too() -> None:
    result = ToolResult(RAW)
    result.content[0]["text"] = "b"
    assert json.loads(result.raw)["content"][0]["text"] == "b"
    request = HookRequest(server="s", name="t", arguments=Raw(b'{"a": 1}'))
    request.arguments["a"] = 2
    assert bytes(request.raw_arguments) == b'{"a":2}'


def test_a_result_of_its_own() -> None:
    result = ToolResult.of_text("no", is_error=True)
    assert (result.content, result.is_error) == ([{"type": "text", "text": "no"}], True)
    assert result.structured is None
    assert result.replace(structuredContent={"a": 1}).structured == {"a": 1}


def test_a_request_says_who_sends_what() -> None:
    request = HookRequest(
        server="s", name="t", arguments=Raw(b'{ "a": "b", "n": 1 }'), endpoint="e", workspace="w",
        annotations=Raw(b'{"readOnlyHint":true}'), principal="p",
        caller=Raw(b'{"clientInfo":{"name":"c","version":"1"}}'),
    )  # fmt: skip
    assert request.arguments == {"a": "b", "n": 1}
    assert (request.client, request.annotations) == (
        {"name": "c", "version": "1"},
        {"readOnlyHint": True},
    )
    assert bytes(request.raw_arguments) == b'{ "a": "b", "n": 1 }'
    assert request.map_text(lambda text: text) is request
    other = request.map_text(str.upper)
    assert other.arguments == {"a": "B", "n": 1}
    told = [(one.server, one.name, one.endpoint, one.principal) for one in (request, other)]
    assert told[0] == told[1]
    assert other.annotations == request.annotations


@pytest.mark.parametrize("raw", [b"null", b"[]", b"7", b'{"clientInfo":[]}'])
def test_values_that_are_no_objects_are_empty(raw: bytes) -> None:
    request = HookRequest(server="s", name="t", arguments=Raw(b"[]"), caller=Raw(raw))
    assert (request.arguments, request.client, request.annotations) == ({}, {}, {})
    assert ToolResult(b"[]").content == []


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"cmd":"ls","cmd":"rm"}', "an object has a name twice"),
        (rb'{"cmd":"ls \ufdd0;rm \ufdd0 -rf /x \ud83d"}', "a text has half of a surrogate pair"),
        (b'{"cmd":%b"\\ud83d"%b}' % (b"[" * 900, b"]" * 900), "half of a surrogate pair"),
    ],
)
def test_arguments_that_readers_take_differently_are_neither_read_nor_passed_on(
    raw: bytes, why: str
) -> None:
    request = HookRequest(server="s", name="t", arguments=Raw(raw))
    assert bytes(request.raw_arguments) == raw, "a hook that does not read them passes them on"
    for _ in range(2):
        with pytest.raises(UnclearArguments, match=why):
            assert request.arguments
    with pytest.raises(UnclearArguments):
        assert request.raw_arguments
    assert bytes(request.with_arguments({"cmd": "ls"}).raw_arguments) == b'{"cmd":"ls"}'


def test_an_error_has_its_code_and_its_sentence() -> None:
    error = CallFailed(b'{"code":-32602,"message":"no such tool"}')
    assert (error.code, error.message, str(error)) == (-32602, "no such tool", "no such tool")
