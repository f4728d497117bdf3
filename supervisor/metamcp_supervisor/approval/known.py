"""Facts about a value that is valid for several parts of a schema at once.

Owns: types, possible values, bounds, the facts about a member or an item. Never: comparing two
schemas (`containment`).

Every fact here follows from the parts, but not every consequence of the parts is found: a
comparison may rely on a fact that is here, and must not conclude anything from a missing one.
"""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from metamcp_supervisor.approval.lock import canonical
from metamcp_supervisor.approval.schema import (
    MODERN,
    FlattenedParts,
    SubSchema,
    is_list,
    is_table,
    list_of,
    table_of,
)

FRACTION = "fraction"
"""Type of a number that is not whole. JSON Schema's `number` is `fraction` or `integer`."""
TYPES = frozenset({"null", "boolean", "object", "array", "string", "integer", FRACTION})
NUMBERS = frozenset({"integer", FRACTION})
_CLOUDS = frozenset({
    "not", "if", "anyOf", "oneOf", "dependentSchemas", "dependencies", "dependentRequired",
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "contains",
    "propertyNames",
})  # fmt: skip
"""Keywords that may limit a value more than the facts here say."""


class Case(NamedTuple):
    """Parts that all hold, after alternatives were chosen. `chosen`: the keywords of these
    alternatives, by the id of their schema; `types`: the types in question; `unclear`: whether
    something is left out that could limit more."""

    parts: tuple[SubSchema, ...]
    chosen: frozenset[tuple[int, str]] = frozenset()
    types: frozenset[str] = TYPES
    unclear: bool = False

    @classmethod
    def of(cls, flattened: FlattenedParts) -> "Case":
        return cls(flattened.parts, unclear=bool(flattened.unclear))


class MemberFacts(NamedTuple):
    """Facts about a member or an item. `implied`: no schema says anything about it; `clouded`: the
    schemas may limit it more than `parts` says; `named`: a part names it."""

    parts: tuple[SubSchema, ...] = ()
    implied: bool = True
    clouded: bool = False
    named: bool = False

    @property
    def is_unconstrained(self) -> bool:
        """Whether the member is not named and may have any value."""
        return (
            not self.clouded and all(subschema.free for subschema in self.parts) and not self.named
        )

    @property
    def never(self) -> bool:
        return any(subschema.never for subschema in self.parts)


class NumberBound(NamedTuple):
    value: float
    open: bool

    def beyond(self, other: "NumberBound", *, upper: bool) -> bool:
        """Whether this bound leaves no more room than the other."""
        if self.value == other.value:
            return self.open or not other.open
        return self.value < other.value if upper else self.value > other.value


class KnownValues:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.values = _values(case.parts)
        self.types = case.types & _types(case.parts)
        if self.values is not None:
            fitting = {k: v for k, v in self.values.items() if type_of(v) in self.types}
            self.values = fitting
            self.types = self.types & {type_of(value) for value in fitting.values()}
        self.required = frozenset(
            name for subschema in case.parts for name in list_of(subschema.get("required"))
            if isinstance(name, str)
        )  # fmt: skip
        self.unclear = case.unclear or any(
            subschema.has(key) and (id(subschema.schema), key) not in case.chosen
            for subschema in case.parts
            for key in _CLOUDS & table_of(subschema.schema).keys()
        )

    @property
    def choosy(self) -> bool:
        """Whether the limits of members depend on other members."""
        return any(
            subschema.has(key) for subschema in self.case.parts for key in ("anyOf", "oneOf", "if")
        )

    @property
    def void(self) -> bool:
        """Whether no value is valid."""
        return not self.types

    def finite(self) -> Mapping[bytes, object] | None:
        """Return every possible value, by its spelling; None if the values cannot be listed."""
        if self.values is not None:
            return self.values
        if self.types and self.types <= {"null", "boolean"}:
            every: list[object] = [None] if "null" in self.types else []
            every += [True, False] if "boolean" in self.types else []
            return {canonical(each): each for each in every}
        return None

    def find_bound(self, *, upper: bool) -> NumberBound | None:
        """Return the narrowest bound of numbers; None if there is none."""
        best: NumberBound | None = None
        keys = ("maximum", "exclusiveMaximum") if upper else ("minimum", "exclusiveMinimum")
        for subschema in self.case.parts:
            for key in keys:
                value = number_of(subschema.get(key))
                if value is None:
                    continue
                candidate = NumberBound(value, key.startswith("ex"))
                if best is None or candidate.beyond(best, upper=upper):
                    best = candidate
        if best is None or FRACTION in self.types or best.value != math.floor(best.value):
            return best
        return NumberBound(best.value + (-1 if upper else 1), open=False) if best.open else best

    def most(self, key: str) -> float | None:
        """Return the smallest value of `maxLength` and the like; None if there is none."""
        limits = [
            v for subschema in self.case.parts if (v := number_of(subschema.get(key))) is not None
        ]
        if key == "maxItems":
            limits += [
                len(prefix)
                for subschema in self.case.parts
                for prefix, tail in [tuple_of(subschema)]
                if tail is not None and tail.never
            ]
        if key == "maxProperties":
            limits += [
                len(table_of(subschema.get("properties")))
                for subschema in self.case.parts
                if subschema.get("additionalProperties") is False
                and not subschema.has("patternProperties")
            ]
        return min(limits, default=None)

    def least(self, key: str) -> float:
        """Return the largest value of `minLength` and the like."""
        limits = [
            v for subschema in self.case.parts if (v := number_of(subschema.get(key))) is not None
        ]
        return max([*limits, len(self.required) if key == "minProperties" else 0])

    def multiples(self) -> list[Fraction]:
        steps = [number_of(subschema.get("multipleOf")) for subschema in self.case.parts]
        exact = [_exact(each) for each in steps if each]
        return exact if FRACTION in self.types else [*exact, Fraction(1)]

    def spellings(self, key: str) -> set[bytes]:
        """Return the values of this keyword in the parts, in canonical JSON."""
        return {
            canonical(subschema.get(key)) for subschema in self.case.parts if subschema.has(key)
        }

    def collect_members(self) -> dict[str, None]:
        """Return every member that a part names, in order."""
        return {
            name: None
            for subschema in self.case.parts
            for name in table_of(subschema.get("properties"))
        }

    def member(self, name: str) -> MemberFacts:
        subschemas: list[SubSchema] = []
        clouded = False
        for subschema in self.case.parts:
            if name in table_of(subschema.get("properties")):
                subschemas.append(subschema.descend("properties", name))
            elif table_of(subschema.get("patternProperties")):
                clouded = True
            elif subschema.has("additionalProperties"):
                subschemas.append(subschema.descend("additionalProperties"))
            elif subschema.has("unevaluatedProperties"):
                clouded = True
        named = name in self.collect_members()
        return MemberFacts(tuple(subschemas), not subschemas and not clouded, clouded, named)

    def others(self) -> MemberFacts:
        """Return the facts about members that no part names."""
        subschemas: list[SubSchema] = []
        clouded = False
        for subschema in self.case.parts:
            if table_of(subschema.get("patternProperties")):
                clouded = True
            elif subschema.has("additionalProperties"):
                subschemas.append(subschema.descend("additionalProperties"))
            elif subschema.has("unevaluatedProperties"):
                clouded = True
        return MemberFacts(tuple(subschemas), not subschemas and not clouded, clouded)

    def item(self, at: int) -> MemberFacts:
        subschemas: list[SubSchema] = []
        for subschema in self.case.parts:
            prefix, tail = tuple_of(subschema)
            each = prefix[at] if at < len(prefix) else tail
            if each is not None:
                subschemas.append(each)
        clouded = any(subschema.has("unevaluatedItems") for subschema in self.case.parts)
        return MemberFacts(tuple(subschemas), not subschemas and not clouded, clouded)

    def prefix(self) -> int:
        """Return the index from which on all items have the same schema."""
        return max((len(tuple_of(subschema)[0]) for subschema in self.case.parts), default=0)


def tuple_of(subschema: SubSchema) -> tuple[tuple[SubSchema, ...], SubSchema | None]:
    """Return the schemas of the first items, and the schema of all others or None."""
    items = subschema.get("items")
    if is_list(items) and subschema.root.dialect == MODERN:
        return (), None  # it does not have that
    if is_list(items):
        prefix = tuple(subschema.descend("items", at) for at in range(len(list_of(items))))
        beyond = subschema.has("additionalItems")
        return prefix, subschema.descend("additionalItems") if beyond else None
    first = range(len(list_of(subschema.get("prefixItems"))))
    prefix = tuple(subschema.descend("prefixItems", at) for at in first)
    return prefix, subschema.descend("items") if subschema.has("items") else None


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


def types_in(value: object) -> frozenset[str] | None:
    """Return the types that the value of a keyword `type` allows; None if it is malformed."""
    if value is None:
        return TYPES
    names = list_of(value) if is_list(value) else [value]
    types: set[str] = set()
    for name in names:
        if name == "number":
            types |= NUMBERS
        elif isinstance(name, str) and name in TYPES - {FRACTION}:
            types.add(name)
        else:
            return None
    return frozenset(types)


def number_of(value: object) -> float | None:
    """Return `value` if it is a number, else None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def divides(step: Fraction, value: float | Fraction) -> bool:
    fraction = value if isinstance(value, Fraction) else _exact(value)
    return step > 0 and (fraction / step).denominator == 1


def exact(value: float) -> Fraction:
    """Return the fraction that people mean when they write this number: 0.1 is a tenth."""
    return _exact(value)


def _exact(value: float) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def as_schema(value: object) -> dict[str, object]:
    """Return a schema for which only this value is valid, in keywords that comparisons read."""
    schema: dict[str, object] = {"const": value}
    if isinstance(value, str):
        schema |= {"minLength": len(value), "maxLength": len(value)}
    elif is_list(value):
        items = value
        each: list[object] = [{"const": item} for item in items]
        schema |= {"prefixItems": each, "items": False}
        schema |= {"minItems": len(items), "maxItems": len(items)}
        schema["uniqueItems"] = len({canonical(item) for item in items}) == len(items)
    elif is_table(value):
        members = value
        schema |= {
            "properties": {name: {"const": each} for name, each in members.items()},
            "required": list(members),
            "additionalProperties": False,
        }
    elif number_of(value) is not None:
        schema |= {"minimum": value, "maximum": value}
    return schema


def _types(parts: Iterable[SubSchema]) -> frozenset[str]:
    types = TYPES
    for subschema in parts:
        types &= types_in(subschema.get("type")) or TYPES
    return types


def _values(parts: Iterable[SubSchema]) -> dict[bytes, object] | None:
    values: dict[bytes, object] | None = None
    for subschema in parts:
        allowed: list[dict[bytes, object]] = []
        if subschema.has("const"):
            allowed.append({canonical(subschema.get("const")): subschema.get("const")})
        if is_list(subschema.get("enum")):
            allowed.append(subschema.root.index_by_json(list_of(subschema.get("enum"))))
        for spelled in allowed:
            values = (
                spelled if values is None else {k: v for k, v in values.items() if k in spelled}
            )
    return values
