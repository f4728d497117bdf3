"""Which fronts there are, and in which part of their lives.

Owns: the places, who comes or goes beside them, what is counted of those that ended. Never: what
follows from any of it (`fronts`).
"""

from metamcp_supervisor import backoff
from metamcp_supervisor.fronts.front import Front


class Roster:
    """`slots`: who has each place; `beside`: those that will have the place of another, or had
    theirs; `leaving`: those that ended, and whose last words are still to be read. `last`: the
    number given last; `crashes`: times of the last ones; `unready`: fronts in a row that ended
    before they were ready."""

    def __init__(self) -> None:
        self.slots: dict[int, Front | None] = {}
        self.beside: set[Front] = set()
        self.leaving: set[Front] = set()
        self.last = -1
        self.crashes: tuple[float, ...] = ()
        self.unready = 0

    def serving(self) -> list[Front]:
        return [*(front for front in self.slots.values() if front is not None), *self.beside]

    def all(self) -> list[Front]:
        return [*self.serving(), *self.leaving]

    def of(self, pid: int) -> Front | None:
        return next((front for front in self.serving() if front.pid == pid), None)

    def crashed(self, front: Front, now: float, jitter: float) -> tuple[float, str]:
        """How long its place stays empty, and why that is hopeless, as a sentence, or nothing."""
        if not front.ready:
            self.unready += 1
        self.crashes, delay_s = backoff.crashed(self.crashes, self.unready, now, jitter)
        if delay_s is not None:
            return delay_s, ""
        if self.unready > backoff.CRASHES_MAX:
            return 0.0, f"{self.unready} fronts in a row did not become ready"
        window = f"{backoff.CRASHES_WINDOW_S:.0f} s"
        return 0.0, f"fronts crashed {len(self.crashes)} times in {window}"

    def unsettled(self) -> str:
        """Whose life is in motion, as a sentence, or nothing."""
        for slot, front in self.slots.items():
            if front is None or not front.able:
                return f"front-{slot} does not serve"
        return "a front comes or goes" if self.beside or self.leaving else ""
