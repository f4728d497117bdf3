"""Test files again and again beside a busy loop: a test that fails by chance shows it.

Owns: the order of the runs, the busy loop, what is printed. Never: a verdict on a test; what failed
once is looked at until its cause is known.

    python -m tests.flaky --times 20 --lanes 3 tests/live/test_crash.py
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

BUSY = "while True: pass"
RUN_S_MAX = 1200.0


@contextmanager
def busy_loop() -> Generator[None]:
    """One processor of the machine is busy meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(file: str) -> tuple[str, float, str]:
    """Return the file, the seconds that its tests took, and their output if one failed."""
    start = time.monotonic()
    try:
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode(errors="replace")
        return file, RUN_S_MAX, f"{output}\nThe run was killed after {RUN_S_MAX:.0f} s.\n"
    return file, time.monotonic() - start, tests.stdout if tests.returncode else ""


def main() -> int:
    """Print a line for each run, and the output of those that failed; 1 if any did."""
    options = argparse.ArgumentParser(prog="tests.flaky")
    options.add_argument("--times", type=int, required=True)
    options.add_argument("--lanes", type=int, default=1)
    options.add_argument("files", nargs="+")
    wanted = options.parse_args()
    runs = itertools.chain.from_iterable(itertools.repeat(wanted.files, wanted.times))
    failed = 0
    with busy_loop(), ThreadPoolExecutor(wanted.lanes) as lanes:
        for number, (file, seconds, output) in enumerate(lanes.map(run, runs), 1):
            failed += bool(output)
            outcome = "failed" if output else "passed"
            sys.stdout.write(f"{number:4}  {outcome}  {seconds:6.1f} s  {file}\n{output}")
            sys.stdout.flush()
    sys.stdout.write(f"{failed} of {wanted.times * len(wanted.files)} runs failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
