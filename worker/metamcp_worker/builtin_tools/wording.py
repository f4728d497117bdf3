"""How words of others stand in a text of the gateway: short, on one line, and names as names.

Owns: cutting, quoting and counting them. Never: what is told of whom, which part of a description
(`found`).

What a server or a client calls a thing may hold line ends, quotes and megabytes; a model that reads
the answer is to see one name, and not another entry of the list.
"""

from collections.abc import Collection, Iterable
from itertools import islice

NAME_CHARACTERS_MAX = 128
"""As long as the longest exposed name: these stand there whole."""
NAMES_TOLD_MAX = 50
"""In one sentence; the list of tools has all of them."""


def plain(name: str) -> str:
    """On one line, and not longer than a name is."""
    return line(name, NAME_CHARACTERS_MAX)


def line(text: str, characters: int) -> str:
    """On one line, fit for UTF-8, and not longer than that."""
    return cut(" ".join(fit(text, 2 * characters).split()), characters)


def fit(text: str, characters: int) -> str:
    """Fit for UTF-8, and not longer than that."""
    return cut(text, characters).encode("utf-8", "replace").decode()


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def code(name: str) -> str:
    """In quotes of code, for texts that clients show as Markdown."""
    return f"`{plain(name).replace('`', chr(39))}`"


def told(names: Collection[str], most: int = NAMES_TOLD_MAX) -> str:
    """`git.status, git.log and 3 more`."""
    rest = len(names) - most
    return ", ".join(_first(names, most)) + (f" and {rest} more" if rest > 0 else "")


def counted(count: int, what: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _first(names: Iterable[str], most: int) -> list[str]:
    return [plain(name) for name in islice(names, most)]
