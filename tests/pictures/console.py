"""Pages of the web console as PNG, in light and in dark, by Chromium.

Owns: the browser and its windows. Never: which pages there are.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

from tests.pictures import scenes

WIDTH, HEIGHT = 1280, 800
SCALE = 2
"""Pixels of a picture for each pixel of CSS: sharp on every screen."""
LOAD_MS = 20_000
"""Milliseconds that a page may take until it is complete."""
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
READY = "main h1"
"""Selector of the heading that a page of the console has when its content is there."""
PAGES = {
    "servers": "/servers", "server": "/servers/git", "logs": "/logs", "tools": "/tools",
    "views": "/views", "calls": "/calls", "config": "/config",
}  # fmt: skip
"""Pages of the console by the names of their pictures."""


def chromium() -> str:
    """The path of Debian's Chromium; empty without it."""
    return shutil.which("chromium") or ""


def screenshots(
    pages: Mapping[str, str],
    folder: Path,
    *,
    enter: Callable[[], str] | None = None,
    ready: str = "body",
) -> list[Path]:
    """Take a picture of each URL in both themes: `NAME-light.png`, `NAME-dark.png`. `enter`: gives
    a link that is opened first, for a login; each browser asks for one. `ready`: selector of what
    has to be there before a picture is taken."""
    made: list[Path] = []
    for theme in THEMES:
        with _page(theme) as page:
            if enter is not None:
                page.goto(enter(), wait_until="load")
                page.wait_for_selector(ready)
            for name, url in pages.items():
                page.goto(url, wait_until="load")
                page.wait_for_selector(ready)
                made.append(folder / f"{name}-{theme}.png")
                page.screenshot(path=str(made[-1]), animations="disabled")
    return made


def console(folder: Path) -> list[Path]:
    """Take pictures of the console of a gateway that runs for them."""
    with scenes.gateway() as running:

        def link() -> str:
            done = subprocess.run(
                running.command("console", "--no-open", "--json"),
                cwd=running.folder, env=running.environ, capture_output=True, timeout=60,
                check=True,
            )  # fmt: skip
            url: str = json.loads(done.stdout)["url"]
            return url

        where = urlsplit(link())
        pages = {
            f"console-{name}": f"{where.scheme}://{where.netloc}{path}"
            for name, path in PAGES.items()
        }
        return screenshots(pages, folder, enter=link, ready=READY)


@contextmanager
def _page(theme: Theme) -> Generator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            page = browser.new_page(
                color_scheme=theme,
                viewport={"width": WIDTH, "height": HEIGHT},
                device_scale_factor=SCALE,
            )
            page.set_default_timeout(LOAD_MS)
            yield page
        finally:
            browser.close()
