"""Messages about embeddings (vectors of texts) on the control sockets.

Owns: their fields and limits. Never: making vectors (`embedder`), searching with them
(`builtin_tools/vector_search`).

A front asks the supervisor, which asks the one process that makes vectors for all fronts and passes
its answer back. Blobs are JSON: of `Embed` a list of texts, of `Embedded` a `Vectors`, of `EmbedOn`
an `EmbeddingsSpec`.
"""

from msgspec import Struct

from metamcp_worker.ipc.envelope import Message

TEXTS_MAX = 64
"""Maximum texts of one request; more are an error."""
QUERY_S_MAX = 0.15
"""Seconds that a search waits for the vector of its query; after that only words decide. A vector
that comes later serves the next search."""


class Embed(Message, frozen=True, kw_only=True):
    """Make vectors of these texts. Descriptor: blob. `ticket`: chosen by the asking process, comes
    back with the answer. `query`: one text that a search waits for; its vector is not stored."""

    ticket: int
    query: bool = False


class Embedded(Message, frozen=True, kw_only=True):
    """Answer to an `Embed`. Descriptor: blob."""

    ticket: int


class EmbedOn(Message, frozen=True, kw_only=True):
    """First message to the process that makes vectors. Descriptor: blob."""


class EmbedFigures(Message, frozen=True, kw_only=True):
    """Counts of texts since that process began, by outcome: `embedded`; `late`: a query whose
    search did not wait so long; `kept`: the vector was stored already; `failed`."""

    counts: dict[str, int]


class Vectors(Struct, frozen=True):
    """Vectors of texts. `found`: as `search.vectors.shrunk` makes them, in the order of the texts,
    empty bytes for a text that has none; an empty tuple if vectors could not be computed.
    `pause_s`: seconds to wait before vectors of tools are asked for again."""

    found: tuple[bytes, ...] = ()
    pause_s: float = 0.0
