"""System calls that confine a process: Landlock, filters of system calls, privileges.

Owns: numbers of the kernel, rulesets of Landlock, filters of seccomp, calls that change other
processes. Never: which files, ports and further calls a process gets (`rules`, `launch`,
`sandbox.confinement`), starting it (`launch`).

Landlock (Linux 5.13) has no wrapper in the C library, so its three system calls are made by number;
the numbers are the same on all processors. A kernel that knows less gets the rules that it knows:
files from version 1, TCP from 4, signals and abstract sockets from 6. `landlock(7)`, `seccomp(2)`.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable, Mapping

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH, _NET_PORT = 1, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_FILES_BY_ABI = ((1, (1 << 13) - 1), (2, 1 << 13), (3, TRUNCATE), (5, IOCTL_DEV))
"""Rights on files by the version that brought them: version 1 all but renaming over folders,
truncation and device calls."""
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = ((1 << 16) - 1) & ~(_MAKE_CHAR | _MAKE_BLOCK)
"""Rights of files that a process may read and execute, and of those that it may change."""
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
TCP_ABI, _TCP, _CONNECT_TCP = 4, 0b11, 0b10
SCOPE_ABI, _SCOPE = 6, 0b11

_NEW_USER, _NEW_PROCESSES = 0x10000000, 0x20000000
_NO_NEW_PRIVS, _SECCOMP, _FILTER_MODE = 38, 22, 2
_CAP_AMBIENT, _CAP_CLEAR_ALL = 47, 4
_SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _LISTENER_SIZES, _NEW_LISTENER, _UNINTERRUPTED = 1, 3, 1 << 3, 1 << 5
_CAPSET, _CAP_VERSION_3 = {"x86_64": 126, "aarch64": 91}, 0x20080522
MACHINES = ("x86_64", "aarch64")
"""Machines whose system calls have numbers in `CALLS`."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51),
    "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435), "connect": (42, 203),
    "delete_module": (176, 106), "fanotify_init": (300, 262), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "migrate_pages": (256, 238), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "msgctl": (71, 187), "msgget": (68, 186), "msgrcv": (70, 188),
    "msgsnd": (69, 189), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41), "prlimit64": (302, 261), "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "semctl": (66, 191),
    "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "sendmmsg": (307, 269),
    "sendmsg": (46, 211), "sendto": (44, 206), "setdomainname": (171, 162),
    "sethostname": (170, 161), "setns": (308, 268), "setpriority": (141, 140),
    "settimeofday": (164, 170), "shmat": (30, 196), "shmctl": (31, 195), "shmget": (29, 194),
    "socket": (41, 198), "socketpair": (53, 199), "swapoff": (168, 225), "swapon": (167, 224),
    "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}  # fmt: skip
"""Numbers of system calls, in the order of `MACHINES`."""
OF_A_PROCESS = (
    "migrate_pages", "move_pages", "prlimit64", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler",
)  # fmt: skip
"""System calls whose first argument is the process that they change. The kernel allows them for any
process of the same user, and a limit of processor time that has passed ends a process."""
OF_SEVERAL = {"ioprio_set": 1, "setpriority": 0}
"""System calls that change a process, a group or all processes of a user, with the value of the
first argument that means a process; the second is the process."""
SHARED_BY_KEY = (
    "mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop",
    "semtimedop", "shmat", "shmctl", "shmget",
)  # fmt: skip
"""System calls for memory, semaphores and queues that all processes of a user reach, that stay when
their maker has ended, and that no limit of memory counts."""
_X32 = 0x40000000
"""Bit of system calls of another kind, which x86_64 has beside its own."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8
_ALLOW, _ASK, _FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
"""Domains of sockets."""
_STREAM, _SEQUENCED, _TYPE_BITS = 1, 5, 0xF
FAST_OPEN = 0x20000000
"""Flag of calls that send: connect first. Rules of Landlock and filters of `connect` miss it."""
SENDING = {"sendmmsg": 3, "sendmsg": 2, "sendto": 3}
"""System calls that send, with the position of their flags."""

AllowedArguments = Mapping[int, tuple[int, ...]]
"""Values that a system call may get, by the position of the argument. A filter compares the lower
32 bits, which is all that the kernel reads of a pid, a domain or a protocol."""

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 if there is none."""
    return max(0, _call(CREATE, None, 0, _VERSION_FLAG)) if sys.platform == "linux" else 0


def has_filters() -> bool:
    """Whether this kernel takes filters of system calls, on a machine whose calls are known."""
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        return False
    _libc.prctl(_SECCOMP, _FILTER_MODE, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def has_user_namespaces() -> bool:
    """Whether this process may make namespaces of users, and others in them. Tried in a process of
    its own, because some systems refuse only the second."""
    pid = os.fork()
    if pid == 0:
        made = not _libc.unshare(_NEW_USER) and not _libc.unshare(_NEW_PROCESSES)
        os._exit(not made)
    return os.waitpid(pid, 0)[1] == 0


def ruleset(version: int, *, files: bool = True, tcp: bool = False) -> int:
    """Return a descriptor of rules that allow nothing yet: no files, no TCP, and no signals and
    abstract sockets to processes outside, as far as this version of Landlock can. Raises
    OSError."""
    rights = 0
    for abi, bits in _FILES_BY_ABI if files else ():
        rights |= bits if version >= abi else 0
    ports = _TCP if tcp and version >= TCP_ABI else 0
    scope = _SCOPE if version >= SCOPE_ABI else 0
    size = 24 if version >= SCOPE_ABI else 16 if version >= TCP_ABI else 8
    return _checked(CREATE, struct.pack("=QQQ", rights, ports, scope)[:size], size, 0)


def allow(rules: int, version: int, path: str, rights: int) -> None:
    """Add a rule for a path, if it exists. Raises OSError."""
    known = 0
    for abi, bits in _FILES_BY_ABI:
        known |= bits if version >= abi else 0
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            rights &= _OF_A_FILE
        _checked(ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights & known, fd), 0)
    finally:
        os.close(fd)


def allow_port(rules: int, port: int) -> None:
    """Add a rule for connections to a TCP port. Raises OSError."""
    _checked(ADD_RULE, rules, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)


def restrict(rules: int) -> None:
    """Put the rules in force for this process for good. Raises OSError."""
    _checked(RESTRICT, rules, 0)


def no_new_privileges() -> None:
    """Make this process and its programs deaf to set-user-id bits. Raises OSError."""
    if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def drop_capabilities() -> None:
    """Give up all capabilities. With `no_new_privileges` the programs that follow have none either,
    not even those of root. Raises OSError."""
    with open("/proc/self/status", "rb") as file:
        held = [line for line in file if line.startswith((b"CapInh", b"CapPrm"))]
    if not any(int(line.split()[1], 16) for line in held):
        return  # a unit of systemd may refuse the call
    _libc.prctl(_CAP_AMBIENT, _CAP_CLEAR_ALL, 0, 0, 0)
    if number := _CAPSET.get(os.uname().machine):
        _checked(number, struct.pack("=Ii", _CAP_VERSION_3, 0), bytes(24))


def filter_bytes(
    machine: str,
    refused: Iterable[str],
    *,
    flags: int = 0,
    arguments: Mapping[str, AllowedArguments] = {},
    asks: bool = False,
    datagrams: bool = True,
) -> bytes:
    """Return a filter with which these system calls fail with EPERM. `flags`: of `clone` and
    `unshare` that fail too, and `clone3`, whose flags no filter sees, is then unknown; `arguments`:
    calls that fail with other arguments than these; `asks`: whoever has the listener of
    `filter_asking` makes each `connect` in place of the process, and `FAST_OPEN` fails;
    `datagrams`: whether there are unix sockets for datagrams, which carry an address each."""
    at = MACHINES.index(machine)

    def number(name: str) -> int:
        return CALLS[name][at]

    fail, allowed = (_RETURN, 0, 0, _FAIL | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _ARCHITECTURES[machine]), fail]
    steps += [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), fail]
    for name in refused:
        steps += [(_EQUAL, 0, 1, number(name)), fail]
    bits = {"clone": (0, flags), "unshare": (0, flags)} if flags else {}
    if flags:
        steps += [(_EQUAL, 0, 1, number("clone3")), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    if asks:
        bits |= {name: (position, FAST_OPEN) for name, position in SENDING.items()}
        steps += [(_EQUAL, 0, 1, number("connect")), (_RETURN, 0, 0, _ASK)]
    for name in () if datagrams else ("socket", "socketpair"):
        steps += _without_datagrams(number(name), fail)
    for name, (position, forbidden) in bits.items():
        steps += [(_EQUAL, 0, 4, number(name)), _load(position)]
        steps += [(_ANY_BIT, 0, 1, forbidden), fail, allowed]
    for name, values_by_position in arguments.items():
        checks: list[_Step] = []
        for position, values in values_by_position.items():
            checks.append(_load(position))
            checks += [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
            checks.append(fail)
        steps += [(_EQUAL, 0, len(checks) + 1, number(name)), *checks, allowed]
    return b"".join(struct.pack("=HBBI", *step) for step in (*steps, allowed))


_Step = tuple[int, int, int, int]
"""Instruction of a filter: code, jump if true, jump if false, operand."""


def _load(position: int) -> _Step:
    return _LOAD, 0, 0, _FIRST_ARGUMENT + position * _ARGUMENT_BYTES


def _without_datagrams(number: int, fail: _Step) -> list[_Step]:
    """Return the steps that refuse a unix socket for datagrams, and go on for all other sockets."""
    return [
        (_EQUAL, 0, 8, number), _load(0), (_EQUAL, 0, 5, UNIX), _load(1), (_AND, 0, 0, _TYPE_BITS),
        (_EQUAL, 2, 0, _STREAM), (_EQUAL, 1, 0, _SEQUENCED), fail, (_LOAD, 0, 0, _NUMBER),
    ]  # fmt: skip


def only_itself() -> dict[str, AllowedArguments]:
    """Return the arguments with which a process and its programs change the limits and priorities
    of nothing but the caller (0) and this process. Others of their own processes are refused, too,
    for no filter knows their numbers ahead."""
    itself = (0, os.getpid())
    allowed: dict[str, AllowedArguments] = {name: {0: itself} for name in OF_A_PROCESS}
    return allowed | {name: {0: (which,), 1: itself} for name, which in OF_SEVERAL.items()}


def filter_calls(program: bytes) -> None:
    """Put a filter in force for this process for good. Raises OSError."""
    order, _held = _filter_order(program)
    if _libc.prctl(_SECCOMP, _FILTER_MODE, order, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def has_asking() -> bool:
    """Whether a filter can ask another process here, which can copy its sockets: Linux 5.6, and
    not a kernel or a unit that refuses that."""
    if not has_filters():
        return False
    sizes = _call(_SECCOMP_CALL[os.uname().machine], _LISTENER_SIZES, 0, bytes(6))
    _call(CALLS["pidfd_getfd"][0], -1, 0, 0)
    return sizes == 0 and ctypes.get_errno() == errno.EBADF


def filter_asking(program: bytes) -> int:
    """Put a filter that asks in force for this process for good, and return the descriptor of its
    listener; -1 if this process has such a filter already, and this one is not in force. From Linux
    5.19 no signal but a deadly one interrupts a call that waits for the answer. Raises OSError."""
    order, _held = _filter_order(program)
    number = _SECCOMP_CALL[os.uname().machine]
    for flags in (_NEW_LISTENER | _UNINTERRUPTED, _NEW_LISTENER):
        if (listener := _call(number, _SET_FILTER, flags, order)) >= 0:
            return listener
    if (error := ctypes.get_errno()) == errno.EBUSY:
        return -1
    raise OSError(error, f"seccomp: {os.strerror(error)}")


def _filter_order(program: bytes) -> tuple[bytes, object]:
    """Return the argument with which the kernel takes a filter, and the memory that it names."""
    held = ctypes.create_string_buffer(program)
    return struct.pack("@HP", len(program) // 8, ctypes.addressof(held)), held


def copy_descriptor(pidfd: int, number: int) -> int:
    """Return a copy of a descriptor of another process. Raises OSError."""
    return _checked(CALLS["pidfd_getfd"][0], pidfd, number, 0)


def connect(sock: int, address: bytes) -> None:
    """Connect a socket to an address as the kernel has it. Raises OSError."""
    if _libc.connect(sock, address, len(address)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _checked(number: int, *arguments: int | bytes | None) -> int:
    found = _call(number, *arguments)
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"confinement: {os.strerror(error)}")
    return found


def _call(number: int, *arguments: int | bytes | None) -> int:
    plain = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *plain))
