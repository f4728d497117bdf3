"""The page of metrics as text: the format 0.0.4 of Prometheus, and OpenMetrics 1.0.

Owns: both formats, which of them a scraper wants. Never: values, which series there are
(`metrics`), HTTP (`admin`).

A histogram is a score of lines of which only the numbers change, so the rest is made once and kept
as a form to fill in. What is written is, byte for byte, what the library of Prometheus writes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType

from metamcp_supervisor.watched.families import FAMILIES, Family
from metamcp_worker.messages import Durations

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PREFIXES_MAX = 32_768
"""Beginnings of series that are kept; a page has fewer series."""
PLAIN_MAX = 1_000_000
"""From here on a number is written with an exponent."""
_WHOLE = b"%d.0\n"
_OPENMETRICS_VERSIONS = frozenset({"", "1.0.0", "1.0.1"})

Labels = tuple[str, ...]
Row = tuple[Labels, float | Durations]
Rows = Mapping[str, Sequence[Row]]
"""By the name of the family, in its order of labels."""
Ends = Mapping[Labels, Mapping[int, bytes]]
"""What stands behind the number of a bucket, by labels and bucket."""
_NONE: Mapping[str, Ends] = MappingProxyType({})


def wants_openmetrics(accept: str) -> bool:
    """Does this value of `Accept` name OpenMetrics before any other format that there is?"""
    for part in accept.split(","):
        kind, *parameters = (one.strip() for one in part.split(";"))
        if kind == "application/openmetrics-text":
            versions = [one[8:].strip('"') for one in parameters if one.startswith("version=")]
            return all(one in _OPENMETRICS_VERSIONS for one in versions)
        if kind == "text/plain":
            return False
    return False


def page(rows: Rows, *, openmetrics: bool = False, ends: Mapping[str, Ends] = _NONE) -> bytes:
    """Every family that has rows, or an empty list of them. `ends`: by family."""
    out: list[bytes] = []
    for name, found in rows.items():
        family = FAMILIES[name]
        out.append(_head(family, openmetrics))
        if family.kind == "histogram":
            _histograms(out, family, found, ends.get(name, {}))
        else:
            _plain(out, family, found)
    if openmetrics:
        out.append(b"# EOF\n")
    return b"".join(out)


def number(value: float) -> bytes:
    """As Go writes it, of what is not negative; Python needs fewer exponents."""
    if value == float("inf"):
        return b"+Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}".encode()
    return text.encode()


def _head(family: Family, openmetrics: bool) -> bytes:
    name = family.name.removesuffix("_total") if openmetrics else family.name
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n".encode()


def _plain(out: list[bytes], family: Family, rows: Iterable[Row]) -> None:
    name = family.name
    for labels, value in rows:
        assert not isinstance(value, Durations)
        out.append(_prefix(name, labels))
        out.append(_line(value))


def _histograms(out: list[bytes], family: Family, rows: Iterable[Row], ends: Ends) -> None:
    for labels, value in rows:
        assert isinstance(value, Durations)
        form, below = _form(family.name, labels), tuple(accumulate(value.buckets))
        if below[-1] < PLAIN_MAX:
            lines = form % (*below, below[-1])
        else:  # no label has the end of a line in it
            lines = form.replace(_WHOLE, b"%b") % tuple(map(_line, (*below, below[-1])))
        out.append(_ended(lines, ends[labels]) if labels in ends else lines)
        out.append(_line(value.seconds))


def _ended(lines: bytes, ends: Mapping[int, bytes]) -> bytes:
    """The lines of buckets come first, in their order."""
    found = lines.split(b"\n")
    return b"\n".join(line + ends.get(at, b"") for at, line in enumerate(found))


def _line(value: float) -> bytes:
    """A value and the end of its line. Most are small whole numbers."""
    whole = int(value)
    if whole == value and 0 <= whole < PLAIN_MAX:
        return _WHOLE % whole
    return number(value) + b"\n"


@lru_cache(PREFIXES_MAX)
def _prefix(name: str, labels: Labels) -> bytes:
    return _begin(name, zip(FAMILIES[name].labels, labels, strict=True))


@lru_cache(PREFIXES_MAX // 16)
def _form(name: str, labels: Labels) -> bytes:
    """All buckets and the count, with places for their numbers, and the beginning of the sum."""
    family = FAMILIES[name]
    known = list(zip(family.labels, labels, strict=True))
    bounds = (*(number(bound).decode() for bound in family.bounds_s), "+Inf")
    parts = (
        *(_begin(f"{name}_bucket", [*known, ("le", bound)]) for bound in bounds),
        _begin(f"{name}_count", known),
        _begin(f"{name}_sum", known),
    )
    return _WHOLE.join(part.replace(b"%", b"%%") for part in parts)


def _begin(name: str, labels: Iterable[tuple[str, str]]) -> bytes:
    inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels))
    return f"{name}{{{inside}}} ".encode() if inside else f"{name} ".encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
