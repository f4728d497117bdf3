"""What a front has counted so far, as the supervisor is told it.

Owns: collecting it. Never: counting (`stats`, `overhead`, `routing`), telling it (`run`).
"""

from collections.abc import Mapping

from metamcp_worker.front.calls import Calls
from metamcp_worker.front.http import Counts
from metamcp_worker.front.stats import Stats
from metamcp_worker.ipc.messages import Figures, FrontStats


def figures(calls: Calls, stats: Stats) -> Figures:
    return Figures(
        calls=stats.calls(),
        tools=stats.tools(),
        overhead=calls.overhead.figures(),
        inflight={server: count for server, count in calls.inflight().items() if count},
        held=calls.held_by_server(),
        late_replies=stats.late_replies,
        retries=stats.retries,
        views=calls.viewers.stats(),
    )


def summary(
    counts: Counts, stats: Stats, recorded: Mapping[str, int], connections: int
) -> FrontStats:
    """`recorded`: of calls that are over; `connections`: open now."""
    return FrontStats(
        connections=connections,
        streams=counts.streams,
        sessions=counts.sessions,
        refused=dict(stats.refusals),
        recorded=dict(recorded),
    )
