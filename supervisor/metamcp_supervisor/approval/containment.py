"""Whether everything that is valid for one schema is valid for another, and where it is not.

Owns: the walk through both schemas together, the rule of each keyword, the sentences, and the
limits of that work. Never: what a keyword of one schema says (`schema`).

A *have* is compared with a *want* at the same place: each keyword of the want must follow from the
same keyword of the have. The want must accept each alternative (`anyOf`) of the have, and one
alternative of the want all that the have does. A keyword that is narrower is BREAKING, and
UNKNOWN where the have has other limits, here or above, that are not compared: they may refuse the
same values. Keywords without a rule (references, conditions, patterns, formats, …) must be the same
or be gone from the want; otherwise they are UNKNOWN.

A schema that does not limit other members allows any. Callers do not send members that the old
definition does not name, so a member that is newly named counts as added, not as narrowed. No other
assumption is made about callers, and the verdict shows this one: the finding is ADDITIVE and not
COMPATIBLE. Results are compared without any assumption.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from math import floor
from typing import NamedTuple

from metamcp_supervisor.approval.lock import canonical
from metamcp_supervisor.approval.schema import (
    COUNTING,
    FRACTION,
    NUMBERS,
    OF_ITS_OWN,
    TYPES,
    SchemaFindings,
    SchemaVerdict,
    Table,
    declared_types,
    dialect_of,
    is_list,
    is_table,
    list_of,
    number_of,
    read_values,
    refer_to_same,
    select_limits,
    step,
    table_of,
    types_in,
    word,
)

STEPS_MAX = 4000
"""Maximum steps of one comparison, about a second of work; a step is a pair of schemas, or some of
the names and values in one. Large tools need some hundreds."""
NAMES_PER_STEP = 20
LEVELS_MAX = 48
"""Maximum levels of schemas inside schemas."""
_UNITS = {
    "Length": ("string", "characters"),
    "Items": ("array", "items"),
    "Properties": ("object", "members"),
}
_SIZES = {f"{bound}{name}": kind for name, kind in _UNITS.items() for bound in ("min", "max")}
"""Keywords for sizes, with the type of values that have this size, and the unit."""
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_SHAPES: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys((*_BOUNDS, *_SIZES), lambda value: number_of(value) is not None),
    "type": lambda value: types_in(value) is not None,
    "enum": is_list,
    "const": lambda _: True,
    "required": lambda value: is_list(value) and all(isinstance(each, str) for each in value),
    "properties": is_table,
    "additionalProperties": lambda value: not is_list(value),
}
"""Keywords with a rule, and whether a value is one that JSON Schema has."""
_UNRULED = COUNTING - _SHAPES.keys() - {"items"}
_CLEAR = frozenset({
    "pattern", "format", "contentEncoding", "contentMediaType", "multipleOf", "uniqueItems",
})  # fmt: skip
"""Keywords without a rule that name no members and leave the effect of other keywords clear."""
_OF_PLACE = frozenset({"unevaluatedItems", "unevaluatedProperties"})
"""Keywords that limit in another way where another keyword changes."""
_REFERRING = OF_ITS_OWN | {"$ref", "$dynamicRef", "$recursiveRef"}
"""Keywords beside which others may mean something else, or nothing."""
_GROUPS = (
    ("items", "prefixItems", "additionalItems"),
    ("properties", "additionalProperties", "patternProperties"),
    ("if", "then", "else"),
    ("contains", "minContains", "maxContains"),
)
"""Keywords that limit together."""
UNJUDGED = frozenset({"unjudged", "reference", "names", "malformed", "limit"})
"""Kinds of findings that say nothing about which values are valid."""
_SHOWN_CHARACTERS = 60
_SPOKEN = {
    "null": "null", "boolean": "a boolean", "object": "an object", "array": "an array",
    "string": "a string", "integer": "a whole number", FRACTION: "a number that is not whole",
}  # fmt: skip
_NEVER_SAME = rb'"\$(dynamic|recursive)Ref":'
_OF_DIALECT = (
    rb'|"(\$ref|prefixItems|additionalItems|depend\w+|m..Contains|unevaluated\w+)":|"items":\['
)
"""Keywords in canonical JSON that limit in another way elsewhere, and in another dialect."""


def find_narrowed(have: object, want: object, pointer: str, *, inputs: bool) -> SchemaFindings:
    """Return findings for values that are valid for `have` and not for `want`."""
    findings = SchemaFindings(inputs=inputs)
    mine, theirs = select_limits(have), select_limits(want)
    differing = _NEVER_SAME
    if dialect_of(have) != dialect_of(want):
        differing += _OF_DIALECT
    has_id = any("$id" in table_of(each) for each in (have, want))
    if not refer_to_same(mine, theirs, has_id=has_id):
        differing += rb'|"\$ref":'
    check = ContainmentCheck(findings, re.compile(differing))
    # Arguments and structured results are objects, whatever their schemas say of other values.
    check.compare(mine, theirs, pointer, SchemaVerdict.BREAKING, frozenset({"object"}))
    return findings


class SchemaPair(NamedTuple):
    """Two schemas that are compared. `pointer`: the JSON pointer to the want; `weight`: the verdict
    on a keyword that is narrower; `types`, `values`: of the have."""

    have: Table
    want: Table
    pointer: str
    weight: SchemaVerdict
    types: frozenset[str]
    values: Mapping[bytes, str] | None

    def at(self, *keys: str) -> str:
        return step(self.pointer, *keys)


class ContainmentCheck:
    """Comparison of two schemas, with the limits on its work. `differing`: text in canonical JSON
    that may mean something else in the two schemas."""

    def __init__(self, findings: SchemaFindings, differing: re.Pattern[bytes]) -> None:
        self._findings = findings
        self._inputs = findings.inputs
        self._differing = differing
        self._steps = 0
        self._level = 0

    def compare(
        self,
        have: object,
        want: object,
        pointer: str,
        weight: SchemaVerdict,
        types: frozenset[str] = TYPES,
    ) -> None:
        """Compare the limits of two schemas, for values of these types."""
        if have is False or want is True or self._are_same(have, want):
            return
        mine, theirs = table_of(have), table_of(want)
        if self._exceeds_limit(mine, theirs, pointer):
            return
        if self._fits_one(mine, theirs, pointer, types):
            remaining = {key: value for key, value in theirs.items() if key != "anyOf"}
            self.compare(have, remaining or True, pointer, weight, types)
        elif self._do_all_fit(mine, want, pointer, types):
            return
        elif not _REFERRING.isdisjoint(mine.keys() | theirs.keys()):
            text = "Whether it refers to the same as before cannot be judged."
            self._add(SchemaVerdict.UNKNOWN, pointer, "reference", text)
        elif want is False:
            self._add(weight, pointer, "nothing", "Nothing is valid here.")
        elif not is_table(want):
            text = "This is not a JSON Schema."
            self._add(SchemaVerdict.UNKNOWN, pointer, "malformed", text)
        else:
            own_types, values = read_values(mine)
            pair = SchemaPair(mine, theirs, pointer, weight, types & own_types, values)
            self._level += 1
            self._compare_pair(pair)
            self._level -= 1

    def _fits_one(self, have: Table, want: Table, pointer: str, types: frozenset[str]) -> bool:
        """Whether the want has alternatives, and one of them accepts what the have does. If so, add
        what that alternative accepts besides."""
        alternatives = list_of(want.get("anyOf"))
        if not (_REFERRING | _OF_PLACE).isdisjoint(want):
            return False
        for number, alternative in enumerate(alternatives):
            location = step(pointer, "anyOf", number)
            findings = self._try(have, alternative, location, types)
            if findings.worst < SchemaVerdict.UNKNOWN:
                self._findings.take(findings)
                return True
        return False

    def _do_all_fit(self, have: Table, want: object, pointer: str, types: frozenset[str]) -> bool:
        """Whether the have has alternatives, and the want accepts all that each of them does; what
        one of them names, a caller may send with another."""
        alternatives = list_of(have.get("anyOf", have.get("oneOf")))
        if not alternatives or not _REFERRING.isdisjoint(have):
            return False
        return all(
            self._try(alternative, want, pointer, types).worst < SchemaVerdict.ADDITIVE
            for alternative in alternatives
        )

    def _try(
        self, have: object, want: object, pointer: str, types: frozenset[str]
    ) -> SchemaFindings:
        """Compare two schemas, and return the findings without adding them."""
        outer, self._findings = self._findings, SchemaFindings(inputs=self._inputs)
        self._level += 1
        self.compare(have, want, pointer, SchemaVerdict.BREAKING, types)
        self._level -= 1
        findings, self._findings = self._findings, outer
        return findings

    def _are_same(self, have: object, want: object) -> bool:
        if have != want:
            return False
        text = canonical(have)
        return text == canonical(want) and not self._differing.search(text)

    def _exceeds_limit(self, have: Table, want: Table, pointer: str) -> bool:
        """Count the steps for a pair. Return whether a limit is reached; if so, report it."""
        lists = (
            each
            for table in (have, want)
            for each in table.values()
            if is_list(each) or is_table(each)
        )
        self._steps += 1 + sum(map(len, lists)) // NAMES_PER_STEP
        if self._steps <= STEPS_MAX and self._level < LEVELS_MAX:
            return False
        problem = "is too large" if self._steps > STEPS_MAX else "is nested too deeply"
        self._add(SchemaVerdict.UNKNOWN, pointer, "limit", f"The schema {problem} to be judged.")
        return True

    def _add(
        self, weight: SchemaVerdict, pointer: str, kind: str, text: str, other: str = ""
    ) -> None:
        """Add a finding. `other`: the text for results, if it is another one."""
        self._findings.add(weight, pointer, kind, text if self._inputs else other or text)

    def _compare_pair(self, pair: SchemaPair) -> None:
        if not _UNRULED.isdisjoint(pair.have.keys() - _CLEAR):
            pair = pair._replace(weight=SchemaVerdict.UNKNOWN)
        self._compare_types(pair)
        self._compare_values(pair)
        if pair.values is not None:
            pair = pair._replace(weight=SchemaVerdict.UNKNOWN)  # it may fit all the values
        shared = _find_shared(pair)
        for keyword in pair.want:
            if keyword in _SHAPES and not _SHAPES[keyword](pair.want[keyword]):
                text = f"'{keyword}' is not what JSON Schema knows."
                self._add(SchemaVerdict.UNKNOWN, pair.at(keyword), "malformed", text)
            elif keyword in _UNRULED or keyword in shared:
                self._compare_unruled(pair, keyword)
            elif keyword in _BOUNDS and pair.types & NUMBERS:
                self._compare_bound(pair, keyword)
            elif keyword in _SIZES and _SIZES[keyword][0] in pair.types:
                self._compare_size(pair, keyword)
        if "object" in pair.types:
            self._compare_required(pair)
        if "object" in pair.types and "properties" not in shared:
            self._compare_members(pair)
            self._compare_others(pair)
        if "array" in pair.types and "items" not in shared:
            mine, theirs = (each.get("items", True) for each in (pair.have, pair.want))
            self.compare(mine, theirs, pair.at("items"), pair.weight)

    def _compare_unruled(self, pair: SchemaPair, keyword: str) -> None:
        group = next((each for each in _GROUPS if keyword in each), (keyword,))
        mine, theirs = ({key: each.get(key) for key in group} for each in (pair.have, pair.want))
        if keyword in _OF_PLACE or not self._are_same(mine, theirs):
            text = f"What '{keyword}' comes to here cannot be judged."
            self._add(SchemaVerdict.UNKNOWN, pair.at(keyword), "unjudged", text)

    # Values

    def _compare_types(self, pair: SchemaPair) -> None:
        lost = pair.types - declared_types(pair.want)
        if lost:
            text = f"It must not be {describe_types(lost)} any more."
            other = f"It may be {describe_types(lost)} now, which it was not."
            self._add(pair.weight, pair.at("type"), "type", text, other)

    def _compare_values(self, pair: SchemaPair) -> None:
        keyword = "const" if "const" in pair.want else "enum"
        allowed = read_values(pair.want)[1]
        if allowed is None or keyword not in pair.want:
            return
        text = "Only certain values are valid now."
        other = "It may be any value now, where it was one of a list."
        if pair.values is not None:
            lost = [value for value in pair.values if value not in allowed]
            if not lost:
                return
            text = f"{_format_values(lost)} is not valid any more."
            other = f"It may be {_format_values(lost)} now, which it was not."
        self._add(pair.weight, pair.at(keyword), "values", text, other)

    def _compare_bound(self, pair: SchemaPair, keyword: str) -> None:
        value, excluded = number_of(pair.want[keyword]) or 0, keyword.startswith("ex")
        upper = keyword in _BOUNDS[2:]
        if not _is_within(pair, (value, excluded), upper=upper):
            less, more = ("less", "more") if upper else ("more", "less")
            bound = f"{less} than" if excluded else "at most" if upper else "at least"
            text = f"It must be {bound} {value} now."
            other = f"It may be {more} than {value} now, which it was not."
            self._add(pair.weight, pair.at(keyword), "bounds", text, other)

    def _compare_size(self, pair: SchemaPair, keyword: str) -> None:
        mine, value = (number_of(each.get(keyword)) or 0 for each in (pair.have, pair.want))
        least, unit = keyword.startswith("min"), _SIZES[keyword][1]
        if mine < value if least else keyword not in pair.have or mine > value:
            bound, beyond = ("at least", "less") if least else ("at most", "more")
            text = f"It must have {bound} {value} {unit} now."
            other = f"It may have {beyond} than {value} {unit} now, which it had not."
            self._add(pair.weight, pair.at(keyword), "size", text, other)

    # Items and members

    def _compare_required(self, pair: SchemaPair) -> None:
        for name in sorted(_names(pair.want) - _names(pair.have)):
            text, other = (
                f"'{word(name)}' {each} now." for each in ("must be given", "may be missing")
            )
            self._add(pair.weight, pair.at("required"), "required", text, other)

    def _compare_members(self, pair: SchemaPair) -> None:
        """Compare the members that the want names."""
        members, others = table_of(pair.have.get("properties")), _others(pair.have)
        required, needed = _names(pair.have), _names(pair.want)
        for name, theirs in table_of(pair.want.get("properties")).items():
            pointer, mine = pair.at("properties", name), members.get(name, others)
            if mine is False:
                if self._inputs and theirs is not False:
                    text = f"'{word(name)}' may be given, too."
                    self._add(SchemaVerdict.ADDITIVE, pointer, "member-added", text)
            elif name in members or mine is not True or name in required:
                self.compare(mine, theirs, pointer, pair.weight)
            elif name not in needed:
                self._compare_new(pair, name, theirs)

    def _compare_new(self, pair: SchemaPair, name: str, member: object) -> None:
        """Compare a member that only the want names, where the have accepts any."""
        pointer = pair.at("properties", name)
        if not self._inputs:
            if member is not True:
                text = f"'{word(name)}' is not described any more."
                self._add(pair.weight, pointer, "member-removed", text)
        elif member is True or pair.weight is SchemaVerdict.BREAKING:
            text = f"'{word(name)}' may be given, too."
            self._add(SchemaVerdict.ADDITIVE, pointer, "member-added", text)
        else:
            text = f"Whether '{word(name)}' was limited before cannot be judged."
            self._add(SchemaVerdict.UNKNOWN, pointer, "names", text)

    def _compare_others(self, pair: SchemaPair) -> None:
        """Compare the members that the want does not name."""
        mine, theirs = _others(pair.have), _others(pair.want)
        pointer, named = pair.at("additionalProperties"), table_of(pair.want.get("properties"))
        for name, member in table_of(pair.have.get("properties")).items():
            if name in named or member is False:
                continue
            if theirs is True:
                self._report_unnamed(name, pair.at("properties", name))
            elif theirs is False:
                text = f"'{word(name)}' is not accepted any more."
                other = f"'{word(name)}' may be there now, where nothing else might be."
                self._add(pair.weight, pointer, "member-removed", text, other)
            else:
                self.compare(member, theirs, pointer, pair.weight)
        if theirs is False and mine is not False:
            text = "Members that are not named are not accepted any more."
            other = "There may be members now that are not described."
            self._add(pair.weight, pointer, "closed", text, other)
        else:
            self.compare(mine, theirs, pointer, pair.weight)

    def _report_unnamed(self, name: str, pointer: str) -> None:
        if self._inputs:
            text = f"'{word(name)}' is not named any more; it is still accepted."
            self._add(SchemaVerdict.COMPATIBLE, pointer, "member-unnamed", text)
        else:
            text = f"'{word(name)}' may be there, too."
            self._add(SchemaVerdict.ADDITIVE, pointer, "member-added", text)


def describe_types(types: Iterable[str]) -> str:
    distinct = set(types)
    names = ["a number"] if distinct >= NUMBERS else []
    remaining = distinct - NUMBERS if names else distinct
    return " or ".join([*names, *(text for key, text in _SPOKEN.items() if key in remaining)])


def _find_shared(pair: SchemaPair) -> set[str]:
    """Return keywords for members or items that others limit, too."""
    keywords = pair.have.keys() | pair.want.keys()
    shared = {"properties", "additionalProperties"} if "patternProperties" in keywords else set()
    lists = is_list(pair.have.get("items")) or is_list(pair.want.get("items"))
    return shared | {"items"} if lists or keywords & {"prefixItems", "additionalItems"} else shared


def _others(schema: Table) -> object:
    """Return the schema of members that are not named."""
    return schema.get("additionalProperties", True)


def _names(schema: Table) -> set[str]:
    """Return the required members."""
    return {name for name in list_of(schema.get("required")) if isinstance(name, str)}


def _is_within(pair: SchemaPair, needed: tuple[float, bool], *, upper: bool) -> bool:
    """Whether numbers of the have are within a bound: its value, and whether that is excluded."""
    for keyword in _BOUNDS[2:] if upper else _BOUNDS[:2]:
        value, excluded = number_of(pair.have.get(keyword)), keyword.startswith("ex")
        if value is None:
            continue
        if excluded and FRACTION not in pair.types and value == floor(value):
            value, excluded = floor(value) + (-1 if upper else 1), False
        if value == needed[0]:
            if excluded >= needed[1]:
                return True
        elif (value < needed[0]) == upper:
            return True
    return False


def _format_values(spelled: list[bytes], most: int = 5) -> str:
    texts = [each.decode("utf-8", "replace") for each in spelled[:most]]
    cut = [
        each if len(each) <= _SHOWN_CHARACTERS else f"{each[:_SHOWN_CHARACTERS]}…" for each in texts
    ]
    more = f" and {len(spelled) - most} more" if len(spelled) > most else ""
    return ", ".join(word(each) for each in cut) + more
