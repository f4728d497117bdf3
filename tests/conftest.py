"""What holds for every test: with CI=true nothing may be skipped."""

import asyncio
import faulthandler
import gc
import inspect
import json
import math
import os
import re
import signal
import sys
import threading
import time
import types
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

import pytest
import uvloop
from hypothesis import HealthCheck, settings

# `make check` and `make test` choose it, `make test-all` does not. A slow machine fails no test.
# With CI=true the library would try the same examples each time; here they are others in each run,
# and a failure prints the line that tries its example again.
settings.register_profile(
    "check",
    max_examples=25,
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=(HealthCheck.too_slow,),
)

REAL = "live or process"
"""The choice of `make test` for the tests that start processes."""
PURE = "not live and not process"
"""The choice of `make check`."""
REAL_MARK = re.compile(r"\bmark\.(?:live|process)\b")
REAL_FILE = re.compile(r"^pytestmark = (?:\[[^]]*?)?pytest\.mark\.(?:live|process)\b", re.MULTILINE)
"""The mark of all tests in a file."""
DURATIONS = "tests/durations.json"
"""Seconds of each file of these tests, as the last run with METAMCP_DURATIONS measured them."""
NEW_FILE_S = 5.0
"""Seconds that a file counts whose tests were not measured."""
measured: defaultdict[str, float] = defaultdict(float)
ERRORS = pytest.StashKey[int]()
"""Where standard error leads while nothing is captured."""
LAST_WORDS_S = 1.0
"""A lane that hangs has so long to print its stacks."""
LANE_S_MAX = float(os.environ.get("METAMCP_LANE_S_MAX", "1200"))
"""A lane whose test takes longer hangs: no limit of a test is as long, and each was to end it."""
running: dict[str, float] = {}
"""When each test began that a lane runs."""
limit = types.SimpleNamespace(end=math.inf)
"""The `end` of the test that runs in this process, as a time of the monotonic clock."""
COROUTINE_S_MAX = 90.0
"""A test that is a coroutine fails after so long; it ends the process if it goes on (`timeout`)."""
YOUNG_OBJECTS = 10_000
"""New objects after which the collector looks: with 700 it took a twelfth of the pure tests."""
over = threading.Event()
"""Set at the end of the run."""


class Timed(Protocol):
    """What pytest-timeout says of a test."""

    @property
    def timeout(self) -> float: ...


# What one program of a test has compiled the next one finds; there are thousands of them. Pytest
# writes what it made of the tests, which takes three times as long as to read it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Below `nohup`, or behind an `&` in a script, they are ignored, and so they would be by every
# program that a test starts.
for number, usual in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


def spare_ourselves(event: str, arguments: tuple[object, ...]) -> None:
    """A gateway says 0 of a process that is not there just now. To the kernel that is whoever asks,
    and every lane beside, which would end without a word."""
    if event in {"os.kill", "os.killpg"}:
        assert arguments[0] not in (0, -1), "no process has this number"


sys.addaudithook(spare_ourselves)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and what they import stay to the end: nobody need look for garbage there,
    neither while they are collected nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Lanes do not import files of which they run no test."""
    chosen = config.option.markexpr
    if chosen not in (REAL, PURE) or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    unused = REAL_FILE.search(text) if chosen == PURE else not REAL_MARK.search(text)
    return True if unused else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take longest begin first, so that no lane ends long after the others."""
    durations = config.rootpath / DURATIONS
    seconds: dict[str, float] = json.loads(durations.read_text()) if durations.exists() else {}
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], NEW_FILE_S))


def pytest_runtest_logstart(nodeid: str) -> None:
    running[nodeid] = time.monotonic()


def pytest_runtest_logfinish(nodeid: str) -> None:
    running.pop(nodeid, None)


def children() -> list[int]:
    """Processes that this one started."""
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def end_hung_lanes(errors: int) -> None:
    """A lane that is stopped, or whose end a process below it hides, would be waited for until
    somebody ends the run, and nobody would know of which test."""
    while not over.wait(min(10.0, LANE_S_MAX / 4)):
        now = time.monotonic()
        hung = [test for test, began in list(running.items()) if now - began > LANE_S_MAX]
        if not hung:
            continue
        os.write(errors, f"\nA lane hangs in {', '.join(hung)}.\n".encode())
        for pid in children():
            state = Path(f"/proc/{pid}/status").read_text().partition("State:")[2].split("\n")[0]
            os.write(errors, f"process {pid}:{state}\n".encode())
            os.kill(pid, signal.SIGABRT)  # it prints its stacks, if it can
        over.wait(LAST_WORDS_S)
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        os._exit(1)


def end_late_test(errors: int) -> None:
    """End this process, with its stacks, when the time of a test is over: a loop that hangs in its
    own close can be ended from another thread only."""
    while not over.wait(1.0):
        if time.monotonic() > limit.end:
            faulthandler.dump_traceback(file=errors)
            os._exit(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on a loop of its own, of the kind that the workers have if it
    is one of theirs."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def bounded() -> None:
        async with asyncio.timeout(COROUTINE_S_MAX):
            await test(**arguments)

    of_worker = pyfuncitem.nodeid.startswith("tests/worker/")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if of_worker else None) as runner:
        runner.run(bounded())
    return True


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    lanes = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    watch, errors = end_hung_lanes if lanes else end_late_test, config.stash[ERRORS]
    threading.Thread(target=watch, args=(errors,), daemon=True).start()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    measured[report.nodeid.partition("::")[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With METAMCP_DURATIONS the lanes of real processes write how long each file took."""
    over.set()
    lanes = session.config.option.markexpr == REAL and not hasattr(session.config, "workerinput")
    if lanes and "METAMCP_DURATIONS" in os.environ:
        seconds = {path: round(s) for path, s in sorted(measured.items()) if round(s)}
        durations = session.config.rootpath / DURATIONS
        durations.write_text(json.dumps(seconds, indent=1) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """On a user's machine a missing program skips a test, with a reason; in CI it fails it."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ERRORS] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[ERRORS])


def pytest_timeout_set_timer(settings: Timed) -> bool:
    """Set the end of a test. pytest-timeout would start a thread for each test, and wait for its
    end: a third of the time of the pure tests."""
    limit.end = time.monotonic() + settings.timeout
    return True


def pytest_timeout_cancel_timer() -> bool:
    limit.end = math.inf
    return True


def pytest_enter_pdb() -> None:
    limit.end = math.inf
