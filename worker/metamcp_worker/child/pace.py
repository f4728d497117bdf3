"""How long a call that comes now would wait for its turn, and whether that is too long.

Owns: the measured time that the server takes for one call, and the estimate that is made of it.
Never: the queue, clocks, what a caller is told.

Theory. A call that cannot be sent before its time is over is of use to nobody: it waits in vain,
takes a place from others, and its caller could have gone elsewhere at once. So it is refused when
it comes. But refusing a call that would have been in time is worse than letting one wait in vain,
so the estimate has to be solid and the case clear:

- What is measured is the time from sending to answer, of calls that were answered while others
  waited; how a server does when it has nothing to do says nothing. A call in which the client was
  asked something does not count, since that time is a person's.
- The mean gives the newest calls the most weight, so it follows a server that becomes slower or
  faster within some ten calls. Nothing is refused before that many were measured.
- All of it is forgotten when a new queue begins, which may have another reason.
- The expected wait is the mean times the calls that are ahead, divided by those that the server has
  at once. Only if that is more than twice the time of the call, the call is refused.

A server that answers nothing gives no estimate; what waits for it ends at its deadline.
"""

SAMPLES_MIN = 8
"""Answers before the mean counts; the weight of the newest is one such part as well."""
BEYOND = 2.0
"""How many times the time of a call the expected wait must be."""
RETRY_AFTER_S_MAX = 60.0
"""Nobody is told to come back later than that: much can change meanwhile."""


class Pace:
    """`concurrency`: calls that the server has at once."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._mean_s = 0.0
        self._samples = 0

    def served(self, seconds: float) -> None:
        """One call was answered while others waited."""
        self._samples = min(self._samples + 1, SAMPLES_MIN)
        self._mean_s += (seconds - self._mean_s) / self._samples

    def forget(self) -> None:
        """Nobody waited, and now somebody does."""
        self._mean_s, self._samples = 0.0, 0

    def wait_s(self, ahead: int) -> float | None:
        """How long a call with so many ahead of it waits; None if that cannot be told yet."""
        if self._samples < SAMPLES_MIN:
            return None
        return self._mean_s * ahead / self._concurrency

    def hopeless(self, ahead: int, timeout_s: float) -> bool:
        wait_s = self.wait_s(ahead)
        return wait_s is not None and wait_s > BEYOND * timeout_s

    def retry_after_ms(self, queued: int) -> int | None:
        """Until the calls that wait now have had their turns."""
        wait_s = self.wait_s(queued)
        return None if wait_s is None else int(min(wait_s, RETRY_AFTER_S_MAX) * 1000)
