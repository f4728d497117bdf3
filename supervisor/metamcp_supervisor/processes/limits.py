"""What a server may use, and the verdict about what it uses.

Owns: the limits of one server as numbers, the rules of recycling and killing, the sentences about
both. Never: measuring (`usage`, `cgroups`), stopping or killing anything (`tree`), the limits that
the kernel alone enforces (`cgroups`, the worker's `child/limits`).

Theory. A server that leaks is to be replaced before it is a danger, and between two calls; that is
the soft limit, and it needs patience: memory that a garbage collector frees a moment later is no
leak, so one high sample is none either. A server above its hard limit is a danger now. Where the
soft limit is simply too low for a server, its replacement is above it as soon as it works: so a
server is recycled only once in a while, however much it uses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.telemetry.usage import Part, Usage

HIGH_SHARE = 0.8
"""The soft limit as a share of the hard one, when only that is given."""
LOOKS_MIN = 5
"""So many samples in a row above the soft limit, ten seconds, are a leak and no passing peak."""
CALM_SHARE = 0.9
"""Below this share of the soft limit a server is calm again, and may be recycled another time."""
RECYCLE_S_MIN = 300.0
"""Between two recyclings of a server: if five minutes of work bring it above, the limit is wrong,
and restarting it without end would make that worse."""
REMEMBER_S = 60.0
"""An instance that is not sampled any more: by then it is known why it ended."""

FILES_BASE = 256
"""Open files of the supervisor or a front without servers: its own, and those of connections."""
FILES_PER_SERVER = 3
"""Two in the supervisor and one in each front, and what a start takes for a moment."""
FILES_PER_FRONT = 4

_SIGKILL = 9
_MIB = 1024 * 1024


class Fate(StrEnum):
    FINE = "fine"
    RECYCLE = "recycle"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why`: a sentence that begins with "it", as those about exits do."""

    fate: Fate
    why: str = ""


FINE = Verdict(Fate.FINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one server and all its processes together. Memory in bytes, `cpu_max` in processors, None:
    no limit. `cpu_max` is enforced by the kernel or not at all."""

    memory_max: int | None = None
    memory_high: int | None = None
    processes_max: int | None = None
    cpu_max: float | None = None

    @property
    def any(self) -> bool:
        return self != Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one instance of a server used `at` a time of the monotonic clock. `processes`: 0 if they
    were not counted."""

    server: str
    generation: int
    at: float
    memory_bytes: int
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is remembered of one instance. `over`: samples in a row above the soft limit. `asked`:
    for a recycling, `killed`: for its end; neither is asked for twice."""

    at: float = float("-inf")
    memory_bytes: int = 0
    over: int = 0
    asked: bool = False
    killed: bool = False


def limits_of(server: Server) -> Limits:
    high = server.memory_high
    if high is None and server.memory_max is not None:
        high = int(server.memory_max * HIGH_SHARE)
    return Limits(
        memory_max=server.memory_max,
        memory_high=high,
        processes_max=server.processes_max,
        cpu_max=server.cpu_max,
    )


def part_of(server: Server, number: int = 0) -> Part:
    """The root of its processes. A server that runs in its worker counts with it."""
    return Part("server" if server.command else "worker", server.name, number)


def closely(roots: Iterable[Part], servers: Mapping[str, Server]) -> dict[Part, int]:
    """Whose memory must be known well, and above how many bytes (for `usage.sample`)."""
    found: dict[Part, int] = {}
    for part in roots:
        server = servers.get(part.server)
        if server is not None and part == part_of(server, part.number):
            high = limits_of(server).memory_high
            if high is not None:
                found[part] = high
    return found


def sample(
    server: str,
    usage: Usage | None,
    *,
    pid: int,
    generation: int,
    at: float,
    leaf_bytes: int | None = None,
) -> Sample | None:
    """What an instance uses, None if that is not known. `pid`: of its root; `usage`: what was
    measured for that root, perhaps while it was still another process; `leaf_bytes`: what the
    kernel says of its cgroup, which is preferred."""
    if usage is not None and usage.pid != pid:
        usage = None
    if usage is None and leaf_bytes is None:
        return None
    held = usage.held_bytes if usage is not None else 0
    return Sample(
        server=server,
        generation=generation,
        at=at,
        memory_bytes=held if leaf_bytes is None else leaf_bytes,
        processes=usage.processes if usage is not None else 0,
    )


def judge(
    record: Record, limits: Limits, now: Sample, recycled_at: float | None
) -> tuple[Record, Verdict]:
    """What follows from a sample. The same sample twice changes nothing. `recycled_at`: when the
    server was last to be recycled."""
    if now.at <= record.at:
        return record, FINE
    record = replace(record, at=now.at, memory_bytes=now.memory_bytes)
    if broken := _broken(limits, now):
        verdict = FINE if record.killed else Verdict(Fate.KILL, broken)
        return replace(record, killed=True), verdict
    high = limits.memory_high
    if high is None or now.memory_bytes <= high:
        calm = high is None or now.memory_bytes < CALM_SHARE * high
        return replace(record, over=0, asked=record.asked and not calm), FINE
    record = replace(record, over=record.over + 1)
    recently = recycled_at is not None and now.at - recycled_at < RECYCLE_S_MIN
    if record.over < LOOKS_MIN or record.asked or record.killed or recently:
        return record, FINE
    why = f"{_used(now.memory_bytes)} and more for a while, memory_high is {mebibytes(high)}"
    return replace(record, asked=True), Verdict(Fate.RECYCLE, why)


def out_of_memory(record: Record, limits: Limits, *, signal: int, oom_kills: int) -> str:
    """Did the kernel end this instance for want of memory? The sentence, or nothing.

    Only for an end that we did not bring about. `signal`: that ended it; `oom_kills`: how often the
    kernel killed in its cgroup, 0 without one. Without that counter a SIGKILL from nobody known, to
    a server above its soft limit, is taken for it.
    """
    if signal != _SIGKILL:
        return ""
    known = record.memory_bytes > 0
    used = f"; {_used(record.memory_bytes)} when it was last looked at" if known else ""
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
    """Words about a process that the kernel killed because the gateway's group was full."""
    limit = "" if limit_bytes is None else f" of {mebibytes(limit_bytes)} for all together"
    return (
        "was killed by the kernel because the control group of the gateway was out of memory"
        f" ({mebibytes(used_bytes)}{limit} are in use now)"
    )


class Limiter:
    """The records of all instances of all servers."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], Record] = {}
        self._recycled_at: dict[str, float] = {}

    def look(
        self, samples: Iterable[Sample], limits: Mapping[str, Limits], now: float
    ) -> list[tuple[Sample, Verdict]]:
        """Which instances must be recycled or killed. `limits`: of every server that has some."""
        found: list[tuple[Sample, Verdict]] = []
        for each in samples:
            if each.server not in limits:
                continue
            key = each.server, each.generation
            self._records[key], verdict = judge(
                self._records.get(key, Record()),
                limits[each.server],
                each,
                self._recycled_at.get(each.server),
            )
            if verdict.fate is Fate.RECYCLE:
                self._recycled_at[each.server] = each.at
            if verdict.fate is not Fate.FINE:
                found.append((each, verdict))
        self._forget(limits, now)
        return found

    def out_of_memory(
        self, server: str, limits: Limits, *, generation: int, signal: int, oom_kills: int = 0
    ) -> str:
        """See the function of this name."""
        record = self._records.get((server, generation), Record())
        return out_of_memory(record, limits, signal=signal, oom_kills=oom_kills)

    def _forget(self, limits: Mapping[str, Limits], now: float) -> None:
        for name in self._recycled_at.keys() - limits.keys():
            del self._recycled_at[name]
        for key, record in list(self._records.items()):
            if key[0] not in limits or now - record.at > REMEMBER_S:
                del self._records[key]


def mebibytes(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"


def _used(count: int) -> str:
    return f"it used {mebibytes(count)}"


def _broken(limits: Limits, now: Sample) -> str:
    """Which hard limit it broke, as a sentence, or nothing."""
    most = limits.memory_max
    if most is not None and now.memory_bytes > most:
        return f"{_used(now.memory_bytes)}, memory_max is {mebibytes(most)}"
    most = limits.processes_max
    if most is not None and now.processes > most:
        return f"it had {now.processes} processes, processes_max is {most}"
    return ""


def files_needed(servers: int, fronts: int) -> int:
    """Open files that one process of the gateway needs for so many servers and fronts."""
    return FILES_BASE + FILES_PER_SERVER * servers + FILES_PER_FRONT * fronts


def too_few_files(needed: int, limit: int, servers: int) -> str:
    """The sentence about a limit of open files that cannot be raised to what is needed."""
    return (
        f"{servers} servers need about {needed} open files in one process, and the limit is"
        f" {limit}: fewer clients have a place, and some servers may not be reached; raise"
        " LimitNOFILE= of the unit, or 'ulimit -Hn'"
    )
