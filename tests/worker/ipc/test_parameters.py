"""Arguments of scripts beside their parameters: as the reference implementation does."""

import importlib
import json
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.ipc.parameters import DEPTH_MAX, SCHEMA_BYTES_MAX, unfit, wrong
from tests.worker.made_schemas import Dice, grounded

jsonschema: Any = importlib.import_module("jsonschema")
"""It has no types of its own."""
SEEDS = 6000
COMPARED_MIN = 500
"""Judgements without which the comparison would say little."""


def judged(schema: object, arguments: object) -> str:
    text = json.dumps(schema)
    assert unfit(text) == ""
    return wrong(text, Raw(json.dumps(arguments).encode()))


def one(schema: object, value: object) -> str:
    """Words about a single argument `x`."""
    return judged({"properties": {"x": schema}}, {"x": value})


def test_arguments_are_judged_as_the_reference_implementation_judges_them() -> None:
    compared = {True: 0, False: 0}
    for seed in range(SEEDS):
        dice = Dice(seed)
        root = dice.root()
        inner = {**root}
        schema: dict[str, Any] = {"properties": {"x": inner}, "$defs": inner.pop("$defs", {})}
        inner.pop("$schema", None)
        text = json.dumps(schema)
        if unfit(text) or '"#"' in text or not grounded(root):
            continue
        arguments = {"x": dice.value(inner, root)}
        right = bool(jsonschema.Draft202012Validator(schema).is_valid(arguments))
        found = wrong(text, Raw(json.dumps(arguments).encode()))
        assert (found == "") is right, (schema, arguments, found)
        compared[right] += 1
    assert min(compared.values()) >= COMPARED_MIN // 5
    assert sum(compared.values()) >= COMPARED_MIN


@pytest.mark.promise("M48")
@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        (
            {"type": "integer"}, "7",
            "args.x is not of the type integer (parameters: $.properties.x.type)",
        ),
        ({"type": ["string", "null"]}, 1, "args.x is not of the type string or null"),
        ({"type": "integer"}, True, "args.x is not of the type integer"),
        ({"enum": ["a", 1]}, "b", 'args.x is not one of "a", 1 (parameters: $.properties.x.enum)'),
        ({"const": 1}, True, "args.x is not 1"),
        ({"minimum": 3}, 2, "args.x is not as minimum 3 wants it"),
        ({"maxLength": 2}, "abc", "args.x has a length of 3, and at most 2 is possible"),
        ({"minItems": 1}, [], "args.x has a length of 0, and at least 1 is possible"),
        ({"uniqueItems": True}, [1, 1.0], "args.x has two equal items"),
        (
            {"items": {"type": "string"}}, ["a", 2],
            "args.x[1] is not of the type string (parameters: $.properties.x.items.type)",
        ),
        ({"prefixItems": [True], "items": False}, [1, 2], "args.x[1] is not allowed"),
        ({"required": ["y"]}, {}, "args.x has no 'y', which is required"),
        (
            {"additionalProperties": False}, {"z": 1},
            "args.x.z is not allowed (parameters: $.properties.x.additionalProperties)",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "args.x fits none of 2 schemas"),
        ({"oneOf": [True, True]}, 1, "args.x fits more than one of 2 schemas"),
        ({"not": {"type": "string"}}, "a", "args.x is as it may not be"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_its_place_in_the_schema(
    schema: object, value: object, words: str
) -> None:
    assert one(schema, value).startswith(words)


def test_a_reference_leads_to_its_definition() -> None:
    tree = {
        "properties": {"x": {"$ref": "#/$defs/tree"}},
        "$defs": {"tree": {"type": "object", "additionalProperties": {"$ref": "#/$defs/tree"}}},
    }
    assert judged(tree, {"x": {"a": {"b": {}}}}) == ""
    assert judged(tree, {"x": {"a": {"b": 1}}}).startswith("args.x.a.b is not of the type object")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "the parameters are not JSON"),
        ("[]", "the parameters are a JSON Schema of an object"),
        ('{"type": "string"}', "the parameters are a JSON Schema of an object"),
        ('{"properties": {"d": {"pattern": "(a+)+$"}}}', "$.properties.d.pattern that is not"),
        ('{"properties": {"day": {"type": "date"}}}', "wrong value at $.properties.day.type"),
        ('{"properties": []}', "wrong value at $.properties"),
        ('{"required": "day"}', "wrong value at $.required"),
        ('{"properties": {"day": 1}}', "no schema at $.properties.day"),
        ('{"properties": {"d": {"$ref": "#/$defs/no"}}}', "wrong value at $.properties.d.$ref"),
        ('{"properties": {"day": {"$ref": "https://a.example/b"}}}', "wrong value at"),
        ('{"anyOf": []}', "wrong value at $.anyOf"),
        ('{"minProperties": -1}', "wrong value at $.minProperties"),
        ('{"not": ' * 80 + "{}" + "}" * 80, f"more than {DEPTH_MAX} deep"),
        ('{"title": "' + "x" * SCHEMA_BYTES_MAX + '"}', f"and {SCHEMA_BYTES_MAX} are possible"),
    ],
)  # fmt: skip
def test_parameters_that_promise_more_than_is_checked_are_refused(text: str, words: str) -> None:
    assert words in unfit(text)


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}, "allOf": [{"$ref": "#/$defs/a"}]},
        {
            "$defs": {
                f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)
            } | {"d40": True},
            "allOf": [{"$ref": "#/$defs/d0"}],
        },
        {"properties": {"x": {"items": {"enum": list(range(2000))}}}},
        {"properties": {"x": {"uniqueItems": True}}},
    ],
)  # fmt: skip
def test_no_schema_keeps_a_front_busy(schema: object) -> None:
    assert "takes too long" in judged(schema, {"x": [*range(200_000)]})
