"""Callers who wait: each has one call open that takes its time, and nothing else to do."""

import socket
from types import TracebackType
from typing import Self

from benchmarks.load import READ_BYTES, Answer, Speech

ANSWER_S_MAX = 60.0
FIRST_ID = 500_000_000
"""Far from the ids of other callers of the same session."""


class Held:
    """The calls are sent when the `with` block begins, and their answers read when it is asked."""

    def __init__(self, port: int, said: Speech, count: int) -> None:
        self.said = said
        self.socks = [
            socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        for number, sock in enumerate(self.socks):
            sock.sendall(self.said.request(FIRST_ID + number, b"H%dH" % number))
        return self

    def answers(self) -> list[bytes]:
        """Of all of them, in their order."""
        return [self._answer(sock) for sock in self.socks]

    def wrong(self) -> int:
        """How many answers are not the right one."""
        return sum(b"H%dH" % at not in one for at, one in enumerate(self.answers()))

    def _answer(self, sock: socket.socket) -> bytes:
        answer = Answer()
        while data := sock.recv(READ_BYTES):
            if (whole := answer.take(data)) is not None:
                return whole
        return b""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sock in self.socks:
            sock.close()
