"""Requests for what another front has.

Owns: `Elsewhere`, which says of a request that it may be at home in another front. Never: finding
out in which one (the supervisor knows), moving connections (`connection_moves`).
"""

from metamcp_worker.ipc import messages

NOBODY = -1
"""The number of no front."""


class Elsewhere(Exception):
    """There is nothing under this name here. `maker`: the number of the front that made the name;
    `otherwise`: what to say if no other front has it either. Without a name: any other front can
    answer this."""

    def __init__(self, name: str, maker: int, otherwise: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.maker = maker
        self.otherwise = otherwise


def missing(name: str, otherwise: Exception) -> Exception:
    """What to raise for a name that means nothing here."""
    maker = messages.maker(name)
    return otherwise if maker is None else Elsewhere(name, maker, otherwise)
