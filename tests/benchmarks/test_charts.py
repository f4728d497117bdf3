"""Charts are well-formed, have words for everybody, and put higher what is more."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks import charts
from benchmarks.charts import Series

SVG = "{http://www.w3.org/2000/svg}"
TICKS = ("1", "16")
LINES = charts.lines(
    "Calls & more", "callers", "calls/s", TICKS,
    [Series("floor", (20_000.0, 300_000.0), beside=True), Series("here", (5_000.0, 30.0))],
)  # fmt: skip
BARS = charts.bars(
    "Memory", "servers", "MiB", TICKS,
    [Series("front", (10.0, 20.0)), Series("worker", (0.0, 30.0))],
)  # fmt: skip


@pytest.mark.parametrize("chart", [LINES, BARS])
def test_a_chart_has_a_title_a_description_and_units(chart: str) -> None:
    root = ET.fromstring(chart)
    ids = [part.get("id") for name in ("title", "desc") for part in root.iter(f"{SVG}{name}")]
    assert ids == root.get("aria-labelledby", "").split()
    assert root.get("role") == "img"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"calls/s", "callers"} < set(texts) or {"MiB", "servers"} < set(texts)


@pytest.mark.parametrize("chart", [LINES, BARS])
def test_a_chart_can_be_read_in_the_dark(chart: str) -> None:
    assert "prefers-color-scheme: dark" in chart


def test_the_description_has_every_figure() -> None:
    about = ET.fromstring(LINES).findtext(f"{SVG}desc") or ""
    assert "floor: 20 k at 1, 300 k at 16; here: 5000 at 1, 30 at 16" in about


def test_what_is_more_is_higher_and_the_scale_holds_it() -> None:
    floor, here = (line.get("points", "") for line in ET.fromstring(LINES).iter(f"{SVG}polyline"))
    heights = [float(point.split(",")[1]) for line in (floor, here) for point in line.split()]
    assert heights[1] < heights[0] < heights[2] < heights[3]
    assert min(heights) >= charts.TOP
    assert max(heights) <= charts.HEIGHT - charts.BOTTOM


def test_what_is_not_the_gateway_has_a_broken_line() -> None:
    floor, here = ET.fromstring(LINES).iter(f"{SVG}polyline")
    assert floor.get("stroke-dasharray")
    assert not here.get("stroke-dasharray")


def test_the_parts_of_a_bar_stand_upon_each_other() -> None:
    rects = [r for r in ET.fromstring(BARS).iter(f"{SVG}rect") if r.get("class") in {"f0", "f1"}]
    front, worker = (
        next(r for r in rects if r.get("class") == name and r.get("x") == rects[1].get("x"))
        for name in ("f0", "f1")
    )
    top, high = float(worker.get("y", "")), float(worker.get("height", ""))
    assert top + high == pytest.approx(float(front.get("y", "")), abs=0.2)
    assert high == pytest.approx(1.5 * float(front.get("height", "")), abs=0.2)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.05, "0.05"), (1.0, "1"), (9_999.0, "10000"), (40_000.0, "40 k"), (1e6, "1 M")],
)
def test_an_axis_is_short(value: float, written: str) -> None:
    assert charts.amount(value) == written
