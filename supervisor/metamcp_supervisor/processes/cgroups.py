"""Control groups: one leaf for each instance of a server, with its limits, if the gateway may.

Owns: finding the subtree that was delegated to the gateway, the leaves in it, the files in a leaf.
Never: the limits themselves (`limits`), putting a process into a leaf (the worker does that for its
server), the decision to kill or remove a leaf (`server_copies`).

Theory. Control groups of version 2 have one writer for each subtree. A subtree belongs to the
gateway when systemd says so in an attribute of its directory (`Delegate=`). Permission to write is
not a proof: root may write to all groups, and the terminal of a user's desktop is in a group that
the user owns. A group that limits its children has no processes of its own, so the gateway's
processes first move into a leaf, `gateway`, unless systemd did so already (`DelegateSubgroup=`). A
missing subtree or controller is not an error: limits are then judged from samples (`limits`), and
`find_unenforced_limit` says which limits are not enforced.
"""

import contextlib
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from metamcp_supervisor.processes.limits import Limits

OWN = "gateway"
"""Name of the leaf of the gateway's own processes."""
PREFIX = "server-"
CONTROLLERS = ("memory", "pids", "cpu")
CPU_PERIOD_US = 100_000
"""Microseconds of one scheduling period, the kernel's default; a server that has used its share
waits at most until the period ends."""
FILE_BYTES_MAX = 64 * 1024
"""Maximum bytes to read from a file of the kernel; `cgroup.procs` of ten thousand processes has as
many."""
_DELEGATED = ("user.delegate", "trusted.delegate")
_NO_LIMIT = b"max"
UNLIMITED_BYTES = 1 << 60
"""Bytes above which a limit of version 1 means that the group has no limit."""
MOUNTS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")


class Leaf:
    """The group of one instance. The kernel makes its files, except in tests."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def limit(self, limits: Limits) -> None:
        """Put these limits in force, now or instead of others, except those for which the kernel
        has no file. Raises OSError."""
        _offer(self.path / "memory.high", _count(limits.memory_high))
        _offer(self.path / "memory.max", _count(limits.memory_max))
        _offer(self.path / "memory.oom.group", b"1")
        _offer(self.path / "pids.max", _count(limits.tasks_max or limits.processes_max))
        quota = _NO_LIMIT
        if limits.cpu_max is not None:
            quota = b"%d" % round(limits.cpu_max * CPU_PERIOD_US)
        _offer(self.path / "cpu.max", b"%b %d" % (quota, CPU_PERIOD_US))

    @property
    def holds_processes(self) -> bool:
        """Whether the kernel limits the number of processes in the group."""
        return (self.path / "pids.max").exists()

    def memory_bytes(self) -> int | None:
        """Return the bytes that the group holds, without cached files that the kernel may drop at
        any time; None if that is not known."""
        try:
            current = int(_read(self.path / "memory.current"))
        except (OSError, ValueError):
            return None
        return max(0, current - _entry(self.path / "memory.stat", b"inactive_file"))

    def oom_kills(self) -> int:
        """Return how often the kernel killed a process of the group for lack of memory."""
        return _entry(self.path / "memory.events", b"oom_kill")

    def processes(self) -> list[int]:
        with contextlib.suppress(OSError, ValueError):
            return [int(pid) for pid in _read(self.path / "cgroup.procs").split()]
        return []

    def kill(self) -> bool:
        """Kill every process of the group at once. Return False where the kernel cannot (before
        5.14)."""
        try:
            _write(self.path / "cgroup.kill", b"1")
        except OSError:
            return False
        return True

    def remove(self) -> bool:
        """Remove the group. Return False as long as a process is in it."""
        try:
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class Cgroups:
    """The subtree that belongs to the gateway. `controllers`: controllers that limit the leaves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.controllers: frozenset[str] = frozenset()

    def adopt(self, occupied: Collection[Path] = ()) -> None:
        """Prepare the subtree for leaves, and remove leaves that an earlier gateway left, except
        those in `occupied`. Call this before the first fork. Raises OSError."""
        strays = _read(self.root / "cgroup.procs").split()
        if strays:
            own = self.root / OWN
            own.mkdir(exist_ok=True)
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    _write(own / "cgroup.procs", pid)
        granted = _read(self.root / "cgroup.controllers").decode().split()
        on: set[str] = set()
        for name in CONTROLLERS:
            if name in granted:
                with contextlib.suppress(OSError):  # A controller may be in use by version 1.
                    _write(self.root / "cgroup.subtree_control", b"+" + name.encode())
                    on.add(name)
        self.controllers = frozenset(on)
        for old in self.root.glob(f"{PREFIX}*"):
            if old not in occupied:
                Leaf(old).remove()

    def leaf(self, server: str, generation: int, limits: Limits) -> Leaf:
        """Make a leaf with these limits for an instance. Raises OSError."""
        leaf = Leaf(self.root / f"{PREFIX}{server}-{generation}")
        leaf.path.mkdir(exist_ok=True)
        leaf.limit(limits)
        return leaf


def find_delegated(mounts: Path = MOUNTS, own: Path = OWN_GROUP) -> Cgroups | None:
    """Return the subtree that was delegated to the gateway, or None. `mounts`: where control groups
    are mounted; `own`: the file that names the group of this process."""
    if sys.platform != "linux":
        return None
    try:
        lines = _read(own).decode().splitlines()
    except (OSError, ValueError):
        return None
    name = next((line[3:] for line in lines if line.startswith("0::/")), None)
    tops = (top for top in (mounts, mounts / "unified") if (top / "cgroup.controllers").exists())
    top = next(tops, None)
    if name is None or top is None or "/.." in name:
        return None
    here = top / name.strip("/")
    above = [here.parent] if here != top else []
    return next((Cgroups(path) for path in (here, *above) if _ours(path)), None)


class GroupMemory(NamedTuple):
    """Memory of the control group that a process is in. `limit_bytes`: None if the group has no
    limit; `kills`: how often the kernel killed a process in or below the group for lack of
    memory."""

    used_bytes: int
    limit_bytes: int | None
    kills: int


class MemoryCgroup:
    """The control group for memory, of version 1 or 2, that a process is in."""

    def __init__(self, group: Path) -> None:
        self._group = group
        self._old = (group / "memory.oom_control").exists()

    def memory(self) -> GroupMemory | None:
        """Return the memory of the group; None if the kernel does not show it."""
        names = ("usage_in_bytes", "limit_in_bytes") if self._old else ("current", "max")
        try:
            used, limit = (_read(self._group / f"memory.{name}").strip() for name in names)
            most = None if limit == _NO_LIMIT or int(limit) > UNLIMITED_BYTES else int(limit)
            return GroupMemory(int(used), most, self.kills())
        except (OSError, ValueError):
            return None

    def kills(self) -> int:
        file = "memory.oom_control" if self._old else "memory.events"
        return _entry(self._group / file, b"oom_kill")


def find_memory_group(mounts: Path = MOUNTS, own: Path = OWN_GROUP) -> MemoryCgroup | None:
    """Return the memory group of the process that `own` describes, or None. Inside a container the
    path of the group is not below `mounts`; the group is then the top."""
    try:
        lines = [line.split(":", 2) for line in _read(own).decode().splitlines()]
    except (OSError, ValueError):
        return None
    old = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    new = next((path for number, _, path in lines if number == "0"), None)
    places = [mounts / "memory" / old.strip("/"), mounts / "memory"] if old is not None else []
    if new is not None:
        tops = (mounts, mounts / "unified")
        places += [*(top / new.strip("/") for top in tops), *tops]
    memory_files = ("memory.oom_control", "memory.events")
    group = next(
        (each for each in places if any((each / name).exists() for name in memory_files)), None
    )
    return None if group is None else MemoryCgroup(group)


def find_unenforced_limit(limits: Limits, cgroups: Cgroups | None) -> str:
    """Return the limit that cannot be enforced, as a sentence for the operator, or "". Memory and
    processes are judged from samples where the kernel does not count them."""
    if limits.cpu_max is None or (cgroups is not None and "cpu" in cgroups.controllers):
        return ""
    return (
        "cpu_max is not enforced: the gateway has no control group of its own with the controller"
        " 'cpu'; under systemd, Delegate=cpu gives it one"
    )


def _entry(path: Path, name: bytes) -> int:
    """Return the number of this name in a file with lines such as `oom_kill 3`; 0 if the name or
    the file is not there."""
    with contextlib.suppress(OSError, ValueError):
        for line in _read(path).splitlines():
            key, _, value = line.partition(b" ")
            if key == name:
                return int(value)
    return 0


def _ours(path: Path) -> bool:
    """Whether this group was delegated to the user of this process."""
    for attribute in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(path, attribute).strip() == b"1":
                return os.access(path / "cgroup.subtree_control", os.W_OK)
    return False


def _count(value: int | None) -> bytes:
    return _NO_LIMIT if value is None else b"%d" % value


def _offer(path: Path, data: bytes) -> None:
    """Write to a file that is there only with its controller. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        _write(path, data)


def _write(path: Path, data: bytes) -> None:
    """Write in a single call, as the kernel requires; never make a new file. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _read(path: Path) -> bytes:
    """Read at most FILE_BYTES_MAX bytes. Raises OSError."""
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX)
