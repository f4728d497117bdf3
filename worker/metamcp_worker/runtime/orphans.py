"""Processes that outlived the one that answered for them: found, killed, reaped.

Owns: what the kernel offers so that no process of ours is left behind (child subreaper, parent
death signal, the list of children) and the sweep built on it. Never: who deserves to live; the
caller says which children it knows.

Theory. A process whose parent dies is given to its nearest ancestor that is a *subreaper*, before
that ancestor hears of the death. So a subreaper that kills every child it does not know, and then
looks again, ends with no descendants but the known ones: what it kills hands up its own children.
Neither `setsid` nor a wrapper shell nor SIGSTOP is a way out; only a process that the kernel cannot
interrupt, or that another user owns, outlasts the sweep, and then the time limit ends it.

Elsewhere than on Linux there are no subreapers and no parent death signal: orphans go to init, and
everything here does nothing. A gateway there cleans up only what it reaches by process group.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection

SWEEP_S_MAX = 5.0
"""A killed process of many gigabytes needs a second or two to give back its memory."""
SWEEP_PAUSE_S = 0.001
"""A killed process is usually gone after a fraction of this."""
STEP_PASSES_MAX = 64
"""Deeper chains of orphans are cut down in several steps, so that one step stays short."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Make orphaned descendants children of this process. False where the kernel cannot."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int = 0) -> bool:
    """Ask for SIGKILL when the parent dies. With `parent`, the pid that the parent had at the fork:
    False if it is dead already, because then the signal will never come."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return parent in {0, os.getppid()}


def sweep(known: Collection[int]) -> int:
    """Kill and reap every child that is not known, and what they leave behind, for at most
    SWEEP_S_MAX. How many had to be killed."""
    work = Sweep()
    deadline = time.monotonic() + SWEEP_S_MAX
    while not work.step(known) and time.monotonic() < deadline:
        time.sleep(SWEEP_PAUSE_S)
    return len(work.killed)


class Sweep:
    """A sweep in steps that do not block. `killed`: whom it had to kill so far."""

    def __init__(self) -> None:
        self.killed: set[int] = set()

    def step(self, known: Collection[int]) -> bool:
        """Kill and reap what is there now. True when no unknown child is left.

        A killed process takes a moment to die: call again when SIGCHLD comes, or a little later.
        """
        for _ in range(STEP_PASSES_MAX):
            try:
                strangers = children().difference(known)
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
    """The pids of all children of this process, zombies too. Raises OSError."""
    if sys.platform != "linux":
        return set()
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                found.update(map(int, file.read().split()))
        except (FileNotFoundError, ProcessLookupError):
            # The kernel was built without these lists, or this thread has just ended and its
            # children belong to another one, perhaps to one that was read before.
            return children_by_scan()
    return found


def children_by_scan() -> set[int]:
    """The same, from the parents of all processes. Raises OSError."""
    own = os.getpid()
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        # "pid (name) state ppid …"; the name may hold anything, parentheses and spaces too.
        if int(stat[stat.rindex(b")") + 1 :].split()[1]) == own:
            found.add(int(name))
    return found


def _reap(pid: int) -> bool:
    """Is this child gone, perhaps by this very call?"""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    return int(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)) == 0


_libc = ctypes.CDLL(None)
