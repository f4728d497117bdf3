"""Texts that become vectors: the values that cross the control sockets for that.

Owns: their fields and limits. Never: making vectors (`embedder`), what these are for
(`front/meaning`).

A front asks the supervisor, which asks the one process that makes vectors for all fronts and passes
its answer back. Blobs are JSON: of `Embed` a list of texts, of `Embedded` a `Vectors`, of `EmbedOn`
an `EmbeddingsSpec`.
"""

from msgspec import Struct

from metamcp_worker.ipc.message_base import Message

TEXTS_MAX = 64
"""Of one request; more are an error."""
QUERY_S_MAX = 0.15
"""That a search waits for the vector of its query; then words alone decide. A vector that comes
later is there for the next search."""


class Embed(Message, frozen=True, kw_only=True):
    """Make vectors of these texts. Descriptor: blob. `ticket`: of whoever asks; the answer has it.
    `query`: it is one text, somebody waits for it, and it is not to be kept."""

    ticket: int
    query: bool = False


class Embedded(Message, frozen=True, kw_only=True):
    """What came of an `Embed`. Descriptor: blob."""

    ticket: int


class EmbedOn(Message, frozen=True, kw_only=True):
    """To the process that makes vectors, first of all. Descriptor: blob."""


class EmbedFigures(Message, frozen=True, kw_only=True):
    """Of that process, since it began: what became of texts (`embedded`; `late`: a query, but
    its search did not wait so long; `kept`: it was known already; `failed`)."""

    counts: dict[str, int]


class Vectors(Struct, frozen=True):
    """`found`: as `vectors.shrunk` makes them, in the order of the texts, an empty one for a text
    that has none; nothing at all if they could not be had. `pause_s`: do not ask for tools before
    that."""

    found: tuple[bytes, ...] = ()
    pause_s: float = 0.0
