"""Connections and processes of a confined server: the worker judges each `connect`, makes those it
allows, and judges each new process.

Owns: which unix sockets and ports a server reaches, connecting in its place, the mark of its
connections to the gateway, counting its processes, reporting what is refused. Never: the filter
that asks (`confinement.kernel`), files of a server (`confinement.rules`), answers to marked
connections (`front_clients.header_policy`).

The filter of a server in the profile `basic` stops at each `connect` and asks this process, because
Landlock has rules for abstract sockets and TCP ports, and none for sockets with a path. The call of
the server never goes on: another thread could change the address or the descriptor after the look.
The worker copies both, judges the copies, connects its copy of the socket and returns the outcome.
A socket with a path is opened first, so what was judged is what is connected. `seccomp_unotify(2)`.

The filter asks about each system call that fails, too: so the kernel itself reports what a sandbox
refuses, and calls that are allowed cost nothing.

Where no control group holds the number of processes, the filter asks about each fork, too. The call
goes on, as no other thread can change its arguments, which are registers.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import select
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from metamcp_worker.confinement import kernel
from metamcp_worker.confinement.denials import (
    FAMILIES,
    DeniedRight,
    find_needed_right,
    is_granted,
    with_right,
)
from metamcp_worker.confinement.launch import FILE_CALLS, NAMESPACES, ProcessLimit
from metamcp_worker.confinement.rules import FileRights
from metamcp_worker.ipc.spec import CONFINED_HOST

_IS_VALID = 0x40082102
FORKS = ("clone", "fork", "vfork")
"""System calls that make a process."""
ADDRESS_BYTES_MAX = 128
"""Maximum bytes of an address: `struct sockaddr_storage`."""
WAITING_MAX = 256
"""Maximum connections of a server that wait for their other end."""
LEARNT_MAX = 2000
"""Maximum rights that the broker reports for one process in a trial."""
PATH_BYTES_MAX, PAGE_BYTES = 4096, 4096
_AT_CWD = 0xFFFFFF9C
"""Descriptor that stands for the working directory, as an `int` of C without its sign."""
REFUSALS_MAX = 64
"""Maximum different refusals that are reported; a further one counts as another of its kind."""
_PLAIN = (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
_FAMILY_BYTES, _INT, _MAPPED = 2, 0xFFFFFFFF, bytes(10) + b"\xff\xff"
FULL_PAUSE_S = 0.01
"""Seconds until the next try at a unix socket whose queue is full."""
SETTLE_S = 0.1
"""Seconds until a process that was allowed is there and can be counted, on a busy machine."""


class ConnectRules(NamedTuple):
    """Limits of the connections of a server. `folders`: real paths of single unix sockets, and of
    folders below which its sockets are; `hidden`: paths of the gateway; `tcp_ports`: the only ones,
    empty for all; `gateway`: TCP ports of the gateway."""

    folders: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    tcp_ports: tuple[int, ...] = ()
    gateway: tuple[int, ...] = ()


def is_open(path: str, rules: ConnectRules) -> bool:
    """Whether the server may connect to the unix socket at this real path. The deepest rule that
    holds the path decides."""
    above = [
        folder
        for folder in (*rules.folders, *rules.hidden)
        if f"{path}/".startswith(f"{folder.rstrip('/')}/")
    ]
    return bool(above) and max(above, key=len) in rules.folders


def family_of(address: bytes) -> int:
    """Return the family of an address as the kernel has it."""
    return int.from_bytes(address[:_FAMILY_BYTES], sys.byteorder)


def port_of(address: bytes) -> int:
    """Return the port of an IP address as the kernel has it, 0 if it is too short."""
    return int.from_bytes(address[2:4], "big")


def is_loopback(address: bytes) -> bool:
    """Whether this address, as the kernel has it, is this machine by loopback. The unspecified
    address is, too."""
    host = address[4:8] if family_of(address) == socket.AF_INET else address[8:24]
    if host.startswith(_MAPPED):
        host = host[len(_MAPPED) :]
    return host[:1] == b"\x7f" or host in (bytes(4), bytes(16), bytes(15) + b"\x01")


def refused_call(name: str, arguments: tuple[int, ...]) -> DeniedRight:
    """Return the right that a system call lacked which the filter does not allow."""
    domain = arguments[0] & _INT
    if name not in ("socket", "socketpair"):
        return DeniedRight("system_calls", name)
    if domain == socket.AF_UNIX:
        return DeniedRight("datagrams", "")
    if domain in FAMILIES and arguments[2] & _INT in (0, *_PLAIN):
        return DeniedRight("network", FAMILIES[domain])
    return DeniedRight("system_calls", f"socket of family {domain}, protocol {arguments[2] & _INT}")


class RightRefused(PermissionError):
    """The sandbox of the server refuses it this right."""

    def __init__(self, denied: DeniedRight, number: int = errno.EACCES) -> None:
        super().__init__(number, os.strerror(number))
        self.denied = denied


class ConnectBroker:
    """Connects for one server until it ends, and judges its new processes. `listener`: descriptor
    that asks, which it owns; `limit`: of its processes; `on_refusal`: called with each right that
    the server lacked, before it hears of that. `processes`: returns those of the server, and raises
    OSError if this process has no descriptor left. `trial`: files that it could use, if this is a
    trial: then it gets each right that a configuration can give, and `on_refusal` is called once
    for each that it would have lacked."""

    def __init__(
        self,
        listener: int,
        rules: ConnectRules,
        limit: ProcessLimit,
        on_refusal: Callable[[DeniedRight], None],
        processes: Callable[[], Iterator[str]],
        trial: FileRights | None = None,
    ) -> None:
        self._listener = listener
        self._rules = rules
        self._on_refusal = on_refusal
        self._refusals: set[DeniedRight] = set()
        self._trial = trial
        self._limit = limit
        self._processes = processes
        self._count = 1
        """Processes at the last count, and forks since."""
        self._allowed = deque[float]()
        """Times of these forks."""
        self._forks: list[int] = []
        """Questions about forks that wait for the next count."""
        self._loop = asyncio.get_running_loop()
        self._attempts: set[_Attempt] = set()
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._loop.add_reader(listener, self._on_question)

    def close(self) -> None:
        """Judge no more: calls of processes that are left fail with ENOSYS."""
        if self._listener >= 0:
            self._loop.remove_reader(self._listener)
            os.close(self._listener)
            self._listener = -1
        for attempt in list(self._attempts):
            attempt.end(errno.ECONNABORTED)

    def _on_question(self) -> None:
        if not any(event & select.POLLIN for _, event in self._poll.poll(0)):
            self.close()  # the last process of the server has ended
            return
        try:
            call = kernel.next_call(self._listener)
        except OSError:  # the process has ended
            return
        question, thread, name, arguments = call
        if name != "connect":
            if self._is_fork(call):
                self._on_fork(question)
            else:
                self._answer_other(call)
            return
        number, pointer, size, *_ = arguments
        try:
            address, sock = _copy_socket(thread, number & _INT, pointer, size & _INT)
        except OSError as error:
            self._reply(question, error.errno or errno.EPERM)
            return
        attempt = _Attempt(sock, partial(self._reply, question))
        try:
            if not self._waits(question) or len(self._attempts) >= WAITING_MAX:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self._judge(attempt, thread, address)
            attempt.connect()
        except OSError as error:
            if isinstance(error, RightRefused):
                self._tell(error.denied)
            attempt.end(error.errno or errno.EACCES)
        if attempt.waits:
            self._attempts.add(attempt)
            attempt.on_end = partial(self._attempts.discard, attempt)

    def _answer_other(self, call: kernel.PausedCall) -> None:
        """Refuse a call that the filter does not allow. In a trial, note the files of a call and
        let the kernel make it."""
        goes_on = False
        if self._trial is not None and call.name in FILE_CALLS:
            goes_on = True
            for denied in lacked_files(call, self._trial):
                self._tell(denied)
                self._trial = with_right(self._trial, denied)
        else:
            denied = refused_call(call.name, call.arguments)
            goes_on = self._trial is not None and denied.right != "system_calls"
            self._tell(denied)
        self._reply(call.id, errno.EPERM * (not goes_on), goes_on=goes_on)

    def _refuse(self, denied: DeniedRight) -> None:
        """Refuse a connection, or note it in a trial. Raises RightRefused."""
        if self._trial is None:
            raise RightRefused(denied)
        self._tell(denied)

    def _tell(self, denied: DeniedRight) -> None:
        if self._trial is not None:
            if denied not in self._refusals and len(self._refusals) < LEARNT_MAX:
                self._refusals.add(denied)
                self._on_refusal(denied)
            return
        if denied not in self._refusals and len(self._refusals) >= REFUSALS_MAX:
            alike = (refusal for refusal in self._refusals if refusal.right == denied.right)
            denied = next(alike, denied)
        self._refusals.add(denied)
        self._on_refusal(denied)

    def _is_fork(self, call: kernel.PausedCall) -> bool:
        """Whether the filter asks about a new process. Else it does not allow the call."""
        apart = call.name == "clone" and call.arguments[0] & NAMESPACES
        return call.name in FORKS and (self._limit.namespaces or not apart)

    def _on_fork(self, question: int) -> None:
        """Allow or refuse a fork. The processes are counted when the limit seems to be reached,
        because some may have ended; so all forks between two counts pay for one. If that is not
        enough, forks wait until all that were allowed can be counted."""
        if not self._forks and self._count >= self._limit.most:
            self._count_processes()
        if self._forks or self._count >= self._limit.most:
            if not self._forks:
                self._loop.call_later(SETTLE_S, self._on_settled)
            self._forks.append(question)
        else:
            self._judge_fork(question)

    def _on_settled(self) -> None:
        forks, self._forks = self._forks, []
        self._allowed.clear()
        self._count_processes()
        for question in forks:
            self._judge_fork(question)

    def _judge_fork(self, question: int) -> None:
        if self._count < self._limit.most:
            self._count += 1
            self._allowed.append(self._loop.time())
            self._reply(question, 0, goes_on=True)
        else:
            self._reply(question, errno.EAGAIN)

    def _count_processes(self) -> None:
        """Count the processes, and those that were allowed lately once more."""
        while self._allowed and self._allowed[0] < self._loop.time() - SETTLE_S:
            self._allowed.popleft()
        self._count = self._limit.most
        with contextlib.suppress(OSError):  # this process has no descriptor left
            self._count = len(self._allowed) + sum(1 for _ in self._processes())

    def _reply(self, question: int, error: int, *, goes_on: bool = False) -> None:
        with contextlib.suppress(OSError):  # the process has ended
            if self._listener >= 0:
                kernel.answer(self._listener, question, error, goes_on=goes_on)

    def _waits(self, question: int) -> bool:
        """Whether the process still waits, so its number meant this process until now."""
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", question))
            return True
        return False

    def _judge(self, attempt: "_Attempt", thread: int, address: bytes) -> None:
        """Give the attempt the address that it may connect to. Raises OSError."""
        sock = attempt.sock
        attempt.address = address
        if sock.family == socket.AF_UNIX:
            if family_of(address) != socket.AF_UNIX or len(address) == _FAMILY_BYTES:
                return  # the kernel refuses it
            if address[2:3] == b"\0":
                if not _is_own(address, self._processes()):
                    name = address[3:].decode(errors="replace")
                    raise RightRefused(DeniedRight("abstract_sockets", name), errno.EPERM)
            else:
                attempt.opened = self._open(thread, address)
                attempt.address = address[:2] + b"/proc/self/fd/%d\0" % attempt.opened
        elif sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6):
            self._judge_port(sock, address)

    def _open(self, thread: int, address: bytes) -> int:
        """Return a descriptor of the unix socket at this path, so that no link leads elsewhere any
        more. Raises OSError."""
        path = os.fsdecode(address[2:].partition(b"\0")[0])
        opened = os.open(os.path.join(f"/proc/{thread}/cwd", path), os.O_PATH | os.O_CLOEXEC)
        real = os.readlink(f"/proc/self/fd/{opened}")
        with contextlib.suppress(OSError):
            # In a namespace of mounts of the server's own, another file could be at this path.
            if is_open(real, self._rules) and os.path.samestat(os.fstat(opened), os.stat(real)):
                return opened
        try:
            self._refuse(DeniedRight("unix_sockets", os.fsencode(real).decode(errors="replace")))
        except RightRefused:
            os.close(opened)
            raise
        return opened

    def _judge_port(self, sock: socket.socket, address: bytes) -> None:
        """Check the port, and mark a connection to the gateway. Raises OSError."""
        port, rules = port_of(address), self._rules
        if rules.tcp_ports and port not in rules.tcp_ports:
            self._refuse(DeniedRight("tcp_ports", str(port)))
        if port in rules.gateway and is_loopback(address):
            host = CONFINED_HOST
            if sock.family == socket.AF_INET6:
                if not address[8:].startswith(_MAPPED):  # loopback of IPv6 has no second address
                    raise ConnectionRefusedError(
                        errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)
                    )
                host = f"::ffff:{CONFINED_HOST}"
            if sock.getsockname()[0] != host:
                sock.bind((host, 0))


class _Attempt:
    """A connection in the making. `address`: as the kernel has it; `opened`: descriptor of a unix
    socket with a path; `waits`: the other end has not answered yet; `on_end`: called at its end."""

    def __init__(self, sock: socket.socket, reply: Callable[[int], None]) -> None:
        self.sock = sock
        self.address = b""
        self.opened = -1
        self.waits = False
        self.on_end: Callable[[], object] = bool
        self._reply = reply
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._flags = fcntl.fcntl(sock, fcntl.F_GETFL)
        self._blocks = not self._flags & os.O_NONBLOCK

    def connect(self) -> None:
        """Connect, and wait if the process would. Raises OSError."""
        if self._blocks:
            fcntl.fcntl(self.sock, fcntl.F_SETFL, self._flags | os.O_NONBLOCK)
        try:
            kernel.connect(self.sock.fileno(), self.address)
        except BlockingIOError as error:
            if not self._blocks:
                raise
            self._wait(full=error.errno == errno.EAGAIN)
        else:
            self.end(0)

    def end(self, error: int) -> None:
        """Answer the process, 0 if it is connected."""
        if self.waits:
            self._loop.remove_writer(self.sock)
        if self._timer is not None:
            self._timer.cancel()
        if self._blocks:
            fcntl.fcntl(self.sock, fcntl.F_SETFL, self._flags)
        self._reply(error)
        self.sock.close()
        if self.opened >= 0:
            os.close(self.opened)
        self.on_end()

    def _wait(self, *, full: bool) -> None:
        """Wait for the other end, or for room in its queue."""
        if full:
            self.waits = True
            self._timer = self._loop.call_later(FULL_PAUSE_S, self._retry_connect)
        if full or self.waits:
            return
        self.waits = True
        self._loop.add_writer(self.sock, self._retry_connect)
        seconds, microseconds = struct.unpack(
            "@ll", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
        )
        if wait_s := seconds + microseconds / 1e6:
            self._timer = self._loop.call_later(wait_s, self.end, errno.EINPROGRESS)

    def _retry_connect(self) -> None:
        """Go on, or learn the outcome: the second call of `connect` ends the first one."""
        try:
            self.connect()
        except OSError as error:
            self.end(error.errno or errno.EACCES)


_OPENS = {"creat": (-1, 0, -1), "open": (-1, 0, 1), "openat": (0, 1, 2), "openat2": (0, 1, 2)}
"""Calls that open files: positions of the folder's descriptor (-1 for none), path and flags."""
_USES = {"execve": (-1, 0), "execveat": (0, 1), "truncate": (-1, 0)}
_MAKES = {
    "link": (-1, 1), "linkat": (2, 3), "mkdir": (-1, 0), "mkdirat": (0, 1), "mknod": (-1, 0),
    "mknodat": (0, 1), "rename": (-1, 1), "renameat": (2, 3), "renameat2": (2, 3),
    "symlink": (-1, 1), "symlinkat": (1, 2),
}  # fmt: skip
"""Calls that make something: positions of the descriptor and path of what is new."""
_TAKES = {
    "link": (-1, 0), "linkat": (0, 1), "rename": (-1, 0), "renameat": (0, 1), "renameat2": (0, 1),
    "rmdir": (-1, 0), "unlink": (-1, 0), "unlinkat": (0, 1),
}  # fmt: skip
"""Calls that change a folder by what is in it: positions of the descriptor and path of that."""


def lacked_files(call: kernel.PausedCall, granted: FileRights) -> Iterator[DeniedRight]:
    """Yield the rights for files that a call needs and does not have."""
    with contextlib.suppress(OSError, ValueError, OverflowError):  # the kernel says what is wrong
        for denied in _needed_files(call):
            folder = denied is not None and denied.right == "read" and os.path.isdir(denied.path)
            if denied is not None and not is_granted(denied, granted, folder=folder):
                yield denied


def _needed_files(call: kernel.PausedCall) -> Iterator[DeniedRight | None]:
    """Yield the rights for files that a call needs. Raises OSError."""
    name, thread, arguments = call.name, call.thread, call.arguments
    if name == "bind":
        address = _memory(thread, arguments[1], min(arguments[2] & _INT, ADDRESS_BYTES_MAX))
        text = address[_FAMILY_BYTES:].partition(b"\0")[0]
        if family_of(address) == socket.AF_UNIX and text:
            yield _find_create_right(_real(thread, -1, text, last=False))
    elif name in _OPENS:
        at, path_index, flags_index = _OPENS[name]
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC if flags_index < 0 else arguments[flags_index]
        if name == "openat2":
            flags = int.from_bytes(_memory(thread, arguments[flags_index], 8), sys.byteorder)
        path = _real(thread, _folder_of(arguments, at), _text(thread, arguments[path_index]))
        exists = os.path.exists(path)
        write_flags = os.O_ACCMODE | os.O_TRUNC if exists else os.O_CREAT
        if not flags & os.O_PATH:
            yield find_needed_right(path, exists=exists, writes=bool(flags & write_flags))
    elif name in _USES:
        at, path_index = _USES[name]
        path = _real(thread, _folder_of(arguments, at), _text(thread, arguments[path_index]))
        yield find_needed_right(path, exists=os.path.exists(path), writes=name == "truncate")
    else:
        yield from _needed_folders(call)


def _needed_folders(call: kernel.PausedCall) -> Iterator[DeniedRight | None]:
    """Yield the rights that a call needs which makes or removes something. Raises OSError."""
    name, thread, arguments = call.name, call.thread, call.arguments
    if name in _TAKES:
        at, path_index = _TAKES[name]
        path = _real(
            thread, _folder_of(arguments, at), _text(thread, arguments[path_index]), last=False
        )
        if not os.path.lexists(path):
            return
        yield DeniedRight("write", os.path.dirname(path))
    if name in _MAKES:
        at, path_index = _MAKES[name]
        path = _real(
            thread, _folder_of(arguments, at), _text(thread, arguments[path_index]), last=False
        )
        if name.startswith("rename") or not os.path.lexists(path):
            yield _find_create_right(path, folder=name.startswith("mkdir"))


def _find_create_right(path: str, *, folder: bool = False) -> DeniedRight | None:
    return find_needed_right(path, exists=False, writes=True, folder=folder)


def _folder_of(arguments: tuple[int, ...], at: int) -> int:
    """Return the descriptor of the folder to which a path is relative, -1 for the working
    directory."""
    number = arguments[at] & _INT if at >= 0 else _AT_CWD
    return -1 if number == _AT_CWD else number


def _real(thread: int, folder: int, path: bytes, *, last: bool = True) -> str:
    """Return the real path of what a thread means. `last`: whether a link at its end is followed.
    Raises OSError."""
    if not path:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    own = f"/proc/{thread}"
    text = re.sub(r"^/proc/(?:self|thread-self)(?=/|$)", own, os.fsdecode(path))
    start = os.readlink(f"{own}/cwd" if folder < 0 else f"{own}/fd/{folder}")
    full_path = os.path.join(start, text)
    if last:
        return os.path.realpath(full_path)
    full_path = full_path.rstrip("/")
    return os.path.join(os.path.realpath(os.path.dirname(full_path)), os.path.basename(full_path))


def _text(thread: int, pointer: int) -> bytes:
    """Return the text at this place of the memory of a thread. Raises OSError."""
    data = b""
    while b"\0" not in data and len(data) < PATH_BYTES_MAX:
        page = PAGE_BYTES - (pointer + len(data)) % PAGE_BYTES
        data += _memory(thread, pointer + len(data), page)
    return data.partition(b"\0")[0]


def _memory(thread: int, pointer: int, size: int) -> bytes:
    """Return bytes of the memory of a thread. Raises OSError."""
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, pointer)


def _copy_socket(thread: int, number: int, pointer: int, size: int) -> tuple[bytes, socket.socket]:
    """Return the address and a copy of the socket of a thread that connects. Raises OSError."""
    if not _FAMILY_BYTES <= size <= ADDRESS_BYTES_MAX:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    try:
        memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from None
    try:
        address = os.pread(memory, size, pointer)
    except (OSError, OverflowError):  # the upper half of all addresses is the kernel's
        address = b""
    finally:
        os.close(memory)
    if len(address) < size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    process = _process(thread)
    try:
        copy = kernel.copy_descriptor(process, number)
    finally:
        os.close(process)
    try:
        return address, socket.socket(fileno=copy)
    except OSError:  # it is not a socket
        os.close(copy)
        raise


def _process(thread: int) -> int:
    """Return a descriptor of the process of a thread. Raises OSError."""
    try:
        return os.pidfd_open(thread)
    except OSError:  # not the first thread
        with open(f"/proc/{thread}/status", "rb") as file:
            (leader,) = (line.split()[1] for line in file if line.startswith(b"Tgid:"))
        return os.pidfd_open(int(leader))


def _is_own(address: bytes, processes: Iterable[str]) -> bool:
    """Whether these processes, and no others, have the abstract socket at this address."""
    name = b"@" + address[3:].replace(b"\0", b"@")
    with open("/proc/net/unix", "rb") as file:
        rows = [line.rstrip(b"\n").split(None, 7) for line in file]
    inodes = {int(row[6]) for row in rows if row[7:] == [name]} - {0}  # 0: not accepted yet
    links = {f"socket:[{inode}]" for inode in inodes}
    return bool(links) and links <= set(_links_of(processes))


def _links_of(processes: Iterable[str]) -> Iterator[str]:
    """Yield what the descriptors of these processes lead to."""
    for child in processes:
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{child}/fd"):
                with contextlib.suppress(OSError):
                    yield os.readlink(f"/proc/{child}/fd/{descriptor}")


def processes_below(pid: int) -> Iterator[str]:
    """Yield the processes below this one. Raises OSError if this process has no descriptor left."""
    pids = [str(pid)]
    while pids:  # a server may make a chain of any length
        folder, children = f"/proc/{pids.pop()}/task", list[str]()
        try:
            for task in os.listdir(folder):
                with open(f"{folder}/{task}/children") as file:
                    children += file.read().split()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
        yield from children
        pids += children
