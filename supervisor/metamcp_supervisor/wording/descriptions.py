"""Words about one server: facts, processes and exits, as a terminal and a page show them.

Never: the sentence that explains and masking secrets (both by the gateway), printing (`cli`).
"""

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import cast

from metamcp_supervisor.control import explain
from metamcp_supervisor.verbs import Description, ServerProcess
from metamcp_supervisor.wording import columns
from metamcp_worker.confinement import denials
from metamcp_worker.ipc.spec import ConfinementSpec, Profile

COMMAND_CHARACTERS_MAX = 100
"""Maximum characters of a command in the table; `--json` shows all of it."""
EXIT_CHARACTERS_MAX = 120
"""Maximum characters of a message in the table of exits."""
DAY_S = 86_400.0


def facts(description: Description, now: float) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line at the top of the screen."""
    server = description.server
    since = f"since {format_time(description.since, now)} ({columns.span(now - description.since)})"
    yield server.name, f"{server.state}{f'  {since}' if description.since else ''}"
    yield "why", description.why
    row = f"{description.failures} in a row, {explain.within(description)}"
    yield "starts", f"generation {server.generation}, restarts {server.restarts}; failures: {row}"
    yield "protocol", server.protocol or columns.NONE
    cached = ", from cache" if server.from_cache else ""
    tokens = f", about {server.token_cost} tokens" if server.token_cost else ""
    yield (
        "offers",
        (
            f"tools {server.tools}, prompts {server.prompts}, resources {server.resources}"
            f"{tokens}{cached}"
        ),
    )
    if description.drift:
        yield "drift", "; ".join(description.drift)
    for definition in description.left_out:
        yield "left out", definition
    yield "list hash", description.list_hash[:16] or columns.NONE
    yield "calls", f"{server.calls}, errors {server.errors}, in flight {server.inflight}"
    if server.p95_s is not None:
        half, most = columns.latency(server.p50_s), columns.latency(server.p95_s)
        yield "latency", f"half within {half}, 95 % within {most}, in the last five minutes"
    if server.sandbox:
        yield "sandbox", explain.sandbox_text(server)
        for refused in server.refusals:
            yield "refused", explain.refused_text(refused)
        spec = ConfinementSpec(profile=cast("Profile", server.sandbox))
        if advice := denials.advice([line.text for line in description.log], spec):
            yield "refused", f"its log complains: {advice}"
    yield "exposed by", ", ".join(description.endpoints) or "no endpoint"
    if decision := server.decision:
        yield "decided", f"{decision.kind} by {decision.who}, {format_time(decision.when, now)}"
    for each in description.overrides:
        by = f", by {each.who}" if each.who else ""
        yield "set", f"{columns.override_text(each, format_time(each.until, now))}{by}"
    if description.source:
        yield "source", description.source


def processes(server_processes: Sequence[ServerProcess]) -> list[tuple[str, ...]]:
    """Return a row for each process, indented below the process that started it."""
    depths: dict[int, int] = {}
    rows: list[tuple[str, ...]] = []
    for process in _tree_order(server_processes):
        depths[process.pid] = depth = depths.get(process.parent, -1) + 1
        command = columns.cut(shlex.join(process.command), COMMAND_CHARACTERS_MAX)
        rows.append((
            str(process.pid),
            columns.size(process.rss_bytes),
            columns.NONE if process.pss_bytes is None else columns.size(process.pss_bytes),
            f"{process.cpu_s:.1f}s",
            columns.NONE if process.descriptors is None else str(process.descriptors),
            f"{'  ' * depth}{command}",
        ))  # fmt: skip
    return rows


def format_time(seconds: float, now: float) -> str:
    """Return the time of day, with the date if it is more than a day ago."""
    if now - seconds < DAY_S:
        return columns.clock(seconds)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def exits(description: Description, now: float) -> list[tuple[str, ...]]:
    """Return a row for each exit, the newest first."""
    return [
        (
            format_time(ended.time, now),
            str(ended.generation),
            columns.span(ended.ready_s) if ended.ready_s else "never",
            ended.reason or columns.NONE,
            ended.next,
            columns.cut(" ".join(ended.message.split()), EXIT_CHARACTERS_MAX),
        )
        for ended in reversed(description.exits)
    ]


def _tree_order(server_processes: Sequence[ServerProcess]) -> list[ServerProcess]:
    """Return the processes, each below the one that started it."""
    pids = {process.pid for process in server_processes}
    below: dict[int, list[ServerProcess]] = {}
    for process in server_processes:
        below.setdefault(process.parent if process.parent in pids else 0, []).append(process)
    waiting, ordered = below.get(0, [])[::-1], list[ServerProcess]()
    while waiting:
        process = waiting.pop()
        ordered.append(process)
        waiting += below.pop(process.pid, [])[::-1]
    return ordered
