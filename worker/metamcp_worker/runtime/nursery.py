"""Nursery: one lean, single-threaded process that forks every worker and reaps it.

Owns: the modules imported before the forks, the fork itself, reports of workers that end, stop or
resume, and the end of the whole tree when the supervisor is gone. Never: which worker should run,
restarts, the first steps of a worker (`after_fork`), an event loop, a thread.

A worker begins as a copy of this process, so all workers share everything that is open, started or
seeded here: that is why there is one socket, one thread and no random state. A preloaded module
that starts a thread makes every fork fail at once; otherwise some fork would hang one day.

Without Linux there is neither subreaper nor parent death signal: workers then end when they see the
end of their control socket, and processes that left their process groups stay.
"""

import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NoReturn

from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.errors import DescriptorsLost, PeerGone
from metamcp_worker.ipc.messages import (
    Fork,
    Forked,
    ForkFailed,
    Halted,
    NurseryReady,
    Resumed,
    Signal,
    Tune,
    WorkerExit,
)
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import after_fork, logs, memory, orphans

#: Role of a worker -> module with `main(sock: socket.socket) -> int`.
ROLES = {
    "audit": "metamcp_worker.audit.run",
    "front": "metamcp_worker.front.run",
    "child": "metamcp_worker.child.run",
    "code": "metamcp_worker.sandbox.run",
    "console": "metamcp_supervisor.console.run",
    "embedder": "metamcp_worker.embedder.run",
    "engine": "metamcp_worker.engine.run",
    "middleware": "metamcp_worker.middleware.run",
    "shared": "metamcp_worker.child.shared_worker",
}

#: Modules imported before the forks, also those that other modules import at their first use: an
#: import that is missing here costs every worker milliseconds and private memory.
PRELOAD = (
    "metamcp_worker.child.run",
    "metamcp_worker.child.shared_worker",
    "metamcp_worker.front.run",
    "asyncio",
    "encodings.idna",
    "httptools",
    "msgspec",
    "uvloop",
)

BACKLOG_PACKETS_MAX = 1024
"""Maximum messages that wait for a supervisor that does not read. Above it the nursery does not
read orders or check workers: the kernel keeps their states until there is room."""
REPORT_S_MAX = 1.0
"""Seconds that the report of an exit waits for the last orphan to die."""
SWEEP_RETRY_S = 0.05
"""Seconds between two checks while an orphan that was killed has not died."""
REASON_CHARS_MAX = 200
"""Maximum characters of an import error in `NurseryReady`, so that all of them fit into a
packet."""
log = logging.getLogger("metamcp.nursery")

_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
_NEWS = os.WNOHANG | os.WUNTRACED | os.WCONTINUED


def main(
    argv: Sequence[str], *, roles: Mapping[str, str] = ROLES, preload: Sequence[str] = PRELOAD
) -> int:
    """Serve the supervisor at the other end of socket N (`--fd N`) until it is gone."""
    if len(argv) != 2 or argv[0] != "--fd" or not argv[1].isdecimal():
        sys.stderr.write("usage: python -m metamcp_worker nursery --fd N\n")
        return os.EX_USAGE
    fd = int(argv[1])
    _plain_signals()
    for number in _DEAF_TO:  # only the supervisor's end ends this process, after it has swept
        signal.signal(number, signal.SIG_IGN)
    signal.signal(
        after_fork.STACKS_SIGNAL, signal.SIG_IGN
    )  # of a worker too, until it can write them
    _close_all_but({0, 1, 2, fd})
    os.set_inheritable(fd, False)
    after_fork.call_it("mmcp:nursery")
    orphans.become_subreaper()
    memory.give_back_large_blocks()
    missing = _preload(preload)
    logs.begin(LogSpec(format=os.environ.get(logs.FORMAT, "auto")), with_libraries=False)
    memory.forget_lookups()  # before the holes are filled: it frees names, and leaves holes
    gc.collect()
    blocks = memory.fill_holes()  # for as long as this process lives
    memory.collect_seldom()
    gc.freeze()  # the collector will not touch, and so not copy, the pages shared with workers
    NurseryLoop(socket.socket(fileno=fd), roles).run(missing)
    del blocks
    return 0


class NurseryLoop:
    """Loop of the nursery. `_workers`: pids of workers that it forked and has not reaped; `_dead`:
    pid and wait status of workers whose exit is reported when their orphans are swept."""

    def __init__(self, sock: socket.socket, roles: Mapping[str, str]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._roles = roles
        self._pid = os.getpid()
        self._workers: set[int] = set()
        self._backlog: deque[bytes] = deque()
        self._dead: list[tuple[int, int]] = []
        self._dead_since = 0.0
        self._sweep = orphans.Sweep()
        self._swept = True
        self._wake, self._wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)

    def run(self, missing: Sequence[str]) -> None:
        """Serve until the supervisor is gone; then end all descendants."""
        # A handler must exist for the wakeup descriptor to be written; it has nothing to do.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            self._tell(NurseryReady(pid=self._pid, missing=tuple(missing)))
            while True:
                self._turn()
        except PeerGone:
            pass
        finally:  # also when this loop itself is broken
            self._end()

    def _turn(self) -> None:
        room = len(self._backlog) < BACKLOG_PACKETS_MAX
        events = (select.POLLIN if room else 0) | (select.POLLOUT if self._backlog else 0)
        self._poll.register(self._sock, events)
        for fd, event in self._poll.poll(None if self._swept else SWEEP_RETRY_S * 1000):
            if fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._swept = False
            elif event & (select.POLLHUP | select.POLLERR):
                raise PeerGone("the supervisor is gone")
            elif event & select.POLLIN:
                self._obey()
        self._flush()
        if len(self._backlog) < BACKLOG_PACKETS_MAX:
            self._look()
        if not self._swept:
            self._clean_up()

    def _obey(self) -> None:
        """Carry out one order."""
        fds: list[int] = []
        lost = False
        try:
            data, fds = packets.receive(self._sock)
        except BlockingIOError:
            return
        except DescriptorsLost as error:
            data, lost = error.data, True
        try:
            order = messages.unpack_to_nursery(data)
            if isinstance(order, Fork):
                self._fork(order, fds, lost)
            elif isinstance(order, Tune):
                logs.tune(LogSpec(format=order.format, level=order.level, levels=order.levels))
            elif order.pid in self._workers:
                _signal(order)
        except codec.Malformed as error:
            log.error("ignored a packet that is not an order: %s", error)
        finally:
            packets.close_all(fds)

    def _fork(self, order: Fork, fds: Sequence[int], lost: bool) -> None:
        pid = 0
        try:
            reason = self._refusal(order, fds, lost)
            if not reason:
                _flush_streams()
                pid = os.fork()
        except OSError as error:
            reason = f"the nursery cannot fork {order.name}: {error.strerror}"
        if reason:
            self._tell(ForkFailed(ticket=order.ticket, reason=reason))
        elif pid == 0:
            self._live(order, fds[0], fds[1] if len(fds) > 1 else after_fork.STDERR)
        else:
            if any(dead == pid for dead, _ in self._dead):
                self._report()  # the kernel gave out this pid again: its first bearer goes first
            self._workers.add(pid)
            self._tell(Forked(ticket=order.ticket, pid=pid))

    def _refusal(self, order: Fork, fds: Sequence[int], lost: bool) -> str:
        """Why this fork is not possible, as a sentence; empty if it is."""
        if lost:
            return (
                f"the nursery has no free descriptors for {order.name}: "
                "raise its open-file limit (RLIMIT_NOFILE)"
            )
        if order.role not in self._roles:
            return f"{order.name} has the role {order.role!r}, which no worker has"
        if len(fds) not in (1, 2):
            return f"{len(fds)} descriptors came with the order to fork {order.name}: 1 or 2 belong"
        if (tasks := _tasks()) != 1:
            return (
                f"the nursery runs {tasks} threads, and fork is only safe with one: "
                "a module that it preloads has started a thread"
            )
        return ""

    def _live(self, order: Fork, fd: int, stacks: int) -> NoReturn:
        """Run the worker in the forked process, to its end. Never returns into the loop, even after
        an error."""
        code = os.EX_SOFTWARE
        try:
            if orphans.die_with_parent(self._pid):
                self._let_go()
                after_fork.settle(order, stacks)
                role = importlib.import_module(self._roles[order.role])
                code = int(role.main(socket.socket(fileno=fd)))
        except (Exception, SystemExit, KeyboardInterrupt):  # root of a process
            log.critical("%s ends: it has a fault", order.name, exc_info=True)
        finally:
            _flush_streams()
            os._exit(code)

    def _let_go(self) -> None:
        """Close the descriptors of the nursery in the worker, and reset its signal handlers."""
        signal.set_wakeup_fd(-1)
        self._sock.close()
        os.close(self._wake)
        os.close(self._wake_write)
        for number in (*_DEAF_TO, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)

    def _look(self) -> None:
        """Ask the kernel for the state of every worker."""
        for pid in list(self._workers):
            changed_pid, status = os.waitpid(pid, _NEWS)
            if changed_pid == 0:
                continue
            if os.WIFSTOPPED(status):
                self._tell(Halted(pid=pid))
            elif os.WIFCONTINUED(status):
                self._tell(Resumed(pid=pid))
            else:
                self._workers.remove(pid)
                self._swept = False
                self._dead_since = self._dead_since if self._dead else time.monotonic()
                self._dead.append((pid, status))

    def _clean_up(self) -> None:
        """Sweep the orphans of dead workers, and report the exits when all orphans are gone.

        A child that is not a worker is always such an orphan: workers are subreapers, so orphans of
        a server stay below its worker as long as the worker lives.
        """
        self._swept = self._sweep.step(self._workers)
        if self._swept or (self._dead and time.monotonic() - self._dead_since > REPORT_S_MAX):
            self._report()

    def _report(self) -> None:
        """Report the exits. If workers died together, the first report counts all orphans."""
        orphaned = len(self._sweep.killed)
        for pid, status in self._dead:
            self._tell(_parse_wait_status(pid, status, orphaned))
            orphaned = 0
        if self._dead:
            self._sweep = orphans.Sweep()
        self._dead.clear()

    def _tell(self, message: messages.Message) -> None:
        self._backlog.append(messages.pack(message))
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._backlog:
                packets.send(self._sock, self._backlog[0])
                self._backlog.popleft()

    def _end(self) -> None:
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)
        orphans.sweep(())


def _plain_signals() -> None:
    """Reset signals that the parent process ignores, catches or blocks, for this process and its
    workers."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        action = signal.SIG_IGN if number in _IGNORED_BY_PYTHON else signal.SIG_DFL
        with contextlib.suppress(OSError, ValueError):  # some belong to the C library
            signal.signal(number, action)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _signal(order: Signal) -> None:
    try:
        os.kill(order.pid, order.number)
    except OSError as error:
        log.error("no signal %d to %d: %s", order.number, order.pid, error.strerror)


def _parse_wait_status(pid: int, status: int, orphaned: int) -> WorkerExit:
    if os.WIFSIGNALED(status):
        return WorkerExit(pid=pid, signal=os.WTERMSIG(status), orphans=orphaned)
    return WorkerExit(pid=pid, code=os.WEXITSTATUS(status), orphans=orphaned)


def _preload(names: Sequence[str]) -> list[str]:
    """Import modules that workers need. Returns those that fail, each with the reason."""
    missing: list[str] = []
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
            reason = f"{type(error).__name__}: {error}"
            missing.append(f"{name}: {reason[:REASON_CHARS_MAX]}")
    return missing


def _tasks() -> int:
    """Return the number of threads of this process, those of C libraries included."""
    if sys.platform != "linux":
        return threading.active_count()
    return len(os.listdir("/proc/self/task"))


def _close_all_but(fds: set[int]) -> None:
    """Close all other descriptors: every worker would inherit those that came here by mistake."""
    for name in os.listdir("/dev/fd"):
        if int(name) not in fds:
            packets.close_all([int(name)])


def _flush_streams() -> None:
    """Flush stdout and stderr: text that is buffered at a fork would be written twice."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
