"""Links of README and docs lead somewhere, and lead to every page."""

import re
import tomllib
from collections.abc import Iterator

import pytest

from deploy.docs import site_pages
from deploy.docs.site_pages import FENCED
from metamcp_supervisor.config.document import list_of, table_of
from tests.docs.pages import PAGES, anchors, links, target
from tests.house import ROOT


@pytest.mark.promise("M111")
def test_every_link_and_every_anchor_leads_somewhere() -> None:
    lost: list[str] = []
    for page in PAGES:
        for path, anchor in links(page.read_text()):
            there = target(page, path)
            if not there.exists() or (anchor and anchor not in anchors(there.read_text())):
                lost.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert lost == []


def test_a_file_and_a_make_target_that_a_sentence_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    folders = "benchmarks|deploy|docs|examples|requirements|supervisor|tests|worker"
    lost: list[str] = []
    for page in PAGES:
        prose = "".join(FENCED.split(page.read_text())[::2])
        paths = re.findall(rf"`((?:{folders})/[a-z0-9_./-]+)(?:::\w+)?`", prose)
        made = re.findall(r"`make ([a-z-]+)[^`]*`", prose)
        lost += [f"{page.name}: {path}" for path in paths if not (ROOT / path).exists()]
        lost += [f"{page.name}: make {name}" for name in made if name not in targets]
    assert lost == []


def test_the_readme_and_the_navigation_of_the_site_have_every_page() -> None:
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES[1:]}
    readme = {path for path, _ in links(PAGES[0].read_text())}
    assert sorted(pages - readme) == [], "add these pages to README.md, 'Documentation'"
    file = ROOT / "deploy" / "docs" / "zensical.toml"
    listed = list(_pages(tomllib.loads(file.read_text())["project"]["nav"]))
    assert sorted(listed) == sorted(set(listed)), "a page stands twice in the navigation"
    made = {f"docs/{name}" for name in listed} - set(site_pages.MOVED.values())
    assert sorted(pages ^ made) == [], f"add or remove these pages in {file.name}"


def _pages(nav: object) -> Iterator[str]:
    """The files of a navigation, at all levels."""
    for each in list_of(nav) or ():
        if isinstance(each, str):
            yield each
        for below in (table_of(each) or {}).values():
            yield from [below] if isinstance(below, str) else _pages(below)


def test_an_anchor_is_that_of_its_heading_and_a_comment_in_code_is_not_a_heading() -> None:
    text = "# A `b.c`, d\n\n```sh\n# not a heading\n```\n\n## A bc d\n"
    assert anchors(text) == {"a-bc-d", "a-bc-d-1"}


@pytest.mark.parametrize(
    ("link", "repository", "shown"),
    [
        ("[a](tls.md#b)", "", "[a](tls.md#b)"),
        ("[a](https://x.example/y.md)", "", "[a](https://x.example/y.md)"),
        ("[a](../CHANGELOG.md)", "", "[a](changes.md)"),
        ("[a\nb](../deploy/x.yml)", "", "a\nb"),
        ("[a](../deploy/x.yml#c)", "https://f.example/m/", "[a](https://f.example/m/deploy/x.yml#c)"),
        ("```text\n[a](../deploy/x.yml)\n```", "", "```text\n[a](../deploy/x.yml)\n```"),
    ],
)  # fmt: skip
def test_a_link_that_leaves_the_documentation_leads_to_the_project_or_is_text(
    link: str, repository: str, shown: str
) -> None:
    assert site_pages.page(link, "docs/page.md", repository) == shown


def test_a_diagram_that_needs_a_script_stays_on_the_forge() -> None:
    text = "before\n\n```mermaid\ngraph TD\n```\n\n```sh\nls\n```\n"
    assert site_pages.page(text, "docs/page.md", "") == "before\n\n```sh\nls\n```\n"


def test_files_of_a_release_are_shown_at_its_tag() -> None:
    assert site_pages.repository("", "1.2.3") == ""
    assert (
        site_pages.repository("https://f.example/m/", "1.2.3") == "https://f.example/m/blob/v1.2.3"
    )
    assert site_pages.repository("https://f.example/m", "dev").endswith("/m/blob/main")


def test_the_changelog_is_a_page_and_its_links_lead_to_pages() -> None:
    assert site_pages.page("[a](docs/tls.md#b)", "CHANGELOG.md", "") == "[a](tls.md#b)"


def test_each_release_has_a_folder_and_the_newest_is_the_latest() -> None:
    assert [site_pages.folder(name) for name in ("1.2.3", "1.2.4.dev5+g1", "0")] == [
        "1.2.3", "dev", "dev",
    ]  # fmt: skip
    assert site_pages.newest(["dev"]) == "dev"
    listed = site_pages.versions(["dev", "0.9.1", "0.10.0"])
    assert [(one["version"], one["aliases"]) for one in listed] == [
        ("0.10.0", ["latest"]), ("0.9.1", []), ("dev", []),
    ]  # fmt: skip
