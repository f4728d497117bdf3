"""Vectors as bytes: nothing is lost that a ranking would notice, and what is no vector is none."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.search.vectors import (
    COMPARED_MAX,
    DIMENSIONS_MAX,
    NearestVectors,
    shrunk,
    vector,
)

NUMBERS = st.floats(-1, 1, allow_subnormal=False)


def cosine(one: list[float], other: list[float]) -> float:
    lengths = math.dist(one, [0] * len(one)) * math.dist(other, [0] * len(other))
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths


@pytest.mark.parametrize(
    "numbers",
    [[], [0.0], [0.0, -0.0], [math.inf], [1.0, -math.inf], [math.nan, 1.0], [1.0, math.nan],
     [1.0] * (DIMENSIONS_MAX + 1)],
)  # fmt: skip
def test_what_is_no_vector_is_nothing(numbers: list[float]) -> None:
    assert shrunk(numbers) == b""


def test_a_number_is_one_byte_and_the_length_of_a_vector_says_nothing() -> None:
    assert shrunk([0.5, -0.25, 0.0]) == shrunk([1000.0, -500.0, 0.0]) == bytes([127, 192, 0])
    found = vector(shrunk([0.5, -0.25, 0.0]))
    assert (found.signs, list(found.numbers)) == (0b100, [127, -64, 0])
    assert found.length == pytest.approx(math.hypot(127, 64))


@given(st.lists(st.lists(NUMBERS, min_size=8, max_size=8).filter(shrunk), min_size=2, max_size=20))
def test_the_order_is_that_of_the_cosines(found: list[list[float]]) -> None:
    to, *others = found
    places = NearestVectors([vector(shrunk(one)) for one in others]).to(vector(shrunk(to)), 20)
    assert sorted(places) == list(range(len(others)))
    near = [cosine(to, others[place]) for place in places]
    assert all(one >= other - 0.03 for one, other in pairwise(near))


def test_of_equal_ones_the_first_comes_first_and_others_of_another_size_never() -> None:
    same, other = vector(shrunk([1.0, 1.0])), vector(shrunk([1.0, 1.0, 1.0]))
    assert NearestVectors([same, other, same]).to(same, 5) == [0, 2]
    assert NearestVectors([]).to(same, 5) == []
    assert NearestVectors([same] * 3).to(same, 2) == [0, 1]


def test_of_very_many_only_the_nearest_by_their_signs_are_compared() -> None:
    far, near = vector(shrunk([-1.0] * 64)), vector(shrunk([1.0] * 64))
    found = NearestVectors([*[far] * 1000, near]).to(near, 1)
    assert found == [1000]
    assert len(NearestVectors([near] * 1000).to(near, 1000)) == COMPARED_MAX
