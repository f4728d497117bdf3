"""What memory is measured beside is told with it."""

import subprocess
import sys

import pytest

from benchmarks.scenarios.memory import GATEWAY, remark
from tests.live import processes


def test_figures_that_other_gateways_made_smaller_say_so() -> None:
    assert "Other gateways" not in remark(0)
    assert "Other gateways ran (2)" in remark(2)


@pytest.mark.process
def test_a_gateway_that_runs_is_found_by_its_command() -> None:
    command = [sys.executable, "-c", "input()", "-m", GATEWAY]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.pid in processes.marked(GATEWAY)
        process.kill()
