"""The early start of a nursery: who gets it, and that it ends with the program that started it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest

from metamcp_supervisor.processes import nursery_start
from tests.live.processes import alive
from tests.waiting import until

pytestmark = pytest.mark.process

EARLY = "from metamcp_supervisor.processes import nursery_start as start; start.execute_early(); "
SHOW = "print(*(process.pid for process, _ in start._early), flush=True); "


def started(rest: str, environ: Mapping[str, str] = {}) -> subprocess.Popen[str]:
    """A program that starts a nursery early, prints its pid, and does the rest."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", EARLY + SHOW + rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


def test_the_one_that_was_started_early_is_the_one_that_is_used() -> None:
    with started("first = start.execute()[0]; print(first.pid); first.kill()") as program:
        early, used = program.communicate(timeout=60)[0].split()
        assert early == used


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_CORE"])
def test_it_has_the_limits_of_the_program_that_uses_it(limit: str) -> None:
    limited = (
        f"import resource as r; r.setrlimit(r.{limit}, (99, 99)); first = start.execute()[0]; "
        f"print(*r.prlimit(first.pid, r.{limit})); first.kill()"
    )
    with started(limited) as program:
        assert program.communicate(timeout=60)[0].split()[1:] == ["99", "99"]


def test_it_ends_with_a_program_that_does_not_use_it() -> None:
    with started("raise SystemExit(78)") as program:
        pid = int(program.communicate(timeout=60)[0])
        assert program.returncode == 78
        assert not alive({pid})


def test_it_ends_with_a_program_that_is_killed() -> None:
    with started("input()") as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        os.kill(program.pid, signal.SIGKILL)
        until(lambda: not alive({pid}), "the nursery has ended")


@pytest.mark.parametrize("standard", [0, 2])
def test_none_is_started_whose_socket_would_be_a_standard_stream(standard: int) -> None:
    closing = f"import os; os.close({standard}); "
    command = [sys.executable, "-P", "-c", closing + EARLY + SHOW]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.stdout == "\n"


def test_a_program_that_takes_over_a_gateway_starts_none() -> None:
    with started("", {nursery_start.HANDOVER: "trial"}) as program:
        assert program.communicate(timeout=60)[0] == "\n"
