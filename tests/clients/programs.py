"""Clients that are programs of their own: ours on the TypeScript SDKs and on the first Python SDK,
and the inspector."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.clients.expected import Seen
from tests.conformance import suite
from tests.live.gateway import ROOT

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
STAMP = MODULES / ".installed"
PYTHON_V1 = ROOT / ".venv" / "python-v1" / "bin" / "python"
"""With the first generation of the Python SDK."""
INSPECTOR = MODULES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"

#: All steps of one client take seconds; one that waits for a fact in vain gives up before this.
RUN_S_MAX = 45


def missing() -> str:
    """What is missing to run them; nothing if all is there."""
    if not STAMP.exists() or suite.missing():
        return "the clients for Node.js are not installed; `make test` installs and runs them"
    return ""


def node(program: Path, *arguments: str, folder: Path | None = None) -> str:
    """What a program says on standard output; it must end well and complain of nothing."""
    env = {**os.environ, "NO_COLOR": "1", "NODE_COMPILE_CACHE": str(MODULES / ".compiled")}
    if folder is not None:
        env["HOME"] = str(folder)
    done = subprocess.run(
        [str(suite.NODE), str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        cwd=ROOT,
        env=env,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout


def typescript(wanted: Mapping[str, Any]) -> Seen:
    """What the client saw that does everything once."""
    seen: Seen = json.loads(node(HERE / "client.mjs", json.dumps(wanted)))
    return seen
