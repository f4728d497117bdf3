"""The limits of a JSON Schema, without its words, and the findings about schemas.

Owns: dialects, keywords, types and values of a schema, which references lead to the same, and the
verdicts with their order. Never: comparing schemas (`containment`).
"""

import json
import math
import re
from collections.abc import Mapping
from enum import IntEnum
from typing import TypeGuard

from msgspec import Struct

from metamcp_supervisor.approval.lock import canonical, same

FINDINGS_MAX = 100
"""Maximum findings of a comparison that are kept; further findings are only counted, but their
weight changes the verdict."""
WORD_CHARACTERS_MAX = 64
"""Maximum characters of a word from a definition that a sentence repeats."""


class SchemaVerdict(IntEnum):
    """Verdicts on a change, from harmless to harmful. ADDITIVE: harmless for callers that send only
    what the old definition names. UNKNOWN: the change cannot be judged; to be safe, treat it as
    BREAKING."""

    IDENTICAL = 0
    COMPATIBLE = 1
    ADDITIVE = 2
    UNKNOWN = 3
    BREAKING = 4

    def __str__(self) -> str:
        return self.name.lower()


class SchemaFinding(Struct, frozen=True):
    """Difference between two definitions. `pointer`: a JSON pointer into the stricter definition,
    for inputs the new one, for outputs the old one; `kind`: a word for programs; `text`: a
    sentence; `weight`: the verdict if this were the only difference."""

    pointer: str
    kind: str
    text: str
    weight: SchemaVerdict


class SchemaFindings:
    """List of findings. `inputs`: the schemas are of arguments, not of results."""

    def __init__(self, *, inputs: bool) -> None:
        self.inputs = inputs
        self._items: dict[tuple[str, str, str], SchemaFinding] = {}
        self.more = 0
        self.worst = SchemaVerdict.IDENTICAL

    @property
    def all(self) -> tuple[SchemaFinding, ...]:
        """Findings, the worst first, and then in the order of their places."""
        return tuple(sorted(self._items.values(), key=lambda each: (-each.weight, each.pointer)))

    def add(self, weight: SchemaVerdict, pointer: str, kind: str, text: str) -> None:
        self.worst = max(self.worst, weight)
        key = pointer, kind, text
        if key in self._items:
            return
        if len(self._items) >= FINDINGS_MAX:
            self.more += 1
        else:
            self._items[key] = SchemaFinding(pointer, kind, text, weight)

    def take(self, others: "SchemaFindings") -> None:
        """Add all findings of another list."""
        for each in others.all:
            self.add(each.weight, each.pointer, each.kind, each.text)
        self.worst = max(self.worst, others.worst)
        self.more += others.more


def word(text: str) -> str:
    """Return a word of a definition in the form that a sentence may repeat: cut, and with escapes
    for characters that are not printable."""
    cut = text if len(text) <= WORD_CHARACTERS_MAX else text[:WORD_CHARACTERS_MAX] + "…"
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in cut)


def step(pointer: str, *keys: str | int) -> str:
    """Return the JSON pointer for keys below `pointer` (RFC 6901)."""
    return pointer + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value is a table of schemas."""
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
ONES = frozenset({
    "not", "if", "then", "else", "items", "additionalItems", "additionalProperties", "contains",
    "propertyNames", "unevaluatedItems", "unevaluatedProperties", "dependencies",
})  # fmt: skip
"""Keywords whose value is a schema, or a list or table of schemas."""
LIMITS = frozenset({
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems",
    "uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties", "required",
    "dependentRequired", "contentEncoding", "contentMediaType", "contentSchema", "$ref",
    "$dynamicRef", "$recursiveRef",
})  # fmt: skip
"""Keywords that limit valid values by a plain value."""
COUNTING = (MAPS | LISTS | ONES | LIMITS) - {"$defs", "definitions"}
"""All keywords that can limit valid values. The others are words for people and programs."""
DIALECTS = frozenset({
    "", "http://json-schema.org/draft-07/schema", "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
})  # fmt: skip
"""Dialects that are known here. A schema that names none is one of 2020-12, and keywords of older
dialects may count in it."""
OF_ITS_OWN = frozenset({"$id", "$schema"})
"""Keywords that give an inner schema another base for its references or another dialect."""
FRACTION = "fraction"
"""Type of a number that is not whole. JSON Schema's `number` is `fraction` or `integer`."""
NUMBERS = frozenset({"integer", FRACTION})
TYPES = frozenset({"null", "boolean", "object", "array", "string"}) | NUMBERS
_LISTED = {"null": {b"null": "null"}, "boolean": {b"false": "boolean", b"true": "boolean"}}
"""Types of which all values can be listed."""
_REFERENCE = re.compile(rb'"\$ref":("(?:[^"\\]|\\.)*")')
_TO_DEFINITION = re.compile(r"#/(\$defs|definitions)/([^/~%]+)")
_INNER = re.compile(rb'"\$(id|schema)":"')

Table = dict[str, object]


def is_table(value: object) -> TypeGuard[Table]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def table_of(value: object) -> Table:
    """Return `value` if it is an object, else an empty object."""
    return value if is_table(value) else {}


def list_of(value: object) -> list[object]:
    return value if is_list(value) else []


def number_of(value: object) -> float | None:
    """Return `value` if it is a number, else None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def dialect_of(schema: object) -> str | None:
    """Return the dialect that a schema names, empty without one; None if it is not known here."""
    dialect = str(table_of(schema).get("$schema", "")).removesuffix("#")
    return dialect if dialect in DIALECTS else None


def select_limits(schema: object, *, inner: bool = False) -> object:
    """Return a schema with only the keywords that limit, and with its definitions; True if every
    value is valid."""
    if not is_table(schema):
        return schema
    limits: Table = {}
    for key, value in schema.items():
        if is_table(value) and key in MAPS | {"dependencies"}:
            limits[key] = {name: select_limits(each, inner=True) for name, each in value.items()}
        elif is_list(value) and key in LISTS | ONES:
            limits[key] = [select_limits(each, inner=True) for each in value]
        elif key in ONES:
            limits[key] = select_limits(value, inner=True)
        elif key in COUNTING or (inner and key in OF_ITS_OWN):
            limits[key] = value
    return limits or True


def refer_to_same(old: object, new: object, *, has_id: bool) -> bool:
    """Whether all references that two schemas have in common lead to equal definitions, or out of
    schemas that have no identifier (`has_id`) to the same place."""
    texts = canonical(old), canonical(new)
    if any(_INNER.search(text) for text in texts):
        return False
    for ref in map(json.loads, set.intersection(*(set(_REFERENCE.findall(t)) for t in texts))):
        definition = _TO_DEFINITION.fullmatch(ref)
        if definition is None:
            if "://" not in ref or ref.startswith("#") or has_id:
                return False
            continue
        key, name = definition.groups()
        mine, theirs = (table_of(table_of(each).get(key)).get(name) for each in (old, new))
        if mine is None or not same(mine, theirs):
            return False
    return True


def read_values(schema: Table) -> tuple[frozenset[str], Mapping[bytes, str] | None]:
    """Return the types of valid values, and the values with their types, in canonical JSON; None if
    they cannot be listed."""
    types = declared_types(schema)
    lists = [[schema["const"]]] if "const" in schema else []
    lists += [list_of(schema["enum"])] if is_list(schema.get("enum")) else []
    if not lists:
        listed = {
            value: each for key in _LISTED.keys() & types for value, each in _LISTED[key].items()
        }
        return types, listed if types <= _LISTED.keys() else None
    spelled = [{canonical(value): type_of(value) for value in each} for each in lists]
    values = {
        value: each for value, each in spelled[0].items() if each in types and value in spelled[-1]
    }
    return frozenset(values.values()), values


def type_of(value: object) -> str:
    """Return the type of a JSON value, one of TYPES."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == math.floor(value) else FRACTION
    if isinstance(value, str):
        return "string"
    return "array" if is_list(value) else "object"


def declared_types(schema: Table) -> frozenset[str]:
    """Return the types that the keyword `type` allows, all without one that is well-formed."""
    types = types_in(schema["type"]) if "type" in schema else None
    return TYPES if types is None else types


def types_in(value: object) -> frozenset[str] | None:
    """Return the types that the value of a keyword `type` allows; None if it is malformed."""
    types: set[str] = set()
    for name in list_of(value) if is_list(value) else [value]:
        if name == "number":
            types |= NUMBERS
        elif isinstance(name, str) and name in TYPES - {FRACTION}:
            types.add(name)
        else:
            return None
    return frozenset(types)
