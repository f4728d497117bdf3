"""A part of a long answer: as many rows as there is room for, and where the rest begins.

Owns: the room that one answer of a built-in tool has. Never: what a row says.

The text and the JSON of an answer say the same, and each of them keeps to the limit. A row that is
larger than the room is a portion of its own, so that asking on always comes to the end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from metamcp_worker.ipc import codec

ANSWER_BYTES_MAX = 32 * 1024
"""Of the rows of one answer, as text and as JSON: about 8,000 tokens."""

T = TypeVar("T")


class Row(Struct, frozen=True):
    """One thing that is told, for a model and as JSON."""

    text: str
    value: Mapping[str, object]


class Portion(Struct, frozen=True):
    """`end`: the number of the first thing that is not in it; `left`: how many these are."""

    rows: tuple[Row, ...]
    end: int
    left: int

    @property
    def texts(self) -> list[str]:
        return [row.text for row in self.rows]

    @property
    def values(self) -> list[Mapping[str, object]]:
        return [row.value for row in self.rows]


def portion(things: Sequence[T], start: int, row: Callable[[T], Row]) -> Portion:
    """What fits of the things from number `start` on; nothing is made of the others."""
    start = min(max(start, 0), len(things))
    rows: list[Row] = []
    text_room = value_room = ANSWER_BYTES_MAX
    for at in range(start, len(things)):
        made = row(things[at])
        text_room -= len(made.text.encode()) + 1
        value_room -= len(codec.dump(made.value)) + 1
        if rows and min(text_room, value_room) < 0:
            break
        rows.append(made)
    end = start + len(rows)
    return Portion(tuple(rows), end, len(things) - end)
