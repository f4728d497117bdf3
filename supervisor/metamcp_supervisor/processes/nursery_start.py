"""The start of a nursery process.

Owns: executing the nursery, and the one that was forked early, before this program has imported the
rest of itself. Never: its life (`nursery`).

Supervisor and nursery need a common base of modules. A program that begins imports the base once
and forks the nursery; then both import the rest, at once where there are two processors. Two
programs would take a third more processor time, and memory for the base twice. Only the standard
library at the top: whatever is imported here delays both.
"""

import atexit
import contextlib
import gc
import importlib
import os
import resource
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

NO_PROC = "/dev/fd is not there, most likely because /proc is empty; mount proc at /proc"
# Without -P the folder in which the gateway is started could bring modules of its own.
NURSERY = "metamcp_worker.runtime.nursery"
NURSERY_ARGV = ("metamcp_worker", "nursery")
TASKS = "/proc/self/task"
DEFAULT_COMMAND = (sys.executable, "-P", "-m", "metamcp_worker", "nursery")
HANDOVER = "METAMCP_HANDOVER"
"""Variable for a program that takes over a gateway, with its nursery: the number of the descriptor
of the state, or `upgrade_exec.TRIAL`."""
OF_THE_MAIN_PROCESS = ("LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_")
"""Beginnings of variables by which systemd speaks to the main process alone."""

LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
"""Limits that this program changes for itself after it has forked a nursery."""
BASE = (
    "metamcp_worker.access.door",
    "metamcp_worker.access.use_limits",
    "metamcp_worker.confinement.denials",
    "metamcp_worker.http.serve",
    "metamcp_worker.ipc.builtin_definitions",
    "metamcp_worker.ipc.engine_runs",
    "metamcp_worker.ipc.exposed_names",
    "metamcp_worker.ipc.validation",
    "metamcp_worker.runtime.after_fork",
    "metamcp_worker.runtime.memory",
)
"""Modules that a gateway and its nursery both import, with what these import."""

_early: list[tuple[int, socket.socket]] = []
"""The nursery that was forked and that nobody has taken yet: its process, and the supervisor's end
of its control socket."""


def take_early() -> tuple[int, socket.socket] | None:
    """Return the process and the control socket of the nursery that was forked early, once; None if
    there is none."""
    if not _early:
        return None
    pid, ours = _early.pop()
    for limit in LIMITS if hasattr(resource, "prlimit") else ():
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, limit, resource.getrlimit(limit))
    return pid, ours


def execute(
    command: Sequence[str] = DEFAULT_COMMAND,
) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start a nursery. Return it and the supervisor's end of its control socket. Raises
    OSError."""
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


def fork_early() -> None:
    """Fork a nursery now, unless this program takes one over or has loaded its command line
    already, which a nursery is to be without. A nursery that nobody takes ends with this program. A
    failure is reported when a nursery is executed in its place."""
    if HANDOVER in os.environ or "click" in sys.modules or not os.path.exists("/dev/fd"):
        return
    if os.path.exists(TASKS) and len(os.listdir(TASKS)) > 1:
        return  # a fork is only safe with one thread
    from metamcp_worker.runtime import lazy_import

    lazy_import.prepare()
    for module in BASE:
        importlib.import_module(module)
    gc.freeze()  # the collector will not touch, and so not copy, the pages of the base
    with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
        for standard in range(3):  # a socket must not take the number of a closed one
            os.fstat(standard)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        with theirs:
            if not (pid := os.fork()):
                _become_nursery(theirs.fileno())
        undo.pop_all()
        _early.append((pid, ours))
        atexit.register(_end)
    lazy_import.catch_up_hooks()


def _become_nursery(fd: int) -> NoReturn:
    """Run the nursery in the process that was forked for it, to its end."""
    code = os.EX_SOFTWARE
    try:
        os.setsid()  # ^C on the terminal is the supervisor's alone
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # nothing below the nursery writes into the output of the command
        for name in [name for name in os.environ if name.startswith(OF_THE_MAIN_PROCESS)]:
            del os.environ[name]
        if not sys.flags.safe_path:
            del sys.path[0]  # the folder of the program, or the one in which it is started
        sys.argv[:] = NURSERY_ARGV
        # Processes of `multiprocessing` begin as the program does, unless it has no file.
        sys.modules["__main__"] = ModuleType("__main__")
        _rewrite_proc(" ".join(NURSERY_ARGV).encode())
        code = importlib.import_module(NURSERY).main(["--fd", str(fd)])
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(code)


def _rewrite_proc(line: bytes) -> None:
    """Change what /proc shows of this process: `line` as its command line, so that it is not taken
    for the supervisor, and blanks for variables of the main process. Without /proc both stay."""
    with contextlib.suppress(OSError):
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end, at = map(int, fields[_ARGUMENTS])
        with open("/proc/self/environ", "rb") as file:
            variables = file.read().split(b"\0")
        with open("/proc/self/mem", "wb", 0) as memory:
            memory.seek(start)
            memory.write(line[: end - start - 1].ljust(end - start, b"\0"))
            for variable in variables:
                if variable.startswith(_HIDDEN):
                    memory.seek(at)
                    memory.write(bytes(len(variable)))
                at += len(variable) + 1


_ARGUMENTS = slice(45, 48)
"""Where the command line begins and ends, and where the environment begins: fields 48 to 50 of
`/proc/PID/stat`, counted after the name of the process."""
_HIDDEN = tuple(name.encode() for name in OF_THE_MAIN_PROCESS)


def _end() -> None:
    while early := take_early():
        pid, ours = early
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
