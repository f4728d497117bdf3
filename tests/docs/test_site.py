"""The site is built without a warning; nothing in it leads nowhere or is fetched from elsewhere."""

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from deploy.docs import site
from deploy.docs.commands import all_below, tree

pytestmark = pytest.mark.process
HERE = "http://site.invalid"
FETCHED = {"img": "src", "script": "src", "source": "src", "link": "href"}


@dataclass
class Page(HTMLParser):
    """`links`: of all elements; `fetched`: those that a browser fetches by itself; `ids`: anchors;
    `titles`: of first level."""

    links: list[str] = field(default_factory=list[str])
    fetched: list[str] = field(default_factory=list[str])
    ids: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.ids.add(has.get("id", ""))
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        if tag in FETCHED and FETCHED[tag] in has:
            self.fetched.append(has[FETCHED[tag]])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases and a build of between, in the order in which they are made."""
    folder = tmp_path_factory.mktemp("site")
    for version in ("0.9.0", "0.10.0", "0.10.1.dev3"):
        assert site.build(folder, version, "") == 0, "the builder has warnings: see above"
    return folder


@pytest.fixture(scope="module")
def pages(out: Path) -> dict[str, Page]:
    """Pages of the latest version, by path in the site."""
    found: dict[str, Page] = {}
    for path in (out / "latest").rglob("*.html"):
        page = Page()
        page.feed(path.read_text())
        found[f"/{path.relative_to(out).as_posix()}"] = page
    return found


def test_each_version_has_a_folder_and_the_first_page_leads_to_the_latest(out: Path) -> None:
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        "0.9.0", "0.10.0", "dev", "latest",
    }  # fmt: skip
    listed = json.loads((out / "versions.json").read_text())
    assert [each["version"] for each in listed] == ["0.10.0", "0.9.0", "dev"]
    assert "url=latest/" in (out / "index.html").read_text()


@pytest.mark.promise("M111")
def test_no_link_is_dead(out: Path, pages: dict[str, Page]) -> None:
    assert len(pages) > 40
    dead: list[str] = []
    for place, page in pages.items():
        for link in (*page.links, *page.fetched):
            url = urlsplit(urljoin(f"{HERE}{place}", link))
            if f"{url.scheme}://{url.netloc}" != HERE:
                continue
            path = unquote(url.path) + ("index.html" if url.path.endswith("/") else "")
            there = pages.get(path)
            missing = there is None and not (out / path.lstrip("/")).is_file()
            if missing or (there and url.fragment and unquote(url.fragment) not in there.ids):
                dead.append(f"{place}: {link}")
    assert dead == []


def test_a_browser_fetches_nothing_from_elsewhere(out: Path, pages: dict[str, Page]) -> None:
    fetched = {link for page in pages.values() for link in page.fetched}
    assert fetched
    assert [link for link in fetched if urlsplit(link).netloc] == []
    sheets = [path.read_text() for path in (out / "latest").rglob("*.css")]
    assert sheets
    assert [
        each for sheet in sheets for each in re.findall(r"url\(\s*[\"']?https?:[^)]*", sheet)
    ] == []


def test_a_search_finds_every_verb(out: Path) -> None:
    words = (out / "latest" / "search.json").read_text()
    assert [verb.name for verb in all_below(tree()) if verb.name not in words] == []
