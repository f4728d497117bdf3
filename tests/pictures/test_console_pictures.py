"""Pictures of pages show both themes, as large as they are on a sharp screen."""

import struct
from pathlib import Path

import pytest

from tests.pictures.console import HEIGHT, SCALE, THEMES, WIDTH, chromium, screenshots

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

    made = screenshots({"page": enter()}, tmp_path, enter=enter, ready="h1")
    assert [path.name for path in made] == [f"page-{theme}.png" for theme in THEMES]
    light, dark = (path.read_bytes() for path in made)
    assert struct.unpack(">II", light[16:24]) == (WIDTH * SCALE, HEIGHT * SCALE)
    assert light != dark
    assert len(entered) == 1 + len(THEMES), "each browser enters by a link of its own"
