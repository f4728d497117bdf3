"""Orders that were refused, for the journal: who wanted what, and why it was not done.

Owns: the sentence, and how many of them there may be. Never: refusing (`orders`), the journal
itself, clocks.

Whoever may look may also be refused as often as he likes; what the journal remembers of a night
must not be pushed out by it.
"""

from collections.abc import Sequence

from msgspec import Struct

PER_MINUTE_MAX = 30
"""Kept; of more only how many they were."""
MINUTE_S = 60.0
NAMES_MAX = 4
NAME_CHARACTERS_MAX = 64
"""Names come from the outside; a sentence repeats so much of them."""
WHY_CHARACTERS_MAX = 500


class Refusals:
    """`now`s are monotonic seconds."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._kept = 0
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """One more was refused. How many before it were left out; None: this one is, too."""
        if now - self._since >= MINUTE_S:
            self._since, self._kept = now, 0
        if self._kept >= PER_MINUTE_MAX:
            self._left_out += 1
            return None
        self._kept += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class Details(Struct, frozen=True):
    """What an invalid configuration is refused with."""

    problems: tuple[str, ...] = ()


class Aimed(Struct, frozen=True):
    """What nearly all orders have: servers that they are for. `dry_run`: it is only a question."""

    names: tuple[str, ...] = ()
    name: str = ""
    dry_run: bool = False

    @property
    def all(self) -> Sequence[str]:
        return (*self.names, self.name) if self.name else self.names


def reason(message: str, problems: Sequence[str]) -> str:
    """`problems`: everything that is wrong with a configuration; the first one is told."""
    if not problems:
        return message
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{message}: {problems[0]}{more}"


def sentence(verb: str, names: Sequence[str], caller: str, why: str, left_out: int = 0) -> str:
    """`left_out`: how many others are not told of."""
    more = [f"and {len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else []
    words = [verb, *map(_shown, names[:NAMES_MAX]), *more]
    before = f"; {left_out} more before it are not shown" if left_out else ""
    return f"'{' '.join(words)}' asked by {caller}: {why[:WHY_CHARACTERS_MAX]}{before}"


def _shown(name: str) -> str:
    """On one line, and without what steers a terminal."""
    return "".join(each if each.isprintable() else "?" for each in name[:NAME_CHARACTERS_MAX])
