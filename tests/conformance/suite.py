"""Running the official suite, as an npm package, in processes of its own.

Owns: where it is installed, its command line, the folder that it writes. Never: what to run.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Timer
from typing import Any, Self

from tests.conformance.results import Score, Scores, score

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MODULES = HERE / "node_modules"
STAMP = MODULES / ".installed"
NODE = MODULES / "node" / "bin" / "node"
PLAYER = HERE / "player.mjs"
PROGRAM = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

#: A run takes seconds; one in which every scenario waits in vain ends too.
RUN_S_MAX = 240

#: For one scenario of a client, which starts a gateway first.
CLIENT_S_MAX = 120

#: At the end of the name of each scenario's folder.
_TIME = re.compile(r"-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z$")


def missing() -> str:
    """What is missing to run it; nothing if all is there."""
    if not STAMP.exists():
        return "the conformance suite is not installed; `make conformance` installs and runs it"
    return ""


class Players:
    """Processes that have loaded the suite, which takes half a second, one for each run at a time.
    Leaving the `with` block ends them."""

    def __init__(self) -> None:
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Empty):
            while True:
                with self._idle.get_nowait() as process:
                    process.kill()

    def server(self, url: str, revision: str, scenarios: Sequence[str] = ()) -> Scores:
        """Everything the suite has for a server of that revision, or these scenarios of it.

        Without a revision, the suite chooses it by the scenario.
        """
        pinned = ["--spec-version", revision] if revision else []
        if not scenarios:
            return self._run(["server", "--url", url, "--suite", "all", *pinned], "server-")
        found: dict[str, Score] = {}
        for scenario in scenarios:
            words = ["server", "--url", url, "--scenario", scenario, *pinned]
            found |= self._run(words, "server-")
        return found

    def client(self, command: str, revision: str, scenario: str) -> Scores:
        """One scenario for a client; the suite appends the address of its server to the command."""
        limit = ["--timeout", str(CLIENT_S_MAX * 1000)]
        # Those of extensions belong to no revision, and are played in any.
        wanted = ["--scenario", scenario, "--spec-version", revision, "--force"]
        return self._run(["client", "--command", command, *wanted, *limit], "")

    def _run(self, arguments: Sequence[str], prefix: str) -> Scores:
        with tempfile.TemporaryDirectory(prefix="metamcp-conformance-") as folder:
            code, printed = self._play([*arguments, "--output-dir", folder])
            found = collected(Path(folder), prefix)
        assert found, f"the suite reports nothing: {printed}"
        if code and len(found) == 1 and not any(one.lost for one in found.values()):
            # The program under test failed after all checks that saw something of it.
            ((scenario, one),) = found.items()
            return {scenario: Score(one.passed, ("exit-code",), {"exit-code": printed[-500:]})}
        return found

    def _play(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Exit code and the end of the output of a run, in a process that is free or a new one."""
        try:
            process = self._idle.get_nowait()
        except Empty:
            process = start()
        assert process.stdin is not None
        assert process.stdout is not None
        with closing_after(process, RUN_S_MAX):
            process.stdin.write(json.dumps(arguments) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            process.wait()
            return 1, f"ended after {RUN_S_MAX} s or by itself: {process.returncode}"
        self._idle.put(process)
        code, printed = json.loads(line)
        return code, printed


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [NODE, PLAYER, PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "NODE_COMPILE_CACHE": str(MODULES / ".compiled")},
    )


@contextmanager
def closing_after(process: subprocess.Popen[str], seconds: float) -> Generator[None]:
    """End a process that is in this block for so long."""
    timer = Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def collected(folder: Path, prefix: str) -> Mapping[str, Score]:
    found: dict[str, Score] = {}
    for path in folder.rglob("checks.json"):
        name = _TIME.sub("", str(path.parent.relative_to(folder))).removeprefix(prefix)
        checks: list[dict[str, Any]] = json.loads(path.read_text())
        found[name] = score(checks, once=name.startswith("auth/"))
    return found
