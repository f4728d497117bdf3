"""Which workflow is suggested, and that it is one that `run_workflow` takes."""

from typing import Any, cast

import pytest
from msgspec import Raw

from metamcp_worker.engine import definition, load, suggestion
from metamcp_worker.engine.suggestion import Suggestion, ToolRoutes
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import SHIPPED, SuggestionArguments

pytestmark = pytest.mark.promise("M51")


def tool(server: str, own: str) -> dict[str, str]:
    return {"name": f"{server}__{own}", "server": server, "tool": own, "description": "Does."}


def calls(*names: str) -> dict[str, Any]:
    return {"name": "x", "steps": [{"call": name} for name in names]}


def rule(name: str, *keywords: str, match: str = "any", **more: Any) -> Raw:
    template = more.get("template", calls("files.read"))
    return Raw(codec.dump(
        {"name": name, "keywords": keywords, "match": match, "template": template}
    ))  # fmt: skip


HERE = ToolRoutes([tool("files", "read"), tool("disk", "size"), tool("other", "size")])


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("Review my change", ["review"]),
        ("please be reviewing   the DIFF", ["both", "review"]),
        ("a different view", []),
        ("reviewer", []),
    ],
)
def test_rules_match_by_words_and_those_with_more_of_them_first(
    task: str, names: list[str]
) -> None:
    rules = [
        rule("review", "review", "look at my change"),
        rule("both", "review", "diff", match="all"),
    ]
    assert [one.name for one in suggestion.match_rules(task, rules)] == names


@pytest.mark.parametrize("name", ["files.read", "files__read"])
def test_tools_are_known_by_both_of_their_names(name: str) -> None:
    assert suggestion.adapt_draft(calls(name), HERE) == (calls(name), [])


def test_a_tool_of_another_name_of_its_server_is_taken_if_it_is_the_only_one() -> None:
    assert suggestion.adapt_draft(calls("filesystem.read"), HERE) == (calls("files.read"), [])
    _, problems = suggestion.adapt_draft(calls("volume.size"), HERE)
    assert problems[0].startswith("there is not the tool 'volume.size'; ")


def test_missing_tools_in_inner_steps_are_told_with_the_nearest_name() -> None:
    inner = {"name": "x", "steps": [
        {"parallel": [{"call": "files.raed"}]},
        {"foreach": "${{ [1] }}", "steps": [{"call": "nope"}]},
        {"switch": [{"when": "true", "steps": [{"call": "disk.sise"}]}]},
    ]}  # fmt: skip
    said = suggestion.fault(inner, HERE)
    assert "'files.raed'; did you mean 'files.read'?" in said
    assert "'nope'" in said
    assert "'disk.sise'; did you mean 'disk.size'?" in said


@pytest.mark.parametrize("given", [{}, {"steps": 7}, {"name": "x", "steps": [{"cal": "y"}]}])
def test_what_is_not_a_definition_has_its_problems(given: dict[str, Any]) -> None:
    assert suggestion.fault(given, HERE) != ""


def test_the_best_tools_are_a_sequence_that_can_be_run_with_its_inputs() -> None:
    described = {
        "definition": {
            "inputSchema": {
                "properties": {
                    "path": {"type": "string", "pattern": "^/"},
                    "max-count": {"type": "integer", "minimum": 1},
                    "other": {},
                },
                "required": ["path", "max-count"],
            }
        }
    }
    raws = [Raw(codec.dump(described))] * 2
    made = suggestion.sequence("Read: it!", [tool("files", "read"), tool("disk", "size")], raws)
    assert suggestion.fault(made, HERE) == ""
    assert made["inputs"] == {
        "path": {"type": "string"}, "max_count": {"type": "integer", "minimum": 1},
    }  # fmt: skip
    with_ = {"path": "${{ inputs.path }}", "max-count": "${{ inputs.max_count }}"}
    assert made["steps"] == [
        {"id": "step1", "call": "files.read", "with": with_},
        {"id": "step2", "call": "disk.size", "with": with_},
    ]
    assert made["name"] == "read-it"


def test_a_sequence_has_no_deprecated_tool_and_no_two_that_do_the_same() -> None:
    schema = {"properties": {"path": {"type": "string"}}, "required": ["path"]}
    raw = Raw(codec.dump({"definition": {"inputSchema": schema}}))
    best = [
        {**tool("files", "read_file"), "description": "Reads a file. DEPRECATED: use another."},
        tool("files", "read_text_file"),
        tool("files", "readMediaFile"),
        tool("git", "git_status"),
        tool("git", "git_log"),
    ]
    made = suggestion.sequence("Read", best, [raw] * 5)
    called = [step["call"] for step in made["steps"]]
    assert called == ["files.read_text_file", "git.git_status", "git.git_log"]
    assert suggestion.distinct(best[:1], [raw]) == []
    others = [
        tool("notion-mcp", "notion_search_pages"), tool("notion-mcp", "notion_delete_pages"),
        tool("hub", "create_branch"), tool("hub", "create_issue"), tool("x", "読む"),
        tool("x", "書く"), {**tool("x", "more"), "description": "Replaces the deprecated other."},
    ]  # fmt: skip
    assert len(suggestion.distinct(others, [raw] * len(others))) == len(others)


def test_arguments_of_the_same_name_and_another_type_are_inputs_of_their_own() -> None:
    def described(kind: str) -> Raw:
        schema = {"properties": {"n": {"type": kind}}, "required": ["n"]}
        return Raw(codec.dump({"definition": {"inputSchema": schema}}))

    best = [tool("files", "read"), tool("disk", "size")]
    made = suggestion.sequence("é", best, [described("string"), described("integer")])
    assert made["inputs"] == {"n": {"type": "string"}, "step2_n": {"type": "integer"}}
    assert suggestion.fault(made, HERE) == ""


def test_an_answer_holds_the_definition_and_tells_how_to_run_it() -> None:
    made = {**calls("files.read"), "inputs": {"a": {}, "b": {"default": 1}}}
    given = Suggestion(made, "rule", "read", ("A note.",)).to_done(4)
    found = codec.value(given.structured)
    assert (given.id, given.failed) == (4, False)
    assert (found["definition"], found["source"], found["rule"]) == (made, "rule", "read")
    assert given.text.splitlines()[:3] == [
        "Suggested by the rule 'read': the workflow 'x'.",
        "A note.",
        "run_workflow runs it: give the definition below as 'definition' and a as 'inputs'.",
    ]


def test_a_model_gets_the_tools_their_types_and_the_draft_and_every_kind_of_step() -> None:
    raw = Raw(b'{"typescript":"declare function f(): void;"}')
    given = SuggestionArguments(task="read")
    asked = suggestion.prompt(given, [tool("files", "read")], [raw], calls("a"), 9)
    text = codec.dump(asked.turns).decode()
    assert "files.read: Does." in text
    assert "declare function f" in text
    assert "Adapt this definition" in text
    assert asked.tokens_max == 9
    for kind in definition.KINDS.keys() - {"elicit"}:
        assert f'"{kind}"' in asked.system


SHIPPED_RULES = load.load([], [SHIPPED]).rules


@pytest.mark.parametrize(
    ("task", "rule", "workflow"),
    [
        ("Please review my changes before I push", "review a change", "review-change"),
        ("Refactor the function total in app.py", "refactor a function", "refactor-function"),
        ("Add an endpoint /health", "add an API endpoint", "add-endpoint"),
        ("Give me an overview of this repository", "tell what a repository is",
         "repository-overview"),
        ("Write release notes for 2.0", "write a changelog", "write-changelog"),
        ("Find files with TODO and read all", "find files and read them", "find-and-read"),
    ],
)  # fmt: skip
def test_each_shipped_rule_suggests_a_workflow_of_git_and_filesystem_servers(
    task: str, rule: str, workflow: str
) -> None:
    known = {"files": ["list_directory", "read_text_file", "search_files", "edit_file",
                       "write_file"],
             "git": ["git_log", "git_status", "git_diff", "git_diff_unstaged", "git_diff_staged",
                     "git_show"]}  # fmt: skip
    here = ToolRoutes([tool(server, own) for server, names in known.items() for own in names])
    first = suggestion.match_rules(task, SHIPPED_RULES)[0]
    made, problems = suggestion.adapt_draft(first.template, here)
    assert (first.name, made["name"], problems) == (rule, workflow, [])
    calls_made = {one["call"] for one in _calls(made)}
    assert calls_made
    assert {one.partition(".")[0] for one in calls_made} <= {"files", "git"}


def _calls(value: Any) -> list[dict[str, Any]]:
    """All steps that are calls."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        own = [found] if "call" in found else []
        return own + [one for each in found.values() for one in _calls(each)]
    if isinstance(value, list):
        return [one for each in cast("list[object]", value) for one in _calls(each)]
    return []
