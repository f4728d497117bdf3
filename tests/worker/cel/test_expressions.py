"""Expressions of workflows: where they stand, what they refer to, and their values."""

import json
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.cel import expressions, expressions_io
from metamcp_worker.cel.expressions import Expression, ExpressionError, VariableUse

LIST = {"result": {"items": [{"n": 1}, {"n": 2}]}, "text": "two", "error": None}
VARIABLES = {
    "inputs": {"path": "/repo", "numbers": [3, 1, 2], "odd-name": True},
    "steps": {"list": LIST},
    "file": {"name": "a.py"},
}


def value(text: str) -> object:
    found = expressions.condition(text)
    if found.path is not None:
        return expressions.resolve_path(found, VARIABLES)
    return expressions_io.evaluate(found.text, expressions.select_variables(found, VARIABLES))


def test_a_text_is_split_at_its_expressions_also_with_braces_and_quotes_in_them() -> None:
    found = expressions.parts("a ${{ {'x': {'y': '}}'}}.x.y }}b${{ inputs.n }}")
    assert [one if isinstance(one, str) else one.text for one in found] == [
        "a ",
        "{'x': {'y': '}}'}}.x.y",
        "b",
        "inputs.n",
    ]
    assert expressions.parts("${{{'a': 1}}}") == (Expression("{'a': 1}", ()),)


def test_a_long_text_with_quotes_and_no_end_is_refused_at_once() -> None:
    begin = monotonic()
    with pytest.raises(ExpressionError, match="within 2000 characters"):
        expressions.parts('${{ "' + '\\"' * 100_000)
    assert monotonic() - begin < 5


@pytest.mark.parametrize("text", ["${{ inputs.a", "${{ }}", f"${{{{ {'a+' * 1001}a }}}}"])
def test_an_expression_without_end_content_or_measure_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        expressions.parts(text)


@pytest.mark.parametrize(
    ("text", "references"),
    [
        ("steps.list.result.items[0].n", [VariableUse("steps", "list", "result")]),
        ("steps['list'].text", [VariableUse("steps", "list", "text")]),
        ("steps.list.result.items.filter(i, i.n > inputs.least)",
         [VariableUse("steps", "list", "result"), VariableUse("inputs", "least")]),
        ("size(file.name) > 3 && has(inputs.path)",
         [VariableUse("file", "name"), VariableUse("inputs", "path")]),
        ("math.greatest([1, 2]) + {'a': index}['a']", [VariableUse("index")]),
        ("type(inputs) == map ? 'steps.x' : null", [VariableUse("inputs")]),
    ],
)  # fmt: skip
def test_what_an_expression_refers_to_is_known_before_it_runs(
    text: str, references: list[VariableUse]
) -> None:
    found = expressions.expression(text)
    assert list(found.references) == references


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inputs.path", "/repo"),
        ("${{ steps.list.result.items[1].n }}", 2),
        ("inputs['odd-name']", True),
        ("steps.list.result.items.map(i, i.n + 1)", [2, 3]),
        ("inputs.numbers.sort()", [1, 2, 3]),
        ("file.name.split('.').join('-')", "a-py"),
        ("has(steps.list.result.none) ? 1 : {'a': [null, 1.5]}", {"a": [None, 1.5]}),
        ("timestamp('2026-01-01T00:00:00Z') + duration('90s')", "2026-01-01T00:01:30Z"),
        ("duration('90s')", "90s"),
    ],
)
def test_an_expression_yields_plain_data(text: str, expected: object) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("inputs.nix", "'inputs.nix' has no value: 'nix' is not there; ask with has(…)"),
        ("inputs.numbers[3]", "item 3 is not there"),
        ("inputs.path.x", "a text has no member 'x'"),
        ("steps.list.error.x", "null has no member 'x'"),
        ("{'a': 1}.b + 1", "'b' is not there"),
        ("inputs.path + 1", "'inputs.path + 1' has no value: Unsupported operation: string + int"),
        ("1 / 0", "division by zero"),
        ("{1: 2}", "keys that are not text"),
        ("b'a'", "bytes, which JSON does not have"),
        ("1.0 / 0.0", "not a finite number"),
    ],
)
def test_an_expression_without_a_value_says_why_in_one_sentence(text: str, told: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        value(text)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 +", "'1 +' is not CEL: line 1, column 4: mismatched input"),
        ("inputs.numbers.mapp(a, a)", "calls 'mapp', which is not a function"),
        ("math.nix(1)", "calls 'math.nix'"),
        ("(" * 300 + "1" + ")" * 300, "is not CEL"),
    ],
)
def test_a_wrong_expression_is_told_before_it_runs(text: str, told: str) -> None:
    assert told in expressions.flaw(expressions.expression(text))


def test_a_whole_text_becomes_the_value_and_others_are_put_into_the_text() -> None:
    data = {"a": "${{ x }}", "b": ["is ${{ x }}, ${{ s }}"], "c": 1, "d": "none"}
    assert list(expressions.in_value(data)) == [
        expressions.expression("x"),
        expressions.expression("x"),
        expressions.expression("s"),
    ]
    filled = expressions.replace_expressions(data, {"x": [1, None], "s": "text"})
    assert filled == {"a": [1, None], "b": ["is [1,null], text"], "c": 1, "d": "none"}


def test_an_expression_gets_only_the_steps_and_inputs_that_it_names() -> None:
    found = expressions.expression("size(steps.list.text) > inputs.numbers[0]")
    steps = {"list": LIST, "large": {"result": "x" * 1000}}
    assert expressions.select_variables(found, {**VARIABLES, "steps": steps}) == {
        "inputs": {"numbers": [3, 1, 2]},
        "steps": {"list": LIST},
    }


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"structuredContent": {"result": [1]}, "content": [{"type": "text", "text": "[1]"}]},
         ([1], "[1]", None)),
        ({"structuredContent": {"a": 1, "result": 2}, "content": []},
         ({"a": 1, "result": 2}, "", None)),
        ({"content": [{"type": "text", "text": '{"a": 1}'}]}, ({"a": 1}, '{"a": 1}', None)),
        ({"content": [{"type": "text", "text": "one"}, {"type": "image", "data": ""},
                      {"type": "text", "text": "two"}]}, ("one\ntwo", "one\ntwo", None)),
        ({"content": [{"type": "text", "text": "no file"}], "isError": True},
         (None, "no file", "no file")),
        ({"isError": True}, (None, "", "the tool failed without words")),
        ({"content": "?"}, ("", "", None)),
        ([], ("", "", None)),
    ],
)  # fmt: skip
def test_the_result_of_a_tool_is_taken_out_of_its_answer(
    result: object, expected: tuple[object, str, object]
) -> None:
    found = expressions.step_value(json.dumps(result).encode())
    assert (found["result"], found["text"], found["error"]) == expected


@given(st.text(alphabet="${}()[]'\".,ab01 +-!?:\\steps", max_size=60))
def test_no_text_raises_anything_but_an_expression_error(text: str) -> None:
    try:
        for one in expressions.in_text(text):
            if not expressions.flaw(one) and one.path is None:
                expressions_io.evaluate(one.text, expressions.select_variables(one, VARIABLES))
    except ExpressionError:
        return
