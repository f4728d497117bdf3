"""The same line over and over: said a few times, then counted."""

import pytest

from metamcp_worker.runtime.masking import (
    KINDS_MAX,
    LINES_MAX,
    OTHERS,
    PERIOD_S,
    RepeatCounter,
    SuppressedLines,
)

pytestmark = pytest.mark.promise("M89")

KIND = ("http", "request failed")


def test_a_flood_is_said_a_few_times_and_counted_after_that() -> None:
    repeats = RepeatCounter()
    said = sum(repeats.says(KIND, 0.001 * at) for at in range(4000))
    assert said == LINES_MAX
    assert repeats.due(PERIOD_S - 0.01) == []
    assert repeats.due(PERIOD_S) == [SuppressedLines(KIND, 4000 - LINES_MAX, PERIOD_S)]
    assert repeats.due(PERIOD_S) == [], "told once"


def test_the_next_period_says_it_again() -> None:
    repeats = RepeatCounter()
    for _ in range(2 * LINES_MAX):
        repeats.says(KIND, 0.0)
    repeats.due(PERIOD_S)
    assert repeats.says(KIND, PERIOD_S)


def test_other_lines_are_said_meanwhile() -> None:
    repeats = RepeatCounter()
    for _ in range(2 * LINES_MAX):
        repeats.says(KIND, 0.0)
    assert repeats.says(("http", "another"), 0.0)
    assert not repeats.says(KIND, 0.0)


def test_few_lines_are_nothing_to_tell_of() -> None:
    repeats = RepeatCounter()
    repeats.says(KIND, 0.0)
    assert repeats.due(PERIOD_S) == []


def test_kinds_without_end_share_one_limit() -> None:
    repeats = RepeatCounter()
    said = sum(repeats.says(("x", str(at)), 0.0) for at in range(10 * KINDS_MAX))
    assert said == KINDS_MAX + LINES_MAX
    assert repeats.due(PERIOD_S) == [SuppressedLines(OTHERS, 9 * KINDS_MAX - LINES_MAX, PERIOD_S)]


def test_at_the_end_the_rest_is_told() -> None:
    repeats = RepeatCounter()
    for _ in range(LINES_MAX + 3):
        repeats.says(KIND, 0.0)
    assert repeats.rest() == [SuppressedLines(KIND, 3, PERIOD_S)]
