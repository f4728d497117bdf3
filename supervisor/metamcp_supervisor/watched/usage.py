"""What processes use: memory and processor time of each of our processes and what is below it.

Owns: measuring, in one pass over the process table. Never: when to measure, limits, names of
metrics. The only file that uses psutil. It blocks for some milliseconds: run it in a thread, one
call at a time.
"""

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

import psutil
from msgspec import Struct

DEPTH_MAX = 64
"""Of a chain of parents. Longer ones, or a circle that a reused pid made, belong to nobody."""

K = TypeVar("K", bound=Hashable)


class Part(Struct, frozen=True):
    """One of our processes as a root of measuring. `role`: supervisor, nursery, front, worker or
    server; `server`: whose worker or server it is; `number`: tells several of a role apart."""

    role: str
    server: str = ""
    number: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """`rss_bytes`: resident memory; pages that forked processes share are in it for each of them.
    `cpu_s`: processor time of the processes that live now. `pid`: of the root."""

    pid: int
    rss_bytes: int = 0
    cpu_s: float = 0.0


def sample(roots: Mapping[K, int]) -> dict[K, Usage]:
    """The use of each root and of everything below it, down to the next root.

    A process below two roots counts for the nearest one, so the sum over all roots is the sum over
    all processes. A root that does not live is missing in the answer. Without a look at the process
    table, as when no descriptor is free, it is empty: old figures would be taken for new ones.
    """
    owner_of = {pid: key for key, pid in roots.items() if pid > 0}
    try:
        table = {found.pid: found for found in psutil.process_iter(["ppid"])}
    except (OSError, psutil.Error):
        return {}
    parents: dict[int, int] = {pid: found.info["ppid"] or 0 for pid, found in table.items()}
    rss_bytes: dict[K, int] = {}
    cpu_s: dict[K, float] = {}
    for pid, process in table.items():
        root = _root_of(pid, parents, owner_of.keys())
        if root is None:
            continue
        key = owner_of[root]
        try:
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:
            continue  # it ended meanwhile, or is none of ours to look at
        rss_bytes[key] = rss_bytes.get(key, 0) + memory.rss
        cpu_s[key] = cpu_s.get(key, 0.0) + times.user + times.system
    return {
        key: Usage(pid=pid, rss_bytes=rss_bytes[key], cpu_s=cpu_s[key])
        for pid, key in owner_of.items()
        if pid in table and key in rss_bytes
    }


def _root_of(pid: int, parents: Mapping[int, int], roots: AbstractSet[int]) -> int | None:
    """The nearest root at or above `pid`."""
    for _ in range(DEPTH_MAX):
        if pid in roots:
            return pid
        above = parents.get(pid, 0)
        if above <= 0:
            return None
        pid = above
    return None
