"""Exposed names: what an endpoint calls the tools and prompts of its servers.

Owns: the naming rule, and the table from (server, original name) to exposed name. Never: looking
anything up, and taking a name apart again: the identity of a tool is the pair, always.

The rule has three steps. Join: server and original with the separator of the style, characters
that clients do not take replaced by an underscore. Shorten: what is too long ends in a tail that
is a hash of the pair. Part: where two pairs have come to the same name, *all* of them get such a
tail, and a longer one each time that this is not enough. A tail depends on its pair alone, so no
name depends on the order in which servers came up.
"""

import base64
import hashlib
import re
from collections.abc import Sequence

from msgspec import Struct

from metamcp_worker.spec import NamingSpec

SEPARATORS = {"namespaced": "__", "flat": "_", "dotted": ".", "bare": ""}
LENGTH_MIN = 16
"""A smaller `length_max` counts as this: below it a tail leaves nothing to read."""
TAIL_CHARS = (6, 10, 16, 26, 52)
"""Of each step of parting; five bits each. 52 are all of SHA-256, and by then no two pairs in the
world share a tail; under a small `length_max`, where that many do not fit, steps go on salted."""
STEPS_MAX = 64
"""Even the shortest tail that steps end with, 70 bits anew each time, does not clash that often."""

Pair = tuple[str, str]


class Route(Struct, frozen=True, gc=False):
    """One exposed name and what it stands for."""

    server: str
    original: str
    exposed: str

    @property
    def namespaced(self) -> str:
        """The pair as people write it, whatever the endpoint calls it: `git.status`."""
        return f"{self.server}.{self.original}"


def expose(pairs: Sequence[Pair], naming: NamingSpec) -> list[str]:
    """The exposed name of each (server, original), in the order of `pairs`.

    Different pairs get different names, whatever their order; equal pairs the same one.
    """
    steps = dict.fromkeys(pairs, 0)
    names = {pair: _name(pair, 0, naming) for pair in steps}
    clashing = _clashing(names)
    for _ in range(STEPS_MAX):
        if not clashing:
            return [names[pair] for pair in pairs]
        for pair in clashing:
            steps[pair] += 1
            names[pair] = _name(pair, steps[pair], naming)
        clashing = _clashing(names)
    raise AssertionError(f"{STEPS_MAX} hashes of {len(clashing)} pairs are equal")


def routes(pairs: Sequence[Pair], naming: NamingSpec) -> list[Route]:
    """The table of an endpoint, in the order of `pairs`."""
    exposed = expose(pairs, naming)
    return [
        Route(server, original, name)
        for (server, original), name in zip(pairs, exposed, strict=True)
    ]


def _clashing(names: dict[Pair, str]) -> list[Pair]:
    if len(set(names.values())) == len(names):
        return []
    first: dict[str, Pair] = {}
    clashing: dict[Pair, None] = {}
    for pair, name in names.items():
        other = first.setdefault(name, pair)
        if other != pair:
            clashing[other] = clashing[pair] = None
    return list(clashing)


def _name(pair: Pair, step: int, naming: NamingSpec) -> str:
    """The name of `pair` after `step` steps of parting; 0 is the name that it has alone."""
    joined = _joined(pair, naming)
    length_max = max(naming.length_max, LENGTH_MIN)
    if step == 0 and len(joined) <= length_max:
        return joined
    step = max(step, 1)
    tail = _tail(pair, max(0, step - len(TAIL_CHARS)))
    # Two places stay for one readable character and the underscore.
    tail = tail[: min(TAIL_CHARS[min(step, len(TAIL_CHARS)) - 1], length_max - 2)]
    return f"{joined[: length_max - len(tail) - 1]}_{tail}"


def _joined(pair: Pair, naming: NamingSpec) -> str:
    server, original = pair
    if naming.style == "bare":
        name = original
    else:
        name = server + (naming.separator or SEPARATORS[naming.style]) + original
    dots = naming.style == "dotted" or "." in naming.separator
    name = (_FOREIGN_BUT_DOTS if dots else _FOREIGN).sub("_", name)
    if naming.hyphens == "underscore":
        name = name.replace("-", "_")
    return name or "_"


_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_FOREIGN_BUT_DOTS = re.compile(r"[^A-Za-z0-9_.-]")


def _tail(pair: Pair, salt: int) -> str:
    text = "\0".join(pair) + (f"\0{salt}" if salt else "")
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode("ascii").lower().rstrip("=")
