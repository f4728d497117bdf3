"""Resources of processes, added up over processes that come and go.

Owns: memory and descriptors of now, processor time so far, by role and server. Never: measuring
(`usage`), names of metrics (`metric_names`).
"""

from collections.abc import Callable, Iterable, Mapping

from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_worker.ipc import process_names

Key = tuple[str, str]
"""Role and server."""


class ProcessUsage:
    """Memory now and processor time so far, by role and server, over processes that come and go."""

    def __init__(self) -> None:
        self._last: dict[MeasuredProcess, Usage] = {}
        self._cpu_s: dict[Key, float] = {}

    def sampled(self, usages: Mapping[MeasuredProcess, Usage]) -> None:
        """Note the newest measurement of all processes; a process that is missing has ended.
        Processes are compared by process id, because numbers change when a spare takes the place of
        another copy."""
        usages = {_of_server(part): used for part, used in usages.items()}
        before_s = {
            (part.role, part.server, one.pid): one.cpu_s for part, one in self._last.items()
        }
        for part, now in usages.items():
            key = (part.role, part.server)
            # Child processes come and go, so the time of a tree may fall. The sum must not.
            used_s = max(0.0, now.cpu_s - before_s.get((*key, now.pid), 0.0))
            self._cpu_s[key] = self._cpu_s.get(key, 0.0) + used_s
        self._last = usages

    def last(self) -> Mapping[MeasuredProcess, Usage]:
        """Return the newest measurement."""
        return self._last

    def go_on(
        self, cpu_s: Mapping[Key, float], last: Iterable[tuple[MeasuredProcess, Usage]]
    ) -> None:
        """Continue with the figures of the previous program."""
        self._cpu_s, self._last = dict(cpu_s), dict(last)

    def forget(self, server: str) -> None:
        for key in [key for key in self._cpu_s if key[1] == server]:
            del self._cpu_s[key]

    def rss_bytes(self) -> dict[Key, int]:
        return self._sums(lambda now: now.rss_bytes)

    def threads(self) -> dict[Key, int]:
        return self._sums(lambda now: now.threads)

    def descriptors(self) -> dict[Key, tuple[int, int]]:
        """Return the number of open descriptors and the limit of the process that is nearest to its
        limit."""
        found: dict[Key, tuple[int, int]] = {}
        for part, now in self._last.items():
            key = (part.role, part.server)
            if now.fds_max and now.fds / now.fds_max >= _share(found.get(key)):
                found[key] = now.fds, now.fds_max
        return found

    def cpu_s(self) -> Mapping[Key, float]:
        return self._cpu_s

    def _sums(self, of: Callable[[Usage], int]) -> dict[Key, int]:
        total: dict[Key, int] = {}
        for part, now in self._last.items():
            key = (part.role, part.server)
            total[key] = total.get(key, 0) + of(now)
        return total


def _of_server(part: MeasuredProcess) -> MeasuredProcess:
    """Return a process for a single client, or for clients with a session, as one of several
    processes of its server. The word for the client has 48 bits, which leaves room for the number
    of a copy."""
    who = process_names.whose(part.server)
    if not who:
        return part
    word = int.from_bytes(who.encode()) if who == process_names.LEGACY else int(who, 16)
    return MeasuredProcess(part.role, process_names.base(part.server), (word << 12) + part.number)


def _share(found: tuple[int, int] | None) -> float:
    return found[0] / found[1] if found is not None else 0.0
