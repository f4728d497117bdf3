"""What is measured is the gateway of this tree, and the page says how it was built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.machine import COMPILED, PURE, ROOMS, ROOT


@pytest.mark.process
def test_an_installed_gateway_is_measured_if_it_has_the_sources_of_this_tree(
    tmp_path: Path,
) -> None:
    for package, room in ROOMS.items():
        shutil.copytree(ROOT / room / package, tmp_path / package)
    assert elsewhere(tmp_path) == ""
    with (tmp_path / "metamcp_worker" / "__init__.py").open("a") as changed:
        changed.write("# changed\n")
    assert f"the gateway of {tmp_path / 'metamcp_worker'} would be measured" in elsewhere(tmp_path)


def elsewhere(installed: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from benchmarks import machine; print(machine.elsewhere())"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.process
def test_a_run_knows_how_the_gateway_its_interpreter_and_its_load_were_built() -> None:
    found = machine.machine()
    assert found["gateway"] in {COMPILED, PURE}
    assert found["generator"] in {"C", "Python"}
    assert " ns for " in found["built"]
