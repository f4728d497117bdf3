"""Running the official suite, as an npm package, in a process of its own.

Owns: where it is installed, its command line, the folder that it writes. Never: what to run.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.results import Score, Scores, score

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MODULES = HERE / "node_modules"
STAMP = MODULES / ".installed"
NODE = MODULES / "node" / "bin" / "node"
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


def server(url: str, revision: str, scenarios: Sequence[str] = ()) -> Scores:
    """Everything the suite has for a server of that revision, or these scenarios of it.

    Without a revision, the suite chooses it by the scenario.
    """
    pinned = ["--spec-version", revision] if revision else []
    if not scenarios:
        return run(["server", "--url", url, "--suite", "all", *pinned], "server-")
    found: dict[str, Score] = {}
    for scenario in scenarios:
        found |= run(["server", "--url", url, "--scenario", scenario, *pinned], "server-")
    return found


def client(command: str, revision: str, scenario: str) -> Scores:
    """One scenario for a client; the suite appends the address of its server to the command."""
    limit = ["--timeout", str(CLIENT_S_MAX * 1000)]
    # Those of extensions belong to no revision, and are played in any.
    wanted = ["--scenario", scenario, "--spec-version", revision, "--force"]
    return run(["client", "--command", command, *wanted, *limit], "")


def run(arguments: Sequence[str], prefix: str) -> Scores:
    with tempfile.TemporaryDirectory(prefix="metamcp-conformance-") as folder:
        done = subprocess.run(
            [str(NODE), str(PROGRAM), *arguments, "--output-dir", folder],
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1", "NODE_COMPILE_CACHE": str(MODULES / ".compiled")},
        )
        found = collected(Path(folder), prefix)
    assert found, f"the suite reports nothing: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    if done.returncode and len(found) == 1 and not any(one.lost for one in found.values()):
        # The program under test failed after all checks that saw something of it.
        ((scenario, one),) = found.items()
        reasons = {"exit-code": done.stderr[-500:]}
        return {scenario: Score(one.passed, ("exit-code",), reasons)}
    return found


def collected(folder: Path, prefix: str) -> Mapping[str, Score]:
    found: dict[str, Score] = {}
    for path in folder.rglob("checks.json"):
        name = _TIME.sub("", str(path.parent.relative_to(folder))).removeprefix(prefix)
        checks: list[dict[str, Any]] = json.loads(path.read_text())
        found[name] = score(checks, once=name.startswith("auth/"))
    return found
