"""What a schema says to people and models, and where that changed.

Owns: which parts of a schema are words, and the comparison of them by their places. Never: what is
valid (`containment`).

Whatever is no keyword that limits is words: descriptions, titles, defaults, examples, keywords that
nobody knows. So is every text elsewhere that is more than one plain word, the name of a member as
well as a value of a list: a model reads all of it. New words count also where something new brings
them, for somebody who wants to tell a model something would put it there.
"""

import re
from collections.abc import Iterator

from metamcp_supervisor.approval.findings import Findings, Verdict, step, word
from metamcp_supervisor.approval.fingerprints import canonical
from metamcp_supervisor.approval.sides import (
    COUNTING,
    LISTS,
    MAPS,
    ONES,
    is_list,
    is_table,
    list_of,
    table_of,
)

_PLAIN = re.compile(r"[\w.:/@+$#-]{0,64}", re.ASCII)
_NO_SPACES = re.compile(r"[!-~]{0,200}")
"""A pattern has other characters, too."""
_NAMES = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor"})
_SEEN_THROUGH = "\n\r\t"

Words = dict[str, set[str]]
"""By place, a JSON pointer."""


def compare(old: object, new: object, place: str, found: Findings) -> None:
    """Two schemas that were at the same place. Raises Blocked."""
    before, after = Words(), Words()
    there: set[str] = set()
    _collect(old, place, before, set())
    _collect(new, place, after, there)
    for at in sorted(after):
        if after[at] - before.get(at, set()):
            what = "is another one" if at in before else "is new"
            said(at, what, after[at] - before.get(at, set()), found)
    for at in sorted(before):
        if at not in after and at.rpartition("/")[0] in there:
            said(at, "is gone", set(), found)


def said(at: str, what: str, texts: set[str], found: Findings) -> None:
    """Words that changed. `what`: the end of a sentence about the text at this place."""
    hidden = any(not char.isprintable() and char not in _SEEN_THROUGH for t in texts for char in t)
    name = word(at.rpartition("/")[2])
    more = " It has characters in it that nobody sees." if hidden else ""
    found.add(Verdict.COMPATIBLE, at, "wording", f"The text at '{name}' {what}.{more}")


def _collect(schema: object, place: str, words: Words, there: set[str]) -> None:
    """`there`: where a schema is."""
    there.add(place)
    for key, value in table_of(schema).items():
        at = step(place, key)
        if key in MAPS or (key == "dependencies" and is_table(value)):
            for name, each in table_of(value).items():
                _note(step(at, name), name, words, wide=key == "patternProperties")
                _collect(each, step(at, name), words, there)
        elif key in LISTS | ONES and is_list(value):
            for number, each in enumerate(list_of(value)):
                _collect(each, step(at, number), words, there)
        elif key in ONES:
            _collect(value, at, words, there)
        elif key in COUNTING | _NAMES:
            for text in _texts(value):
                _note(at, text, words, wide=key in {"pattern", "$ref"})
        else:
            words.setdefault(at, set()).add(spelled(value))


def spelled(value: object) -> str:
    return value if isinstance(value, str) else canonical(value).decode("utf-8", "replace")


def _note(at: str, text: str, words: Words, *, wide: bool) -> None:
    if not (_NO_SPACES if wide else _PLAIN).fullmatch(text):
        words.setdefault(at, set()).add(text)


def _texts(value: object) -> Iterator[str]:
    """All texts in a plain value."""
    if isinstance(value, str):
        yield value
    elif is_list(value):
        for each in value:
            yield from _texts(each)
    elif is_table(value):
        for key, each in value.items():
            yield key
            yield from _texts(each)
