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
import fcntl
import os
import struct
import sys
from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple

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

_NEW_USER, _NEW_PROCESSES, _THREAD = 0x10000000, 0x20000000, 0x00010000
_NO_NEW_PRIVS, _SECCOMP, _FILTER_MODE = 38, 22, 2
_CAP_AMBIENT, _CAP_CLEAR_ALL = 47, 4
_SET_FILTER, _LISTENER_SIZES, _NEW_LISTENER, _UNINTERRUPTED = 1, 3, 1 << 3, 1 << 5
_CAP_VERSION_3 = 0x20080522
MACHINES = ("x86_64", "aarch64")
"""Machines whose system calls have numbers in `ALLOWED` and `REFUSED`."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED = {
    "accept": (43, 202), "accept4": (288, 242), "access": (21, -1), "adjtimex": (159, 171),
    "alarm": (37, -1), "arch_prctl": (158, -1), "bind": (49, 200), "brk": (12, 214),
    "cachestat": (451, 451), "capget": (125, 90), "capset": (126, 91), "chdir": (80, 49),
    "chmod": (90, -1), "chown": (92, -1), "clock_adjtime": (305, 266), "clock_getres": (229, 114),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "clone": (56, 220),
    "clone3": (435, 435), "close": (3, 57), "close_range": (436, 436), "connect": (42, 203),
    "copy_file_range": (326, 285), "creat": (85, -1), "dup": (32, 23), "dup2": (33, -1),
    "dup3": (292, 24), "epoll_create": (213, -1), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "epoll_wait": (232, -1), "eventfd": (284, -1), "eventfd2": (290, 19), "execve": (59, 221),
    "execveat": (322, 281), "exit": (60, 93), "exit_group": (231, 94), "faccessat": (269, 48),
    "faccessat2": (439, 439), "fadvise64": (221, 223), "fallocate": (285, 47), "fchdir": (81, 50),
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55),
    "fchownat": (260, 54), "fcntl": (72, 25), "fdatasync": (75, 83), "fgetxattr": (193, 10),
    "file_getattr": (468, 468), "flistxattr": (196, 13), "flock": (73, 32), "fork": (57, -1),
    "fremovexattr": (199, 16), "fsetxattr": (190, 7), "fstat": (5, 80), "fstatfs": (138, 44),
    "fsync": (74, 82), "ftruncate": (77, 46), "futex": (202, 98), "futex_requeue": (456, 456),
    "futex_wait": (455, 455), "futex_waitv": (449, 449), "futex_wake": (454, 454),
    "futimesat": (261, -1), "get_mempolicy": (239, 236), "get_robust_list": (274, 100),
    "getcpu": (309, 168), "getcwd": (79, 17), "getdents": (78, -1), "getdents64": (217, 61),
    "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176), "getgroups": (115, 158),
    "getitimer": (36, 102), "getpeername": (52, 205), "getpgid": (121, 155), "getpgrp": (111, -1),
    "getpid": (39, 172), "getppid": (110, 173), "getpriority": (140, 141), "getrandom": (318, 278),
    "getresgid": (120, 150), "getresuid": (118, 148), "getrlimit": (97, 163),
    "getrusage": (98, 165), "getsid": (124, 156), "getsockname": (51, 204), "getsockopt": (55, 209),
    "gettid": (186, 178), "gettimeofday": (96, 169), "getuid": (102, 174), "getxattr": (191, 8),
    "getxattrat": (464, 464), "inotify_add_watch": (254, 27), "inotify_init": (253, -1),
    "inotify_init1": (294, 26), "inotify_rm_watch": (255, 28), "io_cancel": (210, 3),
    "io_destroy": (207, 1), "io_getevents": (208, 4), "io_pgetevents": (333, 292),
    "io_setup": (206, 0), "io_submit": (209, 2), "ioctl": (16, 29), "ioprio_get": (252, 31),
    "ioprio_set": (251, 30), "kill": (62, 129), "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446), "lchown": (94, -1),
    "lgetxattr": (192, 9), "link": (86, -1), "linkat": (265, 37), "listen": (50, 201),
    "listmount": (458, 458), "listxattr": (194, 11), "listxattrat": (465, 465),
    "llistxattr": (195, 12), "lremovexattr": (198, 15), "lseek": (8, 62), "lsetxattr": (189, 6),
    "lsm_get_self_attr": (459, 459), "lsm_list_modules": (461, 461), "lstat": (6, -1),
    "madvise": (28, 233), "map_shadow_stack": (453, 453), "mbind": (237, 235),
    "membarrier": (324, 283), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "mincore": (27, 232), "mkdir": (83, -1), "mkdirat": (258, 34),
    "mknod": (133, -1), "mknodat": (259, 33), "mlock": (149, 228), "mlock2": (325, 284),
    "mlockall": (151, 230), "mmap": (9, 222), "move_pages": (279, 239), "mprotect": (10, 226),
    "mq_getsetattr": (245, 185), "mq_notify": (244, 184), "mq_open": (240, 180),
    "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182), "mq_unlink": (241, 181),
    "mremap": (25, 216), "mseal": (462, 462), "msgctl": (71, 187), "msgget": (68, 186),
    "msgrcv": (70, 188), "msgsnd": (69, 189), "msync": (26, 227), "munlock": (150, 229),
    "munlockall": (152, 231), "munmap": (11, 215), "name_to_handle_at": (303, 264),
    "nanosleep": (35, 101), "newfstatat": (262, 79), "open": (2, -1), "openat": (257, 56),
    "openat2": (437, 437), "pause": (34, -1), "personality": (135, 92), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pipe": (22, -1), "pipe2": (293, 59), "pkey_alloc": (330, 289),
    "pkey_free": (331, 290), "pkey_mprotect": (329, 288), "poll": (7, -1), "ppoll": (271, 73),
    "prctl": (157, 167), "pread64": (17, 67), "preadv": (295, 69), "preadv2": (327, 286),
    "prlimit64": (302, 261), "pselect6": (270, 72), "pwrite64": (18, 68), "pwritev": (296, 70),
    "pwritev2": (328, 287), "read": (0, 63), "readahead": (187, 213), "readlink": (89, -1),
    "readlinkat": (267, 78), "readv": (19, 65), "recvfrom": (45, 207), "recvmmsg": (299, 243),
    "recvmsg": (47, 212), "remap_file_pages": (216, 234), "removexattr": (197, 14),
    "removexattrat": (466, 466), "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276),
    "restart_syscall": (219, 128), "rmdir": (84, -1), "rseq": (334, 293),
    "rseq_slice_yield": (471, 471), "rt_sigaction": (13, 134), "rt_sigpending": (127, 136),
    "rt_sigprocmask": (14, 135), "rt_sigqueueinfo": (129, 138), "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "rt_tgsigqueueinfo": (297, 240),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "sched_getaffinity": (204, 123), "sched_getattr": (315, 275), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_rr_get_interval": (148, 127),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_yield": (24, 124), "seccomp": (317, 277),
    "select": (23, -1), "semctl": (66, 191), "semget": (64, 190), "semop": (65, 193),
    "semtimedop": (220, 192), "sendfile": (40, 71), "sendmmsg": (307, 269), "sendmsg": (46, 211),
    "sendto": (44, 206), "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "setfsgid": (123, 152),
    "setfsuid": (122, 151), "setgid": (106, 144), "setgroups": (116, 159), "setitimer": (38, 103),
    "setpgid": (109, 154), "setpriority": (141, 140), "setregid": (114, 143),
    "setresgid": (119, 149), "setresuid": (117, 147), "setreuid": (113, 145),
    "setrlimit": (160, 164), "setsid": (112, 157), "setsockopt": (54, 208), "setuid": (105, 146),
    "setxattr": (188, 5), "setxattrat": (463, 463), "shmat": (30, 196), "shmctl": (31, 195),
    "shmdt": (67, 197), "shmget": (29, 194), "shutdown": (48, 210), "sigaltstack": (131, 132),
    "signalfd": (282, -1), "signalfd4": (289, 74), "socket": (41, 198), "socketpair": (53, 199),
    "splice": (275, 76), "stat": (4, -1), "statfs": (137, 43), "statmount": (457, 457),
    "statx": (332, 291), "symlink": (88, -1), "symlinkat": (266, 36), "sync": (162, 81),
    "sync_file_range": (277, 84), "syncfs": (306, 267), "sysinfo": (99, 179), "tee": (276, 77),
    "tgkill": (234, 131), "time": (201, -1), "timer_create": (222, 107), "timer_delete": (226, 111),
    "timer_getoverrun": (225, 109), "timer_gettime": (224, 108), "timer_settime": (223, 110),
    "timerfd_create": (283, 85), "timerfd_gettime": (287, 87), "timerfd_settime": (286, 86),
    "times": (100, 153), "tkill": (200, 130), "truncate": (76, 45), "umask": (95, 166),
    "uname": (63, 160), "unlink": (87, -1), "unlinkat": (263, 35), "unshare": (272, 97),
    "uprobe": (336, -1), "uretprobe": (335, -1), "utime": (132, -1), "utimensat": (280, 88),
    "utimes": (235, -1), "vfork": (58, -1), "vmsplice": (278, 75), "wait4": (61, 260),
    "waitid": (247, 95), "write": (1, 64), "writev": (20, 66),
}  # fmt: skip
"""System calls that servers may make, with their numbers in the order of `MACHINES`; -1 where a
machine has no such call. Docker's profile and `@system-service` of systemd are much the same."""
REFUSED = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51),
    "clock_settime": (227, 112), "delete_module": (176, 106), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "file_setattr": (469, 469), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioperm": (173, -1), "iopl": (172, -1), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "listns": (470, 470), "lookup_dcookie": (212, 18), "lsm_set_self_attr": (460, 460),
    "modify_ldt": (154, -1), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224),
    "sysfs": (139, -1), "syslog": (103, 116), "umount2": (166, 39), "uselib": (134, -1),
    "userfaultfd": (323, 282), "ustat": (136, -1), "vhangup": (153, 58),
}  # fmt: skip
"""System calls that servers may not make: they reach into other processes, change the machine or
files by their path, or are known for faults of the kernel. A call that is in neither table is newer
than this one, or no kernel has it: it is unknown to a server. So programs use an older one."""
CALLS = ALLOWED | REFUSED
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
_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT = 0x20, 0x05, 0x15, 0x35, 0x45
_AND, _RETURN = 0x54, 0x06
_STEPS_MAX = 0xFF
"""Maximum steps of a filter that a comparison can pass over."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8
_Step = tuple[int, int, int, int]
"""Instruction of a filter: code, jump if true, jump if false, operand."""
_ALLOW: _Step = (_RETURN, 0, 0, 0x7FFF0000)
_ASK: _Step = (_RETURN, 0, 0, 0x7FC00000)
_FAIL: _Step = (_RETURN, 0, 0, 0x00050000 | errno.EPERM)
_UNKNOWN: _Step = (_RETURN, 0, 0, 0x00050000 | errno.ENOSYS)
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
"""Domains of sockets."""
_STREAM, _SEQUENCED, _TYPE_BITS = 1, 5, 0xF
FAST_OPEN = 0x20000000
"""Flag of calls that send: connect first. Rules of Landlock and filters of `connect` miss it."""
SENDING = {"sendmmsg": 3, "sendmsg": 2, "sendto": 3}
"""System calls that send, with the position of their flags."""

_RECEIVE, _REPLY = 0xC0502100, 0xC0182101
_QUESTION = struct.Struct("=QIIiIQ6Q")
"""Question of a filter: id, thread, flags, number of the call, architecture, place, arguments."""
_ANSWER = struct.Struct("=QqiI")
"""Answer: id, value, negative error number, flags."""
_GOES_ON = 1

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
    return _call_or_raise(CREATE, struct.pack("=QQQ", rights, ports, scope)[:size], size, 0)


def allow(rules: int, version: int, path: str, rights: int) -> None:
    """Add a rule for a path, if it exists. Raises OSError."""
    supported = 0
    for abi, bits in _FILES_BY_ABI:
        supported |= bits if version >= abi else 0
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            rights &= _OF_A_FILE
        _call_or_raise(
            ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights & supported, fd), 0
        )
    finally:
        os.close(fd)


def allow_port(rules: int, port: int) -> None:
    """Add a rule for connections to a TCP port. Raises OSError."""
    _call_or_raise(ADD_RULE, rules, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)


def restrict(rules: int) -> None:
    """Put the rules in force for this process for good. Raises OSError."""
    _call_or_raise(RESTRICT, rules, 0)


def no_new_privileges() -> None:
    """Make this process and its programs deaf to set-user-id bits. Raises OSError."""
    if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def drop_capabilities() -> None:
    """Give up all capabilities. With `no_new_privileges` the programs that follow have none either,
    not even those of root. Raises OSError."""
    with open("/proc/self/status", "rb") as file:
        lines = [line for line in file if line.startswith((b"CapInh", b"CapPrm"))]
    if not any(int(line.split()[1], 16) for line in lines):
        return  # a unit of systemd may refuse the call
    _libc.prctl(_CAP_AMBIENT, _CAP_CLEAR_ALL, 0, 0, 0)
    if os.uname().machine in MACHINES:
        _call_or_raise(number_of("capset"), struct.pack("=Ii", _CAP_VERSION_3, 0), bytes(24))


def filter_bytes(
    machine: str,
    allowed: Collection[str],
    *,
    flags: int = 0,
    arguments: Mapping[str, AllowedArguments] = {},
    asks: bool = False,
    forks: bool = False,
    asked_calls: Collection[str] = (),
    datagrams: bool = True,
) -> bytes:
    """Return a filter that allows these system calls. All others fail with EPERM, and those that
    are not in `CALLS` with ENOSYS. `flags`: of `clone` and `unshare` that fail too, and `clone3`,
    whose flags no filter sees, is then unknown; `arguments`: calls that fail with other arguments
    than these; `asks`: whoever has the listener of `filter_asking` makes each `connect` in place of
    the process, `FAST_OPEN` fails, and it is asked to fail with EPERM, so that it knows of what is
    refused; `asked_calls`: calls about which it is asked, too; `forks`: it judges each new process,
    but no new thread, and `clone3` is unknown, too; `datagrams`: whether there are unix sockets for
    datagrams, which carry an address each."""
    fail = _ASK if asks else _FAIL
    checks: dict[str, list[_Step]] = {name: [] for name in allowed}
    for name in () if datagrams else ("socket", "socketpair"):
        checks[name] += _without_datagrams(fail)
    bits = {"clone": (0, flags), "unshare": (0, flags)} if flags else {}
    if asks:
        bits |= {name: (position, FAST_OPEN) for name, position in SENDING.items()}
    for name, (position, forbidden) in bits.items():
        checks[name] += [_load(position), (_ANY_BIT, 0, 1, forbidden), fail]
    for name, values_by_position in arguments.items():
        for position, values in values_by_position.items():
            checks[name].append(_load(position))
            checks[name] += [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
            checks[name].append(fail)
    if forks:
        checks["clone"] += [_load(0), (_ANY_BIT, 1, 0, _THREAD), _ASK]
    at = MACHINES.index(machine)
    blocks = {numbers[at]: [fail] for numbers in CALLS.values()}
    blocks |= {CALLS[name][at]: [*steps, _ALLOW] for name, steps in checks.items()}
    if flags or forks:
        blocks[CALLS["clone3"][at]] = [_UNKNOWN]
    for name in ("fork", "vfork") if forks else ():
        blocks[CALLS[name][at]] = [_ASK]
    if asks:
        blocks |= {CALLS[name][at]: [_ASK] for name in ("connect", *asked_calls)}
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _ARCHITECTURES[machine]), _FAIL]
    steps += [(_LOAD, 0, 0, _NUMBER), *_search(_ranges(blocks))]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _ranges(blocks: Mapping[int, list[_Step]]) -> list[tuple[int, list[_Step]]]:
    """Return the first number of each range of system calls with the same steps, and these."""
    ranges: list[tuple[int, list[_Step]]] = []
    for number in range(max(blocks) + 2):
        block = blocks.get(number, [_UNKNOWN])
        if not ranges or ranges[-1][1] != block:
            ranges.append((number, block))
    return ranges


def _search(ranges: list[tuple[int, list[_Step]]]) -> list[_Step]:
    """Return the steps that find the range of a number in a binary tree, and its steps."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    first = ranges[middle][0]
    if len(below) <= _STEPS_MAX:
        return [(_AT_LEAST, len(below), 0, first), *below, *above]
    return [(_AT_LEAST, 0, 1, first), (_JUMP, 0, 0, len(below)), *below, *above]


def _load(position: int) -> _Step:
    return _LOAD, 0, 0, _FIRST_ARGUMENT + position * _ARGUMENT_BYTES


def _without_datagrams(fail: _Step) -> list[_Step]:
    """Return the steps that refuse a unix socket for datagrams, and go on for all other sockets."""
    return [
        _load(0), (_EQUAL, 0, 5, UNIX), _load(1), (_AND, 0, 0, _TYPE_BITS),
        (_EQUAL, 2, 0, _STREAM), (_EQUAL, 1, 0, _SEQUENCED), fail,
    ]  # fmt: skip


def only_itself() -> dict[str, AllowedArguments]:
    """Return the arguments with which a process and its programs change the limits and priorities
    of nothing but the caller (0) and this process. Others of their own processes are refused, too,
    for no filter knows their numbers ahead."""
    itself = (0, os.getpid())
    allowed: dict[str, AllowedArguments] = {name: {0: itself} for name in OF_A_PROCESS}
    return allowed | {
        name: {0: (process_kind,), 1: itself} for name, process_kind in OF_SEVERAL.items()
    }


def filter_calls(program: bytes) -> None:
    """Put a filter in force for this process for good. Raises OSError."""
    order, _buffer = _filter_order(program)
    if _libc.prctl(_SECCOMP, _FILTER_MODE, order, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def has_asking() -> bool:
    """Whether a filter can ask another process here, which can copy its sockets: Linux 5.6, and
    not a kernel or a unit that refuses that."""
    if not has_filters():
        return False
    sizes = _call(number_of("seccomp"), _LISTENER_SIZES, 0, bytes(6))
    _call(number_of("pidfd_getfd"), -1, 0, 0)
    return sizes == 0 and ctypes.get_errno() == errno.EBADF


def filter_asking(program: bytes) -> int:
    """Put a filter that asks in force for this process for good, and return the descriptor of its
    listener; -1 if this process has such a filter already, and this one is not in force. From Linux
    5.19 no signal but a deadly one interrupts a call that waits for the answer. Raises OSError."""
    order, _buffer = _filter_order(program)
    number = number_of("seccomp")
    for flags in (_NEW_LISTENER | _UNINTERRUPTED, _NEW_LISTENER):
        if (listener := _call(number, _SET_FILTER, flags, order)) >= 0:
            return listener
    if (error := ctypes.get_errno()) == errno.EBUSY:
        return -1
    raise OSError(error, f"seccomp: {os.strerror(error)}")


class PausedCall(NamedTuple):
    """A system call that waits for an answer. `id`: of the question; `thread`: that makes it."""

    id: int
    thread: int
    name: str
    arguments: tuple[int, ...]


def next_call(listener: int) -> PausedCall:
    """Return the next call that waits. Raises OSError if its process has ended."""
    data = bytearray(_QUESTION.size)
    fcntl.ioctl(listener, _RECEIVE, data)
    number, thread, _, call, _, _, *arguments = _QUESTION.unpack(data)
    return PausedCall(number, thread, call_name(call), tuple(arguments))


def answer(listener: int, question_id: int, error: int = 0, *, goes_on: bool = False) -> None:
    """Let the system call fail with this error, or succeed without one. `question_id`: id of the
    question; `goes_on`: the kernel makes the call. Raises OSError if the process has ended."""
    flags = _GOES_ON if goes_on else 0
    fcntl.ioctl(listener, _REPLY, _ANSWER.pack(question_id, 0, -error, flags))


def _filter_order(program: bytes) -> tuple[bytes, object]:
    """Return the argument with which the kernel takes a filter, and the memory that it names."""
    buffer = ctypes.create_string_buffer(program)
    return struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)), buffer


def call_name(number: int) -> str:
    """Return the name of a system call in `CALLS` by its number on this machine."""
    return _names().get(number, str(number))


@cache
def _names() -> dict[int, str]:
    at = MACHINES.index(os.uname().machine)
    return {numbers[at]: name for name, numbers in CALLS.items()}


def copy_descriptor(pidfd: int, number: int) -> int:
    """Return a copy of a descriptor of another process. Raises OSError."""
    return _call_or_raise(number_of("pidfd_getfd"), pidfd, number, 0)


def connect(sock: int, address: bytes) -> None:
    """Connect a socket to an address as the kernel has it. Raises OSError."""
    if _libc.connect(sock, address, len(address)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def number_of(name: str) -> int:
    """Return the number of a system call on this machine, which is one of `MACHINES`."""
    return CALLS[name][MACHINES.index(os.uname().machine)]


def _call_or_raise(number: int, *arguments: int | bytes | None) -> int:
    result = _call(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"confinement: {os.strerror(error)}")
    return result


def _call(number: int, *arguments: int | bytes | None) -> int:
    plain = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    return int(_libc.syscall(ctypes.c_long(number), *plain))
