"""Another program that has the database open, and keeps it locked for as long as it is told to."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.readline()
database.execute("ROLLBACK")
database.close()
"""


class Lock:
    """`release` ends it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def release(self) -> None:
        """Returns when it is open again."""
        self._process.communicate("\n", timeout=20)


@contextmanager
def locked(path: Path) -> Generator[Lock, None, None]:
    """Nobody reads or writes this file until it is released, at the latest at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield Lock(process)
        finally:
            process.kill()
