"""A JSON Schema as a set of parts that all hold, and the findings about it.

Owns: dialects, keywords, references within a schema, and the verdicts with their order. Never:
comparing schemas (`containment`).

A reference that cannot be followed (to another document, to itself, or in a schema that has inner
schemas with their own `$id` or `$schema`) is reported as unclear and never guessed.
"""

import hashlib
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeGuard
from urllib.parse import unquote

from msgspec import Struct

from metamcp_supervisor.approval.lock import canonical

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


class TrialFailed(Exception):
    """A trial failed: it has a finding that is worse than ADDITIVE."""


class SchemaFindings:
    """List of findings. `inputs`: the schemas are of arguments, not of results; `strict`: nothing
    is assumed of callers; `trial`: the first finding that is worse than ADDITIVE raises Blocked."""

    def __init__(self, *, inputs: bool, strict: bool = False, trial: bool = False) -> None:
        self.inputs = inputs
        self.strict = strict
        self._trial = trial
        self._items: dict[tuple[str, str, str], SchemaFinding] = {}
        self.more = 0
        self.worst = SchemaVerdict.IDENTICAL

    @property
    def all(self) -> tuple[SchemaFinding, ...]:
        """Findings, the worst first, and then in the order of their places."""
        return tuple(sorted(self._items.values(), key=lambda each: (-each.weight, each.pointer)))

    def trial(self, *, strict: bool = False) -> "SchemaFindings":
        """Return a new list for an attempt that may fail."""
        return SchemaFindings(inputs=self.inputs, strict=self.strict or strict, trial=True)

    def add(self, weight: SchemaVerdict, pointer: str, kind: str, text: str) -> None:
        """Add a finding. Raises Blocked."""
        self.worst = max(self.worst, weight)
        if self._trial and weight > SchemaVerdict.ADDITIVE:
            raise TrialFailed
        key = pointer, kind, text
        if key in self._items:
            return
        if len(self._items) >= FINDINGS_MAX:
            self.more += 1
        else:
            self._items[key] = SchemaFinding(pointer, kind, text, weight)

    def suppose(self, pointer: str, kind: str, text: str) -> None:
        """Add a finding that is harmless as long as callers send only what the old definition
        names. Raises Blocked."""
        self.add(
            SchemaVerdict.BREAKING if self.strict else SchemaVerdict.ADDITIVE, pointer, kind, text
        )

    def take(self, others: "SchemaFindings") -> None:
        """Add all findings of another list. Raises Blocked."""
        for each in others.all:
            self.add(each.weight, each.pointer, each.kind, each.text)
        self.more += others.more


def word(text: str) -> str:
    """Return a word of a definition in the form that a sentence may repeat: cut, and with escapes
    for characters that are not printable."""
    cut = text if len(text) <= WORD_CHARACTERS_MAX else text[:WORD_CHARACTERS_MAX] + "…"
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in cut)


def words(texts: Iterable[str], most: int = 5) -> str:
    """Return texts as words of a sentence: `'a', 'b' and 3 more`."""
    every = list(texts)
    listing = ", ".join(f"'{word(each)}'" for each in every[:most])
    return f"{listing} and {len(every) - most} more" if len(every) > most else listing


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
DIALECTS = {
    "http://json-schema.org/draft-07/schema": "draft-07",
    "https://json-schema.org/draft/2019-09/schema": "2019-09",
    "https://json-schema.org/draft/2020-12/schema": "2020-12",
}
MODERN = "2020-12"
UNSAID = "unsaid"
"""Dialect of a schema that names none: 2020-12, but keywords of older dialects may count."""
_NOT_IN: Mapping[str, frozenset[str]] = {
    "draft-07": frozenset({
        "prefixItems", "dependentRequired", "dependentSchemas", "minContains", "maxContains",
        "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
    }),
    "2019-09": frozenset({"prefixItems", "dependencies", "$dynamicRef"}),
    "2020-12": frozenset({"dependencies", "additionalItems", "$recursiveRef"}),
    UNSAID: frozenset({"$recursiveRef"}),
}  # fmt: skip

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


class SchemaDigest(NamedTuple):
    """Digest of a schema, the same for all schemas that limit in the same words. `refers`: whether
    the schema contains a reference."""

    digest: bytes
    refers: bool


class SchemaRoot:
    """Whole schema. `place`: the JSON pointer to it; `dialect`: None if it is not known here."""

    def __init__(self, schema: object, place: str = "") -> None:
        self.schema = schema
        self.place = place
        named = str(table_of(schema).get("$schema", "")).removesuffix("#")
        self.dialect = DIALECTS.get(named) if named else UNSAID
        self.hidden = _NOT_IN[self.dialect or UNSAID]
        self._prints: dict[int, SchemaDigest] = {}
        self._anchors: dict[str, tuple[object, str]] = {}
        self._lists: dict[int, dict[bytes, object]] = {}
        self._refs: set[str] = set()
        self._nested_ids = False
        self._walk(schema, place)
        tables = [table_of(table_of(schema).get(key)) for key in ("$defs", "definitions")]
        self._defs = [{name: self.print(each) for name, each in defs.items()} for defs in tables]
        self._ends = all(
            ref.startswith(("#/$defs/", "#/definitions/")) or "://" in ref for ref in self._refs
        )

    def print(self, schema: object) -> SchemaDigest:
        """Return the print of a schema within this one."""
        cached = self._prints.get(id(schema))
        return self._make_print(schema) if cached is None else cached

    def index_by_json(self, values: list[object]) -> dict[bytes, object]:
        """Return the values of a list within this schema, by their canonical JSON."""
        if id(values) not in self._lists:
            self._lists[id(values)] = {canonical(value): value for value in values}
        return self._lists[id(values)]

    def alike(self, other: "SchemaRoot") -> bool:
        """Whether references lead to the same schemas in both."""
        mine, theirs = self, other
        return mine is theirs or (mine._ends and theirs._ends and mine._defs == theirs._defs)

    def resolve(self, ref: object) -> "SubSchema | None":
        """Return the schema that a reference within this one leads to; None if that is unclear."""
        if not isinstance(ref, str) or not ref.startswith("#") or self._nested_ids:
            return None
        if not ref[1:].startswith("/"):
            target = self._anchors.get(ref[1:])
            if not ref[1:]:
                target = self.schema, self.place
            return None if target is None else SubSchema(target[0], self, target[1])
        here, pointer = self.schema, self.place
        for token in unquote(ref[2:]).split("/"):
            key = token.replace("~1", "/").replace("~0", "~")
            if is_table(here) and key in here:
                here = here[key]
            elif is_list(here) and key.isdecimal() and int(key) < len(list_of(here)):
                here = list_of(here)[int(key)]
            else:
                return None
            pointer = step(pointer, key)
        return SubSchema(here, self, pointer) if isinstance(here, dict | bool) else None

    def _walk(self, schema: object, pointer: str) -> None:
        """Collect references and anchors, and the prints of all schemas in this one."""
        if not is_table(schema):
            return
        table = schema
        for key, value in table.items():
            below = step(pointer, key)
            if key in MAPS or (key == "dependencies" and is_table(value)):
                for name, each in table_of(value).items():
                    self._walk(each, step(below, name))
            elif key in LISTS | ONES and is_list(value):
                for at, each in enumerate(list_of(value)):
                    self._walk(each, step(below, at))
            elif key in ONES or key == "contentSchema":
                self._walk(value, below)
            elif key in ("$ref", "$dynamicRef", "$recursiveRef"):
                self._refs.add(str(value))
            elif key in ("$anchor", "$dynamicAnchor"):
                self._anchors[str(value)] = table, pointer
            elif key == "$id" and str(value).startswith("#"):
                self._anchors[str(value)[1:]] = table, pointer
            elif key in ("$id", "$schema") and pointer != self.place:
                self._nested_ids = True
        self._make_print(schema)

    def _make_print(self, schema: object) -> SchemaDigest:
        if not is_table(schema):
            return SchemaDigest(canonical(schema), False)
        refers = False
        digest = hashlib.sha256()
        table = schema
        for key in sorted(COUNTING & table.keys()):
            value = table[key]
            prints: list[SchemaDigest] = []
            if key in MAPS or (key in ONES and key == "dependencies"):
                names = sorted(table_of(value))
                digest.update(canonical([key, *names]))
                prints = [self.print(table_of(value)[name]) for name in names]
            elif key in LISTS or (key in ONES and is_list(value)):
                prints = [self.print(each) for each in list_of(value)]
                digest.update(canonical([key, len(prints)]))
            elif key in ONES:
                prints = [self.print(value)]
                digest.update(canonical(key))
            else:
                digest.update(canonical([key, value]))
            refers = refers or "$" in key or any(each.refers for each in prints)
            digest.update(b"".join(hashlib.sha256(each.digest).digest() for each in prints))
        made = self._prints[id(table)] = SchemaDigest(digest.digest(), refers)
        return made


class SubSchema(NamedTuple):
    """Schema within its root. `place`: the JSON pointer to it."""

    schema: object
    root: SchemaRoot
    place: str

    def get(self, keyword: str) -> object:
        """Return the value of a keyword; None if the dialect does not have the keyword."""
        return None if keyword in self.root.hidden else table_of(self.schema).get(keyword)

    def has(self, keyword: str) -> bool:
        return keyword not in self.root.hidden and keyword in table_of(self.schema)

    def descend(self, *keys: str | int) -> "SubSchema":
        """Return the schema at these keys, which must exist."""
        here = self.schema
        for key in keys:
            here = list_of(here)[key] if isinstance(key, int) else table_of(here)[key]
        return SubSchema(here, self.root, step(self.place, *keys))

    def at(self, *keys: str | int) -> str:
        return step(self.place, *keys)

    @property
    def free(self) -> bool:
        """Whether every value is valid."""
        if not is_table(self.schema):
            return self.schema is True
        return not COUNTING & self.schema.keys()

    @property
    def never(self) -> bool:
        return self.schema is False

    def equals(self, other: "SubSchema") -> bool:
        """Whether both say the same in the same words."""
        mine, theirs = self.root.print(self.schema), other.root.print(other.schema)
        return (
            mine.digest == theirs.digest
            and self.root.dialect == other.root.dialect
            and (not mine.refers or self.root.alike(other.root))
        )


class FlattenedParts(NamedTuple):
    """Parts that all hold, with references and `allOf` followed. `unclear`: parts that could not be
    followed; `never`: the part for which no value is valid, if there is one."""

    parts: tuple[SubSchema, ...]
    unclear: tuple[SubSchema, ...] = ()
    never: SubSchema | None = None


def flat(parts: Iterable[SubSchema]) -> FlattenedParts:
    flattened: list[SubSchema] = []
    unclear: list[SubSchema] = []
    never: SubSchema | None = None
    seen: set[int] = set()
    nowhere: frozenset[int] = frozenset()
    waiting = [(subschema, nowhere) for subschema in parts][::-1]
    while waiting:
        subschema, above = waiting.pop()
        if not is_table(subschema.schema):
            if subschema.never:
                never = subschema
            elif subschema.schema is not True:
                unclear.append(subschema)
            continue
        here = id(subschema.schema)
        if here in above:
            unclear.append(subschema)  # it refers to itself and to nothing in between
            continue
        if here in seen:
            continue
        seen.add(here)
        inside = above | {here}
        if subschema.has("$ref"):
            target = subschema.root.resolve(subschema.get("$ref"))
            if target is None:
                unclear.append(subschema)
            else:
                waiting.append((target, inside))
            if subschema.root.dialect == "draft-07":
                continue  # what stands beside a reference does not count
        flattened.append(subschema)
        waiting += [
            (subschema.descend("allOf", at), inside)
            for at in range(len(list_of(subschema.get("allOf"))))
        ]
    return FlattenedParts(tuple(flattened), tuple(unclear), never)
