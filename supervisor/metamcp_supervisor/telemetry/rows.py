"""From what was counted to rows of a page: labels and a value each.

Owns: the forms that several families share, and what a page says of views. Never: sums (`metrics`,
`tallies`), names and labels of families (`families`).
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import product

from metamcp_supervisor.telemetry.families import FAMILIES
from metamcp_supervisor.telemetry.histograms import Histogram
from metamcp_supervisor.telemetry.rendering import Columns, Labels, Row
from metamcp_worker.ipc.disclosure import ViewStats

Values = Iterable[Row]


def of_views(views: Iterable[ViewStats]) -> Iterator[tuple[str, Values]]:
    """By endpoint, so that no label grows with clients: the fullest view counts."""
    everything: dict[str, int] = {}
    shown: dict[str, int] = {}
    for view in views:
        everything[view.endpoint] = view.everything
        shown[view.endpoint] = max(shown.get(view.endpoint, 0), view.tokens)
    yield "metamcp_endpoint_tokens", by_one(everything)
    yield "metamcp_view_tokens", by_one(shown)


def histograms(found: Mapping[str, Histogram]) -> Values:
    return (((key,), one.durations) for key, one in found.items())


def by_one(counts: Mapping[str, int]) -> Values:
    return (((key,), n) for key, n in counts.items())


def by_two(
    counts: Mapping[str, Mapping[str, int]], known: Iterable[str] = (), keys: Iterable[str] = ()
) -> Values:
    """These keys of known servers are there before anything happened: `increase` of Prometheus does
    not see the value with which a series begins."""
    found: dict[Labels, int] = dict.fromkeys(product(known, keys), 0)
    found |= {(server, key): n for server, inner in counts.items() for key, n in inner.items()}
    return found.items()


def configured(name: str, rows: Values, names: AbstractSet[str]) -> list[Row] | Columns:
    """Without those of servers that are not configured: fronts still tell of them, and the last
    process of one may have been measured after it was forgotten."""
    if isinstance(rows, Columns):
        return Columns({server: part for server, part in rows.parts.items() if server in names})
    if FAMILIES[name].labels[:1] != ("server",):
        return list(rows)
    return [row for row in rows if row[0][0] in names]
