"""Requests for something that another front has.

Owns: `Elsewhere`, which says that a request may belong to another front. Never: finding out to
which one (the supervisor knows), moving connections (`connection_moves`).
"""

from metamcp_worker.ipc import messages

NOBODY = -1
"""Number that no front has."""


class Elsewhere(Exception):
    """Raised for a name that is not known here. `maker`: number of the front that made the name;
    `otherwise`: error for the client if no other front has it either. Without a name: any other
    front can answer the request."""

    def __init__(self, name: str, maker: int, otherwise: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.maker = maker
        self.otherwise = otherwise


def missing(name: str, otherwise: Exception) -> Exception:
    """Return the exception to raise for a name that is not known here."""
    maker = messages.maker(name)
    return otherwise if maker is None else Elsewhere(name, maker, otherwise)
