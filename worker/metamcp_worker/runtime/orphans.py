"""Orphans: processes that outlived the process responsible for them are found, killed and reaped.

Owns: the means of the kernel for that (child subreaper, parent death signal, the list of children)
and the sweep built on them. Never: which children may live; the caller says which it knows.

Theory. A process whose parent dies is given to its nearest ancestor that is a *subreaper*, before
that ancestor hears of the death. So a subreaper kills every child that it does not know, and looks
again: killed processes hand up their own children, until only known descendants are left. A process
cannot escape by `setsid`, a wrapper shell or SIGSTOP; only a process that the kernel cannot
interrupt, or that another user owns, outlasts the sweep, and then the time limit ends the sweep.

Other systems than Linux do not have subreapers or a parent death signal: orphans go to init, and
this module does nothing. A gateway there ends only processes that it reaches by process group.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection

SWEEP_S_MAX = 5.0
"""Maximum seconds of a sweep: a killed process of many gigabytes needs a second or two to give back
its memory."""
SWEEP_PAUSE_S = 0.001
"""Seconds between two steps; a killed process is usually gone after a fraction of this."""
STEP_PASSES_MAX = 64
"""Maximum passes of one step, so that it stays short; longer chains of orphans need several steps.
"""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Make orphaned descendants children of this process. Returns False if the kernel cannot."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int = 0) -> bool:
    """Ask the kernel for SIGKILL when the parent dies. `parent`: pid of the parent at the fork.
    Returns False if that parent is dead already, because then the signal will never come."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return parent in {0, os.getppid()}


def sweep(known_pids: Collection[int]) -> int:
    """Kill and reap every child that is not known, and their descendants, for at most SWEEP_S_MAX.
    Returns how many had to be killed."""
    work = Sweep()
    deadline = time.monotonic() + SWEEP_S_MAX
    while not work.step(known_pids) and time.monotonic() < deadline:
        time.sleep(SWEEP_PAUSE_S)
    return len(work.killed)


class Sweep:
    """Sweep in steps that do not block. `killed`: pids that it had to kill so far; `find`: returns
    the children that it may kill, all of this process without one, and raises OSError."""

    def __init__(self, find: Callable[[], set[int]] | None = None) -> None:
        self.killed: set[int] = set()
        self._find = find or children

    def step(self, known_pids: Collection[int]) -> bool:
        """Kill and reap the unknown children of now. Returns True when none is left.

        A killed process takes a moment to die: call again when SIGCHLD comes, or a little later.
        """
        for _ in range(STEP_PASSES_MAX):
            try:
                strangers = self._find().difference(known_pids)
            except OSError:  # no free descriptor to read the list with
                return False
            if not strangers:
                return True
            alive = {pid for pid in strangers if not _reap(pid)}
            for pid in alive:
                with contextlib.suppress(PermissionError):  # it runs as another user
                    os.kill(pid, signal.SIGKILL)
                    self.killed.add(pid)
            if alive == strangers:  # nobody died, so nobody can have been handed up
                return False
        return False


def children() -> set[int]:
    """Return the pids of all children of this process, zombies too. Raises OSError."""
    if sys.platform != "linux":
        return set()
    pids: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                pids.update(map(int, file.read().split()))
        except (FileNotFoundError, ProcessLookupError):
            # The kernel was built without these lists, or this thread has just ended and its
            # children belong to another one, perhaps to one that was read before.
            return children_by_scan()
    return pids


def children_by_scan() -> set[int]:
    """Find the children by the parents of all processes. Raises OSError."""
    own = os.getpid()
    pids: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        # "pid (name) state ppid …"; the name may hold anything, parentheses and spaces too.
        if int(stat[stat.rindex(b")") + 1 :].split()[1]) == own:
            pids.add(int(name))
    return pids


def _reap(pid: int) -> bool:
    """Reap this child if it is dead. Returns whether it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    return int(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)) == 0


_libc = ctypes.CDLL(None)
