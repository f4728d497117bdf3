"""A picture of the terminal shows what the program says today."""

import re

import pytest

from tests.live.gateway import ROOT
from tests.pictures import scenes, svg
from tests.pictures.draw import IMAGES
from tests.pictures.scenes import Scene, masked

NAMES = ("mistakes", "up", "status", "top")
"""Pictures of the terminal."""


@pytest.fixture(scope="module")
def today() -> dict[str, Scene]:
    return {scene.name: scene for scene in scenes.all_scenes()}


def shown(name: str) -> str:
    return (IMAGES / f"{name}.svg").read_text()


def lines(text: str) -> list[str]:
    """Sorted, since servers start side by side."""
    return sorted(masked(text).splitlines())


@pytest.mark.live
@pytest.mark.parametrize("name", NAMES)
def test_a_picture_shows_what_the_command_prints_today(today: dict[str, Scene], name: str) -> None:
    assert today.keys() == set(NAMES)
    now = svg.plain(today[name].runs)
    assert lines(svg.read(shown(name))) == lines(now), "make pictures draws them anew"


@pytest.mark.parametrize("name", NAMES)
def test_who_does_not_see_a_picture_is_told_the_same(name: str) -> None:
    assert svg.described(shown(name)) == svg.read(shown(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_has_no_path_of_the_machine_that_made_it(name: str) -> None:
    assert not re.search(r"/(?:root|tmp|Users)\b", shown(name))


@pytest.mark.parametrize(
    "path",
    sorted(path for path in IMAGES.iterdir() if path.suffix != ".txt"),
    ids=lambda path: path.name,
)
def test_every_picture_stands_in_the_readme_or_a_page(path: object) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    name = str(path).rpartition("/")[2]
    assert any(f"images/{name}" in page.read_text() for page in pages)


def test_numbers_and_blanks_are_not_compared_and_words_are() -> None:
    one = "git   active  8.7   0.0  7.2ms  40M  up 1m 5s"
    assert masked(one) == masked("git  active   12.0  0.0  10ms  101M  up 3s")
    assert masked(one) != masked(one.replace("active", "idle"))
