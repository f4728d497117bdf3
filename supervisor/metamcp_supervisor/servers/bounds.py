"""Enforcement of the limits of servers: by the kernel where possible, else from samples.

Owns: making and removing the control group (leaf) of each copy, the records of what copies use, the
journal's notes about limits that are not enforced. Never: the rules (`limits`), the files of the
kernel (`cgroups`), stopping anything (`gauges`, `server_copies`).
"""

from collections.abc import Callable, Collection
from pathlib import Path
from signal import SIGKILL

from metamcp_supervisor.processes.cgroups import Cgroups, MemoryCgroup, find_unenforced_limit
from metamcp_supervisor.processes.limits import Limiter, crowded_out, limits_of
from metamcp_supervisor.servers.entry import Copy, ServerEntry
from metamcp_supervisor.servers.specs import PrivatePlaces
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.runtime import logs


class LimitEnforcer:
    """`cgroups`: None if the gateway has no subtree of control groups; `around`: the group of the
    gateway itself; `private`: returns where confined servers have their folders, None for no
    confinement."""

    def __init__(
        self,
        cgroups: Cgroups | None,
        journal: Journal,
        around: MemoryCgroup | None = None,
        private: Callable[[], PrivatePlaces | None] = lambda: None,
    ) -> None:
        self.private = private
        self._around = around
        self._kills = self._kills_at_last_look = 0 if around is None else around.kills()
        self.limiter = Limiter()
        self._cgroups = cgroups
        self._journal = journal

    def adopt(self, leaves: Collection[Path] = ()) -> None:
        """Prepare the control groups, before the first fork. `leaves`: those in use."""
        try:
            if self._cgroups is not None:
                self._cgroups.adopt(leaves)
        except OSError as error:
            self._cgroups = None
            self._journal.add("gateway", "note", f"no control groups: {error.strerror}")

    def create_cgroup(self, copy: Copy) -> None:
        """Make the leaf of a copy that is about to start."""
        server = copy.entry.server
        limits = limits_of(server)
        if not limits.any:
            return
        if missing := find_unenforced_limit(limits, self._cgroups):
            self._journal.add(server.name, "note", missing, copy.generation)
        if self._cgroups is None or not server.command:
            return
        try:
            copy.leaf = self._cgroups.leaf(server.name, copy.generation, limits)
        except OSError as error:
            problem = f"it has no control group: {error.strerror}"
            self._journal.add(server.name, "note", problem, copy.generation)

    def redraw(self, entry: ServerEntry) -> None:
        """Put the current limits of a server in force for its copies."""
        limits = limits_of(entry.server)
        for copy in entry.copies:
            try:
                if copy.leaf is not None:
                    copy.leaf.limit(limits)
                if copy.instance is not None:
                    copy.instance.tune(logs.current(), limits.processes_max or 0)
            except (OSError, TooLarge) as error:
                cause = error.strerror if isinstance(error, OSError) else error
                problem = f"the new limits are not in force: {cause}"
                self._journal.add(entry.name, "note", problem, copy.generation)

    def erase(self, copy: Copy) -> None:
        """Kill the processes that are left in the leaf of a copy, and remove the leaf."""
        if copy.leaf is not None:
            copy.leaf.kill()
            copy.leaf.remove()

    def crowded_out(self, signal: int) -> str:
        """Return words if the kernel killed a process without a group of its own because the
        gateway's group was out of memory, else "". Each kill that the kernel counted lately
        explains the end of one process."""
        if signal != SIGKILL or self._around is None or (now := self._around.memory()) is None:
            return ""
        if now.kills <= self._kills:
            return ""
        self._kills += 1
        return crowded_out(now.used_bytes, now.limit_bytes)

    def look(self) -> None:
        """Forget unexplained kills from before the last look, which ended processes below servers.
        Call this every two seconds."""
        if self._around is not None:
            self._kills = max(self._kills, self._kills_at_last_look)
            self._kills_at_last_look = self._around.kills()

    def out_of_memory(self, copy: Copy, signal: int) -> str:
        """Return a sentence if the kernel killed a copy for lack of memory, else "". `signal`: the
        signal that ended the copy; call this only if the gateway did not send it."""
        return self.limiter.out_of_memory(
            copy.entry.name,
            limits_of(copy.entry.server),
            generation=copy.generation,
            signal=signal,
            oom_kills=copy.leaf.oom_kills() if copy.leaf is not None else 0,
        )
