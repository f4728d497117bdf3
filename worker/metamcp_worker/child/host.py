"""What a server runs in: a process of its own, or a thread of this worker.

Owns: the shape of both, how an end is described. Never: bytes, the steps of stopping (these are
the connection's).
"""

import os
import signal
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from metamcp_worker.child.actions import Reason
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.runtime import memory


class ServerExit(Struct, frozen=True):
    """How it ended. `message`: a sentence that begins with "it"."""

    reason: Reason
    message: str
    code: int | None = None
    signal: int = 0


class SpawnFailed(MetaMCPError):
    """The server could not be started at all. The text is a whole sentence."""


class Host(Protocol):
    """A server that was started. `pid`: 0 without a process. `stdin`, `stdout`, `stderr`: our ends
    of its pipes; who takes a host closes them. `halted`: is it stopped by a signal?"""

    pid: int
    stdin: int
    stdout: int
    stderr: int
    halted: bool

    @property
    def exit(self) -> ServerExit | None:
        """How it ended, None as long as it lives."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""
        ...

    def kill(self) -> None:
        """End it and all of its process group at once."""
        ...

    def tick(self) -> None:
        """Called a few times per second."""
        ...


Exited = Callable[[ServerExit], None]
"""Told once, from the event loop, when a host has ended."""


def process_exit(code: int) -> ServerExit:
    """The end of a process from its return code as `subprocess` has it."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "a signal"
        return ServerExit("signal", f"it was ended by {name} ({-code})", signal=-code)
    if code == 0:
        return ServerExit("clean", "it ended with status 0", code=0)
    return ServerExit("exit", f"it ended with status {code}", code=code)


KEY_BYTES = 32


def prepare() -> None:
    """Before the first import of it.

    The nursery made one key of `multiprocessing` for all its workers; with it the code of one
    server could speak to the processes of another. And what a call of ours leaves is no cycle, but
    of others' code nobody knows: the collector looks as often as anywhere else.
    """
    import multiprocessing  # not in the nursery: only such code wants it

    multiprocessing.current_process().authkey = os.urandom(KEY_BYTES)
    memory.collect_as_usual()
