"""What the tests of commands share: the program as a user installs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import part
from tests.docs.walk import dependencies, offline, wheel
from tests.once import once


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command that README, 'Install', puts into an empty virtual environment."""
    return once(tmp_path_factory, "program", install) / "venv" / "bin" / "metamcp"


def install(folder: Path) -> None:
    """The `pip` of the tests does it: one in the environment takes four seconds to get there."""
    dist, environment = folder / "dist", folder / "venv"
    dist.mkdir()
    wheel(dist)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=60
    )
    (line,) = [line for line in part("README.md", "Install") if line.startswith("pip ")]
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python")
    subprocess.run(
        [*pip, *line.split()[1:]],
        env={**os.environ, **offline(dist)}, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    dependencies(environment)
