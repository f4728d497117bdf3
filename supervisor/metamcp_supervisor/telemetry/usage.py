"""Memory and processor time of each process of the gateway and of the processes below it.

Owns: measuring, in one pass over the process table, and finding the process that listens on a port.
Never: when to measure, limits, names of metrics. The only file that uses psutil. Calls block for
some milliseconds: run them in a thread, one at a time.
"""

from collections.abc import Collection, Hashable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

import psutil
from msgspec import Struct

from metamcp_supervisor.verbs import ServerProcess

DEPTH_MAX = 64
"""Maximum length of a chain of parents. A process with a longer chain, or with a circle that a
reused pid made, does not count for any root."""
PROCESSES_MAX = 256
"""Maximum number of processes per tree that are examined; a server with more has other problems."""
COMMAND_CHARACTERS_MAX = 1000
"""Maximum characters of each argument of a command."""

K = TypeVar("K", bound=Hashable)


class MeasuredProcess(Struct, frozen=True):
    """Process of the gateway as a root of measuring. `role`: supervisor, nursery, front, worker,
    server, embedder, audit or code; `server`: name of the server, for workers and servers;
    `number`: distinguishes several processes of a role."""

    role: str
    server: str = ""
    number: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """Resources of a root and the processes that count for it. `pid`: of the root; `rss_bytes`:
    resident memory, in which pages shared by forked processes count for each of them; `pss_bytes`:
    the same with each shared page counted in part, None if not measured; `cpu_s`: processor time of
    the processes that run now; `processes`: their number; `threads`: of all of them; `fds`,
    `fds_max`: open descriptors and limit of the process that is nearest to its limit, 0 where the
    system does not tell."""

    pid: int
    rss_bytes: int = 0
    pss_bytes: int | None = None
    cpu_s: float = 0.0
    processes: int = 0
    threads: int = 0
    fds: int = 0
    fds_max: int = 0

    @property
    def held_bytes(self) -> int:
        """Memory that would be free without these processes, as far as known."""
        return self.rss_bytes if self.pss_bytes is None else self.pss_bytes


def sample(roots: Mapping[K, int], closely: Mapping[K, int] | None = None) -> dict[K, Usage]:
    """Measure each root with the processes below it, down to the next root.

    A process below two roots counts for the nearest one, so the sum over all roots is the sum over
    all processes. All processes below a worker belong to its server, also daemons that became
    children of the worker; they count for the server as long as the server has a process of its
    own. A root that does not run is missing in the result. The result is empty if the process table
    cannot be read, as when no descriptor is free: old figures would be taken for new ones.
    `closely`: roots whose shared pages are counted in part if they have more resident memory than
    this number of bytes. For that the kernel walks through all pages of the processes; with less
    memory the difference does not matter.
    """
    owner_of = {pid: key for key, pid in roots.items() if pid > 0}
    table = _table()
    parents: dict[int, int] = {pid: found.info["ppid"] or 0 for pid, found in table.items()}
    heirs = _heirs({key for pid, key in owner_of.items() if pid in table})
    rss_bytes: dict[K, int] = {}
    cpu_s: dict[K, float] = {}
    threads: dict[K, int] = {}
    members: dict[K, list[psutil.Process]] = {}
    for pid, process in table.items():
        root = _root_of(pid, parents, owner_of.keys())
        if root is None:
            continue
        key = owner_of[root]
        if pid != root:
            key = heirs.get(key, key)
        try:
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
                threads[key] = threads.get(key, 0) + process.num_threads()
        except psutil.Error:
            continue  # ended meanwhile, or of another user
        members.setdefault(key, []).append(process)
        rss_bytes[key] = rss_bytes.get(key, 0) + memory.rss
        cpu_s[key] = cpu_s.get(key, 0.0) + times.user + times.system
    above = {key for key, least in (closely or {}).items() if rss_bytes.get(key, 0) > least}
    return {
        key: Usage(
            pid=pid,
            rss_bytes=rss_bytes[key],
            pss_bytes=_pss(members[key]) if key in above else None,
            cpu_s=cpu_s[key],
            processes=len(members[key]),
            threads=threads[key],
            fds=fds[0],
            fds_max=fds[1],
        )
        for pid, key in owner_of.items()
        if pid in table and key in rss_bytes
        for fds in [_descriptors(members[key])]
    }


def _table() -> dict[int, psutil.Process]:
    """Return all processes by process id; empty without a free descriptor, or if /proc is empty."""
    try:
        return {found.pid: found for found in psutil.process_iter(["ppid"])}
    except (OSError, psutil.Error, IndexError):  # IndexError: psutil, of an empty /proc
        return {}


def _heirs(alive: Collection[K]) -> dict[K, K]:
    """Map workers to their servers, for which the processes below the workers count."""
    parts = {key: key for key in alive if isinstance(key, MeasuredProcess)}
    return {
        key: parts[heir]
        for key in parts
        if key.role == "worker"
        and (heir := MeasuredProcess("server", key.server, key.number)) in parts
    }


def _descriptors(processes: list[psutil.Process]) -> tuple[int, int]:
    """Return the number of open descriptors and the limit of the process that is nearest to its
    limit."""
    nearest = 0, 0
    for process in processes[:PROCESSES_MAX]:
        try:
            used, most = process.num_fds(), process.rlimit(psutil.RLIMIT_NOFILE)[0]
        except (OSError, psutil.Error, AttributeError):  # AttributeError: not on every system
            continue
        if most > 0 and used * (nearest[1] or most) >= nearest[0] * most:
            nearest = used, most
    return nearest


def _pss(processes: list[psutil.Process]) -> int | None:
    """Return the proportional set size of these processes in bytes; None if the system does not
    tell, as for processes of another user."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
        except (OSError, psutil.Error, AttributeError):  # AttributeError: other systems than Linux
            return None
    return total


def _root_of(pid: int, parents: Mapping[int, int], roots: AbstractSet[int]) -> int | None:
    """Return the nearest root at or above `pid`, or None."""
    for _ in range(DEPTH_MAX):
        if pid in roots:
            return pid
        above = parents.get(pid, 0)
        if above <= 0:
            return None
        pid = above
    return None


def trees(roots: Collection[int]) -> dict[int, list[ServerProcess]]:
    """Return each root with the processes below it, parents first, without those that ended
    meanwhile."""
    table = _table()
    below: dict[int, list[int]] = {}
    for pid, process in table.items():
        below.setdefault(process.info["ppid"] or 0, []).append(pid)
    found: dict[int, list[ServerProcess]] = {}
    for root in roots:
        waiting, seen = [root], {root}
        found[root] = []
        while waiting and len(seen) <= PROCESSES_MAX:
            pid = waiting.pop(0)
            if pid in table and (one := _measured(table[pid])) is not None:
                found[root].append(one)
            more = [child for child in below.get(pid, ()) if child not in seen]
            seen.update(more)
            waiting += more
    return found


def holder(port: int) -> tuple[int, str] | None:
    """Return process id and name of the process that listens on this TCP port; None if not
    known."""
    try:
        for found in psutil.net_connections("tcp"):
            if found.status != psutil.CONN_LISTEN or not found.laddr or not found.pid:
                continue
            if found.laddr.port == port:
                return found.pid, psutil.Process(found.pid).name()
    except (OSError, psutil.Error):
        return None
    return None


def _measured(process: psutil.Process) -> ServerProcess | None:
    try:
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            command = process.cmdline() or [f"[{process.name()}]"]
            parent = process.ppid()
    except (OSError, psutil.Error):
        return None
    try:
        descriptors = process.num_fds()
    except (OSError, psutil.Error):
        descriptors = None
    return ServerProcess(
        pid=process.pid,
        parent=parent,
        command=tuple(argument[:COMMAND_CHARACTERS_MAX] for argument in command),
        rss_bytes=memory.rss,
        cpu_s=times.user + times.system,
        descriptors=descriptors,
        pss_bytes=_pss([process]) or None,
    )
