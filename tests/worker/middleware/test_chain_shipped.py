"""The middleware that is shipped: redaction, cache and filter."""

import asyncio
import json
import time
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.middleware.api import HookRequest, PromptResult, ResourceResult, ToolResult
from metamcp_worker.middleware.cache import Cache
from metamcp_worker.middleware.filter import Filter
from metamcp_worker.middleware.redaction import Redaction

ESCAPE = "\x1b"


class Server:
    """What is within. `calls`: arguments that came; `result`: its answer."""

    def __init__(self, result: ToolResult | PromptResult | ResourceResult) -> None:
        self.result = result
        self.calls: list[dict[str, Any]] = []

    async def __call__(self, request: HookRequest) -> Any:
        self.calls.append(request.arguments)
        return self.result


def request(arguments: object = None, **members: Any) -> HookRequest:
    raw = Raw(codec.dump({} if arguments is None else arguments))
    known: dict[str, Any] = {"server": "s", "name": "t", "arguments": raw}
    return HookRequest(**{**known, **members})


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("write to ann.o'hara@mail.example.org, now", "write to ann.o'[email], now"),
        ("a@b and user@localhost", "a@b and user@localhost"),
        ("pay DE89 3704 0044 0532 0130 00 soon", "pay [iban] soon"),
        ("DE89370400440532013000", "[iban]"),
        ("DE88370400440532013000", "DE88370400440532013000"),
        ("card 4111 1111 1111 1111.", "card [card]."),
        ("card 4111-1111-1111-1112", "card 4111-1111-1111-1112"),
        ("order 12345678901234567890123", "order 12345678901234567890123"),
        ("call +49 (30) 901820 or 00441632960961", "call [phone] or [phone]"),
        ("call (415) 555-2671 or 415-555-2671", "call [phone] or [phone]"),
        ("2026-11-27 12:00:00, 192.168.100.200, 1.234.567", None),
        ("3f2504e0-4f89-11d3-9a0c-0305e82c3301 at 1700000000000", None),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: ***"),
        ("key sk-abcdefghijklmnop1234", "key ***"),
    ],
)
def test_redaction_hides_what_it_knows(text: str, hidden: str | None) -> None:
    assert Redaction({}).text(text) == (text if hidden is None else hidden)


async def test_redaction_is_for_results_of_every_kind_and_for_arguments_if_wanted() -> None:
    mail = "a@b.example"
    server = Server(ToolResult.of_text(mail))
    found = await Redaction({}).on_call_tool(request({"to": mail}), server)
    assert (found.content[0]["text"], server.calls) == ("[email]", [{"to": mail}])
    await Redaction({"arguments": True}).on_call_tool(request({"to": [mail]}), server)
    assert server.calls[1] == {"to": ["[email]"]}
    some = Redaction({"kinds": ["card"]})
    assert await some.on_call_tool(request(), server) is server.result
    content = {"role": "user", "content": {"type": "text", "text": mail}}
    prompt = Server(PromptResult(codec.dump({"messages": [content]})))
    told = await Redaction({}).on_get_prompt(request(), prompt)
    assert told.messages[0]["content"]["text"] == "[email]"
    resource = Server(ResourceResult(codec.dump({"contents": [{"uri": "u", "text": mail}]})))
    read = await Redaction({}).on_read_resource(request(), resource)
    assert read.contents == [{"uri": "u", "text": "[email]"}]


@pytest.mark.parametrize("text", ["a" * 200_000, "1 " * 100_000, "A1" * 100_000, "+1" * 100_000,
                                  ESCAPE * 200_000, f"{ESCAPE}]" * 100_000])  # fmt: skip
def test_long_texts_take_little_time(text: str) -> None:
    result = ToolResult.of_text(text)
    began = time.process_time()
    result.map_text(Redaction({}).text)
    asyncio.run(Filter({}).on_call_tool(request(), Server(result)))
    assert time.process_time() - began < 2


READS = Raw(b'{"readOnlyHint":true}')


async def test_a_cache_answers_the_same_call_of_the_same_caller_for_some_time() -> None:
    now = [0.0]
    cache, server = Cache({"ttl": "10s"}, lambda: now[0]), Server(ToolResult.of_text("a"))

    async def calls(arguments: object, **members: Any) -> int:
        asked = request(arguments, **{"annotations": READS, **members})
        result = await cache.on_call_tool(asked, server)
        assert result.content[0]["text"] == "a"
        return len(server.calls)

    assert await calls({"a": 1, "b": 2}) == 1
    assert await calls({"b": 2, "a": 1}) == 1
    assert await calls({"b": 3, "a": 1}) == 2
    for other in ("principal", "endpoint", "workspace", "name", "server"):
        before = len(server.calls)
        assert await calls({"a": 1, "b": 2}, **{other: "other"}) == before + 1
    count = len(server.calls)
    now[0] = 9.9
    assert await calls({"a": 1, "b": 2}) == count
    now[0] = 10.0
    assert await calls({"a": 1, "b": 2}) == count + 1
    cache.on_lists_changed("elsewhere")
    assert await calls({"a": 1, "b": 2}) == count + 1
    cache.on_lists_changed("s")
    assert await calls({"a": 1, "b": 2}) == count + 2


async def test_a_cache_keeps_neither_failures_nor_what_may_change_something() -> None:
    cache, server = Cache({}), Server(ToolResult.of_text("no", is_error=True))
    for _ in range(2):
        await cache.on_call_tool(request(annotations=READS), server)
    assert len(server.calls) == 2
    server.result = ToolResult.of_text("yes")
    for _ in range(2):
        await cache.on_call_tool(request(), server)
    assert len(server.calls) == 4
    cache = Cache({"read_only": False})
    for _ in range(2):
        await cache.on_call_tool(request(), server)
    assert len(server.calls) == 5


async def test_a_cache_does_not_keep_what_was_asked_before_a_change() -> None:
    cache = Cache({"read_only": False})

    async def changing(_: HookRequest) -> ToolResult:
        cache.on_lists_changed("s")
        return ToolResult.of_text("old")

    server = Server(ToolResult.of_text("new"))
    await cache.on_call_tool(request(), changing)
    assert (await cache.on_call_tool(request(), server)).content[0]["text"] == "new"


async def test_a_cache_is_bounded() -> None:
    server = Server(ToolResult.of_text("a" * 100))

    async def calls(cache: Cache, n: int) -> int:
        await cache.on_call_tool(request({"n": n}), server)
        return len(server.calls)

    few = Cache({"read_only": False, "entries_max": 2})
    assert [await calls(few, n) for n in (1, 2, 1, 3, 1, 2)] == [1, 2, 2, 3, 3, 4]
    small = Cache({"read_only": False, "bytes_max": 1500})
    before = len(server.calls)
    assert [await calls(small, n) - before for n in (*range(12), 0)] == [*range(1, 13), 13]
    assert await calls(small, 11) - before == 13
    tiny = Cache({"read_only": False, "bytes_max": 150})
    before = len(server.calls)
    assert [await calls(tiny, 1) - before for _ in range(2)] == [1, 2]


def filtered(options: dict[str, Any], result: ToolResult) -> ToolResult:
    return asyncio.run(Filter(options).on_call_tool(request(), Server(result)))


VALUE = {"items": [{"id": 1, "secret": "x", "a/b": 1}, {"id": 2, "secret": "y"}], "next": None}


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"drop": ["/items/*/secret", "/next"]},
         {"items": [{"id": 1, "a/b": 1}, {"id": 2}]}),
        ({"drop": ["/items/0"]}, {"items": [{"id": 2, "secret": "y"}], "next": None}),
        ({"keep": ["/items/*/id"]}, {"items": [{"id": 1}, {"id": 2}]}),
        ({"keep": ["/items"], "drop": ["/items/*/secret", "/items/0/a~1b"]},
         {"items": [{"id": 1}, {"id": 2}]}),
        ({"drop": ["/nothing/here"]}, VALUE),
        ({"keep": ["/nothing/here"]}, {}),
    ],
)  # fmt: skip
def test_a_filter_drops_and_keeps_by_pointer_in_values_and_in_texts_that_are_json(
    options: dict[str, Any], left: object
) -> None:
    plain = ToolResult.of_text(json.dumps(VALUE)).replace(structuredContent=VALUE)
    found = filtered(options, plain)
    assert found.structured == left
    assert json.loads(found.content[0]["text"]) == left
    if left == VALUE:
        assert found is plain


def test_a_filter_cuts_long_texts_and_strips_escapes() -> None:
    found = filtered({"text_max": 5}, ToolResult.of_text("abcdefgh"))
    assert found.content[0]["text"] == "abcde… (3 more characters were cut)"
    text = f"{ESCAPE}[31mred{ESCAPE}[0m {ESCAPE}]8;;http://x{ESCAPE}\\link\x07\r\n\tend\x9b1m"
    assert filtered({}, ToolResult.of_text(text)).content[0]["text"] == "red link\r\n\tend1m"
    kept = ToolResult.of_text(text)
    assert filtered({"escapes": True}, kept) is kept


@pytest.mark.parametrize(
    ("made", "options", "sentence"),
    [
        (Redaction, {"kind": []}, "'kind' is not an option; there are: arguments, kinds"),
        (Redaction, {"kinds": ["name"]}, "'name' in 'kinds' is not known; there are: email, iban"),
        (Redaction, {"kinds": "email"}, "'kinds' must be a list of strings"),
        (Redaction, {"arguments": 1}, "'arguments' must be true or false"),
        (Cache, {"ttl": 60}, "'ttl' must be a duration such as"),
        (Cache, {"ttl": "0s"}, "'ttl' must be a duration such as"),
        (Cache, {"entries_max": 0}, "'entries_max' must be a whole number above 0"),
        (Filter, {"drop": ["a"]}, "'a' is not a JSON Pointer"),
        (Filter, {"text_max": True}, "'text_max' must be a whole number above 0"),
    ],
)
def test_an_option_that_is_wrong_has_one_clear_sentence(
    made: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        made(options)
