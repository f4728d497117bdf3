"""The stacks of workers: the calls of their threads when they were asked, hung or crashed.

Owns: one file in memory for each worker, in which it writes its stacks; the request for stacks, and
the wait for the answer. Never: the decision to ask (`heartbeats`, an operator), the use of the
text.

A worker writes its stacks in a signal handler, without the interpreter, so also while a loop in C
holds the interpreter. Both processes have the same open file and share its position: after clearing
the file, this process sets the position back to the start.
"""

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Callable

from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import MetaMCPError

STACKS_BYTES_MAX = 64 * 1024
"""Maximum bytes of the stacks of one worker; a dump of a worker with two threads takes about
4 KiB."""
ASK_SIGNAL = signal.SIGUSR2
"""Signal that a worker answers with its stacks; then it goes on
(`metamcp_worker.runtime.nursery`)."""
ANSWER_S_MAX = 2.0
"""Maximum seconds to wait for stacks: the handler runs at once, unless the process is stopped or
sleeps in the kernel."""
LOOK_S = 0.02
"""Seconds between two looks at the file; a dump has no end mark, so it is complete when two looks
show the same text."""


class NoStacks(MetaMCPError):
    """A worker did not write its stacks. The text is a sentence."""


class Stacks:
    """The files, by process. `signal_worker(pid, number)`: signals a worker through the nursery."""

    def __init__(self, signal_worker: Callable[[int, int], None]) -> None:
        self._signal = signal_worker
        self._unborn: dict[int, tuple[int, str]] = {}
        self._files: dict[int, tuple[int, str]] = {}

    def open(self, ticket: int, name: str) -> int:
        """Return a descriptor for the worker that is to be forked. Raises OSError."""
        fd = _file()
        try:
            copy = os.dup(fd)
        except OSError:
            os.close(fd)
            raise
        self._unborn[ticket] = fd, name
        return copy

    def born(self, ticket: int, pid: int) -> None:
        """Note the process of the worker that was forked for this ticket."""
        self._files[pid] = self._unborn.pop(ticket)

    def forget(self, ticket: int) -> None:
        """Close the file of this ticket, unless its worker was forked."""
        if ticket in self._unborn:
            os.close(self._unborn.pop(ticket)[0])

    def handed(self) -> list[tuple[int, int, str]]:
        """Return process, file and name of each worker, for the program after this one."""
        return [(pid, fd, name) for pid, (fd, name) in self._files.items()]

    def adopt(self, pid: int, fd: int, name: str) -> None:
        """Continue with the file of a worker of the previous program. Takes the descriptor."""
        self._files[pid] = fd, name

    def take(self, pid: int) -> tuple[str, str]:
        """Return the name and the last stacks of a worker that is gone, and close its file. Usually
        the stacks are empty."""
        if pid not in self._files:
            return "", ""
        fd, name = self._files.pop(pid)
        try:
            return name, _text(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close all files, because all workers are gone."""
        for pid in list(self._files):
            self.take(pid)

    async def dump(self, pid: int) -> str:
        """Return the current stacks of a worker. Raises NoStacks."""
        if pid not in self._files:
            raise NoStacks("its worker does not run")
        fd, _ = self._files[pid]
        _clear(fd)
        self._signal(pid, ASK_SIGNAL)
        text, before = "", ""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                while not text or text != before:
                    await asyncio.sleep(LOOK_S)
                    if pid not in self._files or self._files[pid][0] != fd:
                        raise NoStacks("its worker ended when it was asked for its stacks")
                    text, before = _text(fd), text
        except TimeoutError:
            why = "it is stopped, has only begun, or waits for something in the kernel"
            raise NoStacks(f"its worker wrote no stacks within {ANSWER_S_MAX:g} s: {why}") from None
        _clear(fd)
        return text


def _file() -> int:
    if not hasattr(os, "memfd_create"):
        return packets.blob(b"")
    fd = os.memfd_create("metamcp-stacks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, STACKS_BYTES_MAX)
        if sys.platform == "linux":  # so a worker that writes without end fills no memory
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except OSError:
        os.close(fd)
        raise
    return fd


def _text(fd: int) -> str:
    written = os.pread(fd, STACKS_BYTES_MAX, 0).partition(b"\0")[0]
    return written.decode(errors="replace").strip()


def _clear(fd: int) -> None:
    os.pwrite(fd, bytes(len(os.pread(fd, STACKS_BYTES_MAX, 0).rstrip(b"\0"))), 0)
    os.lseek(fd, 0, os.SEEK_SET)
