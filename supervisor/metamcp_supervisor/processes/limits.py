"""Limits of memory, processes and disk of a server, and the verdict when a server exceeds them.

Owns: the limits of one server as numbers, the rules of recycling and killing, the sentences about
both. Never: measuring (`usage`, `cgroups`), stopping or killing anything (`server_io`), the limits
that the kernel alone enforces (`cgroups`, the worker's `child/limits`).

Theory. A server that leaks memory must be replaced before it is a danger, and between two calls.
The soft limit does that, and it is patient: memory that a garbage collector frees a moment later is
not a leak, so a single high sample is not proof of one. A server above its hard limit is a danger
now. Where the soft limit is simply too low for a server, its replacement exceeds the limit as soon
as it works: so a server is recycled only once in a while, however much it uses.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.config import sandboxes
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage

HIGH_SHARE = 0.8
"""Soft limit as a share of the hard limit, when only the hard limit is given."""
LOOKS_MIN = 5
"""Number of samples in a row above the soft limit (ten seconds) that mean a leak, not a short
peak."""
CROWD_TIMES = 2
"""A server with more than this many times `processes_max` processes is ended at once, with fewer at
the second look in a row: while it forks on and on, its worker counts processes that come and go, so
a few more may be there for a moment."""
CALM_SHARE = 0.9
"""Share of the soft limit below which a server is calm again, and may be recycled once more."""
RECYCLE_S_MIN = 300.0
"""Minimum seconds between two recyclings of a server: if five minutes of work exceed the soft limit
again, the limit is wrong, and endless restarts would make that worse."""
REMEMBER_S = 60.0
"""Seconds to keep the record of an instance after its last sample: by then the reason of its end is
known."""

PROCESSES_MAX, TASKS_MAX = 256, 4096
"""Maximum processes, and threads of them all, of a confined server without a limit of its own."""

DISK_BYTES_MAX = 1 << 30
"""Maximum bytes in the own folders of a confined server without a limit of its own."""

FILES_BASE = 256
"""Open files of the supervisor or a front without servers, connections of clients included."""
FILES_PER_SERVER = 3
"""Open files for each server: two in the supervisor and one in each front, and those that a start
needs for a moment."""
FILES_PER_FRONT = 4

_SIGKILL = 9
_MIB = 1024 * 1024


class LimitAction(StrEnum):
    FINE = "fine"
    RECYCLE = "recycle"
    KILL = "kill"


class LimitVerdict(Struct, frozen=True):
    """`why`: a sentence that begins with "it", like the sentences about exits."""

    fate: LimitAction
    why: str = ""


FINE = LimitVerdict(LimitAction.FINE)


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of one server and all its processes together: memory in bytes, `cpu_max` in
    processors, None for no limit. `cpu_max` is enforced by the kernel or not at all. `tasks_max`:
    threads of all processes, which the kernel counts; None: as many as processes. `disk_max`: bytes
    in its own folders; None: the limit of the sample."""

    memory_max: int | None = None
    memory_high: int | None = None
    processes_max: int | None = None
    tasks_max: int | None = None
    cpu_max: float | None = None
    disk_max: int | None = None

    @property
    def any(self) -> bool:
        return self != Limits()


class DiskUse(Struct, frozen=True):
    """Bytes in the own folders of an instance. `folder`: the one with most of them; `limit`: bytes
    that it may have if nothing else is written."""

    held_bytes: int
    folder: str
    limit: int


class Sample(Struct, frozen=True, kw_only=True):
    """Memory, processes and disk that one instance of a server used. `at`: time of the monotonic
    clock; `processes`: 0 if they were not counted; `serving`: it can be recycled; `disk`: None if
    it has no folders of its own."""

    server: str
    generation: int
    at: float
    memory_bytes: int
    processes: int = 0
    serving: bool = True
    disk: DiskUse | None = None


class LimitRecord(Struct, frozen=True, kw_only=True):
    """The last sample of one instance, and the verdicts about it. `over`: samples in a row above
    the soft limit; `crowded`: the last one had too many processes; `asked`: recycling was ordered;
    `killed`: a kill was ordered. Each is ordered only once."""

    at: float = float("-inf")
    memory_bytes: int = 0
    over: int = 0
    crowded: bool = False
    asked: bool = False
    killed: bool = False


def limits_of(server: Server) -> Limits:
    high = server.memory_high
    if high is None and server.memory_max is not None:
        high = int(server.memory_max * HIGH_SHARE)
    assumed = server.processes_max is None and sandboxes.profile(server) != "none"
    return Limits(
        memory_max=server.memory_max,
        memory_high=high,
        processes_max=PROCESSES_MAX if assumed else server.processes_max,
        tasks_max=TASKS_MAX if assumed else None,
        cpu_max=server.cpu_max,
        disk_max=server.disk_max,
    )


def disk_limit(held_bytes: int, free_bytes: int) -> int:
    """Return the bytes that a server may have in its folders if nothing is written: half of the
    room that there is for them, with the part that it holds already, but not more than
    DISK_BYTES_MAX."""
    return min(DISK_BYTES_MAX, (held_bytes + free_bytes) // 2)


def part_of(server: Server, number: int = 0) -> MeasuredProcess:
    """Return the root of the processes of a server: the worker itself if the server runs in it."""
    return MeasuredProcess("server" if server.command else "worker", server.name, number)


def closely(
    roots: Iterable[MeasuredProcess], servers: Mapping[str, Server]
) -> dict[MeasuredProcess, int]:
    """Return the parts whose memory must be measured exactly, and the bytes above which that is
    needed (for `usage.sample`)."""
    thresholds: dict[MeasuredProcess, int] = {}
    for root in roots:
        server = servers.get(root.server)
        if server is not None and root == part_of(server, root.number):
            high = limits_of(server).memory_high
            if high is not None:
                thresholds[root] = high
    return thresholds


def sample(
    server: str,
    usage: Usage | None,
    *,
    pid: int,
    generation: int,
    at: float,
    leaf_bytes: int | None = None,
    serving: bool = True,
    disk: DiskUse | None = None,
) -> Sample | None:
    """Return the sample of an instance, None if its usage is not known. `pid`: of its root process;
    `usage`: the measured usage of that root, perhaps of an earlier process; `leaf_bytes`: memory of
    its control group as the kernel counts it, which is preferred; `serving`: not a spare."""
    if usage is not None and usage.pid != pid:
        usage = None
    if usage is None and leaf_bytes is None:
        return None
    used_bytes = usage.held_bytes if usage is not None else 0
    return Sample(
        server=server,
        generation=generation,
        at=at,
        memory_bytes=used_bytes if leaf_bytes is None else leaf_bytes,
        processes=usage.processes if usage is not None else 0,
        serving=serving,
        disk=disk,
    )


def judge(
    record: LimitRecord, limits: Limits, now: Sample, recycled_at: float | None
) -> tuple[LimitRecord, LimitVerdict]:
    """Return the new record and the verdict for a sample. The same sample twice changes nothing.
    `recycled_at`: when the server was last ordered to be recycled."""
    if now.at <= record.at:
        return record, FINE
    broken = _exceeded_limit(limits, now, crowded=record.crowded)
    crowded = limits.processes_max is not None and now.processes > limits.processes_max
    record = replace(record, at=now.at, memory_bytes=now.memory_bytes, crowded=crowded)
    if broken:
        verdict = FINE if record.killed else LimitVerdict(LimitAction.KILL, broken)
        return replace(record, killed=True), verdict
    high = limits.memory_high if now.serving else None
    if high is None or now.memory_bytes <= high:
        calm = high is None or now.memory_bytes < CALM_SHARE * high
        return replace(record, over=0, asked=record.asked and not calm), FINE
    record = replace(record, over=record.over + 1)
    recently = recycled_at is not None and now.at - recycled_at < RECYCLE_S_MIN
    if record.over < LOOKS_MIN or record.asked or record.killed or recently:
        return record, FINE
    reason = (
        f"{_format_usage(now.memory_bytes)} and more for a while, memory_high is {mebibytes(high)}"
    )
    return replace(record, asked=True), LimitVerdict(LimitAction.RECYCLE, reason)


def out_of_memory(record: LimitRecord, limits: Limits, *, signal: int, oom_kills: int) -> str:
    """Return a sentence if the kernel killed this instance for lack of memory, else "".

    Call this only for an end that the gateway did not cause. `signal`: the signal that ended the
    instance; `oom_kills`: how often the kernel killed in its control group, 0 without a group.
    Without that counter, a SIGKILL of unknown origin to a server above its soft limit counts as a
    kill for lack of memory.
    """
    if signal != _SIGKILL:
        return ""
    was_measured = record.memory_bytes > 0
    used = (
        f"; {_format_usage(record.memory_bytes)} when it was last looked at" if was_measured else ""
    )
    if oom_kills > 0:
        limit = f", memory_max is {mebibytes(limits.memory_max)}" if limits.memory_max else ""
        return f"it was killed by the kernel because it was out of memory{used}{limit}"
    high = limits.memory_high
    if high is None or record.memory_bytes <= high:
        return ""
    return (
        "it was ended by SIGKILL (9), most likely by the kernel for want of memory"
        f"{used}, memory_high is {mebibytes(high)}"
    )


def crowded_out(used_bytes: int, limit_bytes: int | None) -> str:
    """Return the words about a process that the kernel killed because the gateway's control group
    was out of memory."""
    limit = "" if limit_bytes is None else f" of {mebibytes(limit_bytes)} for all together"
    return (
        "was killed by the kernel because the control group of the gateway was out of memory"
        f" ({mebibytes(used_bytes)}{limit} are in use now)"
    )


class Limiter:
    """The records of all instances of all servers."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], LimitRecord] = {}
        self._recycled_at: dict[str, float] = {}

    def look(
        self, samples: Iterable[Sample], limits: Mapping[str, Limits], now: float
    ) -> list[tuple[Sample, LimitVerdict]]:
        """Return the instances that must be recycled or killed. `limits`: the limits of every
        server that has any."""
        verdicts: list[tuple[Sample, LimitVerdict]] = []
        for each in samples:
            if each.server not in limits:
                continue
            key = each.server, each.generation
            self._records[key], verdict = judge(
                self._records.get(key, LimitRecord()),
                limits[each.server],
                each,
                self._recycled_at.get(each.server),
            )
            if verdict.fate is LimitAction.RECYCLE:
                self._recycled_at[each.server] = each.at
            if verdict.fate is not LimitAction.FINE:
                verdicts.append((each, verdict))
        self._forget(limits, now)
        return verdicts

    def out_of_memory(
        self, server: str, limits: Limits, *, generation: int, signal: int, oom_kills: int = 0
    ) -> str:
        """See the function of this name."""
        record = self._records.get((server, generation), LimitRecord())
        return out_of_memory(record, limits, signal=signal, oom_kills=oom_kills)

    def _forget(self, limits: Mapping[str, Limits], now: float) -> None:
        for name in self._recycled_at.keys() - limits.keys():
            del self._recycled_at[name]
        for key, record in list(self._records.items()):
            if key[0] not in limits or now - record.at > REMEMBER_S:
                del self._records[key]


def mebibytes(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"


def _format_usage(count: int) -> str:
    return f"it used {mebibytes(count)}"


def _exceeded_limit(limits: Limits, now: Sample, *, crowded: bool) -> str:
    """Return the hard limit that the sample exceeds, as a sentence, or "". `crowded`: there were
    too many processes at the last look, too."""
    most = limits.memory_max
    if most is not None and now.memory_bytes > most:
        return f"{_format_usage(now.memory_bytes)}, memory_max is {mebibytes(most)}"
    most = limits.processes_max
    if most is not None and now.processes > (most if crowded else CROWD_TIMES * most):
        return f"it had {now.processes} processes, processes_max is {most}"
    if now.disk is not None:
        most, held_bytes = limits.disk_max or now.disk.limit, now.disk.held_bytes
        if held_bytes > most:
            disk_use = f"{mebibytes(held_bytes)} of the disk, most of it in {now.disk.folder}"
            return f"it held {disk_use}, disk_max is {mebibytes(most)}"
    return ""


def files_needed(servers: int, fronts: int) -> int:
    """Return how many open files one process of the gateway needs for these servers and fronts."""
    return FILES_BASE + FILES_PER_SERVER * servers + FILES_PER_FRONT * fronts


def too_few_files(needed: int, limit: int, servers: int) -> str:
    """Return the sentence about a limit of open files that cannot be raised far enough."""
    return (
        f"{servers} servers need about {needed} open files in one process, and the limit is"
        f" {limit}: fewer clients have a place, and some servers may not be reached; raise"
        " LimitNOFILE= of the unit, or 'ulimit -Hn'"
    )
