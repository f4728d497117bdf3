"""The process of a nursery, as its parent has it, and the control socket to it.

Owns: how one is executed, one that an earlier program in this very process has executed, and what
may be wrong with one. Never: what is said to it (`spawn`), its end (`burials`).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Protocol

from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.messages import Born

NO_PROC = "/dev/fd is not there, most likely because /proc is empty; mount proc at /proc"
# Without -P the folder in which the gateway is started could bring modules of its own.
DEFAULT_COMMAND = (sys.executable, "-P", "-m", "metamcp_worker", "nursery")


class NurseryDown(MetaMCPError):
    """The nursery did not start."""


class NotForked(MetaMCPError):
    """A worker could not be forked. The text says which and why."""


class NurseryGone(NotForked):
    """It could not, because the nursery died or was replaced: that is nobody else's fault."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A forked process. `sock`: the supervisor's end of its control socket, blocking and not read
    by anyone yet; it belongs to the caller of `fork`."""

    pid: int
    role: str
    name: str
    sock: socket


class Process(Protocol):
    """A child of this process. `returncode`: as `subprocess` has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class Foster:
    """A child that an earlier program in this process has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # it was reaped before this program began
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)  # it is not reaped, so the pid is still its own

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(slots=True, eq=False)
class Life:
    """One run of the nursery, from its start to its burial."""

    process: Process
    born: asyncio.Future[Born | None]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    channel: packets.Channel | None = None


def adopted(pid: int) -> Life:
    """A nursery that is up, of a program before."""
    life = Life(Foster(pid), asyncio.get_running_loop().create_future())
    life.born.set_result(Born(pid=pid))
    return life


def execute(command: Sequence[str]) -> tuple[Process, socket]:
    """Start a nursery; our end of its control socket. Raises OSError."""
    if not Path("/dev/fd").exists():
        raise OSError(NO_PROC)
    ours, theirs = packets.pair()
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        process = subprocess.Popen(
            (*command, "--fd", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=2,  # nothing below the nursery writes into the output of the command
            start_new_session=True,  # ^C on the terminal is the supervisor's alone
        )
        undo.pop_all()
    return process, ours
