"""Rounds become rows, and bars judge them."""

import msgspec
import pytest

from benchmarks import figures
from benchmarks.figures import Effort, Result, Sample, compared, difference, least, most
from benchmarks.turns import in_turns
from tests.benchmarks.values import ladder, memory, result


def test_a_figure_is_the_median_of_its_rounds() -> None:
    rounds = [Sample({"calls/s": rate, "p99 ms": p99}) for rate, p99 in ((9, 1), (12, 5), (10, 2))]
    row = figures.row("a", rounds)
    assert (row["calls/s"], row["p99 ms"]) == (10, 2)
    assert list(row.figures["calls/s"].rounds) == [9, 12, 10]
    assert row.rounds == 3


def test_a_wrong_answer_counts_in_whatever_round_it_was() -> None:
    row = figures.row("a", [Sample({"p50 ms": 3.0}, wrong=1), Sample({"p50 ms": 1.0}, wrong=2)])
    assert row.wrong == 3


def test_two_rows_compare_by_their_medians_and_round_by_round() -> None:
    fast, slow = (
        figures.row("a", [Sample({"calls/s": rate}) for rate in rates])
        for rates in ((30.0, 20.0, 10.0), (10.0, 10.0, 20.0))
    )
    found = compared(fast, slow, "calls/s")
    assert (found.median, found.rounds) == (2.0, (3.0, 2.0, 0.5))
    assert compared(fast, slow, "calls/s", difference).median == 10.0
    bar = least("fast", found, 1.5)
    assert (bar.met, bar.spread) == (True, (0.5, 3.0))


def test_rows_are_taken_in_turns() -> None:
    taken: list[str] = []

    def measured(name: str) -> Sample:
        taken.append(name)
        return Sample({"ms": 1.0})

    in_turns({"a": lambda: measured("a"), "b": lambda: measured("b")}, 2)
    assert taken == ["a", "b", "b", "a"], "so that none of them is always the one after the other"


@pytest.mark.parametrize(
    ("bar", "met"),
    [
        (least("a", 0.75, 0.75), True),
        (least("a", 0.74, 0.75), False),
        (most("a", 2.0, 2.0), True),
        (most("a", 2.1, 2.0), False),
        (most("a", figures.ratio(1.0, 0.0), 2.0), False),
    ],
)
def test_a_bar_is_met_by_what_is_as_good_or_better(bar: figures.Bar, met: bool) -> None:
    assert bar.met is met


def test_a_missed_bar_fails_a_run_but_not_a_smoke_run() -> None:
    assert result(ladder()).failed
    assert not result(ladder(), quick=True).failed
    assert not result(memory()).failed


def test_a_wrong_answer_fails_every_run() -> None:
    assert result(ladder(wrong=1), quick=True).failed


def test_the_speed_of_a_machine_is_that_of_its_better_floor() -> None:
    assert figures.speed({"before": 11_250.0, "after": 9_000.0}) == 0.5


def test_a_percentile_of_few_values_is_one_of_them() -> None:
    assert figures.percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert figures.percentile([1.0], 0.5) == 1.0


def test_a_result_reads_back_as_it_was_written() -> None:
    whole = result(ladder(), memory())
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Result) == whole
    assert whole.table("memory") == memory()
    assert whole.table("large") is None


def test_an_effort_is_small_when_it_is_quick() -> None:
    assert (Effort().of(20, 2), Effort(quick=True).of(20, 2)) == (20, 2)
