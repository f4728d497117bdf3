"""How good rankings are.

Owns: the figures and their meaning. Never: the search, sets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.search.sets import Query, Sets
from metamcp_worker.builtin_tools.vector_search import ToolVectors
from metamcp_worker.search.index import Index, Ranking
from metamcp_worker.search.vectors import Vector, shrunk, vector

DEPTH = 50
"""Places that are looked at for MRR."""
RECALL_PLACES = 15

SETS = "sets"
"""The endpoint that has all of them."""
BATCH = 32

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts, and a vector for each."""
Search = Callable[[str, int], Sequence[str]]
"""A query and a limit; the names of tools, the best first."""


@dataclass(frozen=True, slots=True)
class Quality:
    """`first` and `five`: the share of queries whose tool is in the first place, in the first five;
    `mrr`: the mean of 1/place; `recall`: the mean share of the wanted tools in the first 15."""

    first: float
    five: float
    mrr: float
    recall: float


def judged(queries: Sequence[Query], search: Search) -> Quality:
    """A tool of that name counts, whichever server has it."""
    places: list[int] = []
    recalls: list[float] = []
    for query in queries:
        names = search(query.text, DEPTH)
        found = [at for at, name in enumerate(names, 1) if name in query.wanted]
        places.append(found[0] if found else 0)
        recalls.append(len(query.wanted & set(names[:RECALL_PLACES])) / len(query.wanted))
    count = len(queries)
    return Quality(
        first=sum(place == 1 for place in places) / count,
        five=sum(0 < place <= 5 for place in places) / count,
        mrr=sum(1 / place for place in places if place) / count,
        recall=sum(recalls) / count,
    )


def indexed(sets: Sets) -> Index:
    index = Index()
    for server in dict.fromkeys(document.pair[0] for document in sets.documents):
        index.put(server, [one for one in sets.documents if one.pair[0] == server])
    return index


def meant(index: Index, sets: Sets, embed: Embed, weight: float) -> Search:
    """The same, fused with a ranking by meaning, as a front does it."""
    meanings = ToolVectors()
    for server in dict.fromkeys(document.pair[0] for document in sets.documents):
        meanings.put(SETS, server, [one for one in sets.documents if one.pair[0] == server])
    while meanings.unread or meanings.collect_texts(1):
        wanted = meanings.collect_texts(BATCH)
        made = embed(list(wanted.values()))
        meanings.learn(dict(zip(wanted, map(shrunk, made), strict=True)))
    known: dict[str, Vector] = {}

    def search(query: str, limit: int) -> Sequence[str]:
        if query not in known:
            known[query] = vector(shrunk(embed([query])[0]))
        near = Ranking(meanings.nearest(SETS, known[query], None), weight)
        return [hit.document.pair[1] for hit in index.search(query, limit, None, [near]).hits]

    return search


def by(index: Index) -> Search:
    """A search of this index, as `judged` wants it."""

    def search(query: str, limit: int) -> Sequence[str]:
        return [hit.document.pair[1] for hit in index.search(query, limit).hits]

    return search
