"""Estimated tokens that definitions cost in the context of a model.

Owns: the estimate, so that every place that shows one shows the same. Never: exact counts, which
differ from model to model, prices.
"""

from collections.abc import Iterable

from msgspec import Raw, Struct

TOKEN_BYTES = 4
"""Bytes of JSON per token: the usual ratio of models for English and JSON."""


class Saving(Struct, frozen=True):
    """Tokens saved by a list that does not have all tools. `everything`: tokens of all definitions
    behind an endpoint; `shown`: tokens of the definitions in the list."""

    everything: int
    shown: int

    @property
    def tokens(self) -> int:
        """Saved tokens; negative if the list costs more, as for built-in tools and few others."""
        return self.everything - self.shown

    @property
    def percent(self) -> int:
        """Percent of `everything` that is saved, rounded towards zero; 0 if nothing is saved."""
        return max(0, self.tokens) * 100 // self.everything if self.everything else 0


def tokens(definition: bytes | Raw) -> int:
    """Estimate the tokens of one definition, as it is sent."""
    return of_bytes(len(bytes(definition)))


def together(definitions: Iterable[bytes | Raw]) -> int:
    """Estimate the tokens of all definitions of a server, a view or an endpoint, from the sum of
    their bytes, so that small ones are not rounded up one by one."""
    return of_bytes(sum(len(bytes(definition)) for definition in definitions))


def of_bytes(count: int) -> int:
    return -(-count // TOKEN_BYTES)


def sent_bytes(definition: bytes | Raw, name: bytes, exposed: bytes) -> int:
    """Return the bytes of a definition that a list gives under another name. `name`, `exposed`: as
    JSON. The list leaves out blanks between members then, but these are counted here."""
    return len(bytes(definition)) - len(name) + len(exposed)
