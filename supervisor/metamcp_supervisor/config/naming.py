"""Names of servers, namespaces and endpoints: the rule for good ones, and the known word most like
a mistyped one.

Never: names of tools (`metamcp_worker.ipc.exposed_names`).

A server's name becomes part of the names of its tools, `server__tool`, and of URLs and labels.
"""

import re
import unicodedata
from collections.abc import Collection

NAME_CHARACTERS_MAX = 64
"""No tool name can be longer in most clients, and a server's name is a part of one."""

_GOOD = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)
_FOREIGN = re.compile(r"[^a-z0-9_-]+", re.ASCII)
_UNDERSCORES = re.compile(r"_{2,}")


def flaw(name: str) -> str:
    """What is wrong with the name, as the end of a sentence, or nothing."""
    if len(name) > NAME_CHARACTERS_MAX:
        return f"is longer than {NAME_CHARACTERS_MAX} characters"
    if "__" in name:
        return "has '__' in it, which separates a server from its tool"
    if _GOOD.fullmatch(name):
        return ""
    near = adapted(name)
    advice = f", such as '{near}'" if near else ""
    return f"must have only a-z, 0-9, '-' and '_' and begin with a letter or digit{advice}"


def adapted(name: str) -> str:
    """The good name nearest to `name`: `My Server` → `my-server`. Empty when nothing is left."""
    plain = unicodedata.normalize("NFKD", name[: NAME_CHARACTERS_MAX * 4]).casefold()
    ascii_only = "".join(char for char in plain if not unicodedata.combining(char))
    joined = _UNDERSCORES.sub("_", _FOREIGN.sub("-", ascii_only))
    return joined.lstrip("-_")[:NAME_CHARACTERS_MAX].rstrip("-_")


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
