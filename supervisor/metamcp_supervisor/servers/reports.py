"""The reports of workers: log lines of servers, counters of workers, and the calls in flight.

Owns: which answers prove that a server works; which processes are asked for their calls in flight,
the time limit for answers, and merging them. Never: the processes (`server_copies`), the calls of a
front (the front reports them), the fields of a call (`metamcp_worker.ipc.figures`), printing.

The front knows the client of a call, the worker knows whether the call was already sent to the
server: both are asked at once, and a call that the worker has not sent yet is `queued`.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from metamcp_supervisor.fronts.front import FrontProcess, Questions, Shown
from metamcp_supervisor.servers import specs
from metamcp_supervisor.servers.entry import Copy, ServerEntry
from metamcp_supervisor.servers.per_client import CONTESTED, LENT_ROOTS
from metamcp_supervisor.servers.server import Fact, ServerLife, WentDown
from metamcp_supervisor.servers.states import ServerPhase
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.verbs import CallsUnderWay
from metamcp_worker.confinement.denials import denied_of
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.figures import CallPath, PathQuery, ShownTools, ToolQuery
from metamcp_worker.ipc.messages import (
    LARGE_MESSAGE,
    LEARNT,
    REFUSED,
    THROTTLED,
    AnswerTimes,
    CallStats,
    CallUnderWay,
    EventCounts,
    LogLines,
    ServerDown,
    ShowCalls,
    ShowPath,
    ShowTools,
)

#: Error types of calls that the gateway answered or the client left: not evidence of a server.
_NOT_ANSWERED = frozenset({
    "cancelled",
    *(str(int(code)) for code in (
        Code.SERVER_DOWN, Code.OVERLOADED, Code.TIMED_OUT, Code.TOO_LARGE,
    )),
})  # fmt: skip


def count_answers(stats: Sequence[CallStats]) -> dict[str, int]:
    """Return how many calls each server answered, from the cumulative figures of a front."""
    totals: dict[str, int] = {}
    for stat in stats:
        answered = stat.count if stat.error_type not in _NOT_ANSWERED else 0
        totals[stat.server] = totals.get(stat.server, 0) + answered
    return totals


_AT_REST = frozenset({ServerPhase.IDLE, ServerPhase.DISABLED})
"""Phases in which a server is meant to be down, so the time is not counted as an outage."""


class Reports:
    def __init__(self, journal: Journal, logs: ServerLogs, metrics: Metrics) -> None:
        self._journal = journal
        self._logs = logs
        self._metrics = metrics
        self._down_since: dict[str, float] = {}

    def on_message(self, copy: Copy, message: LogLines | AnswerTimes | ServerDown) -> None:
        entry = copy.entry
        match message:
            case LogLines():
                self.lines(entry, message)
            case AnswerTimes(stats=stats):
                transport = "pipe" if entry.server.url is None else "tcp"
                self._metrics.answers(entry.name, copy.generation, transport, stats)
            case ServerDown(code=code, signal=signal):
                if code is not None or signal:
                    self._metrics.record_exit(entry.base, -signal if code is None else code)

    def on_copy_gone(self, copy: Copy) -> None:
        """End the figures of a copy that is gone."""
        self._metrics.worker_gone(copy.entry.name, copy.generation)

    def measure_downtime(
        self, entry: ServerEntry, before: ServerLife, fact: Fact, now: float
    ) -> None:
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

    def on_counters(self, copy: Copy, message: EventCounts) -> None:
        # A contested request is an unroutable one, and counts as such.
        aside = (CONTESTED, LENT_ROOTS, THROTTLED, LARGE_MESSAGE)
        if copy.entry.trial is not None:
            denials = (denied_of(name, LEARNT) for name in message.counts)
            copy.entry.trial.update(denied for denied in denials if denied is not None)
        counts = {
            name: n
            for name, n in message.counts.items()
            if name not in aside and not name.startswith(LEARNT)
        }
        self._metrics.server_counts(copy.entry.base, counts)
        now = asyncio.get_running_loop().time()
        self._report_refusals(copy, message.counts, now)
        if copy.entry.life.phase is not ServerPhase.READY:
            return  # The end of its start will be reported.
        for event, hint in copy.instance.hints(message.counts, now) if copy.instance else ():
            self._journal.add(copy.entry.name, event, hint, copy.generation)

    def _report_refusals(self, copy: Copy, counts: Iterable[str], now: float) -> None:
        """Report the first right of each kind that a sandbox refused, once an hour."""
        for name in counts:
            denied = denied_of(name)
            if denied is None or copy.instance is None:
                continue
            if copy.instance.is_news(REFUSED + denied.right, now):
                (row,) = specs.refusals(copy.entry.server, {denied.right: (1, denied.path)})
                self._journal.add(copy.entry.name, "refused", row.advice, copy.generation)

    def proven(
        self, entries: Mapping[str, ServerEntry], front: int, stats: Sequence[CallStats]
    ) -> list[ServerEntry]:
        """Return the servers that have answered more calls, by the newest figures of this front."""
        answering: list[ServerEntry] = []
        for name, count in count_answers(stats).items():
            entry = entries.get(name)
            if entry is not None and count > entry.answered.get(front, 0):
                entry.answered[front] = count
                answering.append(entry)
        return answering

    def count_restart(self, entry: ServerEntry) -> None:
        """Count a restart: a copy starts, or takes the place of another one. The first start is not
        a restart."""
        if entry.rested:
            entry.rested = False
            return
        entry.restarts += 1
        self._metrics.count_restart(entry.base, str(entry.life.reason or "operator"))

    def forget(self, entry: ServerEntry) -> None:
        self._down_since.pop(entry.name, None)
        self._logs.forget(entry.name)
        if entry.own:
            self._journal.histories.forget(entry.name)
        else:
            self._metrics.forget(entry.name)


CALLS_SHOWN_MAX = 500
"""Maximum number of calls shown, the oldest first: more than an operator reads, and far less than
a line of the control socket can hold."""
ANSWER_S_MAX = 2.0
"""Maximum seconds for all processes to answer: milliseconds are usual, unless a process is stopped
or hangs."""
SEARCH_S_MAX = 12.0
"""Maximum seconds for a search: ten for an index that is not whole, and the answer."""

Waiting = set[tuple[int, int]]
"""Calls as pairs: number of the front, number of the call."""


async def calls(
    fronts: Sequence[FrontProcess],
    entries: Collection[ServerEntry],
    names: Sequence[str],
    slow_s: float,
) -> CallsUnderWay:
    """Return calls to servers with these `names` (empty: all servers) that have taken `slow_s` or
    longer."""
    request = ShowCalls(ticket=0, servers=tuple(names), slow_s=slow_s, most=CALLS_SHOWN_MAX)
    workers = [
        copy.instance.questions for entry in entries for copy in entry.copies if copy.instance
    ]
    answers, waiting = await asyncio.gather(
        asyncio.gather(*(_ask(front.questions, request) for front in fronts)),
        asyncio.gather(*(_ask_waiting_calls(questions) for questions in workers)),
    )
    queued: Waiting = {call for worker_calls in waiting for call in worker_calls}
    seen: list[CallUnderWay] = []
    more = 0
    silent: list[str] = []
    for front, answer in zip(fronts, answers, strict=True):
        if answer is None:
            silent.append(front.process_name)
            continue
        more += answer[0].more
        seen += _read_calls(front, answer[1], queued)
    seen.sort(key=lambda call: -call.age_s)
    more += max(0, len(seen) - CALLS_SHOWN_MAX)
    return CallsUnderWay(calls=tuple(seen[:CALLS_SHOWN_MAX]), more=more, silent=tuple(silent))


async def _ask(questions: Questions, request: ShowCalls) -> Shown | None:
    return await questions.ask(request, ANSWER_S_MAX)


async def reach(fronts: Sequence[FrontProcess]) -> None:
    """Return when each front has answered a question, so it has taken in what came before; a front
    that gives no answer is not waited for."""
    nothing = ShowCalls(ticket=0, most=0)
    await asyncio.gather(*(_ask(front.questions, nothing) for front in fronts))


async def path(fronts: Sequence[FrontProcess], query: PathQuery) -> CallPath | None:
    """Return what would happen to a call, as the first front says that answers; None if none
    does."""
    answer = await _first(fronts, ShowPath(ticket=0, query=query), ANSWER_S_MAX)
    return None if answer is None else codec.decode_as(CallPath, answer)


async def tools(fronts: Sequence[FrontProcess], query: ToolQuery) -> ShownTools | None:
    """Return the tools of an endpoint, as `path` does."""
    answer = await _first(fronts, ShowTools(ticket=0, query=query), SEARCH_S_MAX)
    return None if answer is None else codec.decode_as(ShownTools, answer)


async def _first(
    fronts: Sequence[FrontProcess], request: ShowPath | ShowTools, within_s: float
) -> bytes | None:
    for front in fronts:
        answer = await front.questions.ask(request, within_s)
        if answer is not None:
            return answer[1]
    return None


async def _ask_waiting_calls(questions: Questions) -> Waiting:
    """Return the calls that wait in a worker; none if the worker does not answer."""
    answer = await _ask(questions, ShowCalls(ticket=0))
    try:
        return set(codec.decode_as(list[tuple[int, int]], answer[1])) if answer else set()
    except codec.Malformed:
        return set()


def _read_calls(front: FrontProcess, blob: bytes, queued: Waiting) -> list[CallUnderWay]:
    try:
        calls = codec.decode_as(list[tuple[int, CallUnderWay]], blob)
    except codec.Malformed:
        return []
    described: list[CallUnderWay] = []
    for number, call in calls:
        waits = call.state == "running" and (front.number, number) in queued
        state = "queued" if waits else call.state
        described.append(structs.replace(call, state=state, front=front.process_name))
    return described
