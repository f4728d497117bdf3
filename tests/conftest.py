"""What holds for every test: with CI=true nothing may be skipped."""

import faulthandler
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import settings

# `make check` chooses it; .ci/run does not. A slow machine fails no test.
settings.register_profile("check", max_examples=25, deadline=None)

ERRORS = pytest.StashKey[int]()
"""Where standard error leads while nothing is captured."""
LAST_WORDS_S = 1.0
"""So long before its time is over the stacks of a test are told."""


class Timed(Protocol):
    """What pytest-timeout says of a test."""

    @property
    def timeout(self) -> float: ...


# What one program of a test has compiled the next one finds; there are thousands of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the longest limits begin first, so that no lane ends long after the others."""
    limits: dict[Path, float] = {}
    tests = Counter(item.path for item in items)
    for item in items:
        mark = item.get_closest_marker("timeout")
        limits[item.path] = max(limits.get(item.path, 0.0), mark.args[0] if mark else 0.0)
    items.sort(key=lambda item: (-limits[item.path], -tests[item.path]))


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


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Timed) -> Generator[None, object, object]:
    """A test whose time is over ends its process. What pytest-timeout says of it goes to standard
    output, which leads nowhere in a lane of `make test`: all that is left is "node down"."""
    left_s = max(settings.timeout - LAST_WORDS_S, settings.timeout / 2)
    faulthandler.dump_traceback_later(left_s, file=item.config.stash[ERRORS])
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Generator[None, object, object]:
    faulthandler.cancel_dump_traceback_later()
    return (yield)
