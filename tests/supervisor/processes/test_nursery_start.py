"""The nursery that is forked early: who gets it, what it does not inherit, and that it ends with
the program that forked it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from metamcp_supervisor.processes import nursery_start
from metamcp_worker.runtime import nursery
from tests.live.processes import alive
from tests.waiting import until

pytestmark = pytest.mark.process

EARLY = "from metamcp_supervisor.processes import nursery_start as start; start.fork_early(); "
SHOW = "print(*(pid for pid, _ in start._early), flush=True); "


def started(rest: str, environ: Mapping[str, str] = {}) -> subprocess.Popen[str]:
    """A program that forks a nursery early, prints its pid, and does the rest."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", EARLY + SHOW + rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


def loaded(*modules: str) -> set[str]:
    """Which modules of this project a program has after it imported these."""
    code = (
        "import importlib, sys; from metamcp_worker.runtime import lazy_import as lazy; "
        "lazy.prepare(); "
        "[importlib.import_module(name) for name in sys.argv[1:]]; "
        "print(*(name for name in sys.modules if name.startswith('metamcp_')))"
    )
    command = [sys.executable, "-P", "-c", code, *modules]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_the_base_is_what_a_gateway_and_its_nursery_both_import() -> None:
    base = loaded(*nursery_start.BASE)
    supervisor = loaded("metamcp_supervisor.cli.up", "metamcp_supervisor.gateway.gateway")
    both = supervisor & loaded("metamcp_worker.runtime.nursery", *nursery.PRELOAD)
    assert (both - base, base - both) == (set(), set())


def test_it_is_taken_once() -> None:
    twice = "import os; first = start.take_early(); print(first[0], start.take_early()); "
    with started(f"{twice}os.kill(first[0], 9)") as program:
        early, taken, again = program.communicate(timeout=60)[0].split()
        assert (taken, again) == (early, "None")


def test_it_is_not_the_supervisor_for_those_who_look_for_it_by_its_command_line() -> None:
    with started("input()") as program:
        assert program.stdout is not None
        file = Path(f"/proc/{int(program.stdout.readline())}/cmdline")
        until(lambda: file.read_bytes().rstrip(b"\0") == b"metamcp_worker nursery", "it is named")
        program.communicate("\n", timeout=60)


def test_it_has_no_variables_folder_or_file_of_the_program_that_forked_it() -> None:
    show = (
        "import os, sys; sys.path.insert(0, 'here'); "
        "from metamcp_worker.runtime import nursery; "
        "nursery.main = lambda _: print(os.getsid(0) == os.getpid(), "
        "'NOTIFY_SOCKET' in os.environ, 'here' in sys.path, sys.argv, "
        "hasattr(sys.modules['__main__'], '__file__'), file=sys.stderr) or 0; "
    )
    done = subprocess.run(
        [sys.executable, "-c", show + EARLY + "os.waitpid(start._early.pop()[0], 0)"],
        env={**os.environ, "NOTIFY_SOCKET": "@nobody", "PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == "True False False ['metamcp_worker', 'nursery'] False\n"


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_CORE"])
def test_it_has_the_limits_of_the_program_that_uses_it(limit: str) -> None:
    limited = (
        f"import resource as r; r.setrlimit(r.{limit}, (99, 99)); pid = start.take_early()[0]; "
        f"print(*r.prlimit(pid, r.{limit})); import os; os.kill(pid, 9)"
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
def test_none_is_forked_whose_socket_would_be_a_standard_stream(standard: int) -> None:
    closing = f"import os; os.close({standard}); "
    command = [sys.executable, "-P", "-c", closing + EARLY + SHOW]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.stdout == "\n"


def test_a_program_that_is_read_a_second_time_forks_none() -> None:
    with started("import click; start.fork_early(); print(len(start._early))") as program:
        assert program.communicate(timeout=60)[0].split()[1:] == ["1"]


def test_a_program_with_a_second_thread_forks_none() -> None:
    threads = "import threading; threading.Thread(target=input, daemon=True).start(); "
    command = [sys.executable, "-P", "-c", threads + EARLY + "print(start._early)"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "[]\n"
        program.communicate("\n", timeout=60)


def test_a_program_that_takes_over_a_gateway_forks_none() -> None:
    with started("", {nursery_start.HANDOVER: "trial"}) as program:
        assert program.communicate(timeout=60)[0] == "\n"
