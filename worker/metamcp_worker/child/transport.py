"""What a worker needs of the way to its server, be it pipes, HTTP or a user's own code.

Owns: the shape of a transport, and of what it tells. Never: a transport, the meaning of a message.

Messages are whole JSON-RPC messages, one in each `bytes`. On a pipe all of them share one stream.
Over HTTP each request has a stream of its own, on which the server may say more than the answer,
and there may be several sessions with one server; a transport says with each message where it came
from: `stream` is the id of the request on whose stream it came, b"" for a stream that belongs to no
request, None where there is only one stream for everything. `via` numbers the transport's sessions;
an answer to the server goes back in the session of the question.
"""

import asyncio
from typing import Protocol

from metamcp_worker.child.actions import Drop, Fail, ServerRequest
from metamcp_worker.child.host import ServerExit
from metamcp_worker.child.jsonrpc_lines import OverlongLine
from metamcp_worker.child.server_log import ServerLog
from metamcp_worker.ipc.messages import LogLines


class TransportListener(Protocol):
    """Who uses a transport."""

    def received(self, lines: list[bytes], stream: bytes | None = None, via: int = 0) -> None:
        """The server sent these messages."""
        ...

    def failed(self, key: bytes, error: bytes) -> None:
        """The request `key` gets no answer of the server. `error`: a raw error object that says
        why; its `data` says in `may_have_run` whether the server may have seen it."""
        ...

    def skipped(self, size_bytes: int, lines: int = 0) -> None:
        """The server sent so many bytes more of a message that is above its limit already, or so
        many lines of a stream that have no part in a message."""
        ...

    def overlong(self, line: OverlongLine) -> None:
        """The server sent a message above its limit."""
        ...

    def counted(self, counter: str, times: int = 1) -> None:
        """It happened so many more times: a name of `messages.Counted`."""
        ...

    def lost(self, failure: Fail) -> None:
        """The server is gone, or must be ended: it broke a limit or closed a pipe."""
        ...


class Transport(Protocol):
    """The way to one server, from the start to the end."""

    @property
    def pid(self) -> int:
        """Of the server's process; 0 if it has none of ours."""
        ...

    @property
    def lost(self) -> bool:
        """Is the server gone, or about to be ended?"""
        ...

    @property
    def exit(self) -> ServerExit | None:
        """How its process ended, None as long as it lives."""
        ...

    @property
    def last_words(self) -> str:
        """What of its log says why it ended, and where all of it is; empty if it logged nothing."""
        ...

    def stuck(self) -> bool:
        """Does the server not read what it is sent?"""
        ...

    def request(self, request: ServerRequest) -> bool:
        """Send one request. False if it is lost; `Listener.failed` tells of what fails later."""
        ...

    def write(self, line: bytes, via: int = 0) -> bool:
        """Send a notification or an answer. False if it is lost."""
        ...

    def drop(self, drop: Drop) -> bool:
        """Nobody waits for this request any more. False if the server will not learn of it."""
        ...

    def pause(self) -> None:
        """Take no more messages for now."""
        ...

    def resume(self) -> None: ...

    def stray(self, line: bytes) -> None:
        """Log something of the server's that was no message."""
        ...

    def warn(self, text: str) -> None:
        """Log a sentence of the gateway's own."""
        ...

    def logged(self) -> list[LogLines]:
        """What was logged since the last time."""
        ...

    def tick(self) -> None:
        """Called a few times per second."""
        ...

    async def stop(self) -> None:
        """End the server in steps, each with its time."""
        ...

    async def kill(self) -> None:
        """End it at once, and wait for the end."""
        ...

    def abort(self) -> None:
        """End it at once, without waiting."""
        ...

    async def close(self) -> None:
        """Free everything."""
        ...


STRAY_BYTES_MAX = 200
"""How much is logged of something that is no message."""


class Distant:
    """The half of a `Transport` that is the same for each of them."""

    pid = 0

    def __init__(self) -> None:
        self._log = ServerLog("stderr")
        self._strays = ServerLog("stdout")
        self._clock = asyncio.get_running_loop().time

    @property
    def exit(self) -> ServerExit | None:
        """No process of ours ends with it."""
        return None

    @property
    def last_words(self) -> str:
        """It writes none to us."""
        return ""

    def stray(self, line: bytes) -> None:
        """Log something of the server's that was no message."""
        self._strays.add(line[:STRAY_BYTES_MAX].decode(errors="replace"), self._clock())

    def warn(self, text: str) -> None:
        """Log a sentence of the gateway's own."""
        self._log.add(f"metamcp: {text}", self._clock())

    def logged(self) -> list[LogLines]:
        """What was logged since the last time."""
        return self._log.take() + self._strays.take()
