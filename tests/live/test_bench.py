"""Every line of the benchmarks is run once: what is measured works, and every answer is right."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.__main__ import SCENARIOS
from benchmarks.tables import cells
from tests.live.gateway import ROOT

pytestmark = pytest.mark.live

CALLS = (
    "ladder", "clients", "many", "large", "listing", "views", "blocking", "code", "attacks",
    "workflows",
)  # fmt: skip
COSTS = ("counting", "memory", "startup", "confinement", "sessions", "growth", "door", "revocation")
FAULTS = ("recovery", "neighbours", "outage")
QUICK_S_MAX = 150.0
"""Of one part; on a machine with nothing else to do none takes half a minute."""
END_S_MAX = 30.0


def run(*arguments: str) -> str:
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=QUICK_S_MAX)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # so that it stops the gateways that it has started
            out, err = process.communicate(timeout=END_S_MAX)
    assert process.returncode == 0, out[-4000:] + err[-4000:]
    return out


def test_every_scenario_is_in_a_smoke_run() -> None:
    assert {*CALLS, *COSTS, *FAULTS} == set(SCENARIOS)


@pytest.mark.timeout(QUICK_S_MAX + END_S_MAX + 10)
@pytest.mark.parametrize("names", [CALLS, COSTS, FAULTS], ids=["calls", "costs", "faults"])
def test_a_smoke_run_reaches_every_scenario(tmp_path: Path, names: tuple[str, ...]) -> None:
    said = run("benchmarks", "--quick", "--out", str(tmp_path), "--only", *names)
    (kept,) = tmp_path.glob("*.json")
    result = page.read(kept)
    assert tuple(table.scenario for table in result.tables) == names
    assert result.quick
    assert result.wrong == 0
    for table in result.tables:
        assert table.title in said
        assert all(row.figures for row in table.rows), cells(table)


@pytest.mark.timeout(QUICK_S_MAX + END_S_MAX + 10)
def test_a_profile_says_where_the_time_of_a_call_goes() -> None:
    said = run("benchmarks.profile", "--seconds", "0.5")
    for stage in (
        "client, front, worker, child's stdin",
        "the child",
        "front, kernel",
        "all others",
    ):
        assert stage in said
