"""A worker and a server that does not answer any more."""

import os
import select
import signal
import time
from pathlib import Path

import pytest

from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.messages import Heartbeat, LogLines, Spawned
from metamcp_worker.runtime import after_fork
from tests.waiting import until
from tests.worker.child.test_inprocess import hosted
from tests.worker.child.worker import ChildWorker, alive

pytestmark = [pytest.mark.process, pytest.mark.promise("M73")]

OFTEN_S = 0.4


def missed(worker: ChildWorker) -> int:
    """The next beat's number of missed probes that is not 0."""
    while not (found := worker.read(Heartbeat)[0].probes_missed):
        pass
    return found


def logged(worker: ChildWorker, text: str) -> None:
    """Wait for a line with this text in the server's log."""
    while not any(text in line for line in worker.logs["stderr"]):
        worker.read(LogLines)


def test_a_server_that_answers_no_probe_is_ended_and_its_calls_are_answered() -> None:
    with ChildWorker(probe_interval_s=OFTEN_S, timeout_s=0.5, stop_eof_s=0.1) as worker:
        front, pid = worker.front(), worker.read(Spawned)[0].pid
        worker.ready()
        assert front.text(front.tool("deafen")) == "reads no more"
        number = front.tool("echo", text="anybody?")
        assert front.error(number)["code"] == Code.TIMED_OUT
        assert missed(worker) in {1, 2}
        assert front.down()["reason"] == "hang"
        down = worker.down()
        assert down.reason == "hang"
        assert down.message.startswith("it has not answered a server/discover for ")
        assert not alive(pid)


def test_half_an_answer_holds_nothing_but_its_own_call_and_is_no_sign_of_life() -> None:
    with ChildWorker(probe_interval_s=OFTEN_S, timeout_s=0.5, stop_eof_s=0.1) as worker:
        front = worker.front()
        worker.ready()
        assert front.error(front.tool("half"))["code"] == Code.TIMED_OUT
        assert front.down()["reason"] == "hang"
        assert worker.down().reason == "hang"


def test_a_stopped_server_is_described_and_goes_on_unharmed() -> None:
    with ChildWorker(probe_interval_s=30.0) as worker:
        front, pid = worker.front(), worker.read(Spawned)[0].pid
        worker.ready()
        os.kill(pid, signal.SIGSTOP)
        logged(worker, "metamcp: it was stopped by a signal")
        os.kill(pid, signal.SIGCONT)
        logged(worker, "metamcp: it goes on")
        assert front.text(front.tool("pid")) == str(pid)


def test_a_module_whose_loop_is_blocked_for_good_is_ended_with_its_worker(tmp_path: Path) -> None:
    often = {"probe_interval_s": OFTEN_S, "timeout_s": 0.5, "stop_eof_s": 0.1, "stop_grace_s": 0.1}
    with hosted(tmp_path, "app", **often) as worker:
        front = worker.front()
        worker.ready()
        front.tool("block", s=3600)
        assert front.down()["reason"] == "hang"
        assert worker.down().reason == "hang"
        worker.rest()
        assert any(
            "hosted_server.py" in line and "in block" in line for line in worker.logs["stderr"]
        )


SHARED = (
    "import os; from metamcp_worker.ipc.messages import Fork; "
    "from metamcp_worker.runtime import after_fork; "
    "after_fork.settle(Fork(ticket=1, role='child', name='fake#1'), os.open({!r}, os.O_RDWR)); "
)


def test_a_worker_without_work_sleeps_and_its_pulse_says_until_when(tmp_path: Path) -> None:
    file = tmp_path / "pulse"
    file.write_bytes(b"")
    worker = ChildWorker()
    worker.run = SHARED.format(str(file)) + worker.run
    with worker, file.open("rb") as shared:
        front = worker.front()
        worker.ready()

        def beat_at() -> float:
            return (after_fork.read_pulse(shared.fileno()) or (0.0, 0.0))[0]

        until(lambda: beat_at() > time.monotonic(), "it sleeps")
        while select.select([worker.sock], [], [], 0)[0]:
            packets.receive(worker.sock)
        first = beat_at()
        until(lambda: beat_at() != first, "it woke up and sleeps again")
        assert beat_at() > first > time.monotonic() - 2 * after_fork.BEAT_S
        assert not select.select([worker.sock], [], [], 0)[0], "it tells nothing meanwhile"
        number = front.tool("work", ms=1500)
        until(lambda: beat_at() < time.monotonic(), "the call wakes it")
        while worker.read(Heartbeat)[0].inflight == 0:
            pass
        assert front.text(number) == "worked"
