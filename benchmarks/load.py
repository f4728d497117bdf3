"""Load over HTTP: a number of callers, each with one connection and one call at a time.

Owns: how a call is put into a request, when an answer is whole, who calls next. Every answer is
checked: it must be a result with the caller's own text in it. Never: starting what is called.

The load comes from a program in C (`load_c`), or from Python where there is no compiler, and over
TLS. Both do the same: one thread, blocking sockets and `epoll`.
"""

import json
import select
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import load_c

ANSWER_S_MAX = 30
ANSWERS_MAX = 1_000_000_000
"""Of one caller. All callers share a session, in which every request in flight has its own id."""
READ_BYTES = 1 << 18
_LENGTH = b"content-length:"
_END_OF_CHUNKS = b"0\r\n\r\n"
PADDING = "0123456789abcdef0123456789abcdef"
OK = b"HTTP/1.1 200"


@dataclass
class Figures:
    """What one run of load measured. `latencies_s` in the order of the answers."""

    calls: int = 0
    wrong: int = 0
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list[float])

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    def percentile_ms(self, share: float) -> float:
        ranked = sorted(self.latencies_s)
        return ranked[min(len(ranked) - 1, int(len(ranked) * share))] * 1000


@dataclass(frozen=True, slots=True)
class Speech:
    """How one call is said: everything before its length, and its body with `%(id)d` and
    `%(text)b` in it. `proof`: what every right answer has in it, beside the text. `filling`: 0 to
    so many bytes in the place of `%(filling)b`, another number for each call. `traced`: with a
    traceparent of its own for each call."""

    head: bytes
    body: bytes
    proof: bytes = b'"result"'
    filling: int = 0
    traced: bool = False

    def request(self, number: int, text: bytes) -> bytes:
        """`number`: the id, which is the caller's number times ANSWERS_MAX and its sequence."""
        caller, sequence = divmod(number, ANSWERS_MAX)
        filling = b"x" * ((caller * 7919 + sequence * 271) % (self.filling + 1))
        body = self.body % {b"id": number, b"text": text, b"filling": filling}
        head = self.head
        if self.traced:
            head += b"traceparent: 00-0af7651916cd43dd%016x-%016x-01\r\n" % (number, number)
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    def marked(self) -> load_c.Marked:
        """The same for the program in C, which puts in what is of each call."""
        body = self.body
        for place, mark in (
            (b"%(id)d", load_c.ID),
            (b"%(text)b", load_c.TEXT),
            (b"%(filling)b", load_c.FILLING),
            (b"%%", b"%"),
        ):
            body = body.replace(place, mark)
        trace = b"traceparent: " + load_c.TRACE + b"\r\n" if self.traced else b""
        return load_c.Marked(self.head + trace, body, self.proof, self.filling)


def speech(
    port: int,
    headers: Mapping[str, str],
    tool: str,
    *,
    path: str = "/mcp",
    arguments: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Speech:
    """A call of `tool` as JSON-RPC."""
    lines = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", **headers}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{key}: {it}\r\n" for key, it in lines.items())
    more = "" if meta is None else f',"_meta":{written(meta)}'
    rest = f',"padding":"{PADDING}%(filling)b"'
    if arguments is not None:
        rest = "".join(f',"{key}":{written(item)}' for key, item in arguments.items())
    body = (
        f'{{"jsonrpc":"2.0","id":%(id)d,"method":"tools/call","params":{{"name":"{tool}",'
        f'"arguments":{{"text":"%(text)b"{rest}}}{more}}}}}'
    )
    return Speech(head.encode(), body.encode())


def written(value: object) -> str:
    return json.dumps(value, separators=(",", ":")).replace("%", "%%")


class Answer:
    """The bytes of one answer as they come."""

    __slots__ = ("_parts", "_size", "_whole")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = self._whole = 0

    def take(self, data: bytes) -> bytes | None:
        """The whole answer, once the last of its bytes is there."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._whole > self._size:
                return None
            data = b"".join(self._parts)
            self._parts.clear()
        if not self._whole:
            head_end = data.find(b"\r\n\r\n")
            if head_end < 0:
                self._wait(data)
                return None
            head = data[:head_end].lower()
            at = head.find(_LENGTH)
            if at < 0:
                if not data.endswith(_END_OF_CHUNKS):
                    self._wait(data)
                    return None
                return data
            line_end = head.find(b"\r\n", at)
            body_bytes = int(head[at + 15 : line_end if line_end > 0 else head_end])
            self._whole = head_end + 4 + body_bytes
        if len(data) < self._whole:
            self._wait(data)
            return None
        self._whole = 0
        return data

    def _wait(self, data: bytes) -> None:
        self._parts.append(data)
        self._size = len(data)


class Caller:
    """One connection: sends a call, checks the answer, sends the next, until the time is over."""

    __slots__ = ("_answer", "_said", "_sent", "_text", "number", "sequence", "sock", "speeches")

    def __init__(
        self, number: int, port: int, speeches: Sequence[Speech], tls: ssl.SSLContext | None
    ) -> None:
        self.number, self.speeches = number, speeches
        self.sequence = 0
        self._answer = Answer()
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="127.0.0.1")

    def send(self) -> None:
        self.sequence += 1
        self._text = b"T%d-%dT" % (self.number, self.sequence)
        self._said = self.speeches[(self.number + self.sequence) % len(self.speeches)]
        whole = self._said.request(self.number * ANSWERS_MAX + self.sequence, self._text)
        self._sent = time.perf_counter()
        self.sock.sendall(whole)

    def heard(self, figures: Figures) -> bool | None:
        """Read what there is. True: the answer is whole; False: the connection is gone."""
        data = self.sock.recv(READ_BYTES)
        now = time.perf_counter()
        if not data:
            figures.wrong += 1
            return False
        whole = self._answer.take(data)
        if whole is None:
            return None
        figures.calls += 1
        figures.latencies_s.append(now - self._sent)
        if not (whole.startswith(OK) and self._text in whole and self._said.proof in whole):
            figures.wrong += 1
        return True


def call(
    port: int, speeches: Sequence[Speech], callers: int, seconds: float, *, own: bool = False
) -> Figures:
    """`callers` callers for `seconds`, each with the speeches in turn, or, with `own`, with one of
    them that it keeps. Raises OSError if an answer does not come or a connection ends."""
    if (made := load_c.program()) is None:
        return call_by_python(port, speeches, callers, seconds, own=own)
    said = [one.marked() for one in speeches]
    found = load_c.call(made, load_c.order(port, said, callers, seconds, own=own), seconds)
    return Figures(len(found.latencies_s), found.wrong, found.seconds, found.latencies_s)


def call_by_python(
    port: int,
    speeches: Sequence[Speech],
    callers: int,
    seconds: float,
    tls: ssl.SSLContext | None = None,
    *,
    own: bool = False,
) -> Figures:
    """The same. `tls`: None for plain HTTP; the handshakes are over before the time begins."""
    figures = Figures()
    poll = select.epoll()
    by_fd: dict[int, Caller] = {}
    try:
        for number in range(callers):
            said = [speeches[number % len(speeches)]] if own else speeches
            made = Caller(number, port, said, tls)
            by_fd[made.sock.fileno()] = made
            poll.register(made.sock, select.EPOLLIN)
        start = time.perf_counter()
        end = start + seconds
        for caller in by_fd.values():
            caller.send()
        open_calls = callers
        while open_calls:
            ready = poll.poll(ANSWER_S_MAX)
            if not ready:
                raise TimeoutError(f"{open_calls} calls got no answer within {ANSWER_S_MAX} s")
            for fd, _ in ready:
                caller = by_fd[fd]
                answered = caller.heard(figures)
                if answered is None:
                    continue
                if answered and time.perf_counter() < end:
                    caller.send()
                else:
                    poll.unregister(fd)
                    open_calls -= 1
        figures.seconds = time.perf_counter() - start
    finally:
        poll.close()
        for caller in by_fd.values():
            caller.sock.close()
    return figures
