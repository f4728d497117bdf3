"""Names of servers, namespaces and endpoints: which are good, and how a foreign one is adapted.

Owns: that rule. Never: names of tools (the worker's `names`).

A server's name becomes part of the names of its tools, `server__tool`, and of URLs and labels.
"""

import re
import unicodedata

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
