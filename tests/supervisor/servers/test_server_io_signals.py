"""A signal reaches the process that is meant, or none."""

import os
import signal
import subprocess

import pytest

from metamcp_supervisor.servers.server_io import deliver

pytestmark = pytest.mark.process


def test_a_process_of_somebody_else_gets_nothing() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        with pytest.raises(ProcessLookupError):
            deliver(child.pid, signal.SIGTERM, parent=1)
        assert child.poll() is None
        deliver(child.pid, signal.SIGTERM, parent=os.getpid())
        assert child.wait() == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        deliver(child.pid, signal.SIGTERM, parent=os.getpid())


def test_a_number_that_the_kernel_does_not_have_is_an_error() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        with pytest.raises(OSError, match="Invalid argument"):
            deliver(child.pid, 1000, parent=os.getpid())
        child.kill()
