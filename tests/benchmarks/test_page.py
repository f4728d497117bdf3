"""The page of figures is what the kept result says, and nothing else."""

from dataclasses import replace

from benchmarks import page, pages
from benchmarks.__main__ import SCENARIOS
from tests.benchmarks.values import BUILT, MACHINE, growth, ladder, memory, result

TEXT = "words\n<!-- run -->\nold\n<!-- end run -->\nmore\n<!-- ladder -->\n<!-- end ladder -->\n"


def test_only_what_is_between_markers_is_replaced() -> None:
    found = pages.filled(TEXT, result(ladder()))
    assert found.startswith("words\n<!-- run -->\n")
    assert "old" not in found
    assert "\n<!-- end run -->\nmore\n<!-- ladder -->\n" in found
    assert "| legacy 64 | 64,000 |" in found
    assert pages.filled(found, result(ladder())) == found


def test_a_missed_goal_is_plain_to_see() -> None:
    goals = pages.goals(result(ladder()))
    assert "| soon | 0.200 | at most 0.090 ms | 1.00x | **no** |" in goals
    assert "| fast | 0.800 | at least 0.750 | any | yes |" in goals
    assert "1 of 2 are met." in goals


def test_the_page_says_how_the_gateway_and_its_interpreter_were_built() -> None:
    run = replace(result(ladder()), machine={**MACHINE, **BUILT})
    said = " The interpreter: --with-lto. The gateway is compiled. The load comes from C. "
    assert said in pages.about(run)


def test_a_compiled_gateway_has_a_part_of_its_own() -> None:
    text = "<!-- goals -->\n<!-- end goals -->\n<!-- compiled -->\nold\n<!-- end compiled -->\n"
    assert "old" not in pages.filled(text, result(memory()))
    run = replace(result(ladder()), machine={**MACHINE, **BUILT})
    part = pages.filled(text, result(memory()), run).partition("<!-- compiled -->")[2]
    assert "The gateway is compiled." in part
    assert "| soon | 0.200 | at most 0.090 ms | 1.00x | **no** |" in part


def test_charts_are_drawn_of_what_was_measured() -> None:
    assert set(pages.pictures(result(memory()))) == {"memory.svg"}
    found = pages.pictures(result(growth()))
    assert set(found) == {"growth-servers.svg", "growth-sessions.svg"}
    for name, picture in found.items():
        assert f"](performance/{name})" in pages.parts(result(growth()))["growth"]
        assert "ctl status, ms: 61 at 1, 360 at 300" in picture
    assert set(pages.pictures(result(ladder()))) == {"calls.svg", "p50.svg", "p99.svg", "cpu.svg"}


def test_every_scenario_has_its_part_of_the_page() -> None:
    text = page.PAGE.read_text()
    for name in ("run", "goals", "compiled", *SCENARIOS):
        assert text.count(f"<!-- {name} -->") == text.count(f"<!-- end {name} -->") == 1, name


def test_the_page_and_its_charts_are_those_of_the_newest_result() -> None:
    """If not: `python -m benchmarks.page`."""
    newest = page.newest()
    assert newest is not None
    kept = page.read(newest)
    assert not kept.quick
    for path, text in page.files(kept, page.PAGE.read_text()).items():
        assert path.read_text() == text, path
