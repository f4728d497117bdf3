"""Lists of terms, and that the best of some of them are found without reading all."""

import functools

from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.search import bm25
from metamcp_worker.search.bm25 import Postings, QueryTerm


def listed(term: str, impacts: dict[int, float]) -> Postings:
    found = Postings(term)
    found.invalidate()
    for document in sorted(impacts):
        found.documents.append(document)
        found.impacts.append(impacts[document])
    return found


def test_what_is_cut_out_is_no_longer_there() -> None:
    found = listed("a", {1: 1.0, 5: 2.0, 6: 0.5, 9: 0.25})
    assert found.peak == 2.0
    found.cut(5, 7)
    assert list(found.documents) == [1, 9]
    assert [found.impact(number) for number in (1, 5, 6, 9, 10)] == [1.0, 0, 0, 0.25, 0]
    assert found.peak == 1.0
    found.cut(0, 100)
    assert (len(found), found.peak, found.impact(1)) == (0, 0.0, 0.0)


def test_a_frequent_term_is_only_looked_up_for_those_that_can_be_among_the_best() -> None:
    rare = listed("rare", dict.fromkeys(range(20), 2.5))
    common = listed("common", dict.fromkeys(range(5000), 0.1))
    best = bm25.best([QueryTerm(common, 0.5), QueryTerm(rare, 8.0)], 10, None)
    assert not best.counted
    assert len(best.scores) == 20
    assert best.matching == 20


def test_terms_that_together_say_more_than_a_rarer_one_are_read() -> None:
    rare = listed("rare", dict.fromkeys(range(20), 1.0))
    common = [listed(term, dict.fromkeys(range(100, 500), 0.75)) for term in ("one", "other")]
    best = bm25.best([QueryTerm(found, 1.0) for found in (rare, *common)], 10, None)
    assert max(best.scores.values()) == 1.5
    assert sum(score == 1.5 for score in best.scores.values()) == 400


def test_without_a_term_nothing_is_best() -> None:
    assert bm25.best([], 10, None) == bm25.TopScores({}, 0, counted=True)


impacts = st.integers(1, 64).map(lambda number: number / 32)
lists = st.dictionaries(st.integers(0, 800), impacts, max_size=30)
broad = st.tuples(st.integers(1, 900), st.integers(1, 64)).map(
    lambda given: {number: (given[1] * number % 7 + 1) / 32 for number in range(given[0])}
)
queries = st.lists(
    st.tuples(lists | broad, st.sampled_from([0.01, 0.1, 1.0, 5.0])), min_size=1, max_size=6
)


def divides(every: int, document: int) -> bool:
    return document % every == 0


@given(queries, st.integers(1, 20), st.sampled_from([None, 2, 3]))
def test_the_best_are_those_that_reading_everything_finds(
    query: list[tuple[dict[int, float], float]], depth: int, every: int | None
) -> None:
    sought = [
        QueryTerm(listed(f"t{at}", impacts), weight) for at, (impacts, weight) in enumerate(query)
    ]
    allowed = None if every is None else functools.partial(divides, every)
    documents = {document for impacts, _ in query for document in impacts}
    everything = bm25.scores(
        [document for document in documents if allowed is None or allowed(document)], sought
    )
    best = bm25.best(sought, depth, allowed)
    ranked = sorted(everything.values(), reverse=True)[:depth]
    assert sorted(best.scores.values(), reverse=True)[:depth] == ranked
    assert all(everything[document] >= have for document, have in best.scores.items())
    if ranked:
        firsts = {document for document, have in everything.items() if have >= ranked[-1]}
        assert {document: everything[document] for document in firsts}.items() <= (
            best.scores.items()
        )
    assert best.matching == len(everything) if best.counted else best.matching <= len(everything)
