"""What the kernel grants the processes of a server, told to it right after the start.

Owns: resource limits, priority and cgroup of a process that was just started, and the sentence when
one of them cannot be had. Never: how much a server may use (the configuration), measuring.

The limits are set from outside, on a process that runs already, and not between fork and exec: code
of Python there is unsafe beside threads and makes the start of a process dear. The process has had
a fraction of a millisecond then, in which no program forks or opens files in numbers; whatever it
starts later inherits them. A limit of addresses is none of them: the runtimes of JavaScript, Go and
Java reserve far more addresses than they use, and do not start under one.
"""

import contextlib
import os
import resource
import sys

from metamcp_worker.ipc.spec import LimitsSpec

_NONE = LimitsSpec()


def put(pid: int, limits: LimitsSpec) -> str:
    """Put a new process under its limits. Why it cannot run, as a sentence, or nothing.

    A limit that was asked for and cannot be had is a reason. What every server has, no core dumps
    and a high score for when the machine is out of memory, it inherits from its worker.
    """
    if limits == _NONE:
        return ""
    if sys.platform != "linux":
        return "limits of processes are enforced on Linux only; remove them"
    try:
        return (
            _enter(pid, limits.cgroup)
            or _rlimit(pid, resource.RLIMIT_NOFILE, limits.nofile, "nofile_max")
            or _rlimit(pid, resource.RLIMIT_DATA, limits.data_bytes, "memory_max")
            or _give_way(pid, limits.nice)
        )
    except ProcessLookupError:
        return ""  # It has ended already; that is news of its own.


def _rlimit(pid: int, which: int, value: int, key: str) -> str:
    if not value:
        return ""
    _, most = resource.prlimit(pid, which)
    try:
        resource.prlimit(pid, which, (value, value))
    except ProcessLookupError:
        raise
    except (OSError, ValueError):  # ValueError: above what this process may give, without privilege
        own = "less" if most == resource.RLIM_INFINITY else str(most)
        return f"{key} is {value}, and the gateway itself may have {own} only; lower it"
    return ""


def _enter(pid: int, cgroup: str) -> str:
    if not cgroup:
        return ""
    try:
        with open(f"{cgroup}/cgroup.procs", "wb", buffering=0) as file:
            file.write(b"%d" % pid)
    except ProcessLookupError:
        raise
    except OSError as error:
        return f"it cannot be put under the limits of its cgroup '{cgroup}': {error.strerror}"
    return ""


def _give_way(pid: int, nice: int) -> str:
    if nice:
        # A gateway that gives way more than that already is left alone.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
    return ""
