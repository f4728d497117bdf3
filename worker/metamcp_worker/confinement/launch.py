"""Start of a confined server: the forked process makes its rules, confines itself and executes it.

Owns: the folders of a server, the fork, the report about what was achieved, the command line of
bubblewrap. Never: which paths a server gets (`rules`), numbers of the kernel (`kernel`), pipes.

A worker has one thread when it starts its server, so it may run Python between fork and exec. All
questions to the system are asked there: what that takes of memory goes with the process. A second
interpreter would have to start for it.

The new process reports over a pipe that closes at exec: first which paths it may read and that it
is confined, then, if exec fails, why. A process without a report was not confined, and never runs.
"""

import contextlib
import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from metamcp_worker.confinement import kernel, rules
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.spec import RECORDING, TEMPORARY, ConfinementSpec

BROWSER_CALLS = frozenset({"chroot"})
"""System calls that the sandbox of a browser makes in its namespaces of users and processes."""
NAMESPACES = 0x7E020080
"""Flags of `clone` that make namespaces: of time, mounts, cgroups, names, users, processes,
network."""
LOCAL_DOMAINS = (kernel.UNIX, kernel.NETLINK)
"""Domains of sockets without a network; libraries list interfaces by netlink."""
DOMAINS = (*LOCAL_DOMAINS, kernel.INET, kernel.INET6)
"""Domains of sockets of any server. Others reach the host of a virtual machine (vsock), or are
known for faults of the kernel."""
PROTOCOLS = (0, 1, 4, 6, 15, 16, 17, 58)
"""Protocols of sockets of a server that may connect to some TCP ports only: ICMP, TCP, UDP, ICMPv6
and those of netlink. Landlock looks at no port of MPTCP and SMC, which reach servers of TCP."""
REPORT_BYTES_MAX = 4096
FILE_CALLS = (
    "bind", "creat", "execve", "execveat", "link", "linkat", "mkdir", "mkdirat", "mknod", "mknodat",
    "open", "openat", "openat2", "rename", "renameat", "renameat2", "rmdir", "symlink",
    "symlinkat", "truncate", "unlink", "unlinkat",
)  # fmt: skip
"""System calls with paths that Landlock judges."""
TMP_BYTES_MAX = 24
"""Bytes of the folder in which temporary folders are created, if `/tmp` cannot be used: a unix
socket below one, whose path has 107 bytes at most, must still get a name."""
BWRAP = "bwrap"
_CONFINED = b"confined\n"
_NO_ERROR = "0"
"""Number in front of a failure that is a sentence, in place of an error number and a path."""
_NO_START = 127
NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})
_NO_PROCESS = frozenset({errno.EAGAIN, errno.ENOMEM})


class NotConfined(Exception):
    """The server cannot be confined as it must be. The text is a sentence about it."""


class ProcessLimit:
    """Maximum number of processes of a server, which the operator may change while it runs.
    `namespaces`: whether new processes may have namespaces of their own."""

    def __init__(self, most: int, *, namespaces: bool) -> None:
        self.most = most
        self.namespaces = namespaces


class ConfinedProcess(NamedTuple):
    """A started server. `achieved`: what confines it, such as `landlock-7 seccomp`; `lacking`: what
    it is not kept from; `granted`: paths that it may use; `tmp`: folder to remove after it;
    `listener`: descriptor that asks about each `connect` and each new process, -1 without one;
    `limit`: of its processes."""

    pid: int
    achieved: str
    lacking: tuple[str, ...]
    granted: rules.FileRights
    tmp: str
    limit: ProcessLimit
    listener: int = -1


class LocalFileSystem:
    """`rules.FileSystem` at the files of this machine, for one start: real paths are kept."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def kind(self, path: str) -> str:
        try:
            return "folder" if os.path.isdir(path) else "file" if os.path.exists(path) else ""
        except ValueError:  # a NUL
            return ""

    def real(self, path: str) -> str:
        real_path = self._real.get(path)
        if real_path is None:
            folder, name = os.path.split(path)
            if folder in ("", path) or name in ("", ".", "..") or os.path.islink(path):
                real_path = os.path.realpath(path)
            else:
                real_path = os.path.join(self.real(folder), name)
            self._real[path] = real_path
        return real_path

    def head(self, path: str) -> bytes:
        with contextlib.suppress(OSError, ValueError):
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    return file.read(rules.SETTINGS_BYTES_MAX)
        return b""

    def names(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError:
            return []


def start(
    spec: ConfinementSpec,
    command: tuple[str, ...],
    programs: Sequence[str],
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    processes_max: int = 0,
) -> ConfinedProcess:
    """Start the first of these programs that can be started, with the arguments of `command`, in a
    new session and confined. `processes_max`: number of processes that it may have; 0 if nobody is
    asked about new ones. Raises NotConfined, and OSError about the program."""
    return _ProcessConfinement(spec, command, env, processes_max).spawn(programs, streams)


def first_started(programs: Iterable[str], begin: Callable[[str], int]) -> int:
    """Begin the first of these programs that can be started. Raises OSError, about the candidate
    with the most telling error."""
    failure: OSError | None = None
    for program in programs:
        try:
            return begin(program)
        except OSError as error:
            if error.errno in _NO_PROCESS:  # then another program would fail too
                raise
            if failure is None or error.errno not in NOT_THERE or os.path.exists(program):
                failure = error
    raise failure or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def remove(folder: str) -> None:
    """Remove a folder of a process that has ended, as far as the system lets this process."""
    for at, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(at, name)
            with contextlib.suppress(OSError):
                (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _remove_temporary(spec: ConfinementSpec, pid: str) -> None:
    """Remove the temporary folder of a process of a server, if there is one."""
    link = os.path.join(spec.folder, TEMPORARY, pid)
    with contextlib.suppress(OSError):
        remove(os.readlink(link))
        os.unlink(link)


def _make_places(spec: ConfinementSpec) -> rules.ServerPlaces:
    """Make the folders of this process of a server, and remove those of processes that are gone.
    Raises NotConfined."""
    every = os.path.join(spec.folder, TEMPORARY)
    home = os.path.expanduser("~")
    apart = rules.has_own_home(spec, home, usable=os.access(home, os.W_OK | os.X_OK))
    for pid in LocalFileSystem().names(every):
        if not pid.isdecimal() or not os.path.exists(f"/proc/{pid}"):
            _remove_temporary(spec, pid)
    cache = os.path.join(spec.folder, "cache") if apart else ""
    try:
        for folder in filter(None, (os.path.dirname(spec.folder), spec.folder, every, cache)):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        tmp = _temporary_folder(os.path.join(every, str(os.getpid())))
        own = os.path.join(spec.folder if spec.lasting else tmp, "home") if apart else ""
        if own:
            os.makedirs(own, mode=0o700, exist_ok=True)
    except OSError as error:
        reason = f"the folder {error.filename} of its sandbox cannot be made: {error.strerror}"
        raise NotConfined(f"{reason}; choose another state_dir") from None
    return rules.ServerPlaces(home, own, tmp, cache, os.geteuid() == 0)


def _temporary_folder(link: str) -> str:
    """Make a folder whose path is short, and a link to it by which it is removed if this process is
    killed. Raises OSError."""
    folder = os.environ.get("TMPDIR") or rules.TMP
    fits = len(os.fsencode(folder)) <= TMP_BYTES_MAX and os.access(folder, os.W_OK | os.X_OK)
    if not fits and os.access(rules.TMP, os.W_OK | os.X_OK):
        folder = rules.TMP
    tmp = os.path.join(folder, f"mcp-{os.urandom(4).hex()}")
    os.mkdir(tmp, mode=0o700)
    with contextlib.suppress(FileNotFoundError):  # of an earlier process with this number
        os.unlink(link)
    os.symlink(tmp, link)
    return tmp


def _bubblewrap() -> str:
    """Return the path of the program. Raises NotConfined."""
    for folder in os.get_exec_path():
        if os.access(path := os.path.join(folder, BWRAP), os.X_OK):
            return path
    raise NotConfined(
        "its sandbox 'strict' needs bubblewrap, and the PATH has no program 'bwrap': install it,"
        ' or write sandbox = "basic"'
    )


def _bubblewrap_command(
    spec: ConfinementSpec,
    granted: rules.FileRights,
    cwd: str,
    filter_fd: int,
    command: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the command line of bubblewrap. `filter_fd`: descriptor of a filter of system calls,
    negative for none."""
    every = (*granted.write, *granted.read)
    binds = {path: "--ro-bind-try" for path in granted.read if not rules.within(path, every)}
    binds |= {path: "--bind-try" for path in granted.write if not rules.within(path, granted.write)}
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    words += ["--share-net"] if spec.network == "host" else []
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", rules.TMP]
    for path, how in sorted(binds.items()):
        if not path.startswith(("/dev/", "/proc/")):
            words += [how, path, path]
    words += ["--chdir", cwd]
    words += ["--seccomp", str(filter_fd)] if filter_fd >= 0 else []
    return (*words, "--", *command)


def _make_missing(
    spec: ConfinementSpec, command: tuple[str, ...], places: rules.ServerPlaces, cwd: str
) -> None:
    """Make the caches of a launcher, and the folders in `write` that end with a slash."""
    folders = rules.launcher_caches(command, places)
    named = [path for path in spec.write if path.endswith("/")]
    folders += [os.path.join(cwd, os.path.expanduser(path)) for path in named]
    for folder in folders:
        with contextlib.suppress(OSError):  # then the server is refused it
            os.makedirs(folder, mode=0o700, exist_ok=True)


def _let_begin(listener: int, report: socket.socket) -> None:
    """Let a process that asks about its files execute its program, until the process reports a
    failure or closes its end."""
    ready = select.poll()
    ready.register(listener, select.POLLIN)
    ready.register(report, select.POLLIN)
    while all(fd != report.fileno() for fd, _ in ready.poll()):
        with contextlib.suppress(OSError):  # it has ended
            kernel.answer(listener, kernel.next_call(listener).id, goes_on=True)


class _ProcessConfinement:
    """Confinement of one process. `processes_max`: as
    in `start`. `_counted`: whether the worker is asked about each new process.

    The members of the second part are set in the forked process, before anything is prepared."""

    def __init__(
        self,
        spec: ConfinementSpec,
        command: tuple[str, ...],
        env: Mapping[str, str],
        processes_max: int,
    ) -> None:
        self._spec, self._command, self._env = spec, command, env
        self._strict = spec.profile == "strict"
        self._processes_max = processes_max
        self._counted = processes_max > 0

        self._version, self._filters, self._asks = 0, False, False
        self._lacking: tuple[str, ...] = ()
        self._sandboxed = False
        """Whether it starts a browser that makes namespaces for a sandbox of its own."""
        self._free = False
        """Whether nothing is put in force, because its browser could not start otherwise."""
        self._rules = self._filter_fd = -1
        self._filter: Callable[..., bytes] | None = None

    def _ask_kernel(self) -> None:
        """Find out what this kernel can keep the process from. Raises NotConfined if that is less
        than it must be."""
        spec = self._spec
        version, filters, asks = (
            kernel.landlock_version(),
            kernel.has_filters(),
            kernel.has_asking(),
        )
        root = os.geteuid() == 0
        own_sandbox = rules.has_own_sandbox(spec, self._command, self._env, root=root)
        self._sandboxed = own_sandbox and spec.profile == "basic"
        browsers = not self._sandboxed or kernel.has_user_namespaces()
        lacking = rules.find_unprotected(
            spec, version, filters=filters, asks=asks, browsers=browsers
        )
        if not browsers:
            version, filters, asks = 0, False, False
        if lacking and (spec.required or self._strict):
            unprotected = " and ".join(lacking)
            raise NotConfined(
                f"this kernel cannot keep it from {unprotected}, and its sandbox must"
            )
        if spec.trial and not asks:
            raise NotConfined("this kernel does not tell what it opens, so nothing can be learnt")
        self._version, self._filters, self._lacking = version, filters, lacking
        self._asks = asks and not self._strict
        self._counted = self._counted and asks
        self._free = not browsers

    @property
    def _protection(self) -> str:
        landlock = f"landlock-{self._version}" if self._version else ""
        parts = ("bubblewrap" if self._strict else "", landlock, "seccomp" if self._filters else "")
        return " ".join(filter(None, parts)) or "none"

    def _pack_report(self, granted: rules.FileRights, tmp: str, listener: int) -> bytes:
        """Return the bytes of the report. Paths may be no UTF-8, and none contains a NUL."""
        lacking = () if self._spec.trial else self._lacking
        if self._asks and listener < 0 and self._spec.profile == "basic":
            lacking = rules.find_unprotected(
                self._spec, self._version, filters=self._filters, asks=False
            )
        achieved = RECORDING if self._spec.trial else self._protection
        scalars = achieved, tmp, *(["sandboxed"] if self._sandboxed else [])
        return os.fsencode("\0\0".join(map("\0".join, (*granted, lacking, scalars))))

    def _prepare(self, granted: rules.FileRights) -> None:
        """Make the rules and the filter. Raises OSError."""
        spec, version, filters = self._spec, self._version, self._filters
        closed = spec.network == "none" and not self._strict
        files = not self._strict and not spec.trial
        if filters:
            self._filter = partial(
                kernel.filter_bytes, os.uname().machine, self._list_allowed_calls(),
                arguments=self._arguments(closed), flags=0 if self._sandboxed else NAMESPACES,
            )  # fmt: skip
        if version >= (kernel.SCOPE_ABI if spec.trial else 1):
            tcp = (closed or bool(spec.tcp_ports)) and not spec.trial
            self._rules = kernel.ruleset(version, files=files, tcp=tcp)
            for path in granted.read if files else ():
                kernel.allow(self._rules, version, path, kernel.READ)
            for path in granted.names if files else ():
                kernel.allow(self._rules, version, path, kernel.READ_DIR)
            for path in granted.write if files else ():
                kernel.allow(self._rules, version, path, kernel.WRITE)
            for port in spec.tcp_ports if tcp and version >= kernel.TCP_ABI else ():
                kernel.allow_port(self._rules, port)
        if self._strict and self._filter:
            self._filter_fd = packets.blob(self._filter())
            os.lseek(self._filter_fd, 0, os.SEEK_SET)
            os.set_inheritable(self._filter_fd, True)

    def _list_allowed_calls(self) -> set[str]:
        """Return the system calls that this process may make."""
        more = BROWSER_CALLS if self._sandboxed else frozenset[str]()
        less = frozenset[str]() if self._strict else kernel.SHARED_BY_KEY
        return (kernel.ALLOWED.keys() | more).difference(less)

    def _arguments(self, closed: bool) -> dict[str, kernel.AllowedArguments]:
        """Return the arguments that some system calls of this process may get. `closed`: whether it
        has no network."""
        domains = LOCAL_DOMAINS if closed else DOMAINS
        protocols = {2: PROTOCOLS} if self._spec.tcp_ports else {}
        of_sockets: dict[str, kernel.AllowedArguments] = {
            "socket": {0: domains, **protocols},
            "socketpair": {0: (kernel.UNIX,)},
        }
        if self._strict:  # which has a namespace of processes
            return of_sockets
        return of_sockets | kernel.only_itself()

    def spawn(self, programs: Sequence[str], streams: tuple[int, int, int]) -> ConfinedProcess:
        """Start the program. Raises NotConfined and OSError."""
        own_end, report_sender = socket.socketpair()
        fds: list[int] = []
        try:
            with report_sender:
                pid = os.fork()
                if pid == 0:
                    self._become(programs, streams, report_sender)
        finally:
            message = b""
            with own_end:
                while (received := socket.recv_fds(own_end, REPORT_BYTES_MAX, 1))[0]:
                    message += received[0]
                    fds += received[1]
                    if fds and self._spec.trial:
                        _let_begin(fds[0], own_end)
        report, confined, failure = message.rpartition(_CONFINED)
        if confined and not failure:
            *lists, lacking, (achieved, tmp, *sandboxed) = [
                tuple(filter(None, text.split("\0"))) for text in os.fsdecode(report).split("\0\0")
            ]
            namespaces = bool(sandboxed) or self._strict
            limit = ProcessLimit(self._processes_max, namespaces=namespaces)
            granted, listener = rules.FileRights(*lists), fds[0] if fds else -1
            return ConfinedProcess(pid, achieved, lacking, granted, tmp, limit, listener)
        packets.close_all(fds)
        os.waitpid(pid, 0)
        _remove_temporary(self._spec, str(pid))
        number, _, text = os.fsdecode(failure).partition(" ")
        if number == _NO_ERROR:
            raise NotConfined(text)
        if not number:
            raise NotConfined("its process ended before it was confined")
        error = OSError(int(number), os.strerror(int(number)), text)
        raise error if confined else NotConfined(f"it cannot be confined: {error}")

    def _become(
        self, programs: Sequence[str], streams: tuple[int, int, int], report_sender: socket.socket
    ) -> NoReturn:
        """Become the program in the forked process. `programs`: without bubblewrap."""
        spec, argv = self._spec, self._command
        try:
            self._ask_kernel()
            programs = [_bubblewrap()] if self._strict else programs
            places = _make_places(spec)
            cwd = os.getcwd()
            files = LocalFileSystem()
            env = rules.environment(spec, self._env, argv, places, files)
            _make_missing(spec, argv, places, cwd)
            granted = rules.grants(spec, argv, env, cwd, places, files)
            self._prepare(granted)
            if self._strict:
                argv = _bubblewrap_command(spec, granted, cwd, self._filter_fd, argv)
            os.setsid()
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                signal.signal(number, signal.SIG_DFL)
            listener = self._confine()
            report = self._pack_report(granted, places.tmp, listener)
            fds = () if listener < 0 else (listener,)
            socket.send_fds(report_sender, [report + _CONFINED], fds)
            first_started(programs, lambda program: os.execve(program, list(argv), env))  # noqa: S606 - no shell
        except NotConfined as failed:
            report_sender.sendall(b"%s %s" % (_NO_ERROR.encode(), os.fsencode(str(failed))))
        except OSError as error:
            number, path = error.errno or errno.EIO, os.fsencode(error.filename or "")
            report_sender.sendall(b"%d %s" % (number, path))
        except ValueError:  # a NUL in an argument or a variable
            report_sender.sendall(b"%d " % errno.EINVAL)
        finally:
            os._exit(_NO_START)

    def _confine(self) -> int:
        """Put everything in force for this process. Return the descriptor that asks about what it
        does, -1 without one. Raises OSError."""
        if self._free:
            return -1
        kernel.no_new_privileges()
        if not self._strict:
            kernel.drop_capabilities()
        if self._rules >= 0:
            if not self._strict and not self._spec.trial:
                self._allow_process_files()
            kernel.restrict(self._rules)
        if self._strict and self._counted:  # bubblewrap has the other filter
            every = kernel.filter_bytes(os.uname().machine, kernel.CALLS, forks=True)
            return kernel.filter_asking(every)
        if self._strict or not self._filter:
            return -1
        if self._asks:
            trial, datagrams = self._spec.trial, bool(self._spec.unix_sockets)
            asked_calls = FILE_CALLS if trial else ()
            asking = self._filter(
                asks=True, asked_calls=asked_calls, forks=self._counted, datagrams=datagrams
            )
            if (listener := kernel.filter_asking(asking)) >= 0:
                return listener
            if self._spec.required or trial:
                raise OSError(errno.EBUSY, "another process is asked already")
        kernel.filter_calls(self._filter())
        return -1

    def _allow_process_files(self) -> None:
        """Let the process read its own part of `/proc`, which exists only since it runs.
        Processes of a browser read about each other and write the maps of their namespaces, and a
        server behind a launcher is not this process; other processes keep their environment, memory
        and files from them by Landlock. Raises OSError."""
        every = self._spec.browser or "/proc" in self._spec.read
        path = "/proc" if every else "/proc/self"
        writes = kernel.WRITE_FILE if self._sandboxed else 0
        kernel.allow(self._rules, self._version, path, kernel.READ | writes)
