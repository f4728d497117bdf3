"""Whether everything that is valid for one schema is valid for another, and where it is not.

Owns: the walk through both schemas together, the cases of the first, the choices of the second, and
the limits of that work. Never: the comparison of single keywords (`keywords`).

A *have* (parts that all hold) is compared with a *want* (one schema). Each keyword of the want must
follow from what is known of the have. A have with alternatives (`anyOf`, `oneOf`, `if`, a list of
values, more than one type) is split into cases, and every case must fit; of a want with
alternatives, one must fit. A pair of schemas that appears again inside its own comparison, further
down in the value, counts as fitting: values are finite, so the innermost value that does not fit is
found at its own place.

A keyword that does not follow is BREAKING where both schemas show that there is a value which the
want refuses, and UNKNOWN otherwise. A have is never said to fit without proof.
"""

from collections.abc import Iterator, Mapping

from metamcp_supervisor.approval import keywords
from metamcp_supervisor.approval.known import NUMBERS, Case, KnownValues, as_schema
from metamcp_supervisor.approval.schema import (
    COUNTING,
    Blocked,
    Flat,
    Root,
    SchemaFindings,
    SchemaVerdict,
    SubSchema,
    flat,
    is_list,
    list_of,
    table_of,
)

STEPS_MAX = 4000
"""Maximum steps of one comparison, about a second of work; a step is a pair of schemas or a case of
one. Large tools need some hundreds."""
PARTS_PER_STEP = 2
LEVELS_MAX = 48
"""Maximum levels of schemas inside schemas, with references followed."""
CASES_MAX = 64
"""Maximum cases that a have is split into; alternatives beyond it stay unsplit and count as
unclear."""
VALUES_MAX = 64
"""Maximum values of a list that is split into one case for each value."""
_CHOICES = frozenset({"anyOf", "oneOf", "if", "not"})
_PLAIN = frozenset({"type", "enum", "const"})
"""Keywords that are judged for all values of a list at once."""
_SHAPES: Mapping[str, type | tuple[type, type]] = {
    "allOf": list, "anyOf": list, "oneOf": list, "prefixItems": list, "required": list,
    "enum": list, "uniqueItems": bool, "properties": dict, "patternProperties": dict,
    "dependentRequired": dict, "dependentSchemas": dict, "dependencies": dict,
    "additionalProperties": (dict, bool),
}  # fmt: skip
"""Types that the values of keywords must have. The effect of a keyword with a value of another type
is not known."""
_UNJUDGED = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")


class Judge:
    """Comparison of two schemas, with the limits on its work."""

    def __init__(self) -> None:
        self._steps = 0
        self._level = 0
        self._open: set[tuple[object, ...]] = set()

    def within(self, have: tuple[SubSchema, ...], want: SubSchema, found: SchemaFindings) -> None:
        """Compare the schemas of a member or an item, a step down in the value. Raises Blocked."""
        if want.free:
            return
        key = (
            frozenset((id(part.root), part.root.print(part.schema)) for part in have),
            id(want.root),
            want.root.print(want.schema),
            found.strict,
        )
        if key in self._open:
            return
        self._open.add(key)
        try:
            below = flat(have)
            if below.never is None:
                self.also(Case.of(below), want, found)
        finally:
            self._open.discard(key)

    def also(self, have: Case, want: SubSchema, found: SchemaFindings) -> None:
        """Compare the have with another schema for the same value. Raises Blocked."""
        if want.free or self._spent(have, want, found):
            return
        self._level += 1
        try:
            self._whole(have, want, found)
        finally:
            self._level -= 1

    def _spent(self, have: Case, want: SubSchema, found: SchemaFindings) -> bool:
        """Count a step, or several for a have of many parts. Return whether a limit is reached; if
        so, report it. Raises Blocked."""
        self._steps += 1 + len(have.parts) // PARTS_PER_STEP
        if self._steps <= STEPS_MAX and self._level < LEVELS_MAX:
            return False
        what = "is too large" if self._steps > STEPS_MAX else "is nested too deeply"
        found.add(SchemaVerdict.UNKNOWN, want.place, "limit", f"The schema {what} to be judged.")
        return True

    def holds(
        self, have: Case, want: SubSchema, found: SchemaFindings, *, strict: bool = False
    ) -> bool:
        """Whether the want follows from the have. Unless `strict`, callers are assumed to send only
        what the old definition names, and findings about that are added to `found`."""
        tried = found.trial(strict=strict)
        try:
            self.also(have, want, tried)
        except Blocked:
            return False
        if not strict:
            found.take(tried)
        return True

    def equivalent(self, one: SubSchema, other: SubSchema, found: SchemaFindings) -> bool:
        """Whether the same values are valid for both."""
        if one.equals(other):
            return True
        return all(
            self.holds(Case.of(flat([a])), b, found, strict=True)
            for a, b in ((one, other), (other, one))
        )

    def apart(self, have: Case, other: SubSchema) -> bool:
        """Whether no value can be valid for both. False if the answer is not known."""
        self._steps += 1
        if self._steps > STEPS_MAX or self._level >= LEVELS_MAX:
            return False
        self._level += 1
        try:
            return self._apart(have, other)
        finally:
            self._level -= 1

    def _apart(self, have: Case, other: SubSchema) -> bool:
        found = flat([other])
        if found.never is not None:
            return True
        one, two = KnownValues(have), KnownValues(Case.of(found))
        types = one.types & two.types
        if not types:
            return True
        mine, theirs = one.finite(), two.finite()
        if mine is not None and theirs is not None and not mine.keys() & theirs.keys():
            return True
        if types - {"object"}:
            return False
        for name in sorted(one.required | two.required):
            a, b = one.member(name), two.member(name)
            if a.never or b.never:
                return True
            if a.parts and any(self.apart(Case.of(flat(a.parts)), part) for part in b.parts):
                return True
        return False

    # One value, one schema

    def _whole(self, have: Case, want: SubSchema, found: SchemaFindings) -> None:
        if KnownValues(have).void:
            return
        wanted = flat([want])
        if wanted.never is not None:
            text = "Nothing is valid here."
            found.add(SchemaVerdict.BREAKING, wanted.never.place, "nothing", text)
            return
        for part in wanted.unclear:
            if any(part.equals(mine) for mine in have.parts):
                continue
            text = "It refers to a schema that is not known here."
            found.add(SchemaVerdict.UNKNOWN, part.place, "reference", text)
        keywords.told(KnownValues(have), KnownValues(Case.of(wanted)), found)
        for part in wanted.parts:
            if not any(part.equals(mine) for mine in have.parts):
                self._part(have, part, found)

    def _part(self, have: Case, want: SubSchema, found: SchemaFindings) -> None:
        keys = {key for key in COUNTING & table_of(want.schema).keys() if want.has(key)}
        for keyword in sorted(keys & _SHAPES.keys()):
            if not isinstance(want.get(keyword), _SHAPES[keyword]):
                keywords.malformed(want, keyword, found)
        if not keys - {"allOf", "$ref"}:
            return
        for case in _cases(have, keys):
            known = KnownValues(case)
            if known.void:
                continue
            if self._spent(case, want, found):
                return
            keywords.check(known, want, found)
            if "object" in known.types:
                keywords.objects(self, known, want, found)
            if "array" in known.types:
                keywords.arrays(self, known, want, found)
            self._choices(known, want, found)

    def _choices(self, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
        for keyword in ("anyOf", "oneOf"):
            if is_list(want.get(keyword)):
                self._one_of(known, want, keyword, found)
        if want.has("not"):
            self._not(known, want, found)
        if want.has("if") and (want.has("then") or want.has("else")):
            self._if(known, want, found)
        for keyword in _UNJUDGED:
            fits = "array" if keyword == "unevaluatedItems" else "object"
            if want.has(keyword) and (keyword[0] == "$" or fits in known.types):
                if keyword[0] != "$" and want.below(keyword).free:
                    continue
                text = f"What '{keyword}' comes to here cannot be judged."
                found.add(SchemaVerdict.UNKNOWN, want.at(keyword), "unjudged", text)

    def _one_of(
        self, known: KnownValues, want: SubSchema, keyword: str, found: SchemaFindings
    ) -> None:
        case = known.case
        exact = keyword == "oneOf"
        branches = [want.below(keyword, at) for at in range(len(list_of(want.get(keyword))))]
        if exact and any(self._paired(part, want, found) for part in case.parts):
            return
        live = [branch for branch in branches if not self.apart(case, branch)]
        if not live:
            self._none_fits(known, want, keyword, found)
        elif len(live) == 1:
            self.also(case, live[0], found)
        elif exact or not any(self.holds(case, branch, found) for branch in live):
            text = "Whether one of the alternatives is still met cannot be judged."
            found.add(SchemaVerdict.UNKNOWN, want.at(keyword), "alternatives", text)

    def _paired(self, mine: SubSchema, want: SubSchema, found: SchemaFindings) -> bool:
        """Whether the alternatives of both are the same, one by one."""
        count = len(list_of(want.get("oneOf")))
        return len(list_of(mine.get("oneOf"))) == count and all(
            self.equivalent(mine.below("oneOf", at), want.below("oneOf", at), found)
            for at in range(count)
        )

    def _none_fits(
        self, known: KnownValues, want: SubSchema, keyword: str, found: SchemaFindings
    ) -> None:
        weight = SchemaVerdict.UNKNOWN if known.unclear else SchemaVerdict.BREAKING
        kinds = keywords.spoken(known.types)
        text = f"What is {kinds} here meets none of the alternatives any more."
        if not found.inputs:
            text = f"It may be {kinds} now in a way that meets none of the alternatives it had."
        found.add(weight, want.at(keyword), "alternatives", text)

    def _not(self, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
        refused = want.below("not")
        if self.apart(known.case, refused):
            return
        for part in known.case.parts:
            if part.has("not"):
                mine = Case.of(flat([refused]))
                if self.holds(mine, part.below("not"), found, strict=True):
                    return
        text = "Whether what is refused here was refused before cannot be judged."
        found.add(SchemaVerdict.UNKNOWN, want.at("not"), "not", text)

    def _if(self, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
        case, condition = known.case, want.below("if")
        then = want.below("then") if want.has("then") else None
        other = want.below("else") if want.has("else") else None
        if self.apart(case, condition):
            if other is not None:
                self.also(case, other, found)
            return
        if self.holds(case, condition, found, strict=True):
            if then is not None:
                self.also(case, then, found)
            return
        for mine in (part for part in case.parts if part.has("if")):
            if self.equivalent(mine.below("if"), condition, found):
                self._branch(case, mine, "then", then, found)
                self._branch(case, mine, "else", other, found)
                return
        if all(each is None or self.holds(case, each, found) for each in (then, other)):
            return
        text = "Whether the condition here comes to the same cannot be judged."
        found.add(SchemaVerdict.UNKNOWN, want.at("if"), "condition", text)

    def _branch(
        self,
        case: Case,
        mine: SubSchema,
        keyword: str,
        want: SubSchema | None,
        found: SchemaFindings,
    ) -> None:
        if want is not None:
            extra = [mine.below(keyword)] if mine.has(keyword) else []
            below = flat([*case.parts, *extra])
            if below.never is None:
                self.also(_joined(case, below, (id(mine.schema), "if")), want, found)


def _cases(have: Case, keys: set[str]) -> Iterator[Case]:
    """Split the have into cases, as far as the keywords of the want need it."""
    waiting, made = [have], 0
    while waiting:
        case = waiting.pop()
        branches = _first_choice(case, keys)
        if branches is None:
            made += 1
            yield case
        elif made + len(waiting) + len(branches) > CASES_MAX:
            made += 1
            yield case._replace(unclear=True)
        else:
            waiting += branches[::-1]


def _first_choice(case: Case, keys: set[str]) -> list[Case] | None:
    """Return the cases for the first alternatives of `case` that are not split yet; None if there
    is nothing to split."""
    for part in case.parts:
        for keyword in ("anyOf", "oneOf"):
            mark = id(part.schema), keyword
            count = len(list_of(part.get(keyword)))
            if count and mark not in case.chosen:
                each = [part.below(keyword, at) for at in range(count)]
                return [new for branch in each if (new := _with(case, mark, branch)) is not None]
        mark = id(part.schema), "if"
        if part.has("if") and mark not in case.chosen:
            return _of_condition(case, part, mark)
    return _values_apart(case, keys) or _types_apart(case, keys)


def _with(case: Case, mark: tuple[int, str], *more: SubSchema) -> Case | None:
    """Return the case with `more` parts and with `mark` as chosen; None if no value is valid."""
    found = flat([*case.parts, *more])
    return None if found.never is not None else _joined(case, found, mark)


def _joined(case: Case, found: Flat, mark: tuple[int, str]) -> Case:
    unclear = case.unclear or bool(found.unclear)
    return Case(found.parts, case.chosen | {mark}, case.types, unclear)


def _of_condition(case: Case, part: SubSchema, mark: tuple[int, str]) -> list[Case]:
    """Return the cases for a condition that is met and for one that is not. The second case is
    unclear: only its `else` is known, and there may be no value for it."""
    met = _with(case, mark, *[part.below(key) for key in ("if", "then") if part.has(key)])
    unmet = _with(case, mark, *([part.below("else")] if part.has("else") else []))
    return [
        *([] if met is None else [met]),
        *([] if unmet is None else [unmet._replace(unclear=True)]),
    ]


def _values_apart(case: Case, keys: set[str]) -> list[Case] | None:
    values = KnownValues(case).values
    mark = 0, "enum"
    if values is None or mark in case.chosen or keys <= _PLAIN or len(values) > VALUES_MAX:
        return None
    made = [Root(as_schema(value)) for value in values.values()]
    return [
        new
        for root in made
        if (new := _with(case, mark, SubSchema(root.schema, root, root.place))) is not None
    ]


def _types_apart(case: Case, keys: set[str]) -> list[Case] | None:
    types = KnownValues(case).types
    if not keys & _CHOICES or len(types) < 2 or types == NUMBERS:
        return None
    return [case._replace(types=frozenset({each})) for each in sorted(types)]
