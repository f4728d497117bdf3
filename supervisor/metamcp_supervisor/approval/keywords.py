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
    Looked,
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
    Root,
    SchemaFindings,
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


def spoken(types: Iterable[str]) -> str:
    found = set(types)
    names = ["a number"] if found >= NUMBERS else []
    left = found - NUMBERS if names else found
    return " or ".join([*names, *(text for key, text in _SPOKEN.items() if key in left)])


def check(known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    """Compare the keywords for single values. Raises Blocked."""
    _type(known, want, found)
    _values(known, want, found)
    if NUMBERS & known.types:
        _bounds(known, want, found)
        _multiple(known, want, found)
    for name, (kind, unit) in _SIZES.items():
        if kind in known.types:
            _size(known, want, name, unit, found)
    if "string" in known.types:
        _pattern(known, want, found)
        for keyword in _MEANINGS:
            _meaning(known, want, keyword, found)


def blame(known: KnownValues) -> SchemaVerdict:
    """Return the verdict on a keyword that does not follow."""
    return SchemaVerdict.UNKNOWN if known.unclear else SchemaVerdict.BREAKING


def malformed(want: SubSchema, keyword: str, found: SchemaFindings) -> None:
    text = f"'{keyword}' is not what JSON Schema knows."
    found.add(SchemaVerdict.UNKNOWN, want.at(keyword), "malformed", text)


def _type(known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    if not want.has("type"):
        return
    allowed = types_in(want.get("type"))
    if allowed is None:
        malformed(want, "type", found)
        return
    lost = known.types - allowed
    if lost:
        text = f"It must not be {spoken(lost)} any more."
        if not found.inputs:
            text = f"It may be {spoken(lost)} now, which it was not."
        # The types of a have are known for sure unless something else limits them further.
        found.add(blame(known), want.at("type"), "type", text)


def _values(known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    for keyword in ("const", "enum"):
        if not want.has(keyword):
            continue
        value = want.get(keyword)
        if keyword == "enum" and not is_list(value):
            continue
        allowed = {canonical(value)}
        if keyword == "enum":
            allowed = set(want.root.spelled(list_of(value)))
        mine = known.finite()
        if mine is None:
            text = "Only certain values are valid now."
            if not found.inputs:
                text = "It may be any value now, where it was one of a list."
            found.add(blame(known), want.at(keyword), "values", text)
            continue
        lost = [spelled for spelled in mine if spelled not in allowed]
        if lost:
            which = _listed(lost)
            text = f"{which} is not valid any more."
            if not found.inputs:
                text = f"It may be {which} now, which it was not."
            found.add(blame(known), want.at(keyword), "values", text)


def _bounds(known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if not want.has(keyword):
            continue
        value = number_of(want.get(keyword))
        if value is None:
            malformed(want, keyword, found)
            continue
        upper = keyword.endswith("aximum")
        mine = known.bound(upper=upper)
        needed = NumberBound(value, keyword.startswith("ex"))
        if mine is None or not mine.beyond(needed, upper=upper):
            less, more = ("at most", "more") if upper else ("at least", "less")
            shown = f"{'not ' if needed.open else ''}{value}" if needed.open else str(value)
            text = f"It must be {less} {shown} now."
            if not found.inputs:
                text = f"It may be {more} than {value} now, which it was not."
            found.add(blame(known), want.at(keyword), "bounds", text)


def _multiple(known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    if not want.has("multipleOf"):
        return
    value = number_of(want.get("multipleOf"))
    if value is None or value <= 0:
        malformed(want, "multipleOf", found)
        return
    step = exact(value)
    single = _single_number(known)
    if single is not None:
        fits = divides(step, single)
    else:
        fits = any(divides(step, each) for each in known.multiples())
    if not fits:
        text = f"It must be a multiple of {value} now."
        if not found.inputs:
            text = f"It need not be a multiple of {value} any more."
        found.add(blame(known), want.at("multipleOf"), "bounds", text)


def _single_number(known: KnownValues) -> Fraction | None:
    if known.values is None or len(known.values) != 1:
        return None
    value = number_of(next(iter(known.values.values())))
    return None if value is None else exact(value)


def _size(known: KnownValues, want: SubSchema, name: str, unit: str, found: SchemaFindings) -> None:
    least, most = f"min{name}", f"max{name}"
    for keyword in (least, most):
        if not want.has(keyword):
            continue
        value = number_of(want.get(keyword))
        if value is None:
            malformed(want, keyword, found)
            continue
        if keyword == least:
            fits = known.least(keyword) >= value
        else:
            mine = known.most(keyword)
            fits = mine is not None and mine <= value
        if fits:
            continue
        bound, beyond = ("at least", "less") if keyword == least else ("at most", "more")
        text = f"It must have {bound} {value} {unit} now."
        if not found.inputs:
            text = f"It may have {beyond} than {value} {unit} now, which it had not."
        found.add(blame(known), want.at(keyword), "size", text)


def _pattern(known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    if not want.has("pattern") or want.get("pattern") in _MATCH_ALL:
        return
    pattern = want.get("pattern")
    if not isinstance(pattern, str):
        malformed(want, "pattern", found)
        return
    mine = known.spellings("pattern")
    if canonical(pattern) in mine:
        return
    if known.finite() is not None:
        text = "Whether its values match the pattern is not looked at."
        found.add(SchemaVerdict.UNKNOWN, want.at("pattern"), "pattern", text)
        return
    shown = word(pattern)
    text = f"It must match the pattern '{shown}' now."
    if not found.inputs:
        text = f"It need not match the pattern '{shown}' any more."
    found.add(blame(known), want.at("pattern"), "pattern", text)


def _meaning(known: KnownValues, want: SubSchema, keyword: str, found: SchemaFindings) -> None:
    if not want.has(keyword) or canonical(want.get(keyword)) in known.spellings(keyword):
        return
    value = want.get(keyword)
    shown = f" '{word(value)}'" if isinstance(value, str) else ""
    text = f"Whether what it was fits {keyword}{shown} cannot be judged."
    if not found.inputs:
        text = f"It need not be {keyword}{shown} any more."
    found.add(SchemaVerdict.UNKNOWN, want.at(keyword), "format", text)


def _listed(spelled: list[bytes], most: int = 5) -> str:
    shown = [each.decode("utf-8", "replace") for each in spelled[:most]]
    cut = [
        each if len(each) <= _SHOWN_CHARACTERS else f"{each[:_SHOWN_CHARACTERS]}…" for each in shown
    ]
    more = f" and {len(spelled) - most} more" if len(spelled) > most else ""
    return ", ".join(word(each) for each in cut) + more


class Judging(Protocol):
    """Methods of `containment.Judge` that this module calls."""

    def within(
        self, have: tuple[SubSchema, ...], want: SubSchema, found: SchemaFindings
    ) -> None: ...

    def also(self, have: Case, want: SubSchema, found: SchemaFindings) -> None: ...

    def holds(
        self, have: Case, want: SubSchema, found: SchemaFindings, *, strict: bool = False
    ) -> bool: ...

    def equivalent(self, one: SubSchema, other: SubSchema, found: SchemaFindings) -> bool: ...


def objects(judge: Judging, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    """Compare the keywords for members of objects. Raises Blocked."""
    _required(known, want, found)
    _named(judge, known, want, found)
    _patterns(judge, known, want, found)
    _others(judge, known, want, found)
    _names(judge, known, want, found)
    _dependencies(judge, known, want, found)


def told(have: KnownValues, want: KnownValues, found: SchemaFindings) -> None:
    """Report members that only the have names, where the want accepts others: they are valid."""
    if "object" not in have.types & want.types or want.choosy or not want.others().implied:
        return
    for name in have.named().keys() - want.named().keys():
        looked = have.member(name)
        if looked.never:
            continue
        place = looked.parts[0].place
        if found.inputs:
            text = f"'{word(name)}' is not named any more; it is still accepted."
            found.add(SchemaVerdict.COMPATIBLE, place, "member-unnamed", text)
        else:
            text = f"'{word(name)}' may be there, too."
            found.add(SchemaVerdict.ADDITIVE, place, "member-added", text)


def _required(known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    for name in list_of(want.get("required")):
        if not isinstance(name, str):
            malformed(want, "required", found)
        elif name not in known.required:
            text = f"'{word(name)}' must be given now."
            if not found.inputs:
                text = f"'{word(name)}' may be missing now."
            found.add(blame(known), want.at("required"), "required", text)


def _named(judge: Judging, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    wanted = table_of(want.get("properties"))
    for name in wanted:
        sub, looked = want.below("properties", name), known.member(name)
        if looked.nothing and name in known.required:
            judge.within((), sub, found)  # callers do give it, whatever it is
        elif looked.nothing and name in list_of(want.get("required")):
            continue  # which was told
        elif looked.nothing or looked.never:
            _new(known, sub, name, looked, found)
        elif looked.clouded and not looked.parts:
            _clouded(sub, found)
        else:
            judge.within(looked.parts, sub, found)


def _new(
    known: KnownValues, sub: SubSchema, name: str, looked: Looked, found: SchemaFindings
) -> None:
    """Report a member that only the want names."""
    if looked.never:
        if found.inputs:
            text = f"'{word(name)}' may be given, too."
            found.add(SchemaVerdict.ADDITIVE, sub.place, "member-added", text)
    elif found.inputs:
        text = f"'{word(name)}' may be given, too."
        if sub.free:
            found.add(SchemaVerdict.ADDITIVE, sub.place, "member-added", text)
        else:
            found.suppose(sub.place, "member-added", text)
    elif not sub.free:
        text = f"'{word(name)}' is not described any more."
        found.add(blame(known), sub.place, "member-removed", text)


def _clouded(sub: SubSchema, found: SchemaFindings) -> None:
    if not sub.free:
        text = "Which patterns of names apply here is not looked at."
        found.add(SchemaVerdict.UNKNOWN, sub.place, "names", text)


def _patterns(judge: Judging, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    for pattern in table_of(want.get("patternProperties")):
        sub = want.below("patternProperties", pattern)
        mine = tuple(
            part.below("patternProperties", pattern)
            for part in known.case.parts
            if pattern in table_of(part.get("patternProperties"))
        )
        if sub.free:
            continue
        if mine:
            judge.within(mine, sub, found)
        elif not _closed(known) or any(
            not judge.holds(Case.of(flat(known.member(name).parts)), sub, found, strict=True)
            for name in known.named()
            if not known.member(name).never
        ):
            text = f"Which members the pattern '{word(pattern)}' is about is not looked at."
            found.add(SchemaVerdict.UNKNOWN, sub.place, "names", text)


def _closed(known: KnownValues) -> bool:
    """Whether members that are not named are refused."""
    return known.others().never


def _others(judge: Judging, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    if not isinstance(want.get("additionalProperties"), dict | bool):
        return
    sub = want.below("additionalProperties")
    if sub.free:
        return
    wanted, patterns = table_of(want.get("properties")), table_of(want.get("patternProperties"))
    for name in known.named():
        looked = known.member(name)
        if name in wanted or looked.never:
            continue
        if patterns:
            if not judge.holds(Case.of(flat(looked.parts)), sub, found, strict=True):
                _clouded(sub, found)
        elif sub.never:
            text = f"'{word(name)}' is not accepted any more."
            if not found.inputs:
                text = f"'{word(name)}' may be there now, where nothing else might be."
            found.add(blame(known), sub.place, "member-removed", text)
        else:
            judge.within(looked.parts, sub, found)
    _unnamed(judge, known, want, patterns, found)


def _unnamed(
    judge: Judging,
    known: KnownValues,
    want: SubSchema,
    patterns: Mapping[str, object],
    found: SchemaFindings,
) -> None:
    """Compare the schemas for members that the have does not name."""
    sub, looked = want.below("additionalProperties"), known.others()
    if looked.never:
        return
    if looked.clouded or patterns:
        own = {key for part in known.case.parts for key in table_of(part.get("patternProperties"))}
        covered = own <= patterns.keys() and _only_patterns(known)
        if not covered:
            _clouded(sub, found)
    elif looked.implied or sub.never:
        text = "Members that are not named are not accepted any more."
        if not sub.never:
            text = "Members that are not named are limited now."
        if not found.inputs:
            text = "There may be members now that are not described."
        found.add(blame(known), sub.place, "closed", text)
    else:
        judge.within(looked.parts, sub, found)


def _only_patterns(known: KnownValues) -> bool:
    """Whether a part refuses all members but the named ones and those that match its patterns."""
    return any(part.get("additionalProperties") is False for part in known.case.parts)


def _names(judge: Judging, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    if not want.has("propertyNames") or want.below("propertyNames").free:
        return
    sub = want.below("propertyNames")
    mine = tuple(
        part.below("propertyNames") for part in known.case.parts if part.has("propertyNames")
    )
    a_text = Root({"type": "string"})
    if mine or not _closed(known):
        judge.within((*mine, SubSchema(a_text.schema, a_text, "")), sub, found)
        return
    for name in known.named():
        one = Root({"const": name})
        if not known.member(name).never:
            judge.within((SubSchema(one.schema, one, ""),), sub, found)


def _dependencies(
    judge: Judging, known: KnownValues, want: SubSchema, found: SchemaFindings
) -> None:
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, needs in table_of(want.get(keyword)).items():
            looked = known.member(name)
            if looked.never:
                continue
            if is_list(needs):
                _needs(known, want, (keyword, name), found)
            else:
                _also_needs(judge, known, want, (keyword, name), found)


def _needs(
    known: KnownValues, want: SubSchema, key: tuple[str, str], found: SchemaFindings
) -> None:
    keyword, name = key
    given = set(known.required) | {name}
    for part in known.case.parts:
        if part.root.dialect == "draft-07" or keyword == "dependentRequired":
            given |= {
                each
                for each in list_of(table_of(part.get(keyword)).get(name))
                if isinstance(each, str)
            }
    lost = [each for each in list_of(table_of(want.get(keyword))[name]) if each not in given]
    if not lost:
        return
    text = f"With '{word(name)}', {words(map(str, lost))} must be given now."
    if not found.inputs:
        text = f"With '{word(name)}', {words(map(str, lost))} may be missing now."
    if known.member(name).nothing and found.inputs:
        found.suppose(want.at("properties", name), "member-added", text)
    else:
        weight = SchemaVerdict.UNKNOWN if known.case.unclear else SchemaVerdict.BREAKING
        found.add(weight, want.at(keyword, name), "dependency", text)


def _also_needs(
    judge: Judging, known: KnownValues, want: SubSchema, key: tuple[str, str], found: SchemaFindings
) -> None:
    keyword, name = key
    if not isinstance(table_of(want.get(keyword))[name], dict | bool):
        malformed(want, keyword, found)
        return
    there = Root({"required": [name]})
    more = [SubSchema(there.schema, there, "")]
    for part in known.case.parts:
        sure = part.root.dialect == "draft-07" or keyword == "dependentSchemas"
        if sure and isinstance(table_of(part.get(keyword)).get(name), dict | bool):
            more.append(part.below(keyword, name))
    have = flat([*known.case.parts, *more])
    if have.never is not None:
        return
    case = known.case._replace(parts=have.parts, unclear=known.case.unclear or bool(have.unclear))
    sub = want.below(keyword, name)
    if known.member(name).nothing and found.inputs:
        if not judge.holds(case, sub, found):
            text = f"With '{word(name)}', more is needed."
            found.suppose(want.at("properties", name), "member-added", text)
    else:
        judge.also(case, sub, found)


# Arrays


def arrays(judge: Judging, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    """Compare the keywords for items of arrays. Raises Blocked."""
    if is_list(want.get("items")) and want.root.dialect == MODERN:
        malformed(want, "items", found)
    most = known.most("maxItems")
    prefix, rest = tuple_of(want)
    far = max(known.prefix(), len(prefix))
    for at in range(far):
        sub = prefix[at] if at < len(prefix) else rest
        if sub is not None and not (most is not None and most <= at):
            _item(judge, known, known.item(at), sub, found)
    if rest is not None and not (most is not None and most <= far):
        _item(judge, known, known.item(far), rest, found)
    several = most is None or most > 1
    unique = any(part.get("uniqueItems") is True for part in known.case.parts)
    if want.get("uniqueItems") is True and several and not unique:
        text = "No two items may be alike now."
        if not found.inputs:
            text = "Two items may be alike now."
        found.add(blame(known), want.at("uniqueItems"), "items", text)
    if want.has("contains"):
        _contains(judge, known, want, found)


def _item(
    judge: Judging, known: KnownValues, looked: Looked, sub: SubSchema, found: SchemaFindings
) -> None:
    if sub.free or looked.never:
        return
    if looked.clouded:
        text = "Which items this is about is not looked at."
        found.add(SchemaVerdict.UNKNOWN, sub.place, "items", text)
    elif sub.never:
        text = "No more items are accepted here."
        if not found.inputs:
            text = "There may be more items now."
        found.add(blame(known), sub.place, "items", text)
    else:
        judge.within(looked.parts, sub, found)


def _contains(judge: Judging, known: KnownValues, want: SubSchema, found: SchemaFindings) -> None:
    sub = want.below("contains")
    low = number_of(want.get("minContains")) if want.has("minContains") else 1
    high = number_of(want.get("maxContains")) if want.has("maxContains") else None
    for part in known.case.parts:
        if not part.has("contains"):
            continue
        own_low = number_of(part.get("minContains")) if part.has("minContains") else 1
        own_high = number_of(part.get("maxContains")) if part.has("maxContains") else None
        enough = own_low is not None and low is not None and own_low >= low
        few = not want.has("maxContains") or (
            own_high is not None and high is not None and own_high <= high
        )
        if enough and few and judge.equivalent(part.below("contains"), sub, found):
            return
    text = "Whether enough items are of the kind that is wanted cannot be judged."
    found.add(SchemaVerdict.UNKNOWN, want.at("contains"), "contains", text)
