"""The picture of the panels: readable numbers, true stretches, and panels that there are."""

from xml.etree import ElementTree as ET

import pytest

from tests.observability.boards import panels
from tests.observability.draw import PICTURE, SHOWN
from tests.observability.drawing import Chart, Line, ceiling, picture, written

pytestmark = pytest.mark.promise("M87")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0"),
        (0.0125, "s", "12.5 ms"),
        (12.0, "s", "12 s"),
        (0.5, "percentunit", "50 %"),
        (3 * 1024 * 1024, "bytes", "3 MiB"),
        (80.0, "reqps", "80/s"),
        (6.0, "short", "6"),
    ],
)
def test_values_are_written_as_a_person_writes_them(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text


@pytest.mark.parametrize(("value", "top"), [(0.0, 1.0), (0.03, 0.04), (1.0, 1.0), (7.2, 8.0)])
def test_a_scale_ends_at_a_round_number(value: float, top: float) -> None:
    assert ceiling(value) == pytest.approx(top)


def test_states_that_follow_each_other_are_one_bar() -> None:
    line = Line("a < b", ((0.0, 4.0), (1.0, 4.0), (2.0, 6.0), (3.0, 4.0)))
    chart = Chart("States", "none", (line,), words=("0", "1", "2", "3", "active", "5", "error"))
    found = ET.fromstring(picture("x", [chart], 4.0))
    (group,) = found.findall(f"{SVG}g")
    widths = [float(bar.get("width", "")) for bar in group.findall(f"{SVG}rect")[1:4]]
    assert widths == pytest.approx([155.0, 77.5, 77.5])
    words = [text.text for text in group.findall(f"{SVG}text")]
    assert "a < b" in words
    assert words[-2:] == ["active", "error"]


def test_lines_stay_inside_of_their_panel() -> None:
    chart = Chart("Lines", "s", (Line("one", ((0.0, 0.0), (5.0, 3.0), (10.0, 1.5))),))
    found = ET.fromstring(picture("x", [chart, chart], 10.0))
    for line in found.iter(f"{SVG}polyline"):
        for point in line.get("points", "").split():
            x, y = map(float, point.split(","))
            assert 58 <= x <= 368
            assert 34 <= y <= 176


def test_the_committed_picture_shows_the_panels_that_it_should() -> None:
    assert set(SHOWN) <= {panel.name for panel in panels()}
    found = ET.fromstring(PICTURE.read_text())
    titles = [text.text for text in found.iter(f"{SVG}text") if text.get("class") == "title"]
    wanted = [f"{name.split(' / ')[-1]} ({name.split(' / ')[0]})" for name in SHOWN]
    assert titles == wanted
