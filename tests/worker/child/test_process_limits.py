"""Limits of a server's processes, as the server itself finds them."""

import json
import os
import resource
import sys
from pathlib import Path

import pytest

from metamcp_worker.child import process
from metamcp_worker.ipc.messages import Spawned
from metamcp_worker.ipc.spec import LimitsSpec
from tests.worker.child.worker import ChildWorker, alive

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="limits are put by Linux only"),
]
MIB = 1024 * 1024


def started(worker: ChildWorker) -> int:
    pid = worker.read(Spawned)[0].pid
    worker.ready()
    return pid


@pytest.mark.promise("M76")
def test_a_server_has_the_limits_it_was_given_and_so_has_what_it_starts() -> None:
    given = LimitsSpec(nofile=64, data_bytes=512 * MIB, nice=5)
    with ChildWorker(limits=given) as worker:
        pid = started(worker)
        front = worker.front()
        daemon = int(front.text(front.tool("spawn_daemon")))
        for each in (pid, daemon):
            assert resource.prlimit(each, resource.RLIMIT_NOFILE) == (64, 64)
            assert resource.prlimit(each, resource.RLIMIT_DATA) == (512 * MIB, 512 * MIB)
            assert os.getpriority(os.PRIO_PROCESS, each) >= 5
        assert resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE)[0] != 64
        worker.stop()


@pytest.mark.promise("M76")
def test_a_server_over_its_data_limit_fails_its_own_call_and_lives_on() -> None:
    with ChildWorker(limits=LimitsSpec(data_bytes=256 * MIB)) as worker:
        started(worker)
        front = worker.front()
        error = front.error(front.tool("leak", mib=512))
        assert "memory" in json.dumps(error)
        assert front.text(front.tool("echo", text="still here")) == "still here"
        worker.stop()


@pytest.mark.promise("M76")
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (LimitsSpec(nofile=2**31 - 1), "nofile_max is 2147483647, and the gateway itself may have"),
        (LimitsSpec(cgroup="/none/such"), "it cannot be put under the limits of its cgroup"),
    ],
)
def test_a_server_does_not_run_without_a_limit_that_was_asked_for(
    given: LimitsSpec, sentence: str
) -> None:
    with ChildWorker(limits=given) as worker:
        down = worker.down()
        assert down.reason == "spawn"
        assert down.message.startswith(f"cannot start fake: {sentence}")
        worker.rest()
        assert not alive(worker.process.pid) or worker.process.wait(10) is not None


def test_a_server_is_put_into_its_control_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    with ChildWorker(limits=LimitsSpec(cgroup=str(tmp_path))) as worker:
        pid = started(worker)
        assert (tmp_path / "cgroup.procs").read_text() == str(pid)
        worker.stop()


def test_a_process_that_has_ended_already_needs_no_limits() -> None:
    gone = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(gone, 0)
    assert process.put(gone, LimitsSpec(nofile=64, data_bytes=MIB, nice=5)) == ""
