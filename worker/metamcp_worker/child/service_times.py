"""How long the server takes for its answers, and the worker for sampled calls.

Owns: the histograms by method and error, cumulative since the worker started; the clock readings of
the calls that are timed in each part of the gateway (`figures`). Never: clocks, sending anything.

An answer costs one look-up and two additions.
"""

from bisect import bisect_left

from metamcp_worker.ipc import codec, figures
from metamcp_worker.ipc.figures import BUCKETS_S, AnswerStats, Timed
from metamcp_worker.ipc.frames import Notice

SERIES_MAX = 64
"""Pairs of a method and an error; there are some twenty methods. What comes later is OTHER."""
TIMED_MAX = 256
"""Calls under way that are timed. If there are more, the oldest is forgotten: most probably it was
cancelled or ended with an error, of which no times are taken."""
OTHER = "_OTHER"


class _Series:
    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)


class Timing:
    """`news`: is there anything that was not told yet?"""

    def __init__(self) -> None:
        self.news = False
        self._series: dict[tuple[str, str], _Series] = {}
        self._timed: dict[tuple[int, int], tuple[float, float]] = {}

    def answered(self, method: str, seconds: float, error: bytes = b"") -> None:
        """The server answered a request. `error`: the raw error object, or empty."""
        self.ended(method, seconds, _code(error) if error else "")

    def ended(self, method: str, seconds: float, error_type: str) -> None:
        series = self._series.get((method, error_type)) or self._begun(method, error_type)
        series.seconds += seconds
        series.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.news = True

    def stats(self) -> tuple[AnswerStats, ...]:
        self.news = False
        return tuple(
            AnswerStats(method, error_type, one.seconds, tuple(one.buckets))
            for (method, error_type), one in self._series.items()
        )

    def sent(self, front: int, call: int, came: float, now: float) -> None:
        """A call that is timed was sent to the server, or waits for its turn. `came`: when its
        frame did."""
        if len(self._timed) >= TIMED_MAX:
            del self._timed[next(iter(self._timed))]
        self._timed[front, call] = came, now - came

    def replied(self, front: int, call: int, heard: float, now: float) -> Notice:
        """A call that is timed was answered. `heard`: when the server was. What to tell the front
        before the answer; all zero of a call that is not known any more."""
        came, own_s = self._timed.pop((front, call), (now, heard - now))
        return Notice(figures.NOTICE, figures.pack(Timed(call, now - came, own_s + now - heard)))

    def _begun(self, method: str, error_type: str) -> _Series:
        if len(self._series) >= SERIES_MAX:
            method, error_type = OTHER, OTHER if error_type else ""
        return self._series.setdefault((method, error_type), _Series())


def _code(error: bytes) -> str:
    """The code of a raw error object."""
    try:
        code = bytes(codec.level(error).get("code", b""))
    except codec.Malformed:
        return OTHER
    return code.decode() if len(code) < 12 and code.lstrip(b"-").isdigit() else OTHER
