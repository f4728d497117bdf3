"""Definitions of workflows: which are possible, what they mean, and every problem at once."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metamcp_worker.engine import definition, workflow
from metamcp_worker.engine.workflow import (
    AiStep,
    CallStep,
    CodeStep,
    ElicitStep,
    ForeachStep,
    OutputStep,
    ParallelStep,
    Retry,
    SwitchStep,
    WaitStep,
    Workflow,
)

WHOLE: dict[str, Any] = {
    "name": "review-change",
    "description": "Read what changed and review it.",
    "inputs": {
        "path": {"type": "string", "description": "of the repository"},
        "most": {"type": "integer", "minimum": 1, "default": 3},
        "token": {"type": "string", "secret": True},
    },
    "steps": [
        {"id": "diff", "call": "git.git_diff", "timeout": "1m30s",
         "with": {"repo": "${{ inputs.path }}", "token": "${{ inputs.token }}"},
         "retry": {"attempts": 3, "backoff": "250ms", "on": ["timeout"]}},
        {"parallel": [{"id": "left", "call": "list_files", "retry": "safe"}, {"wait": "5s"}]},
        {"id": "each", "foreach": "${{ steps.left.result }}", "as": "file", "steps": [
            {"id": "read", "call": "fs.read.file", "with": {"path": "${{ file }}"},
             "safe": True, "may_fail": True},
            {"foreach": [1, "${{ index }}"], "steps": [{"output": "${{ item }}"}]},
        ]},
        {"id": "way", "switch": [
            {"when": "inputs.most > 3", "steps": [{"id": "say", "ai": "Say ${{ inputs.most }}"}]},
            {"else": True, "steps": [
                {"elicit": {"message": "Go on?", "schema": {"type": "object"}}}]},
        ]},
        {"when": "${{ steps.say.error == null }}", "wait": {"until": "2026-12-01T08:00:00Z"}},
        {"run_code": {"code": "return `${{1}}`", "language": "javascript",
                      "args": {"t": "${{ inputs.token }}"}}},
        {"output": {"files": "${{ steps.each.result }}"}},
    ],
}  # fmt: skip


def read(data: object) -> Workflow:
    found, problems = definition.parse(data)
    assert problems == ()
    assert found is not None
    return found


def problems(**changes: object) -> list[str]:
    base = {"name": "a", "steps": [{"output": 1}]}
    found, told = definition.parse({**base, **changes})
    assert (found is None) == bool(told)
    return list(map(str, told))


def of_steps(*steps: object, inputs: object = None) -> list[str]:
    return problems(steps=list(steps), inputs=inputs)


@pytest.mark.promise("M52")
def test_a_definition_means_steps_of_nine_kinds() -> None:
    found = read(WHOLE)
    kinds = (CallStep, ParallelStep, ForeachStep, SwitchStep, WaitStep, CodeStep, OutputStep)
    assert tuple(map(type, found.steps)) == kinds
    call = found.steps[0]
    assert isinstance(call, CallStep)
    assert (call.server, call.tool, call.timeout_ms) == ("git", "git_diff", 90_000)
    assert call.retry == Retry(3, 250, ("timeout",))
    by_path = {step.path: step for step in workflow.walk(found.steps)}
    read_step = by_path["each[]/read"]
    assert isinstance(read_step, CallStep)
    assert (read_step.server, read_step.tool) == ("fs", "read.file")
    assert (read_step.safe, read_step.may_fail) == (True, True)
    left = by_path["1/left"]
    assert isinstance(left, CallStep)
    assert (left.server, left.tool, left.safe) == ("", "list_files", True)
    assert isinstance(by_path["way/case0/say"], AiStep)
    assert isinstance(by_path["way/case1/0"], ElicitStep)
    assert found.secrets == {"token"}


def test_a_step_has_the_same_path_whenever_its_definition_is_read() -> None:
    first, second = read(WHOLE), read(WHOLE)
    paths = [step.path for step in workflow.walk(first.steps)]
    assert paths == [step.path for step in workflow.walk(second.steps)]
    assert paths == [
        "diff", "1", "1/left", "1/1", "each", "each[]/read", "each[]/1", "each[]/1[]/0",
        "way", "way/case0/say", "way/case1/0", "4", "5", "6",
    ]  # fmt: skip
    assert list(workflow.walk(first.steps))[7].at([2, 0]) == "each[2]/1[0]/0"


def test_inputs_are_required_unless_they_have_a_default() -> None:
    found = read(WHOLE)
    assert workflow.with_defaults(found, {"path": "/"}) == {"path": "/", "most": 3}
    assert workflow.wrong_inputs(found, b'{"path": "/", "token": "t"}') == ""
    for given_inputs, told in (
        (b'{"path": 1, "token": "t"}', "inputs.path is not of the type string (inputs: path.type)"),
        (b'{"path": "/"}', "inputs.token is missing, and review-change cannot run without it"),
        (b'{"pat": "/"}', "inputs.pat is not an input of review-change; did you mean 'path'?"),
        (b'{"path": "/", "token": "t", "most": 0}', "inputs.most"),
    ):
        assert told in workflow.wrong_inputs(found, given_inputs)


@pytest.mark.promise("M52")
def test_every_problem_is_told_at_once_with_its_path() -> None:
    steps: list[object] = [
        {"id": "a", "call": "git.", "timout": "3s", "with": 1},
        {"id": "a", "foreach": 3, "steps": []},
        {"call": "a", "ai": "b"},
        {},
        7,
        {"switch": [{"else": True, "steps": [{"output": 1}]}, {"when": 1}]},
        {"wait": "soon", "retry": {"attempts": 3}},
        {"run_code": {"language": "ruby"}, "retry": {"attempts": 0, "on": ["x"]}},
        {"output": "${{ steps.nix.result }} ${{ inputs.pth }}"},
    ]
    told = problems(
        name="Bad Name",
        nope=1,
        inputs={"path": {"type": "strin"}, "1x": 3},
        steps=steps,
    )
    paths = [one.partition(" ")[0] for one in told]
    assert paths == [
        "nope", "name", "inputs.path", "inputs.1x", "inputs.1x", "steps[0].timout",
        "steps[0].call", "steps[0].with", "steps[1].id", "steps[1].foreach", "steps[1].steps",
        "steps[2]", "steps[3]", "steps[4]", "steps[5].switch[0].else", "steps[5].switch[1].when",
        "steps[5].switch[1].steps", "steps[6].retry", "steps[6].wait", "steps[7].retry.attempts",
        "steps[7].retry.on", "steps[7].run_code.code", "steps[7].run_code.language",
        "steps[8].output", "steps[8].output",
    ]  # fmt: skip
    assert "steps[0].timout is not a key here; did you mean 'timeout'?" in told
    assert "steps[8].output refers to the input 'pth'; did you mean 'path'?" in told


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([{"output": "${{ steps.b.text }}"}, {"id": "b", "output": 1}],
         "steps[0].output refers to the step 'b' (steps[1]), which has not ended by then"),
        ([{"id": "a", "output": "${{ steps.a.text }}"}], "the step 'a' (steps[0]), which has not"),
        ([{"parallel": [{"id": "a", "output": 1}, {"output": "${{ steps.a.text }}"}]}],
         "the step 'a' (steps[0].parallel[0]), which has not ended"),
        ([{"foreach": [1], "steps": [{"id": "a", "output": 1}]},
          {"output": "${{ steps.a.text }}"}], "or is inside a foreach"),
        ([{"id": "abc", "output": 1}, {"output": "${{ steps.abd.text }}"}],
         "the step 'abd', which is not there; did you mean 'abc'?"),
        ([{"id": "a", "output": 1}, {"output": "${{ steps.a.resul }}"}],
         "refers to 'resul' of a step, which has result, text, error"),
        ([{"output": "${{ item }}"}], "refers to 'item'; there are: inputs, steps"),
        ([{"output": "${{ size(steps) }}"}], "without the id of a step"),
        ([{"output": "${{ 1 + }}"}], "is not CEL: line 1, column 4"),
        ([{"foreach": "[1].mapp(a, a)", "steps": [{"output": 1}]}], "calls 'mapp'"),
        ([{"foreach": [1], "steps": [{"foreach": [2], "steps": [{"output": 1}]}]}],
         "'item' is the item of the foreach around it"),
        ([{"call": "${{ inputs.tool }}"}], "is the name of a tool, and cannot be an expression"),
    ],
)  # fmt: skip
def test_an_expression_refers_to_what_is_there_by_then(
    steps: list[dict[str, Any]], told: str
) -> None:
    assert told in "\n".join(of_steps(*steps))


@pytest.mark.parametrize(
    ("step", "fits"),
    [
        ({"call": "a.b", "with": {"t": "${{ inputs.t }}"}}, True),
        ({"run_code": {"code": "return 1", "args": {"t": "${{ inputs.t }}"}}}, True),
        ({"output": "${{ inputs.t }}"}, False),
        ({"output": "${{ inputs }}"}, False),
        ({"ai": "${{ inputs.t }}"}, False),
        ({"call": "a.b", "when": "inputs.t == 'x'"}, False),
    ],
)
def test_a_secret_goes_only_to_a_tool_or_to_code(step: dict[str, Any], fits: bool) -> None:
    told = of_steps(step, inputs={"t": {"type": "string", "secret": True}})
    assert (told == []) == fits


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([{"output": 1}] * 501, "steps[500] is one step too many; 500 are possible"),
        ([{"parallel": [{"output": 1}] * 33}], "has more than 32 steps"),
        ([{"output": 1, "retry": {"attempts": 21}}], "must be a number from 1 to 20"),
        ([{"call": "a", "timeout": "25h"}], "at most 86400 seconds"),
        ([{"foreach": [1] * 10_001, "steps": [{"output": 1}]}], "has more than 10000 items"),
        ([{"output": "x" * 300_000}], "a workflow has more than 262144 bytes"),
    ],
)
def test_a_definition_has_limits(steps: list[dict[str, Any]], told: str) -> None:
    assert told in "\n".join(of_steps(*steps))


def nested(depth: int) -> dict[str, object]:
    return {"output": 1} if depth == 0 else {"foreach": [1], "as": f"i{depth}",
                                             "steps": [nested(depth - 1)]}  # fmt: skip


def test_steps_go_eight_deep() -> None:
    assert of_steps(nested(7)) == []
    assert "more than 8 steps in one another" in of_steps(nested(8))[0]
    deep: object = 1
    for _ in range(500):
        deep = [deep]
    assert "at most 48 deep" in of_steps({"output": deep})[0]


@pytest.mark.parametrize("data", [None, 3, "a", [], float("nan"), {"name": float("inf")},
                                  {1: 2}, {"steps": {("a",): 1}}, {"name": object()},
                                  {"name": 2**80}, {"name": "\ud800"}])  # fmt: skip
def test_data_that_is_no_map_of_json_is_a_problem(data: object) -> None:
    assert definition.parse(data)[1]


def test_a_duration_has_units() -> None:
    durations = {
        "1m30s": 90_000,
        "250ms": 250,
        "1.5h": 5_400_000,
        "5": None,
        "s": None,
        "-1s": None,
    }
    assert {text: workflow.duration_ms(text) for text in durations} == durations


KEYS = st.sampled_from([
    *definition.TOP_KEYS, *definition.KINDS, *definition.COMMON_KEYS, "with", "timeout", "retry",
    "as", "else", "prompt", "schema", "message", "until", "code", "args", "type", "a",
])  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["${{ steps.a.result }}", "${{", "a.b", "5s", "safe", "${{ item + }}"]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5)
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(VALUES, st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
def test_no_data_raises_an_error(top: object, steps: list[object]) -> None:
    for data in (top, {"name": "a", "steps": steps}):
        found, told = definition.parse(data)
        assert (found is None) == bool(told)
