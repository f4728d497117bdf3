"""The event loop of the workers: uvloop where it exists. Owns this choice and nothing else."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop

from metamcp_worker import memory


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` to its end on a fresh loop and return its exit code."""
    with asyncio.Runner(loop_factory=_lean) as runner:
        return runner.run(main)


def _lean() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    memory.give_back_zeros(loop)
    return loop
