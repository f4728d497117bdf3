"""Figures of a front: counters of calls, calls under way, tokens of the lists in view.

Owns: the counters and their cumulative figures since the front started (`Stats`), the choice of
calls to show (`shown`), the figures of views (`ListTokens`). Never: rendering figures, adding up
several fronts (the supervisor does both), locks, labels that grow with traffic.

A call costs two look-ups and a few additions. Limits are checked only when a series begins.
"""

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from metamcp_worker.catalog.catalog import ListEntry, MergedCatalog, sent_bytes
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls.request_facts import client_name
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.guard.policies import PolicyNote
from metamcp_worker.ipc import builtin_definitions, codec, process_names
from metamcp_worker.ipc.disclosure import ViewOwner, ViewStats
from metamcp_worker.ipc.messages import BUCKETS_S, CallStats, CallUnderWay, ToolStats

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
