"""The search indexes of the endpoints that have a search.

Owns: one index for each of them, and the work of bringing it up to what is behind the endpoint now.
Never: what a search finds (`search.index`), views, merging, when that work is done
(`vector_search_io`).

A server whose tools, and their names here, are what they were is not touched: what a change costs
depends on the servers that changed. Ten thousand new tools are a second of work for a slow
processor, so it is done in steps; whoever asks for an index before they are done gets it whole, and
waits for that.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from metamcp_worker.catalog.parts import ListEntry, ServerPart
from metamcp_worker.search.index import Index, ToolDocument

_Offered = Sequence[ListEntry]
"""Of a server. What a merge did not touch is the same object as before, so comparing two costs next
to nothing."""
Heard = Callable[[str, str, Sequence[ToolDocument]], None]
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

    def everything(self) -> Iterator[tuple[str, str, Sequence[ToolDocument]]]:
        """What `heard` is told of, and was told before anybody listened."""
        for endpoint, servers in self._offered.items():
            for server, offered in servers.items():
                yield endpoint, server, _documents(server, offered)

    @property
    def behind(self) -> bool:
        """Is there work left for any?"""
        return self._under_way is not None or bool(self._waiting)

    def update(self, endpoint: str, parts: Iterable[ServerPart]) -> None:
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


def _documents(server: str, offered: _Offered) -> list[ToolDocument]:
    return [
        ToolDocument((server, entry.item.key), entry.key, entry.item.raw, entry.item.renamed)
        for entry in offered
    ]
