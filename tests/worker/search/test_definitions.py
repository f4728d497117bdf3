"""Definitions opened for those who look for tools, also the ones that are not as they should be."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.search import definitions

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "title",
                    "description",
                    "inputSchema",
                    "properties",
                    "type",
                    "items",
                    "required",
                    "anyOf",
                    "enum",
                    "const",
                    "$ref",
                    "$defs",
                    "annotations",
                    "a",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


def tool(schema: Any, **members: Any) -> bytes:
    return json.dumps({"name": "t", "inputSchema": schema, **members}).encode()


def types(schema: Any) -> dict[str, str]:
    return {one.name: one.type for one in definitions.read(tool(schema)).parameters}


def test_parameters_are_read_in_order_with_what_is_in_them() -> None:
    schema = {
        "type": "object",
        "required": ["options"],
        "properties": {
            "path": {"type": "string", "description": "Where."},
            "options": {
                "type": "object",
                "required": ["deep"],
                "properties": {"deep": {"type": "boolean"}, "limit": {"type": "integer"}},
            },
            "rows": {"type": "array", "items": {"properties": {"id": {"type": "integer"}}}},
        },
    }
    read = definitions.read(tool(schema, title="T", description="Does it."))
    assert (read.title, read.description, read.more) == ("T", "Does it.", False)
    assert [(one.name, one.required, one.description) for one in read.parameters] == [
        ("path", False, "Where."),
        ("options", True, ""),
        ("rows", False, ""),
        ("options.deep", True, ""),
        ("options.limit", False, ""),
        ("rows.id", False, ""),
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"type": "array", "items": {"type": "integer"}}, "integer[]"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "(integer | null)[]"),
        ({"type": "array"}, "any[]"),
        ({"enum": ["a", 1, None]}, '"a" | 1 | null'),
        ({"enum": list(range(20))}, "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | …"),
        ({"const": "x"}, '"x"'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "string"),
        ({"$ref": "#/$defs/Place"}, '"here" | "there"'),
        ({"$ref": "#/$defs/Loop"}, "any"),
        ({"$ref": "https://example.com/x"}, "any"),
        ({"properties": {}}, "object"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_types_are_written_for_people(schema: Any, said: str) -> None:
    root = {
        "$defs": {"Place": {"enum": ["here", "there"]}, "Loop": {"$ref": "#/$defs/Loop"}},
        "properties": {"p": schema},
    }
    assert types(root) == {"p": said}


def test_a_type_is_written_as_deep_as_people_read() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(10):
        schema = {"type": "array", "items": schema}
    assert types({"properties": {"p": schema}}) == {"p": "any" + "[]" * definitions.DEPTH_MAX}


def test_a_title_may_be_among_the_annotations() -> None:
    assert definitions.read(tool({}, annotations={"title": "T"})).title == "T"


def test_what_refers_to_itself_ends() -> None:
    schema = {
        "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
        "properties": {"n": {"$ref": "#/$defs/N"}},
    }
    names = [one.name for one in definitions.read(tool(schema)).parameters]
    assert names == ["n", "n.next", "n.next.next", "n.next.next.next"]


def test_of_many_parameters_the_first_are_read() -> None:
    read = definitions.read(tool({"properties": {f"p{at}": {} for at in range(1000)}}))
    assert len(read.parameters) == definitions.PARAMETERS_MAX
    assert read.more


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"description":"\xff"}',
        b'{"inputSchema":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"inputSchema":{"properties":{"a":{"enum":[' + b"1" * 5_000 + b"]}}}}",
        b'{"description":"' + b"x" * definitions.DEFINITION_BYTES_MAX + b'"}',
    ],
)
def test_of_a_broken_definition_nothing_is_read(raw: bytes) -> None:
    read = definitions.read(raw)
    assert (read.title, read.description) == ("", "")
    assert [one.type for one in read.parameters] in ([], ["any"])


@given(json_values)
def test_any_json_is_read(value: Any) -> None:
    for raw in (json.dumps(value).encode(), tool(value), tool({"properties": {"a": value}})):
        for one in definitions.read(raw).parameters:
            assert isinstance(one.type, str)
            assert len(one.type) <= definitions.TYPE_CHARACTERS_MAX
            assert isinstance(one.description, str)


@given(st.binary(max_size=60))
def test_any_bytes_are_read(raw: bytes) -> None:
    definitions.read(raw)
    definitions.read(b'{"inputSchema":' + raw + b"}")
