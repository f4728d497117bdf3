"""In which documents a term stands, how much it says there, and which documents have most of some.

Owns: the lists of one term, and adding them up no further than the best documents need. Never:
text, what a document is, names.

Documents are numbers. New ones have higher numbers than all before, and those of one server follow
each other, so a list is always in order and what a server put into it is one slice.

Terms are added up from the one that can say most. When all that the others could add is less than
what the last of the wanted documents has already, no further document can become one of them, and
the long lists of frequent terms are only looked up for those that are left. What comes out is the
same as with all lists read.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import mul

from msgspec import Struct

SHORT = 200
"""Documents of a list that is read sooner than it is found out whether it has to be."""
LOOKUP_COST = 5
"""Looking one document up in a list costs as much as reading so many of it."""
MARGIN = 1.000001
"""Sums of the same numbers in another order differ by less."""


class Postings:
    """The documents of one term, and its impact in each: what it adds to a score before the term's
    rarity counts."""

    __slots__ = ("_peak", "documents", "impacts", "term")

    def __init__(self, term: str) -> None:
        self.term = term
        self.documents = array("Q")
        self.impacts = array("f")
        self._peak: float | None = 0.0

    def __len__(self) -> int:
        return len(self.documents)

    def changed(self) -> None:
        """Something is added at the ends of both lists."""
        self._peak = None

    def cut(self, first: int, end: int) -> None:
        """Without the documents from `first` to before `end`."""
        low = bisect_left(self.documents, first)
        high = bisect_left(self.documents, end, low)
        del self.documents[low:high]
        del self.impacts[low:high]
        self._peak = None

    @property
    def peak(self) -> float:
        """The largest impact."""
        if self._peak is None:
            self._peak = max(self.impacts, default=0.0)
        return self._peak

    def impact(self, document: int) -> float:
        """0 where the term does not stand."""
        at = bisect_left(self.documents, document)
        found = at < len(self.documents) and self.documents[at] == document
        return self.impacts[at] if found else 0.0


class Sought(Struct, frozen=True):
    """One term of a query. `weight`: what its impacts are multiplied by."""

    postings: Postings
    weight: float

    @property
    def bound(self) -> float:
        """More than this it adds to no document."""
        return self.weight * self.postings.peak


class Best(Struct, frozen=True):
    """`scores`: of the best documents and of some that are not. `matching`: how many documents have
    one of the terms; `counted`: or is that only the least that it can be?"""

    scores: dict[int, float]
    matching: int
    counted: bool


Allowed = Callable[[int], bool]


def best(query: Sequence[Sought], depth: int, allowed: Allowed | None) -> Best:
    """At least the `depth` documents with the highest scores, of those that are allowed, or all
    that there are. Where documents are equal at the end of that, all of these."""
    ordered = _ordered(query)
    scores: dict[int, float] = {}
    for at, one in enumerate(ordered):
        if len(scores) >= depth and len(one.postings) > SHORT:
            scores = _allowed(scores, allowed)
            if len(scores) >= depth:
                least = heapq.nlargest(depth, scores.values())[-1]
                if _rest(ordered[at:]) < least:
                    matching = len(scores)
                    scores = _finished(scores, ordered[at:], depth)
                    return Best(scores, matching, counted=False)
        _add(scores, one)
    scores = _allowed(scores, allowed)
    return Best(scores, len(scores), counted=True)


def scores(documents: Iterable[int], query: Sequence[Sought]) -> dict[int, float]:
    """Of these documents, the same as `best` finds."""
    found = dict.fromkeys(documents, 0.0)
    for one in _ordered(query):
        for document in found:
            found[document] += one.weight * one.postings.impact(document)
    return found


def _ordered(query: Sequence[Sought]) -> list[Sought]:
    return sorted(query, key=lambda one: (-one.bound, one.postings.term))


def _rest(query: Sequence[Sought]) -> float:
    """More than this they add to no document."""
    return MARGIN * sum(one.bound for one in query)


def _add(scores: dict[int, float], one: Sought) -> None:
    documents, impacts, weight = one.postings.documents, one.postings.impacts, one.weight
    if not scores:
        scores.update(zip(documents, map(mul, impacts, repeat(weight)), strict=True))
        return
    have = scores.get
    for document, impact in zip(documents, impacts, strict=True):
        scores[document] = have(document, 0.0) + weight * impact


def _allowed(scores: dict[int, float], allowed: Allowed | None) -> dict[int, float]:
    if allowed is None:
        return scores
    return {document: score for document, score in scores.items() if allowed(document)}


def _finished(scores: dict[int, float], query: Sequence[Sought], depth: int) -> dict[int, float]:
    """What these documents have with these terms too, as long as they may be among the best."""
    for at, one in enumerate(query):
        least = heapq.nlargest(depth, scores.values())[-1] - _rest(query[at:])
        scores = {document: have for document, have in scores.items() if have >= least}
        weight = one.weight
        if len(scores) * LOOKUP_COST < len(one.postings):
            for document in scores:
                scores[document] += weight * one.postings.impact(document)
        else:
            for document, impact in zip(one.postings.documents, one.postings.impacts, strict=True):
                if document in scores:
                    scores[document] += weight * impact
    return scores
