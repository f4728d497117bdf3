"""Vectors of the tools of all servers, and the tools whose vectors are nearest to a query.

Owns: the text of a tool that its vector is computed from, texts that have no vector yet, the known
vectors, and the nearest of them. Never: how vectors are asked for (`vector_search_io`), the search
by words and its fusion with other rankings (`search.index`).

The key of a text is its hash, so the vector of the same tool on two endpoints, or again after a
crash of its server, is asked for once.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from metamcp_worker.ipc.exposed_names import Pair
from metamcp_worker.search import definitions
from metamcp_worker.search.index import Allowed, ToolDocument
from metamcp_worker.search.vectors import NearestVectors, Vector, vector

TEXT_CHARACTERS_MAX = 2_000
"""Maximum characters of the text of one tool; small models read less."""
READ_MAX = 64
"""Maximum tools whose texts are built at a time, which takes some milliseconds."""
SPARE_MAX = 4_096
"""Maximum vectors beyond one for each tool; they are of tools that are gone and may come back."""
NEAREST_MAX = 50
"""Maximum tools of one ranking; later ones say little, because some tool is always nearest."""


class _EndpointVectors(Struct, frozen=True):
    """Tools of one endpoint that have vectors."""

    pairs: Sequence[Pair]
    near: NearestVectors


class ToolVectors:
    """Tools of some endpoints, with vectors and without."""

    def __init__(self) -> None:
        self._unread: dict[tuple[str, str], list[ToolDocument]] = {}
        self._keys: dict[str, dict[str, dict[Pair, bytes]]] = {}
        """Hash of the text of each tool, by endpoint, server and tool."""
        self._vectors: dict[bytes, Vector | None] = {}
        """Vector of each text, by hash; None for a text that cannot have a vector."""
        self._lacking: dict[bytes, str] = {}
        self._spreads: dict[str, _EndpointVectors] = {}

    def put(self, endpoint: str, server: str, documents: Sequence[ToolDocument]) -> None:
        """Set the tools that `server` has on this endpoint now."""
        self._spreads.pop(endpoint, None)
        self._unread.pop((endpoint, server), None)
        servers = self._keys.setdefault(endpoint, {})
        servers.pop(server, None)
        if documents:
            servers[server] = {}
            self._unread[endpoint, server] = list(reversed(documents))
        elif not servers:
            del self._keys[endpoint]

    def collect_texts(self, most: int) -> Mapping[bytes, str]:
        """Return at most `most` texts without a vector, by their hashes. While there are `unread`
        tools, more texts may follow: call again."""
        for _ in range(READ_MAX):
            if len(self._lacking) >= most or not self._unread:
                break
            self._read()
        self._forget()
        return dict(islice(self._lacking.items(), most))

    @property
    def unread(self) -> bool:
        """Whether there are tools whose texts are not built yet."""
        return bool(self._unread)

    def learn(self, vectors: Mapping[bytes, bytes]) -> None:
        """Store vectors as `vectors.shrunk` makes them, by the hashes of their texts; empty for a
        text that has none."""
        for key, data in vectors.items():
            self._lacking.pop(key, None)
            self._vectors[key] = vector(data) if data else None
        self._spreads.clear()

    def nearest(self, endpoint: str, to: Vector, allowed: Allowed | None) -> list[Pair]:
        """Return the tools of this endpoint with the most similar meaning, the nearest first."""
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
        """Make the text of the next tool."""
        (endpoint, server), documents = next(iter(self._unread.items()))
        document = documents.pop()
        if not documents:
            del self._unread[endpoint, server]
        document_text = text(document)
        key = hashlib.sha256(document_text.encode()).digest()[:16]
        self._keys[endpoint][server][document.pair] = key
        if key not in self._vectors:
            self._lacking[key] = document_text

    def _spread(self, endpoint: str, allowed: Callable[[Pair], bool]) -> _EndpointVectors:
        candidates = [
            (pair, tool_vector)
            for servers in self._keys.get(endpoint, {}).values()
            for pair, key in servers.items()
            if (tool_vector := self._vectors.get(key)) is not None and allowed(pair)
        ]
        return _EndpointVectors(
            [pair for pair, _ in candidates],
            NearestVectors([tool_vector for _, tool_vector in candidates]),
        )

    def _forget(self) -> None:
        """Drop vectors and texts that no tool has any more, once there are too many."""
        keys = [keys for servers in self._keys.values() for keys in servers.values()]
        count = sum(map(len, keys)) + SPARE_MAX
        if len(self._vectors) <= count and len(self._lacking) <= count:
            return
        used = {key for each in keys for key in each.values()}
        self._vectors = {
            key: tool_vector for key, tool_vector in self._vectors.items() if key in used
        }
        self._lacking = {
            key: document_text for key, document_text in self._lacking.items() if key in used
        }


def text(document: ToolDocument) -> str:
    """Return the text of a tool for a model: server, name, description, and parameters."""
    read = definitions.read(document.definition)
    server, name = document.pair
    parameters = ", ".join([parameter.name for parameter in read.parameters])
    description = (
        f"{server}. {name.replace('_', ' ')}. {read.description or read.title} {parameters}"
    )
    return description[:TEXT_CHARACTERS_MAX].strip().encode("utf-8", "replace").decode()
