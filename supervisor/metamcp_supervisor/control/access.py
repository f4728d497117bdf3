"""Access to the control socket: the roles of users, and the journal's sentence about refused
orders.

Never: asking the kernel who a user is (`access_io`), the role that a verb needs (`orders`).
"""

from collections.abc import Collection, Sequence
from enum import IntEnum

from msgspec import Struct

from metamcp_supervisor import rations


class Role(IntEnum):
    """Each may do what those before it may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


def role(uid: int, groups: Collection[int], *, owner: int, group: int | None) -> Role:
    """What user `uid`, a member of `groups`, is to the gateway of user `owner`, which shares its
    socket with `group`. A uid of -1: the kernel does not tell, so mode and token have decided."""
    if uid in {owner, 0, -1}:
        return Role.ADMIN
    if group is not None and group in groups:
        return Role.OPERATOR
    return Role.VIEWER


PER_MINUTE_MAX = 30
"""Kept; of more only how many they were."""
NAMES_MAX = 4
NAME_CHARACTERS_MAX = 64
"""Names come from the outside; a sentence repeats so much of them."""
WHY_CHARACTERS_MAX = 500


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
    before = rations.left_out(left_out)
    return f"'{' '.join(words)}' asked by {caller}: {why[:WHY_CHARACTERS_MAX]}{before}"


def _shown(name: str) -> str:
    """On one line, and without what steers a terminal."""
    return "".join(each if each.isprintable() else "?" for each in name[:NAME_CHARACTERS_MAX])
