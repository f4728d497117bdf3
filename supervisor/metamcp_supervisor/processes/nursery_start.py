"""The start of a nursery process, before this program has imported the rest of itself.

Owns: executing the nursery, and the one that was executed early. Never: its life (`nursery`).

Supervisor and nursery take about as long for their imports, so both import at once where there are
two processors. Only the standard library at the top: whatever is imported here delays both.
"""

import atexit
import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Sequence

NO_PROC = "/dev/fd is not there, most likely because /proc is empty; mount proc at /proc"
# Without -P the folder in which the gateway is started could bring modules of its own.
DEFAULT_COMMAND = (sys.executable, "-P", "-m", "metamcp_worker", "nursery")
HANDOVER = "METAMCP_HANDOVER"
"""Variable for a program that takes over a gateway, with its nursery: the number of the descriptor
of the state, or `upgrade_exec.TRIAL`."""
OF_THE_MAIN_PROCESS = ("LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_")
"""Beginnings of variables by which systemd speaks to the main process alone."""

LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
"""Limits that this program changes for itself after it has started a nursery early."""

NurseryProcess = tuple["subprocess.Popen[bytes]", socket.socket]
"""A nursery, and the supervisor's end of its control socket."""
_early: list[NurseryProcess] = []


def execute(command: Sequence[str] = DEFAULT_COMMAND) -> NurseryProcess:
    """Start a nursery, or return the one that was started early. Raises OSError."""
    if _early and tuple(command) == DEFAULT_COMMAND:
        process, ours = _early.pop()
        for limit in LIMITS if hasattr(resource, "prlimit") else ():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, limit, resource.getrlimit(limit))
        return process, ours
    if not os.path.exists("/dev/fd"):
        raise OSError(NO_PROC)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OF_THE_MAIN_PROCESS)
    }
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        process = subprocess.Popen(
            (*command, "--fd", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=2,  # nothing below the nursery writes into the output of the command
            start_new_session=True,  # ^C on the terminal is the supervisor's alone
        )
        undo.pop_all()
    return process, ours


def execute_early() -> None:
    """Start a nursery now, unless this program takes one over. A nursery that nobody uses ends with
    this program. A failure is reported when it is tried again."""
    if HANDOVER in os.environ:
        return
    with contextlib.suppress(OSError):
        for standard in range(3):  # a socket must not take the number of a closed one
            os.fstat(standard)
        _early.append(execute())
        atexit.register(_end)


def _end() -> None:
    while _early:
        process, ours = _early.pop()
        ours.close()
        process.kill()
        process.wait()
