"""A result as text."""

from dataclasses import replace

import pytest

from benchmarks import pages, tables
from benchmarks.figures import Compared, Table, least, most
from tests.benchmarks.values import ladder, result, row


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0"), (0.0449, "0.045"), (4.5, "4.50"), (44.9, "44.9"), (22_500.4, "22,500")],
)
def test_a_figure_has_three_digits_that_say_something(value: float, written: str) -> None:
    assert tables.digits(value) == written


def test_a_row_without_a_figure_has_an_empty_cell() -> None:
    table = Table(
        "a", "A", (row("x", 0, {"p50 ms": 1.0}), row("y", 0, {"p50 ms": 2.0, "cpu ms": 3.0}))
    )
    assert tables.cells(table) == [
        ["a", "p50 ms", "cpu ms", "spread"],
        ["x", "1.00", "", "0.500 to 2.00"],
        ["y", "2.00", "3.00", "1.00 to 4.00"],
    ]


def test_columns_stand_below_each_other() -> None:
    head, line = tables.aligned([["a", "calls/s"], ["longer", "1"]])
    assert head.endswith("s")
    assert line.endswith("1")
    assert len(head) == len(line)


def test_an_absolute_goal_has_the_speed_of_this_machine_beside_it() -> None:
    beside = Compared(0.8, (0.9, 0.7, 0.8))
    bars = [most("soon", 0.2, 0.09, "ms", absolute=True), least("fast", beside, 0.75)]
    assert tables.bar_cells(bars, 0.5)[1:] == [
        ["soon", "0.200", "at most 0.090 ms", "0.50x", "MISSED"],
        ["fast", "0.800 (0.700 to 0.900)", "at least 0.750", "any", "met"],
    ]


def test_a_smoke_run_shows_no_bars() -> None:
    assert "at least" in "\n".join(tables.lines_of(ladder(), 1.0, judged=True))
    assert "at least" not in "\n".join(tables.lines_of(ladder(), 1.0, judged=False))
    assert "nothing" in tables.summary(result(ladder(), quick=True))[-1]


def test_wrong_answers_stand_below_the_table_and_at_the_end() -> None:
    assert "WRONG ANSWERS: 16" in tables.lines_of(ladder(wrong=1), 1.0, judged=True)
    assert "16 answers were wrong" in tables.summary(result(ladder(wrong=1)))


def test_the_end_names_every_missed_bar() -> None:
    end = tables.summary(result(ladder()))
    assert end[-2:] == ["1 of 2 bars are met", "  missed: soon"]


def test_a_run_on_a_machine_that_was_busy_says_so() -> None:
    quiet = result(ladder())
    busy = replace(quiet, machine={**quiet.machine, "load": "7.5"})
    assert not tables.unrest(quiet)
    assert "load 7.5" in tables.unrest(busy)
    assert tables.unrest(busy) in tables.summary(busy)
    assert tables.unrest(busy) in pages.about(busy)
