"""What is looked at while a soak runs: metrics that must parse and never go down, and the figures
of the gateway's own processes.

Owns: scraping, comparing counters, descriptors, threads, memory and processes by role. Never: load,
faults, how long anything is waited for at the end (`soak`).
"""

import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from metamcp_supervisor.verbs import GatewayStatus
from tests.faults.soak_clients import Field
from tests.faults.soak_gateway import GUEST, Soaked
from tests.live import processes

SCRAPE_S = 2.0
GROWING = frozenset({"counter", "histogram"})
MEMORY = {"nursery": "Anonymous"}
"""Fields of smaps_rollup. Of the nursery all its pages count in full: its share of those that are
shared with its forks is more as soon as a fork writes to its own copy."""
PROBLEMS_MAX = 10

Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the gateway's own processes. `by_role`: role -> (processes, descriptors, threads, bytes of
    memory), each the sum; `below`: processes below the supervisor, servers included.

    Memory without the files that are mapped: a share of those is more as soon as any other program
    on this machine that has them as well, another test for example, ends."""

    by_role: dict[str, tuple[int, int, int, int]]
    below: int


def figures(status: GatewayStatus) -> Figures:
    """Raises OSError when one of them has just ended."""
    pids = {
        "supervisor": [status.pid],
        "nursery": [status.nursery_pid],
        "fronts": [front.pid for front in status.fronts],
        "workers": [pid for server in status.servers for pid in server.worker_pids],
    }
    by_role: dict[str, tuple[int, int, int, int]] = {}
    for role, ones in pids.items():
        by_role[role] = (
            len(ones),
            sum(processes.descriptors(pid) for pid in ones),
            sum(len(os.listdir(f"/proc/{pid}/task")) for pid in ones),
            sum(processes.memory(pid, MEMORY.get(role, "Pss_Anon")) for pid in ones),
        )
    return Figures(by_role, len(processes.below(status.pid)))


class Metrics:
    """Scrapes again and again. `scrapes`: how often it had a page."""

    def __init__(self, gateway: Soaked) -> None:
        self._gateway = gateway
        self._last: dict[Series, float] = {}
        self.scrapes = 0
        self.slowest_s = 0.0
        self.problems: list[str] = []

    async def run(self, field: Field) -> None:
        while not await field.pause(SCRAPE_S):
            await self.scrape()

    async def scrape(self) -> None:
        begun = time.monotonic()
        status, page = await asyncio.to_thread(self._gateway.ops, "/metrics")
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        if status != 200:
            self._tell(f"/metrics was answered with {status}: {page[:200]}")
            return
        try:
            found = growing(page)
        except ValueError as error:
            self._tell(f"/metrics could not be parsed: {error}")
            return
        self.scrapes += 1
        for series, value in found.items():
            before = self._last.get(series, 0.0)
            if value < before and ("server", GUEST) not in series[1]:
                self._tell(f"{series[0]}{dict(series[1])} went down from {before} to {value}")
        self._last = found

    def _tell(self, sentence: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(sentence)


def growing(page: str) -> dict[Series, float]:
    """Every sample that may only grow. Raises ValueError."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        if family.type in GROWING
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def bugs(log: Path) -> list[str]:
    """What the journal calls a fault of our own, and what was never to be in it at all."""
    found: list[str] = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            if event.get("what") == "bug":
                found.append(f"{event.get('who')}: {event.get('cause')}")
            elif "error" in event:  # a process of ours has a traceback to show
                found.append(f"{event['room']}: {event['message']}: {event['error'][-500:]}")
        elif "Traceback" in line or "Error" in line:
            found.append(line)
    return found[:PROBLEMS_MAX]
