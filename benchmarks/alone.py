"""One server started by hand, without a gateway: how long it takes to its first answer."""

import subprocess
import time
from collections.abc import Sequence

PROBE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


def alone(command: Sequence[str]) -> float:
    """Seconds from the start of the process to an answer of any kind."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(PROBE)
        child.stdin.flush()
        child.stdout.readline()
        took = time.perf_counter() - start
        child.stdin.close()
        child.wait(timeout=10)
    return took
