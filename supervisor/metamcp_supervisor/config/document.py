"""One configuration file after its syntax is read, and how messages point into it.

Owns: the place of a value (file, path of keys, line), its spelling, and the lists of errors and
warnings, which are bounded. Never: reading files (`files`), syntax (`jsonc`, `tomltext`), meaning.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from metamcp_supervisor.config.config import Problem

Place = tuple[str | int, ...]
"""Keys and indices from the top of a file down to a value."""

PROBLEMS_MAX = 200
"""More than anyone reads; without it a broken file of 4 MiB gives hundreds of thousands."""
LISTED_MAX = 5
"""Names that a sentence has of each sort."""
_SHOWN_CHARACTERS_MAX = 80
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class BrokenSyntax(Exception):
    """The text is no TOML or JSON. `line` is None when unknown."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def no_lines() -> Mapping[Place, int]:
    return {}


@dataclass(frozen=True, slots=True)
class Document:
    """`label`: the file's name in messages; `base`: the directory that relative paths start from;
    `lines`: where each key stands, computed when a message needs it."""

    label: str
    base: Path
    values: Mapping[str, object]
    lines: Callable[[], Mapping[Place, int]] = no_lines


@dataclass(frozen=True, slots=True)
class Site:
    """One place in one file: what a message points at."""

    document: Document
    place: Place = ()

    def at(self, *keys: str | int) -> "Site":
        return Site(self.document, self.place + keys)

    def line(self) -> int | None:
        """Of the key, or of the nearest key above it that is known."""
        lines = self.document.lines()
        for length in range(len(self.place), 0, -1):
            if (found := lines.get(self.place[:length])) is not None:
                return found
        return None

    def problem(self, message: str) -> Problem:
        return Problem(self.document.label, spelled(self.place), message, self.line())

    def __str__(self) -> str:
        place = spelled(self.place)
        return f"{self.document.label}: {place}" if place else self.document.label


@dataclass(slots=True)
class Findings:
    """Everything wrong that was found so far, so that it can be told at once. `fatal`: is there an
    error that is not about single servers?"""

    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[str] = field(default_factory=list[str])
    fatal: bool = False
    _unsaid: int = 0
    _server: Site | None = None
    _first: dict[str, Problem] = field(default_factory=dict[str, Problem])
    _counts: Counter[str] = field(default_factory=Counter[str])

    @contextlib.contextmanager
    def about(self, server: Site) -> Generator[None]:
        """Errors inside are about the server at this place alone."""
        self._server = server
        try:
            yield
        finally:
            self._server = None

    def mistake(self, server: Site) -> str:
        """The first error about the server at this place, as a sentence, or nothing."""
        first = self._first.get(str(server))
        more = self._counts[str(server)] - 1
        return "" if first is None else f"{first}{f' (and {more} more)' if more else ''}"

    def error(self, site: Site, message: str, *, servers: Sequence[Site] = ()) -> None:
        """`servers`: the places of those that the error is about, if it is about single ones."""
        about = servers or (() if self._server is None else (self._server,))
        self.fatal = self.fatal or not about
        for server in map(str, about):
            self._counts[server] += 1
            if server not in self._first:
                self._first[server] = site.problem(message)
        self._add(lambda: site.problem(message))

    def problem(self, made: Problem) -> None:
        self.fatal = True
        self._add(lambda: made)

    def _add(self, make: Callable[[], Problem]) -> None:
        """`make` is called only while there is room: finding the line of a place costs time."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(make())
        else:
            self._unsaid += 1

    def warning(self, site: Site, message: str) -> None:
        if len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(str(site.problem(message)))

    def everything(self) -> tuple[Problem, ...]:
        """The errors, file by file, from top to bottom."""
        files = list(dict.fromkeys(each.file for each in self.problems))
        found = sorted(self.problems, key=lambda each: (files.index(each.file), each.line or 0))
        if self._unsaid:
            found.append(Problem("", "", f"and {self._unsaid} more errors"))
        return tuple(found)


def spelled(place: Place) -> str:
    """`servers.git.command[0]`, keys in quotes where TOML needs them."""
    text = ""
    for key in place:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            name = key if _BARE_KEY.fullmatch(key) else f'"{shown(key)}"'
            text += f".{name}" if text else name
    return text


def shown(text: str) -> str:
    """For a message: shortened, and nothing in it that could steer a terminal."""
    cut = text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"
    return printable(cut)


def listed(names: Sequence[str]) -> str:
    """The first of them as they are shown, and how many more there are."""
    told = ", ".join(map(shown, names[:LISTED_MAX]))
    return told + (f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else "")


def printable(text: str) -> str:
    """Control, direction and other invisible characters as escapes, so that what is shown is what
    is there. The escapes are those of TOML."""
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def table_of(value: object) -> dict[str, object] | None:
    """`value` if it is a table (in JSON: an object), else None."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def list_of(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None


def kind_of(value: object) -> str:
    """What a value is, in words."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    return "a date or time"
