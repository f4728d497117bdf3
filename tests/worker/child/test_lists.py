"""Reading lists: every page once, and an end to every way of not ending."""

import json
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.child import lists
from metamcp_worker.child.lists import (
    ITEM_BYTES_MAX,
    ITEMS_MAX,
    PAGES_MAX,
    DefinitionSize,
    ListReader,
    find_declared_lists,
)
from metamcp_worker.ipc.server_catalog import CachingHint


def raw(value: object) -> bytes:
    return json.dumps(value).encode()


def tool(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "inputSchema": {}, **more}


def names(found: ListReader) -> list[str]:
    return [json.loads(bytes(one))["name"] for one in found.items]


def read(pages: list[dict[str, Any]], kind: str = "tools") -> ListReader:
    """A listing that was given these pages, as many as it asked for."""
    found = ListReader(kind, DefinitionSize())
    for page in pages:
        if found.ask() is not None:
            found.on_answer(raw(page))
    assert found.ask() is None
    return found


def test_only_what_the_server_declares_is_asked_for() -> None:
    assert find_declared_lists(Raw(b'{"tools":{},"prompts":null,"x":{}}')) == {"tools"}
    assert find_declared_lists(Raw(b'{"resources":{}}')) == {"resources", "resourceTemplates"}
    assert find_declared_lists(Raw(b"{}")) == frozenset()


def test_pages_are_followed_and_an_empty_cursor_is_one() -> None:
    found = ListReader("tools", DefinitionSize())
    cursors: list[bytes] = []
    for cursor in ("", "b", None):
        ask = found.ask()
        assert ask is not None
        cursors.append(ask.params)
        found.on_answer(raw({"tools": [tool(f"t{cursor}")], "nextCursor": cursor}))
    assert cursors == [b"{}", b'{"cursor":""}', b'{"cursor":"b"}']
    assert names(found) == ["t", "tb", "tNone"]
    assert found.warnings == []


def test_a_definition_stays_the_bytes_it_came_in() -> None:
    definition = b'{ "name":"x","inputSchema":{"maximum":1.0e2}, "x-y" : "\\u00e9" }'
    found = ListReader("tools", DefinitionSize())
    found.on_answer(b'{"tools":[' + definition + b"]}")
    assert [bytes(one) for one in found.items] == [definition]


def test_a_cursor_that_comes_twice_ends_the_list() -> None:
    page = {"tools": [tool("a")], "nextCursor": "again"}
    found = read([page, {**page, "tools": [tool("b")]}, page])
    assert names(found) == ["a", "b"]
    assert "a cursor came twice" in found.warnings[0]


def test_endless_pages_end() -> None:
    found = read([{"tools": [tool(f"t{n}")], "nextCursor": f"c{n}"} for n in range(PAGES_MAX + 1)])
    assert len(names(found)) == PAGES_MAX
    assert found.warnings == [
        f"tools/list was read up to page {PAGES_MAX}: it has more than {PAGES_MAX} pages"
    ]


@pytest.mark.parametrize("cursor", [7, {}, "x" * (lists.CURSOR_BYTES_MAX + 1)])
def test_a_cursor_that_is_none_ends_the_list(cursor: object) -> None:
    found = read([{"tools": [tool("a")], "nextCursor": cursor}])
    assert names(found) == ["a"]
    assert "nextCursor" in found.warnings[0]


def test_too_many_definitions_are_left_out_with_one_warning() -> None:
    found = read([{"tools": [tool(f"t{number}") for number in range(10_000)]}])
    assert len(found.items) == ITEMS_MAX
    (warning,) = found.warnings
    assert f"{10_000 - ITEMS_MAX} above the limit" in warning


def test_a_huge_definition_is_left_out_and_named() -> None:
    found = read([{"tools": [tool("big", description="x" * ITEM_BYTES_MAX), tool("small")]}])
    assert names(found) == ["small"]
    assert "'big'" in found.warnings[0]


def test_of_two_definitions_with_one_name_the_first_counts() -> None:
    found = read([{"tools": [tool("a", n=1), tool("a", n=2)]}])
    assert [json.loads(bytes(one))["n"] for one in found.items] == [1]
    assert found.warnings == ["left out of tools: a second 'a'; the first one counts"]


def test_what_comes_twice_is_left_out_and_warnings_are_few() -> None:
    found = read([{"tools": [tool("a")] * 41}])
    assert names(found) == ["a"]
    assert len(found.warnings) == lists.WARNINGS_MAX + 1
    assert "20 more of that sort" in found.warnings[-1]


def test_what_has_no_name_is_kept_for_who_judges_definitions() -> None:
    nameless = [None, 3, {}, {"name": 5}]
    found = read([{"tools": [*nameless, tool("a")]}])
    assert [json.loads(bytes(one)) for one in found.items[:4]] == nameless
    assert found.warnings == []


def test_a_list_that_cannot_be_read_is_a_failure() -> None:
    refused = ListReader("tools", DefinitionSize())
    refused.on_error(b'{"code":-32603,"message":"lost"}')
    assert refused.failed == "tools/list was refused: lost (-32603)"
    assert refused.ask() is None
    assert "tools/list" in read([{"tools": 3}]).failed
    assert "tools/list" in read([{}]).failed


def test_a_server_with_resources_need_not_know_templates() -> None:
    found = ListReader("resourceTemplates", DefinitionSize())
    found.on_error(b'{"code":-32601,"message":"unknown"}')
    assert found.ask() is None
    assert (found.failed, found.warnings, found.items) == ("", [], ())


def test_a_list_may_be_kept_as_long_as_its_strictest_page() -> None:
    pages: list[dict[str, Any]] = [
        {"tools": [tool("a")], "nextCursor": "x", "ttlMs": 9000, "cacheScope": "public"},
        {"tools": [tool("b")], "ttlMs": 500, "cacheScope": "public"},
    ]
    assert read(pages).hint == CachingHint(500, "public")
    pages = [
        {"prompts": [tool("c")], "ttlMs": 500, "cacheScope": "public", "nextCursor": "y"},
        {"prompts": [tool("d")], "ttlMs": 700, "cacheScope": "private"},
    ]
    assert read(pages, "prompts").hint == CachingHint(500, "private")
    assert read([{"resources": []}], "resources").hint == CachingHint()
    pages = [{"resourceTemplates": [], "ttlMs": 1e9, "cacheScope": 1}]
    assert read(pages, "resourceTemplates").hint == CachingHint()
