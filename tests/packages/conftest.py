"""The packages that several files look at."""

from functools import partial
from pathlib import Path

import pytest

from tests.once import once
from tests.packages.checkout import ROOT, VERSION, checkout, run
from tests.packages.installed import installed


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, as `make wheel` builds and checks them in a checkout with a tag."""
    return once(tmp_path_factory, "tagged", make_wheel) / "dist"


def make_wheel(folder: Path) -> None:
    checkout(folder)
    venv = ROOT / ".venv"
    there = [word for path in (".installed", "packages/.installed") for word in ("-o", venv / path)]
    output = run("make", "wheel", f"VENV={venv}", *there, cwd=folder)
    assert output.count("PASSED") == 2, output


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    return dist / f"metamcp-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="session")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "venv", partial(installed, wheel)) / "bin" / "metamcp"
