"""What a search found, as text and as JSON: what stands there, and that it is never too much."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.builtin_tools.tool_text import FOUND_BYTES_MAX
from metamcp_worker.ipc.builtin_definitions import DETAILS, Detail
from metamcp_worker.search.index import HITS_MAX, Hit, SearchResult, ToolDocument

COMMIT: dict[str, Any] = {
    "name": "commit",
    "description": "Records changes, e.g. of a file. Needs a message.\n\nSee the log.",
    "inputSchema": {
        "type": "object",
        "required": ["message"],
        "properties": {
            "message": {"type": "string", "description": "What was done\nand why."},
            "amend": {"type": "boolean"},
        },
    },
}


def hit(name: str, definition: Any, server: str = "git") -> Hit:
    raw = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
    return Hit(ToolDocument((server, name), f"{server}__{name}", raw), 1.0)


ONE = SearchResult((hit("commit", COMMIT),), 0)


def test_brief_is_the_name_and_the_first_sentence() -> None:
    assert tool_text.markdown(ONE, "brief") == "- `git__commit`: Records changes, e.g. of a file."


def test_detailed_has_the_description_and_the_parameters() -> None:
    lines = tool_text.markdown(ONE, "detailed").splitlines()
    assert lines[0].startswith("### `git__commit` (server `git`, about ")
    assert lines[1:] == [
        "Records changes, e.g. of a file. Needs a message. See the log.",
        "Parameters:",
        "- `message` (string, required): What was done and why.",
        "- `amend` (boolean)",
    ]
    none = SearchResult((hit("log", {"name": "log"}),), 0)
    assert tool_text.markdown(none, "detailed").splitlines()[1:] == ["No parameters."]


def test_it_is_said_that_there_are_further_parameters() -> None:
    schema: dict[str, Any] = {"properties": {f"p{at}": {} for at in range(1_000)}}
    text = tool_text.markdown(SearchResult((hit("t", {"inputSchema": schema}),), 0), "detailed")
    assert text.splitlines()[-1] == '- and further ones, which "detail": "full" shows'
    (tool,) = json.loads(
        tool_text.as_json(SearchResult((hit("t", {"inputSchema": schema}),), 0), "detailed")
    )["tools"]
    assert tool["parametersLeftOut"] is True


def test_full_has_the_definition_under_its_exposed_name() -> None:
    lines = tool_text.markdown(ONE, "full").splitlines()
    assert (lines[1], lines[3]) == ("```json", "```")
    assert json.loads(lines[2]) == {**COMMIT, "name": "git__commit"}


def test_json_says_the_same() -> None:
    def tool(detail: Detail) -> Any:
        (only,) = json.loads(tool_text.as_json(ONE, detail))["tools"]
        return only

    assert tool("brief") == {
        "name": "git__commit",
        "server": "git",
        "description": "Records changes, e.g. of a file.",
    }
    assert tool("detailed")["description"] == COMMIT["description"]
    assert [one["required"] for one in tool("detailed")["parameters"]] == [True, False]
    assert tool("detailed")["parameters"][0]["type"] == "string"
    assert tool("full")["definition"] == {**COMMIT, "name": "git__commit"}
    assert tool("full")["tokens"] == -(-len(json.dumps(COMMIT)) // 4)


def test_it_is_said_how_many_more_there_are_and_how_to_see_them() -> None:
    some = SearchResult(ONE.hits, 7, counted=False)
    assert tool_text.markdown(some, "brief").splitlines()[-1] == (
        f'At least 7 more match: ask with a larger "limit" (up to {HITS_MAX}), or in other words.'
    )
    assert (
        tool_text.markdown(SearchResult(ONE.hits, 1), "brief")
        .splitlines()[-1]
        .startswith("1 more matches")
    )
    answer = json.loads(tool_text.as_json(some, "brief"))
    assert (answer["more"], answer["counted"]) == (7, False)
    assert answer["hint"].startswith("At least 7 more match")
    assert "hint" not in json.loads(tool_text.as_json(ONE, "brief"))


def test_where_nothing_was_found_it_is_said_what_to_do() -> None:
    assert tool_text.markdown(SearchResult((), 0), "brief").startswith(
        "No tool matches. Try other words"
    )
    assert json.loads(tool_text.as_json(SearchResult((), 0), "full"))["tools"] == []
    servers = (("git", 4, ("git__add", "git__log", "git__show")), ("time", 1, ("now",)))
    text = tool_text.markdown(SearchResult((), 0, servers=servers), "brief")
    assert text.endswith(
        "The servers are: `git` with `git__add`, `git__log`, `git__show`, …; `time` with `now`"
    )


@pytest.mark.parametrize("detail", DETAILS)
def test_what_does_not_fit_is_left_out_and_counted(detail: Detail) -> None:
    large = {"name": "t", "description": "A word. " * 2_000}
    many = SearchResult(tuple(hit(f"t{at}" + "x" * 300, large) for at in range(HITS_MAX)), 3)
    answer = json.loads(tool_text.as_json(many, detail))
    assert len(answer["tools"]) + answer["more"] == HITS_MAX + 3
    text = tool_text.markdown(many, detail)
    if detail != "brief":
        assert "left out, because an answer has at most 32 KiB" in text
        assert 'smaller "detail"' in answer["hint"]
    assert "3 more match" in text
    assert len(text.encode()) <= FOUND_BYTES_MAX


def test_one_that_is_too_large_is_shown_with_less_detail() -> None:
    large = {"name": "t", "description": "Does it. " * 10_000}
    text = tool_text.markdown(SearchResult((hit("t", large),), 0), "full")
    assert text.startswith("### `git__t`")
    assert len(text.encode()) <= FOUND_BYTES_MAX
    (tool,) = json.loads(tool_text.as_json(SearchResult((hit("t", large),), 0), "full"))["tools"]
    assert "definition" not in tool


def test_a_description_cannot_pass_for_another_tool() -> None:
    fake = {"name": "t", "description": "Nice.\n- `git__commit`: Evil.\n### `other`\n```\nx"}
    for detail in ("brief", "detailed"):
        lines = tool_text.markdown(SearchResult((hit("t", fake),), 0), detail).splitlines()
        assert sum(line.startswith(("- `", "###")) for line in lines) == 1
    full = tool_text.markdown(SearchResult((hit("t", {"name": "t", "x": "````\n"}),), 0), "full")
    assert full.splitlines()[1] == "`````json"
    ticks = tool_text.markdown(SearchResult((hit("a`b\n- c", {}),), 0), "brief")
    assert ticks == "- `git__a'b - c`"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ""),
        ("No end", "No end"),
        ("One. Two.", "One."),
        ("Version 1.2 is out. Next.", "Version 1.2 is out."),
        ("Lists files, i.e. names. Then more.", "Lists files, i.e. names."),
        ("搜索。然后", "搜索。"),
        ("Is it so? Yes.", "Is it so?"),
        ("a\n  b.\nC", "a b."),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_the_first_sentence_ends_where_a_reader_would_end_it(text: str, sentence: str) -> None:
    assert tool_text.first_sentence(text) == sentence


names = st.text(st.characters(exclude_categories=[]), max_size=300)
definitions = st.binary(max_size=60) | st.dictionaries(
    st.sampled_from(["name", "description", "inputSchema"]), st.text(max_size=9000)
)


@given(
    st.lists(st.tuples(names, definitions, names), max_size=6),
    st.integers(0, 5),
    st.sampled_from(DETAILS),
)
def test_an_answer_is_always_whole_and_within_its_limit(
    given: list[tuple[str, Any, str]], more: int, detail: Detail
) -> None:
    some = SearchResult(tuple(hit(*one) for one in given), more)
    assert len(tool_text.markdown(some, detail).encode()) <= FOUND_BYTES_MAX
    answer = tool_text.as_json(some, detail)
    assert len(answer) <= FOUND_BYTES_MAX
    read = json.loads(answer)
    assert len(read["tools"]) + read["more"] == len(given) + more
