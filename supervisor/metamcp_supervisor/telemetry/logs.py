"""Log lines of the servers: the last megabyte of each server, in memory.

Owns: the rings, the numbering of lines, how followers get lines. Never: reading a stderr or
limiting its rate (the worker does both), files, printing.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from metamcp_supervisor.telemetry.journal import Feed, Follower
from metamcp_supervisor.verbs import LogLine
from metamcp_worker.ipc import codec

RING_BYTES_MAX = 1024 * 1024
"""Maximum bytes that are kept per server: all that `ctl logs` can show of the past."""
LINE_BYTES_EXTRA = 200
"""Bytes that a line counts beside its text, so that empty lines do not fill the memory."""
LINE_CHARS_MAX = 16 * 1024
"""Maximum characters of a line; longer lines are cut, because a message on the control socket must
have room for a line many times over."""
BLOCK_LINES = 64
"""Number of lines that are packed into one block: single objects would take four times the memory,
and lines that come and go all day would fragment it."""
LAST_LINES = 10
"""Number of last lines in the description of a server; `logs` shows all kept lines."""

_read = codec.reader(list[tuple[int, float, str, str]])


class _Ring:
    """The lines of one server, limited by the memory that they take."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._oldest: deque[LogLine] = deque()
        self._blocks: deque[bytes] = deque()
        self._latest: list[LogLine] = []
        self._cost = 0
        self.last = 0
        """Number of the newest line."""

    def add(self, line: LogLine) -> None:
        self.last = line.seq
        self._latest.append(line)
        self._cost += _cost(line)
        if len(self._latest) >= BLOCK_LINES:
            self._blocks.append(_block(self._latest))
            self._latest = []
        while self._cost > RING_BYTES_MAX:
            if not self._oldest:
                self._oldest.extend(self._next())
            self._cost -= _cost(self._oldest.popleft())

    def newest(self) -> Iterator[LogLine]:
        """Iterate over all lines, newest first."""
        yield from reversed(self._latest)
        for block in reversed(self._blocks):
            yield from reversed(self._lines(block))
        yield from reversed(self._oldest)

    def _next(self) -> list[LogLine]:
        """Remove and return the oldest block of lines, or the unpacked lines without a block."""
        if self._blocks:
            return self._lines(self._blocks.popleft())
        latest, self._latest = self._latest, []
        return latest

    def _lines(self, block: bytes) -> list[LogLine]:
        return [
            LogLine(seq=seq, time=time, server=self._server, stream=stream, text=text)
            for seq, time, stream, text in _read(block)
        ]


class ServerLogs:
    """Lines of all servers. `now`: returns seconds since the epoch. `sink`: gets every line at
    once, for printing; may be set later and must not raise."""

    def __init__(
        self, now: Callable[[], float], sink: Callable[[LogLine], None] | None = None
    ) -> None:
        self._now = now
        self._rings: dict[str, _Ring] = {}
        self._feeds: dict[str, Feed[LogLine]] = {}
        self._last = 0
        self.sink = sink

    def add(self, server: str, stream: str, lines: Sequence[str], dropped: int = 0) -> None:
        """Keep lines of a server. `dropped`: number of lines before them that its worker
        dropped."""
        if dropped:
            self._keep(server, stream, f"[{dropped} lines suppressed: too many per second]")
        for text in lines:
            self._keep(server, stream, text)

    def tail(self, server: str, n: int) -> list[LogLine]:
        """Return the last `n` lines of a server, oldest first."""
        ring = self._rings.get(server)
        return [*islice(ring.newest(), max(0, n))][::-1] if ring is not None else []

    def past(self, server: str, seconds: float | None = None) -> list[LogLine]:
        """Return all lines of a server, or those of the last `seconds`; oldest first."""
        ring = self._rings.get(server)
        if ring is None:
            return []
        oldest = float("-inf") if seconds is None else self._now() - seconds
        return [line for line in ring.newest() if line.time >= oldest][::-1]

    def follow(self, server: str, wake: Callable[[], None]) -> Follower[LogLine]:
        return self._feeds.setdefault(server, Feed()).follow(wake)

    def unfollow(self, server: str, follower: Follower[LogLine]) -> None:
        self._feeds.setdefault(server, Feed()).unfollow(follower)

    def newest(self, cost_max: int) -> list[LogLine]:
        """Return the newest lines of each server that fit into its equal share of `cost_max` bytes;
        oldest first."""
        lines: list[LogLine] = []
        share = cost_max // max(1, len(self._rings))
        for ring in self._rings.values():
            room = share
            for line in ring.newest():
                room -= _cost(line)
                if room < 0:
                    break
                lines.append(line)
        return sorted(lines, key=lambda line: line.seq)

    def lasts(self) -> dict[str, int]:
        """Return the number of the newest line, by server."""
        return {name: ring.last for name, ring in self._rings.items()}

    @property
    def last(self) -> int:
        """The number of the newest line, 0 before the first."""
        return self._last

    def go_on(self, lines: Sequence[LogLine], last: int) -> None:
        """Continue with lines of the previous program. `last`: number of its newest line."""
        for line in lines:
            self._ring(line.server).add(line)
        self._last = last

    def forget(self, server: str) -> None:
        """Remove the lines of a server that was removed from the configuration. Followers stay,
        because the server may come back."""
        self._rings.pop(server, None)

    def _ring(self, server: str) -> _Ring:
        ring = self._rings.get(server)
        if ring is None:
            ring = self._rings[server] = _Ring(server)
        return ring

    def _keep(self, server: str, stream: str, text: str) -> None:
        if len(text) > LINE_CHARS_MAX:
            text = text[:LINE_CHARS_MAX] + f"… [{len(text) - LINE_CHARS_MAX} more characters]"
        self._last += 1
        line = LogLine(seq=self._last, time=self._now(), server=server, stream=stream, text=text)
        self._ring(server).add(line)
        if server in self._feeds:
            self._feeds[server].push(line)
        if self.sink is not None:
            self.sink(line)


def _block(lines: Sequence[LogLine]) -> bytes:
    return codec.dump([(line.seq, line.time, line.stream, line.text) for line in lines])


def _cost(line: LogLine) -> int:
    # Four bytes for a character that is not ASCII is what the interpreter may need at most.
    return LINE_BYTES_EXTRA + len(line.text) * (1 if line.text.isascii() else 4)
