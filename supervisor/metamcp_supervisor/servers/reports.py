"""The reports of workers: log lines of servers and counters of workers, for logs, journal and
metrics.

Owns: which answers prove that a server works. Never: the processes (`crew`).
"""

import asyncio
from collections.abc import Mapping, Sequence

from metamcp_supervisor.servers.entry import Copy, ServerEntry
from metamcp_supervisor.servers.per_client import CONTESTED, LENT_ROOTS
from metamcp_supervisor.servers.server import Fact, ServerLife, WentDown
from metamcp_supervisor.servers.states import ServerPhase
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.messages import THROTTLED, Answers, CallStats, Counted, LogLines, ServerDown

#: Error types of calls that the gateway answered or the client left: not evidence of a server.
_NOT_ANSWERED = frozenset({
    "cancelled",
    *(str(int(code)) for code in (
        Code.SERVER_DOWN, Code.OVERLOADED, Code.TIMED_OUT, Code.TOO_LARGE,
    )),
})  # fmt: skip


def answered(stats: Sequence[CallStats]) -> dict[str, int]:
    """Return how many calls each server answered, from the cumulative figures of a front."""
    found: dict[str, int] = {}
    for one in stats:
        answered = one.count if one.error_type not in _NOT_ANSWERED else 0
        found[one.server] = found.get(one.server, 0) + answered
    return found


_AT_REST = frozenset({ServerPhase.IDLE, ServerPhase.DISABLED})
"""Phases in which a server is meant to be down, so the time is not counted as an outage."""


class Reports:
    def __init__(self, journal: Journal, logs: ServerLogs, metrics: Metrics) -> None:
        self._journal = journal
        self._logs = logs
        self._metrics = metrics
        self._down_since: dict[str, float] = {}

    def heard(self, copy: Copy, message: LogLines | Answers | ServerDown) -> None:
        entry = copy.entry
        match message:
            case LogLines():
                self.lines(entry, message)
            case Answers(stats=stats):
                transport = "pipe" if entry.server.url is None else "tcp"
                self._metrics.answers(entry.name, copy.generation, transport, stats)
            case ServerDown(code=code, signal=signal):
                if code is not None or signal:
                    self._metrics.exited(entry.base, -signal if code is None else code)

    def gone(self, copy: Copy) -> None:
        """End the figures of a copy that is gone."""
        self._metrics.worker_gone(copy.entry.name, copy.generation)

    def turned(self, entry: ServerEntry, before: ServerLife, fact: Fact, now: float) -> None:
        """Measure how long a server was down, after a change of its phase or serving copy. `now`:
        time before the change."""
        phase, loop = entry.life.phase, asyncio.get_running_loop()
        if isinstance(fact, WentDown) and before.phase is ServerPhase.READY:
            self._down_since[entry.name] = now
        elif phase in _AT_REST:
            self._down_since.pop(entry.name, None)
        if (
            phase is ServerPhase.READY
            and (since := self._down_since.pop(entry.name, None)) is not None
        ):
            self._metrics.failed_over(entry.base, loop.time() - since)

    def lines(self, entry: ServerEntry, message: LogLines) -> None:
        self._logs.add(entry.name, message.stream, message.lines, message.dropped)
        if message.dropped:
            self._metrics.server_counts(entry.base, {"log_lines_dropped": message.dropped})

    def counted(self, copy: Copy, message: Counted) -> None:
        # A contested request is an unroutable one, and counts as such.
        aside = (CONTESTED, LENT_ROOTS, THROTTLED)
        counts = {name: n for name, n in message.counts.items() if name not in aside}
        self._metrics.server_counts(copy.entry.base, counts)
        if copy.entry.life.phase is not ServerPhase.READY:
            return  # The end of its start will be reported.
        now = asyncio.get_running_loop().time()
        for what, hint in copy.instance.hints(message.counts, now) if copy.instance else ():
            self._journal.add(copy.entry.name, what, hint, copy.generation)

    def proven(
        self, entries: Mapping[str, ServerEntry], front: int, stats: Sequence[CallStats]
    ) -> list[ServerEntry]:
        """Return the servers that have answered more calls, by the newest figures of this front."""
        found: list[ServerEntry] = []
        for name, count in answered(stats).items():
            entry = entries.get(name)
            if entry is not None and count > entry.answered.get(front, 0):
                entry.answered[front] = count
                found.append(entry)
        return found

    def restarted(self, entry: ServerEntry) -> None:
        """Count a restart: a copy starts, or takes the place of another one. The first start is not
        a restart."""
        if entry.rested:
            entry.rested = False
            return
        entry.restarts += 1
        self._metrics.restarted(entry.base, str(entry.life.reason or "operator"))

    def forget(self, entry: ServerEntry) -> None:
        self._down_since.pop(entry.name, None)
        self._logs.forget(entry.name)
        if entry.own:
            self._journal.histories.forget(entry.name)
        else:
            self._metrics.forget(entry.name)
