"""What it costs that calls are counted: one scrape of many tools, and calls with and without it.

A scrape has to add up what fronts told if they told anything since the one before it, which they do
every other second: to a scraper with its usual interval that is every time, so that `with news` is
judged. Here one asks as often as there is a new page, and the other scrapes are `nothing new`.

`uncounted` is a gateway out of which counting is taken (`benchmarks/uncounted`), called in turns
with one as it is (`counted`), whose page is asked for every second. In the end it is looked at that
the one has counted nothing and the other did.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

from benchmarks import figures, load, rigs, roles, scraping
from benchmarks.child import SAID
from benchmarks.figures import Bar, Compared, Effort, Row, Sample, Table, compared, least, most
from benchmarks.load import Speech
from benchmarks.scraping import FORMS, Scraper
from benchmarks.turns import in_turns
from metamcp_supervisor.telemetry.admin import CACHE_S
from tests.live.gateway import Gateway
from tests.waiting import until

TITLE = "Counting calls: a scrape of 20 servers with 2,080 tools, and calls without counting"
SERVERS, TOOLS = 20, 104
SCRAPES, SCRAPES_QUICK = 200, 4
"""At least, and one of each row."""
PAUSE_S = CACHE_S / 2 + 0.005
"""Before each: about then there is another page, in one of its two forms."""
CALLERS = (16, 64)
ROUNDS = 7
"""Of half the usual length, so that what the machine does meanwhile hits both gateways."""
SCRAPED_EVERY_S = 1.0
NEWS, NO_NEWS = "a scrape with news", "a scrape, nothing new"
CALLED = "metamcp_tool_calls_total"
COUNTS = (
    CALLED,
    "mcp_server_operation_duration_seconds_count",
    "mcp_client_operation_duration_seconds_count",
    "metamcp_overhead_seconds_count",
)
"""What grows with every call, or with some of them."""
SCRAPE_MS_BAR, CALLS_BAR = 25.0, 0.97


def measure(effort: Effort) -> Table:
    scrapes, said = scraped(effort)
    rows = [*scrapes, *called(effort)]
    return Table("counting", TITLE, tuple(rows), tuple(bars(rows)), (said, beside(rows)))


def bars(rows: list[Row]) -> list[Bar]:
    found = {row.name: row for row in rows}
    scrape_ms = found[NEWS]["cpu ms"]
    what = "processor time of a scrape"
    return [
        most(what, scrape_ms, SCRAPE_MS_BAR, "ms", absolute=True),
        *(
            least(f"calls/s with counting beside without, at {callers} callers", share, CALLS_BAR)
            for callers, share in shares(rows).items()
        ),
    ]


def shares(rows: list[Row]) -> dict[int, Compared]:
    """By callers: what counting and scraping leave of the calls/s."""
    found = {row.name: row for row in rows}
    return {
        callers: compared(found[f"counted {callers}"], found[f"uncounted {callers}"], "calls/s")
        for callers in CALLERS
    }


def beside(rows: list[Row]) -> str:
    """The processor time of a call, which says more than rates where the machine is not quiet."""
    found = {row.name: row for row in rows}
    parts: list[str] = []
    for callers in CALLERS:
        name = "cpu us/call"
        on, off = (found[f"{kind} {callers}"] for kind in ("counted", "uncounted"))
        parts.append(f"{on[name] - off[name]:+.2f} us at {callers}")
    return f"Processor time of a call with counting, beside without: {', '.join(parts)} callers."


# --- the page -------------------------------------------------------------------------------------


def scraped(effort: Effort) -> tuple[list[Row], str]:
    """Rows, and a sentence on the page."""
    servers = rigs.children(effort.of(SERVERS, 2), "--tools", str(TOOLS - len(SAID)))
    tools = [*SAID, *(f"t{number:03}" for number in range(TOOLS - len(SAID)))]
    names = [f"{server}__{tool}" for server in servers for tool in tools]
    found: dict[str, list[Sample]] = {NEWS: [], NO_NEWS: []}
    with Gateway(servers) as gateway, closing(Scraper(gateway)) as scraper:
        pids = roles.of_gateway(gateway)
        said = rigs.every(gateway, names)
        with closing(Calls(gateway.port)) as calls:
            for one in said:
                calls.call(one)
            until(lambda: _rows(scraper.page(), CALLED) == len(names), "every tool has its series")
            enough = effort.of(SCRAPES, SCRAPES_QUICK)
            for name, sample in _scrapes(scraper, pids, lambda: calls.call(said[0])):
                found[name].append(sample)
                if sum(map(len, found.values())) >= enough and all(found.values()):
                    break
        page = scraper.page()
    rows = [figures.row(name, samples) for name, samples in found.items()]
    rows[0] = replace(rows[0], wrong=calls.wrong)
    return rows, on_page(len(names), page, {row.name: row.rounds for row in rows})


def on_page(tools: int, page: bytes, asked: Mapping[str, int]) -> str:
    size = f"{scraping.series(page):,} series in {len(page) / 1024:,.0f} KiB"
    times = " and ".join(f"{count} times for {name}" for name, count in asked.items())
    return f"After a call of each of {tools:,} tools the page has {size}. Asked {times}."


def _scrapes(
    scraper: Scraper, pids: roles.Pids, call: Callable[[], None]
) -> Iterator[tuple[str, Sample]]:
    """Without end: which row it belongs to, and what it cost. By the call before each it is seen
    whether there is news on the page. A page that was there already is none: on a new one at least
    the ages of heartbeats are others."""
    pace = threading.Event()
    last = {form: scraper.page(form) for form in FORMS}
    known = scraping.total(last[FORMS[-1]], CALLED)
    while True:
        for form in FORMS:
            call()
            pace.wait(PAUSE_S)
            before = roles.exact_cpu_s(pids)
            begin = time.perf_counter()
            page = scraper.page(form)
            took_ms = (time.perf_counter() - begin) * 1000
            after = roles.exact_cpu_s(pids)
            if page == last[form]:
                continue
            spent = {f"{role} ms": (after[role] - used) * 1000 for role, used in before.items()}
            calls = scraping.total(page, CALLED)
            whole = sum(spent.values())
            yield (
                NEWS if calls > known else NO_NEWS,
                Sample({"cpu ms": whole, **spent, "answer ms": took_ms}),
            )
            last[form], known = page, calls


def _rows(page: bytes, name: str) -> int:
    return sum(1 for line in page.splitlines() if line.startswith(f"{name}{{".encode()))


class Calls:
    """One call after the other, over one connection."""

    def __init__(self, port: int) -> None:
        self.wrong = 0
        self._answer = load.Answer()
        self._number = 0
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=load.ANSWER_S_MAX)

    def call(self, said: Speech) -> None:
        self._number += 1
        text = b"T%dT" % self._number
        self._sock.sendall(said.request(self._number, text))
        while (whole := self._answer.take(self._sock.recv(load.READ_BYTES))) is None:
            pass
        self.wrong += text not in whole or said.proof not in whole

    def close(self) -> None:
        self._sock.close()


# --- calls ----------------------------------------------------------------------------------------


def called(effort: Effort) -> list[Row]:
    servers = {rigs.NAME: rigs.child()}
    with rigs.pure(Gateway(servers)) as counted, rigs.uncounted(servers) as uncounted:
        gateways = {"counted": counted, "uncounted": uncounted}
        pids = {name: roles.of_gateway(gateway) for name, gateway in gateways.items()}
        said = {name: [rigs.legacy(gateway)] for name, gateway in gateways.items()}

        def sample(name: str, callers: int) -> Sample:
            port = gateways[name].port
            return roles.spent(
                pids[name],
                lambda: load.call(port, said[name], callers, effort.seconds / 2),
            ).sample()

        def while_scraped(callers: int) -> Sample:
            with scraping.scraped(counted, SCRAPED_EVERY_S):
                return sample("counted", callers)

        turns: dict[str, Callable[[], Sample]] = {}
        for callers in CALLERS:
            turns[f"counted {callers}"] = partial(while_scraped, callers)
            turns[f"uncounted {callers}"] = partial(sample, "uncounted", callers)
        rows = list(in_turns(turns, effort.of(ROUNDS, 1)))
        with closing(Scraper(counted)) as scraper:
            until(lambda: all(counts(scraper.page()).values()), "the one gateway has counted")
        told = last_counts(uncounted)
        assert not any(told.values()), f"the gateway that is to count nothing has counted {told}"
    return rows


def last_counts(gateway: Gateway) -> dict[str, float]:
    """After a report of the front that came after all calls: it knows of one more session."""
    with closing(Scraper(gateway)) as scraper:
        sessions = scraping.total(scraper.page(), "metamcp_sessions")
        rigs.legacy(gateway)
        until(
            lambda: scraping.total(scraper.page(), "metamcp_sessions") > sessions,
            "the front has told of a new session",
        )
        return counts(scraper.page())


def counts(page: bytes) -> dict[str, float]:
    return {name: scraping.total(page, name) for name in COUNTS}
