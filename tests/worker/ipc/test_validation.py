"""Definitions are judged as the specification's own JSON Schema does it, and as the SDKs read."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, ValidationError

from metamcp_worker.ipc import validation
from metamcp_worker.ipc.json_schemas import tool_faults
from metamcp_worker.ipc.server_catalog import SchemaFaults, ServerCatalogue, pack, unpack
from metamcp_worker.ipc.validation import Fault, fault
from tests import malformed
from tests.examples import examples
from tests.malformed import LEGACY_ONLY, MALFORMED

jsonschema: Any = importlib.import_module("jsonschema")
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
TYPES = {"tools": "Tool", "prompts": "Prompt", "resources": "Resource",
         "resourceTemplates": "ResourceTemplate"}  # fmt: skip
#: Beside the schema: what the SDKs cannot read, though it is valid.
UNREADABLE = {
    "description_surrogate", "deep", "digits", "modified_once", "port", "execution_other",
}  # fmt: skip


def validator(revision: str, kind: str) -> Any:
    path = Path(__file__).parent / "revisions" / f"{revision}.json"
    schema = json.loads(path.read_text())
    key = "$defs" if "$defs" in schema else "definitions"
    whole = {**schema, "$ref": f"#/{key}/{TYPES[kind]}"}
    return jsonschema.validators.validator_for(whole)(whole)


JUDGES = {(one, kind): validator(one, kind) for one in REVISIONS for kind in TYPES}


def valid(revision: str, kind: str, definition: object) -> bool:
    return bool(JUDGES[revision, kind].is_valid(definition))


def raw(definition: object) -> bytes:
    return json.dumps(definition).encode()


CASES = [(kind, name) for kind, names in MALFORMED.items() for name in names]


@pytest.mark.promise("M29")
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_each_malformed_definition_is_left_out_for_whom_it_breaks(kind: str, name: str) -> None:
    found = fault(kind, raw(malformed.definition(kind, name)))
    assert found is not None
    assert found.legacy is (kind == "tools" and name in LEGACY_ONLY)
    if name not in UNREADABLE:
        definition = malformed.definition(kind, name)
        assert not valid("2025-11-25", kind, definition)
        assert valid("2026-07-28", kind, definition) is found.legacy


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_in_order_passes(kind: str) -> None:
    assert fault(kind, raw(malformed.good(kind))) is None


@pytest.mark.parametrize(
    ("kind", "members", "said"),
    [
        ("tools", {"inputSchema": ...}, "$.inputSchema: is required and missing"),
        ("tools", {"title": 7}, "$.title: expected `string`, got `integer`"),
        ("tools", {"icons": [{"src": "a"}, {}]}, "$.icons[1].src: is required and missing"),
        ("prompts", {"arguments": [{"name": "a", "required": 1}]},
         "$.arguments[0].required: expected `boolean`, got `integer`"),
        ("resources", {"uri": "plain"}, "$.uri: expected a URI"),
        ("resources", {"size": 1.5}, "$.size: expected `integer`, got `number`"),
        ("resources", {"annotations": {"lastModified": "2025-02-29T00:00:00Z"}},
         "$.annotations.lastModified: expected a time of ISO 8601 with a time zone"),
    ],
)  # fmt: skip
def test_a_fault_has_its_place_and_its_reason(
    kind: str, members: dict[str, Any], said: str
) -> None:
    whole = {**malformed.good(kind), **members}
    found = fault(kind, raw({key: value for key, value in whole.items() if value is not ...}))
    assert str(found) == said


def test_no_output_schema_makes_a_tool_invalid() -> None:
    tool = {**malformed.good("tools"), "outputSchema": {"type": "array"}}
    assert fault("tools", raw(tool)) is None
    assert fault("tools", raw({**tool, "execution": "x"})) is not None


def test_definitions_without_a_name_are_told_too() -> None:
    tools = [b'{"name":"a","inputSchema":{"type":"object"}}', b"null", b'{"name":"b"}']
    packed = pack(ServerCatalogue(protocol="2025-11-25"))
    found = unpack(packed.replace(b'"tools":[]', b'"tools":[' + b",".join(tools) + b"]"))
    assert [str(one) for one in validation.invalid(found)] == [
        "tool without a name: $: expected `object`, got `null`",
        "tool 'b': $.inputSchema: is required and missing",
    ]


# --- whatever servers send ----------------------------------------------------------------------

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, 1.0, 5.0])
    | st.sampled_from(["object", "array", "user", "light", "forbidden", "x:y"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["type", "properties", "required", "src", "name"]), inner,
                      max_size=3),
    max_leaves=4,
)  # fmt: skip
EMPTY: st.SearchStrategy[Any] = st.just({})
SCHEMA = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object") | VALUES,
        "$schema": st.just("x:y") | VALUES,
        "properties": st.dictionaries(st.text(max_size=2), EMPTY | VALUES, max_size=2) | VALUES,
        "required": st.lists(st.text(max_size=2), max_size=2) | VALUES,
        "x": VALUES,
    },
)
ICONS = st.lists(
    st.fixed_dictionaries(
        {"src": st.just("x:y") | VALUES},
        optional={
            "theme": st.just("dark") | VALUES,
            "sizes": st.lists(st.just("any") | VALUES, max_size=2),
            "mimeType": VALUES,
        },
    )
    | VALUES,
    max_size=2,
)
_HINTS = ("readOnlyHint", "openWorldHint", "destructiveHint", "idempotentHint", "title")
HINTS = {name: st.booleans() | VALUES for name in _HINTS}
ANNOTATIONS = {
    "tools": st.fixed_dictionaries({}, optional=HINTS),
    "others": st.fixed_dictionaries(
        {},
        optional={
            "audience": st.lists(st.sampled_from(["user", "assistant"]) | VALUES, max_size=2),
            "priority": st.floats(-1, 2) | VALUES,
            "lastModified": st.just("2025-01-12T15:00:58Z") | st.integers(),
        },
    ),
}
ARGUMENTS = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("a") | VALUES},
        optional={"required": st.booleans() | VALUES, "description": VALUES, "title": VALUES},
    )
    | VALUES,
    max_size=2,
)


def definitions(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    text = st.just("x:y") | VALUES
    common = {"title": text, "description": text, "icons": ICONS | VALUES, "_meta": VALUES}
    if kind == "tools":
        more = {"inputSchema": SCHEMA | VALUES, "outputSchema": SCHEMA | VALUES,
                "annotations": ANNOTATIONS[kind] | VALUES}  # fmt: skip
    elif kind == "prompts":
        more = {"arguments": ARGUMENTS | VALUES}
    else:
        key = malformed.KEYS[kind]
        more = {"mimeType": text, "annotations": ANNOTATIONS["others"] | VALUES}
        more |= {key: text} | ({"size": st.integers() | VALUES} if kind == "resources" else {})
    changed = st.fixed_dictionaries({}, optional={"name": text, **common, **more})
    return changed.map(lambda members: {**malformed.good(kind), **members})


def listed(kind: str, definition: dict[str, Any], *, legacy: bool) -> dict[str, Any]:
    """A definition as lists show it, without an output schema that clients cannot read."""
    faults = tool_faults(raw(definition)) if kind == "tools" else SchemaFaults()
    gone = {"outputSchema"} if faults.output and (legacy or not faults.legacy) else set[str]()
    return {key: value for key, value in definition.items() if key not in gone}


@pytest.mark.promise("M29")
@pytest.mark.parametrize("kind", TYPES)
def test_every_definition_is_judged_as_the_specification_judges_it(kind: str) -> None:
    @settings(max_examples=examples(400), deadline=None)
    @given(definitions(kind))
    def judged(definition: dict[str, Any]) -> None:
        uri = definition.get("uri")
        readable = kind != "resources" or not isinstance(uri, str) or parsed(uri)
        found = fault(kind, raw(definition))
        old, new = (listed(kind, definition, legacy=legacy) for legacy in (True, False))
        assert (found is None) is (readable and valid("2025-11-25", kind, old)), found
        shown = found is None or found.legacy
        assert shown is (readable and valid("2026-07-28", kind, new)), found
        if found is None:
            assert all(valid(one, kind, old) for one in REVISIONS)

    judged()


def parsed(uri: str) -> bool:
    try:
        AnyUrl(uri)
    except ValidationError:
        return False
    return True


PARTS = st.sampled_from(
    ["x", "http", "HTTPS", "file", "ws", ":", "/", "//", "///", "\\", "?", "#", "a.b", "[::1]", "@",
     ":80", ":99999", "%zz", " ", "\n", "é", "{id}", "xn--a", "1.2.3.999", "~", "_", "-", "^", ""]
)  # fmt: skip


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(PARTS, max_size=7).map("".join))
def test_a_uri_is_what_the_python_sdk_takes_for_one(uri: str) -> None:
    found = fault("resources", raw({"name": "n", "uri": uri}))
    assert (found is None) is parsed(uri)


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (b'{"name":"a","inputSchema":{"type":"object"},"x":"\xff"}', "its bytes are not UTF-8"),
        (b'{"name":"a"', "some parsers cannot read its JSON, as half of a surrogate pair"),
    ],
)
def test_what_no_parser_reads_is_left_out(definition: bytes, said: str) -> None:
    assert fault("tools", definition) == Fault("$", said)


def test_brackets_in_texts_are_not_depth() -> None:
    text = "[" * 500 + '\\"{'
    assert fault("tools", raw({**malformed.good("tools"), "description": text})) is None
    wide: dict[str, Any] = {"type": "object", "x-wide": [[]] * 500}
    assert fault("tools", raw({"name": "a", "inputSchema": wide})) is None
