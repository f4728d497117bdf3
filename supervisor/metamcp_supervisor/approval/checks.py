"""The keywords that a single value answers: types, lists of values, numbers, lengths, patterns.

Owns: whether each of them follows from what is known, and the sentence if not. Never: members and
items (`members`), choices (`containment`).
"""

from collections.abc import Iterable
from fractions import Fraction

from metamcp_supervisor.approval.findings import Findings, Verdict, word
from metamcp_supervisor.approval.fingerprints import canonical
from metamcp_supervisor.approval.known import (
    FRACTION,
    NUMBERS,
    Bound,
    Known,
    divides,
    exact,
    number_of,
    types_in,
)
from metamcp_supervisor.approval.sides import Part, is_list, list_of

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
"""What a text is to be, beyond what JSON Schema checks by itself."""


def spoken(types: Iterable[str]) -> str:
    found = set(types)
    names = ["a number"] if found >= NUMBERS else []
    left = found - NUMBERS if names else found
    return " or ".join([*names, *(text for key, text in _SPOKEN.items() if key in left)])


def check(known: Known, want: Part, found: Findings) -> None:
    """Raises Blocked."""
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


def blame(known: Known) -> Verdict:
    """Of what does not follow."""
    return Verdict.UNKNOWN if known.unclear else Verdict.BREAKING


def malformed(want: Part, keyword: str, found: Findings) -> None:
    text = f"'{keyword}' is not what JSON Schema knows."
    found.add(Verdict.UNKNOWN, want.at(keyword), "malformed", text)


def _type(known: Known, want: Part, found: Findings) -> None:
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


def _values(known: Known, want: Part, found: Findings) -> None:
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


def _bounds(known: Known, want: Part, found: Findings) -> None:
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if not want.has(keyword):
            continue
        value = number_of(want.get(keyword))
        if value is None:
            malformed(want, keyword, found)
            continue
        upper = keyword.endswith("aximum")
        mine = known.bound(upper=upper)
        needed = Bound(value, keyword.startswith("ex"))
        if mine is None or not mine.beyond(needed, upper=upper):
            less, more = ("at most", "more") if upper else ("at least", "less")
            shown = f"{'not ' if needed.open else ''}{value}" if needed.open else str(value)
            text = f"It must be {less} {shown} now."
            if not found.inputs:
                text = f"It may be {more} than {value} now, which it was not."
            found.add(blame(known), want.at(keyword), "bounds", text)


def _multiple(known: Known, want: Part, found: Findings) -> None:
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


def _single_number(known: Known) -> Fraction | None:
    if known.values is None or len(known.values) != 1:
        return None
    value = number_of(next(iter(known.values.values())))
    return None if value is None else exact(value)


def _size(known: Known, want: Part, name: str, unit: str, found: Findings) -> None:
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


def _pattern(known: Known, want: Part, found: Findings) -> None:
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
        found.add(Verdict.UNKNOWN, want.at("pattern"), "pattern", text)
        return
    shown = word(pattern)
    text = f"It must match the pattern '{shown}' now."
    if not found.inputs:
        text = f"It need not match the pattern '{shown}' any more."
    found.add(blame(known), want.at("pattern"), "pattern", text)


def _meaning(known: Known, want: Part, keyword: str, found: Findings) -> None:
    if not want.has(keyword) or canonical(want.get(keyword)) in known.spellings(keyword):
        return
    value = want.get(keyword)
    shown = f" '{word(value)}'" if isinstance(value, str) else ""
    text = f"Whether what it was fits {keyword}{shown} cannot be judged."
    if not found.inputs:
        text = f"It need not be {keyword}{shown} any more."
    found.add(Verdict.UNKNOWN, want.at(keyword), "format", text)


def _listed(spelled: list[bytes], most: int = 5) -> str:
    shown = [each.decode("utf-8", "replace") for each in spelled[:most]]
    cut = [
        each if len(each) <= _SHOWN_CHARACTERS else f"{each[:_SHOWN_CHARACTERS]}…" for each in shown
    ]
    more = f" and {len(spelled) - most} more" if len(spelled) > most else ""
    return ", ".join(word(each) for each in cut) + more
