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
    FlattenedParts,
    SchemaFindings,
    SchemaRoot,
    SchemaVerdict,
    SubSchema,
    TrialFailed,
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


class ContainmentCheck:
    """Comparison of two schemas, with the limits on its work."""

    def __init__(self) -> None:
        self._steps = 0
        self._level = 0
        self._open: set[tuple[object, ...]] = set()

    def within(
        self, have: tuple[SubSchema, ...], want: SubSchema, findings: SchemaFindings
    ) -> None:
        """Compare the schemas of a member or an item, a step down in the value. Raises Blocked."""
        if want.free:
            return
        key = (
            frozenset(
                (id(subschema.root), subschema.root.print(subschema.schema)) for subschema in have
            ),
            id(want.root),
            want.root.print(want.schema),
            findings.strict,
        )
        if key in self._open:
            return
        self._open.add(key)
        try:
            below = flat(have)
            if below.never is None:
                self.compare_schema(Case.of(below), want, findings)
        finally:
            self._open.discard(key)

    def compare_schema(self, have: Case, want: SubSchema, findings: SchemaFindings) -> None:
        """Compare the have with another schema for the same value. Raises Blocked."""
        if want.free or self._exceeds_limit(have, want, findings):
            return
        self._level += 1
        try:
            self._whole(have, want, findings)
        finally:
            self._level -= 1

    def _exceeds_limit(self, have: Case, want: SubSchema, findings: SchemaFindings) -> bool:
        """Count a step, or several for a have of many parts. Return whether a limit is reached; if
        so, report it. Raises Blocked."""
        self._steps += 1 + len(have.parts) // PARTS_PER_STEP
        if self._steps <= STEPS_MAX and self._level < LEVELS_MAX:
            return False
        problem = "is too large" if self._steps > STEPS_MAX else "is nested too deeply"
        findings.add(
            SchemaVerdict.UNKNOWN, want.place, "limit", f"The schema {problem} to be judged."
        )
        return True

    def holds(
        self, have: Case, want: SubSchema, findings: SchemaFindings, *, strict: bool = False
    ) -> bool:
        """Whether the want follows from the have. Unless `strict`, callers are assumed to send only
        what the old definition names, and findings about that are added to `findings`."""
        tried = findings.trial(strict=strict)
        try:
            self.compare_schema(have, want, tried)
        except TrialFailed:
            return False
        if not strict:
            findings.take(tried)
        return True

    def equivalent(self, schema: SubSchema, other: SubSchema, findings: SchemaFindings) -> bool:
        """Whether the same values are valid for both."""
        if schema.equals(other):
            return True
        return all(
            self.holds(Case.of(flat([a])), b, findings, strict=True)
            for a, b in ((schema, other), (other, schema))
        )

    def is_disjoint(self, have: Case, other: SubSchema) -> bool:
        """Whether no value can be valid for both. False if the answer is not known."""
        self._steps += 1
        if self._steps > STEPS_MAX or self._level >= LEVELS_MAX:
            return False
        self._level += 1
        try:
            return self._are_disjoint(have, other)
        finally:
            self._level -= 1

    def _are_disjoint(self, have: Case, other: SubSchema) -> bool:
        flattened = flat([other])
        if flattened.never is not None:
            return True
        have_facts, other_facts = KnownValues(have), KnownValues(Case.of(flattened))
        types = have_facts.types & other_facts.types
        if not types:
            return True
        mine, theirs = have_facts.finite(), other_facts.finite()
        if mine is not None and theirs is not None and not mine.keys() & theirs.keys():
            return True
        if types - {"object"}:
            return False
        for name in sorted(have_facts.required | other_facts.required):
            a, b = have_facts.member(name), other_facts.member(name)
            if a.never or b.never:
                return True
            if a.parts and any(
                self.is_disjoint(Case.of(flat(a.parts)), subschema) for subschema in b.parts
            ):
                return True
        return False

    # One value, one schema

    def _whole(self, have: Case, want: SubSchema, findings: SchemaFindings) -> None:
        if KnownValues(have).void:
            return
        flattened = flat([want])
        if flattened.never is not None:
            text = "Nothing is valid here."
            findings.add(SchemaVerdict.BREAKING, flattened.never.place, "nothing", text)
            return
        for subschema in flattened.unclear:
            if any(subschema.equals(mine) for mine in have.parts):
                continue
            text = "It refers to a schema that is not known here."
            findings.add(SchemaVerdict.UNKNOWN, subschema.place, "reference", text)
        keywords.report_unnamed_members(
            KnownValues(have), KnownValues(Case.of(flattened)), findings
        )
        for subschema in flattened.parts:
            if not any(subschema.equals(mine) for mine in have.parts):
                self._part(have, subschema, findings)

    def _part(self, have: Case, want: SubSchema, findings: SchemaFindings) -> None:
        keys = {key for key in COUNTING & table_of(want.schema).keys() if want.has(key)}
        for keyword in sorted(keys & _SHAPES.keys()):
            if not isinstance(want.get(keyword), _SHAPES[keyword]):
                keywords.report_malformed(want, keyword, findings)
        if not keys - {"allOf", "$ref"}:
            return
        for case in _cases(have, keys):
            facts = KnownValues(case)
            if facts.void:
                continue
            if self._exceeds_limit(case, want, findings):
                return
            keywords.check(facts, want, findings)
            if "object" in facts.types:
                keywords.objects(self, facts, want, findings)
            if "array" in facts.types:
                keywords.arrays(self, facts, want, findings)
            self._choices(facts, want, findings)

    def _choices(self, facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
        for keyword in ("anyOf", "oneOf"):
            if is_list(want.get(keyword)):
                self._one_of(facts, want, keyword, findings)
        if want.has("not"):
            self._not(facts, want, findings)
        if want.has("if") and (want.has("then") or want.has("else")):
            self._if(facts, want, findings)
        for keyword in _UNJUDGED:
            fits = "array" if keyword == "unevaluatedItems" else "object"
            if want.has(keyword) and (keyword[0] == "$" or fits in facts.types):
                if keyword[0] != "$" and want.descend(keyword).free:
                    continue
                text = f"What '{keyword}' comes to here cannot be judged."
                findings.add(SchemaVerdict.UNKNOWN, want.at(keyword), "unjudged", text)

    def _one_of(
        self, facts: KnownValues, want: SubSchema, keyword: str, findings: SchemaFindings
    ) -> None:
        case = facts.case
        exact = keyword == "oneOf"
        branches = [want.descend(keyword, at) for at in range(len(list_of(want.get(keyword))))]
        if exact and any(
            self._alternatives_match(subschema, want, findings) for subschema in case.parts
        ):
            return
        live = [branch for branch in branches if not self.is_disjoint(case, branch)]
        if not live:
            self._none_fits(facts, want, keyword, findings)
        elif len(live) == 1:
            self.compare_schema(case, live[0], findings)
        elif exact or not any(self.holds(case, branch, findings) for branch in live):
            text = "Whether one of the alternatives is still met cannot be judged."
            findings.add(SchemaVerdict.UNKNOWN, want.at(keyword), "alternatives", text)

    def _alternatives_match(
        self, mine: SubSchema, want: SubSchema, findings: SchemaFindings
    ) -> bool:
        """Whether the alternatives of both are the same, one by one."""
        count = len(list_of(want.get("oneOf")))
        return len(list_of(mine.get("oneOf"))) == count and all(
            self.equivalent(mine.descend("oneOf", at), want.descend("oneOf", at), findings)
            for at in range(count)
        )

    def _none_fits(
        self, facts: KnownValues, want: SubSchema, keyword: str, findings: SchemaFindings
    ) -> None:
        weight = SchemaVerdict.UNKNOWN if facts.unclear else SchemaVerdict.BREAKING
        kinds = keywords.describe_types(facts.types)
        text = f"What is {kinds} here meets none of the alternatives any more."
        if not findings.inputs:
            text = f"It may be {kinds} now in a way that meets none of the alternatives it had."
        findings.add(weight, want.at(keyword), "alternatives", text)

    def _not(self, facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
        refused = want.descend("not")
        if self.is_disjoint(facts.case, refused):
            return
        for subschema in facts.case.parts:
            if subschema.has("not"):
                mine = Case.of(flat([refused]))
                if self.holds(mine, subschema.descend("not"), findings, strict=True):
                    return
        text = "Whether what is refused here was refused before cannot be judged."
        findings.add(SchemaVerdict.UNKNOWN, want.at("not"), "not", text)

    def _if(self, facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
        case, condition = facts.case, want.descend("if")
        then = want.descend("then") if want.has("then") else None
        other = want.descend("else") if want.has("else") else None
        if self.is_disjoint(case, condition):
            if other is not None:
                self.compare_schema(case, other, findings)
            return
        if self.holds(case, condition, findings, strict=True):
            if then is not None:
                self.compare_schema(case, then, findings)
            return
        for mine in (subschema for subschema in case.parts if subschema.has("if")):
            if self.equivalent(mine.descend("if"), condition, findings):
                self._branch(case, mine, "then", then, findings)
                self._branch(case, mine, "else", other, findings)
                return
        if all(each is None or self.holds(case, each, findings) for each in (then, other)):
            return
        text = "Whether the condition here comes to the same cannot be judged."
        findings.add(SchemaVerdict.UNKNOWN, want.at("if"), "condition", text)

    def _branch(
        self,
        case: Case,
        mine: SubSchema,
        keyword: str,
        want: SubSchema | None,
        findings: SchemaFindings,
    ) -> None:
        if want is not None:
            extra = [mine.descend(keyword)] if mine.has(keyword) else []
            below = flat([*case.parts, *extra])
            if below.never is None:
                self.compare_schema(
                    _with_choice(case, below, (id(mine.schema), "if")), want, findings
                )


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
    for subschema in case.parts:
        for keyword in ("anyOf", "oneOf"):
            mark = id(subschema.schema), keyword
            count = len(list_of(subschema.get(keyword)))
            if count and mark not in case.chosen:
                each = [subschema.descend(keyword, at) for at in range(count)]
                return [new for branch in each if (new := _with(case, mark, branch)) is not None]
        mark = id(subschema.schema), "if"
        if subschema.has("if") and mark not in case.chosen:
            return _of_condition(case, subschema, mark)
    return _values_apart(case, keys) or _types_apart(case, keys)


def _with(case: Case, mark: tuple[int, str], *more: SubSchema) -> Case | None:
    """Return the case with `more` parts and with `mark` as chosen; None if no value is valid."""
    flattened = flat([*case.parts, *more])
    return None if flattened.never is not None else _with_choice(case, flattened, mark)


def _with_choice(case: Case, flattened: FlattenedParts, mark: tuple[int, str]) -> Case:
    unclear = case.unclear or bool(flattened.unclear)
    return Case(flattened.parts, case.chosen | {mark}, case.types, unclear)


def _of_condition(case: Case, subschema: SubSchema, mark: tuple[int, str]) -> list[Case]:
    """Return the cases for a condition that is met and for one that is not. The second case is
    unclear: only its `else` is known, and there may be no value for it."""
    met = _with(
        case, mark, *[subschema.descend(key) for key in ("if", "then") if subschema.has(key)]
    )
    unmet = _with(case, mark, *([subschema.descend("else")] if subschema.has("else") else []))
    return [
        *([] if met is None else [met]),
        *([] if unmet is None else [unmet._replace(unclear=True)]),
    ]


def _values_apart(case: Case, keys: set[str]) -> list[Case] | None:
    values = KnownValues(case).values
    mark = 0, "enum"
    if values is None or mark in case.chosen or keys <= _PLAIN or len(values) > VALUES_MAX:
        return None
    made = [SchemaRoot(as_schema(value)) for value in values.values()]
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
