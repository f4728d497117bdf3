"""The packages that several files look at."""

from pathlib import Path

import pytest

from tests.packages.checkout import ROOT, VERSION, checkout, run
from tests.packages.installed import installed


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, as `make wheel` builds and checks them in a checkout with a tag."""
    source = checkout(tmp_path_factory.mktemp("source"))
    venv = ROOT / ".venv"
    there = [word for path in (".installed", "packages/.installed") for word in ("-o", venv / path)]
    output = run("make", "wheel", f"VENV={venv}", *there, cwd=source)
    assert output.count("PASSED") == 2, output
    return source / "dist"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    return dist / f"metamcp-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="session")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("venv"))
