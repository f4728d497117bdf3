"""Several rankings of the same things made into one.

Owns: reciprocal rank fusion. Never: where rankings come from, the things that they rank.

Scores of different searches cannot be compared, places can: each ranking gives what it has in place
`n` a share of `weight / (RANK_OFFSET + n)`.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

RANK_OFFSET = 10
"""How much the first places stand out; the usual 60 is for lists of thousands."""
EXTRA_WEIGHT = 0.4
"""Of a ranking beside that by words, which has 1. A small model of meanings alone finds less than
words do, and as a voice among others it finds more."""
RANKED_MAX = 1_000
"""Of one ranking; what comes behind these would have next to nothing."""

T = TypeVar("T", bound=Hashable)


class Ranking(Struct, Generic[T], frozen=True):
    """What another search found, the best first. What is there twice has its better place."""

    found: Sequence[T]
    weight: float = EXTRA_WEIGHT


def fuse(rankings: Iterable[Ranking[T]]) -> dict[T, float]:
    """The share of everything that is in one of the rankings, unordered."""
    shares: dict[T, float] = {}
    for ranking in rankings:
        places = enumerate(dict.fromkeys(ranking.found[:RANKED_MAX]), 1)
        for place, thing in places:
            shares[thing] = shares.get(thing, 0.0) + ranking.weight / (RANK_OFFSET + place)
    return shares
