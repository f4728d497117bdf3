"""What somebody probably meant: the known word most like a mistyped one.

Owns: the measure of likeness and the words of the hint. Never: what is known.
"""

from collections.abc import Collection

_WORD_CHARACTERS_MAX = 64
"""Comparing costs the square of the length, and nobody mistypes a word longer than this."""
_LISTED_MAX = 12
"""How many known words a hint lists when none is near."""


def nearest(word: str, known: Collection[str]) -> str | None:
    if len(word) > _WORD_CHARACTERS_MAX:
        return None
    try:
        from difflib import get_close_matches  # a gateway without mistakes never needs it
    except (ImportError, OSError):  # no descriptor is free: then without a hint
        return None
    found = get_close_matches(word.lower(), known, n=1)
    return found[0] if found else None


def hint(word: str, known: Collection[str]) -> str:
    """The second half of a sentence about an unknown word."""
    if not known:
        return "there is none"
    near = nearest(word, known)
    if near is not None:
        return f"did you mean '{near}'?"
    listed = sorted(known)[:_LISTED_MAX]
    more = len(known) - len(listed)
    return f"there are: {', '.join(listed)}" + (f" and {more} more" if more else "")
