"""What the tests of commands share: the program as a user installs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import part
from tests.docs.walk import dependencies, offline, wheel


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command that README, 'Install', puts into an empty virtual environment."""
    dist, folder = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("venv")
    wheel(dist)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=60)
    (install,) = [line for line in part("README.md", "Install") if line.startswith("pip ")]
    subprocess.run(
        [folder / "bin" / install.split()[0], *install.split()[1:]],
        env={**os.environ, **offline(dist)}, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    dependencies(folder)
    return folder / "bin" / "metamcp"
