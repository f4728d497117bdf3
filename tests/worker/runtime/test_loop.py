"""The end of a loop: what is left on it is finished, and what fails then is told once."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

_PROGRAM = """
import asyncio, logging, os, sys, time
from metamcp_worker.runtime import loop

logging.basicConfig(format="%(message)s", stream=sys.stdout)
kept = []

async def waits(what):
    try:
        await asyncio.sleep(100)
    finally:
        print(what)

async def fails():
    try:
        await asyncio.sleep(100)
    finally:
        raise ValueError("at the end")

async def numbers():
    try:
        while True:
            yield 1
    finally:
        print("generator closed")

async def main():
    kept.append(asyncio.create_task(waits("cancelled")))
    kept.append(asyncio.create_task(fails(), name="the task"))
    kept.append(numbers())
    await anext(kept[-1])
    asyncio.get_running_loop().run_in_executor(None, lambda: (time.sleep(0.1), print("thread")))
    await asyncio.sleep(0)
    if sys.argv[1] == "fail":
        raise KeyError("main")
    return 3

try:
    print("code", loop.run(main()))
except KeyError as error:
    print("raised", error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(("way", "last"), [("return", "code 3"), ("fail", "raised 'main'")])
def test_what_is_left_on_a_loop_is_finished_and_what_fails_then_is_told_once(
    way: str, last: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, way],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert {"cancelled", "generator closed", "thread"} <= set(lines)
    assert lines[-1] == last
    assert lines.count("the task failed when it was cancelled at the end") == 1
    assert lines.count("ValueError: at the end") == 1
    assert done.stderr == ""
