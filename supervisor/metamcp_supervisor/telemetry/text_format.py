"""The page of metrics as text: the format 0.0.4 of Prometheus, and OpenMetrics 1.0.

Owns: both formats, which of them a scraper wants. Never: values, which series there are
(`metrics`), HTTP (`admin`).

From one page to the next mostly numbers change, so the rest is kept as forms to fill in. The text
is equal, byte for byte, to the output of the Prometheus library.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType
from typing import cast

from msgspec import Struct

from metamcp_supervisor.telemetry.metric_names import FAMILIES, MetricFamily
from metamcp_worker.ipc.messages import Durations

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
HISTOGRAMS_MAX = 2048
"""Maximum number of histograms whose forms are kept; a page has fewer."""
ROWS = 128
"""Number of rows in a form: after a new series, only its form and the following ones are made
again."""
PLAIN_MAX = 1_000_000
"""Lowest number that is written with an exponent."""
_WHOLE = b"%d.0\n"
_WHOLE_KINDS = frozenset({int, bool})
_OPENMETRICS_VERSIONS = frozenset({"", "1.0.0", "1.0.1"})

Labels = tuple[str, ...]
Row = tuple[Labels, float | Durations]


class Columns(Struct, frozen=True):
    """Rows with two labels, of which there are thousands. `parts`: by first label, the second
    labels and their values in the same order. Rows are made only for callers that iterate."""

    parts: Mapping[str, tuple[Sequence[str], Sequence[int]]]

    def __len__(self) -> int:
        return sum(len(values) for _, values in self.parts.values())

    def __iter__(self) -> Iterator[Row]:
        for first, (names, values) in self.parts.items():
            for second, value in zip(names, values, strict=True):
                yield (first, second), value


Rows = Mapping[str, Sequence[Row] | Columns]
"""Rows by name of the family, with labels in the order of the family."""
Ends = Mapping[Labels, Mapping[int, bytes]]
"""Texts after the number of a bucket, by labels and bucket."""
_NONE: Mapping[str, Ends] = MappingProxyType({})


def wants_openmetrics(accept: str) -> bool:
    """Whether this value of `Accept` names OpenMetrics before the other format."""
    for part in accept.split(","):
        kind, *parameters = (one.strip() for one in part.split(";"))
        if kind == "application/openmetrics-text":
            versions = [one[8:].strip('"') for one in parameters if one.startswith("version=")]
            return all(one in _OPENMETRICS_VERSIONS for one in versions)
        if kind == "text/plain":
            return False
    return False


class MetricsPages:
    """Pages of one gateway; each page uses forms of the one before."""

    def __init__(self) -> None:
        self._before: Forms = {}
        """Forms of the page before."""

    def page(
        self, rows: Rows, *, openmetrics: bool = False, ends: Mapping[str, Ends] = _NONE
    ) -> bytes:
        """Return the page with all families in `rows`, also those with an empty list. `ends`: by
        family."""
        forms: Forms = {}
        out: list[bytes] = []
        for name, found in rows.items():
            family = FAMILIES[name]
            out.append(_head(family, openmetrics))
            if isinstance(found, Columns):
                for first, (others, values) in found.parts.items():
                    form = self._form(forms, (name, first), others)
                    out.append(_filled(form, values))
            elif family.kind == "histogram":
                _histograms(out, family, found, ends.get(name, {}))
            else:
                for at in range(0, len(found), ROWS):
                    here = found[at : at + ROWS]
                    form = self._form(forms, (name, at), [labels for labels, _ in here])
                    out.append(_filled(form, [cast("float", value) for _, value in here]))
        self._before = forms
        if openmetrics:
            out.append(b"# EOF\n")
        return b"".join(out)

    def _form(self, forms: "Forms", place: "Place", labels: Sequence[str | Labels]) -> bytes:
        """Return lines for these labels, with places for their numbers; the same form as on the
        page before, if the labels are the same."""
        found = self._before.get(place)
        if found is None or found[0] != labels:
            found = labels, _blank(*place, labels)
        forms[place] = found
        return found[1]


Place = tuple[str, str | int]
"""Place of a form on a page: the family, and the first label or the number of the first row."""
Forms = dict[Place, tuple[Sequence[str | Labels], bytes]]


def number(value: float) -> bytes:
    """Return a number that is not negative as Go writes it: with an exponent more often than
    Python."""
    if value == float("inf"):
        return b"+Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}".encode()
    return text.encode()


def _head(family: MetricFamily, openmetrics: bool) -> bytes:
    name = family.name.removesuffix("_total") if openmetrics else family.name
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n".encode()


def _filled(form: bytes, values: Sequence[float]) -> bytes:
    """Fill numbers into a form; the common case, small whole numbers, is fast."""
    if not values:
        return b""
    if set(map(type, values)) <= _WHOLE_KINDS and min(values) >= 0 and max(values) < PLAIN_MAX:
        return form % tuple(values)
    # No label has the end of a line in it.
    return form.replace(_WHOLE, b"%b") % tuple(map(_line, values))


def _blank(name: str, first: str | int, labels: Iterable[str | Labels]) -> bytes:
    """Return a line for each of these labels, with a place for its number. `first`: the first
    label, if each element of `labels` is only the second one."""
    names = FAMILIES[name].labels
    each = ((str(first), one) if isinstance(one, str) else one for one in labels)
    return b"".join(
        _begin(name, zip(names, one, strict=True)).replace(b"%", b"%%") + _WHOLE for one in each
    )


def _histograms(out: list[bytes], family: MetricFamily, rows: Iterable[Row], ends: Ends) -> None:
    for labels, value in rows:
        assert isinstance(value, Durations)
        # A list, and without the count: tuples that grew while they were made stay in free lists of
        # Python (two thousand per length, in 3.11 also of length twenty) and are never used again.
        (form, total), below = _form(family.name, labels), list(accumulate(value.buckets))
        lines = _filled(form, below)
        out.append(_ended(lines, ends[labels]) if labels in ends else lines)
        out += (_line(below[-1]), total, _line(value.seconds))


def _ended(lines: bytes, ends: Mapping[int, bytes]) -> bytes:
    """Add the ends to the lines of buckets, which come first, in their order."""
    found = lines.split(b"\n")
    return b"\n".join(line + ends.get(at, b"") for at, line in enumerate(found))


def _line(value: float) -> bytes:
    """Return a value and the end of its line. Most values are small whole numbers."""
    whole = int(value)
    if whole == value and 0 <= whole < PLAIN_MAX:
        return _WHOLE % whole
    return number(value) + b"\n"


@lru_cache(HISTOGRAMS_MAX)
def _form(name: str, labels: Labels) -> tuple[bytes, bytes]:
    """Return two parts: all buckets, with places for their numbers, and the beginning of the line
    of the count; and the beginning of the line of the sum."""
    family = FAMILIES[name]
    known = list(zip(family.labels, labels, strict=True))
    bounds = (*(number(bound).decode() for bound in family.bounds_s), "+Inf")
    parts = (
        *(_begin(f"{name}_bucket", [*known, ("le", bound)]) for bound in bounds),
        _begin(f"{name}_count", known),
    )
    form = _WHOLE.join(part.replace(b"%", b"%%") for part in parts)
    return form, _begin(f"{name}_sum", known)


def _begin(name: str, labels: Iterable[tuple[str, str]]) -> bytes:
    inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels))
    return f"{name}{{{inside}}} ".encode() if inside else f"{name} ".encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
