"""Process of a stdio server: started in its own session, put under its limits, watched, and ended
with its group.

Owns: the spawn and its error texts, the limits of a new process (`put`), noticing the exit, signals
to the group, the reaping of orphans. Never: the contents of the pipes, when to stop, restarts.

The standard library's asyncio subprocesses are not used: their child watchers must be the only ones
that wait for children, while here orphans of the server become children too. A pidfd reports the
exit *before* anything has waited for the process. Until then its number, and so the number of its
group, cannot be given to another process, and the rest of the group can be killed safely.

`subprocess` is not used either: `posix_spawn` is one call into the C library, and the rest, the
PATH of the server and its working directory, takes a few lines here. Each worker needs a fifth of a
MiB less. Descriptors need not be closed, because all descriptors of the worker are closed on exec.
"""

import asyncio
import contextlib
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from metamcp_worker.child.connect_broker import ConnectBroker, ConnectRules, processes_below
from metamcp_worker.child.transport import Exited, ServerExit, SpawnFailed, process_exit
from metamcp_worker.confinement import launch
from metamcp_worker.confinement.denials import counter_of
from metamcp_worker.confinement.launch import NOT_THERE, ConfinedProcess, first_started
from metamcp_worker.confinement.rules import FileRights
from metamcp_worker.ipc.packets import close_all
from metamcp_worker.ipc.spec import LimitsSpec, ServerSpec
from metamcp_worker.runtime import orphans

UNDO_S_MAX = 1.0
"""Maximum seconds from SIGKILL to the end of a process that was just started; such a process has
hardly any memory and needs a few milliseconds."""
UNDO_PAUSE_S = 0.001
"""Seconds between two checks for this end."""

BROUGHT_BY = {
    "uvx": "; it comes with uv: 'pip install uv'",
    "npx": "; it comes with Node.js: https://nodejs.org",
}
"""Ends of the sentence about a missing program, for the usual ones."""
FIRST_LINE_BYTES_MAX = 256
"""Bytes of the first line of a script that are read; the kernel does not read more either."""
MARK = "METAMCP_WORKER"
"""Environment variable of a server that shares its worker: it shows whose process a process is that
has outlived its parent."""

_running: set[int] = set()
"""Processes of servers that this process started and has not reaped."""
_start_folder: list[int] = []
"""Descriptor of the directory in which a shared worker was started."""


def keep_start_folder() -> None:
    """Prepare this process for several servers, each of which starts in a directory of its own."""
    _start_folder[:] = [os.open(".", os.O_PATH | os.O_CLOEXEC)]


def list_strays() -> dict[int, str]:
    """Return the children of this process that no server is, each with its mark: they have outlived
    their parents. The mark is empty if it cannot be read. Raises OSError."""
    return {pid: _read_mark(pid) for pid in orphans.children() - _running}


def _read_mark(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    name = MARK.encode() + b"="
    marks = (each.removeprefix(name) for each in variables if each.startswith(name))
    return os.fsdecode(next(marks, b""))


def _list_processes(pid: int, mark: str) -> Iterator[str]:
    """Yield the processes of a server. `mark`: of one that shares this worker, else all below the
    worker are its own. Raises OSError if this process has no descriptor left."""
    if not mark:
        yield from processes_below(os.getpid())
        return
    for root in (pid, *(stray for stray, whose in list_strays().items() if whose == mark)):
        yield str(root)
        yield from processes_below(root)


def spawn(spec: ServerSpec, on_exit: Exited, count: Callable[[str], None]) -> "CommandProcess":
    """Start the server's command. `count`: called with a counter of `denials.counter_of` for
    each right that its sandbox refuses, as the kernel reports. Raises SpawnFailed."""
    if not spec.command:
        raise SpawnFailed(f"cannot start {spec.name}: it has neither a command nor a module")
    _enter(spec)
    ends: list[int] = []
    confined: ConfinedProcess | None = None
    try:
        for _ in range(3):
            ends += os.pipe()
        stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = ends
        streams, programs = (stdin, stdout, stderr), _programs(spec)
        if spec.confinement.profile == "none":
            pid = first_started(programs, partial(_spawn_program, spec, streams))
        else:
            limits, env = spec.confinement, spec.env
            confined = launch.start(
                limits, spec.command, list(programs), env, streams, spec.limits.processes
            )
            pid = confined.pid
    except (OSError, ValueError, launch.NotConfined) as error:
        close_all(ends)
        raise SpawnFailed(f"cannot start {spec.name}: {_reason(spec, error)}") from None
    close_all((stdin, stdout, stderr))
    if refused := put(pid, spec.limits):
        close_all((to_stdin, from_stdout, from_stderr))
        if confined is not None and confined.listener >= 0:
            os.close(confined.listener)
        _undo(pid)
        raise SpawnFailed(f"cannot start {spec.name}: {refused}")
    broker = _broker(spec, confined, count)
    ends = [to_stdin, from_stdout, from_stderr]
    return CommandProcess(pid, ends, on_exit, confined, broker, _find_mark(spec))


def _find_mark(server: ServerSpec) -> str:
    """Return the mark of a server, empty if it is alone in its worker."""
    return server.env.get(MARK, "") if _start_folder else ""


def _broker(
    server: ServerSpec, confined: ConfinedProcess | None, count: Callable[[str], None]
) -> ConnectBroker | None:
    """Return what judges calls of this server, None if it is not asked."""
    if confined is None or confined.listener < 0:
        return None
    spec = server.confinement
    real = os.path.realpath
    sockets = map(os.path.expanduser, spec.unix_sockets)
    rules = ConnectRules(
        folders=tuple(map(real, (*confined.granted.write, *sockets))),
        hidden=tuple(map(real, spec.hidden)),
        tcp_ports=spec.tcp_ports,
        gateway=spec.gateway_ports,
    )
    counted, trial = partial(counter_of, learnt=spec.trial), None
    if spec.trial:
        allowed = confined.granted
        own = f"/proc/{confined.pid}"
        trial = FileRights(
            *(tuple(map(real, paths)) for paths in ((*allowed.read, own), *allowed[1:3]))
        )
    mark = _find_mark(server)
    return ConnectBroker(
        confined.listener, rules, confined.limit, lambda denied: count(counted(denied)),
        partial(_list_processes, confined.pid, mark), trial,
    )  # fmt: skip


def _enter(spec: ServerSpec) -> None:
    """Change to the server's directory for good, because a worker needs no directory itself. Going
    back would need the right to enter the gateway's directory, which only a server needs that
    shares its worker and has no directory of its own. Raises SpawnFailed."""
    folder = spec.cwd if spec.cwd is not None else next(iter(_start_folder), None)
    if folder is None:
        return
    try:
        os.chdir(folder)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        name = "of the gateway" if spec.cwd is None else f"'{spec.cwd}'"
        problem = f"its working directory {name} cannot be entered: {reason}"
        raise SpawnFailed(f"cannot start {spec.name}: {problem}") from None


def _spawn_program(spec: ServerSpec, streams: tuple[int, int, int], program: str) -> int:
    """Start a program in a new session, and return its pid. Raises OSError and ValueError."""
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    return os.posix_spawn(
        program, spec.command, spec.env, file_actions=actions, setsid=True,
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores
    )  # fmt: skip


def _programs(spec: ServerSpec) -> Iterator[str]:
    """Yield the places where the command may be, on the PATH of the server, which may differ from
    the gateway's."""
    program = spec.command[0]
    if "/" in program:
        yield program
        return
    for folder in os.get_exec_path(spec.env):
        yield os.path.join(folder, program)


def _undo(pid: int) -> None:
    """End a process that was just started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    end = time.monotonic() + UNDO_S_MAX
    while _code(pid) is None and time.monotonic() < end:
        time.sleep(UNDO_PAUSE_S)


def _code(pid: int) -> int | None:
    """Return the return code of a child; None while it runs, 0 if other code has waited for it."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None


class CommandProcess:
    """`Host` of a running command."""

    def __init__(
        self,
        pid: int,
        ends: Sequence[int],
        on_exit: Exited,
        confined: ConfinedProcess | None = None,
        broker: ConnectBroker | None = None,
        mark: str = "",
    ) -> None:
        self._mark = mark
        self.pid = pid
        _running.add(pid)
        self.confinement = confined
        self._broker = broker
        self.stdin, self.stdout, self.stderr = ends
        self._code: int | None = None
        self._on_exit = on_exit
        self._exit: ServerExit | None = None
        self.halted = False
        self._loop = asyncio.get_running_loop()
        self._pidfd = -1
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # No free descriptor: `tick` notices the exit.
                self._pidfd = os.pidfd_open(self.pid)
                self._loop.add_reader(self._pidfd, self._look)

    @property
    def exit(self) -> ServerExit | None:
        return self._exit

    def terminate(self) -> None:
        """Send SIGTERM to the group, and SIGCONT, because a stopped process would not notice."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def list_left(self) -> set[int]:
        """Return the children of this process that belong to the server, or to no server. Raises
        OSError."""
        if not self._mark:
            return orphans.children()
        strays = {pid for pid, mark in list_strays().items() if mark in ("", self._mark)}
        return strays | ({self.pid} & _running)

    def tick(self) -> None:
        if self._pidfd < 0:
            self._look()
        self._look_whether_halted()
        self._reap_orphans()

    def _signal(self, number: int) -> None:
        if self._exit is None:
            # A process of the group may run as another user; the others are reached even then.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _look(self) -> None:
        """Check whether the process has exited; if so, kill the rest of its group and report the
        exit."""
        if self._exit is not None:
            return
        if self._pidfd < 0 and not self._has_ended():
            return
        self.kill()  # The process is a zombie, so this reaches the rest of its group.
        code = self._poll()
        if code is None:
            return
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self._broker is not None:
            self._broker.close()
        self._exit = process_exit(code)
        self._on_exit(self._exit)

    def _poll(self) -> int | None:
        if self._code is None:
            self._code = _code(self.pid)
            if self._code is not None:
                _running.discard(self.pid)
        return self._code

    def _has_ended(self) -> bool:
        """Whether the process is dead. Where the system allows a check without reaping, the process
        keeps its number."""
        if not hasattr(os, "waitid"):
            return self._poll() is not None
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, look) is not None
        except ChildProcessError:
            return True

    def _look_whether_halted(self) -> None:
        """Note whether a signal has stopped the process. A check costs a microsecond, and now and
        then is soon enough, because the state is only reported."""
        if self._exit is not None or not hasattr(os, "waitid"):
            return
        news = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            if change := os.waitid(os.P_PID, self.pid, news):
                self.halted = change.si_code == os.CLD_STOPPED

    def _reap_orphans(self) -> None:
        """Wait for processes of the server that ended after their parents."""
        if sys.platform != "linux":
            return
        with contextlib.suppress(ChildProcessError):
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid in _running:
                    return
                os.waitpid(ended.si_pid, 0)


def _reason(spec: ServerSpec, error: Exception) -> str:
    program = spec.command[0]
    if isinstance(error, launch.NotConfined):
        return str(error)
    if not isinstance(error, OSError):
        return f"its command cannot be passed to the system: {error}"
    path = str(error.filename or program)
    if error.errno in NOT_THERE and os.path.exists(path):
        return f"'{path}' is there, but {_explain_load_failure(path)}"
    if error.errno in NOT_THERE:
        location = " on the PATH" if "/" not in program else ""
        return f"no program '{program}'{location}{BROUGHT_BY.get(program, '')}"
    if error.errno == errno.EACCES:
        return f"'{path}' is not an executable file, or permission is denied"
    if error.errno == errno.ENOEXEC:
        return f"'{path}' is not a program: it has no '#!' line and is not a binary of this system"
    return f"'{path}': {error.strerror}"


def _explain_load_failure(path: str) -> str:
    """Return why the kernel says that an existing file does not exist."""
    first = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        first = file.readline(FIRST_LINE_BYTES_MAX)
    if not first.startswith(b"#!"):
        return "what is to load it is not: it was built for another system"
    name = os.fsdecode(first[2:].replace(b"\t", b" ").strip(b" \n").split(b" ")[0])
    tail = "; it ends as lines do on Windows" if first.endswith(b"\r\n") else ""
    return f"its '#!' line names {name!r}, which is not{tail}"


_NONE = LimitsSpec()


def put(pid: int, limits: LimitsSpec) -> str:
    """Put a new process under its limits. Return why it cannot run, as a sentence, or nothing.

    A configured limit that cannot be set is such a reason. Settings of every server are inherited
    from the worker: no core dumps, and a high score for when the machine runs out of memory.
    """
    if limits == _NONE:
        return ""
    if sys.platform != "linux":
        return "limits of processes are enforced on Linux only; remove them"
    try:
        return (
            _enter_cgroup(pid, limits.cgroup)
            or _rlimit(pid, resource.RLIMIT_NOFILE, limits.nofile, "nofile_max")
            or _rlimit(pid, resource.RLIMIT_DATA, limits.data_bytes, "memory_max")
            or _give_way(pid, limits.nice)
        )
    except ProcessLookupError:
        return ""  # The process has ended already, which is reported separately.


def _rlimit(pid: int, limit_kind: int, value: int, key: str) -> str:
    if not value:
        return ""
    _, most = resource.prlimit(pid, limit_kind)
    try:
        resource.prlimit(pid, limit_kind, (value, value))
    except ProcessLookupError:
        raise
    except (OSError, ValueError):  # ValueError: above what this process may give, without privilege
        own = "less" if most == resource.RLIM_INFINITY else str(most)
        return f"{key} is {value}, and the gateway itself may have {own} only; lower it"
    return ""


def _enter_cgroup(pid: int, cgroup: str) -> str:
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
