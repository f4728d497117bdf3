"""Memory and processor time of each process of the gateway and of the processes below it, and sizes
of folders.

Owns: measuring, in one pass from the gateway's processes down, and finding the process that listens
on a port. Never: when to measure, limits, names of metrics. The only file that uses psutil. Calls
block for some milliseconds: run them in a thread, one at a time.

On Linux a pass reads a few files of each process and follows the kernel's lists of children. So
processes of others cost nothing, however many there are. A process with the same line of figures as
in the pass before did nothing; only every fifth pass reads its other files again, or each pass if
its memory has a limit. Elsewhere psutil, loaded when it is used, reads the table of all processes.
"""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from heapq import nsmallest
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from metamcp_supervisor.verbs import ServerProcess

PROCESSES_MAX = 256
"""Maximum number of processes per tree that are examined; a server with more has other problems."""
COMMAND_CHARACTERS_MAX = 1000
"""Maximum characters of each argument of a command."""
WHOLE_LOOKS = 5
"""Number of looks; one of them reads all files of processes that do nothing."""
SHARES_MAX = 16
"""Maximum number of processes in a look whose share of pages is read: a millisecond for each."""
SHARE_S = 60.0
"""Seconds for which a share is used, until it is read again when it is its turn."""
FOLDER_REST = 50
"""Time from one measurement of a folder to the next, in times that it took."""
_BLOCK_BYTES = 512
"""Bytes of a block as `stat` counts them."""
_PIECE_BYTES = 4096
_LAST_BYTES_MAX = 4000
"""A shorter piece of a file of /proc is the last one, because an entry is never cut in two."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = resource.getpagesize()
_LINUX = sys.platform == "linux"
CHILDREN = "/proc/thread-self/children"
"""There if the kernel lists the children of each process."""
_GONE = FileNotFoundError, ProcessLookupError, PermissionError
"""Errors about a process that has ended, or that belongs to another user."""

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
    the same with each shared page counted in part, as far as that is known of its processes, None
    if it is known of none; `cpu_s`: processor time of
    the processes that run now; `processes`: number of those that were there at one time; `threads`:
    of all of them; `fds`, `fds_max`: open descriptors and limit of the process that is nearest to
    its limit, 0 where the system does not report it."""

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


class _Process(Struct):
    """Figures of one process, and what was read of it until these changed. `line`: from /proc,
    empty on other systems; `children`, `descriptors`: None before they are read."""

    line: bytes
    cpu_s: float
    rss_bytes: int
    threads: int
    children: list[int] | None = None
    descriptors: tuple[int, int] | None = None

    @property
    def is_zombie(self) -> bool:
        """Whether only its exit code is left."""
        return self.line[self.line.rfind(b")") + 2 :].startswith(b"Z")


class KnownProcesses:
    """The processes that a look found, for the next look at the same roots."""

    def __init__(self) -> None:
        self.processes: dict[int, _Process] = {}
        self._looks = 0
        self._shares: dict[int, tuple[float, int | None]] = {}
        """When the share of a process was read, and its bytes, None if the system reports none."""

    def old(self) -> Mapping[int, _Process]:
        """Return the processes that are not read completely again; called once in each look."""
        self._looks = (self._looks + 1) % WHOLE_LOOKS
        return self.processes if self._looks else {}

    def share_pages(self, now: float) -> None:
        """Read the shares of some processes of the last look: new ones, then those whose share is
        oldest. `now`: monotonic seconds."""
        self._shares = {pid: self._shares.get(pid, (-SHARE_S, None)) for pid in self.processes}
        old = (pid for pid, (read_at, _) in self._shares.items() if now - read_at >= SHARE_S)
        for pid in nsmallest(SHARES_MAX, old, key=lambda pid: self._shares[pid][0]):
            self._shares[pid] = now, _pss([pid])

    def sum_shares(self, processes: Mapping[int, _Process]) -> int | None:
        """Return the memory of these processes, by their share where it is known, else resident;
        None if it is known of none."""
        read = ((pid, self._shares[pid][1]) for pid in processes if pid in self._shares)
        shares = {pid: share for pid, share in read if share is not None}
        if not shares:
            return None
        return sum(shares.get(pid, process.rss_bytes) for pid, process in processes.items())

    def look_closer(self) -> None:
        """Read everything in the next look."""
        self._looks = WHOLE_LOOKS - 1


def sample(
    roots: Mapping[K, int],
    closely: Mapping[K, int] | None = None,
    last_look: KnownProcesses | None = None,
) -> dict[K, Usage]:
    """Measure each root with the processes below it, down to the next root.

    A process below two roots counts for the nearest one, so the sum over all roots is the sum over
    all processes. All processes below a worker belong to its server, also daemons that became
    children of the worker; they count for the server as long as the server has a process of its
    own. A root that does not run is missing in the result. The result is empty if the process table
    cannot be read, as when no descriptor is free: old figures would be taken for new ones.
    `closely`: roots whose shared pages are counted in part if they have more resident memory than
    this number of bytes. For that the kernel walks through all pages of the processes; with less
    memory the difference does not matter. `last_look`: the processes that it found, replaced by
    those of this one; its shares of pages count for roots that are not looked at closely.
    """
    owner_of = {pid: key for key, pid in roots.items() if pid > 0}
    last_look = last_look or KnownProcesses()
    try:
        members = _members(owner_of, last_look, closely or {})
    except OSError:
        return {}
    last_look.processes = {pid: process for own in members.values() for pid, process in own.items()}
    usages: dict[K, Usage] = {}
    for pid, key in owner_of.items():
        own = members.get(key, {})
        if pid not in own:
            continue
        rss_bytes = sum(process.rss_bytes for process in own.values())
        least = (closely or {}).get(key)
        fds, fds_max = _descriptors(own)
        usages[key] = Usage(
            pid=pid,
            rss_bytes=rss_bytes,
            pss_bytes=_pss(own)
            if least is not None and rss_bytes > least
            else last_look.sum_shares(own),
            cpu_s=sum(process.cpu_s for process in own.values()),
            processes=_count(own),
            threads=sum(process.threads for process in own.values()),
            fds=fds,
            fds_max=fds_max,
        )
    return usages


def _members(
    owner_of: Mapping[int, K], last_look: KnownProcesses, closely: Collection[K]
) -> dict[K, dict[int, _Process]]:
    """Return the processes that count for each root, by process id. Raises OSError."""
    children, found_before = _children(), last_look.old()
    measured = {
        pid: measured_root
        for pid in owner_of
        if (measured_root := _measure_process(pid, found_before)) is not None
    }
    heirs = _heirs({owner_of[pid] for pid in measured})
    members: dict[K, dict[int, _Process]] = {}
    for root, process in measured.items():
        members.setdefault(owner_of[root], {})[root] = process
        counts_for = heirs.get(owner_of[root], owner_of[root])
        heir = members.setdefault(counts_for, {})
        old: Mapping[int, _Process] = found_before
        if counts_for in closely:
            old, process.children = {}, None
        waiting = [(root, process)]
        while waiting:
            above, parent = waiting.pop()
            if parent.children is None:
                parent.children = list(children(above, parent.threads))
            for pid in parent.children:
                if pid in owner_of or pid in heir:
                    continue
                if (child := _measure_process(pid, old)) is not None:
                    heir[pid] = child
                    waiting.append((pid, child))
                if pid in old and child is not old[pid] and (child is None or child.is_zombie):
                    last_look.look_closer()  # its children have another parent now
    return members


def _count(pids: Collection[int]) -> int:
    """Count those of the processes that are still there after the pass: others may have taken the
    places of those that ended during it, and all together were never there at one time."""
    return sum(os.path.exists(f"/proc/{pid}") for pid in pids) if _LINUX else len(pids)


def _measure_process(pid: int, old: Mapping[int, _Process] | None = None) -> _Process | None:
    """Measure one process; None if it has ended, or if another user has it. `old`: returned again
    if nothing has changed. Raises OSError."""
    if not _LINUX:
        return _measured_by_psutil(pid)
    try:
        stat = _read(f"/proc/{pid}/stat")
    except _GONE:
        return None
    if old is not None and (before := old.get(pid)) is not None and before.line == stat:
        return before
    # "pid (name) state ppid …"; the name may hold anything, parentheses and spaces too.
    fields = stat[stat.rindex(b")") + 2 :].split()
    ticks = int(fields[11]) + int(fields[12])
    rss_bytes, threads = int(fields[21]) * _PAGE_BYTES, int(fields[17])
    return _Process(stat, ticks / _TICKS_PER_S, rss_bytes, threads)


def _measured_by_psutil(pid: int) -> _Process | None:
    import psutil

    try:
        process = psutil.Process(pid)
        times, rss_bytes = process.cpu_times(), process.memory_info().rss
        return _Process(b"", times.user + times.system, rss_bytes, process.num_threads())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _children() -> Callable[[int, int], Iterable[int]]:
    """Return the function that lists the children of a process with this number of threads. Raises
    OSError."""
    if os.path.exists(CHILDREN):
        return _children_by_kernel
    below = _parents()
    return lambda pid, threads: below.get(pid, ())


def _children_by_kernel(pid: int, threads: int) -> list[int]:
    """Return the children of all threads of a process, because a child belongs to a thread. Raises
    OSError."""
    children: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task") if threads > 1 else [str(pid)]
        for task in tasks:
            children += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    except _GONE:
        pass  # its children are children of another process now
    return children


def _read(path: str) -> bytes:
    """Return the contents of a file of /proc, which the kernel gives in pieces. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = piece = os.read(fd, _PIECE_BYTES)
        while len(piece) > _LAST_BYTES_MAX:
            piece = os.read(fd, _PIECE_BYTES)
            content += piece
    finally:
        os.close(fd)
    return content


def _heirs(alive: Collection[K]) -> dict[K, K]:
    """Map workers to their servers, for which the processes below the workers count."""
    parts = {key: key for key in alive if isinstance(key, MeasuredProcess)}
    return {
        key: parts[heir]
        for key in parts
        if key.role == "worker"
        and (heir := MeasuredProcess("server", key.server, key.number)) in parts
    }


def _descriptors(processes: Mapping[int, _Process]) -> tuple[int, int]:
    """Return the number of open descriptors and the limit of the process that is nearest to its
    limit."""
    nearest = 0, 0
    for pid, process in islice(processes.items(), PROCESSES_MAX):
        if process.descriptors is None:
            process.descriptors = _count_descriptors(pid)
        used, most = process.descriptors
        if most > 0 and used * (nearest[1] or most) >= nearest[0] * most:
            nearest = used, most
    return nearest


def _count_descriptors(pid: int) -> tuple[int, int]:
    """Return the number of open descriptors of a process and its limit; 0 if not known."""
    if not _LINUX:
        return _descriptors_by_psutil(pid)
    folder = f"/proc/{pid}/fd"
    try:
        # Before Linux 6.2 the folder has no size.
        used = os.stat(folder).st_size or len(os.listdir(folder))
        return used, resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    except OSError:
        return 0, 0


def _descriptors_by_psutil(pid: int) -> tuple[int, int]:
    import psutil

    try:
        process = psutil.Process(pid)
        return int(process.num_fds()), int(process.rlimit(psutil.RLIMIT_NOFILE)[0])
    except (OSError, psutil.Error, AttributeError):  # AttributeError: not on every system
        return 0, 0


def _pss(pids: Iterable[int]) -> int | None:
    """Return the proportional set size of these processes in bytes; None if the system does not
    report it, as for processes of another user."""
    total = 0
    for pid in pids:
        try:
            text = _read(f"/proc/{pid}/smaps_rollup")
        except ProcessLookupError:
            continue
        except OSError:
            if os.path.exists(f"/proc/{pid}") or not _LINUX:
                return None
            continue
        _, _, rest = text.partition(b"\nPss:")
        total += int(rest.split(maxsplit=1)[0]) * 1024 if rest else 0
    return total


def _parents() -> dict[int, list[int]]:
    """Return the children of each process, from the table of all processes. Raises OSError."""
    import psutil

    below: dict[int, list[int]] = {}
    try:
        for process in psutil.process_iter(["ppid"]):
            below.setdefault(process.info["ppid"] or 0, []).append(process.pid)
    except psutil.Error as error:
        raise OSError(str(error)) from error
    except IndexError:  # psutil, of an empty /proc
        return {}
    return below


class FolderSizes:
    """Sizes of folders, in bytes of the disk. A folder with very many files is measured less
    often."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[float, int]] = {}
        """Size of each folder, and the time from which it is measured again."""

    def size(self, folder: str) -> int:
        """Return the size of a folder with all below it, links not followed; 0 if it is missing. A
        part that this process may not read does not count."""
        again_at, size = self._sizes.get(folder, (0.0, 0))
        begun = time.monotonic()
        if begun >= again_at:
            size = _folder_size(folder)
            ended = time.monotonic()
            self._sizes[folder] = ended + (ended - begun) * FOLDER_REST, size
        return size

    def forget(self, folders: Collection[str]) -> None:
        """Forget all other folders."""
        for folder in self._sizes.keys() - folders:
            del self._sizes[folder]


def _folder_size(folder: str) -> int:
    size, seen = 0, set[int]()
    # By descriptors, because the owner may replace a folder by a link at any moment.
    with contextlib.suppress(OSError, RecursionError):
        for _, folders, files, fd in os.fwalk(folder):
            for name in (*folders, *files):
                try:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except OSError:  # it is gone
                    continue
                if status.st_nlink == 1 or status.st_ino not in seen:
                    seen.add(status.st_ino)
                    size += status.st_blocks * _BLOCK_BYTES
    return size


def trees(roots: Collection[int]) -> dict[int, list[ServerProcess]]:
    """Return each root with the processes below it, parents first, without those that ended during
    the look. The lists are empty if the kernel reports none, as without a free descriptor."""
    try:
        children = _children()
        return {root: _tree(root, children) for root in roots}
    except OSError:
        return {root: [] for root in roots}


def _tree(root: int, children: Callable[[int, int], Iterable[int]]) -> list[ServerProcess]:
    """Return a process and those below it, parents first. Raises OSError."""
    tree: list[ServerProcess] = []
    waiting, seen = [root], {root}
    while waiting and len(seen) <= PROCESSES_MAX:
        pid = waiting.pop(0)
        if (process := _describe_process(pid)) is not None:
            tree.append(process)
        more = [child for child in children(pid, _threads(pid)) if child not in seen]
        seen.update(more)
        waiting += more
    return tree


def holder(port: int) -> tuple[int, str] | None:
    """Return process id and name of the process that listens on this TCP port; None if not
    known."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status != psutil.CONN_LISTEN
                or not connection.laddr
                or not connection.pid
            ):
                continue
            if connection.laddr.port == port:
                return connection.pid, psutil.Process(connection.pid).name()
    except (OSError, psutil.Error):
        return None
    return None


def _threads(pid: int) -> int:
    """Return the number of threads of a process, 0 if it has ended."""
    process = _measure_process(pid)
    return 0 if process is None else process.threads


def _describe_process(pid: int) -> ServerProcess | None:
    import psutil

    try:
        process = psutil.Process(pid)
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
        pid=pid,
        parent=parent,
        command=tuple(argument[:COMMAND_CHARACTERS_MAX] for argument in command),
        rss_bytes=memory.rss,
        cpu_s=times.user + times.system,
        descriptors=descriptors,
        pss_bytes=_pss([pid]) or None,
    )
