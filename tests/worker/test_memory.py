"""Memory that large messages took is given back."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from metamcp_worker import memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

assert memory.give_back_large_blocks()
before = resident()
for _ in range(3):
    bodies = [b"x" * (16 * 1024 * 1024) for _ in range(4)]
    assert resident() - before > 60 * 1024 * 1024
    small = [bytes(2000) for _ in range(100)]
    del bodies
print(resident() - before)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_as_small_after_large_messages_as_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=30, check=True
    )
    assert int(done.stdout) < 4 * 1024 * 1024
