"""What all transports to servers have in common that are no processes of ours.

Owns: the log that such a server has, the answers to questions about its process. Never: messages,
connections.
"""

import asyncio

from metamcp_worker.child.host import Exit
from metamcp_worker.child.logs import ServerLog
from metamcp_worker.ipc.messages import LogLines

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
    def exit(self) -> Exit | None:
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
