"""What holds for every test: with CI=true nothing may be skipped."""

import gc
import os
import signal
from collections.abc import Generator

import pytest

# What one program of a test has compiled the next one finds; there are thousands of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Below `nohup` it is ignored, and so it would be by every program that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """On a user's machine a missing program skips a test, with a reason; in CI it fails it."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report
