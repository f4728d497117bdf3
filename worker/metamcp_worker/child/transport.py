"""Interfaces of a worker to its server: a transport (pipes, HTTP or a user's own code) and a host.

Owns: the methods of a transport, of its listener and of a host, the half that all remote transports
share (`RemoteTransportBase`), how the end of a server is described, the preparation of this process
for foreign code. Never: a transport, the meaning of a message, the steps of stopping (`stdio`).

Messages are whole JSON-RPC messages, one in each `bytes`. On a pipe all of them share one stream.
Over HTTP each request has a stream of its own, on which the server may say more than the answer,
and there may be several sessions with one server; a transport says with each message where it came
from: `stream` is the id of the request on whose stream it came, b"" for a stream that belongs to no
request, None where there is only one stream for everything. `via` numbers the transport's sessions;
an answer to the server goes back in the session of the question.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from metamcp_worker.child.actions import CancelRequest, Fail, Reason, ServerRequest
from metamcp_worker.child.server_log import ServerLog
from metamcp_worker.confinement.launch import ConfinedProcess
from metamcp_worker.ipc.envelope import OverlongLine
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.messages import LogLines
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
    server. `confinement`: how it is confined; None for one that is not to be."""

    pid: int
    confinement: ConfinedProcess | None
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

    def list_left(self) -> set[int]:
        """Return children of this process that the server left behind when it ended. Raises
        OSError."""
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

    The nursery created one key of `multiprocessing` for all its workers; with that key the code of
    one server could speak to the processes of another. The gateway's own code leaves few reference
    cycles, but foreign code may leave many, so the garbage collector runs as often as Python does
    by default.
    """
    import multiprocessing  # not in the nursery: only such code wants it

    multiprocessing.current_process().authkey = os.urandom(KEY_BYTES)
    memory.collect_as_usual()


class TransportListener(Protocol):
    """Listener of a transport: gets what comes from the server."""

    def on_messages(self, lines: list[bytes], stream: bytes | None = None, via: int = 0) -> None:
        """Take messages that the server sent."""
        ...

    def on_request_failed(self, key: bytes, error: bytes) -> None:
        """Note that the request `key` gets no answer from the server. `error`: a raw error object
        with the reason; `may_have_run` in its `data` says whether the server may have seen it."""
        ...

    def on_skip(self, size_bytes: int, lines: int = 0) -> None:
        """Count bytes of a message that is above its limit already, or lines of a stream that have
        no part in a message."""
        ...

    def overlong(self, line: OverlongLine) -> None:
        """Take the beginning of a message above its limit."""
        ...

    def count(self, counter: str, times: int = 1) -> None:
        """Add to a counter, which is a name in `messages.EventCounts`."""
        ...

    def on_server_lost(self, failure: Fail) -> None:
        """Note that the server is gone, or must be ended because it broke a limit or closed a
        pipe."""
        ...

    def on_log(self) -> None:
        """Note that the server wrote to its log."""
        ...

    def secret(self, text: str) -> None:
        """Mask a value from now on, which the configuration does not know: a token."""
        ...


class Transport(Protocol):
    """The way to one server, from the start to the end."""

    @property
    def pid(self) -> int:
        """Id of the server's process; 0 if the gateway has not started it."""
        ...

    @property
    def confinement(self) -> ConfinedProcess | None:
        """How the server is confined; None for one that is not to be."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the server is gone, or about to be ended."""
        ...

    @property
    def exit(self) -> ServerExit | None:
        """How the server's process ended; None as long as it lives."""
        ...

    @property
    def last_words(self) -> str:
        """Lines of the log that say why the server ended, and where its log is; empty without
        any."""
        ...

    def stuck(self) -> bool:
        """Whether the server does not read its input."""
        ...

    def request(self, request: ServerRequest) -> bool:
        """Send a request. Returns False if it is lost; `on_request_failed` reports what fails
        later."""
        ...

    def write(self, line: bytes, via: int = 0) -> bool:
        """Send a notification or an answer. Returns False if it is lost."""
        ...

    def drop(self, drop: CancelRequest) -> bool:
        """Tell the server that no caller waits for this request any more. Returns False if the
        server will not learn of it."""
        ...

    def pause(self) -> None:
        """Take no more messages for now."""
        ...

    def resume(self) -> None: ...

    def stray(self, line: bytes) -> None:
        """Log output of the server that was not a message."""
        ...

    def warn(self, text: str) -> None:
        """Log a sentence of the gateway's own."""
        ...

    def take_log_lines(self) -> list[LogLines]:
        """Return the lines that were logged since the last call."""
        ...

    def tick(self) -> None:
        """Do periodic work; called a few times per second."""
        ...

    async def stop(self) -> None:
        """End the server in steps, each with its time."""
        ...

    async def kill(self) -> None:
        """End the server at once, and wait for the end."""
        ...

    def abort(self) -> None:
        """End the server at once, without waiting."""
        ...

    async def close(self) -> None:
        """Free everything."""
        ...


STRAY_BYTES_MAX = 200
"""Maximum bytes that are logged of output that is not a message."""


class RemoteTransportBase:
    """Half of a `Transport` that all transports to remote servers share."""

    pid = 0
    confinement: ConfinedProcess | None = None

    def __init__(self) -> None:
        self._log = ServerLog("stderr")
        self._strays = ServerLog("stdout")
        self._clock = asyncio.get_running_loop().time

    @property
    def exit(self) -> ServerExit | None:
        """None: the gateway has no process that ends with the server."""
        return None

    @property
    def last_words(self) -> str:
        """Empty: a remote server writes no log to the gateway."""
        return ""

    def stray(self, line: bytes) -> None:
        """Log output of the server that was not a message."""
        self._strays.add(line[:STRAY_BYTES_MAX].decode(errors="replace"), self._clock())

    def warn(self, text: str) -> None:
        """Log a sentence of the gateway's own."""
        self._log.add(f"metamcp: {text}", self._clock())

    def take_log_lines(self) -> list[LogLines]:
        """Return the lines that were logged since the last call."""
        return self._log.take() + self._strays.take()
