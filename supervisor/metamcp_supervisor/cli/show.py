"""Tables on standard output: aligned columns in a pipe, colours on a terminal.

Owns: how a table looks, and that no control character of a server reaches a terminal. Never: what
is in a table (`columns`).

rich takes longer to import than everything else together, so it is imported for a terminal only.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

import click
from msgspec import Struct, structs

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {
    "ready": "green", "active": "green", "idle": "cyan", "warming": "yellow", "draining": "yellow",
    "stopped": "dim", "error": "bold red", "quarantined": "bold red",
}  # fmt: skip
GAP = 2
SENTENCE_CHARACTERS_MIN = 30
"""Minimum characters for a last column of sentences; with less room, the sentences stand below the
table."""
CUT_CHARACTERS_MIN = 8
"""Minimum characters that stay of a cell that is cut."""
KEYS_MAX = 64
"""Maximum bytes of keys read at once; users do not type more while a table is drawn."""
SHOWN_AFTER_S = 1.0
"""Seconds until the progress of a verb is drawn."""
NAMES_MAX = 4
"""Maximum servers to name in a line about progress."""
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]} | {
    code: f"\\u{code:04x}"
    for code in [0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
}


class PrintedTable(Struct, frozen=True):
    """Table with a line before and a line after it."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    head: str = ""
    foot: str = ""
    right: frozenset[str] = frozenset()
    """Columns of numbers, which are aligned to the right."""
    sentences: bool = True
    """Whether the last column has sentences, which stand below a table that is too wide."""
    spared: tuple[str, ...] = ()
    """Columns that a narrow terminal leaves out, the least needed first."""


def on_terminal() -> bool:
    return sys.stdout.isatty()


def can_redraw() -> bool:
    """Whether the terminal can draw over a line."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table."""
    picture(PrintedTable(tuple(columns), rows))


def picture(table: PrintedTable) -> None:
    """Print a table with the lines around it."""
    click.echo(text(table), nl=False)


def text(table: PrintedTable) -> str:
    """Return a table with the lines around it: drawn for a terminal, else plain."""
    if not on_terminal():
        return plain(table) + "\n"
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as drawn:
        console.print(_draw_table(table, console.width))
    return drawn.get()


def watch(take: Callable[[], PrintedTable], every_s: float) -> None:
    """Show the picture that `take` makes again and again, until interrupted."""
    if not on_terminal():
        while True:
            click.echo(plain(take()) + "\n")
            time.sleep(every_s)
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_draw_table(take(), console.width), refresh=True)
            time.sleep(every_s)


def live(take: Callable[[], PrintedTable], every_s: float, press: Callable[[str], bool]) -> None:
    """Show the picture as `watch` does on a terminal, until `press`, called with each key, returns
    True."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with _keyboard() as keyboard, Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_draw_table(take(), console.width), refresh=True)
            if any(press(key) for key in _read_keys(keyboard, every_s)):
                return


def verdict(word: str) -> str:
    """Return `ok`, `warn` or `fail`, in its colour where there are colours."""
    if not on_terminal() or os.environ.get("NO_COLOR"):
        return f"{word:<4}"
    return click.style(f"{word:<4}", fg={"ok": "green", "warn": "yellow"}.get(word, "red"))


def plain(table: PrintedTable) -> str:
    """Return a plain table: two spaces between columns, no lines, no trailing spaces."""
    rows = [[printable(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if name in table.right else cell.ljust(width)
            for name, cell, width in zip(table.columns, row, widths, strict=True)
        ).rstrip()
        for row in (rows if any(table.columns) else rows[1:])
    ]
    return "\n".join([*([table.head] if table.head else []), *lines, *_end(table)])


def printable(text: str) -> str:
    """Return the text with an escape for each character that a terminal would obey or that changes
    the order of the text."""
    return text.expandtabs().translate(_CONTROLS)


def wrap_line(line: str, indent: str) -> str:
    """Return the line, wrapped between words for a terminal; unchanged for a pipe."""
    if not on_terminal():
        return line
    import shutil
    import textwrap

    return textwrap.fill(
        line, shutil.get_terminal_size().columns, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


@contextlib.contextmanager
def _keyboard() -> Generator[int | None, None, None]:
    """Yield standard input, which gives each key at once and shows none; None if it is not a
    terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _read_keys(keyboard: int | None, seconds: float) -> str:
    """Wait so many seconds for a key, and return the pressed keys as soon as there are any."""
    import select

    if keyboard is None:
        time.sleep(seconds)
        return ""
    ready, _, _ = select.select([keyboard], [], [], seconds)
    return os.read(keyboard, KEYS_MAX).decode("ascii", "replace") if ready else ""


def _end(table: PrintedTable) -> list[str]:
    return [table.foot] if table.foot else []


def _is_crowded(table: PrintedTable, width: int) -> bool:
    """Whether there is too little room for the sentences in the last column."""
    widths = _widths(table)
    sentence_width = width - sum(widths[:-1]) - GAP * (len(widths) - 1)
    return sentence_width < min(widths[-1], SENTENCE_CHARACTERS_MIN)


def _widths(table: PrintedTable) -> list[int]:
    rows = [[len(printable(cell)) for cell in row] for row in (table.columns, *table.rows)]
    return [max(column) for column in zip(*rows, strict=True)]


def _without(table: PrintedTable, at: int) -> PrintedTable:
    columns = (*table.columns[:at], *table.columns[at + 1 :])
    rows = [(*row[:at], *row[at + 1 :]) for row in table.rows]
    return structs.replace(table, columns=columns, rows=rows, sentences=False)


def _fit_table(table: PrintedTable, width: int) -> tuple[PrintedTable, list[int], tuple[str, ...]]:
    """Return the table as it fits a terminal of this width, the width of each column, and the
    columns that are left out. Names stay whole as long as anything else can be left out or cut.
    Numbers always stay whole; only the heading of a column of numbers may take two lines."""
    left_out: list[str] = []
    spared = [name for name in table.spared if name in table.columns]
    while (more := _excess(table, width)) > 0 and spared:
        left_out.append(spared.pop(0))
        table = _without(table, table.columns.index(left_out[-1]))
    widths = _widths(table)
    numbers = {at: _longest(table, at) for at, it in enumerate(table.columns) if it in table.right}
    texts = [at for at in range(len(widths)) if at not in numbers]
    least = {at: min(widths[at], CUT_CHARACTERS_MIN) for at in texts} | numbers
    for at in (*numbers, *sorted(texts[1:], key=lambda at: -widths[at]), *texts[:1]):
        less = min(max(more, 0), widths[at] - least[at])
        widths[at], more = widths[at] - less, more - less
    rows = [
        [_cut(cell, wide) for cell, wide in zip(row, widths, strict=True)] for row in table.rows
    ]
    return structs.replace(table, rows=rows), widths, tuple(left_out)


def _longest(table: PrintedTable, at: int) -> int:
    return max((len(row[at]) for row in table.rows), default=0)


def _excess(table: PrintedTable, width: int) -> int:
    widths = _widths(table)
    return sum(widths) + GAP * (len(widths) - 1) - width


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _draw_table(table: PrintedTable, width: int) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    visible, below, widths, left_out = table, list[Text](), list[int](), tuple[str, ...]()
    if table.sentences and _is_crowded(table, width):
        visible = _without(table, len(table.columns) - 1)
        for row in table.rows:
            if row[-1]:
                below.append(Text(f"{printable(row[0])}: {printable(row[-1])}"))
    if not visible.sentences:
        visible, widths, left_out = _fit_table(visible, width)
    drawn = Table(
        box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold",
        show_header=any(visible.columns),
    )  # fmt: skip
    last = len(visible.columns) - 1
    for at, name in enumerate(visible.columns):
        drawn.add_column(
            name, justify="right" if name in visible.right else "left", overflow="fold",
            width=widths[at] if widths else None, no_wrap=visible.sentences and at < last,
        )  # fmt: skip
    for row in visible.rows:
        # As Text, so that a server's words are never read as markup.
        drawn.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    head = [Text(visible.head, style="bold")] if visible.head else []
    foot = [Text(visible.foot, style="dim")] if visible.foot else []
    if left_out:
        foot.append(Text(f"too narrow here for {', '.join(left_out)}", style="dim"))
    return Group(*head, drawn, *below, *foot)
