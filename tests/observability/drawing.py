"""Panels as a picture: lines and bars of states over time, in light and in dark, as SVG.

Owns: places, scales, colours, how values are written. Never: which panels, files. Pure: values in,
text out.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.charts import DARK, LIGHT

COLUMNS = 3
WIDTH, HEIGHT, GAP = 380, 220, 12
"""Of a panel, and between two."""
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 34, 44
"""What is free around the plot of a panel."""
LINES_MAX = 6
"""Of a panel: more cannot be told apart."""
STEPS = 4
MIB = 1024 * 1024
CHARACTERS_MAX = 58
"""Of the names below a panel."""
STATE_COLOURS = (
    "#8c959f",
    "#54aeff",
    "#d4a72c",
    "#4ac26b",
    "#2da44e",
    "#a475f9",
    "#cf222e",
    "#6639ba",
)


@dataclass(frozen=True, slots=True)
class Line:
    """`points`: seconds since the begin, and values."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """`words`: of a chart of states, what the values 0, 1, 2 … are called."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    words: tuple[str, ...] = ()


def written(value: float, unit: str) -> str:
    """As a person writes it."""
    if value == 0:
        return "0"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "bytes":
        return f"{value / MIB:.0f} MiB"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
    return f"{value:.3g}{'/s' if unit == 'reqps' else ''}"


def ceiling(value: float) -> float:
    """The next round number, so that a scale has readable steps."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 0.999)


def picture(title: str, charts: Sequence[Chart], seconds: float) -> str:
    """All of them in a grid. `seconds`: how long the time of each is."""
    rows = math.ceil(len(charts) / COLUMNS)
    width = COLUMNS * (WIDTH + GAP) + GAP
    height = rows * (HEIGHT + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
    ]
    for at, chart in enumerate(charts):
        x = GAP + at % COLUMNS * (WIDTH + GAP)
        y = GAP + at // COLUMNS * (HEIGHT + GAP)
        parts.append(f'<g transform="translate({x},{y})">')
        parts.append(f'<rect class="panel" width="{WIDTH}" height="{HEIGHT}" rx="4"/>')
        parts.append(f'<text class="title" x="12" y="20">{escape(chart.title)}</text>')
        parts += _states(chart, seconds) if chart.words else _graph(chart, seconds)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _graph(chart: Chart, seconds: float) -> Iterator[str]:
    lines = sorted(chart.lines, key=_size, reverse=True)[:LINES_MAX]
    scale = MIB if chart.unit == "bytes" else 1
    most = max((value for line in lines for _, value in line.points), default=0)
    top = ceiling(most / scale) * scale
    for step in range(STEPS + 1):
        y = _y(step / STEPS)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        label = written(top * step / STEPS, chart.unit)
        yield f'<text class="word" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    for number, line in enumerate(lines):
        path = " ".join(
            f"{_x(at / seconds):.1f},{_y(value / top):.1f}" for at, value in line.points
        )
        yield f'<polyline class="line c{number}" points="{path}"/>'
    yield from _times(seconds)
    yield from _names([line.name for line in lines])


def _states(chart: Chart, seconds: float) -> Iterator[str]:
    lines = chart.lines
    room = (HEIGHT - TOP - BOTTOM) / max(1, len(lines))
    seen: set[int] = set()
    for row, line in enumerate(lines):
        y = TOP + row * room
        yield (
            f'<text class="word" x="{LEFT - 6}" y="{y + room / 2 + 4:.1f}" text-anchor="end">'
            f"{escape(line.name)}</text>"
        )
        for begin, end, value in _stretches(line.points, seconds):
            seen.add(value)
            x, to = _x(begin / seconds), _x(end / seconds)
            yield (
                f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{max(0.5, to - x):.1f}" '
                f'height="{room - 2:.1f}" fill="{STATE_COLOURS[value]}"/>'
            )
    yield from _times(seconds)
    x = float(LEFT)
    for value in sorted(seen):
        yield f'<rect x="{x:.1f}" y="{HEIGHT - 17}" width="9" height="9" '
        yield f'fill="{STATE_COLOURS[value]}"/>'
        yield f'<text class="word" x="{x + 13:.1f}" y="{HEIGHT - 9}">{chart.words[value]}</text>'
        x += 24 + 6.2 * len(chart.words[value])


def _stretches(
    points: Sequence[tuple[float, float]], seconds: float
) -> Iterator[tuple[float, float, int]]:
    """Times with the same value, joined."""
    begin = 0
    for at in range(1, len(points) + 1):
        if at == len(points) or points[at][1] != points[begin][1]:
            end = points[at][0] if at < len(points) else seconds
            yield points[begin][0], end, int(points[begin][1])
            begin = at


def _times(seconds: float) -> Iterator[str]:
    step = ceiling(seconds / STEPS)
    for number in range(int(seconds / step) + 1):
        x = _x(number * step / seconds)
        yield (
            f'<text class="word" x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">'
            f"{number * step:g} s</text>"
        )


def _names(names: Sequence[str]) -> Iterator[str]:
    x, left = float(LEFT - 40), CHARACTERS_MAX
    for number, name in enumerate(names):
        left -= len(name) + 3
        if left < 0:
            return
        yield f'<path class="line c{number}" d="M{x:.1f} {HEIGHT - 12}h12"/>'
        yield f'<text class="word" x="{x + 16:.1f}" y="{HEIGHT - 8}">{escape(name)}</text>'
        x += 26 + 6.2 * len(name)


def _size(line: Line) -> float:
    return sum(value for _, value in line.points)


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _style() -> str:
    light = "".join(f".c{at}{{stroke:{colour}}}" for at, colour in enumerate(LIGHT))
    dark = "".join(f".c{at}{{stroke:{colour}}}" for at, colour in enumerate(DARK))
    return (
        "text{font:11px system-ui,sans-serif}.page{fill:#f6f8fa}.panel{fill:#fff;stroke:#d0d7de}"
        ".title{fill:#1f2328;font-weight:600}"
        ".word{fill:#57606a}.grid{stroke:#d8dee4}.line{fill:none;stroke-width:1.5;"
        f"stroke-linejoin:round}}{light}"
        "@media(prefers-color-scheme:dark){.page{fill:#0d1117}.panel{fill:#161b22;stroke:#30363d}"
        f".title{{fill:#e6edf3}}.word{{fill:#8b949e}}.grid{{stroke:#30363d}}{dark}}}"
    )
