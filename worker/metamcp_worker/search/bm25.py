"""BM25 over the fields of a tool, and the search for the tools with the highest scores.

Owns: the weight of each term in one tool (`weights`), the list of tools of one term with its impact
in each (`Postings`), and the best tools for weighted terms (`best`). Never: how rare a term is,
names, ties (`search.index`).

A term weighs more in a name than in a description, less in a long text than in a short one, and
less with each repetition. The usual lengths of fields are constants instead of averages over the
index, so the weights of a tool do not depend on other tools. `best` reads the terms in the order of
what they can add at most, and stops where the remaining terms cannot bring in another tool.
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
"""Maximum characters of one field; the text behind them is not indexed."""
SATURATION = 1.6
"""Weight at which a term has half of its maximum impact."""
LENGTH_SHARE = 0.5
"""Share of a weight that depends on the length of its field, from 0 (none) to 1 (all of it)."""


class _Field(Struct, frozen=True):
    """Weight of a field. `length`: usual number of terms in it."""

    weight: float
    length: float


_TOOL = _Field(5.0, 3.0)
_SERVER = _Field(2.0, 2.0)
_TITLE = _Field(1.0, 3.0)
_DESCRIPTION = _Field(1.0, 25.0)
_PARAMETERS = _Field(0.4, 5.0)
_PARAMETER_TEXTS = _Field(0.3, 20.0)


def weights(pair: Pair, definition: bytes) -> dict[str, float]:
    """Return the weight of each term of a tool; a broken definition has the terms of its names."""
    read = definitions.read(definition)
    term_weights: dict[str, float] = {}
    for field, text in (
        (_TOOL, pair[1]),
        (_SERVER, pair[0]),
        (_TITLE, read.title),
        (_DESCRIPTION, read.description),
        (_PARAMETERS, " ".join([parameter.name for parameter in read.parameters])),
        (_PARAMETER_TEXTS, " ".join([parameter.description for parameter in read.parameters])),
    ):
        if text:
            _weigh(term_weights, field, text[:TEXT_CHARACTERS_MAX])
    return term_weights


def _weigh(term_weights: dict[str, float], field: _Field, text: str) -> None:
    terms = words.terms(text)
    share = field.weight / (1 - LENGTH_SHARE + LENGTH_SHARE * len(terms) / field.length)
    have = term_weights.get
    for term in terms:
        term_weights[term] = have(term, 0.0) + share


SHORT = 200
"""Documents of a list up to which reading the list is cheaper than testing whether to read it."""
LOOKUP_COST = 5
"""Entries of a list that can be read in the time of looking up one document in it."""
MARGIN = 1.000001
"""Factor above the rounding error between sums of the same numbers in different orders."""


class Postings:
    """The documents of one term in ascending order, and the term's impact in each: its share of a
    score before the rarity of the term is multiplied in."""

    __slots__ = ("_peak", "documents", "impacts", "term")

    def __init__(self, term: str) -> None:
        self.term = term
        self.documents = array("Q")
        self.impacts = array("f")
        self._peak: float | None = 0.0

    def __len__(self) -> int:
        return len(self.documents)

    def invalidate(self) -> None:
        """Note that the caller has added to the ends of both lists."""
        self._peak = None

    def cut(self, first: int, end: int) -> None:
        """Remove the documents from `first` to before `end`."""
        low = bisect_left(self.documents, first)
        high = bisect_left(self.documents, end, low)
        del self.documents[low:high]
        del self.impacts[low:high]
        self._peak = None

    @property
    def peak(self) -> float:
        """Largest impact; 0 without documents."""
        if self._peak is None:
            self._peak = max(self.impacts, default=0.0)
        return self._peak

    def impact(self, document: int) -> float:
        """Return the impact in a document; 0 where the document does not have the term."""
        at = bisect_left(self.documents, document)
        has_document = at < len(self.documents) and self.documents[at] == document
        return self.impacts[at] if has_document else 0.0


class QueryTerm(Struct, frozen=True):
    """A term of a query. `weight`: factor of its impacts."""

    postings: Postings
    weight: float

    @property
    def score_max(self) -> float:
        """Most that the term adds to the score of a document."""
        return self.weight * self.postings.peak


class TopScores(Struct, frozen=True):
    """Result of `best`. `scores`: of the best documents and of some others. `matching`: number of
    documents with at least one of the terms; a lower bound unless `counted`."""

    scores: dict[int, float]
    matching: int
    counted: bool


Allowed = Callable[[int], bool]


def best(query: Sequence[QueryTerm], depth: int, allowed: Allowed | None) -> TopScores:
    """Return at least the `depth` allowed documents with the highest scores, or all allowed
    documents if there are fewer. All documents that tie for the last place are included."""
    ordered = _sort_terms(query)
    scores: dict[int, float] = {}
    for at, sought in enumerate(ordered):
        if len(scores) >= depth and len(sought.postings) > SHORT:
            scores = _filter_allowed(scores, allowed)
            if len(scores) >= depth:
                least = heapq.nlargest(depth, scores.values())[-1]
                if _rest(ordered[at:]) < least:
                    matching = len(scores)
                    scores = _finish_scores(scores, ordered[at:], depth)
                    return TopScores(scores, matching, counted=False)
        _add(scores, sought)
    scores = _filter_allowed(scores, allowed)
    return TopScores(scores, len(scores), counted=True)


def scores(documents: Iterable[int], query: Sequence[QueryTerm]) -> dict[int, float]:
    """Return the scores of these documents, equal to those of `best`."""
    totals = dict.fromkeys(documents, 0.0)
    for sought in _sort_terms(query):
        for document in totals:
            totals[document] += sought.weight * sought.postings.impact(document)
    return totals


def _sort_terms(query: Sequence[QueryTerm]) -> list[QueryTerm]:
    return sorted(query, key=lambda sought: (-sought.score_max, sought.postings.term))


def _rest(query: Sequence[QueryTerm]) -> float:
    """Return the most that these terms add to the score of a document."""
    return MARGIN * sum(sought.score_max for sought in query)


def _add(scores: dict[int, float], sought: QueryTerm) -> None:
    documents, impacts, weight = sought.postings.documents, sought.postings.impacts, sought.weight
    if not scores:
        scores.update(zip(documents, map(mul, impacts, repeat(weight)), strict=True))
        return
    have = scores.get
    for document, impact in zip(documents, impacts, strict=True):
        scores[document] = have(document, 0.0) + weight * impact


def _filter_allowed(scores: dict[int, float], allowed: Allowed | None) -> dict[int, float]:
    if allowed is None:
        return scores
    return {document: score for document, score in scores.items() if allowed(document)}


def _finish_scores(
    scores: dict[int, float], query: Sequence[QueryTerm], depth: int
) -> dict[int, float]:
    """Add these terms to the scores; leave out documents that can no longer be among the best."""
    for at, sought in enumerate(query):
        least = heapq.nlargest(depth, scores.values())[-1] - _rest(query[at:])
        scores = {document: have for document, have in scores.items() if have >= least}
        weight = sought.weight
        if len(scores) * LOOKUP_COST < len(sought.postings):
            for document in scores:
                scores[document] += weight * sought.postings.impact(document)
        else:
            for document, impact in zip(
                sought.postings.documents, sought.postings.impacts, strict=True
            ):
                if document in scores:
                    scores[document] += weight * impact
    return scores
