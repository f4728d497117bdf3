"""Who may do what on the control socket.

Owns: the roles, and which of them a user has. Never: asking the kernel (`control`), which verb
needs which role (`orders`).
"""

from collections.abc import Collection
from enum import IntEnum


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
