"""Confinement of a process by the kernel: Landlock, a filter of system calls, limits of resources.

Owns: the rules and the system calls. Never: starting the process, the permissions of Deno, memory
(`sandbox_process`).

Landlock (Linux 5.13) has no wrapper in the C library, so its three system calls are made by number;
the numbers are the same on all processors. A kernel that knows less gets the rules that it knows:
files from version 1, TCP from 4, signals and abstract sockets from 6. `landlock(7)`, kernel
documentation "Landlock: unprivileged access control".

Landlock leaves UDP and sockets with a path, such as the control socket of the gateway. So a filter
refuses new sockets, and the calls that reach into other processes or are known for faults of the
kernel. `seccomp(2)`.
"""

import contextlib
import ctypes
import errno
import glob
import os
import resource
import struct
import sys

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_FILES_BY_ABI = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""Rights on files by the version that brought them: version 1 all but renaming over folders,
truncation and device calls."""
_TCP_ABI, _TCP = 4, 0b11
_SCOPE_ABI, _SCOPE = 6, 0b11
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
_NO_NEW_PRIVS, _SECCOMP, _FILTER_MODE = 38, 22, 2
REFUSED = {
    "x86_64": (0xC000003E, (
        41, 101, 165, 246, 248, 249, 250, 272, 298, 304, 308, 310, 311, 321, 323, 425, 438,
    )),
    "aarch64": (0xC00000B7, (
        198, 117, 40, 104, 217, 218, 219, 97, 241, 265, 268, 270, 271, 280, 282, 425, 438,
    )),
}  # fmt: skip
"""Number of the architecture, and of system calls that fail with EPERM, by the name of the machine:
socket, ptrace, mount, kexec_load, add_key, request_key, keyctl, unshare, perf_event_open,
open_by_handle_at, setns, process_vm_readv, process_vm_writev, bpf, userfaultfd, io_uring_setup,
pidfd_getfd."""
_X32 = 0x40000000
"""Bit of system calls of another kind, which x86_64 has beside its own."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 if there is none."""
    return max(0, _call(CREATE, None, 0, _VERSION_FLAG)) if sys.platform == "linux" else 0


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
    for which, value in (
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, FILES_MAX),
    ):  # fmt: skip
        resource.setrlimit(which, (value, value))
    os.nice(NICE)
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
        file.write(OOM_SCORE_ADJ)
    if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if version > 0:
        _checked(RESTRICT, _rules(version, program), 0)
    if version >= 0:
        _filter_calls(os.uname().machine)


def _rules(version: int, program: str) -> int:
    """Return a descriptor of rules, with which this process may execute `program`, read libraries,
    and do nothing else with files and TCP. Raises OSError."""
    rights = 0
    for abi, bits in _FILES_BY_ABI:
        rights |= bits if version >= abi else 0
    tcp = _TCP if version >= _TCP_ABI else 0
    scope = _SCOPE if version >= _SCOPE_ABI else 0
    size = 24 if version >= _SCOPE_ABI else 16 if version >= _TCP_ABI else 8
    rules = _checked(CREATE, struct.pack("=QQQ", rights, tcp, scope)[:size], size, 0)
    for path in (program, *(path for pattern in LOADERS for path in glob.glob(pattern))):
        _allow(rules, path, _EXECUTE | _READ_FILE)
    for path in READ:
        _allow(rules, path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
    return rules


def _filter_calls(machine: str) -> None:
    """Refuse some system calls from now on, on machines whose numbers are known, by a kernel that
    can. Raises OSError."""
    if machine not in REFUSED:
        return
    architecture, calls = REFUSED[machine]
    count = len(calls)
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 0, count + 3, architecture), (_LOAD, 0, 0, 0)]
    steps.append((_AT_LEAST, count + 1, 0, _X32))
    steps += [(_EQUAL, count - at, 0, number) for at, number in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in steps))
    order = struct.pack("@HP", len(steps), ctypes.addressof(program))
    if _libc.prctl(_SECCOMP, _FILTER_MODE, order, 0, 0) and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), "seccomp")


def _allow(rules: int, path: str, rights: int) -> None:
    """Add a rule for a path, if it exists. Raises OSError."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _checked(ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _checked(number: int, *arguments: int | bytes | None) -> int:
    found = _call(number, *arguments)
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return found


def _call(number: int, *arguments: int | bytes | None) -> int:
    plain = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *plain))
