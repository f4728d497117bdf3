"""Pages of the documentation as tests read them: links, headings, blocks."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.docs.site_pages import FENCED
from tests.house import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(
    r"^(?P<marker><!-- not run: (?P<reason>[^>]+) -->\n)?"
    r"(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


@dataclass(frozen=True)
class Block:
    """Fenced block. `place`: page and line of its text; `reason`: why no test runs it, or empty."""

    place: str
    language: str
    text: str
    reason: str = ""


def blocks(*languages: str) -> Iterator[Block]:
    """The blocks of all pages, or those in one of these languages."""
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("text")) + 1
            place = f"{page.relative_to(ROOT)}:{line}"
            if not languages or found["language"] in languages:
                yield Block(place, found["language"], found["text"], found["reason"] or "")


def lines(text: str) -> list[str]:
    """The commands in blocks of a text, in their order and without comments. In a `console` block
    they follow a dollar sign."""
    return [
        command
        for block in BLOCK.finditer(text)
        if block["language"] in ("sh", "console") and not block["reason"]
        for command in commands(block["text"], console=block["language"] == "console")
    ]


def commands(text: str, *, console: bool = False) -> Iterator[str]:
    """The commands of one block. A line that ends with a backslash goes on in the next one."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        command = re.split(r"(?:^|\s+)# ", line)[0].strip()
        if command and (command.startswith("$ ") or not console):
            yield command.removeprefix("$ ")


def part(page: str, heading: str) -> list[str]:
    """The commands below a heading of a page."""
    text = (ROOT / page).read_text()
    return lines(text.split(f"\n## {heading}\n")[1].split("\n## ")[0])


def links(text: str) -> list[tuple[str, str]]:
    """Path and anchor of each link that leads to a file of the project."""
    found = LINK.findall("".join(FENCED.split(text)[::2]))
    return [(path, anchor) for path, anchor in found if not path.startswith(("http:", "https:"))]


def anchors(text: str) -> set[str]:
    """Of the headings, as forges and the site write them."""
    seen: Counter[str] = Counter()
    found: set[str] = set()
    for head in re.findall(r"^#+ (.+)$", "".join(FENCED.split(text)[::2]), re.MULTILINE):
        name = re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def target(page: Path, path: str) -> Path:
    return page.parent / path if path else page
