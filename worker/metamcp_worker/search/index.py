"""Index over the tools of all servers, searched by words and by names.

Owns: adding and removing the tools of a server in short steps, the rarity of terms, guesses for
words that no tool has, bonuses for names, the order of results, and reciprocal rank fusion with the
rankings of other searches (`fuse`). Never: the weight of a term in one tool (`search.bm25`), where
other rankings come from.

Scores of different searches cannot be compared, but places can: each ranking gives its entry in
place `n` a share of `weight / (RANK_OFFSET + n)`.
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
from metamcp_worker.search.bm25 import SATURATION, Postings, QueryTerm, weights
from metamcp_worker.search.synonyms import synonyms
from metamcp_worker.search.words import NameMatch, PrefixSearch, misspelt

RANK_OFFSET = 10
"""Places added to each place in a fusion; the smaller, the more the first places count. The usual
60 is for lists of thousands."""
EXTRA_WEIGHT = 0.4
"""Weight of another ranking; that by words has 1. A small model of meanings alone finds less than
words do, but both together find more."""
RANKED_MAX = 1_000
"""Maximum entries read of one ranking; later ones would have hardly any share."""

T = TypeVar("T", bound=Hashable)


class Ranking(Struct, Generic[T], frozen=True):
    """Results of another search, the best first. A repeated entry has the better of its places."""

    found: Sequence[T]
    weight: float = EXTRA_WEIGHT


def fuse(rankings: Iterable[Ranking[T]]) -> dict[T, float]:
    """Return the share of each entry of the rankings, unordered."""
    shares: dict[T, float] = {}
    for ranking in rankings:
        ranked = enumerate(dict.fromkeys(ranking.found[:RANKED_MAX]), 1)
        for rank, thing in ranked:
            shares[thing] = shares.get(thing, 0.0) + ranking.weight / (RANK_OFFSET + rank)
    return shares


DOCUMENTS_MAX = 100_000
"""Maximum tools in one index; further ones are left out."""
QUERY_CHARACTERS_MAX = 4_096
"""Maximum characters of a query; the rest is ignored."""
TERMS_MAX = 32
"""Maximum terms of one query; with more, the rarest are used."""
HITS_MAX = 100
"""Maximum hits of one answer, also where the caller's limit is higher."""
FUSED_DEPTH = 100
"""Maximum tools of the ranking by words that are fused with other rankings."""

WHOLE_NAME = 2_000.0
"""Bonus for a tool whose name is the query. More than terms can add."""
WHOLE_SERVER = 1_000.0
"""Bonus for each tool of a server whose name is the query."""
NAME_BEGINS = 2.0
"""Bonus for a name that only begins with the query: about as much as one more term."""
NAME_WORDS_MAX = 8
"""Maximum words of a query that is tried as a name, as the beginning of a name, and as misspelt."""
PLAIN_CHARACTERS_MAX = 128
"""Maximum characters of a name that is kept for the search by its beginning."""
NAMES_MAX = 50
"""Maximum names that begin with the query, and maximum terms that begin with a word of it."""

SERVERS_TOLD_MAX = 20
SERVER_NAMES_MAX = 3
"""Maximum servers, and tools of each, that an answer without hits names."""

STEP_DOCUMENTS = 8
"""Tools that are put in or taken out in one step."""
STEP_TERMS = 1_024
"""Terms whose lists are updated in one step."""

NAMED_MAX = 200
"""Maximum tools with a bonus whose scores are looked up one by one."""

GUESSES_MAX = 2
"""Maximum words of a query that are not in the index and are replaced by similar terms."""
BEGUN_MAX = 8
"""Maximum terms that replace a word which is the beginning of them."""
BEGUN_WEIGHT = 0.5
MISSPELT_WEIGHT = 0.7
SYNONYM_WEIGHT, REPLACED_WEIGHT = 0.3, 0.6
"""Weights of a term that stands for one of the query: one that tools have, too, or none has."""


class ToolDocument(Struct, frozen=True):
    """Tool to index. `pair`: its server and its own name; `exposed`: its name for clients;
    `definition`: raw JSON, of any shape; `renamed`: index the exposed name instead of the own."""

    pair: Pair
    exposed: str
    definition: bytes
    renamed: bool = False

    @property
    def exposed_pair(self) -> Pair:
        """Server and name of the tool, as a client that searches knows them."""
        return (self.pair[0], self.exposed) if self.renamed else self.pair


class Hit(Struct, frozen=True):
    """A tool of an answer. `score`: the higher the better; comparable within one answer only; 0
    for a query without terms."""

    document: ToolDocument
    score: float


class SearchResult(Struct, frozen=True):
    """Answer of a search, the best hit first. `more`: number of further tools that match; a lower
    bound unless `counted`, because the search stopped early. `servers`: without a hit, the first
    servers that have tools here, with the number of their tools and some of their names."""

    hits: tuple[Hit, ...]
    more: int
    counted: bool = True
    servers: tuple[tuple[str, int, tuple[str, ...]], ...] = ()


Allowed = AbstractSet[str] | Callable[[Pair], bool]
"""Servers whose tools may be found, or whether a tool may be found."""


class _ServerDocuments(Struct, frozen=True):
    """The documents of one server: `first` to before `end`. `ordered`: by name; `touched`: the
    postings of their terms."""

    first: int
    end: int
    ordered: Sequence[int]
    touched: tuple[Postings, ...]


class Index:
    """The tools of all servers. The time to put or drop a server depends on its tools only."""

    def __init__(self) -> None:
        self._shelves: dict[str, _ServerDocuments] = {}
        self._documents: dict[int, ToolDocument] = {}
        self._numbers: dict[Pair, int] = {}
        self._next = 0
        self._postings: dict[str, Postings] = {}
        self._begun = PrefixSearch()
        self._tools: NameMatch[int] = NameMatch()
        self._servers: NameMatch[str] = NameMatch()
        self._plain_tools: NameMatch[int] = NameMatch()
        self._plain_servers: NameMatch[str] = NameMatch()

    def __len__(self) -> int:
        return len(self._documents)

    def put(self, server: str, documents: Sequence[ToolDocument]) -> int:
        """Replace the tools of `server`. Return how many were left out, because they were given
        twice or the index is full."""
        for _ in self.iter_put_steps(server, documents):
            pass
        shelf = self._shelves.get(server)
        return len(documents) - (shelf.end - shelf.first if shelf is not None else 0)

    def drop(self, server: str) -> None:
        """Remove the tools of `server`."""
        for _ in self.iter_drop_steps(server):
            pass

    def iter_put_steps(self, server: str, documents: Sequence[ToolDocument]) -> Iterator[None]:
        """Do the work of `put` in steps of about a millisecond. Until the last step is done the
        caller must not use the index otherwise."""
        yield from self.iter_drop_steps(server)
        first = self._next
        terms: set[str] = set()
        for document in documents:
            assert document.pair[0] == server, f"{document.pair} is not a tool of {server}"
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
        for at, postings in enumerate(touched, 1):
            postings.invalidate()
            if at % STEP_TERMS == 0:
                yield
        self._shelves[server] = _ServerDocuments(first, self._next, array("Q", ordered), touched)
        self._servers.add(words.key(server), server)
        self._plain_servers.add(words.plain(server), server)

    def iter_drop_steps(self, server: str) -> Iterator[None]:
        """Do the work of `drop` in steps like those of `iter_put_steps`."""
        shelf = self._shelves.pop(server, None)
        if shelf is None:
            return
        for at, postings in enumerate(shelf.touched, 1):
            postings.cut(shelf.first, shelf.end)
            if not postings:
                del self._postings[postings.term]
                self._begun.invalidate()
            if at % STEP_TERMS == 0:
                yield
        removed = range(shelf.first, shelf.end)
        for number in removed:
            document = self._documents.pop(number)
            del self._numbers[document.pair]
            for key in _keys(document):
                self._tools.remove(key, removed)
            self._plain_tools.remove(_plain(document), removed)
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
        """Return the best tools for `query`, at most `limit` and `HITS_MAX`, in a deterministic
        order. `others`: rankings of other searches for the same query, to be fused in.

        A tool whose name is the query comes first, then the tools of a server whose name is the
        query. For a query without terms, return all tools by name.
        """
        limit = max(0, min(limit, HITS_MAX))
        query = query[:QUERY_CHARACTERS_MAX]
        query_terms = _split_query(query)
        permitted = self._make_filter(allowed)
        sought = self._sought(query_terms)
        named = {
            number: bonus
            for number, bonus in self._score_names(query, sought).items()
            if permitted is None or permitted(number)
        }
        if not sought and not named and not others:
            return (
                self._make_empty_result(permitted) if query_terms else self._by_name(limit, allowed)
            )
        terms = [term for _, term in sought]
        depth = max(1, limit, FUSED_DEPTH if others else 0)
        if len(named) > NAMED_MAX:
            depth = len(self)  # what all have is read sooner than what each of so many has
        best = bm25.best(terms, depth, permitted)
        scores = best.scores
        if others:
            scores = self._fuse_rankings(scores, others, permitted)
        elif len(named) <= NAMED_MAX:
            scores.update(bm25.scores(named.keys() - scores.keys(), terms))
        for number, bonus in named.items():
            scores[number] = scores.get(number, 0.0) + bonus
        matching = len(scores) if others else max(best.matching, len(scores))
        hits = self._first(scores, limit)
        if not matching:
            return self._make_empty_result(permitted)
        return SearchResult(hits, max(0, matching - len(hits)), best.counted)

    def _take(self, document: ToolDocument, terms: set[str]) -> None:
        """Add a document, and its terms to `terms`."""
        number = self._next
        self._next += 1
        self._documents[number] = document
        self._numbers[document.pair] = number
        for key in _keys(document):
            self._tools.add(key, number)
        self._plain_tools.add(_plain(document), number)
        self._say(number, weights(document.exposed_pair, document.definition), terms)

    def _say(self, number: int, weighed: Mapping[str, float], terms: set[str]) -> None:
        """Add a document to the postings of its terms, and these terms to `terms`."""
        terms.update(weighed)
        listed = self._postings.get
        for term, weight in weighed.items():
            if (postings := listed(term)) is None:
                postings = self._postings[term] = Postings(term)
                self._begun.invalidate()
            postings.documents.append(number)
            postings.impacts.append(weight / (weight + SATURATION))

    def _make_filter(self, allowed: Allowed | None) -> Callable[[int], bool] | None:
        if allowed is None:
            return None
        documents = self._documents
        if callable(allowed):
            permits = allowed
            return lambda number: permits(documents[number].pair)
        servers = allowed
        return lambda number: documents[number].pair[0] in servers

    def _sought(self, query_terms: Sequence[str]) -> list[tuple[str, QueryTerm]]:
        """Return each term of the query with the indexed term used for it, the rarest first."""
        sought: list[tuple[str, QueryTerm]] = []
        guesses = 0
        others: dict[str, float] = {}
        for term in query_terms:
            weight = SYNONYM_WEIGHT if term in self._postings else REPLACED_WEIGHT
            for other in synonyms(term):
                others[other] = max(others.get(other, 0.0), weight)
            if (postings := self._postings.get(term)) is not None:
                sought.append((term, self._weigh_term(postings, 1.0)))
            elif guesses < GUESSES_MAX and len(query_terms) <= NAME_WORDS_MAX:
                guesses += 1
                sought.extend((term, guess) for guess in self._guess_terms(term))
        sought += [
            (term, self._weigh_term(self._postings[term], weight))
            for term, weight in others.items()
            if term in self._postings and term not in query_terms
        ]
        sought.sort(key=lambda pair: (-pair[1].weight, pair[0], pair[1].postings.term))
        return sought[:TERMS_MAX]

    def _guess_terms(self, term: str) -> list[QueryTerm]:
        """Return terms for one that no document has: those that begin with it, or else its most
        frequent correction."""
        begun = self._begun.of(term, self._postings, NAMES_MAX)
        if begun:
            most = heapq.nlargest(
                BEGUN_MAX, begun, key=lambda candidate: len(self._postings[candidate])
            )
            return [self._weigh_term(self._postings[candidate], BEGUN_WEIGHT) for candidate in most]
        meant = {candidate for candidate in misspelt(term) if candidate in self._postings}
        if not meant:
            return []
        likely = min(meant, key=lambda candidate: (-len(self._postings[candidate]), candidate))
        return [self._weigh_term(self._postings[likely], MISSPELT_WEIGHT)]

    def _weigh_term(self, postings: Postings, weight: float) -> QueryTerm:
        """Multiply the rarity of a term into its weight: terms of few documents weigh more."""
        rarity = math.log(1 + (len(self) - len(postings) + 0.5) / (len(postings) + 0.5))
        return QueryTerm(postings, weight * rarity)

    def _score_names(self, query: str, sought: Sequence[tuple[str, QueryTerm]]) -> dict[int, float]:
        """Return the bonus of each document whose name or server's name is the query, or begins
        with it."""
        if len(query.split()) > NAME_WORDS_MAX:
            return {}
        bonuses = dict.fromkeys(self._find_by_beginning(words.plain(query)), NAME_BEGINS)
        meant = {term: used.postings.term for term, used in sought}
        spelt = "".join(meant.get(term, term) for term in _split_query(query))
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
        """Yield the documents named `key`, also by their server's name and own name joined."""
        yield from self._tools.whole(key)
        for tool_key, servers in self._servers.inside(key):
            for server in servers:
                shelf = self._shelves[server]
                for number in self._tools.whole(tool_key):
                    if shelf.first <= number < shelf.end:
                        yield number

    def _find_by_beginning(self, text: str) -> Iterator[int]:
        yield from self._plain_tools.iter_by_prefix(text, NAMES_MAX)
        for server in self._plain_servers.iter_by_prefix(text, NAMES_MAX):
            yield from self._shelves[server].ordered

    def _fuse_rankings(
        self,
        scores: dict[int, float],
        others: Sequence[Ranking[Pair]],
        permitted: Callable[[int], bool] | None,
    ) -> dict[int, float]:
        """Return the shares of permitted tools in the index, by words and by other rankings."""
        by_words = [hit.document.pair for hit in self._first(scores, FUSED_DEPTH)]
        shares = fuse([Ranking(by_words, 1.0), *others])
        numbered = {self._numbers[pair]: s for pair, s in shares.items() if pair in self._numbers}
        if permitted is None:
            return numbered
        return {number: share for number, share in numbered.items() if permitted(number)}

    def _first(self, scores: dict[int, float], limit: int) -> tuple[Hit, ...]:
        """Return the hits with the highest scores; equal ones by server and name."""
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

    def _make_empty_result(self, permitted: Callable[[int], bool] | None) -> SearchResult:
        """Return the answer without hits, which says what servers there are."""
        servers: list[tuple[str, int, tuple[str, ...]]] = []
        for server in sorted(self._shelves):
            numbers = self._shelves[server].ordered
            seen = [number for number in numbers if permitted is None or permitted(number)]
            if seen:
                names = (self._documents[number].exposed for number in seen[:SERVER_NAMES_MAX])
                servers.append((server, len(seen), tuple(names)))
            if len(servers) == SERVERS_TOLD_MAX:
                break
        return SearchResult((), 0, servers=tuple(servers))

    def _by_name(self, limit: int, allowed: Allowed | None) -> SearchResult:
        permitted = self._make_filter(allowed)
        numbers = [
            number
            for server in sorted(self._shelves)
            for number in self._shelves[server].ordered
            if permitted is None or permitted(number)
        ]
        hits = tuple(Hit(self._documents[number], 0.0) for number in numbers[:limit])
        return SearchResult(hits, len(numbers) - len(hits))


def _split_query(query: str) -> list[str]:
    return list(dict.fromkeys(words.terms(query)))


def _keys(document: ToolDocument) -> Sequence[str]:
    """Return the keys of a name: its own, and the exposed one if that is not built from it."""
    server, name = document.pair
    own = words.key(name)
    if document.exposed.startswith(server) and document.exposed.endswith(name):
        return (own,)
    exposed = words.key(document.exposed)
    return (own,) if exposed in {own, words.key(server) + own} else (own, exposed)


def _plain(document: ToolDocument) -> str:
    return words.plain(document.exposed_pair[1])[:PLAIN_CHARACTERS_MAX]
