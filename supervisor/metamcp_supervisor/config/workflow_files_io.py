"""Files of workflows and rules, read by a process of its own: YAML and CEL would stay in the
supervisor's memory.

Owns: that process. Never: what the files may hold (`metamcp_worker.engine.load`).
"""

import os
import sys
from pathlib import Path

import msgspec

from metamcp_supervisor.config import environment
from metamcp_supervisor.config.printed_values import program_output
from metamcp_worker.ipc.loaded_workflows import Loaded

LOADED_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of all workflows and rules together, as JSON."""


def load(arguments: tuple[str, ...]) -> Loaded | str:
    """Read the files that these arguments name (`engine.load`). Return a sentence if that is not
    possible."""
    command = (sys.executable, "-P", "-m", "metamcp_worker.engine.load", *arguments)
    given = {name: os.environ[name] for name in environment.passed(os.environ, ["PYTHON*"])}
    what = "the process that reads workflows"
    data, why = program_output(command, Path("/"), given, what, LOADED_BYTES_MAX)
    if why:
        return why
    try:
        return msgspec.json.decode(data, type=Loaded)
    except msgspec.DecodeError as error:
        return f"{what} did not answer as expected: {error}"
