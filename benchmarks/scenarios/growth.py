"""What grows with servers and with sessions: start, status, scrape, reload, idle cost and memory.

Each row of servers is a gateway of its own, and the rows of sessions are one gateway with more and
more of them. All servers are called before each scrape that counts, and fronts and workers have
reported the calls by then.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice, pairwise
from typing import Any

from benchmarks import roles
from benchmarks.figures import Bar, Effort, Row, Sample, Table, most, ratio
from benchmarks.scenarios.sessions import sessions
from benchmarks.scenarios.startup import QUICK
from benchmarks.scraping import Scraper
from benchmarks.turns import in_turns
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway

TITLE = "Growth with servers and with sessions"
SERVERS, SERVERS_QUICK = (1, 20, 100, 300), (1, 3)
SESSIONS, SESSIONS_QUICK = (100, 1_000, 9_990), (10, 40)
"""A gateway keeps 10,000 sessions."""
SERVERS_OF_SESSIONS, SERVERS_OF_SESSIONS_QUICK = 20, 2
LOOKS = 5
REPORTED_S = 2.5
"""Seconds after which fronts and workers have reported all calls, and a page has become old."""
IDLE_S, IDLE_S_QUICK = 10.0, 1.0
READY_S_BAR, STATUS_MS_BAR, SCRAPE_MS_BAR = 15.0, 300.0, 60.0
GROWN = ("start cpu s", "status cpu ms", "scrape cpu ms", "reload cpu ms", "idle ms/s", "MiB")
"""Figures that the clock of the wall has no part in."""
GROWTH_BAR = 1.1
"""From one row to the next, beside the number of servers or sessions: 1 is linear; the rest is for
what else the machine does."""


def measure(effort: Effort) -> Table:
    rows: list[Row] = []
    servers = SERVERS_QUICK if effort.quick else SERVERS
    for count in servers:
        rows += in_turns({f"{count} servers": partial(with_servers, count, effort)}, 1)
    some = effort.of(SERVERS_OF_SESSIONS, SERVERS_OF_SESSIONS_QUICK)
    counts = SESSIONS_QUICK if effort.quick else SESSIONS
    found = with_sessions(some, counts, effort)
    for count in counts:
        rows += in_turns({f"{count} sessions": partial(next, found)}, 1)
    next(found, None)  # the gateway stops
    return Table("growth", TITLE, tuple(rows), tuple(bars(rows)), tuple(said(rows, some)))


def bars(rows: Sequence[Row]) -> list[Bar]:
    most_servers = of_kind(rows, "servers")[-1]
    judged = [
        (f"{most_servers.name} ready", "ready s", READY_S_BAR, "s"),
        (f"{most_servers.name}: ctl status", "status ms", STATUS_MS_BAR, "ms"),
        (f"{most_servers.name}: processor time of a scrape", "scrape cpu ms", SCRAPE_MS_BAR, "ms"),
    ]
    found = [
        most(what, most_servers[figure], limit, unit, absolute=True)
        for what, figure, limit, unit in judged
    ]
    for kind in ("servers", "sessions"):
        growth, _ = fastest(of_kind(rows, kind))
        found.append(most(f"growth with {kind}, beside linear", growth, GROWTH_BAR))
    return found


def said(rows: Sequence[Row], some: int) -> Iterator[str]:
    yield f"Sessions are at a gateway with {some} servers."
    for kind in ("servers", "sessions"):
        growth, what = fastest(of_kind(rows, kind))
        yield f"Fastest growth with {kind}: {what}, {growth:.2f} times linear."


def of_kind(rows: Sequence[Row], kind: str) -> list[Row]:
    return [row for row in rows if row.name.endswith(f" {kind}")]


def fastest(rows: Sequence[Row]) -> tuple[float, str]:
    """The figure that grows most from one row to the next, divided by what the count grows."""
    return max(
        (ratio(after[name], before[name]) * count_of(before) / count_of(after), name)
        for before, after in pairwise(rows)
        for name in GROWN
        if name in before.figures
    )


def count_of(row: Row) -> int:
    return int(row.name.split()[0])


# --- one gateway ----------------------------------------------------------------------------------


def entries(count: int) -> dict[str, dict[str, Any]]:
    return {f"s{number:03}": {"command": QUICK} for number in range(count)}


def with_servers(count: int, effort: Effort) -> Sample:
    begin = time.perf_counter()
    with Gateway(entries(count), wait=False) as gateway:
        gateway.wait_ready()
        ready_s = time.perf_counter() - begin
        started_s = sum(roles.exact_cpu_s(roles.of_gateway(gateway)).values())
        found, wrong = looks(gateway, count, effort)
    return Sample({"ready s": ready_s, "start cpu s": started_s, **found}, wrong)


def with_sessions(servers: int, counts: Sequence[int], effort: Effort) -> Iterator[Sample]:
    """More and more sessions of one gateway, a sample at each of these counts."""
    with Gateway(entries(servers)) as gateway:
        opening = sessions(gateway.port)
        for before, count in pairwise((0, *counts)):
            took_ms = [ms for _, ms in islice(opening, count - before)]
            found, wrong = looks(gateway, servers, effort)
            yield Sample({**found, "open ms": statistics.median(took_ms)}, wrong)


def looks(gateway: Gateway, servers: int, effort: Effort) -> tuple[dict[str, float], int]:
    """Figures of everything that an operator does, and how many calls had a wrong answer. Processor
    time of the supervisor is that of the quietest turn, as every other second it measures all
    processes, too; that of a scrape, which is judged, is the median."""
    pids = roles.of_gateway(gateway)
    times = effort.of(LOOKS, 1)
    supervisor = {"supervisor": pids["supervisor"]}
    first_ms, scrape_ms, wrong = scraped(gateway, servers, supervisor, times)
    idle_s = IDLE_S_QUICK if effort.quick else IDLE_S
    idle_ms = spent_ms(pids, lambda: threading.Event().wait(idle_s))
    status = [looked(gateway, supervisor, "status") for _ in range(times)]
    reloads = [reloaded(gateway, servers, supervisor, turn) for turn in range(times)]
    return {
        "status ms": statistics.median(wall for wall, _ in status),
        "status cpu ms": min(cpu for _, cpu in status),
        "first scrape cpu ms": first_ms,
        "scrape cpu ms": scrape_ms,
        "reload ms": statistics.median(wall for wall, _ in reloads),
        "reload cpu ms": min(cpu for _, cpu in reloads),
        "idle ms/s": idle_ms / idle_s,
        "MiB": sum(roles.pss_mib(roles.of_gateway(gateway)).values()),
    }, wrong


def scraped(
    gateway: Gateway, servers: int, pids: roles.Pids, times: int
) -> tuple[float, float, int]:
    """Milliseconds of processor time of the first scrape and of later ones, and how many calls
    between them had a wrong answer. A page that was there already does not count."""
    pause = threading.Event()
    wrong, costs = 0, list[float]()
    pages: list[bytes] = [b""]
    with closing(Scraper(gateway)) as scraper:
        first_ms = spent_ms(pids, scraper.page)
        while len(costs) < times:
            wrong += called(gateway.port, servers)
            pause.wait(REPORTED_S)
            cost = spent_ms(pids, lambda: pages.append(scraper.page()))
            if pages[-1] != pages[-2]:
                costs.append(cost)
    return first_ms, statistics.median(costs), wrong


def spent_ms(pids: roles.Pids, run: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    before = roles.exact_cpu_s(pids)
    run()
    after = roles.exact_cpu_s(pids)
    return sum(after[role] - used for role, used in before.items()) * 1000


def looked(gateway: Gateway, pids: roles.Pids, *arguments: str) -> tuple[float, float]:
    """Milliseconds of one `metamcp ctl`, and of the processor time that these processes took."""
    begin = time.perf_counter()
    cpu_ms = spent_ms(pids, lambda: gateway.ctl(*arguments))
    return (time.perf_counter() - begin) * 1000, cpu_ms


def reloaded(gateway: Gateway, servers: int, pids: roles.Pids, turn: int) -> tuple[float, float]:
    """The same for a reload that restarts one server, until it is ready."""
    changed = entries(servers)
    first = next(iter(changed))
    changed[first] = {"command": QUICK, "env": {"TURN": str(turn)}}
    gateway.write(changed)
    wall_ms, cpu_ms = looked(gateway, pids, "reload")
    waited_ms, waiting_ms = looked(gateway, pids, "wait", first, "--timeout", "60s")
    return wall_ms + waited_ms, cpu_ms + waiting_ms


def called(port: int, servers: int) -> int:
    """Call the tool of each server; return how many answers were wrong."""
    with closing(Client(port, MODERN)) as client:
        answers = [client.call(f"{name}__nothing") for name in entries(servers)]
    return sum(answer.get("result", {}).get("isError", True) for answer in answers)
