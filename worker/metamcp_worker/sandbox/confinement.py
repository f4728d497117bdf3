"""Confinement of a sandbox: no files, no sockets, few resources.

Owns: the files, system calls and resources of a sandbox. Never: the system calls that confine
(`confinement.kernel`), starting the process, the permissions of Deno, memory (`sandbox_process`).

Landlock leaves UDP and sockets with a path, such as the control socket of the gateway. So a filter
refuses new sockets, and the calls that a server may not make either. A kernel without filters goes
without.
"""

import contextlib
import glob
import os
import resource
import sys

from metamcp_worker.confinement import kernel

READ = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", "/etc/ld.so.cache", "/dev/null",
    "/dev/urandom", "/proc/self/maps",
)  # fmt: skip
"""Shared libraries, and what the C library reads to find the end of the stack."""
LOADERS = ("/lib/ld-*", "/lib64/ld-*", "/lib/*/ld-*", "/usr/lib64/ld-*", "/usr/lib/ld-*")
"""Places of the program that loads shared libraries, which is executed."""
FILES_MAX = 64
"""Open files and sockets of one process; Deno has 20."""
NICE = 5
"""Lower priority: code of users that computes does not delay the process of the sandboxes."""
SESSION_NICE = 10
"""Lower priority of the session of all sandboxes: a kernel that groups processes by session shares
out the processors among sessions first, and `NICE` holds within one. `sched(7)`, "autogroup"."""
OOM_SCORE_ADJ = b"900"
"""The kernel ends these processes first when memory runs out."""
REFUSED = ("socket", "unshare", *kernel.SHARED_BY_KEY)
"""System calls that fail in a sandbox, beside those that no server may make."""


def lower_session() -> bool:
    """Lower the priority of the session of this process beside others, so that code of users that
    computes delays no front. Return whether there is nothing left to do: the kernel lets users
    other than root do so every 100 ms only, all together."""
    if os.getsid(0) != os.getpid():
        return True
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(SESSION_NICE))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def confine(version: int, program: str) -> None:
    """Confine this process for good, and `program`, which it is about to execute. `version`: of
    Landlock, 0 if there is none, -1 to go without it and without the filter. Raises OSError."""
    for limit, value in (
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, FILES_MAX),
    ):  # fmt: skip
        resource.setrlimit(limit, (value, value))
    os.nice(NICE)
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
        file.write(OOM_SCORE_ADJ)
    kernel.no_new_privileges()
    if version > 0:
        kernel.restrict(_rules(version, program))
    if version >= 0 and kernel.has_filters():
        allowed = kernel.ALLOWED.keys() - set(REFUSED)
        kernel.filter_calls(kernel.filter_bytes(os.uname().machine, allowed))


def _rules(version: int, program: str) -> int:
    """Return a descriptor of rules, with which this process may execute `program`, read libraries,
    and do nothing else with files and TCP. Raises OSError."""
    rules = kernel.ruleset(version, tcp=True)
    for path in (program, *(path for pattern in LOADERS for path in glob.glob(pattern))):
        kernel.allow(rules, version, path, kernel.EXECUTE | kernel.READ_FILE)
    for path in READ:
        kernel.allow(rules, version, path, kernel.READ_FILE | kernel.READ_DIR)
    return rules
