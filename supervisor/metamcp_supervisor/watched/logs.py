"""What the servers wrote: the last megabyte of each, in memory.

Owns: the rings, the numbering of lines, how followers are fed. Never: reading a stderr or limiting
its rate (the worker does both), files, printing.
"""

from collections import deque
from collections.abc import Callable, Sequence

from metamcp_supervisor.verbs import LogLine
from metamcp_supervisor.watched.events import Feed, Follower

RING_BYTES_MAX = 1024 * 1024
"""Kept per server: what `ctl logs` can show of the past."""
LINE_BYTES_EXTRA = 200
"""What a kept line costs beside its text, so that empty lines do not fill the memory."""
LINE_CHARS_MAX = 16 * 1024
"""Longer lines are cut: one line must fit a line of the control socket many times over."""


class _Ring:
    """The lines of one server, bounded by what they cost."""

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque()
        self.cost = 0

    def add(self, line: LogLine) -> None:
        self.lines.append(line)
        self.cost += _cost(line)
        while self.cost > RING_BYTES_MAX:
            self.cost -= _cost(self.lines.popleft())


class ServerLogs:
    """`now`: seconds since the epoch. `sink` sees every line at once, for printing; it may be set
    later and must not raise."""

    def __init__(
        self, now: Callable[[], float], sink: Callable[[LogLine], None] | None = None
    ) -> None:
        self._now = now
        self._rings: dict[str, _Ring] = {}
        self._feeds: dict[str, Feed[LogLine]] = {}
        self._last = 0
        self.sink = sink

    def add(self, server: str, stream: str, lines: Sequence[str], dropped: int = 0) -> None:
        """Keep lines of a server. `dropped`: how many its worker threw away before them."""
        if dropped:
            self._keep(server, stream, f"[{dropped} lines suppressed: too many per second]")
        for text in lines:
            self._keep(server, stream, text)

    def tail(self, server: str, n: int) -> list[LogLine]:
        """The last `n` lines, oldest first; of a server that never wrote, none."""
        ring = self._rings.get(server)
        if ring is None or n <= 0:
            return []
        start = max(0, len(ring.lines) - n)
        return [line for at, line in enumerate(ring.lines) if at >= start]

    def past(self, server: str, seconds: float | None = None) -> list[LogLine]:
        """All kept lines, or those of the last `seconds`; oldest first."""
        ring = self._rings.get(server)
        oldest = float("-inf") if seconds is None else self._now() - seconds
        return [line for line in ring.lines if line.time >= oldest] if ring is not None else []

    def follow(self, server: str, wake: Callable[[], None]) -> Follower[LogLine]:
        return self._feeds.setdefault(server, Feed()).follow(wake)

    def unfollow(self, server: str, follower: Follower[LogLine]) -> None:
        self._feeds.setdefault(server, Feed()).unfollow(follower)

    def newest(self, cost_max: int) -> list[LogLine]:
        """Of each server what fits into a fair part of so many bytes; oldest first."""
        found: list[LogLine] = []
        share = cost_max // max(1, len(self._rings))
        for ring in self._rings.values():
            room = share
            for line in reversed(ring.lines):
                room -= _cost(line)
                if room < 0:
                    break
                found.append(line)
        return sorted(found, key=lambda line: line.seq)

    @property
    def last(self) -> int:
        """The number of the newest line, 0 before the first."""
        return self._last

    def go_on(self, lines: Sequence[LogLine], last: int) -> None:
        """After those of the program before. `last`: the number of its newest line."""
        for line in lines:
            self._rings.setdefault(line.server, _Ring()).add(line)
        self._last = last

    def forget(self, server: str) -> None:
        """The server is no longer configured. Its followers stay: it may be back."""
        self._rings.pop(server, None)

    def _keep(self, server: str, stream: str, text: str) -> None:
        if len(text) > LINE_CHARS_MAX:
            text = text[:LINE_CHARS_MAX] + f"… [{len(text) - LINE_CHARS_MAX} more characters]"
        self._last += 1
        line = LogLine(seq=self._last, time=self._now(), server=server, stream=stream, text=text)
        self._rings.setdefault(server, _Ring()).add(line)
        if server in self._feeds:
            self._feeds[server].push(line)
        if self.sink is not None:
            self.sink(line)


def _cost(line: LogLine) -> int:
    # Four bytes for a character that is not ASCII is what the interpreter may need at most.
    return LINE_BYTES_EXTRA + len(line.text) * (1 if line.text.isascii() else 4)
