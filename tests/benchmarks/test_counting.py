"""Counting is judged by medians, and a page of metrics is read as a scraper reads it."""

import os
import subprocess
import sys

import pytest

from benchmarks import rigs, scraping
from benchmarks.figures import Figure, Row
from benchmarks.scenarios import counting

PAGE = b"""\
# HELP a_total What there is of a.
# TYPE a_total counter
a_total{server="x y",tool="}"} 3
a_total{server="z"} 1.5e3 # {trace_id="7"} 0.1 1700000000
a_total_more{server="z"} 7
b_total 2
# EOF
"""


def row(name: str, figure: str, median: float, **others: float) -> Row:
    found = {figure: median, **others}
    return Row(name, {key: Figure(value) for key, value in found.items()}, 3)


def rows(scrape_ms: float, counted: float, uncounted: float) -> list[Row]:
    found = [row(counting.NEWS, "cpu ms", scrape_ms), row(counting.NO_NEWS, "cpu ms", 0.1)]
    for callers in counting.CALLERS:
        for name, rate, us in (("counted", counted, 52.5), ("uncounted", uncounted, 51.0)):
            found.append(row(f"{name} {callers}", "calls/s", rate, **{"cpu us/call": us}))
    return found


@pytest.mark.parametrize(
    ("scrape_ms", "counted", "uncounted", "met"),
    [
        (25.0, 970, 1000, [True, True, True]),
        (25.1, 970, 1000, [False, True, True]),
        (4.0, 960, 1000, [True, False, False]),
        (4.0, 0, 1000, [True, False, False]),
    ],
)
def test_goals_are_judged_by_the_median_of_scrapes_with_news_and_of_rates(
    scrape_ms: float, counted: float, uncounted: float, met: list[bool]
) -> None:
    assert [bar.met for bar in counting.bars(rows(scrape_ms, counted, uncounted))] == met


def test_what_counting_costs_a_call_is_said() -> None:
    assert counting.beside(rows(4.0, 970, 1000)) == (
        "Processor time of a call with counting, beside without: +1.50 us at 16, +1.50 us at 64"
        " callers."
    )


def test_a_page_has_as_many_series_as_lines_with_a_number() -> None:
    assert scraping.series(PAGE) == 4


def test_a_total_is_that_of_one_name_whatever_its_labels_and_exemplars_say() -> None:
    assert scraping.total(PAGE, "a_total") == 1503
    assert scraping.total(PAGE, "b_total") == 2
    assert scraping.total(PAGE, "c_total") == 0


def test_the_sentence_on_the_page_has_its_size_and_how_often_it_was_asked_for() -> None:
    said = counting.on_page(2080, PAGE, {"this": 15, "that": 185})
    assert "each of 2,080 tools the page has 4 series in 0 KiB" in said
    assert "15 times for this and 185 times for that" in said


LOOK = """
from metamcp_worker.ipc import figures
from metamcp_worker.front_calls.stats import Stats
stats = Stats()
stats.observe("a", "tools/call", 0.1, "")
print(len(stats.calls()), 31 & figures.MASK == figures.MASK)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("metamcp_supervisor", "serve"), "0 False"), (("metamcp_worker", "connect"), "1 True")],
)
def test_counting_is_taken_out_of_the_gateway_and_of_nothing_else(
    arguments: tuple[str, ...], said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *arguments],
        env={**os.environ, **rigs.customizing(rigs.UNCOUNTED)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == said
