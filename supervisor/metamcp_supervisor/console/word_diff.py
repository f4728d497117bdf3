"""Differences between two texts, word by word, as parts of a page.

Owns: which lines and words count as different, how both stand beside each other.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import fragments as ui

LINES_MAX = 3000
"""Maximum lines of each text that are compared; the rest counts as changed."""
LINE_CHARACTERS_MAX = 2000
"""Maximum characters of a line that are shown."""
WORDS_MAX = 200
"""Maximum words of a changed part that are compared; the time grows with their square."""
WORD_PARTS_MAX = 20
"""Maximum changed parts that are compared word by word; further ones are shown line by line."""
CONTEXT_LINES = 3
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


def diff(before: str, after: str, label: str) -> Element:
    """Return both texts as one, with what was removed and what was added. `label`: of the text."""
    old, new = before.split("\n")[:LINES_MAX], after.split("\n")[:LINES_MAX]
    return h.figure(class_="code")[
        h.figcaption[label],
        h.pre(tabindex="0", aria_label=label, class_="diff")[h.code[list(_parts(old, new))]],
    ]


def _parts(old: Sequence[str], new: Sequence[str]) -> Iterator[Node]:
    left = WORD_PARTS_MAX
    shown = 0
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT_LINES):
        yield _left_out(group[0][1] - shown)
        shown = group[-1][2]
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield _text(old[a:b])
                continue
            if kind == "replace" and left:
                words = _words(old[a:b], new[c:d])
                if words is not None:
                    left -= 1
                    yield words
                    continue
            if b > a:
                yield h.del_[_text(old[a:b])]
            if d > c:
                yield h.ins[_text(new[c:d])]
    if shown:
        yield _left_out(len(old) - shown)


def _left_out(lines: int) -> str:
    """Return the mark of lines that are the same in both texts and not shown."""
    return f"⋯ {lines} equal {'line' if lines == 1 else 'lines'}\n" if lines else ""


def _words(old: Sequence[str], new: Sequence[str]) -> Node:
    """Return changed lines word by word; None if they have too many words."""
    before, after = _WORD.findall(_text(old)), _WORD.findall(_text(new))
    if max(len(before), len(after)) > WORDS_MAX:
        return None
    found: list[Node] = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        gone, came = "".join(before[a:b]), "".join(after[c:d])
        if kind == "equal":
            found.append(gone)
            continue
        found += [gone and h.del_[gone], came and h.ins[came]]
    return found


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{ui.shown(line, LINE_CHARACTERS_MAX)}\n" for line in lines)
