"""Pages of the web console as PNG, in light and in dark, by Chromium.

Owns: the browser and its windows. Never: which pages there are.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

from tests.pictures import scenes

WIDTH, HEIGHT = 1280, 800
SCALE = 2
"""Pixels of a picture for each pixel of CSS: sharp on every screen."""
LOAD_MS = 20_000
"""Milliseconds that a page may take until it is complete."""
NOTHING: Mapping[str, str] = MappingProxyType({})
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
READY = "main h1"
"""Selector of the heading that a page of the console has when its content is there."""
PAGES = {
    "servers": "/servers", "server": "/servers/search", "tools": "/tools", "calls": "/calls",
}  # fmt: skip
"""Pages of the console by the names of their pictures."""
REPLACE = """(shown) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    for (const [word, instead] of Object.entries(shown))
      walker.currentNode.data = walker.currentNode.data.replaceAll(word, instead);
}"""
"""Replaces texts of the page."""


def chromium() -> str:
    """The path of Debian's Chromium; empty without it."""
    return shutil.which("chromium") or ""


def screenshots(
    pages: Mapping[str, str],
    folder: Path,
    *,
    themes: Sequence[Theme] = THEMES,
    enter: Callable[[], str] | None = None,
    ready: str = "body",
    shown: Mapping[str, str] = NOTHING,
) -> dict[str, str]:
    """Take a picture of each URL: `NAME-light.png`, `NAME-dark.png`. `enter`: gives a link that is
    opened first, for a login; each browser asks for one. `ready`: selector of what has to be there
    before a picture is taken; `shown`: texts, and what a picture shows instead. The text of each
    page by its name."""
    texts: dict[str, str] = {}
    for theme in themes:
        with _page(theme) as page:
            if enter is not None:
                page.goto(enter(), wait_until="load")
                page.wait_for_selector(ready)
            for name, url in pages.items():
                page.goto(url, wait_until="load")
                page.wait_for_selector(ready)
                page.evaluate(REPLACE, dict(shown))
                texts[name] = page.locator("main, body").last.inner_text()
                page.screenshot(path=folder / f"{name}-{theme}.png", animations="disabled")
    return texts


def console(folder: Path, *, themes: Sequence[Theme] = THEMES) -> dict[str, str]:
    """Take pictures of the console of a gateway that runs for them, after some calls."""
    with scenes.gateway() as running:
        scenes.work(running).close()

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
        return screenshots(
            pages, folder, themes=themes, enter=link, ready=READY, shown=running.shown
        )


@contextmanager
def _page(theme: Theme) -> Generator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            page = browser.new_page(
                color_scheme=theme,
                viewport={"width": WIDTH, "height": HEIGHT},
                device_scale_factor=SCALE,
                locale="en-GB",
                timezone_id="UTC",
            )
            page.set_default_timeout(LOAD_MS)
            yield page
        finally:
            browser.close()
