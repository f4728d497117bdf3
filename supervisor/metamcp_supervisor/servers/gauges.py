"""Periodic measurement of all processes, and the verdicts about servers with limits.

Owns: the ticker, the latest figures, carrying out a verdict about a server. Never: measuring
(`usage`), the verdict (`limits`), restarting a server (`server_io`).
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping

from metamcp_supervisor.config import sandboxes
from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.processes import limits
from metamcp_supervisor.processes.generations import Nurseries
from metamcp_supervisor.processes.limits import DiskUse, LimitAction, Sample, limits_of
from metamcp_supervisor.servers import status
from metamcp_supervisor.servers.entry import Copy
from metamcp_supervisor.servers.scrape import SingletonProcess
from metamcp_supervisor.servers.server_io import ServerManager
from metamcp_supervisor.servers.states import ExitClass
from metamcp_supervisor.telemetry import usage
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.spec import TEMPORARY

_Key = tuple[str, int]
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
        manager: ServerManager,
        metrics: Metrics,
        journal: Journal,
        fronts: Fronts,
        nursery: Nurseries,
        roles: Mapping[str, SingletonProcess],
    ) -> None:
        self.usages: Mapping[MeasuredProcess, Usage] = {}
        self._manager = manager
        self._metrics = metrics
        self._journal = journal
        self._fronts = fronts
        self._nursery = nursery
        self._roles = roles
        self._measured = True
        self._known = usage.KnownProcesses()
        self._folders = usage.FolderSizes()
        self._disks: dict[_Key, DiskUse] = {}
        """Use of the disk by each confined copy, by name and generation."""
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001 - the root of a task, on which limits depend
                self._journal.add("gateway", "bug", f"nothing was measured: {error!r}")
            await asyncio.sleep(USAGE_S - self._loop.time() % USAGE_S)

    async def _look(self) -> None:
        entries = self._manager.entries
        roots = status.roots(entries, self._fronts.slots, self._nursery.pid, self._roles)
        servers = {name: entry.server for name, entry in entries.items()}
        closely = limits.closely(roots, servers)
        self.usages = await asyncio.to_thread(usage.sample, roots, closely, self._known)
        await asyncio.to_thread(self._known.share_pages, self._loop.time())
        if folders := self._own_folders():
            self._disks = await asyncio.to_thread(self._disk_uses, folders)
        self._note_measurable(bool(self.usages))
        self._metrics.usage(self.usages)
        self._metrics.remember(self._loop.time())
        self._manager.bounds.look()
        self._judge()

    def _own_folders(self) -> dict[_Key, tuple[str, str]]:
        """Return the folder of each confined copy, and the link to that of its temporary files."""
        private = self._manager.bounds.private()
        folders: dict[_Key, tuple[str, str]] = {}
        if private is None:
            return folders
        for name, entry in self._manager.entries.items():
            if entry.server.command and sandboxes.profile(entry.server) != "none":
                folder = private.folder / process_names.base(name)
                for copy in entry.copies:
                    if copy.instance is not None:
                        link = folder / TEMPORARY / str(copy.instance.server_pid)
                        folders[name, copy.generation] = str(folder), str(link)
        return folders

    def _disk_uses(self, folders: dict[_Key, tuple[str, str]]) -> dict[_Key, DiskUse]:
        """Measure the folders of all copies. Blocks."""
        uses: dict[_Key, DiskUse] = {}
        looked: set[str] = set()
        for key, (folder, link) in folders.items():
            with contextlib.suppress(OSError):
                own = folder, os.readlink(link)
                looked.update(own)
                sizes = {each: self._folders.size(each) for each in own}
                total_bytes = sum(sizes.values())
                if (before := self._disks.get(key)) is None:
                    limit = limits.disk_limit(total_bytes, min(map(_free_bytes, own)))
                else:
                    limit = before.limit
                uses[key] = DiskUse(total_bytes, max(own, key=sizes.__getitem__), limit)
        self._folders.forget(looked)
        return uses

    def _note_measurable(self, yes: bool) -> None:
        """Note whether anything could be measured; write to the journal when that changes."""
        if yes != self._measured:
            self._measured = yes
            self._journal.add("gateway", "note", MEASURED if yes else UNMEASURED)

    def _judge(self) -> None:
        now = self._loop.time()
        every = {name: limits_of(entry.server) for name, entry in self._manager.entries.items()}
        bounds = {name: bound for name, bound in every.items() if bound.any}
        copies = {
            (name, copy.generation): copy
            for name in bounds
            for copy in self._manager.entries[name].copies
        }
        samples = [measured for copy in copies.values() if (measured := self._sample(copy, now))]
        for sample, verdict in self._manager.bounds.limiter.look(samples, bounds, now):
            copy = copies[sample.server, sample.generation]
            if verdict.fate is LimitAction.KILL:
                self._manager.copies.condemn(copy, ExitClass.LIMIT, verdict.why)
            else:
                self._manager.recycle(sample.server, verdict.why)

    def _sample(self, copy: Copy, now: float) -> Sample | None:
        instance, server = copy.instance, copy.entry.server
        if instance is None or instance.reported:
            return None
        process = limits.part_of(server, status.number_of(copy))
        return limits.sample(
            server.name,
            self.usages.get(process),
            pid=instance.server_pid if process.role == "server" else instance.pid,
            generation=copy.generation,
            at=now,
            leaf_bytes=copy.leaf.memory_bytes() if copy.leaf is not None else None,
            serving=copy is copy.entry.serving and not copy.stopping,
            disk=self._disks.get((server.name, copy.generation)),
        )


def _free_bytes(folder: str) -> int:
    """Return the free bytes of the disk that a folder is on. Raises OSError."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
