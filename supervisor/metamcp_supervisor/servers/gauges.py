"""Periodic measurement of all processes, and the verdicts about servers with limits.

Owns: the ticker, the latest figures, carrying out a verdict about a server. Never: measuring
(`usage`), the verdict (`limits`), restarting a server (`server_io`).
"""

import asyncio
from collections.abc import Mapping

from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.processes import limits
from metamcp_supervisor.processes.generations import Nurseries
from metamcp_supervisor.processes.limits import Fate, Sample, limits_of
from metamcp_supervisor.servers import status
from metamcp_supervisor.servers.entry import Copy
from metamcp_supervisor.servers.scrape import Single
from metamcp_supervisor.servers.server_io import Tree
from metamcp_supervisor.servers.states import ExitClass
from metamcp_supervisor.telemetry import usage
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage

USAGE_S = 2.0
"""Seconds between two measurements of memory and processor time."""

UNMEASURED = (
    "/proc shows no process of the gateway, or no descriptor is free to read it: memory and"
    " processor time are not known, and limits that the kernel does not keep are not kept"
)
MEASURED = "/proc shows the processes of the gateway again"


class Gauges:
    """`usages`: the latest figures."""

    def __init__(
        self,
        tree: Tree,
        metrics: Metrics,
        journal: Journal,
        fronts: Fronts,
        nursery: Nurseries,
        roles: Mapping[str, Single],
    ) -> None:
        self.usages: Mapping[MeasuredProcess, Usage] = {}
        self._tree = tree
        self._metrics = metrics
        self._journal = journal
        self._fronts = fronts
        self._nursery = nursery
        self._roles = roles
        self._measured = True
        self._known = usage.Known()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001 - the root of a task, on which limits depend
                self._journal.add("gateway", "bug", f"nothing was measured: {error!r}")
            await asyncio.sleep(USAGE_S - self._loop.time() % USAGE_S)

    async def _look(self) -> None:
        entries = self._tree.entries
        roots = status.roots(entries, self._fronts.slots, self._nursery.pid, self._roles)
        servers = {name: entry.server for name, entry in entries.items()}
        closely = limits.closely(roots, servers)
        self.usages = await asyncio.to_thread(usage.sample, roots, closely, self._known)
        self._seen(bool(self.usages))
        self._metrics.usage(self.usages)
        self._metrics.remember(self._loop.time())
        self._tree.bounds.look()
        self._judge()

    def _seen(self, yes: bool) -> None:
        """Note whether anything could be measured; write to the journal when that changes."""
        if yes != self._measured:
            self._measured = yes
            self._journal.add("gateway", "note", MEASURED if yes else UNMEASURED)

    def _judge(self) -> None:
        now = self._loop.time()
        every = {name: limits_of(entry.server) for name, entry in self._tree.entries.items()}
        bounds = {name: bound for name, bound in every.items() if bound.any}
        copies = {
            (name, copy.generation): copy
            for name in bounds
            for copy in self._tree.entries[name].copies
        }
        samples = [found for copy in copies.values() if (found := self._sample(copy, now))]
        for sample, verdict in self._tree.bounds.limiter.look(samples, bounds, now):
            copy = copies[sample.server, sample.generation]
            if verdict.fate is Fate.KILL:
                self._tree.crew.condemn(copy, ExitClass.LIMIT, verdict.why)
            else:
                self._tree.recycle(sample.server, verdict.why)

    def _sample(self, copy: Copy, now: float) -> Sample | None:
        instance, server = copy.instance, copy.entry.server
        if instance is None or instance.reported:
            return None
        part = limits.part_of(server, status.number_of(copy))
        return limits.sample(
            server.name,
            self.usages.get(part),
            pid=instance.server_pid if part.role == "server" else instance.pid,
            generation=copy.generation,
            at=now,
            leaf_bytes=copy.leaf.memory_bytes() if copy.leaf is not None else None,
            serving=copy is copy.entry.serving and not copy.stopping,
        )
