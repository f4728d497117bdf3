"""Vectors that say what texts mean, made small enough to compare thousands of them in Python.

Owns: their form as bytes, how near two of them are, what they are made of. Never: where they come
from, which text is whose.

Each number of a vector is kept as one byte, which changes no ranking that anybody would notice. To
find the nearest of many, only the signs are compared at first, all of a vector at once, since
Python counts the bits of a long number in a tenth of a microsecond; then the best of these exactly.
"""

import math
from array import array
from collections.abc import Sequence
from itertools import islice
from operator import mul

from msgspec import Struct

DIMENSIONS_MAX = 8_192
"""Numbers of one vector; known models have 256 to 4,096."""
COMPARED_MAX = 64
"""Of the nearest by their signs, so many are compared exactly."""


class Vector(Struct, frozen=True):
    """`signs`: a bit for each number, set where it is positive; `length`: of `numbers`."""

    signs: int
    numbers: "array[int]"
    length: float


def shrunk(numbers: Sequence[float]) -> bytes:
    """A byte for each number, signed; nothing for a vector that says nothing, because it has no
    numbers, too many of them, some that are none, or only zeros."""
    largest = max(map(abs, numbers), default=0.0)
    if not 0 < len(numbers) <= DIMENSIONS_MAX or not 0 < largest < math.inf:
        return b""
    if any(map(math.isnan, numbers)):
        return b""
    return array("b", [round(number / largest * 127) for number in numbers]).tobytes()


def vector(data: bytes) -> Vector:
    """What `shrunk` made, to be compared."""
    numbers = array("b", data)
    signs = int("0" + "".join(["1" if number > 0 else "0" for number in numbers]), 2)
    return Vector(signs, numbers, math.sqrt(sum(map(mul, numbers, numbers))) or 1.0)


class Near:
    """Vectors among which the nearest to another one are looked for. Those of another size than
    that one are as if they were not there."""

    def __init__(self, vectors: Sequence[Vector]) -> None:
        self._vectors = vectors
        self._signs = [one.signs for one in vectors]

    def to(self, sought: Vector, most: int) -> list[int]:
        """The places of those that mean the most similar, the nearest first, at most `most`."""
        signs, numbers = sought.signs, list(sought.numbers)
        apart = [(one ^ signs).bit_count() for one in self._signs]
        enough = sorted(apart)[:COMPARED_MAX]
        limit = enough[-1] if enough else 0
        places = [place for place, one in enumerate(apart) if one < limit]
        equal = (place for place, one in enumerate(apart) if one == limit)
        places += islice(equal, COMPARED_MAX - len(places))
        near: dict[int, float] = {}
        for place in places:
            one = self._vectors[place]
            if len(one.numbers) == len(numbers):
                near[place] = sum(map(mul, numbers, one.numbers)) / one.length
        return sorted(near, key=lambda place: (-near[place], place))[:most]
