"""Search indexes of the endpoints that have a search.

Owns: one index for each endpoint, and the work that updates it to the tools behind the endpoint.
Never: the hits of a search (`search.index`), views, merging, when that work is done
(`front_steps.builtin_calls`).

A server whose tools and exposed names are unchanged is not indexed again, so the cost of a change
depends on the servers that changed. Ten thousand new tools are a second of work for a slow
processor, so the work is done in steps. A caller that asks for an index before the last step waits
until the index is whole.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from metamcp_worker.catalog.parts import ListEntry, ServerPart
from metamcp_worker.search.index import Index, ToolDocument

_Offered = Sequence[ListEntry]
"""Entries of a server. A merge keeps the objects that it does not change, so comparing two costs
next to nothing."""
Heard = Callable[[str, str, Sequence[ToolDocument]], None]
"""Function that gets an endpoint, a server, and the tools that this server has there now."""


SCRIPTS = "scripts"
"""Server that scripts which are tools of their own seem to have."""


class Indexes:
    """Indexes of all endpoints. `documents`: number of documents put into an index since the start,
    including those that replaced an earlier form. `heard`: called for each server whose tools
    changed."""

    def __init__(self) -> None:
        self.heard: Heard = lambda endpoint, server, documents: None
        self._indexes: dict[str, Index] = {}
        self._offered: dict[str, dict[str, _Offered]] = {}
        self._waiting: dict[str, dict[str, _Offered]] = {}
        """Entries that are not in an index yet, by endpoint and server."""
        self._under_way: tuple[str, Iterator[None]] | None = None
        self.documents = 0

    def of(self, endpoint: str) -> Index:
        """Return the whole index of this endpoint; an empty one if the endpoint has no search."""
        while self.is_behind(endpoint):
            self.step()
        return self._indexes.get(endpoint, _EMPTY)

    def is_behind(self, endpoint: str) -> bool:
        """Whether work is left for the index of this endpoint."""
        at_work = self._under_way is not None and self._under_way[0] == endpoint
        return at_work or endpoint in self._waiting

    def iter_documents(self) -> Iterator[tuple[str, str, Sequence[ToolDocument]]]:
        """Yield the endpoint, name and tools of each server, as `heard` gets them: for a listener
        that begins later."""
        for endpoint, servers in self._offered.items():
            for server, offered in servers.items():
                yield endpoint, server, _documents(server, offered)

    @property
    def behind(self) -> bool:
        """Whether work is left for any index."""
        return self._under_way is not None or bool(self._waiting)

    def update(
        self, endpoint: str, parts: Iterable[ServerPart], scripts: Sequence[ListEntry] = ()
    ) -> None:
        """Set all tools that are behind the endpoint now, of servers that are there or away, and
        `scripts` that are tools of their own, as tools of a server SCRIPTS."""
        self._indexes.setdefault(endpoint, Index())
        before = self._offered.get(endpoint, {})
        after: dict[str, _Offered] = {
            server_part.server: server_part.entries for server_part in parts if server_part.entries
        }
        if scripts:
            after[SCRIPTS] = (*after.get(SCRIPTS, ()), *scripts)
        changed = dict.fromkeys(before.keys() - after.keys(), _NOTHING) | {
            server: offered for server, offered in after.items() if before.get(server) != offered
        }
        if changed:
            self._waiting.setdefault(endpoint, {}).update(changed)
        self._offered[endpoint] = after

    def drop(self, endpoint: str) -> None:
        """Drop the index of an endpoint that has no search, or is not served any more."""
        for server in self._offered.pop(endpoint, ()):
            self.heard(endpoint, server, ())
        self._indexes.pop(endpoint, None)
        self._waiting.pop(endpoint, None)
        if self._under_way is not None and self._under_way[0] == endpoint:
            self._under_way = None

    def step(self) -> None:
        """Do about a millisecond of the work that is left, if any is."""
        if self._under_way is None and self._waiting:
            self._under_way = self._begin_indexing()
        if self._under_way is not None and next(self._under_way[1], _OVER) is _OVER:
            self._under_way = None

    def _begin_indexing(self) -> tuple[str, Iterator[None]]:
        endpoint, servers = next(iter(self._waiting.items()))
        server = next(iter(servers))
        documents = _documents(server, servers.pop(server))
        if not servers:
            del self._waiting[endpoint]
        self.documents += len(documents)
        self.heard(endpoint, server, documents)
        return endpoint, self._indexes[endpoint].iter_put_steps(server, documents)


_OVER = object()
_NOTHING: _Offered = ()
_EMPTY = Index()


def _documents(server: str, offered: _Offered) -> list[ToolDocument]:
    return [
        ToolDocument((server, entry.item.key), entry.key, entry.item.raw, entry.item.renamed)
        for entry in offered
    ]
