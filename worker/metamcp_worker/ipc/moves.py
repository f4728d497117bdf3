"""What fronts and the supervisor say to each other about connections that move.

Owns: the messages with which a connection goes to the front that has what its client asks for, how
often it may, and the mark in a name that says which front made it. Never: sending, sockets.

Consecutive requests of a client may be accepted by different fronts, but a session, a stream and a
call that waits for its client live in one. So every name that is given to a client ends with the
number of the front that made it. A front that has nothing under a name lets the supervisor find out
who has, and the connection goes there: what follows on it finds its owner without a detour. Until
that front says that it took the connection the supervisor has it as well, so that nothing is lost
with a front that dies before.
"""

from msgspec import structs

from metamcp_worker.ipc.message import Message

HOPS_MAX = 3
"""Moves of a connection for one request: to the owner; to its heir, if it ended meanwhile; back."""
NAME_LENGTH_MAX = 256
"""More than twice the longest that a front makes; it has to fit into a packet."""
NUMBER_DIGITS_MAX = 9
"""Of a front: as many as die in the life of a supervisor."""


class HandOver(Message, frozen=True, kw_only=True):
    """A connection whose first request is for what another front has. From a front to the
    supervisor, and from there to the owner, or back with `hops` used up. Descriptors: blob with
    what was read of the connection, then its socket.

    `name`: of what is asked for, as the client knows it, or nothing for a connection of a front
    that ends: any other may have it, for it is between two requests or asks for nothing that is
    there. `maker`: the number of the front that made this name; `hops`: moves for this request,
    this one included; `last`: nothing counts that comes behind what was read.
    """

    name: str
    maker: int
    hops: int
    last: bool = False

    def back(self) -> "HandOver":
        """To whoever is to say that nobody has it: from there it goes nowhere else."""
        return structs.replace(self, hops=HOPS_MAX)


class Taken(Message, frozen=True, kw_only=True):
    """The oldest connection that was handed to this front, and not yet answered with this, is read
    from now on. Said before a byte of it counts."""


class Adopt(Message, frozen=True, kw_only=True):
    """Sessions of a front that is gone, to be served by this one. Descriptor: blob with a JSON list
    of `SessionRecord`. To a new front sent before `Listen`. `untold`: that front may not have told
    their clients of lists that are others now."""

    untold: bool = False


def marked(token: str, front: int) -> str:
    """The name that this front makes of a token that nobody guesses."""
    return f"{token}.{front}"


def maker(name: str) -> int | None:
    """The number of the front that made this name; None if none did."""
    if len(name) > NAME_LENGTH_MAX:
        return None
    _, dot, digits = name.rpartition(".")
    number = len(digits) <= NUMBER_DIGITS_MAX and digits.isascii() and digits.isdecimal()
    return int(digits) if dot and number else None
