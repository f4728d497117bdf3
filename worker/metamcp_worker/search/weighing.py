"""What each term says in one tool: how often it stands there, where, and in how long a text.

Owns: the fields of a tool, their weights and usual lengths, and saturation. Never: other tools, how
rare a term is, ranking.

A term says more in a name than in a description, less in a long text than in a short one, and less
each time that it comes again. The usual lengths are constants and not the averages of what is
there, so a tool weighs the same whatever other tools there are.
"""

from msgspec import Struct

from metamcp_worker.ipc.exposed_names import Pair
from metamcp_worker.search import definitions, words

TEXT_CHARACTERS_MAX = 16_384
"""Of one field; what comes behind that is not found."""
SATURATION = 1.6
"""The weight with which a term says half of what it could."""
LENGTH_SHARE = 0.5
"""How much of a weight depends on the length of its field: 0 is nothing, 1 everything."""


class _Field(Struct, frozen=True):
    """`length`: terms that such a field usually has."""

    weight: float
    length: float


_TOOL = _Field(5.0, 3.0)
_SERVER = _Field(2.0, 2.0)
_TITLE = _Field(1.0, 3.0)
_DESCRIPTION = _Field(1.0, 25.0)
_PARAMETERS = _Field(0.4, 5.0)
_PARAMETER_TEXTS = _Field(0.3, 20.0)


def weights(pair: Pair, definition: bytes) -> dict[str, float]:
    """Of each term of a tool. Any definition has some, if only those of its names."""
    read = definitions.read(definition)
    found: dict[str, float] = {}
    for field, text in (
        (_TOOL, pair[1]),
        (_SERVER, pair[0]),
        (_TITLE, read.title),
        (_DESCRIPTION, read.description),
        (_PARAMETERS, " ".join([one.name for one in read.parameters])),
        (_PARAMETER_TEXTS, " ".join([one.description for one in read.parameters])),
    ):
        if text:
            _weigh(found, field, text[:TEXT_CHARACTERS_MAX])
    return found


def _weigh(found: dict[str, float], field: _Field, text: str) -> None:
    terms = words.terms(text)
    share = field.weight / (1 - LENGTH_SHARE + LENGTH_SHARE * len(terms) / field.length)
    have = found.get
    for term in terms:
        found[term] = have(term, 0.0) + share
