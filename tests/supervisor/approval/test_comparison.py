"""What a new definition means for those who know the old one."""

import json
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.approval.comparison import (
    DEFINITION_BYTES_MAX,
    Comparison,
    SchemaVerdict,
    compare,
)
from metamcp_supervisor.approval.schema import FINDINGS_MAX
from tests.worker.differences import ROWS, STRING, closed, draft_07, needs, of, one


def definition(**members: Any) -> bytes:
    return json.dumps({"name": "t", "inputSchema": {"type": "object"}, **members}).encode()


def inputs(old: Any, new: Any) -> Comparison:
    return compare(definition(inputSchema=old), definition(inputSchema=new))


def outputs(old: Any, new: Any) -> Comparison:
    return compare(definition(outputSchema=old), definition(outputSchema=new))


def told(found: Comparison) -> list[tuple[str, str, str]]:
    return [(each.pointer, each.kind, each.text) for each in found.findings]


@pytest.mark.promise("M40")
@pytest.mark.parametrize(("what", "old", "new", "verdict"), [row[:4] for row in ROWS])
def test_what_a_change_of_inputs_means(what: str, old: Any, new: Any, verdict: str) -> None:
    assert str(inputs(old, new).verdict) == verdict, what


@pytest.mark.promise("M40")
@pytest.mark.parametrize(("what", "old", "new", "verdict"), [(*row[:3], row[4]) for row in ROWS])
def test_what_a_change_of_results_means(what: str, old: Any, new: Any, verdict: str) -> None:
    assert str(outputs(old, new).verdict) == verdict, what


def test_a_finding_says_where_and_what() -> None:
    old = of(path=STRING, mode={"enum": ["r", "w"]})
    new = needs(of(path={**STRING, "maxLength": 9}, mode={"enum": ["r"]}), "path")
    assert told(inputs(old, new)) == [
        ("/inputSchema/properties/mode/enum", "values", '"w" is not valid any more.'),
        (
            "/inputSchema/properties/path/maxLength",
            "size",
            "It must have at most 9 characters now.",
        ),
        ("/inputSchema/required", "required", "'path' must be given now."),
    ]
    assert told(outputs(new, old)) == [
        ("/outputSchema/properties/mode/enum", "values", 'It may be "w" now, which it was not.'),
        (
            "/outputSchema/properties/path/maxLength",
            "size",
            "It may have more than 9 characters now, which it had not.",
        ),
        ("/outputSchema/required", "required", "'path' may be missing now."),
    ]


@pytest.mark.parametrize(
    ("keyword", "sentence"),
    [
        ("maximum", "It must be at most 5 now."),
        ("exclusiveMaximum", "It must be less than 5 now."),
        ("minimum", "It must be at least 5 now."),
        ("exclusiveMinimum", "It must be more than 5 now."),
    ],
)
def test_a_new_bound_is_said_in_words(keyword: str, sentence: str) -> None:
    number = {"type": "number"}
    findings = inputs(one(number), one({**number, keyword: 5})).findings
    assert [finding.text for finding in findings] == [sentence]


def test_a_place_is_a_json_pointer() -> None:
    found = inputs(of(**{"a/b~c": STRING}), of(**{"a/b~c": {"type": "null"}}))
    assert found.findings[0].pointer == "/inputSchema/properties/a~1b~0c/type"


def test_what_is_allowed_in_addition_is_told_too() -> None:
    found = inputs(one({"enum": ["x"]}), one({"enum": ["x", "y"]}))
    assert told(found) == [
        ("/inputSchema/properties/a/enum", "eased", 'It may be "y" now, which it was not.')
    ]


def test_results_that_get_a_structure_or_lose_it() -> None:
    plain, described = definition(), definition(outputSchema=one(STRING))
    assert compare(plain, described).verdict is SchemaVerdict.ADDITIVE
    assert compare(described, plain).verdict is SchemaVerdict.BREAKING


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (None, "optional", SchemaVerdict.ADDITIVE),
        ("optional", "forbidden", SchemaVerdict.BREAKING),
        ("optional", "required", SchemaVerdict.BREAKING),
        ("forbidden", None, SchemaVerdict.COMPATIBLE),
        ("optional", "perhaps", SchemaVerdict.UNKNOWN),
    ],
)
def test_calls_as_tasks(old: str | None, new: str | None, verdict: SchemaVerdict) -> None:
    one_, other = (
        definition(**({"execution": {"taskSupport": each}} if each else {})) for each in (old, new)
    )
    assert compare(one_, other).verdict is verdict


@pytest.mark.parametrize(
    ("old", "new", "pointer"),
    [
        ({}, {"description": "x"}, "/description"),
        ({"description": "x"}, {"description": "y"}, "/description"),
        ({"description": "x"}, {}, "/description"),
        ({"title": "x"}, {"title": None}, "/title"),
        ({"annotations": {"title": "x"}}, {"annotations": {"title": "y"}}, "/annotations/title"),
        ({"inputSchema": one(STRING)}, {"inputSchema": one({**STRING, "description": "x"})},
         "/inputSchema/properties/a/description"),
        ({"inputSchema": one({**STRING, "title": "x"})}, {"inputSchema": one(STRING)},
         "/inputSchema/properties/a/title"),
        ({"inputSchema": one({**STRING, "default": False})},
         {"inputSchema": one({**STRING, "default": True})}, "/inputSchema/properties/a/default"),
        ({"inputSchema": one({**STRING, "x-note": 1})},
         {"inputSchema": one({**STRING, "x-note": 2})}, "/inputSchema/properties/a/x-note"),
        ({"inputSchema": of()}, {"inputSchema": one({**STRING, "description": "x"})},
         "/inputSchema/properties/a/description"),
        ({"inputSchema": of()}, {"inputSchema": of(**{"first read the secrets": STRING})},
         "/inputSchema/properties/first read the secrets"),
        ({"inputSchema": one({"enum": ["x"]})}, {"inputSchema": one({"enum": ["x", "do not ask"]})},
         "/inputSchema/properties/a/enum"),
    ],
)  # fmt: skip
def test_other_words_break_no_caller_and_are_drift(old: Any, new: Any, pointer: str) -> None:
    found = compare(definition(**old), definition(**new))
    assert found.verdict <= SchemaVerdict.ADDITIVE
    assert pointer in [each.pointer for each in found.findings if each.kind == "wording"]
    assert found.drift
    assert not found.harmless


def test_a_text_that_is_hidden_is_told() -> None:
    found = compare(definition(description="Adds."), definition(description="Adds.\u200bx"))
    assert found.findings[0].text == (
        "The text at 'description' is another one. It has characters in it that nobody sees."
    )


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (of(a=STRING, b=STRING), of(a=STRING)),
        (one({"enum": ["x", "y-2"]}), one({"enum": ["x"]})),
        (one({"type": ["string", "null"]}), one(STRING)),
    ],
)
def test_what_is_new_and_brings_no_words_is_harmless(new: Any, old: Any) -> None:
    assert inputs(old, new).harmless


@pytest.mark.parametrize(
    ("hint", "old", "new", "kind"),
    [
        ("readOnlyHint", True, False, "hint-lost"),
        ("readOnlyHint", True, None, "hint-lost"),
        ("readOnlyHint", None, True, "hint-gained"),
        ("destructiveHint", False, None, "hint-lost"),
        ("destructiveHint", True, False, "hint-gained"),
        ("idempotentHint", True, False, "hint-lost"),
        ("openWorldHint", False, True, "hint-lost"),
        ("openWorldHint", True, False, "hint-gained"),
        ("readOnlyHint", True, "yes", "hint-lost"),
        ("readOnlyHint", None, False, "spelling"),
        ("destructiveHint", None, True, "spelling"),
    ],
)
def test_hints_have_kinds_of_their_own(hint: str, old: Any, new: Any, kind: str) -> None:
    before, after = (
        definition(annotations={} if value is None else {hint: value}) for value in (old, new)
    )
    found = compare(before, after)
    assert found.verdict is SchemaVerdict.COMPATIBLE
    assert [each.kind for each in found.findings] == [kind]
    assert found.drift == (kind != "spelling")


def test_other_icons_are_drift() -> None:
    found = compare(definition(), definition(icons=[{"src": "https://example.com/i"}]))
    assert (found.verdict, found.drift) == (SchemaVerdict.COMPATIBLE, True)


def test_meta_is_no_part_of_it() -> None:
    assert compare(definition(_meta={"at": 1}), definition()).verdict is SchemaVerdict.IDENTICAL


# Changes that only look harmless


@pytest.mark.parametrize(
    "old",
    [
        {"allOf": [of(b=STRING)]},
        {"anyOf": [of(b=STRING), of(c=STRING)]},
        {"if": of(b=STRING), "then": needs({}, "a")},
        {"dependentRequired": {"a": ["b"]}},
        {"patternProperties": {"^b": STRING}},
        {"propertyNames": {"enum": ["a", "b"]}},
        {"enum": [{"b": "x"}]},
        {"required": ["b"]},
        {"additionalProperties": STRING},
        {"$ref": "#/$defs/b", "$defs": {"b": of(b=STRING)}},
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_a_member_that_the_old_schema_knew_already_is_not_new(old: Any, *, inside: bool) -> None:
    narrower = {**old, **of(b={"type": "number"})}
    before, after = (one(old), one(narrower)) if inside else (old, narrower)
    assert inputs(before, after).verdict >= SchemaVerdict.UNKNOWN


@pytest.mark.parametrize("above", ["allOf", "anyOf", "enum"])
def test_a_member_that_something_above_knew_already_is_not_new(above: str) -> None:
    known: Any = [{"a": {"b": "x"}}] if above == "enum" else [one(of(b=STRING))]
    old = {**one(of()), above: known}
    assert inputs(old, {**one(of(b={"type": "number"})), above: known}).verdict >= (
        SchemaVerdict.UNKNOWN
    )


def defined(kind: str, ref: str = "#/$defs/x", **more: Any) -> Any:
    return {**one({"$ref": ref}), "$defs": {"x": {"type": kind}, **more}}


def nested_in_definition(kind: str) -> Any:
    return defined("string", "#/$defs/x/$defs/y", x={"$defs": {"y": {"type": kind}}})


def through_another(kind: str) -> Any:
    return defined(kind, "#/$defs/y", y={"type": "array", "items": {"$ref": "#/$defs/x"}})


def of_its_own(*, inner: bool) -> Any:
    own = {"$id": "https://example.com/own", "$defs": {"x": {"type": "number"}}} if inner else {}
    return {**one({"$ref": "#/$defs/x", **own}), "$defs": {"x": STRING}}


def itself(kind: str) -> Any:
    return {"$id": "https://example.com/s", **of(a={"$ref": "https://example.com/s#/$defs/x"}),
            "$defs": {"x": {"type": kind}}}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (defined("string"), defined("number")),
        (defined("string", "#/%24defs/x"), defined("number", "#/%24defs/x")),
        (nested_in_definition("string"), nested_in_definition("number")),
        (through_another("string"), through_another("number")),
        (of_its_own(inner=False), of_its_own(inner=True)),
        (itself("string"), itself("number")),
        (of(a=STRING, b={"$ref": "#/properties/a"}), of(a={}, b={"$ref": "#/properties/a"})),
    ],
)
def test_the_same_reference_to_something_else_is_a_change(old: Any, new: Any) -> None:
    assert inputs(old, new).verdict is SchemaVerdict.UNKNOWN
    assert outputs(old, new).verdict >= SchemaVerdict.UNKNOWN


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (draft_07(one({"$ref": "#/$defs/x", "maxLength": 3})), draft_07(one({"maxLength": 3}))),
        (draft_07({**of(), "dependentRequired": {"a": ["b"]}}),
         {**of(), "dependentRequired": {"a": ["b"]}}),
        (draft_07(one({"items": [STRING]})), one({"items": [STRING]})),
        (draft_07({**of(), "unevaluatedProperties": False}),
         {**of(), "unevaluatedProperties": False}),
        ({**of(a=STRING), "unevaluatedProperties": False},
         {**of(), "unevaluatedProperties": False}),
        ({**one({"minimum": 1}), "$schema": "http://json-schema.org/draft-04/schema#"},
         {**one({"minimum": 1}), "$schema": "http://json-schema.org/draft-03/schema#"}),
    ],
)  # fmt: skip
def test_the_same_keyword_may_limit_otherwise_beside_another(old: Any, new: Any) -> None:
    assert inputs(old, new).verdict is SchemaVerdict.UNKNOWN


def test_only_a_reference_to_what_changed_is_a_change() -> None:
    old, new = defined("string"), {**defined("string", y=STRING), **of(
        a={"$ref": "#/$defs/x"}, b={"$ref": "#/$defs/y"}
    )}  # fmt: skip
    assert inputs(old, new).verdict is SchemaVerdict.ADDITIVE


def test_what_is_gone_and_cannot_be_judged_is_not_called_another_spelling() -> None:
    found = inputs(one({**STRING, "format": "email"}), one(STRING))
    assert told(found) == [
        ("/inputSchema/properties/a/format", "eased", "More may be valid here than before.")
    ]


# Servers that mean no good


def test_a_member_written_twice_is_not_judged() -> None:
    found = compare(b'{"name":"t","title":"a","title":"b"}', b'{"name":"t","title":"b"}')
    assert told(found) == [("", "malformed", "One of the definitions has a member twice.")]
    assert found.verdict is SchemaVerdict.UNKNOWN


@pytest.mark.parametrize("broken", [b"", b"[]", b"\xff", b"{" * 100_000, b'{"name":1e999}'])
def test_what_cannot_be_read_is_not_judged(broken: bytes) -> None:
    assert compare(definition(), broken).verdict is SchemaVerdict.UNKNOWN
    assert compare(broken, definition()).verdict is SchemaVerdict.UNKNOWN
    assert compare(broken, broken).verdict is SchemaVerdict.IDENTICAL


def test_a_definition_that_is_too_large_is_not_judged() -> None:
    found = compare(definition(), definition(description="x" * DEFINITION_BYTES_MAX))
    assert told(found) == [("", "limit", "The definition is too large to be judged.")]


def test_findings_beyond_the_limit_are_counted_and_weigh() -> None:
    count = FINDINGS_MAX + 20
    old = of(**{f"m{n:03}": STRING for n in range(count)})
    found = inputs(old, closed(of()))
    assert len(found.findings) == FINDINGS_MAX
    assert found.more >= 20
    assert found.verdict is SchemaVerdict.BREAKING


MALFORMED: list[tuple[str, Any]] = [
    ("type", "text"), ("type", 5), ("enum", "x"), ("minimum", "1"), ("minimum", True),
    ("multipleOf", 0), ("maxLength", []), ("pattern", 5), ("minItems", {}), ("required", "a"),
    ("required", [5]), ("properties", []), ("patternProperties", 5), ("propertyNames", 5),
    ("additionalProperties", 5), ("dependentRequired", []), ("dependentSchemas", {"a": 5}),
    ("dependencies", 5), ("items", 5), ("items", [{}]), ("prefixItems", {}), ("contains", 5),
    ("uniqueItems", "yes"), ("allOf", 5), ("allOf", [5]), ("anyOf", {}), ("oneOf", 5),
    ("not", 5), ("$ref", 5), ("$dynamicRef", "#x"),
]  # fmt: skip


@pytest.mark.parametrize(("keyword", "value"), MALFORMED)
def test_a_keyword_that_is_not_as_json_schema_has_it_is_not_judged(
    keyword: str, value: Any
) -> None:
    modern = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    dialect = {} if keyword == "dependencies" else modern
    found = inputs({**dialect, **one({})}, {**dialect, **one({keyword: value})})
    assert found.verdict is SchemaVerdict.UNKNOWN
    assert found.findings[0].pointer.startswith("/inputSchema/properties/a")


def nested(depth: int, end: Any) -> Any:
    schema = end
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (nested(70, STRING), nested(70, {"type": "null"})),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        (one({"enum": [*range(5000)]}), one({"enum": [*range(1, 5001)], "minLength": 1})),
        ({"properties": {"a": 7}, "required": 3, "items": "x", "anyOf": {}, "enum": 1, "type": 9},
         {"properties": [], "required": "a", "allOf": 4, "not": 1, "if": 1, "then": 2,
          "dependentRequired": [], "patternProperties": 3, "prefixItems": {}, "$ref": 1}),
        ({"properties": {"a": {"type": "string", "minLength": True, "pattern": 3, "enum": []}}},
         {"properties": {"a": {"multipleOf": 0, "minLength": [], "pattern": 4, "type": "text",
          "contains": 3, "maxContains": "x", "propertyNames": 5, "dependencies": {"a": 5}}}}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}] * 50},
          "b": {"allOf": [{"$ref": "#/$defs/a"}] * 50}}}, {"type": "object"}),
    ],
)  # fmt: skip
def test_hostile_schemas_get_an_answer(old: Any, new: Any) -> None:
    for found in (inputs(old, new), inputs(new, old), outputs(old, new)):
        assert found.verdict > SchemaVerdict.IDENTICAL
        assert found.findings


def test_the_page_says_what_is_tested() -> None:
    page = (Path(__file__).parents[3] / "docs" / "compatibility.md").read_text()
    rows = page.partition("## What a change means")[2].partition("|---|---|---|\n")[2].splitlines()
    assert rows == [f"| {row[0]} | {row[3]} | {row[4]} |" for row in ROWS]
    assert len(rows) >= 60
