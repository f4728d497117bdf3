"""Rankings by meaning: the front asks for vectors and keeps them.

Owns: which vectors a front asks the supervisor for and when, the vectors of recent queries, how
long a search waits for the vector of a new query. Never: making vectors (`embedder`), comparing
them (`vector_search`), fusing rankings (`search.index`).
"""

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import Struct

from metamcp_worker.builtin_tools.builtin import Rankings
from metamcp_worker.builtin_tools.search_index import Indexes
from metamcp_worker.builtin_tools.vector_search import ToolVectors
from metamcp_worker.ipc.embedding import QUERY_S_MAX, TEXTS_MAX, Vectors
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.spec import SemanticSearchSpec
from metamcp_worker.search.index import QUERY_CHARACTERS_MAX, Allowed, Ranking, ToolDocument
from metamcp_worker.search.vectors import Vector, vector

QUERIES_MAX = 32
"""Maximum queries that wait for their vectors; a further query is answered by words alone."""
QUERIES_KEPT = 512
"""Maximum vectors of recent queries; each has half a kB, or 4 kB with a large model."""
ANSWER_S_MAX = 300.0
"""Seconds to wait for the vectors of a request; many because a small model on a slow machine takes
long. After that time the front asks for vectors of tools again."""


class _Query(Struct):
    """Query under way. `waiting`: functions that get its vector, or None if there is none."""

    text: str
    waiting: list[Callable[[Vector | None], None]]


class ToolVectorSearch:
    """Vectors of tools and queries in this front. `send(ticket, texts, query)`: asks the
    supervisor, which answers each ticket once, if it can; `send` raises OSError where this process
    has no free descriptor, and TooLarge."""

    def __init__(
        self,
        send: Callable[[int, Sequence[str], bool], None],
        indexes: Indexes,
        spec: SemanticSearchSpec,
    ) -> None:
        self._send = send
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._meanings = ToolVectors()
        self._tickets = itertools.count(1)
        self._queries: dict[int, _Query] = {}
        self._kept: OrderedDict[str, Vector | None] = OrderedDict()
        self._asked: tuple[int, list[bytes]] = (0, [])
        """Ticket of the request for tools under way, 0 for none, and the hashes of its texts."""
        self._next: asyncio.Handle | None = None
        self._indexes = indexes
        indexes.heard = self._on_tools_changed
        for endpoint, server, documents in indexes.iter_documents():
            self._on_tools_changed(endpoint, server, documents)

    def close(self) -> None:
        """Stop asking for vectors, and answer all waiting searches without a vector."""
        self._asked = (0, [])
        self._indexes.heard = lambda endpoint, server, documents: None
        self._schedule_ask(None)
        for query in self._queries.values():
            _tell(query, None)
        self._queries.clear()

    def adjust(self, spec: SemanticSearchSpec) -> bool:
        """Use another weight at once. False for another model, which needs another Seeking."""
        if spec.model != self._spec.model:
            return False
        self._spec = spec
        return True

    def rank(
        self,
        endpoint: str,
        query: str,
        allowed: Allowed | None,
        done: Callable[[Rankings], None],
    ) -> None:
        """Call `done` with the tools whose meaning is nearest to that of `query`: at once if its
        vector is known, else when it arrives. After QUERY_S_MAX seconds `done` gets no ranking."""

        def on_vector(query_vector: Vector | None) -> None:
            if query_vector is None:
                done(())
            else:
                pairs = self._meanings.nearest(endpoint, query_vector, allowed)
                done((Ranking(pairs, self._spec.weight),))

        text = " ".join(query[:QUERY_CHARACTERS_MAX].split())
        if not text or not self._spec.weight:
            done(())
        elif text in self._kept:
            self._kept.move_to_end(text)
            on_vector(self._kept[text])
        else:
            self._ask(text, on_vector)

    def on_vectors(self, ticket: int, vectors: Vectors) -> None:
        """Take the answer to a ticket."""
        if (query := self._queries.pop(ticket, None)) is not None:
            self._told_of_query(query, vectors)
        elif ticket == self._asked[0]:
            self._told_of_tools(vectors)

    # Queries

    def _ask(self, text: str, on_vector: Callable[[Vector | None], None]) -> None:
        for query in self._queries.values():
            if query.text == text:
                self._wait(query, on_vector)
                return
        if len(self._queries) >= QUERIES_MAX:
            on_vector(None)
            return
        ticket = next(self._tickets)
        query = self._queries[ticket] = _Query(text, [])
        self._loop.call_later(ANSWER_S_MAX, self._queries.pop, ticket, None)
        self._wait(query, on_vector)
        with contextlib.suppress(OSError, TooLarge):
            self._send(ticket, [text], True)

    def _wait(self, query: _Query, on_vector: Callable[[Vector | None], None]) -> None:
        """Add a function that gets the vector, or None after QUERY_S_MAX seconds."""

        def on_timeout() -> None:
            query.waiting.remove(on_vector_found)
            on_vector(None)

        timer = self._loop.call_later(QUERY_S_MAX, on_timeout)

        def on_vector_found(query_vector: Vector | None) -> None:
            timer.cancel()
            on_vector(query_vector)

        query.waiting.append(on_vector_found)

    def _told_of_query(self, query: _Query, vectors: Vectors) -> None:
        data = vectors.found[0] if vectors.found else b""
        query_vector = vector(data) if data else None
        if vectors.found:  # even if this text has no vector: asking again would be in vain
            self._kept[query.text] = query_vector
            if len(self._kept) > QUERIES_KEPT:
                self._kept.popitem(last=False)
        _tell(query, query_vector)

    # Tools

    def _on_tools_changed(
        self, endpoint: str, server: str, documents: Sequence[ToolDocument]
    ) -> None:
        self._meanings.put(endpoint, server, documents)
        if self._next is None and not self._asked[0]:
            self._schedule_ask(0.0)

    def _ask_for_tools(self) -> None:
        self._next = None
        texts = self._meanings.collect_texts(TEXTS_MAX)
        if texts and (len(texts) == TEXTS_MAX or not self._meanings.unread):
            ticket = next(self._tickets)
            self._asked = ticket, list(texts)
            self._next = self._loop.call_later(ANSWER_S_MAX, self._on_no_answer)
            with contextlib.suppress(OSError, TooLarge):
                self._send(ticket, list(texts.values()), False)
        elif self._meanings.unread:
            self._schedule_ask(0.0)

    def _told_of_tools(self, vectors: Vectors) -> None:
        keys, self._asked = self._asked[1], (0, [])
        self._meanings.learn(dict(zip(keys, vectors.found, strict=False)))
        self._schedule_ask(vectors.pause_s)

    def _on_no_answer(self) -> None:
        self._asked = (0, [])
        self._ask_for_tools()

    def _schedule_ask(self, delay_s: float | None) -> None:
        """Ask for vectors of more tools after `delay_s` seconds; None: not at all."""
        if self._next is not None:
            self._next.cancel()
        self._next = (
            None if delay_s is None else self._loop.call_later(delay_s, self._ask_for_tools)
        )


def _tell(query: _Query, query_vector: Vector | None) -> None:
    waiting, query.waiting = query.waiting, []
    for on_vector in waiting:
        on_vector(query_vector)
