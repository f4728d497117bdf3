"""How a server ends: asked to, by itself, and together with those who watch it."""

import os
import signal
from pathlib import Path

import pytest

from metamcp_worker.ipc.messages import Spawned, Stop
from tests.waiting import until
from tests.worker.child.worker import SERVER, ChildWorker, alive, ready_worker

pytestmark = pytest.mark.process


def daemon_of(worker: ChildWorker) -> int:
    """Let the server start a process outside its group and session; its pid."""
    front = worker.front(99)
    return int(front.text(front.tool("spawn_daemon")))


def ignores(pid: int, number: signal.Signals) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


@pytest.mark.promise("M10")
def test_a_polite_server_leaves_at_the_end_of_its_input() -> None:
    with ChildWorker() as worker:
        pid = worker.read(Spawned)[0].pid
        worker.ready()
        down = worker.stop()
        assert (down.reason, down.code, down.signal) == ("clean", 0, 0)
        assert worker.logs["stderr"] == []
        assert not alive(pid)


@pytest.mark.promise("M74")
@pytest.mark.parametrize(
    ("flags", "number"),
    [
        (("--ignore-eof",), signal.SIGTERM),
        (("--ignore-eof", "--ignore-term"), signal.SIGKILL),
        (("--deaf", "--ignore-term"), signal.SIGKILL),
    ],
)
def test_a_stubborn_server_is_ended_step_by_step(
    flags: tuple[str, ...], number: signal.Signals
) -> None:
    with ChildWorker(*flags, stop_eof_s=0.1, stop_grace_s=0.2) as worker:
        pid = worker.read(Spawned)[0].pid
        if "--deaf" in flags:
            until(lambda: ignores(pid, signal.SIGTERM), "it is as stubborn as it will be")
        else:
            worker.ready()
        down = worker.stop()
        assert (down.reason, down.code, down.signal) == ("clean", None, number)
        assert not alive(pid)
        log = "\n".join(worker.logs["stderr"])
        assert "metamcp: still there 0.1 s after the end of its input: SIGTERM" in log
        assert ("still there 0.2 s after SIGTERM: SIGKILL" in log) == (number == signal.SIGKILL)


def test_a_stopped_server_is_woken_to_end() -> None:
    with ChildWorker(stop_eof_s=0.1) as worker:
        pid = worker.read(Spawned)[0].pid
        worker.ready()
        os.kill(pid, signal.SIGSTOP)
        assert worker.stop().signal in {0, signal.SIGTERM}
        assert not alive(pid)


@pytest.mark.promise("M74")
def test_a_daemon_of_the_server_goes_with_it() -> None:
    with ChildWorker() as worker:
        worker.ready()
        daemon = daemon_of(worker)
        assert alive(daemon)
        worker.stop()
        assert not alive(daemon)
        assert worker.logs["stderr"] == [
            "metamcp: processes that it had left behind were killed: 1"
        ]


@pytest.mark.promise("M74")
def test_a_wrapper_does_not_hide_the_server() -> None:
    script = '"$@"; exit 0'
    with ChildWorker(command=("/bin/sh", "-c", script, "sh", *SERVER, "--ignore-eof"),
                     stop_eof_s=0.1) as worker:  # fmt: skip
        worker.ready()
        front = worker.front()
        pid = int(front.text(front.tool("pid")))
        worker.stop()
        assert not alive(pid)


@pytest.mark.promise("M75")
@pytest.mark.parametrize(("code", "reason"), [(3, "exit"), (0, "clean")])
def test_a_crash_is_told_to_every_front_and_to_the_supervisor(code: int, reason: str) -> None:
    with ChildWorker() as worker:
        worker.ready()
        daemon = daemon_of(worker)
        one, two = worker.front(1), worker.front(2)
        one.tool("sleep", ms=60_000)
        two.tool("crash", code=code)
        assert one.down() == {"reason": reason, "message": f"it ended with status {code}"}
        assert two.down()["reason"] == reason
        down = worker.down()
        assert (down.reason, down.code, down.probing) == (reason, code, False)
        worker.rest()
        assert worker.process.wait(10) == 1
        assert not alive(daemon)


def test_what_stderr_says_of_the_reason_is_part_of_the_report() -> None:
    with ready_worker() as (worker, front):
        front.tool("crash")
        told = worker.down().message
        assert "; on stderr: crashing with 3; 'metamcp logs " in told
        assert "stderr" not in front.down()["message"]


def test_a_killed_server_is_told_by_its_signal() -> None:
    with ChildWorker() as worker:
        pid = worker.read(Spawned)[0].pid
        worker.ready()
        os.kill(pid, signal.SIGKILL)
        down = worker.down()
        assert (down.reason, down.code, down.signal) == ("signal", None, 9)
        assert down.message == "it was ended by SIGKILL (9)"


def test_an_answer_written_just_before_the_exit_still_arrives() -> None:
    program = """
import sys, json, os
for line in sys.stdin:
    m = json.loads(line)
    if m["method"] == "initialize":
        r = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}}
    elif m["method"] == "last":
        r = {"content": [{"type": "text", "text": "x" * 60000}]}
    else:
        continue
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}).encode() + b"\\n")
    if m["method"] == "last":
        os._exit(0)
"""
    with ready_worker(command=(SERVER[0], "-c", program), era="legacy-first") as (_, front):
        assert front.text(front.call("last")) == "x" * 60000


@pytest.mark.promise("M74")
def test_nothing_outlives_a_supervisor_that_vanishes() -> None:
    with ChildWorker("--ignore-eof", "--ignore-term") as worker:
        pid = worker.read(Spawned)[0].pid
        worker.ready()
        daemon = daemon_of(worker)
        worker.sock.close()
        assert worker.process.wait(10) == 2
        assert not alive(pid)
        assert not alive(daemon)


def test_a_supervisor_that_vanishes_cuts_the_steps_of_a_stop_short() -> None:
    with ChildWorker("--ignore-eof", "--ignore-term", stop_eof_s=60.0) as worker:
        pid = worker.read(Spawned)[0].pid
        worker.ready()
        front = worker.front()
        worker.tell(Stop(grace_s=0.0))
        front.down()
        worker.sock.close()
        until(lambda: not alive(pid), "the server is killed")


def test_a_stop_lets_calls_finish_and_takes_no_more() -> None:
    with ready_worker() as (worker, front):
        slow = front.tool("sleep", ms=400)
        assert front.text(front.tool("echo", text="the slow one is on its way")) != ""
        worker.tell(Stop(grace_s=10))
        assert front.text(slow) == "slept 400 ms"
        assert front.down()["reason"] == "clean"
        assert worker.down().reason == "clean"


def test_a_stop_waits_no_longer_than_its_grace() -> None:
    with ready_worker() as (worker, front):
        front.tool("sleep", ms=60_000)
        assert front.text(front.tool("echo", text="the slow one is on its way")) != ""
        assert worker.stop(grace_s=0.1).reason == "clean"
        assert front.down()["reason"] == "clean"


def test_a_worker_without_a_server_stops_too() -> None:
    with ChildWorker("--hang") as worker:
        worker.read(Spawned)
        assert worker.stop().reason == "clean"


def test_orphans_that_ended_are_reaped_while_the_server_lives() -> None:
    with ChildWorker() as worker:
        worker.ready()
        daemon = daemon_of(worker)
        os.kill(daemon, signal.SIGKILL)
        until(lambda: not os.path.exists(f"/proc/{daemon}"), "the orphan is reaped")
        front = worker.front()
        assert front.text(front.tool("echo", text="alive")) == "alive"
