"""Figures of a front: counters of calls, calls under way, tokens of the lists in view.

Owns: the counters and their cumulative figures since the front started (`Stats`), the choice of
calls to show (`shown`), the figures of views (`ListTokens`), the gateway's own time in sampled
calls (`Overhead`). Never: rendering figures, adding up several fronts (the supervisor does both),
locks, labels that grow with traffic.

A call costs two look-ups and a few additions. Limits are checked only when a series begins. The
stages of the own time:

    front    from the request at the application to its frame, and from the frame of the answer to
             the response, including waits for the event loop
    pipe     from frame to frame, without the time that the worker reports for the call
    worker   the time that the worker reports for its own work

The time of the server, and waiting for a turn at the server, are in none of these stages. HTTP is
read and written below the application, so it is not counted either.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from metamcp_worker.catalog.catalog import ListEntry, MergedCatalog, sent_bytes
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls.request_facts import CallAnswer, client_name
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.guard.policies import PolicyNote
from metamcp_worker.ipc import builtin_definitions, codec, process_names
from metamcp_worker.ipc.disclosure import ViewOwner, ViewStats
from metamcp_worker.ipc.figures import MASK, NEXT, unpack
from metamcp_worker.ipc.messages import (
    BUCKETS_S,
    OVERHEAD_BUCKETS_S,
    CallStats,
    CallUnderWay,
    Durations,
    ToolStats,
)

ERROR_TYPES_MAX = 32
"""Maximum number of error types per server and method. A server may invent error codes; later types
count as OTHER."""
ERROR_TYPE_CHARACTERS_MAX = 12
"""Maximum characters of an error type: as many as a number of 32 bits has. A server may send a
number with thousands of digits."""
REASONS_MAX = 64
"""Maximum number of reasons of refusals; the code knows far fewer."""
TOOLS_MAX = 200
"""Maximum number of tools per server with figures of their own; the others count together as
OTHER."""
ALIASES_MAX = 4096
"""Maximum number of spellings of tools that are found in one step; the others take two. A server
that renames its tools all the time makes more of them."""
OTHER: Final = "_OTHER"

Key = tuple[str, str, str, str, str]
"""Key of a series: server, method, revision, error type, and the tool if times are kept of each
one."""


class Series:
    """Times of calls with the same key."""

    __slots__ = ("buckets", "longest", "seconds")

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)


class ToolCounts:
    """Number of calls of one tool, and of those that failed."""

    __slots__ = ("count", "errors", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = self.errors = 0


class Stats:
    """Counters of one front process. `per_tool`: whether times are kept of each tool."""

    def __init__(self) -> None:
        self.per_tool = False
        self.refusals: dict[str, int] = {}
        self.late_replies: dict[str, int] = {}
        self.retries: dict[str, dict[str, int]] = {}
        self.policies: dict[str, dict[str, int]] = {}
        self._series: dict[Key, Series] = {}
        self._aliases: dict[tuple[str, str | bytes], ToolCounts] = {}
        self._tools: dict[str, dict[str, ToolCounts]] = {}
        self._errors: dict[tuple[str, str], set[str]] = {}

    def observe(
        self,
        server: str,
        method: str,
        seconds: float,
        error_type: str,
        version: str = "",
        tool: str | bytes = "",
    ) -> None:
        """Count a call that has ended. `error_type`: empty, `tool_error`, `cancelled` or a JSON-RPC
        code; `tool`: the server's own name of the tool, raw JSON if it is bytes; empty for other
        methods."""
        name = ""
        if tool:
            counts = self._aliases.get((server, tool)) or self._tool(server, tool)
            counts.count += 1
            if error_type:
                counts.errors += 1
            if self.per_tool:
                name = counts.name
        key = (server, method, version, error_type, name)
        series = self._series.get(key) or self._add_series(key)
        series.seconds += seconds
        if seconds > series.longest:
            series.longest = seconds
        series.buckets[bisect_left(BUCKETS_S, seconds)] += 1

    def count_retry(self, server: str, outcome: str) -> None:
        """Count a call whose server died and that was to be sent again. `outcome`: `answered`,
        `failed` or `cancelled`."""
        outcomes = self.retries.setdefault(server, {})
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def count_refusal(self, reason: str) -> None:
        """Count a request that was turned away before it became a call."""
        if reason not in self.refusals and len(self.refusals) >= REASONS_MAX:
            reason = OTHER
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def policy(self, note: PolicyNote) -> None:
        """Count what a policy did."""
        outcomes = self.policies.setdefault(note.policy, {})
        outcomes[note.outcome] = outcomes.get(note.outcome, 0) + 1

    def count_late_reply(self, server: str) -> None:
        """Count an answer of a server to a call for which no client waits any more."""
        self.late_replies[server] = self.late_replies.get(server, 0) + 1

    def calls(self) -> tuple[CallStats, ...]:
        return tuple(
            CallStats(
                server, method, sum(series.buckets), series.seconds, tuple(series.buckets),
                error_type, version, tool, series.longest,
            )
            for (server, method, version, error_type, tool), series in self._series.items()
        )  # fmt: skip

    def tools(self) -> tuple[ToolStats, ...]:
        return tuple(
            ToolStats(
                server,
                tuple(tools),
                tuple(counts.count for counts in tools.values()),
                tuple(counts.errors for counts in tools.values()),
            )
            for server, tools in self._tools.items()
        )

    def _add_series(self, key: Key) -> Series:
        """Begin a series for this key; an error type that is too long or one too many becomes
        OTHER."""
        server, method, version, error_type, tool = key
        types = self._errors.setdefault((server, method), set())
        if len(error_type) > ERROR_TYPE_CHARACTERS_MAX:
            error_type = OTHER
        if error_type not in types and len(types) >= ERROR_TYPES_MAX + 1:  # with that of success
            error_type = OTHER
        types.add(error_type)
        return self._series.setdefault((server, method, version, error_type, tool), Series())

    def _tool(self, server: str, tool: str | bytes) -> ToolCounts:
        """Return the counts of a tool that has none yet, or has another spelling."""
        tools = self._tools.setdefault(server, {})
        name = tool if isinstance(tool, str) else codec.text(tool) or OTHER
        if name not in tools and len(tools) >= TOOLS_MAX:
            name = OTHER
        counts = tools.setdefault(name, ToolCounts(name))
        if len(self._aliases) < ALIASES_MAX:
            self._aliases[server, tool] = counts
        return counts


def describe_calls(
    calls: Iterable[tuple[Call, str]],
    now: float,
    *,
    most: int,
    servers: Collection[str] = (),
    slow_s: float = 0.0,
) -> tuple[list[tuple[int, CallUnderWay]], int]:
    """Return the calls under way with their numbers, the longest first, and how many others there
    are. `calls`: with their states; `servers`: only their calls, unless it is empty; `slow_s`: only
    calls that have taken so many seconds; `most`: maximum number of calls."""
    selected = [
        (call, state)
        for call, state in calls
        if now - call.started >= slow_s
        and (not servers or call.server in servers or process_names.base(call.server) in servers)
    ]
    longest = heapq.nsmallest(most, selected, key=lambda pair: (pair[0].started, pair[0].id))
    described = [(call.id, _describe_call(call, state, now)) for call, state in longest]
    return described, len(selected) - len(longest)


def _describe_call(call: Call, state: str, now: float) -> CallUnderWay:
    origin = call.origin
    return CallUnderWay(
        server=process_names.base(call.server),
        method=call.label,
        name=origin.name if origin is not None else "",
        endpoint=origin.endpoint if origin is not None else "",
        age_s=max(0.0, now - call.started),
        state=state,
        client=client_name(origin.said) if origin is not None else "",
        session=origin.who if origin is not None else "",
        progress=origin is not None and origin.progress,
    )


VIEWS_TOLD_MAX = 512
"""Maximum number of views in the figures, each with a hundred bytes every two seconds; views that
are not of one session alone come first."""


class _Sum:
    """Tokens of exactly these entries."""

    __slots__ = ("entries", "tokens")

    def __init__(self, entries: Sequence[ListEntry], tokens: int) -> None:
        self.entries = entries
        self.tokens = tokens


class ListTokens:
    """Tokens of the lists in views. Many views have the same list, and lists rarely change, so a
    sum is kept as long as its list."""

    def __init__(self) -> None:
        self._sums: dict[int, _Sum] = {}

    def stats(
        self, views: Mapping[ViewOwner, View], everything: Mapping[str, MergedCatalog]
    ) -> tuple[ViewStats, ...]:
        """Return the figures of views. `everything`: all that is behind each endpoint."""
        earlier, self._sums = self._sums, {}
        return tuple(
            self._stat(whose, view, everything[whose.endpoint], earlier)
            for whose, view in islice(views.items(), VIEWS_TOLD_MAX)
        )

    def _stat(
        self, whose: ViewOwner, view: View, everything: MergedCatalog, earlier: Mapping[int, _Sum]
    ) -> ViewStats:
        listed = view.merged.lists["tools"]
        return ViewStats(
            whose.endpoint,
            view.spec.exposure,
            whose.principal,
            whose.session,
            view.shown.toolset,
            len(listed),
            self._tokens(listed, earlier),
            len(everything.offered),
            self._tokens(everything.offered, earlier),
        )

    def _tokens(self, entries: Sequence[ListEntry], earlier: Mapping[int, _Sum]) -> int:
        key = id(entries)  # the id stays theirs, as the sum keeps them
        total = self._sums.get(key) or earlier.get(key)
        if total is None:
            total = _Sum(
                entries, builtin_definitions.tokens_of_bytes(sum(map(sent_bytes, entries)))
            )
        self._sums[key] = total
        return total.tokens


UNDER_WAY_MAX = 256
"""Maximum number of timed calls that wait for their answer; further calls are not timed."""
STAGES: tuple[str, ...] = ("front", "pipe", "worker")


class _Times:
    """Times of one call. `to_s`: seconds on the way to the pipe; `sent`: moment of arrival there;
    `total_s`, `own_s`: seconds that the worker had the call, and worked on it itself."""

    __slots__ = ("own_s", "sent", "to_s", "total_s")

    def __init__(self, to_s: float, sent: float) -> None:
        self.to_s = to_s
        self.sent = sent
        self.total_s = 0.0
        self.own_s = 0.0


class Overhead:
    """Own time of the gateway. `armed`: the next call is timed, so the application has to call
    `on_request` for each request. `now`: the clock of calls; `call_soon`: of the loop."""

    def __init__(self, now: Callable[[], float], call_soon: Callable[..., object]) -> None:
        self.armed = False
        self._now = now
        self._call_soon = call_soon
        self._arrived = 0.0
        self._under_way: dict[int, _Times] = {}
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._buckets = {stage: [0] * (len(OVERHEAD_BUCKETS_S) + 1) for stage in STAGES}

    def on_request(self) -> None:
        """Note the arrival of a request that may become the timed call."""
        self._arrived = self._now()

    def time_call(self, call: Call) -> None:
        """Time a call that is in the pipe now, or arm the timing if the next call is the one."""
        self.armed = call.id & MASK == NEXT
        if self.armed or call.wire is None or len(self._under_way) >= UNDER_WAY_MAX:
            return
        now = self._now()
        since = self._arrived if call.started - self._arrived < 1.0 else call.started
        self._under_way[call.id] = _Times(now - since, now)
        call.answer.add_callback(partial(self._on_answer, call))

    def on_worker_notice(self, server: str, notice: bytes) -> None:
        """Take over the notice in which a worker says how long it had a call."""
        timed = unpack(notice)
        times = self._under_way.get(timed.id) if timed is not None else None
        if timed is not None and times is not None:
            times.total_s, times.own_s = timed.total_s, timed.own_s

    def figures(self) -> dict[str, Durations]:
        return {
            stage: Durations(self._seconds[stage], tuple(buckets))
            for stage, buckets in self._buckets.items()
        }

    def _on_answer(self, call: Call, answer: CallAnswer | None) -> None:
        """Finish the times of a call in the next turn of the loop, after the code that waits for
        the answer. The times of a call that was sent again are dropped: it waited for another
        server."""
        times = self._under_way.pop(call.id, None)
        if times is not None and answer is not None and times.total_s and not call.ends:
            self._call_soon(self._observe_times, times, self._now())

    def _observe_times(self, times: _Times, answered: float) -> None:
        self._observe("front", times.to_s + self._now() - answered)
        self._observe("pipe", answered - times.sent - times.total_s)
        self._observe("worker", times.own_s)

    def _observe(self, stage: str, seconds: float) -> None:
        seconds = max(0.0, seconds)
        self._seconds[stage] += seconds
        self._buckets[stage][bisect_left(OVERHEAD_BUCKETS_S, seconds)] += 1
