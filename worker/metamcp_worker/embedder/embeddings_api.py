"""API of an endpoint for embeddings, as OpenAI defines it: requests and answers.

Owns: the body of a request, reading an answer, the errors of an answer. Never: HTTP (`run`).
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.search.vectors import DIMENSIONS_MAX, shrunk

NUMBER_BYTES = 32
"""Maximum bytes of one number in an answer, with its separators; usual ones take 12 to 24."""
ANSWER_BYTES_MIN = 64 * 1024
"""Bytes that any answer may have, however few texts were asked for."""


class NoVectors(MetaMCPError):
    """Failure to get vectors. The text is the reason: the end of a sentence about the endpoint."""


class TextRefused(NoVectors):
    """Refusal of one of the texts, perhaps because that text is too long for the model."""


class _Embedding(Struct, frozen=True):
    embedding: list[float]
    index: int = -1


class _Answer(Struct, frozen=True):
    data: list[_Embedding]


def request(model: str, texts: Sequence[str]) -> bytes:
    return codec.dump({"model": model, "input": texts})


def bytes_max(texts: int) -> int:
    """Return the maximum bytes of an answer about this number of texts."""
    return ANSWER_BYTES_MIN + texts * DIMENSIONS_MAX * NUMBER_BYTES


def read(body: bytes, texts: int) -> list[list[float]]:
    """Return a vector for each of the texts, in their order. Raises NoVectors."""
    try:
        entries = codec.decode_as(_Answer, body).data
    except codec.Malformed as error:
        raise NoVectors(f"its answer is none of the API for embeddings: {error}") from None
    if len(entries) != texts:
        raise NoVectors(f"it was asked for {texts} vectors and sent {len(entries)}")
    if any(entry.index >= 0 for entry in entries):
        entries = sorted(entries, key=lambda entry: entry.index)
        if [entry.index for entry in entries] != list(range(texts)):
            raise NoVectors("it does not say which vector is of which text")
    return [entry.embedding for entry in entries]


def pack_vectors(vectors: Sequence[Sequence[float]], size: int) -> list[bytes]:
    """Return the vectors as bytes; empty for a vector of zeros. `size`: numbers of earlier vectors,
    0 if there are none. Raises NoVectors."""
    for vector in vectors:
        if not 0 < len(vector) <= DIMENSIONS_MAX:
            raise NoVectors(
                f"a vector of it has {len(vector)} numbers; 1 to {DIMENSIONS_MAX} can be used"
            )
        if len(vector) != (size or len(vectors[0])):
            raise NoVectors(
                f"a vector of it has {len(vector)} numbers and others have"
                f" {size or len(vectors[0])}; is it another model now?"
                " Then give it another name in 'model'"
            )
        if not all(map(math.isfinite, vector)):
            raise NoVectors("a vector of it has numbers that are none")
    return [shrunk(vector) for vector in vectors]
