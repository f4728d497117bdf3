"""The process table, as the tests look at it."""

import contextlib
import os
from collections import Counter
from pathlib import Path


def parents() -> dict[int, int]:
    """pid -> parent of every process that is not a zombie."""
    found: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        fields = _read(f"/proc/{entry}/stat").rpartition(b")")[2].split(maxsplit=2)
        if fields and fields[0] != b"Z":
            found[int(entry)] = int(fields[1])
    return found


def _read(path: str) -> bytes:
    """The content of a file of /proc, nothing of a process that is gone. Tests read thousands while
    they wait, and a file object would take three times as long."""
    read = b""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return read
    try:
        while piece := os.read(fd, 1 << 17):
            read += piece
    except OSError:
        return b""
    finally:
        os.close(fd)
    return read


def below(root: int) -> set[int]:
    """All descendants of a process, without itself, that were there at one time: a new one may have
    taken the place of one that ended while all were read."""
    table = parents()
    found: set[int] = set()
    border = {root}
    while border:
        border = {pid for pid, parent in table.items() if parent in border} - found
        found |= border
    return {pid for pid in found if os.path.exists(f"/proc/{pid}")}


def zombies(parent: int) -> set[int]:
    """Children of a process that have ended and were not reaped."""
    found: set[int] = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            if fields[0] == "Z" and int(fields[1]) == parent:
                found.add(int(entry))
    return found


def alive(pids: set[int]) -> set[int]:
    return pids & set(parents())


def marked(word: str) -> set[int]:
    """Processes with `word` in their environment or command line, wherever they went."""
    raw = word.encode()
    found = {
        int(entry)
        for entry in filter(str.isdigit, os.listdir("/proc"))
        if any(raw in _read(f"/proc/{entry}/{name}") for name in ("environ", "cmdline"))
    }  # a zombie has neither
    return found - {os.getpid()}


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def targets(pid: int) -> Counter[str]:
    """Where its descriptors lead, and how many to each: `socket`, `pipe`, a path."""
    found: Counter[str] = Counter()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found[os.readlink(f"/proc/{pid}/fd/{fd}").partition(":[")[0]] += 1
    return found


def cpu_s(pid: int) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_ns(pid: int) -> int:
    """Nanoseconds for which the main thread has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def memory(pid: int, field: str = "Pss") -> int:
    """Bytes of one field of smaps_rollup."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} for process {pid}")
