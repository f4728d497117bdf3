"""Access to the control socket: the roles of users, and the journal's sentence about refused
orders.

Never: asking the kernel who a user is (`access_io`), the role that a verb needs (`orders`).
"""

from collections.abc import Collection, Sequence
from enum import IntEnum

from msgspec import Struct

from metamcp_supervisor import backoff
from metamcp_worker.ipc.key_table import CONSOLE_SCOPES


class Role(IntEnum):
    """Role of a user; each role may do everything that the roles before it may."""

    VIEWER = 1
    OPERATOR = 2
    DEVELOPER = 3
    ADMIN = 4

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse_role(cls, word: str) -> "Role | None":
        """Return the role with this name, as `__str__` writes it; None if there is none."""
        return next((role for role in cls if str(role) == word), None)

    @classmethod
    def of_key(cls, scopes: Collection[str]) -> "Role | None":
        """Return the highest role that scopes of an API key give at the console; None if they give
        none."""
        roles = zip(CONSOLE_SCOPES, cls, strict=True)
        return max((role for scope, role in roles if scope in scopes), default=None)


def role(uid: int, groups: Collection[int], *, owner: int, group: int | None) -> Role:
    """Return the role of user `uid`, a member of `groups`, at the gateway of user `owner`, which
    shares its socket with `group`. A `uid` of -1 is a user that the kernel does not report; then
    the mode of the socket and the token have decided already."""
    if uid in {owner, 0, -1}:
        return Role.ADMIN
    if group is not None and group in groups:
        return Role.OPERATOR
    return Role.VIEWER


SESSION_ENDED = "this session of the console has ended; log in again"
"""Refusal of every request of such a session; the console knows by this text that it has ended."""
PER_MINUTE_MAX = 30
"""Maximum refused orders that the journal shows per minute; further ones are only counted."""
NAMES_MAX = 4
NAME_CHARACTERS_MAX = 64
"""Maximum names in a sentence, and characters of each; names come from outside."""
WHY_CHARACTERS_MAX = 500


class Details(Struct, frozen=True):
    """Data of a refusal: everything that is wrong with a configuration or with the named tools."""

    problems: tuple[str, ...] = ()


class TargetParams(Struct, frozen=True):
    """Parameters that nearly all orders have: the servers they are for. `address`: of the browser
    that logs in; `dry_run`: the order only asks what would happen."""

    names: tuple[str, ...] = ()
    name: str = ""
    address: str = ""
    dry_run: bool = False

    @property
    def all(self) -> Sequence[str]:
        return (*self.names, *filter(None, (self.name, self.address)))


def reason(message: str, problems: Sequence[str]) -> str:
    """Return `message` with the first of `problems` and the number of the others."""
    if not problems:
        return message
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{message}: {problems[0]}{more}"


def sentence(verb: str, names: Sequence[str], caller: str, refusal: str, left_out: int = 0) -> str:
    """Return the journal's sentence about a refused order. `left_out`: number of refusals before
    it that the journal does not show."""
    more = [f"and {len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else []
    words = [verb, *map(_sanitize_name, names[:NAMES_MAX]), *more]
    before = backoff.left_out(left_out)
    return f"'{' '.join(words)}' asked by {caller}: {refusal[:WHY_CHARACTERS_MAX]}{before}"


def _sanitize_name(name: str) -> str:
    """Return a name cut short, on one line, and without characters that control a terminal."""
    return "".join(each if each.isprintable() else "?" for each in name[:NAME_CHARACTERS_MAX])
