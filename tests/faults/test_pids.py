"""The numbers of the dead are given to strangers: no signal of the gateway reaches those."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.live import processes
from tests.live.gateway import Gateway, fake
from tests.waiting import until

LAST = Path("/proc/sys/kernel/ns_last_pid")

pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.access(LAST, os.W_OK), reason="only root chooses a pid"
    ),
]

TRIES = 200
"""Others start processes too, and may get the number that was meant for this one."""


def stranger(pid: int) -> subprocess.Popen[bytes] | None:
    """A process with this very number, leader of a group and a session with it; None if somebody
    else has the number already."""
    for _ in range(TRIES):
        if Path(f"/proc/{pid}").exists():
            return None
        LAST.write_text(str(pid - 1))
        found = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if found.pid == pid:
            return found
        found.kill()
        found.wait()
    return None


def test_strangers_who_got_the_numbers_of_the_dead_are_left_alone() -> None:
    with Gateway({"one": fake(), "two": fake()}) as gateway:
        one, two = gateway.server("one"), gateway.server("two")
        front = gateway.status()["fronts"][0]["pid"]
        dead = [one["pid"], two["worker_pid"], two["pid"], front]
        for pid in dead[0], dead[1], front:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not processes.alive(set(dead)), "all of them are gone")
        strangers = [found for pid in dead if (found := stranger(pid)) is not None]
        assert strangers
        try:
            gateway.wait()
            gateway.ctl("restart", "one", "two", "--wait")
            gateway.ctl("roll")
            gateway.ctl("stop", "one", "--wait")
            assert gateway.stop() == 0
            assert [found.poll() for found in strangers] == [None] * len(strangers)
        finally:
            for found in strangers:
                found.kill()
                found.wait()
