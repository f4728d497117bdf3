"""Arguments as people write them: the values that texts stand for, and sentences about others."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_supervisor.calls import tool_form
from metamcp_supervisor.calls.tool_form import ArgumentsUnfit, FormField
from tests.fakes.typed_tools import Book

pytestmark = pytest.mark.promise("M108")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What to say."},
        "count": {"type": "integer", "default": 3},
        "share": {"type": "number"},
        "loud": {"type": "boolean"},
        "mode": {"enum": ["fast", "slow", 7]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "levels": {"type": "array", "items": {"$ref": "#/$defs/level"}},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "level": {"$ref": "#/$defs/level"},
        "either": {"type": ["string", "integer"]},
        "one_or_many": {"anyOf": [{"type": "string"}, {"type": "array"}]},
        "filter": {"type": "object"},
        "any": {},
        "endless": {"$ref": "#/$defs/endless"},
    },
    "required": ["text"],
    "$defs": {
        "level": {"type": "string", "enum": ["low", "high"]},
        "endless": {"anyOf": [{"$ref": "#/$defs/endless"}]},
    },
}


def value(*words: str) -> object:
    """The one value that these words give beside `text`."""
    found = tool_form.arguments(SCHEMA, tool_form.split(["text=x", *words]))
    assert found.pop("text") == "x"
    (only,) = found.values()
    return only


def problems(*words: str) -> list[str]:
    with pytest.raises(ArgumentsUnfit) as why:
        tool_form.arguments(SCHEMA, tool_form.split(words))
    return list(why.value.problems)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["count=5"], 5),
        (["count=5.0"], 5),
        (["share=5"], 5),
        (["share=0.25"], 0.25),
        (["loud=true"], True),
        (["mode=fast"], "fast"),
        (["mode=7"], 7),
        (["tags=a", "tags=b=c"], ["a", "b=c"]),
        (["tags=a,b"], ["a,b"]),
        (['tags=["a", "b"]'], ["a", "b"]),
        (["sizes=1", "sizes=2"], [1, 2]),
        (["sizes=[]"], []),
        (["levels=low", "levels=high"], ["low", "high"]),
        (["limit=null"], None),
        (["limit=9"], 9),
        (["level=high"], "high"),
        (["either=5"], "5"),
        (["one_or_many=a"], "a"),
        (["one_or_many=a", "one_or_many=b"], ["a", "b"]),
        (['filter={"open": true}'], {"open": True}),
        (["any=5"], 5),
        (["any=five"], "five"),
    ],
)
def test_a_text_becomes_the_value_that_the_schema_asks_for(
    words: list[str], expected: object
) -> None:
    found = value(*words)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("count=many", "count: 'many' is not an integer"),
        ("count=1.5", "count: '1.5' is not an integer"),
        ("count=true", "count: 'true' is not an integer"),
        ("share=NaN", "share: 'NaN' is not a number"),
        ("loud=maybe", "loud: 'maybe' is not a boolean"),
        ("mode=fsat", "mode: 'fsat' is not allowed; did you mean 'fast'?"),
        ("sizes=a", "sizes: 'a' is not an integer"),
        ("limit=x", "limit: 'x' is not a null or integer"),
        ("filter=[1]", "filter: '[1]' is not an object"),
        ("txet=hi", "no argument is named 'txet'; did you mean 'text'?"),
    ],
)
def test_a_text_that_does_not_fit_gets_a_sentence(word: str, sentence: str) -> None:
    assert problems("text=x", word) == [sentence]


def test_all_problems_are_named_at_once() -> None:
    assert problems("count=x", "loud=y") == [
        "count: 'x' is not an integer",
        "loud: 'y' is not a boolean",
        "text is missing (string)",
    ]
    assert problems("text=a", "text=b") == ["text: is given more than once, and is not a list"]
    with pytest.raises(ArgumentsUnfit, match="'loud' is not of the form KEY=VALUE"):
        tool_form.split(["loud", "=x", "a=b"])


def test_a_tool_without_properties_takes_anything_as_json_or_text() -> None:
    found = tool_form.arguments({}, tool_form.split(["a=1", "b=word", 'c=["x"]']))
    assert found == {"a": 1, "b": "word", "c": ["x"]}
    open_ = {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}
    assert tool_form.arguments(open_, {"b": ["1"]}) == {"b": 1}


def test_fields_say_what_a_form_needs() -> None:
    found = {one.name: one for one in tool_form.fields(SCHEMA)}
    assert next(iter(found)) == "text"  # what is required comes first
    assert found["text"] == FormField(
        name="text", kind="text", required=True, description="What to say."
    )
    assert (found["count"].kind, found["count"].default) == ("integer", "3")
    assert (found["mode"].kind, found["mode"].choices) == ("choice", ("fast", "slow", "7"))
    assert (found["levels"].kind, found["levels"].item) == ("list", "choice")
    assert found["levels"].type == "list of one of low, high"
    kinds = {name: found[name].kind for name in ("limit", "level", "filter", "any", "endless")}
    assert kinds == {
        "limit": "integer", "level": "choice", "filter": "json", "any": "json", "endless": "json",
    }  # fmt: skip


def test_a_form_that_was_left_empty_gives_nothing_but_required_texts() -> None:
    form = dict.fromkeys(SCHEMA["properties"], "")
    assert tool_form.arguments(SCHEMA, tool_form.collect_texts(SCHEMA, form)) == {"text": ""}
    form |= {"tags": "a\r\nb\r\n", "sizes": "[1, 2]", "loud": "false"}
    found = tool_form.arguments(SCHEMA, tool_form.collect_texts(SCHEMA, form))
    assert found == {"text": "", "tags": ["a", "b"], "sizes": [1, 2], "loud": False}


def test_schemas_of_pydantic_are_understood() -> None:
    schema = Book.model_json_schema()
    given_ = tool_form.split(["title=X", 'authors=[{"name": "A"}]', "kind=poem", "rating=0.5"])
    found = tool_form.arguments(schema, given_)
    Book.model_validate(found)
    assert found["authors"] == [{"name": "A"}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each),
    max_leaves=10,
)


@given(schema=st.dictionaries(st.sampled_from(
    ["type", "anyOf", "enum", "items", "$ref", "allOf", "properties", "const", "required"]
), JSON), text=st.text(max_size=8))  # fmt: skip
def test_no_schema_and_no_text_breaks_it(schema: dict[str, Any], text: str) -> None:
    whole = {"properties": {"a": schema}, "$defs": {"x": schema}, "required": ["a"]}
    for each in (whole, schema):
        tool_form.fields(each)
        with contextlib.suppress(ArgumentsUnfit):
            json.dumps(tool_form.arguments(each, {"a": [text]}))


def test_a_line_shows_how_a_tool_is_called() -> None:
    schema = {
        "properties": {
            "words": {"type": "array", "items": {"type": "string"}},
            "mode": {"enum": ["a", "b"]},
        },
        "required": ["words"],
    }
    line = "usage: metamcp call t words=STRING… [mode=a|b]"
    assert tool_form.usage("call t", schema) == line
