"""The names of tools and servers, found whole, by their beginning, or with one letter wrong.

Owns: the table of keys (`words.key`) and the neighbours of a misspelt word. Never: scores,
what is behind a name.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
MISSPELT_CHARACTERS_MIN = 4
"""In shorter words one letter makes another word."""
MISSPELT_CHARACTERS_MAX = 24
PREFIX_CHARACTERS_MIN = 2
"""One letter begins too much."""

T = TypeVar("T")


class Beginnings:
    """Which of some strings begin with another one. Sorted when that is asked after a change."""

    def __init__(self) -> None:
        self._sorted: list[str] | None = None

    def changed(self) -> None:
        self._sorted = None

    def of(self, prefix: str, strings: Iterable[str], most: int) -> list[str]:
        """`strings`: all there are now."""
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
    """What has a name, by the key of that name; several things may have one."""

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
        """The name of these no more."""
        kept = [thing for thing in self._things.get(key, ()) if thing not in things]
        if kept:
            self._things[key] = kept
        elif self._things.pop(key, None) is not None:
            self._beginnings.changed()

    def whole(self, key: str) -> Sequence[T]:
        return self._things.get(key, ())

    def beginning(self, key: str, most: int) -> Iterator[T]:
        """At most `most` names, in their order."""
        for name in self._beginnings.of(key, self._things, most):
            yield from self._things[name]

    def inside(self, key: str) -> Iterator[tuple[str, Sequence[T]]]:
        """The names that `key` begins with, each with the rest of it."""
        for end in range(1, len(key)):
            if things := self._things.get(key[:end]):
                yield key[end:], things


def misspelt(word: str) -> Iterator[str]:
    """Everything that is one letter less, more or other than `word`, or two in exchanged places."""
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
