"""Pictures of pages show both themes, as large as they are on a sharp screen."""

import struct
from pathlib import Path

import pytest

from metamcp_supervisor.__main__ import verbs
from tests.pictures.console import HEIGHT, SCALE, THEMES, WIDTH, chromium, console, screenshots
from tests.pictures.draw import IMAGES
from tests.pictures.scenes import masked

PAGE = """<!doctype html><meta name="color-scheme" content="light dark"><title>x</title>
<style>body { background: #fff } @media (prefers-color-scheme: dark) { body { background: #000 } }
</style><h1>A page</h1>"""


@pytest.mark.live
@pytest.mark.skipif(not chromium(), reason="Chromium is not installed")
def test_a_page_is_taken_in_light_and_in_dark(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    entered: list[str] = []

    def enter() -> str:
        entered.append((tmp_path / "page.html").as_uri())
        return entered[-1]

    texts = screenshots(
        {"page": enter()}, tmp_path, enter=enter, ready="h1", shown={"A page": "Another page"}
    )
    assert texts == {"page": "Another page"}
    light, dark = ((tmp_path / f"page-{theme}.png").read_bytes() for theme in THEMES)
    assert struct.unpack(">II", light[16:24]) == (WIDTH * SCALE, HEIGHT * SCALE)
    assert light != dark
    assert len(entered) == 1 + len(THEMES), "each browser enters by a link of its own"


def words(text: str) -> set[str]:
    """What a page says, without its numbers."""
    return {word for word in masked(text).split() if "#" not in word}


@pytest.mark.live
@pytest.mark.skipif(
    "console" not in verbs() or not chromium(), reason="the console or Chromium is not there"
)
def test_the_pictures_of_the_console_show_what_its_pages_say_today(tmp_path: Path) -> None:
    for name, text in console(tmp_path, themes=("light",)).items():
        kept = (IMAGES / f"{name}.txt").read_text()
        assert words(kept) == words(text), "make pictures draws them anew"
