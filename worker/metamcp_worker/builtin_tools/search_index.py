"""The search indexes of the endpoints that have a search.

Owns: one index for each of them, and the work of bringing it up to what is behind the endpoint now.
Never: what a search finds (`search.index`), views, merging, when that work is done
(`search_index_io`).

A server whose tools, and their names here, are what they were is not touched: what a change costs
depends on the servers that changed. Ten thousand new tools are a second of work for a slow
processor, so it is done in steps; whoever asks for an index before they are done gets it whole, and
waits for that.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from metamcp_worker.catalog.parts import Entry, Part
from metamcp_worker.ipc.exposed_names import Pair
from metamcp_worker.search import definitions
from metamcp_worker.search.index import Allowed, Document, Index
from metamcp_worker.search.vectors import Near, Vector, vector

_Offered = Sequence[Entry]
"""Of a server. What a merge did not touch is the same object as before, so comparing two costs next
to nothing."""
Heard = Callable[[str, str, Sequence[Document]], None]
"""An endpoint, a server, and its tools there now."""


class Indexes:
    """`documents`: how many were put into an index since the start, also those that were there in
    another form before. `heard`: told of each server whose tools are others now."""

    def __init__(self) -> None:
        self.heard: Heard = lambda endpoint, server, documents: None
        self._indexes: dict[str, Index] = {}
        self._offered: dict[str, dict[str, _Offered]] = {}
        self._waiting: dict[str, dict[str, _Offered]] = {}
        """What is still to be put in, by endpoint and server."""
        self._under_way: tuple[str, Iterator[None]] | None = None
        self.documents = 0

    def of(self, endpoint: str) -> Index:
        """Whole; empty, where the endpoint has no search."""
        while self.is_behind(endpoint):
            self.step()
        return self._indexes.get(endpoint, _EMPTY)

    def is_behind(self, endpoint: str) -> bool:
        """Is there work left for this one?"""
        at_work = self._under_way is not None and self._under_way[0] == endpoint
        return at_work or endpoint in self._waiting

    def everything(self) -> Iterator[tuple[str, str, Sequence[Document]]]:
        """What `heard` is told of, and was told before anybody listened."""
        for endpoint, servers in self._offered.items():
            for server, offered in servers.items():
                yield endpoint, server, _documents(server, offered)

    @property
    def behind(self) -> bool:
        """Is there work left for any?"""
        return self._under_way is not None or bool(self._waiting)

    def update(self, endpoint: str, parts: Iterable[Part]) -> None:
        """These are all tools behind the endpoint now, whether their servers are there or away."""
        self._indexes.setdefault(endpoint, Index())
        before = self._offered.get(endpoint, {})
        after: dict[str, _Offered] = {part.server: part.entries for part in parts if part.entries}
        changed = dict.fromkeys(before.keys() - after.keys(), _NOTHING) | {
            server: offered for server, offered in after.items() if before.get(server) != offered
        }
        if changed:
            self._waiting.setdefault(endpoint, {}).update(changed)
        self._offered[endpoint] = after

    def drop(self, endpoint: str) -> None:
        """It has no search, or is not served any more."""
        for server in self._offered.pop(endpoint, ()):
            self.heard(endpoint, server, ())
        self._indexes.pop(endpoint, None)
        self._waiting.pop(endpoint, None)
        if self._under_way is not None and self._under_way[0] == endpoint:
            self._under_way = None

    def step(self) -> None:
        """A millisecond or so of the work that is left, if any is."""
        if self._under_way is None and self._waiting:
            self._under_way = self._begun()
        if self._under_way is not None and next(self._under_way[1], _OVER) is _OVER:
            self._under_way = None

    def _begun(self) -> tuple[str, Iterator[None]]:
        endpoint, servers = next(iter(self._waiting.items()))
        server = next(iter(servers))
        documents = _documents(server, servers.pop(server))
        if not servers:
            del self._waiting[endpoint]
        self.documents += len(documents)
        self.heard(endpoint, server, documents)
        return endpoint, self._indexes[endpoint].putting(server, documents)


_OVER = object()
_NOTHING: _Offered = ()
_EMPTY = Index()


def _documents(server: str, offered: _Offered) -> list[Document]:
    return [
        Document((server, entry.item.key), entry.key, entry.item.raw, entry.item.renamed)
        for entry in offered
    ]


TEXT_CHARACTERS_MAX = 2_000
"""Of one tool. Small models read less."""
READ_MAX = 64
"""Tools whose texts are made at a time: some milliseconds."""
SPARE_MAX = 4_096
"""Vectors of tools that are gone, and may come back."""
NEAREST_MAX = 50
"""Tools of one ranking. What comes behind them says nothing: there is always something nearest."""


class _Spread(Struct, frozen=True):
    """The tools of one endpoint that have vectors."""

    pairs: Sequence[Pair]
    near: Near


class Meanings:
    """The tools of some endpoints, with vectors and without."""

    def __init__(self) -> None:
        self._unread: dict[tuple[str, str], list[Document]] = {}
        self._keys: dict[str, dict[str, dict[Pair, bytes]]] = {}
        """By endpoint, server and tool: the hash of its text."""
        self._vectors: dict[bytes, Vector | None] = {}
        """None: nobody makes one of this text."""
        self._lacking: dict[bytes, str] = {}
        self._spreads: dict[str, _Spread] = {}

    def put(self, endpoint: str, server: str, documents: Sequence[Document]) -> None:
        """These are the tools of `server` on this endpoint now."""
        self._spreads.pop(endpoint, None)
        self._unread.pop((endpoint, server), None)
        servers = self._keys.setdefault(endpoint, {})
        servers.pop(server, None)
        if documents:
            servers[server] = {}
            self._unread[endpoint, server] = list(reversed(documents))
        elif not servers:
            del self._keys[endpoint]

    def wanted(self, most: int) -> Mapping[bytes, str]:
        """Texts without a vector, by their hashes. Empty does not mean that there are none as long
        as there are `unread` tools; it takes another call then."""
        for _ in range(READ_MAX):
            if len(self._lacking) >= most or not self._unread:
                break
            self._read()
        self._forget()
        return dict(islice(self._lacking.items(), most))

    @property
    def unread(self) -> bool:
        """Are there tools whose texts were not looked at?"""
        return bool(self._unread)

    def learn(self, found: Mapping[bytes, bytes]) -> None:
        """Vectors as `vectors.shrunk` makes them, by the hashes of their texts; empty for a text of
        which there is none."""
        for key, data in found.items():
            self._lacking.pop(key, None)
            self._vectors[key] = vector(data) if data else None
        self._spreads.clear()

    def nearest(self, endpoint: str, to: Vector, allowed: Allowed | None) -> list[Pair]:
        """The tools of this endpoint that mean the most similar, the nearest first."""
        if allowed is None:
            spread = self._spreads.get(endpoint)
            if spread is None:
                spread = self._spreads[endpoint] = self._spread(endpoint, lambda pair: True)
        elif callable(allowed):
            spread = self._spread(endpoint, allowed)
        else:
            servers = allowed
            spread = self._spread(endpoint, lambda pair: pair[0] in servers)
        return [spread.pairs[at] for at in spread.near.to(to, NEAREST_MAX)]

    def _read(self) -> None:
        """One more tool."""
        (endpoint, server), documents = next(iter(self._unread.items()))
        document = documents.pop()
        if not documents:
            del self._unread[endpoint, server]
        said = text(document)
        key = hashlib.sha256(said.encode()).digest()[:16]
        self._keys[endpoint][server][document.pair] = key
        if key not in self._vectors:
            self._lacking[key] = said

    def _spread(self, endpoint: str, allowed: Callable[[Pair], bool]) -> _Spread:
        found = [
            (pair, one)
            for servers in self._keys.get(endpoint, {}).values()
            for pair, key in servers.items()
            if (one := self._vectors.get(key)) is not None and allowed(pair)
        ]
        return _Spread([pair for pair, _ in found], Near([one for _, one in found]))

    def _forget(self) -> None:
        """What no tool has any more, when it is too much."""
        keys = [keys for servers in self._keys.values() for keys in servers.values()]
        count = sum(map(len, keys)) + SPARE_MAX
        if len(self._vectors) <= count and len(self._lacking) <= count:
            return
        used = {key for each in keys for key in each.values()}
        self._vectors = {key: one for key, one in self._vectors.items() if key in used}
        self._lacking = {key: one for key, one in self._lacking.items() if key in used}


def text(document: Document) -> str:
    """What a tool is, for a model of meanings: server, name, what it does, its parameters."""
    read = definitions.read(document.definition)
    server, name = document.pair
    parameters = ", ".join([one.name for one in read.parameters])
    said = f"{server}. {name.replace('_', ' ')}. {read.description or read.title} {parameters}"
    return said[:TEXT_CHARACTERS_MAX].strip().encode("utf-8", "replace").decode()
