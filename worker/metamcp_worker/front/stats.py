"""What a front counts: plain numbers, no locks, no labels that grow with traffic.

Owns: the counters and their cumulative figures since the front started. Never: rendering them, and
adding up several fronts (the supervisor does both).
"""

from bisect import bisect_left

from metamcp_worker.messages import BUCKETS_S, CallStats

ERROR_TYPES_MAX = 32
"""Per server and method. A server may invent error codes; what comes later counts as OTHER."""
REASONS_MAX = 64
"""Reasons of refusals; the code knows far fewer."""
OTHER = "_OTHER"


class Series:
    """One server and method."""

    __slots__ = ("buckets", "count", "errors", "retries", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.errors: dict[str, int] = {}
        self.retries: dict[str, int] = {}


class Stats:
    """The counters of one front process."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}
        self.refusals: dict[str, int] = {}
        self.late_replies: dict[str, int] = {}

    def observe(self, server: str, method: str, seconds: float, error_type: str) -> None:
        """One call is over. `error_type`: empty, `tool_error`, `cancelled` or a JSON-RPC code."""
        series = self._series.get((server, method)) or self._begun(server, method)
        series.count += 1
        series.seconds += seconds
        series.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        if error_type:
            _add(series.errors, error_type, ERROR_TYPES_MAX)

    def retried(self, server: str, method: str, outcome: str) -> None:
        """A call whose server died was to be sent once more: `answered`, `failed`, `cancelled`."""
        series = self._series.get((server, method)) or self._begun(server, method)
        series.retries[outcome] = series.retries.get(outcome, 0) + 1

    def refused(self, reason: str) -> None:
        """A request was turned away before it became a call."""
        _add(self.refusals, reason, REASONS_MAX)

    def late(self, server: str) -> None:
        """A server answered a call for which nobody waits any more."""
        self.late_replies[server] = self.late_replies.get(server, 0) + 1

    def calls(self) -> list[CallStats]:
        return [
            CallStats(
                server, method, one.count, one.seconds, tuple(one.buckets), dict(one.errors),
                dict(one.retries),
            )
            for (server, method), one in self._series.items()
        ]  # fmt: skip

    def _begun(self, server: str, method: str) -> Series:
        series = self._series[server, method] = Series()
        return series


def _add(counters: dict[str, int], key: str, keys_max: int) -> None:
    if key not in counters and len(counters) >= keys_max:
        key = OTHER
    counters[key] = counters.get(key, 0) + 1
