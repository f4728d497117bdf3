"""Features leave: without their folders and their lines in the list, the rest builds and serves."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from metamcp_supervisor.features import FEATURES
from tests.packages.checkout import built, checkout, run

#: Feature -> its folders in the worker.
FOLDERS = {
    "results": (),
    "consent": (),
    "console": (),
    "workflows": ("engine",),
    "embeddings": ("embedder",),
    "code_mode": ("sandbox",),
    "audit": ("audit",),
    "middleware": ("middleware",),
}
RELAY = "tests/live/test_relay.py"
CORE = (RELAY, "tests/live/test_operations.py", "tests/supervisor/servers")
"""Tests of servers that are called, started, restarted and reloaded."""


def farewell(folder: Path, features: Sequence[str]) -> Path:
    """A copy of everything but these features."""
    copy = checkout(folder / "copy")
    names = copy / "supervisor" / "metamcp_supervisor" / "features.py"
    for feature in features:
        shutil.rmtree(copy / "supervisor" / "metamcp_supervisor" / feature)
        for package in FOLDERS[feature]:
            shutil.rmtree(copy / "worker" / "metamcp_worker" / package)
        text = names.read_text()
        assert text.count(f'"{feature}",') == 1
        names.write_text(text.replace(f'"{feature}",', ""))
    return copy


def check(copy: Path, *tests: str) -> None:
    environ = {"PYTHONPATH": f"{copy}/supervisor:{copy}/worker:{copy}"}
    run(sys.executable, "-m", "pytest", "-q", *tests, cwd=copy, environ=environ)


def test_it_is_known_of_every_feature_what_leaves_with_it() -> None:
    assert set(FOLDERS) == set(FEATURES)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("feature", ["console", "audit", "embeddings"])
def test_a_gateway_without_it_serves(tmp_path: Path, feature: str) -> None:
    check(farewell(tmp_path, [feature]), RELAY)


@pytest.mark.process
@pytest.mark.timeout(600)
def test_without_any_feature_everything_builds_and_the_core_passes_its_tests(
    tmp_path: Path,
) -> None:
    copy = farewell(tmp_path, FEATURES)
    built(copy, tmp_path / "built", "wheel")
    check(copy, *CORE)
