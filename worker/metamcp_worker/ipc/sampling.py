"""Which calls are timed in each part of the gateway, and the bytes in which a worker tells so.

Owns: the rule by which front and worker choose the same calls without a word about it, and the
notice of the worker. Never: clocks, histograms (`front/overhead`, `child/timing`).

A front numbers its calls, and both sides see the number: a call is timed if its lowest bits say so.
All the others pay one test of an integer on each side.
"""

import struct
from typing import NamedTuple

SAMPLED_OF_CALLS = 32
"""One call of so many is timed. A power of two."""
MASK = SAMPLED_OF_CALLS - 1
"""`id & MASK == MASK`: this one is timed."""
NEXT = MASK - 1
"""`id & MASK == NEXT`: the next one will be."""
NOTICE = "metamcp/timed"
"""The method of the notice that a worker sends before the answer to such a call. What a server
sends under this name is JSON, and the number of no call begins with the byte of a brace."""

_LAYOUT = struct.Struct("!Qdd")


class Timed(NamedTuple):
    """Of call `id`: seconds from its frame to the frame of its answer, and those of the worker's
    own among them, which are neither the server's nor spent waiting for a turn."""

    id: int
    total_s: float
    own_s: float


def pack(timed: Timed) -> bytes:
    return _LAYOUT.pack(*timed)


def unpack(data: bytes) -> Timed | None:
    """None for what is no such notice."""
    if len(data) != _LAYOUT.size:
        return None
    return Timed(*_LAYOUT.unpack(data))
