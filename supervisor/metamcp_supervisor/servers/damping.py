"""How often a server that comes and goes may change the lists of clients.

Owns: the bound and its arithmetic. Never: clocks, which lists are shown (`routes`).

Theory. A client that hears of a changed list fetches it anew, and a model whose tools changed pays
for the whole conversation again. A server that crashes every few seconds would do that to all
clients each time. So its tools stay as they are for a while, listed or not: who calls one that is
listed and away is told so, and who knows the name of one that is not listed may call it.
"""

from collections.abc import Sequence

LIST_CHANGES_MAX = 2
"""Away and back again, once."""
LIST_CHANGES_S = 60.0


def wait_s(changes: Sequence[float], now: float) -> float:
    """Seconds until the lists may change once more; `changes`: when they did, oldest first."""
    if len(changes) < LIST_CHANGES_MAX:
        return 0.0
    return max(0.0, changes[-LIST_CHANGES_MAX] + LIST_CHANGES_S - now)


def noted(changes: Sequence[float], now: float) -> tuple[float, ...]:
    """They changed now; no more is kept than what counts."""
    return (*changes, now)[-LIST_CHANGES_MAX:]
