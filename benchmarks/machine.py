"""What the figures were measured on: the machine, the versions, the commit, the floor."""

import compileall
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks.direct import over_stdio

ROOT = Path(__file__).resolve().parent.parent
CHILD = [sys.executable, str(ROOT / "benchmarks" / "child.py")]
PACKAGES = ("metamcp", "httptools", "msgspec", "uvicorn", "uvloop")


def elsewhere() -> str:
    """Why the gateway that would be measured is not the one of this tree; empty if it is."""
    spec = importlib.util.find_spec("metamcp_supervisor")
    where = Path(spec.origin if spec is not None and spec.origin else "/nowhere")
    if ROOT in where.resolve().parents:
        return ""
    path = os.pathsep.join(str(ROOT / room) for room in ("supervisor", "worker", "."))
    return f"the gateway of {where.parent} would be measured: set PYTHONPATH={path}"


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
        "load": f"{os.getloadavg()[0]:.1f}",
    }


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
