"""A terminal as SVG, in light and in dark.

Owns: places, colours, the text that can be read out. Pure: a screen in, text out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

CELL_WIDTH, CELL_HEIGHT = 8.4, 19
MARGIN = 16
CHROME = 30
"""Height of the bar above the text."""
FONT = "14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
COLOURS = {
    "red": ("#cf222e", "#ff7b72"),
    "green": ("#1a7f37", "#3fb950"),
    "brown": ("#9a6700", "#d29922"),
    "cyan": ("#1b7c83", "#39c5cf"),
    "blue": ("#0969da", "#58a6ff"),
    "magenta": ("#8250df", "#bc8cff"),
}
"""Colours of a terminal in light and in dark; `brown` is its yellow."""
DESCRIPTION = re.compile(r"<desc id=\"d\">(.*?)</desc>", re.DOTALL)
RUN = re.compile(r'<text x="([\d.]+)" y="([\d.]+)" textLength="[\d.]+"[^>]*>([^<]*)</text>')


@dataclass(frozen=True, slots=True)
class Run:
    """Characters of one look beside each other. `classes`: of the style sheet."""

    line: int
    column: int
    text: str
    classes: str = ""


def runs(screen: Any, prompt: str) -> list[Run]:
    """What the screen shows, below the command that shows it."""
    found = [Run(0, 0, "$", "prompt"), Run(0, 2, prompt, "bold")]
    for number in range(screen.lines):
        row = [screen.buffer[number][column] for column in range(screen.columns)]
        begin = 0
        while begin < len(row):
            end = begin
            while end < len(row) and _look(row[end]) == _look(row[begin]):
                end += 1
            text = "".join(cell.data for cell in row[begin:end])
            if text.strip():
                bare = text.rstrip()
                at = begin + len(bare) - len(bare.lstrip())
                found.append(Run(number + 1, at, bare.lstrip(), _look(row[begin])))
            begin = end
    return found


def drawn(title: str, found: Sequence[Run], columns: int) -> str:
    """The picture. `columns`: of the terminal."""
    lines = max(run.line for run in found) + 1
    width = columns * CELL_WIDTH + 2 * MARGIN
    height = CHROME + lines * CELL_HEIGHT + MARGIN
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    inner = f'x="1" y="1" width="{width - 2:g}" height="{height - 2:g}"'
    dots = "".join(
        f'<circle class="dot" cx="{MARGIN + 6 + 18 * at}" cy="{CHROME // 2}" r="5"/>'
        for at in range(3)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(plain(found))}</desc>',
            f"<style>{_style()}</style>",
            f'<rect class="page" {inner} rx="8"/>',
            dots,
            *map(_drawn_run, found),
            "</svg>\n",
        ]
    )  # fmt: skip


def plain(found: Sequence[Run]) -> str:
    """The same as text."""
    lines: dict[int, str] = {}
    for run in found:
        lines[run.line] = lines.get(run.line, "").ljust(run.column) + run.text
    return "\n".join(lines.get(number, "") for number in range(max(lines) + 1))


def read(svg: str) -> str:
    """The text that a picture shows, from the places of its characters."""
    found = [
        Run(
            round((float(y) - CHROME - CELL_HEIGHT * 0.75) / CELL_HEIGHT),
            round((float(x) - MARGIN) / CELL_WIDTH),
            unescape(text),
        )
        for x, y, text in RUN.findall(svg)
    ]
    return plain(found)


def described(svg: str) -> str:
    """The text that is read out to those who do not see the picture."""
    (found,) = DESCRIPTION.findall(svg)
    return unescape(found)


def _look(cell: Any) -> str:
    colour = cell.fg if cell.fg in COLOURS else ""
    return " ".join(filter(None, ("bold" if cell.bold else "", colour)))


def _drawn_run(run: Run) -> str:
    x = MARGIN + run.column * CELL_WIDTH
    y = CHROME + run.line * CELL_HEIGHT + CELL_HEIGHT * 0.75
    style = f' class="{run.classes}"' if run.classes else ""
    length = len(run.text) * CELL_WIDTH
    # The length keeps columns straight whatever font there is.
    return (
        f'<text x="{x:.1f}" y="{y:.2f}" textLength="{length:.1f}"{style}>{escape(run.text)}</text>'
    )


def _style() -> str:
    def rules(at: int) -> Iterator[str]:
        ink, page, edge, dim = (
            ("#1f2328", "#ffffff", "#d1d9e0", "#59636e"),
            ("#e6edf3", "#0d1117", "#3d444d", "#9198a1"),
        )[at]
        yield f"text{{fill:{ink}}}.page{{fill:{page};stroke:{edge}}}.dot{{fill:{edge}}}"
        yield f".prompt{{fill:{dim}}}"
        for name, colours in COLOURS.items():
            yield f".{name}{{fill:{colours[at]}}}"

    light, dark = ("".join(rules(at)) for at in (0, 1))
    return (
        f"text{{font:{FONT};white-space:pre}}.bold{{font-weight:600}}{light}"
        f"@media(prefers-color-scheme:dark){{{dark}}}"
    )
