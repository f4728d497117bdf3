"""What the figures were measured on: the machine, the versions, the commit, the floor."""

import compileall
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig
import timeit
from pathlib import Path

from benchmarks import load_c
from benchmarks.direct import over_stdio
from metamcp_worker.ipc import codec

ROOT = Path(__file__).resolve().parent.parent
CHILD = [sys.executable, str(ROOT / "benchmarks" / "child.py")]
PACKAGES = ("metamcp", "httptools", "msgspec", "uvicorn", "uvloop")
ROOMS = {"metamcp_supervisor": "supervisor", "metamcp_worker": "worker"}
COMPILED, PURE = "compiled", "pure"
OPTIMISED = ("--enable-optimizations", "--with-lto")
WORK, WORK_BEFORE = 'd.update(a=1); f"{d}"', "d = {}"
"""What an optimised interpreter does in two thirds of the time."""
LOOPS, LOOKS = 2000, 50


def elsewhere() -> str:
    """Why the gateway that would be measured is not the one of this tree; empty if it is, or if an
    installed wheel, such as a compiled one, has the same sources."""
    for package, room in ROOMS.items():
        spec = importlib.util.find_spec(package)
        where = Path(spec.origin if spec is not None and spec.origin else "/nowhere").parent
        if ROOT not in where.resolve().parents and sources(where) != sources(ROOT / room / package):
            path = os.pathsep.join(str(ROOT / room) for room in ("supervisor", "worker", "."))
            return f"the gateway of {where} would be measured: set PYTHONPATH={path}"
    return ""


def sources(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.py")}


def compile_ahead() -> None:
    """As `pip` does for whoever installs it: no start that is measured compiles modules, and no
    process has in its memory what compiling leaves behind."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for room in ("supervisor", "worker"):
        compileall.compile_dir(ROOT / room, quiet=1)


def machine() -> dict[str, str]:
    return {
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "built": interpreter(),
        "gateway": gateway(),
        "generator": "Python" if load_c.program() is None else "C",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def interpreter() -> str:
    """How the interpreter was built that runs the gateway, the relays and the child, as far as it
    says so itself, and how long it takes for next to nothing: packages of Debian are optimised, and
    do not say so."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS"))
    said = " and ".join(flag for flag in OPTIMISED if flag in arguments) or "no optimisation named"
    shared = "libpython" in Path("/proc/self/maps").read_text()
    where = "in a shared library" if shared else "in the program itself"
    took_s = min(timeit.repeat(WORK, WORK_BEFORE, number=LOOPS, repeat=LOOKS))
    return f"{said}, {where}, {took_s / LOOPS * 1e9:.0f} ns for {WORK}"


def gateway() -> str:
    """`compiled` or `pure`: what is started here runs the same modules."""
    return PURE if codec.__file__.endswith(".py") else COMPILED


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def commit() -> str:
    """What git calls this tree; empty where there is no repository, as in an unpacked archive."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--tags"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def floor(seconds: float, rounds: int) -> float:
    """Calls/s of one caller straight over the pipes of the child, in the best of the rounds."""
    return max(over_stdio(CHILD, 1, seconds).rate for _ in range(rounds))
