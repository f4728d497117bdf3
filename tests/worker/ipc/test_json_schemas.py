"""Output schemas are judged as clients compile them, input schemas as APIs of models take them."""

import importlib
import json
import time
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from metamcp_worker.ipc import json_schemas, validation
from metamcp_worker.ipc.json_schemas import is_pattern, safe_tool, tool_faults
from metamcp_worker.ipc.server_catalog import SchemaFaults
from tests.broken_schemas import BROKEN, D7, MODERN_ONLY, SOUND, Schema, of
from tests.examples import examples

jsonschema: Any = importlib.import_module("jsonschema")
referencing: Any = importlib.import_module("referencing")

FINE = SchemaFaults()
INSTANCES = ({"x": "a"}, {"x": 1}, {"x": ["a"]}, {"x": {"y": 1}})


def raw(**members: Any) -> bytes:
    whole = {"name": "a", "inputSchema": {"type": "object"}, **members}
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def python_reads(schema: Any) -> bool:
    """Whether the Python SDK can check a result with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            validator = jsonschema.validators.validator_for(schema)
            validator.check_schema(schema)
            judge = validator(schema, registry=referencing.Registry())
            for one in INSTANCES:
                list(judge.iter_errors(one))
        except (jsonschema.exceptions.SchemaError, referencing.exceptions.Unresolvable,
                RecursionError, AttributeError, TypeError, ValueError):  # fmt: skip
            return False
    return True


@pytest.mark.promise("M29")
@pytest.mark.parametrize("kind", BROKEN)
def test_an_output_schema_that_a_client_cannot_compile_is_left_out_for_all(kind: str) -> None:
    found = tool_faults(raw(outputSchema=BROKEN[kind]))
    assert found.output.startswith("$.outputSchema")
    assert not found.legacy
    assert validation.fault("tools", raw(outputSchema=BROKEN[kind])) is None


@pytest.mark.parametrize("kind", SOUND)
def test_an_output_schema_that_all_clients_compile_stays(kind: str) -> None:
    assert tool_faults(raw(outputSchema=SOUND[kind])) == FINE
    assert python_reads(SOUND[kind])


@pytest.mark.parametrize("kind", MODERN_ONLY)
def test_an_output_schema_of_other_values_is_left_out_for_clients_of_objects(kind: str) -> None:
    found = tool_faults(raw(outputSchema=MODERN_ONLY[kind]))
    assert found.output
    assert found.legacy


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (of({"type": "str"}), "$.outputSchema.properties.x.type: expected a type of JSON"),
        ({"anyOf": [{}, {"required": True}]},
         "$.outputSchema.anyOf[1].required: expected a list of different names"),
        (of({"$ref": "#/$defs/A"}), "$.outputSchema.properties.x.$ref: leads nowhere"),
        (of({"$ref": "a.json"}),
         "$.outputSchema.properties.x.$ref: leads out of this schema, or nowhere"),
        (of({"minimum": "0", "items": 1}),
         "$.outputSchema.properties.x.minimum: expected a number (and 1 more)"),
        ("x", "$.outputSchema: expected an object, got a string"),
        ({"type": "array"}, "$.outputSchema.type: expected 'object'"),
    ],
)  # fmt: skip
def test_a_fault_of_an_output_schema_has_its_place_and_its_reason(schema: Any, said: str) -> None:
    assert tool_faults(raw(outputSchema=schema)).output == said


BOTH = "the APIs of Anthropic and OpenAI may refuse it, $.inputSchema"
EDITORS = "VS Code and the APIs of OpenAI and Gemini may refuse it, $.inputSchema"
ONE = "the API of Anthropic may refuse it, $.inputSchema"


REFUSED: list[tuple[Any, str]] = [
    (of({"type": "str"}), f"{BOTH}.properties.x.type: expected a type of JSON"),
    (of({"type": "array"}), f"{EDITORS}.properties.x: is an array without 'items'"),
    (
        of({"type": ["array", "null"], "pattern": "["}),
        f"{EDITORS}.properties.x.pattern: expected {json_schemas.PATTERN} (and 1 more)",
    ),
    ({"type": "object", "oneOf": [{}]}, f"{BOTH}.oneOf: stands at the top of the schema"),
    (
        {"type": "object", "properties": {"a[]": {}}},
        f"{ONE}.properties.a[]: is not a name of 1 to 64 letters, digits, '_', '.' and '-'",
    ),
    (of({}, **{"$schema": D7}), ""),
    (of({"type": "array", "items": {}}), ""),
]


@pytest.mark.parametrize(
    ("schema", "said"),
    REFUSED,
)
def test_a_fault_of_an_input_schema_names_who_refuses_it(schema: Any, said: str) -> None:
    assert tool_faults(raw(inputSchema=schema)).input == said


ARGUED: dict[str, Schema] = {
    **BROKEN, **SOUND, **MODERN_ONLY,
    "at the top": {"type": "object", "oneOf": [of({"type": "string"}, required=["x"]), of({})],
                   "enum": [{}], "not": {}},
    "names": {"type": "object", "properties": {"a[]": {}, "b": False}, "required": ["a[]", "b", 1]},
    "missing": ...,
}  # fmt: skip


@pytest.mark.parametrize("kind", ARGUED)
def test_a_safe_definition_has_nothing_that_is_refused(kind: str) -> None:
    safe = safe_tool(raw(inputSchema=ARGUED[kind], outputSchema=ARGUED[kind]))
    assert not tool_faults(safe).input
    assert not tool_faults(safe).output or tool_faults(safe).legacy
    assert validation.fault("tools", safe) is None
    assert safe_tool(safe) is safe
    jsonschema.Draft202012Validator.check_schema(json.loads(safe)["inputSchema"])


SAFE: list[tuple[Any, Any]] = [
    (of({"type": "str", "title": "X"}), of({"type": "string", "title": "X"})),
    (of({"type": "array", "items": [{}]}), of({"type": "array", "items": {}})),
    (of({"type": "string", "pattern": "(?i)a"}), of({"type": "string"})),
    (of({"$ref": "#/no", "title": "X"}), of({"title": "X"})),
    (of({}, required=True), of({})),
    (of({}, **{"$schema": D7}), of({})),
    (
        {"type": "object", "oneOf": [of({"type": "string"}), of(1), {"properties": {"y": {}}}]},
        {"type": "object", "properties": {"y": {}, "x": {"type": "string"}}},
    ),
    (
        {"properties": {"a[]": {}, "b": True}, "required": ["b", "a[]"]},
        {"type": "object", "properties": {"b": {}}, "required": ["b"]},
    ),
    (None, {"type": "object"}),
    (of({"$ref": "#/properties/x"}), of({})),
]


@pytest.mark.parametrize(
    ("schema", "safe"),
    SAFE,
)  # fmt: skip
def test_a_safe_definition_keeps_what_can_be_kept(schema: Any, safe: Any) -> None:
    assert json.loads(safe_tool(raw(inputSchema=schema, title="T"))) == {
        "name": "a", "inputSchema": safe, "title": "T",
    }  # fmt: skip


def test_a_definition_in_order_keeps_its_bytes() -> None:
    tool = (
        b'{"name": "a",  "inputSchema": {"properties": {"x": {"type": "string"}}, "type":"object"}}'
    )
    assert safe_tool(tool) is tool


KEYWORDS = st.sampled_from(
    ["type", "properties", "required", "items", "$ref", "$defs", "anyOf", "not", "enum", "pattern",
     "minLength", "minimum", "additionalProperties", "dependentRequired", "examples", "$id",
     "title", "uniqueItems", "format", "const", "if", "x", "$anchor", "$schema"]
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, 1.0])
    | st.sampled_from(["object", "array", "string", "#", "#/$defs/x", "x", "(", D7]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=examples(1000), deadline=None)
@given(VALUES)
def test_whatever_stays_is_read_by_the_python_sdk_and_nothing_makes_the_judge_fail(
    schema: Any,
) -> None:
    found = tool_faults(raw(inputSchema=schema, outputSchema=schema))
    if not found.output or found.legacy:
        assert python_reads(schema)
    safe = safe_tool(raw(inputSchema=schema, outputSchema=schema))
    assert not tool_faults(safe).input


@settings(max_examples=examples(1000), deadline=None)
@given(st.text("ab\\[](){}*+?|^$.-/<>=!:,1wduxpk", max_size=8))
def test_a_pattern_is_asked_of_python_too(pattern: str) -> None:
    if is_pattern(pattern):
        assert python_reads({"pattern": pattern})


def test_a_list_of_hundreds_of_tools_is_judged_in_a_moment() -> None:
    argument = {"type": "string", "description": "An argument.", "minLength": 1, "pattern": "^a+$"}
    schema = {"type": "object", "properties": {f"argument{n}": argument for n in range(12)},
              "required": ["argument1"]}  # fmt: skip
    tools = [Raw(raw(name=f"t{n}", inputSchema=schema, outputSchema=schema)) for n in range(560)]
    start = time.process_time()
    assert json_schemas.faults(tools) == {}
    assert time.process_time() - start < 2
