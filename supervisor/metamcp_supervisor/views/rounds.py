"""How far each front is with what all fronts are told.

Owns: the number of each round, and which of them are done by all fronts. Never: what is told,
sending, the time that a front may take.
"""

from collections.abc import Iterable


class Rounds:
    """`number`: of the last round; the first one is 1."""

    def __init__(self) -> None:
        self.number = 0
        self._behind: dict[int, int] = {}
        """How far each front is that is not as far as the last round."""

    @property
    def done(self) -> int:
        """The last round that no front is behind."""
        return min(self._behind.values(), default=self.number)

    def begin(self, fronts: Iterable[int]) -> int:
        """A new round, of these fronts; returns its number."""
        before = self.number
        self.number += 1
        self._behind = {front: self._behind.get(front, before) for front in fronts}
        return self.number

    def join(self, front: int) -> None:
        """A front that is new, and is told everything at once."""
        self._behind.pop(front, None)

    def applied(self, front: int, number: int) -> None:
        """This front is so far; one that nobody waits for says nothing new, and a number that is
        still to come is of the program before."""
        if number == self.number:
            self._behind.pop(front, None)
        elif front in self._behind and number < self.number:
            self._behind[front] = max(self._behind[front], number)

    def late(self, number: int) -> None:
        """Nobody waits any longer for those that are not even so far."""
        self._behind = {
            front: max(far, number) for front, far in self._behind.items() if number < self.number
        }

    def left(self, front: int) -> None:
        """A front is gone."""
        self._behind.pop(front, None)
