"""Host of a server: a separate process, or a thread of this worker.

Owns: the shape of both, how the end of a server is described, the preparation of this process for
foreign code. Never: bytes, the steps of stopping (`stdio`).
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
    """How a server ended. `message`: a sentence that begins with "it"."""

    reason: Reason
    message: str
    code: int | None = None
    signal: int = 0


class SpawnFailed(MetaMCPError):
    """The server could not be started at all. The text is a whole sentence."""


class Host(Protocol):
    """Running server. `pid`: 0 without a process. `stdin`, `stdout`, `stderr`: the gateway's ends
    of its pipes, which the user of the host closes. `halted`: whether a signal has stopped the
    server."""

    pid: int
    stdin: int
    stdout: int
    stderr: int
    halted: bool

    @property
    def exit(self) -> ServerExit | None:
        """How the server ended; None as long as it runs."""
        ...

    def terminate(self) -> None:
        """Ask the server to end."""
        ...

    def kill(self) -> None:
        """End the server and all of its process group at once."""
        ...

    def tick(self) -> None:
        """Do what is due; called a few times per second."""
        ...


Exited = Callable[[ServerExit], None]
"""Callback: called once, from the event loop, when a host has ended."""


def process_exit(code: int) -> ServerExit:
    """Describe the end of a process by its return code, which is negative for a signal as in
    `subprocess`."""
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
    """Prepare this process for foreign code, before the first import of that code.

    The nursery made one key of `multiprocessing` for all its workers; with that key the code of one
    server could speak to the processes of another. The gateway's own code leaves few reference
    cycles, but foreign code may leave many, so the garbage collector runs as often as Python does
    by default.
    """
    import multiprocessing  # not in the nursery: only such code wants it

    multiprocessing.current_process().authkey = os.urandom(KEY_BYTES)
    memory.collect_as_usual()
