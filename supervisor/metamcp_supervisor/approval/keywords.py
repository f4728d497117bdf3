"""Whether each keyword of a JSON Schema follows from the known parts of another schema.

Owns: single values (types, numbers, lengths, patterns), members of objects and items of arrays, and
the sentence for each keyword that does not follow. Never: the walk through schemas (`containment`).

A schema that does not limit other members allows any. Callers do not send members that the old
definition does not name, so a member that is newly named counts as added, not as narrowed. No other
assumption is made about callers, and the verdict shows this one: the finding is ADDITIVE and not
COMPATIBLE. Results are compared without any assumption.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Protocol

from metamcp_supervisor.approval.known import (
    FRACTION,
    NUMBERS,
    Case,
    KnownValues,
    MemberFacts,
    NumberBound,
    divides,
    exact,
    number_of,
    tuple_of,
    types_in,
)
from metamcp_supervisor.approval.lock import canonical
from metamcp_supervisor.approval.schema import (
    MODERN,
    SchemaFindings,
    SchemaRoot,
    SchemaVerdict,
    SubSchema,
    flat,
    is_list,
    list_of,
    table_of,
    word,
    words,
)

_SIZES = {
    "Length": ("string", "characters"),
    "Items": ("array", "items"),
    "Properties": ("object", "members"),
}
_MATCH_ALL = ("", ".*", "^.*", "^", "$")
_SHOWN_CHARACTERS = 60
_SPOKEN = {
    "null": "null", "boolean": "a boolean", "object": "an object", "array": "an array",
    "string": "a string", "integer": "a whole number", FRACTION: "a number that is not whole",
}  # fmt: skip
_MEANINGS = ("format", "contentEncoding", "contentMediaType", "contentSchema")
"""Keywords that describe the meaning of a text and that JSON Schema does not check itself."""


def describe_types(types: Iterable[str]) -> str:
    distinct = set(types)
    names = ["a number"] if distinct >= NUMBERS else []
    remaining = distinct - NUMBERS if names else distinct
    return " or ".join([*names, *(text for key, text in _SPOKEN.items() if key in remaining)])


def check(facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
    """Compare the keywords for single values. Raises Blocked."""
    _type(facts, want, findings)
    _values(facts, want, findings)
    if NUMBERS & facts.types:
        _bounds(facts, want, findings)
        _multiple(facts, want, findings)
    for name, (kind, unit) in _SIZES.items():
        if kind in facts.types:
            _size(facts, want, name, unit, findings)
    if "string" in facts.types:
        _pattern(facts, want, findings)
        for keyword in _MEANINGS:
            _compare_meaning(facts, want, keyword, findings)


def blame(facts: KnownValues) -> SchemaVerdict:
    """Return the verdict on a keyword that does not follow."""
    return SchemaVerdict.UNKNOWN if facts.unclear else SchemaVerdict.BREAKING


def report_malformed(want: SubSchema, keyword: str, findings: SchemaFindings) -> None:
    text = f"'{keyword}' is not what JSON Schema knows."
    findings.add(SchemaVerdict.UNKNOWN, want.at(keyword), "malformed", text)


def _type(facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
    if not want.has("type"):
        return
    allowed = types_in(want.get("type"))
    if allowed is None:
        report_malformed(want, "type", findings)
        return
    lost = facts.types - allowed
    if lost:
        text = f"It must not be {describe_types(lost)} any more."
        if not findings.inputs:
            text = f"It may be {describe_types(lost)} now, which it was not."
        # The types of a have are known for sure unless something else limits them further.
        findings.add(blame(facts), want.at("type"), "type", text)


def _values(facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
    for keyword in ("const", "enum"):
        if not want.has(keyword):
            continue
        value = want.get(keyword)
        if keyword == "enum" and not is_list(value):
            continue
        allowed = {canonical(value)}
        if keyword == "enum":
            allowed = set(want.root.index_by_json(list_of(value)))
        mine = facts.finite()
        if mine is None:
            text = "Only certain values are valid now."
            if not findings.inputs:
                text = "It may be any value now, where it was one of a list."
            findings.add(blame(facts), want.at(keyword), "values", text)
            continue
        lost = [spelled for spelled in mine if spelled not in allowed]
        if lost:
            listing = _format_values(lost)
            text = f"{listing} is not valid any more."
            if not findings.inputs:
                text = f"It may be {listing} now, which it was not."
            findings.add(blame(facts), want.at(keyword), "values", text)


def _bounds(facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if not want.has(keyword):
            continue
        value = number_of(want.get(keyword))
        if value is None:
            report_malformed(want, keyword, findings)
            continue
        upper = keyword.endswith("aximum")
        mine = facts.find_bound(upper=upper)
        needed = NumberBound(value, keyword.startswith("ex"))
        if mine is None or not mine.beyond(needed, upper=upper):
            less, more = ("less", "more") if upper else ("more", "less")
            bound = f"{less} than" if needed.open else "at most" if upper else "at least"
            text = f"It must be {bound} {value} now."
            if not findings.inputs:
                text = f"It may be {more} than {value} now, which it was not."
            findings.add(blame(facts), want.at(keyword), "bounds", text)


def _multiple(facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
    if not want.has("multipleOf"):
        return
    value = number_of(want.get("multipleOf"))
    if value is None or value <= 0:
        report_malformed(want, "multipleOf", findings)
        return
    step = exact(value)
    single = _single_number(facts)
    if single is not None:
        fits = divides(step, single)
    else:
        fits = any(divides(step, each) for each in facts.multiples())
    if not fits:
        text = f"It must be a multiple of {value} now."
        if not findings.inputs:
            text = f"It need not be a multiple of {value} any more."
        findings.add(blame(facts), want.at("multipleOf"), "bounds", text)


def _single_number(facts: KnownValues) -> Fraction | None:
    if facts.values is None or len(facts.values) != 1:
        return None
    value = number_of(next(iter(facts.values.values())))
    return None if value is None else exact(value)


def _size(
    facts: KnownValues, want: SubSchema, name: str, unit: str, findings: SchemaFindings
) -> None:
    least, most = f"min{name}", f"max{name}"
    for keyword in (least, most):
        if not want.has(keyword):
            continue
        value = number_of(want.get(keyword))
        if value is None:
            report_malformed(want, keyword, findings)
            continue
        if keyword == least:
            fits = facts.least(keyword) >= value
        else:
            mine = facts.most(keyword)
            fits = mine is not None and mine <= value
        if fits:
            continue
        bound, beyond = ("at least", "less") if keyword == least else ("at most", "more")
        text = f"It must have {bound} {value} {unit} now."
        if not findings.inputs:
            text = f"It may have {beyond} than {value} {unit} now, which it had not."
        findings.add(blame(facts), want.at(keyword), "size", text)


def _pattern(facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
    if not want.has("pattern") or want.get("pattern") in _MATCH_ALL:
        return
    pattern = want.get("pattern")
    if not isinstance(pattern, str):
        report_malformed(want, "pattern", findings)
        return
    mine = facts.spellings("pattern")
    if canonical(pattern) in mine:
        return
    if facts.finite() is not None:
        text = "Whether its values match the pattern is not looked at."
        findings.add(SchemaVerdict.UNKNOWN, want.at("pattern"), "pattern", text)
        return
    pattern_text = word(pattern)
    text = f"It must match the pattern '{pattern_text}' now."
    if not findings.inputs:
        text = f"It need not match the pattern '{pattern_text}' any more."
    findings.add(blame(facts), want.at("pattern"), "pattern", text)


def _compare_meaning(
    facts: KnownValues, want: SubSchema, keyword: str, findings: SchemaFindings
) -> None:
    if not want.has(keyword) or canonical(want.get(keyword)) in facts.spellings(keyword):
        return
    value = want.get(keyword)
    value_text = f" '{word(value)}'" if isinstance(value, str) else ""
    text = f"Whether what it was fits {keyword}{value_text} cannot be judged."
    if not findings.inputs:
        text = f"It need not be {keyword}{value_text} any more."
    findings.add(SchemaVerdict.UNKNOWN, want.at(keyword), "format", text)


def _format_values(spelled: list[bytes], most: int = 5) -> str:
    texts = [each.decode("utf-8", "replace") for each in spelled[:most]]
    cut = [
        each if len(each) <= _SHOWN_CHARACTERS else f"{each[:_SHOWN_CHARACTERS]}…" for each in texts
    ]
    more = f" and {len(spelled) - most} more" if len(spelled) > most else ""
    return ", ".join(word(each) for each in cut) + more


class ContainmentMethods(Protocol):
    """Methods of `containment.ContainmentCheck` that this module calls."""

    def within(
        self, have: tuple[SubSchema, ...], want: SubSchema, findings: SchemaFindings
    ) -> None: ...

    def compare_schema(self, have: Case, want: SubSchema, findings: SchemaFindings) -> None: ...

    def holds(
        self, have: Case, want: SubSchema, findings: SchemaFindings, *, strict: bool = False
    ) -> bool: ...

    def equivalent(self, schema: SubSchema, other: SubSchema, findings: SchemaFindings) -> bool: ...


def objects(
    judge: ContainmentMethods, facts: KnownValues, want: SubSchema, findings: SchemaFindings
) -> None:
    """Compare the keywords for members of objects. Raises Blocked."""
    _compare_required(facts, want, findings)
    _compare_properties(judge, facts, want, findings)
    _patterns(judge, facts, want, findings)
    _others(judge, facts, want, findings)
    _names(judge, facts, want, findings)
    _dependencies(judge, facts, want, findings)


def report_unnamed_members(have: KnownValues, want: KnownValues, findings: SchemaFindings) -> None:
    """Report members that only the have names, where the want accepts others: they are valid."""
    if "object" not in have.types & want.types or want.choosy or not want.others().implied:
        return
    for name in have.collect_members().keys() - want.collect_members().keys():
        looked = have.member(name)
        if looked.never:
            continue
        pointer = looked.parts[0].place
        if findings.inputs:
            text = f"'{word(name)}' is not named any more; it is still accepted."
            findings.add(SchemaVerdict.COMPATIBLE, pointer, "member-unnamed", text)
        else:
            text = f"'{word(name)}' may be there, too."
            findings.add(SchemaVerdict.ADDITIVE, pointer, "member-added", text)


def _compare_required(facts: KnownValues, want: SubSchema, findings: SchemaFindings) -> None:
    for name in list_of(want.get("required")):
        if not isinstance(name, str):
            report_malformed(want, "required", findings)
        elif name not in facts.required:
            text = f"'{word(name)}' must be given now."
            if not findings.inputs:
                text = f"'{word(name)}' may be missing now."
            findings.add(blame(facts), want.at("required"), "required", text)


def _compare_properties(
    judge: ContainmentMethods, facts: KnownValues, want: SubSchema, findings: SchemaFindings
) -> None:
    properties = table_of(want.get("properties"))
    for name in properties:
        sub, looked = want.descend("properties", name), facts.member(name)
        if looked.is_unconstrained and name in facts.required:
            judge.within((), sub, findings)  # callers do give it, whatever it is
        elif looked.is_unconstrained and name in list_of(want.get("required")):
            continue  # reported already
        elif looked.is_unconstrained or looked.never:
            _new(facts, sub, name, looked, findings)
        elif looked.clouded and not looked.parts:
            _report_patterns(sub, findings)
        else:
            judge.within(looked.parts, sub, findings)


def _new(
    facts: KnownValues, sub: SubSchema, name: str, looked: MemberFacts, findings: SchemaFindings
) -> None:
    """Report a member that only the want names."""
    if looked.never:
        if findings.inputs:
            text = f"'{word(name)}' may be given, too."
            findings.add(SchemaVerdict.ADDITIVE, sub.place, "member-added", text)
    elif findings.inputs:
        text = f"'{word(name)}' may be given, too."
        if sub.free:
            findings.add(SchemaVerdict.ADDITIVE, sub.place, "member-added", text)
        else:
            findings.suppose(sub.place, "member-added", text)
    elif not sub.free:
        text = f"'{word(name)}' is not described any more."
        findings.add(blame(facts), sub.place, "member-removed", text)


def _report_patterns(sub: SubSchema, findings: SchemaFindings) -> None:
    if not sub.free:
        text = "Which patterns of names apply here is not looked at."
        findings.add(SchemaVerdict.UNKNOWN, sub.place, "names", text)


def _patterns(
    judge: ContainmentMethods, facts: KnownValues, want: SubSchema, findings: SchemaFindings
) -> None:
    for pattern in table_of(want.get("patternProperties")):
        sub = want.descend("patternProperties", pattern)
        mine = tuple(
            subschema.descend("patternProperties", pattern)
            for subschema in facts.case.parts
            if pattern in table_of(subschema.get("patternProperties"))
        )
        if sub.free:
            continue
        if mine:
            judge.within(mine, sub, findings)
        elif not _is_closed(facts) or any(
            not judge.holds(Case.of(flat(facts.member(name).parts)), sub, findings, strict=True)
            for name in facts.collect_members()
            if not facts.member(name).never
        ):
            text = f"Which members the pattern '{word(pattern)}' is about is not looked at."
            findings.add(SchemaVerdict.UNKNOWN, sub.place, "names", text)


def _is_closed(facts: KnownValues) -> bool:
    """Whether members that are not named are refused."""
    return facts.others().never


def _others(
    judge: ContainmentMethods, facts: KnownValues, want: SubSchema, findings: SchemaFindings
) -> None:
    if not isinstance(want.get("additionalProperties"), dict | bool):
        return
    sub = want.descend("additionalProperties")
    if sub.free:
        return
    properties, patterns = table_of(want.get("properties")), table_of(want.get("patternProperties"))
    for name in facts.collect_members():
        looked = facts.member(name)
        if name in properties or looked.never:
            continue
        if patterns:
            if not judge.holds(Case.of(flat(looked.parts)), sub, findings, strict=True):
                _report_patterns(sub, findings)
        elif sub.never:
            text = f"'{word(name)}' is not accepted any more."
            if not findings.inputs:
                text = f"'{word(name)}' may be there now, where nothing else might be."
            findings.add(blame(facts), sub.place, "member-removed", text)
        else:
            judge.within(looked.parts, sub, findings)
    _compare_additional(judge, facts, want, patterns, findings)


def _compare_additional(
    judge: ContainmentMethods,
    facts: KnownValues,
    want: SubSchema,
    patterns: Mapping[str, object],
    findings: SchemaFindings,
) -> None:
    """Compare the schemas for members that the have does not name."""
    sub, looked = want.descend("additionalProperties"), facts.others()
    if looked.never:
        return
    if looked.clouded or patterns:
        own = {
            key
            for subschema in facts.case.parts
            for key in table_of(subschema.get("patternProperties"))
        }
        covered = own <= patterns.keys() and _only_patterns(facts)
        if not covered:
            _report_patterns(sub, findings)
    elif looked.implied or sub.never:
        text = "Members that are not named are not accepted any more."
        if not sub.never:
            text = "Members that are not named are limited now."
        if not findings.inputs:
            text = "There may be members now that are not described."
        findings.add(blame(facts), sub.place, "closed", text)
    else:
        judge.within(looked.parts, sub, findings)


def _only_patterns(facts: KnownValues) -> bool:
    """Whether a part refuses all members but the named ones and those that match its patterns."""
    return any(subschema.get("additionalProperties") is False for subschema in facts.case.parts)


def _names(
    judge: ContainmentMethods, facts: KnownValues, want: SubSchema, findings: SchemaFindings
) -> None:
    if not want.has("propertyNames") or want.descend("propertyNames").free:
        return
    sub = want.descend("propertyNames")
    mine = tuple(
        subschema.descend("propertyNames")
        for subschema in facts.case.parts
        if subschema.has("propertyNames")
    )
    a_text = SchemaRoot({"type": "string"})
    if mine or not _is_closed(facts):
        judge.within((*mine, SubSchema(a_text.schema, a_text, "")), sub, findings)
        return
    for name in facts.collect_members():
        name_root = SchemaRoot({"const": name})
        if not facts.member(name).never:
            judge.within((SubSchema(name_root.schema, name_root, ""),), sub, findings)


def _dependencies(
    judge: ContainmentMethods, facts: KnownValues, want: SubSchema, findings: SchemaFindings
) -> None:
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, needs in table_of(want.get(keyword)).items():
            looked = facts.member(name)
            if looked.never:
                continue
            if is_list(needs):
                _needs(facts, want, (keyword, name), findings)
            else:
                _also_needs(judge, facts, want, (keyword, name), findings)


def _needs(
    facts: KnownValues, want: SubSchema, key: tuple[str, str], findings: SchemaFindings
) -> None:
    keyword, name = key
    required = set(facts.required) | {name}
    for subschema in facts.case.parts:
        if subschema.root.dialect == "draft-07" or keyword == "dependentRequired":
            required |= {
                each
                for each in list_of(table_of(subschema.get(keyword)).get(name))
                if isinstance(each, str)
            }
    lost = [each for each in list_of(table_of(want.get(keyword))[name]) if each not in required]
    if not lost:
        return
    text = f"With '{word(name)}', {words(map(str, lost))} must be given now."
    if not findings.inputs:
        text = f"With '{word(name)}', {words(map(str, lost))} may be missing now."
    if facts.member(name).is_unconstrained and findings.inputs:
        findings.suppose(want.at("properties", name), "member-added", text)
    else:
        weight = SchemaVerdict.UNKNOWN if facts.case.unclear else SchemaVerdict.BREAKING
        findings.add(weight, want.at(keyword, name), "dependency", text)


def _also_needs(
    judge: ContainmentMethods,
    facts: KnownValues,
    want: SubSchema,
    key: tuple[str, str],
    findings: SchemaFindings,
) -> None:
    keyword, name = key
    if not isinstance(table_of(want.get(keyword))[name], dict | bool):
        report_malformed(want, keyword, findings)
        return
    there = SchemaRoot({"required": [name]})
    more = [SubSchema(there.schema, there, "")]
    for subschema in facts.case.parts:
        sure = subschema.root.dialect == "draft-07" or keyword == "dependentSchemas"
        if sure and isinstance(table_of(subschema.get(keyword)).get(name), dict | bool):
            more.append(subschema.descend(keyword, name))
    have = flat([*facts.case.parts, *more])
    if have.never is not None:
        return
    case = facts.case._replace(parts=have.parts, unclear=facts.case.unclear or bool(have.unclear))
    sub = want.descend(keyword, name)
    if facts.member(name).is_unconstrained and findings.inputs:
        if not judge.holds(case, sub, findings):
            text = f"With '{word(name)}', more is needed."
            findings.suppose(want.at("properties", name), "member-added", text)
    else:
        judge.compare_schema(case, sub, findings)


# Arrays


def arrays(
    judge: ContainmentMethods, facts: KnownValues, want: SubSchema, findings: SchemaFindings
) -> None:
    """Compare the keywords for items of arrays. Raises Blocked."""
    if is_list(want.get("items")) and want.root.dialect == MODERN:
        report_malformed(want, "items", findings)
    most = facts.most("maxItems")
    prefix, tail = tuple_of(want)
    far = max(facts.prefix(), len(prefix))
    for at in range(far):
        sub = prefix[at] if at < len(prefix) else tail
        if sub is not None and not (most is not None and most <= at):
            _item(judge, facts, facts.item(at), sub, findings)
    if tail is not None and not (most is not None and most <= far):
        _item(judge, facts, facts.item(far), tail, findings)
    several = most is None or most > 1
    unique = any(subschema.get("uniqueItems") is True for subschema in facts.case.parts)
    if want.get("uniqueItems") is True and several and not unique:
        text = "No two items may be alike now."
        if not findings.inputs:
            text = "Two items may be alike now."
        findings.add(blame(facts), want.at("uniqueItems"), "items", text)
    if want.has("contains"):
        _contains(judge, facts, want, findings)


def _item(
    judge: ContainmentMethods,
    facts: KnownValues,
    looked: MemberFacts,
    sub: SubSchema,
    findings: SchemaFindings,
) -> None:
    if sub.free or looked.never:
        return
    if looked.clouded:
        text = "Which items this is about is not looked at."
        findings.add(SchemaVerdict.UNKNOWN, sub.place, "items", text)
    elif sub.never:
        text = "No more items are accepted here."
        if not findings.inputs:
            text = "There may be more items now."
        findings.add(blame(facts), sub.place, "items", text)
    else:
        judge.within(looked.parts, sub, findings)


def _contains(
    judge: ContainmentMethods, facts: KnownValues, want: SubSchema, findings: SchemaFindings
) -> None:
    sub = want.descend("contains")
    low = number_of(want.get("minContains")) if want.has("minContains") else 1
    high = number_of(want.get("maxContains")) if want.has("maxContains") else None
    for subschema in facts.case.parts:
        if not subschema.has("contains"):
            continue
        own_low = number_of(subschema.get("minContains")) if subschema.has("minContains") else 1
        own_high = number_of(subschema.get("maxContains")) if subschema.has("maxContains") else None
        enough = own_low is not None and low is not None and own_low >= low
        few = not want.has("maxContains") or (
            own_high is not None and high is not None and own_high <= high
        )
        if enough and few and judge.equivalent(subschema.descend("contains"), sub, findings):
            return
    text = "Whether enough items are of the kind that is wanted cannot be judged."
    findings.add(SchemaVerdict.UNKNOWN, want.at("contains"), "contains", text)
