"""Charts as SVG: lines over a scale of tens, and stacked bars. Pure: values in, text out.

Owns: scales, places, colours in light and in dark, the words for those who hear a picture. Never:
which figures are shown, files.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 78, 150, 46, 56
"""What is kept free around the plot; the names stand at the right."""
LIGHT = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#6e7781", "#9a6700", "#24292f")
DARK = ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#8b949e", "#d29922", "#e6edf3")
GAP = 0.3
"""Of the room of a bar."""
STEPS = 5
SIGN = WIDTH - RIGHT + 18
"""Where the list of names begins."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line or one part of each bar. `beside`: not the gateway, and drawn with a broken line."""

    name: str
    values: tuple[float, ...]
    beside: bool = False


def lines(title: str, x: str, y: str, ticks: Sequence[str], series: Sequence[Series]) -> str:
    """A point for each tick, and a scale of tens upwards."""
    values = [value for one in series for value in one.values if value > 0]
    low = math.floor(math.log10(min(values)))
    high = max(low + 1, math.ceil(math.log10(max(values))))

    def up(value: float) -> float:
        return (math.log10(value) - low) / (high - low)

    step = (WIDTH - LEFT - RIGHT) / max(1, len(ticks) - 1)
    at = [LEFT + step * number for number in range(len(ticks))]
    parts = [*_grid((10.0**power, up(10.0**power)) for power in range(low, high + 1))]
    parts += _ticks(at, ticks)
    for number, one in enumerate(series):
        points = [(x_at, _y(up(v))) for x_at, v in zip(at, one.values, strict=False) if v > 0]
        path = " ".join(f"{x_at:.1f},{y_at:.1f}" for x_at, y_at in points)
        broken = ' stroke-dasharray="5 4"' if one.beside else ""
        parts.append(f'<polyline class="l c{number}"{broken} points="{path}"/>')
        parts += [
            f'<circle class="f{number}" cx="{x_at:.1f}" cy="{y_at:.1f}" r="3"/>'
            for x_at, y_at in points
        ]
        sign = f'<line class="l c{number}"{broken} x1="{SIGN}" x2="{SIGN + 22}" y1="-4" y2="-4"/>'
        parts.append(_name(number, one.name, sign))
    return _whole(title, x, y, ticks, series, parts)


def bars(title: str, x: str, y: str, ticks: Sequence[str], series: Sequence[Series]) -> str:
    """One bar for each tick, its parts upon each other in the order of the series."""
    sums = [sum(one.values[at] for one in series) for at in range(len(ticks))]
    step_y = _step(max(sums) / STEPS)
    top = step_y * math.ceil(max(sums) / step_y)
    room = (WIDTH - LEFT - RIGHT) / len(ticks)
    at = [LEFT + room * (number + 0.5) for number in range(len(ticks))]
    steps = round(top / step_y)
    parts = [*_grid((step_y * number, number / steps) for number in range(steps + 1))]
    parts += _ticks(at, ticks)
    below = [0.0] * len(ticks)
    for number, one in enumerate(series):
        for tick, value in enumerate(one.values):
            y_at, high = _y((below[tick] + value) / top), (_y(0) - _y(1)) * value / top
            x_at = at[tick] - room * (1 - GAP) / 2
            parts.append(
                f'<rect class="f{number}" x="{x_at:.1f}" y="{y_at:.1f}"'
                f' width="{room * (1 - GAP):.1f}" height="{high:.1f}"/>'
            )
            below[tick] += value
        sign = f'<rect class="f{number}" x="{SIGN}" y="-9" width="22" height="10"/>'
        parts.append(_name(len(series) - 1 - number, one.name, sign))
    parts += [
        _text(x_at, _y(whole / top) - 6, amount(whole))
        for x_at, whole in zip(at, sums, strict=True)
    ]
    return _whole(title, x, y, ticks, series, parts)


def amount(value: float) -> str:
    """`1 M`, `40 k`, `0.05`: for an axis."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    return f"{value / 1000:.3g} k" if value >= 10_000 else f"{float(f'{value:.3g}'):g}"


def _step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 and so on."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def _y(share: float) -> float:
    """Of the height of the plot."""
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _grid(steps: Iterable[tuple[float, float]]) -> list[str]:
    return [
        f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(share):.1f}"'
        f' y2="{_y(share):.1f}"/>' + _text(LEFT - 8, _y(share) + 4, amount(value), "end")
        for value, share in steps
    ]


def _ticks(at: Sequence[float], ticks: Sequence[str]) -> list[str]:
    return [_text(x_at, HEIGHT - BOTTOM + 18, tick) for x_at, tick in zip(at, ticks, strict=True)]


def _text(x_at: float, y_at: float, text: str, anchor: str = "middle") -> str:
    place = f'x="{x_at:.1f}" y="{y_at:.1f}" text-anchor="{anchor}"'
    return f'<text class="s" {place}>{escape(text)}</text>'


def _name(place: int, name: str, sign: str) -> str:
    """In the list at the right."""
    inside = sign + _text(SIGN + 28, 0, name, "start")
    return f'<g transform="translate(0 {TOP + 12 + place * 20})">{inside}</g>'


def _whole(
    title: str,
    x: str,
    y: str,
    ticks: Sequence[str],
    series: Sequence[Series],
    parts: Sequence[str],
) -> str:
    said = "; ".join(
        f"{one.name}: "
        + ", ".join(f"{amount(v)} at {t}" for v, t in zip(one.values, ticks, strict=False))
        for one in series
    )
    middle = (LEFT + WIDTH - RIGHT) / 2
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title about"'
    turned = f"translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {view}>',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="about">{escape(f"{y} by {x}. {said}.")}</desc>',
            f"<style>{_style()}</style>",
            f'<rect class="b" width="{WIDTH}" height="{HEIGHT}"/>',
            f'<text class="t" x="{LEFT}" y="26">{escape(title)}</text>',
            *parts,
            _text(middle, HEIGHT - 14, x),
            f'<text class="s" transform="{turned}" text-anchor="middle">{escape(y)}</text>',
            "</svg>",
            "",
        ]
    )


def _style() -> str:
    def colours(all_of_them: Sequence[str], back: str, ink: str, grid: str) -> str:
        return f".b{{fill:{back}}}text{{fill:{ink}}}.g{{stroke:{grid}}}" + "".join(
            f".c{number}{{stroke:{one}}}.f{number}{{fill:{one}}}"
            for number, one in enumerate(all_of_them)
        )

    return (
        "text{font-family:system-ui,sans-serif}.t{font-size:16px;font-weight:600}"
        ".s{font-size:12px}.l{fill:none;stroke-width:2}"
        + colours(LIGHT, "#ffffff", "#1f2328", "#d1d9e0")
        + "@media (prefers-color-scheme: dark){"
        + colours(DARK, "#0d1117", "#e6edf3", "#30363d")
        + "}"
    )
