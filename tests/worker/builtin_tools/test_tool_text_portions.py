"""Portions of long answers: what fits as text and as JSON, and always to the end."""

from collections.abc import Callable

import pytest

from metamcp_worker.builtin_tools.tool_text import ANSWER_BYTES_MAX, Row, portion


def texts(count: int) -> Row:
    return Row("x" * count, {})


def values(count: int) -> Row:
    return Row("", {"x": "x" * count})


@pytest.mark.parametrize("row", [texts, values])
def test_a_portion_keeps_to_its_room_in_both_forms(row: Callable[[int], Row]) -> None:
    half = ANSWER_BYTES_MAX // 2
    found = portion([half - 100, half - 100, 200, 1], 0, row)
    assert (len(found.rows), found.end, found.left) == (2, 2, 2)
    rest = portion([half - 100, half - 100, 200, 1], found.end, row)
    assert (len(rest.rows), rest.end, rest.left) == (2, 4, 0)


@pytest.mark.parametrize("row", [texts, values])
def test_what_is_larger_than_the_room_is_a_portion_of_its_own(row: Callable[[int], Row]) -> None:
    found = portion([1, ANSWER_BYTES_MAX + 1, 1], 0, row)
    assert found.end == 1
    found = portion([1, ANSWER_BYTES_MAX + 1, 1], found.end, row)
    assert (len(found.rows), found.end) == (1, 2)


def test_bytes_count_and_not_characters() -> None:
    found = portion([ANSWER_BYTES_MAX // 2] * 2, 0, lambda count: Row("ä" * (count - 1), {}))
    assert found.end == 1


@pytest.mark.parametrize(("start", "end"), [(-3, 2), (0, 2), (1, 2), (2, 2), (99, 2)])
def test_a_start_outside_is_the_nearest_one_inside(start: int, end: int) -> None:
    found = portion([1, 1], start, texts)
    assert (found.end, found.left) == (end, 0)
    assert len(found.rows) == max(0, 2 - max(0, start))
