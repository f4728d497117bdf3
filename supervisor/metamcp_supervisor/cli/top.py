"""`metamcp ctl top`: show how much each server uses now.

Owns: rates between two measurements, the order of the rows, and the keys. Never: measuring (the
gateway), terminals (`show`).
"""

import time
from collections.abc import Callable

import click
from msgspec import Struct

from metamcp_supervisor.cli import columns, show
from metamcp_supervisor.cli.ctl import Duration, json_option
from metamcp_supervisor.control import client
from metamcp_supervisor.telemetry.histograms import between, quantile
from metamcp_supervisor.verbs import Footprint, ServerStatus, TopFigures
from metamcp_worker.ipc import codec

EVERY_S = 2.0
ONE_TABLE_S = 1.0
"""Seconds between the two measurements of a single table; rates need two."""
COLUMNS = (
    "SERVER", "STATE", "CALLS/S", "ERRORS/S", "INFL", "P95", "CPU%", "MEM", "FDS", "PROCS",
    "RESTARTS",
)  # fmt: skip
#: Key -> the column by which it sorts; that column gets a mark.
KEYS = {"c": "CPU%", "m": "MEM", "n": "CALLS/S", "e": "ERRORS/S"}


class Use(Struct, frozen=True):
    """Use of a server between two measurements. Rates are 0 until there are two. `p95_s`: of the
    requests that were answered between them, None without any."""

    server: ServerStatus
    footprint: Footprint
    calls_per_s: float = 0.0
    errors_per_s: float = 0.0
    cpu_percent: float = 0.0
    p95_s: float | None = None


_BY: dict[str, Callable[[Use], float]] = {
    "c": lambda use: use.cpu_percent,
    "m": lambda use: use.footprint.rss_bytes,
    "n": lambda use: use.calls_per_s,
    "e": lambda use: use.errors_per_s,
}


@click.command()
@click.option(
    "--sort", type=click.Choice(list(KEYS)), default="c", show_default=True,
    help="By CPU, memory, number of calls or errors; the same keys while it runs.",
)  # fmt: skip
@click.option("--every", "every_s", type=Duration(), metavar="DURATION", help="[2s]")
@json_option
@click.pass_obj
def top(runtime_dir: str | None, sort: str, every_s: float | None, as_json: bool) -> None:
    """Show how much each server uses: live on a terminal (q quits), else in one table."""
    with client.connect(runtime_dir) as gateway:
        if as_json:
            click.echo(gateway.call("top"))
            return

        def look() -> TopFigures:
            return codec.typed(TopFigures, gateway.call("top"))

        if show.on_terminal():
            _live(look, sort, every_s or EVERY_S)
        else:
            before = look()
            time.sleep(min(every_s or ONE_TABLE_S, ONE_TABLE_S))
            show.picture(picture(before, look(), sort))


def uses(before: TopFigures, now: TopFigures) -> list[Use]:
    """Return how much each server of `now` did and used since `before`."""
    passed_s = now.clock - before.clock
    known = {server.name: server for server in before.status.servers}
    found: list[Use] = []
    for server in now.status.servers:
        footprint = now.footprints.get(server.name, Footprint())
        old, old_footprint = known.get(server.name), before.footprints.get(server.name)
        if old is None or passed_s <= 0:
            found.append(Use(server, footprint))
            continue
        # The time of a process ends with it, so after a restart the difference may be negative.
        cpu_s = footprint.cpu_s - old_footprint.cpu_s if old_footprint else 0.0
        found.append(
            Use(
                server,
                footprint,
                calls_per_s=max(0, server.calls - old.calls) / passed_s,
                errors_per_s=max(0, server.errors - old.errors) / passed_s,
                cpu_percent=max(0.0, cpu_s) / passed_s * 100,
                p95_s=_p95_s(before, now, server.name),
            )
        )
    return found


def picture(before: TopFigures, now: TopFigures, sort: str) -> show.Picture:
    """Return the table, with the highest value of the sorted column first."""
    found = sorted(uses(before, now), key=_BY[sort], reverse=True)
    titles = tuple(f"{title}↓" if title == KEYS[sort] else title for title in COLUMNS)
    calls = sum(use.calls_per_s for use in found)
    return show.Picture(
        titles,
        [_row(use) for use in found],
        head=f"{columns.status_head(now.status)}  calls/s {calls:.1f}",
        foot="sort: c CPU, m memory, n calls, e errors; q quits" if show.on_terminal() else "",
        right=frozenset(titles[2:]),
        sentences=False,
        spared=("PROCS", "FDS", "RESTARTS", "INFL", "P95", "ERRORS/S"),
    )


def _p95_s(before: TopFigures, now: TopFigures, server: str) -> float | None:
    known, counts = before.latencies.get(server, ()), now.latencies.get(server, ())
    longest_s = now.longest_s.get(server, 0.0)
    return quantile(between(known, counts), now.bounds_s, 0.95, longest_s)


def _live(look: Callable[[], TopFigures], sort: str, every_s: float) -> None:
    before = now = look()
    taken = time.monotonic()

    def take() -> show.Picture:
        nonlocal before, now, taken
        if time.monotonic() - taken >= every_s:
            before, now, taken = now, look(), time.monotonic()
        return picture(before, now, sort)

    def press(key: str) -> bool:
        nonlocal sort
        sort = key if key in KEYS else sort
        return key == "q"

    show.live(take, every_s, press)


def _row(use: Use) -> tuple[str, ...]:
    server, footprint = use.server, use.footprint
    return (
        server.name,
        server.state,
        f"{use.calls_per_s:.1f}",
        f"{use.errors_per_s:.1f}",
        str(server.inflight),
        columns.latency(use.p95_s),
        f"{use.cpu_percent:.1f}",
        columns.size(footprint.rss_bytes) if footprint.rss_bytes else columns.NONE,
        str(footprint.descriptors) if footprint.processes else columns.NONE,
        str(footprint.processes) if footprint.processes else columns.NONE,
        str(server.restarts),
    )
