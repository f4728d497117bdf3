"""What is in view, in tokens, as the supervisor is told it.

Owns: the sums of lists and of all that is behind an endpoint, each made once. Never: what is in
view (`viewers`, `exposure`), tokens of bytes (`token_cost`), telling anybody.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec import Struct

from metamcp_worker.catalog.catalog import Entry, Merged, sent_bytes
from metamcp_worker.catalog.views import View
from metamcp_worker.ipc import token_cost
from metamcp_worker.ipc.disclosure import ViewStats, Whose

VIEWS_TOLD_MAX = 512
"""The first ones, each with a hundred bytes every two seconds; those of everybody come first."""


class _Sum(Struct, frozen=True):
    """Of these very entries."""

    entries: Sequence[Entry]
    tokens: int


class Outlays:
    """Many views have the same list, and lists rarely change: a sum is kept as long as its list."""

    def __init__(self) -> None:
        self._sums: dict[int, _Sum] = {}

    def stats(
        self, views: Mapping[Whose, View], everything: Mapping[str, Merged]
    ) -> tuple[ViewStats, ...]:
        """`everything`: all that is behind each endpoint."""
        known, self._sums = self._sums, {}
        return tuple(
            self._stat(whose, view, everything[whose.endpoint], known)
            for whose, view in islice(views.items(), VIEWS_TOLD_MAX)
        )

    def _stat(
        self, whose: Whose, view: View, everything: Merged, known: Mapping[int, _Sum]
    ) -> ViewStats:
        listed = view.merged.lists["tools"]
        return ViewStats(
            whose.endpoint,
            whose.principal,
            whose.session,
            view.spec.exposure,
            view.shown.toolset,
            len(listed),
            self._tokens(listed, known),
            len(everything.offered),
            self._tokens(everything.offered, known),
        )

    def _tokens(self, entries: Sequence[Entry], known: Mapping[int, _Sum]) -> int:
        key = id(entries)  # of no other ones, as the sum keeps them
        found = self._sums.get(key) or known.get(key)
        if found is None:
            found = _Sum(entries, token_cost.of_bytes(sum(map(sent_bytes, entries))))
        self._sums[key] = found
        return found.tokens
