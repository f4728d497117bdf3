"""The load generator in C: compiled once for each run, then started for each measurement.

Owns: the compiler, the way in and out of `load.c`. Never: what is said (`load`).

Python takes 40 us of processor time for a call, and adds as much to the latency of one caller as a
process of the gateway does. The program in C takes a third of that.
"""

import array
import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("load.c")
COMPILE_S_MAX = 60.0
START_S_MAX = 60.0
"""Beside the time that was ordered: until all connections are open, and for the last answers."""
ID, TEXT, FILLING, TRACE = b"\x01", b"\x02", b"\x03", b"\x04"
"""The marks in a head or a body, as `load.c` knows them."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A call with marks where it differs from the one before. `filling`: bytes at most."""

    head: bytes
    body: bytes
    proof: bytes
    filling: int


@dataclass(frozen=True, slots=True)
class Answered:
    wrong: int
    seconds: float
    latencies_s: list[float]


@functools.cache
def program() -> Path | None:
    """The program, which is compiled when this is first asked for; None without a C compiler."""
    return compiled(os.environ.get("CC", "cc"))


def compiled(by: str) -> Path | None:
    """Raises CalledProcessError if the compiler refuses the source."""
    compiler = shutil.which(by)
    if compiler is None:
        return None
    folder = tempfile.mkdtemp(prefix="metamcp-load-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Path(folder) / "load"
    command = [compiler, "-O2", "-o", str(made), str(SOURCE)]
    subprocess.run(command, check=True, timeout=COMPILE_S_MAX)
    return made


def order(
    port: int, speeches: Sequence[Marked], callers: int, seconds: float, *, own: bool
) -> bytes:
    found = b"%d %d %f %d %d\n" % (port, callers, seconds, own, len(speeches))
    for one in speeches:
        sizes = len(one.head), len(one.body), len(one.proof)
        found += b"%d %d %d %d\n" % (*sizes, one.filling) + one.head + one.body + one.proof
    return found


def call(made: Path, ordered: bytes, seconds: float) -> Answered:
    """Raises ConnectionError with the program's own words if the load could not go on."""
    done = subprocess.run(
        [made], input=ordered, capture_output=True, timeout=seconds + START_S_MAX, check=False
    )
    if done.returncode != 0:
        raise ConnectionError(done.stderr.decode() or f"the load ended with {done.returncode}")
    line, _, rest = done.stdout.partition(b"\n")
    calls, wrong, took_s = line.split()
    latencies_s = array.array("d", rest)
    assert len(latencies_s) == int(calls), "as many latencies as calls"
    return Answered(int(wrong), float(took_s), latencies_s.tolist())
