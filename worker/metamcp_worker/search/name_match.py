"""Names of tools and servers, found whole, by their beginning, or with one letter wrong.

Owns: the table of names by key (`words.key`), and the possible corrections of a misspelt word.
Never: scores, the tools and servers themselves.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
MISSPELT_CHARACTERS_MIN = 4
"""Minimum characters of a word that is corrected; a shorter one would become a different word."""
MISSPELT_CHARACTERS_MAX = 24
PREFIX_CHARACTERS_MIN = 2
"""Minimum characters of a beginning; one letter would match too many names."""

T = TypeVar("T")


class Beginnings:
    """Search for the strings that begin with a prefix. Sorts at the first search after a change."""

    def __init__(self) -> None:
        self._sorted: list[str] | None = None

    def changed(self) -> None:
        self._sorted = None

    def of(self, prefix: str, strings: Iterable[str], most: int) -> list[str]:
        """Return at most `most` strings with this prefix, in order. `strings`: the current ones."""
        if len(prefix) < PREFIX_CHARACTERS_MIN:
            return []
        if self._sorted is None:
            self._sorted = sorted(strings)
        found: list[str] = []
        at = bisect_left(self._sorted, prefix)
        for string in self._sorted[at : at + most]:
            if not string.startswith(prefix):
                break
            found.append(string)
        return found


class NameMatch(Generic[T]):
    """Things by the key of their name; several things may have the same name."""

    def __init__(self) -> None:
        self._things: dict[str, list[T]] = {}
        self._beginnings = Beginnings()

    def add(self, key: str, thing: T) -> None:
        if not key:
            return
        if (things := self._things.get(key)) is not None:
            things.append(thing)
            return
        self._things[key] = [thing]
        self._beginnings.changed()

    def remove(self, key: str, things: Container[T]) -> None:
        """Remove these things from the name `key`."""
        kept = [thing for thing in self._things.get(key, ()) if thing not in things]
        if kept:
            self._things[key] = kept
        elif self._things.pop(key, None) is not None:
            self._beginnings.changed()

    def whole(self, key: str) -> Sequence[T]:
        return self._things.get(key, ())

    def beginning(self, key: str, most: int) -> Iterator[T]:
        """Yield the things of the names that begin with `key`: at most `most` names, in order."""
        for name in self._beginnings.of(key, self._things, most):
            yield from self._things[name]

    def inside(self, key: str) -> Iterator[tuple[str, Sequence[T]]]:
        """Yield the rest of `key` behind each name that begins it, and the things of that name."""
        for end in range(1, len(key)):
            if things := self._things.get(key[:end]):
                yield key[end:], things


def misspelt(word: str) -> Iterator[str]:
    """Yield all strings with one letter fewer, more or different than `word`, or two swapped."""
    if not MISSPELT_CHARACTERS_MIN <= len(word) <= MISSPELT_CHARACTERS_MAX:
        return
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        if after:
            yield before + after[1:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        for letter in ALPHABET:
            yield before + letter + after
            if after:
                yield before + letter + after[1:]
