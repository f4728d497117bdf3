"""Several rankings of the same things made into one.

Owns: reciprocal rank fusion. Never: where rankings come from, the things that they rank.

Scores of different searches cannot be compared, places can: each ranking gives what it has in place
`n` a share of `weight / (RANK_OFFSET + n)`.
"""

import heapq
import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

from msgspec import Struct

from metamcp_worker.ipc.exposed_names import Pair
from metamcp_worker.search import bm25, words
from metamcp_worker.search.bm25 import SATURATION, Postings, Sought, weights
from metamcp_worker.search.name_match import Beginnings, NameMatch, misspelt

RANK_OFFSET = 10
"""How much the first places stand out; the usual 60 is for lists of thousands."""
EXTRA_WEIGHT = 0.4
"""Of a ranking beside that by words, which has 1. A small model of meanings alone finds less than
words do, and as a voice among others it finds more."""
RANKED_MAX = 1_000
"""Of one ranking; what comes behind these would have next to nothing."""

T = TypeVar("T", bound=Hashable)


class Ranking(Struct, Generic[T], frozen=True):
    """What another search found, the best first. What is there twice has its better place."""

    found: Sequence[T]
    weight: float = EXTRA_WEIGHT


def fuse(rankings: Iterable[Ranking[T]]) -> dict[T, float]:
    """The share of everything that is in one of the rankings, unordered."""
    shares: dict[T, float] = {}
    for ranking in rankings:
        places = enumerate(dict.fromkeys(ranking.found[:RANKED_MAX]), 1)
        for place, thing in places:
            shares[thing] = shares.get(thing, 0.0) + ranking.weight / (RANK_OFFSET + place)
    return shares


DOCUMENTS_MAX = 100_000
"""Tools in one index; of more, no further ones are taken."""
QUERY_CHARACTERS_MAX = 4_096
"""Of what is longer, the beginning is the query."""
TERMS_MAX = 32
"""Of one query; of more, the rarest count."""
HITS_MAX = 100
"""Of one answer, whatever its limit."""
FUSED_DEPTH = 100
"""Of the ranking by words, where others are fused with it."""

WHOLE_NAME = 2_000.0
"""Added to the score of a tool whose name the query is. More than terms can add."""
WHOLE_SERVER = 1_000.0
"""To those of a server whose name it is."""
NAME_BEGINS = 2.0
"""Where a name only begins with the query: as much as one term more."""
NAME_WORDS_MAX = 8
"""Of a query that may be a name, the beginning of one, or misspelt; a longer one tells a story."""
PLAIN_CHARACTERS_MAX = 128
"""Of a name that is looked for by its beginning."""
NAMES_MAX = 50
"""That begin with the query, or terms that begin with a word of it."""

STEP_DOCUMENTS = 8
"""That are put in or taken out in one step."""
STEP_TERMS = 1_024
"""Whose lists are gone through in one step."""

NAMED_MAX = 200
"""Tools with such a name of which each is looked up."""

GUESSES_MAX = 2
"""Words of a query that are not in the index and for which others are tried."""
BEGUN_MAX = 8
"""Terms that are tried for the beginning of one."""
BEGUN_WEIGHT = 0.5
MISSPELT_WEIGHT = 0.7


class ToolDocument(Struct, frozen=True):
    """One tool. `pair`: its server and its own name; `exposed`: what clients call it; `definition`:
    raw JSON, of any shape; `renamed`: the exposed name says what it is, in place of its own."""

    pair: Pair
    exposed: str
    definition: bytes
    renamed: bool = False

    @property
    def told(self) -> Pair:
        """Its server and its name, as whoever looks for it knows them."""
        return (self.pair[0], self.exposed) if self.renamed else self.pair


class Hit(Struct, frozen=True):
    """`score`: the higher the better; comparable within one answer only. 0 where there was nothing
    to search for."""

    document: ToolDocument
    score: float


class SearchResult(Struct, frozen=True):
    """The best first. `more`: how many further tools match; `counted`: or is that the least it can
    be, because the others were not looked at?"""

    hits: tuple[Hit, ...]
    more: int
    counted: bool = True


Allowed = AbstractSet[str] | Callable[[Pair], bool]
"""The servers that may be found, or the tools."""


class _Shelf(Struct, frozen=True):
    """What one server put in: documents `first` to before `end`, in the order of their names."""

    first: int
    end: int
    ordered: Sequence[int]
    touched: tuple[Postings, ...]


class Index:
    """The tools of all servers. Putting and dropping takes as long as that server's tools do."""

    def __init__(self) -> None:
        self._shelves: dict[str, _Shelf] = {}
        self._documents: dict[int, ToolDocument] = {}
        self._numbers: dict[Pair, int] = {}
        self._next = 0
        self._postings: dict[str, Postings] = {}
        self._begun = Beginnings()
        self._tools: NameMatch[int] = NameMatch()
        self._servers: NameMatch[str] = NameMatch()
        self._plain_tools: NameMatch[int] = NameMatch()
        self._plain_servers: NameMatch[str] = NameMatch()

    def __len__(self) -> int:
        return len(self._documents)

    def put(self, server: str, documents: Sequence[ToolDocument]) -> int:
        """These are the tools of `server` now. Returns how many of them were left out, because they
        are there twice or the index is full."""
        for _ in self.putting(server, documents):
            pass
        shelf = self._shelves.get(server)
        return len(documents) - (shelf.end - shelf.first if shelf is not None else 0)

    def drop(self, server: str) -> None:
        """Nothing of `server` is found any more."""
        for _ in self.dropping(server):
            pass

    def putting(self, server: str, documents: Sequence[ToolDocument]) -> Iterator[None]:
        """The same as `put`, in steps of about a millisecond. Until the last one is taken nothing
        else may be asked of this index."""
        yield from self.dropping(server)
        first = self._next
        terms: set[str] = set()
        for document in documents:
            assert document.pair[0] == server, f"{document.pair} is no tool of {server}"
            if document.pair in self._numbers or len(self._documents) >= DOCUMENTS_MAX:
                continue
            self._take(document, terms)
            if self._next % STEP_DOCUMENTS == 0:
                yield
        numbers = range(first, self._next)
        if not numbers:
            return
        ordered = sorted(numbers, key=lambda number: self._documents[number].pair)
        yield
        touched = tuple(self._postings[term] for term in terms)
        for at, found in enumerate(touched, 1):
            found.changed()
            if at % STEP_TERMS == 0:
                yield
        self._shelves[server] = _Shelf(first, self._next, array("Q", ordered), touched)
        self._servers.add(words.key(server), server)
        self._plain_servers.add(words.plain(server), server)

    def dropping(self, server: str) -> Iterator[None]:
        """The same as `drop`, in steps as those of `putting`."""
        shelf = self._shelves.pop(server, None)
        if shelf is None:
            return
        for at, found in enumerate(shelf.touched, 1):
            found.cut(shelf.first, shelf.end)
            if not found:
                del self._postings[found.term]
                self._begun.changed()
            if at % STEP_TERMS == 0:
                yield
        gone = range(shelf.first, shelf.end)
        for number in gone:
            document = self._documents.pop(number)
            del self._numbers[document.pair]
            for key in _keys(document):
                self._tools.remove(key, gone)
            self._plain_tools.remove(_plain(document), gone)
            if number % STEP_DOCUMENTS == 0:
                yield
        self._servers.remove(words.key(server), {server})
        self._plain_servers.remove(words.plain(server), {server})

    def search(
        self,
        query: str,
        limit: int,
        allowed: Allowed | None = None,
        others: Sequence[Ranking[Pair]] = (),
    ) -> SearchResult:
        """The best tools for `query`, at most `limit` and `HITS_MAX`, in an order that depends on
        nothing else. `others`: what other searches found for it, to be fused with this one.

        A tool, and then a server, whose name the query is comes first. Without a word that says
        something, all tools are found, by name.
        """
        limit = max(0, min(limit, HITS_MAX))
        query = query[:QUERY_CHARACTERS_MAX]
        asked = _asked(query)
        permitted = self._permitted(allowed)
        sought = self._sought(asked)
        named = {
            number: bonus
            for number, bonus in self._named(query, sought).items()
            if permitted is None or permitted(number)
        }
        if not sought and not named and not others:
            return SearchResult((), 0) if asked else self._by_name(limit, allowed)
        terms = [one for _, one in sought]
        depth = max(1, limit, FUSED_DEPTH if others else 0)
        if len(named) > NAMED_MAX:
            depth = len(self)  # what all have is read sooner than what each of so many has
        best = bm25.best(terms, depth, permitted)
        scores = best.scores
        if others:
            scores = self._fused(scores, others, permitted)
        elif len(named) <= NAMED_MAX:
            scores.update(bm25.scores(named.keys() - scores.keys(), terms))
        for number, bonus in named.items():
            scores[number] = scores.get(number, 0.0) + bonus
        matching = len(scores) if others else max(best.matching, len(scores))
        hits = self._first(scores, limit)
        return SearchResult(hits, max(0, matching - len(hits)), best.counted)

    def _take(self, document: ToolDocument, terms: set[str]) -> None:
        """One more document; its terms join `terms`."""
        number = self._next
        self._next += 1
        self._documents[number] = document
        self._numbers[document.pair] = number
        for key in _keys(document):
            self._tools.add(key, number)
        self._plain_tools.add(_plain(document), number)
        self._say(number, weights(document.told, document.definition), terms)

    def _say(self, number: int, weighed: Mapping[str, float], terms: set[str]) -> None:
        """Puts one document into the lists of its terms, and these into `terms`."""
        terms.update(weighed)
        listed = self._postings.get
        for term, weight in weighed.items():
            if (found := listed(term)) is None:
                found = self._postings[term] = Postings(term)
                self._begun.changed()
            found.documents.append(number)
            found.impacts.append(weight / (weight + SATURATION))

    def _permitted(self, allowed: Allowed | None) -> Callable[[int], bool] | None:
        if allowed is None:
            return None
        documents = self._documents
        if callable(allowed):
            permits = allowed
            return lambda number: permits(documents[number].pair)
        servers = allowed
        return lambda number: documents[number].pair[0] in servers

    def _sought(self, asked: Sequence[str]) -> list[tuple[str, Sought]]:
        """The terms of the query with what they are looked up as, the rarest first."""
        sought: list[tuple[str, Sought]] = []
        guesses = 0
        for term in asked:
            if (found := self._postings.get(term)) is not None:
                sought.append((term, self._weighed(found, 1.0)))
            elif guesses < GUESSES_MAX and len(asked) <= NAME_WORDS_MAX:
                guesses += 1
                sought.extend((term, one) for one in self._guessed(term))
        sought.sort(key=lambda one: (-one[1].weight, one[0], one[1].postings.term))
        return sought[:TERMS_MAX]

    def _guessed(self, term: str) -> list[Sought]:
        """For a term that no document has: those that it begins, or one that it is meant to be."""
        begun = self._begun.of(term, self._postings, NAMES_MAX)
        if begun:
            most = heapq.nlargest(BEGUN_MAX, begun, key=lambda one: len(self._postings[one]))
            return [self._weighed(self._postings[one], BEGUN_WEIGHT) for one in most]
        meant = {one for one in misspelt(term) if one in self._postings}
        if not meant:
            return []
        likely = min(meant, key=lambda one: (-len(self._postings[one]), one))
        return [self._weighed(self._postings[likely], MISSPELT_WEIGHT)]

    def _weighed(self, found: Postings, weight: float) -> Sought:
        """With its rarity: what is in few documents says more."""
        rarity = math.log(1 + (len(self) - len(found) + 0.5) / (len(found) + 0.5))
        return Sought(found, weight * rarity)

    def _named(self, query: str, sought: Sequence[tuple[str, Sought]]) -> dict[int, float]:
        """The documents whose name, or whose server's name, the query is or begins."""
        if len(query.split()) > NAME_WORDS_MAX:
            return {}
        bonuses = dict.fromkeys(self._beginning(words.plain(query)), NAME_BEGINS)
        meant = {asked: one.postings.term for asked, one in sought}
        spelt = "".join(meant.get(term, term) for term in _asked(query))
        keys = dict.fromkeys((
            words.key(query),
            words.key(query, without=words.AROUND_NAMES | words.STOP_WORDS),
            spelt,
        ))  # fmt: skip
        for key in keys:
            if not key:
                continue
            for server in self._servers.whole(key):
                for number in self._shelves[server].ordered:
                    bonuses[number] = max(bonuses.get(number, 0.0), WHOLE_SERVER)
            for number in self._whole(key):
                bonuses[number] = WHOLE_NAME
        return bonuses

    def _whole(self, key: str) -> Iterator[int]:
        """Whose name is `key`, or whose server's name and own name are together."""
        yield from self._tools.whole(key)
        for rest, servers in self._servers.inside(key):
            for server in servers:
                shelf = self._shelves[server]
                for number in self._tools.whole(rest):
                    if shelf.first <= number < shelf.end:
                        yield number

    def _beginning(self, text: str) -> Iterator[int]:
        yield from self._plain_tools.beginning(text, NAMES_MAX)
        for server in self._plain_servers.beginning(text, NAMES_MAX):
            yield from self._shelves[server].ordered

    def _fused(
        self,
        scores: dict[int, float],
        others: Sequence[Ranking[Pair]],
        permitted: Callable[[int], bool] | None,
    ) -> dict[int, float]:
        """The shares of what was found by words and by others, of tools that are here."""
        by_words = [hit.document.pair for hit in self._first(scores, FUSED_DEPTH)]
        shares = fuse([Ranking(by_words, 1.0), *others])
        numbered = {self._numbers[pair]: s for pair, s in shares.items() if pair in self._numbers}
        if permitted is None:
            return numbered
        return {number: share for number, share in numbered.items() if permitted(number)}

    def _first(self, scores: dict[int, float], limit: int) -> tuple[Hit, ...]:
        """Of equal ones those whose server and name come first."""
        if not limit or not scores:
            return ()
        least = heapq.nlargest(limit, scores.values())[-1]
        documents = self._documents
        ranked = heapq.nsmallest(
            limit,
            [number for number, score in scores.items() if score >= least],
            key=lambda number: (-scores[number], documents[number].pair),
        )
        return tuple(Hit(documents[number], scores[number]) for number in ranked)

    def _by_name(self, limit: int, allowed: Allowed | None) -> SearchResult:
        permitted = self._permitted(allowed)
        numbers = [
            number
            for server in sorted(self._shelves)
            for number in self._shelves[server].ordered
            if permitted is None or permitted(number)
        ]
        hits = tuple(Hit(self._documents[number], 0.0) for number in numbers[:limit])
        return SearchResult(hits, len(numbers) - len(hits))


def _asked(query: str) -> list[str]:
    return list(dict.fromkeys(words.terms(query)))


def _keys(document: ToolDocument) -> Sequence[str]:
    """Under which its name is found: its own, and the exposed one if that is not made of it."""
    server, name = document.pair
    own = words.key(name)
    if document.exposed.startswith(server) and document.exposed.endswith(name):
        return (own,)
    exposed = words.key(document.exposed)
    return (own,) if exposed in {own, words.key(server) + own} else (own, exposed)


def _plain(document: ToolDocument) -> str:
    return words.plain(document.told[1])[:PLAIN_CHARACTERS_MAX]
