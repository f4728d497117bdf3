"""What each term says in one tool: how often it stands there, where, and in how long a text.

Owns: the fields of a tool, their weights and usual lengths, and saturation. Never: other tools, how
rare a term is, ranking.

A term says more in a name than in a description, less in a long text than in a short one, and less
each time that it comes again. The usual lengths are constants and not the averages of what is
there, so a tool weighs the same whatever other tools there are.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import mul

from msgspec import Struct

from metamcp_worker.ipc.exposed_names import Pair
from metamcp_worker.search import definitions, words

TEXT_CHARACTERS_MAX = 16_384
"""Of one field; what comes behind that is not found."""
SATURATION = 1.6
"""The weight with which a term says half of what it could."""
LENGTH_SHARE = 0.5
"""How much of a weight depends on the length of its field: 0 is nothing, 1 everything."""


class _Field(Struct, frozen=True):
    """`length`: terms that such a field usually has."""

    weight: float
    length: float


_TOOL = _Field(5.0, 3.0)
_SERVER = _Field(2.0, 2.0)
_TITLE = _Field(1.0, 3.0)
_DESCRIPTION = _Field(1.0, 25.0)
_PARAMETERS = _Field(0.4, 5.0)
_PARAMETER_TEXTS = _Field(0.3, 20.0)


def weights(pair: Pair, definition: bytes) -> dict[str, float]:
    """Of each term of a tool. Any definition has some, if only those of its names."""
    read = definitions.read(definition)
    found: dict[str, float] = {}
    for field, text in (
        (_TOOL, pair[1]),
        (_SERVER, pair[0]),
        (_TITLE, read.title),
        (_DESCRIPTION, read.description),
        (_PARAMETERS, " ".join([one.name for one in read.parameters])),
        (_PARAMETER_TEXTS, " ".join([one.description for one in read.parameters])),
    ):
        if text:
            _weigh(found, field, text[:TEXT_CHARACTERS_MAX])
    return found


def _weigh(found: dict[str, float], field: _Field, text: str) -> None:
    terms = words.terms(text)
    share = field.weight / (1 - LENGTH_SHARE + LENGTH_SHARE * len(terms) / field.length)
    have = found.get
    for term in terms:
        found[term] = have(term, 0.0) + share


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
