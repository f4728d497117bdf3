"""What definitions cost whoever has them in the context of a model: estimated tokens.

Owns: the estimate, so that everybody who shows one shows the same. Never: exact counts, which
differ from model to model, prices.
"""

from collections.abc import Iterable

from msgspec import Raw, Struct

TOKEN_BYTES = 4
"""Bytes of JSON per token: what models count for English and JSON."""


class Saving(Struct, frozen=True):
    """What is saved where a client sees other tools than there are. `everything`: tokens of all
    definitions behind an endpoint; `shown`: of those in its list."""

    everything: int
    shown: int

    @property
    def tokens(self) -> int:
        """Negative where more is shown than there is, as meta-tools in front of a small server."""
        return self.everything - self.shown

    @property
    def percent(self) -> int:
        """Of everything, rounded towards zero; 0 where nothing is saved."""
        return max(0, self.tokens) * 100 // self.everything if self.everything else 0


def tokens(definition: bytes | Raw) -> int:
    """Of one definition, as it is sent."""
    return of_bytes(len(bytes(definition)))


def together(definitions: Iterable[bytes | Raw]) -> int:
    """Of a server, a view or an endpoint: of all bytes, so that many small ones are not rounded up
    one by one."""
    return of_bytes(sum(len(bytes(definition)) for definition in definitions))


def of_bytes(count: int) -> int:
    return -(-count // TOKEN_BYTES)


def sent_bytes(definition: bytes | Raw, name: bytes, exposed: bytes) -> int:
    """Of a definition that a list gives under another name. `name`, `exposed`: as JSON. A list
    leaves out blanks between members then, which are counted here."""
    return len(bytes(definition)) - len(name) + len(exposed)
