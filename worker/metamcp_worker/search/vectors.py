"""Vectors of the meanings of texts, small enough to compare thousands of them in Python.

Owns: the form of a vector as bytes, and the search for the nearest. Never: where vectors come from,
the texts behind them.

Each number of a vector is kept as one byte, without a noticeable change in rankings. The search for
the nearest compares only the signs at first, all of a vector at once, because Python counts the
bits of a long number in a tenth of a microsecond; then it compares the best of these exactly.
"""

import math
from array import array
from collections.abc import Sequence
from itertools import islice
from operator import mul

from msgspec import Struct

DIMENSIONS_MAX = 8_192
"""Maximum numbers of one vector; known models have 256 to 4,096."""
COMPARED_MAX = 64
"""Maximum vectors that are compared exactly, the nearest by their signs."""


class Vector(Struct, frozen=True):
    """A vector to compare. `signs`: one bit for each number, set if it is positive; `length`: the
    Euclidean length of `numbers`."""

    signs: int
    numbers: "array[int]"
    length: float


def shrunk(numbers: Sequence[float]) -> bytes:
    """Return one signed byte for each number; empty for a vector without a meaning: without
    numbers, with too many of them, with NaN or infinity, or with only zeros."""
    largest = max(map(abs, numbers), default=0.0)
    if not 0 < len(numbers) <= DIMENSIONS_MAX or not 0 < largest < math.inf:
        return b""
    if any(map(math.isnan, numbers)):
        return b""
    return array("b", [round(number / largest * 127) for number in numbers]).tobytes()


def vector(data: bytes) -> Vector:
    """Return the vector of bytes that `shrunk` returned."""
    numbers = array("b", data)
    signs = int("0" + "".join(["1" if number > 0 else "0" for number in numbers]), 2)
    return Vector(signs, numbers, math.sqrt(sum(map(mul, numbers, numbers))) or 1.0)


class NearestVectors:
    """Search for the vectors nearest to a sought one. Vectors of a different size are not found."""

    def __init__(self, vectors: Sequence[Vector]) -> None:
        self._vectors = vectors
        self._signs = [vector.signs for vector in vectors]

    def to(self, sought: Vector, most: int) -> list[int]:
        """Return the indexes of at most `most` vectors, the nearest first."""
        signs, numbers = sought.signs, list(sought.numbers)
        apart = [(other_signs ^ signs).bit_count() for other_signs in self._signs]
        enough = sorted(apart)[:COMPARED_MAX]
        limit = enough[-1] if enough else 0
        indexes = [index for index, distance in enumerate(apart) if distance < limit]
        equal = (index for index, distance in enumerate(apart) if distance == limit)
        indexes += islice(equal, COMPARED_MAX - len(indexes))
        near: dict[int, float] = {}
        for index in indexes:
            vector = self._vectors[index]
            if len(vector.numbers) == len(numbers):
                near[index] = sum(map(mul, numbers, vector.numbers)) / vector.length
        return sorted(near, key=lambda index: (-near[index], index))[:most]
