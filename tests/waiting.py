"""Waiting for a fact, bounded: the only place in the tests that lets time pass."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 60.0
STEP_S = 0.02
STEP_S_MAX = 0.1
STEP_SHARE = 0.1
"""Looks become as rare as this share of what was waited: a gateway with fifty servers takes three
milliseconds to say how they are, and with a look every 20 ms a seventh of a processor."""


def until(fact: Callable[[], T], what: str, within_s: float = WAIT_S) -> T:
    """The first true value of `fact()`; fails with `what` when it does not come in time."""
    began = time.monotonic()
    while True:
        found = fact()
        if found:
            return found
        waited_s = time.monotonic() - began
        if waited_s > within_s:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(min(max(STEP_S, STEP_SHARE * waited_s), STEP_S_MAX))
