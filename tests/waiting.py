"""Waiting for a fact, bounded: the only place in the tests that lets time pass."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 60.0
STEP_S = 0.02


def until(fact: Callable[[], T], what: str, within_s: float = WAIT_S) -> T:
    """The first true value of `fact()`; fails with `what` when it does not come in time."""
    end = time.monotonic() + within_s
    while True:
        found = fact()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(STEP_S)
