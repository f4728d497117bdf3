"""Schemas of results that some client cannot compile, and some that look odd and are in order."""

from collections.abc import Mapping
from typing import Any

Schema = Any

D4, D6 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-06/schema#"
D7, D2019 = (
    "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema"
)  # fmt: skip


def of(x: Any, **more: Any) -> dict[str, Any]:
    """A schema of an object with the property `x`."""
    return {"type": "object", "properties": {"x": x}, **more}


def refer(target: str, **more: Any) -> dict[str, Any]:
    return of({"$ref": target}, **more)


def patterned(*patterns: str) -> dict[str, Schema]:
    return {f"pattern {one}": of({"type": "string", "pattern": one}) for one in patterns}


BROKEN: Mapping[str, Schema] = {
    "type str": of({"type": "str"}),
    "type any": of({"type": "any"}),
    "type upper": of({"type": "STRING"}),
    "type null": of({"type": None}),
    "type list": of({"type": ["string", "nul"]}),
    "type list empty": of({"type": []}),
    "type twice": of({"type": ["string", "string"]}),
    "required true": of({"type": "string", "required": True}),
    "required text": of({}, required="x"),
    "required twice": of({}, required=["x", "x"]),
    "required null": of({}, required=None),
    "items list": of({"type": "array", "items": [{"type": "string"}]}),
    "items text": of({"type": "array", "items": "string"}),
    "items null": of({"type": "array", "items": None}),
    "prefixItems empty": of({"type": "array", "prefixItems": []}),
    **patterned(
        "[", "(?P<a>x)", "(?i)x", r"\-x", r"^a\Z", "a++", "[[:alpha:]]+", r"[\w-.]+", "a{,3}",
        "^{x}$", r"\p{L}", r"(?<n>a)\k<n>", r"\/\@", r"\1", r"\u{1F600}", "(?>a)", "(", "a{9,1}",
    ),
    "pattern number": of({"pattern": 5}),
    "pattern of names": {"type": "object", "patternProperties": {"[": {}}},
    "ref nowhere": refer("#/$defs/None"),
    "ref to another holder": refer("#/definitions/A", **{"$defs": {"A": {}}}),
    "ref to OpenAPI": refer("#/components/schemas/A"),
    "ref to the web": refer("https://example.com/s.json"),
    "ref to a file": refer("file:///etc/passwd"),
    "ref to a neighbour": refer("other.json"),
    "ref to no anchor": refer("#nope"),
    "ref to no host": refer("http://["),
    "ref number": of({"$ref": 5}),
    "ref to a value": refer("#/type"),
    "ref to itself": refer("#/properties/x"),
    "ref in a ring":
        refer("#/$defs/A", **{"$defs": {"A": {"$ref": "#/$defs/B"},
        "B": {"anyOf": [{"$ref": "#/$defs/A"}]}}}),
    "ref to what is broken": refer("#/x-schemas/A", **{"x-schemas": {"A": {"type": "str"}}}),
    "dynamicRef nowhere": of({"$dynamicRef": "#nope"}),
    "id number": {"type": "object", "$id": 5},
    "id twice":
        {"type": "object", "properties": {"a": {"$id": "urn:x:a"}, "b": {"$id": "urn:x:a"}}},
    "id of draft 4": {"type": "object", "id": "http://example.com/a"},
    "id that is an anchor": {"type": "object", "$id": "#a"},
    "anchor twice":
        {"type": "object", "properties": {"a": {"$anchor": "q"}, "b": {"$anchor": "q"}}},
    "anchor odd": of({"$anchor": "1 2"}),
    "draft unknown": {"type": "object", "$schema": "https://example.com/x"},
    "draft 4": {"type": "object", "$schema": D4},
    "draft 3": of({"required": True}, **{"$schema": "http://json-schema.org/draft-03/schema#"}),
    "draft empty": {"type": "object", "$schema": ""},
    "draft number": {"type": "object", "$schema": 5},
    "exclusiveMinimum true": of({"type": "number", "minimum": 1, "exclusiveMinimum": True}),
    "enum text": of({"enum": "a"}),
    "enum empty": of({"enum": []}),
    "enum null": of({"enum": None}),
    "anyOf object": of({"anyOf": {}}),
    "anyOf empty": of({"anyOf": []}),
    "anyOf text": of({"anyOf": ["string"]}),
    "not list": of({"not": []}),
    "if number": of({"if": 5}),
    "minLength text": of({"type": "string", "minLength": "1"}),
    "minLength negative": of({"type": "string", "minLength": -1}),
    "minLength half": of({"type": "string", "minLength": 1.5}),
    "minimum text": of({"minimum": "0"}),
    "maximum null": of({"maximum": None}),
    "multipleOf zero": of({"multipleOf": 0}),
    "uniqueItems text": of({"type": "array", "uniqueItems": "true"}),
    "format null": of({"format": None}),
    "description number": of({"description": 5}),
    "title null": of({"title": None}),
    "examples text": of({"examples": "a"}),
    "readOnly text": of({"readOnly": "yes"}),
    "properties list": {"type": "object", "properties": []},
    "properties null": {"type": "object", "properties": None},
    "property text": of("string"),
    "property null": of(None),
    "property list": of([]),
    "additionalProperties text": {"type": "object", "additionalProperties": "no"},
    "additionalProperties null": {"type": "object", "additionalProperties": None},
    "unevaluatedProperties text": {"type": "object", "unevaluatedProperties": "x"},
    "patternProperties list": {"type": "object", "patternProperties": []},
    "dependentRequired text": {"type": "object", "dependentRequired": {"a": "b"}},
    "dependencies text": {"type": "object", "dependencies": {"a": "b"}},
    "defs list": {"type": "object", "$defs": []},
    "defs text": {"type": "object", "$defs": {"A": "x"}},
    "defs broken": {"type": "object", "$defs": {"A": {"type": "str"}}},
    "nullable alone": of({"nullable": True}),
    "nullable text": of({"type": "string", "nullable": "yes"}),
    "nullable not": of({"type": ["string", "null"], "nullable": False}),
    "formatMinimum alone": of({"type": "string", "formatMinimum": "2020-01-01"}),
    "formatMinimum of email": of({"type": "string", "format": "email", "formatMinimum": "x"}),
    "text": "x",
    "list": [],
    "null": None,
    "true": True,
}  # fmt: skip
"""What no client is to get."""

SOUND: Mapping[str, Schema] = {
    "empty": {"type": "object"},
    "array without items": of({"type": "array"}),
    "items list of draft 7":
        of({"type": "array", "items": [{"type": "string"}], "additionalItems": False},
        **{"$schema": D7}),
    "items list of 2019": of({"type": "array", "items": [{}]}, **{"$schema": D2019}),
    "draft 6": of({"const": 1}, **{"$schema": D6}),
    "2020": {"type": "object", "$schema": "https://json-schema.org/draft/2020-12/schema"},
    "2020 over http": {"type": "object", "$schema": "http://json-schema.org/draft/2020-12/schema#"},
    **patterned(
        "", "^a$", r"^[\w.-]+@[\w.-]+\.\w{2,}$", r"\d{3}(?:-\d+)?", "(?=a)a|b*?", r"[\]\\/-]",
        "(?<=a)b", r"\0", r"[^\x00-\x1f\u2028]", "a{2,}", r"\bA\B", r"\.\/\(\)\$", "é",
    ),
    "ref": refer("#/$defs/A", **{"$defs": {"A": {"type": "string"}}}),
    "ref escaped": refer("#/$defs/a~1b%20c", **{"$defs": {"a/b c": {}}}),
    "ref to the whole": refer("#"),
    "ref empty": refer(""),
    "ref to an anchor": refer("#a", **{"$defs": {"A": {"$anchor": "a"}}}),
    "ref to an old anchor": refer("#a", **{"$schema": D7, "definitions": {"A": {"$id": "#a"}}}),
    "ref into a list": refer("#/anyOf/0", anyOf=[{}]),
    "ref to what is no keyword": refer("#/x-y/A", **{"x-y": {"A": {"type": "string"}}}),
    "ref to its own id":
        refer("https://a.b/c#/$defs/A", **{"$id": "https://a.b/c", "$defs": {"A": {}}}),
    "ref to a part with an id":
        refer("sub", **{"$id": "https://a.b/c", "$defs": {"A": {"$id": "sub"}}}),
    "tree":
        of({"type": "object", "properties": {"children": {"type": "array",
        "items": {"$ref": "#/properties/x"}}}}),
    "ref that is a name": {"type": "object", "properties": {"$ref": {"type": "string"}}},
    "ref in values":
        of({"default": {"$ref": "#/no"}, "enum": [{"$ref": "#/no"}], "x-z": {"$ref": "#/no"}}),
    "recursiveRef": of({"$recursiveRef": "#"}, **{"$schema": D2019}),
    "properties with names of keywords":
        {"type": "object", "properties": {"type": {"type": "string"},
        "required": {"type": "boolean"}, "pattern": {}, "id": {}}},
    "const null": of({"const": None}),
    "enum twice": of({"enum": ["a", "a"]}),
    "format unknown": of({"type": "string", "format": "uint64"}),
    "minLength 1.0": of({"type": "string", "minLength": 1.0}),
    "formatMinimum": of({"type": "string", "format": "date", "formatMinimum": "2020-01-01"}),
    "nullable": of({"type": "string", "nullable": True}),
    "dependencies": {"type": "object", "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
    "discriminator": of({"discriminator": {"propertyName": "x"}}),
}  # fmt: skip
"""What every client of 2026-07-28 takes."""

MODERN_ONLY: Mapping[str, Schema] = {
    "of a list": {"type": "array", "items": {}},
    "without a type": {},
    "of two types": {"type": ["object", "null"]},
    "of a union": {"anyOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]},
    "by reference": {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}},
    "property true": of(True),
}
"""What clients before 2026-07-28 refuse."""
