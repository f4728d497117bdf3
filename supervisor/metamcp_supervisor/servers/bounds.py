"""The limits of servers put in force: by the kernel where it can, by looking where it cannot.

Owns: the leaf of each copy and its end, the records about what copies use, what the journal says of
limits that nobody enforces. Never: the rules (`limits`), the files of the kernel (`cgroups`),
stopping anything (`gauges`, `crew`).
"""

from collections.abc import Collection
from pathlib import Path
from signal import SIGKILL

from metamcp_supervisor.processes.cgroups import Around, Cgroups, unenforced
from metamcp_supervisor.processes.limits import Limiter, crowded_out, limits_of
from metamcp_supervisor.servers.entry import Copy, Entry
from metamcp_supervisor.telemetry.journal import Journal


class Bounds:
    """`cgroups`: None where no subtree is ours; `around`: the group of the gateway itself."""

    def __init__(
        self, cgroups: Cgroups | None, journal: Journal, around: Around | None = None
    ) -> None:
        self._around = around
        self._kills = self._kills_at_last_look = 0 if around is None else around.kills()
        self.limiter = Limiter()
        self._cgroups = cgroups
        self._journal = journal

    def adopt(self, kept: Collection[Path] = ()) -> None:
        """Before anything is forked. `kept`: leaves that are in use."""
        try:
            if self._cgroups is not None:
                self._cgroups.adopt(kept)
        except OSError as error:
            self._cgroups = None
            self._journal.add("gateway", "note", f"no control groups: {error.strerror}")

    def draw(self, copy: Copy) -> None:
        """Make the leaf of a copy that is about to start."""
        server = copy.entry.server
        limits = limits_of(server)
        if not limits.any:
            return
        if missing := unenforced(limits, self._cgroups):
            self._journal.add(server.name, "note", missing, copy.generation)
        if self._cgroups is None or not server.command:
            return
        try:
            copy.leaf = self._cgroups.leaf(server.name, copy.generation, limits)
        except OSError as error:
            why = f"it has no control group: {error.strerror}"
            self._journal.add(server.name, "note", why, copy.generation)

    def redraw(self, entry: Entry) -> None:
        """Its limits may be others now."""
        for copy in entry.copies:
            try:
                if copy.leaf is not None:
                    copy.leaf.limit(limits_of(entry.server))
            except OSError as error:
                why = f"the new limits are not in force: {error.strerror}"
                self._journal.add(entry.name, "note", why, copy.generation)

    def erase(self, copy: Copy) -> None:
        """Nothing of it is to be left."""
        if copy.leaf is not None:
            copy.leaf.kill()
            copy.leaf.remove()

    def crowded_out(self, signal: int) -> str:
        """Did the kernel end a process that has no group of its own, because that of the gateway
        was full? In words, or nothing. Each kill that the kernel counted lately is that of one
        process."""
        if signal != SIGKILL or self._around is None or (now := self._around.memory()) is None:
            return ""
        if now.kills <= self._kills:
            return ""
        self._kills += 1
        return crowded_out(now.used_bytes, now.limit_bytes)

    def look(self) -> None:
        """Every two seconds: kills before the last look ended processes below servers."""
        if self._around is not None:
            self._kills = max(self._kills, self._kills_at_last_look)
            self._kills_at_last_look = self._around.kills()

    def out_of_memory(self, copy: Copy, signal: int) -> str:
        """Did the kernel end it for want of memory? A sentence, or nothing. `signal`: of its end,
        which nobody here brought about."""
        return self.limiter.out_of_memory(
            copy.entry.name,
            limits_of(copy.entry.server),
            generation=copy.generation,
            signal=signal,
            oom_kills=copy.leaf.oom_kills() if copy.leaf is not None else 0,
        )
