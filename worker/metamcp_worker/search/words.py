"""Terms of a text, as a search compares them, and names with one letter wrong.

Owns: splitting text into words and words into terms, light stemming, stop words, the key of a whole
name; the table of names by key, found whole, by their beginning, or with a misspelt letter. Never:
documents, weights, scores, ranking.

A word is a run of letters and digits, so `_-./` separate words. A word is split into pieces where
its case changes or digits begin (`getUserByID2`: get, user, by, id, 2). A word of several pieces is
also a term itself, so that `GitHub` and `github` match. Text without spaces (Chinese, Japanese,
Korean) is split into pairs of neighbouring characters. Accents are dropped.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar

WORD_CHARACTERS_MAX = 64
"""Maximum characters of a word; of a longer one (key, hash, base64) only the beginning is used."""
PIECES_MAX = 16
"""Maximum pieces of one word; a word with more is not a name, and the rest is ignored."""
WORDS_KEPT = 1 << 14
"""Maximum words whose terms and keys are remembered: enough for the vocabulary of many servers."""
STEM_CHARACTERS_MIN = 3
"""Minimum characters that stemming leaves; a word that would be shorter keeps its ending."""

T = TypeVar("T")

_WORDS = re.compile(r"[^\W_]+")
_APART = "".join(chr(at) if chr(at).isalnum() else " " for at in range(128))
"""Table for `str.translate` with a space for each separator of ASCII words; several times as fast
as `_WORDS`."""
_PIECES = re.compile(r"[0-9]+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SCRIPTS = (
    "\u1100-\u11ff\u3040-\u30ff\u3100-\u318f\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{_SCRIPTS}]+")
_RUNS = re.compile(f"[0-9]+|[{_SCRIPTS}]+|[^0-9{_SCRIPTS}]+")
_PLAIN = re.compile(r"[a-z]+\Z")
_VOWEL = re.compile(r"[aeiouy]")

_SAYING_NOTHING = """
a about all also am an and any are as at be been being but by can could did do does doing each else
etc for from had has have having he her here his how i if in into is it its just let me might must
my need needs of on onto or other our please shall she should so some such than that the their them
then there these they this those through to too us very via want was we were what when where whether
which while who whom whose why will with would you your
"""
STOP_WORDS = frozenset(_SAYING_NOTHING.split())
"""English words that hardly distinguish tools. Verbs of tools (get, list, find) do, and stay."""
AROUND_NAMES = frozenset({"mcp", "server", "tool"})
"""Words that people add to the name of a tool or server."""


def words(text: str) -> list[str]:
    """Return the words of `text` in order, as they are written."""
    if text.isascii():
        return text.translate(_APART).split()
    return _WORDS.findall(unicodedata.normalize("NFC", text))


def terms(text: str) -> list[str]:
    """Return the terms of `text` in order and with repetitions, without stop words."""
    return list(chain.from_iterable(map(_TERMS.__getitem__, words(text))))


def key(text: str, *, without: frozenset[str] = frozenset()) -> str:
    """Return the key of a name, equal for all its spellings: `create_issue`, `Create-Issues`,
    `createIssue`."""
    return "".join([_KEYS[word] for word in words(text) if word.lower() not in without])


def plain(text: str) -> str:
    """Return only the letters and digits of `text`, in lower case. The beginning of a name begins
    this form of the name, but not its key, which is stemmed."""
    joined = "".join(words(text))
    if joined.isascii():
        return joined.lower()
    return "".join(words(_even(joined))).casefold()  # even, some letters are several words


class _WordCache(dict[str, T]):
    """Results of `find` by word, each calculated once; emptied when there are too many."""

    def __init__(self, find: Callable[[str], T]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, word: str) -> T:
        if len(self) >= WORDS_KEPT:
            self.clear()
        result = self[word] = self._find(word)
        return result


def _terms(word: str) -> tuple[str, ...]:
    """Return the terms of a word; empty for a stop word."""
    word_pieces = pieces(word)
    stems = [stem(piece) for piece in word_pieces if piece not in STOP_WORDS]
    folded = _fold_word(word).casefold()
    if len(word_pieces) > 1 and folded not in STOP_WORDS and not _UNSPACED.search(word):
        stems.append(stem(folded))
    return tuple(stems)


def _key(word: str) -> str:
    return "".join([stem(piece) for piece in pieces(word)])


_TERMS = _WordCache(_terms)
_KEYS = _WordCache(_key)


def pieces(word: str) -> list[str]:
    """Split a word where its case changes, or digits or pairs of characters begin; return the
    pieces in lower case. A word with letters beyond ASCII is not split at changes of case."""
    word = _fold_word(word)
    if word.isascii():
        return [piece.lower() for piece in _PIECES.findall(word)[:PIECES_MAX]]
    parts: list[str] = []
    for run in _RUNS.findall(word.casefold()):
        parts.extend(_pairs(run) if _UNSPACED.match(run) else [run])
    return parts[:PIECES_MAX]


def stem(term: str) -> str:
    """Remove the endings of plurals, -ed and -ing, from a term of plain English letters. The result
    need not be a word, but is the same for all forms of a word."""
    if len(term) <= STEM_CHARACTERS_MIN or not _PLAIN.match(term):
        return term
    if term.endswith("ies") and len(term) > 4:
        term = term[:-3] + "y"
    elif term.endswith(("sses", "shes", "ches", "xes", "zes")):
        term = term[:-2]
    elif term.endswith("s") and not term.endswith(("ss", "us", "is")):
        term = term[:-1]
    for ending in ("ing", "ed"):
        root = term[: -len(ending)]
        if term.endswith(ending) and len(root) >= STEM_CHARACTERS_MIN and _VOWEL.search(root):
            term = _remove_doubled_letter(root)
            break
    if term.endswith("e") and len(term) > STEM_CHARACTERS_MIN:
        term = term[:-1]
    return term[:-1] + "i" if term.endswith("y") and len(term) > STEM_CHARACTERS_MIN else term


def _remove_doubled_letter(root: str) -> str:
    """Remove a doubled last letter: `stopp` becomes `stop`, but `pass` and `call` stay."""
    if root[-1] == root[-2] and root[-1] not in "lsz":
        return root[:-1]
    return root


def _pairs(run: str) -> Sequence[str]:
    return [run] if len(run) == 1 else [run[at : at + 2] for at in range(len(run) - 1)]


def _fold_word(word: str) -> str:
    """Cut a word to its maximum length, and make compatible forms of it equal."""
    word = word[:WORD_CHARACTERS_MAX]
    return word if word.isascii() else _even(word)[:WORD_CHARACTERS_MAX]


def _even(text: str) -> str:
    """Make compatible forms equal (full width, ligatures), and drop accents."""
    apart = unicodedata.normalize("NFKD", text)
    bare = "".join([char for char in apart if unicodedata.category(char) != "Mn"])
    return unicodedata.normalize("NFC", bare)


ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
MISSPELT_CHARACTERS_MIN = 4
"""Minimum characters of a word that is corrected; a shorter one would become a different word."""
MISSPELT_CHARACTERS_MAX = 24
PREFIX_CHARACTERS_MIN = 2
"""Minimum characters of a beginning; one letter would match too many names."""

Thing = TypeVar("Thing")


class PrefixSearch:
    """Search for the strings that begin with a prefix. Sorts at the first search after a change."""

    def __init__(self) -> None:
        self._sorted: list[str] | None = None

    def invalidate(self) -> None:
        self._sorted = None

    def of(self, prefix: str, strings: Iterable[str], most: int) -> list[str]:
        """Return at most `most` strings with this prefix, in order. `strings`: the current ones."""
        if len(prefix) < PREFIX_CHARACTERS_MIN:
            return []
        if self._sorted is None:
            self._sorted = sorted(strings)
        matches: list[str] = []
        at = bisect_left(self._sorted, prefix)
        for string in self._sorted[at : at + most]:
            if not string.startswith(prefix):
                break
            matches.append(string)
        return matches


class NameMatch(Generic[Thing]):
    """Things by the key of their name; several things may have the same name."""

    def __init__(self) -> None:
        self._things: dict[str, list[Thing]] = {}
        self._beginnings = PrefixSearch()

    def add(self, key: str, thing: Thing) -> None:
        if not key:
            return
        if (things := self._things.get(key)) is not None:
            things.append(thing)
            return
        self._things[key] = [thing]
        self._beginnings.invalidate()

    def remove(self, key: str, things: Container[Thing]) -> None:
        """Remove these things from the name `key`."""
        remaining = [thing for thing in self._things.get(key, ()) if thing not in things]
        if remaining:
            self._things[key] = remaining
        elif self._things.pop(key, None) is not None:
            self._beginnings.invalidate()

    def whole(self, key: str) -> Sequence[Thing]:
        return self._things.get(key, ())

    def iter_by_prefix(self, key: str, most: int) -> Iterator[Thing]:
        """Yield the things of the names that begin with `key`: at most `most` names, in order."""
        for name in self._beginnings.of(key, self._things, most):
            yield from self._things[name]

    def inside(self, key: str) -> Iterator[tuple[str, Sequence[Thing]]]:
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
