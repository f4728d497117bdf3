"""Workflows and rules of suggestions that were read from files, and what is wrong with them.

Owns: the answer of the process that reads the files (`engine.load`) to the supervisor. Never: what
a definition means (`engine.definition`).
"""

from typing import Final, Literal, TypeAlias

from msgspec import Raw, Struct

SHIPPED: Final = "metamcp:"
"""Beginning of the path of a workflow that is shipped; alone it means the rules that are."""
_SHOWN_CHARACTERS_MAX = 60

Place: TypeAlias = tuple[str | int, ...]


class DefinitionProblem(Struct, frozen=True):
    """Mistake in a definition. `place`: keys and indices down to it; `message`: the end of a
    sentence; `file` and `line`: where it is written, empty and 0 if not in a file."""

    place: Place
    message: str
    file: str = ""
    line: int = 0

    @property
    def path(self) -> str:
        text = ""
        for key in self.place:
            name = f"[{key}]" if isinstance(key, int) else shown(key)
            text += name if isinstance(key, int) or not text else f".{name}"
        return text

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.path} {self.message}" if self.place else f"{where}{self.message}"


class SuggestionRule(Struct, frozen=True):
    """Rule of suggestions. `keywords`: words or phrases in lower case; `match`: whether one of them
    or all have to be in a task; `template`: a workflow as plain data."""

    name: str
    keywords: tuple[str, ...]
    match: Literal["any", "all"]
    template: dict[str, object]


class Loaded(Struct):
    """Content of files. `definitions`: by workspace and name, `rules`: of suggestions, both plain
    data; `files`: files and folders that were looked at."""

    definitions: dict[str, dict[str, Raw]] = {}
    rules: list[Raw] = []
    problems: list[DefinitionProblem] = []
    files: list[str] = []


def shown(text: str) -> str:
    """Return a text for a message: shortened, with characters that control a terminal escaped."""
    cut = text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 1] + "…"
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in cut)
