"""Load over HTTP: a number of callers, each with one connection and one call at a time.

Every answer is checked: it must be a result with the caller's own text in it.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop

ANSWER_S_MAX = 30
ANSWERS_MAX = 1_000_000_000
"""Of one caller. All callers share a session, in which every request in flight has its own id."""


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


class Caller(asyncio.Protocol):
    """One connection: sends a call, checks the answer, sends the next, until the time is over."""

    def __init__(self, number: int, head: bytes, tool: str, end: float, figures: Figures) -> None:
        self.number, self.head, self.tool = number, head, tool.encode()
        self.end, self.figures = end, figures
        self.sequence = 0
        self.buffer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send()

    def send(self) -> None:
        self.sequence += 1
        self.text = b"T%d-%dT" % (self.number, self.sequence)
        body = (
            b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%b",'
            b'"arguments":{"text":"%b","padding":"0123456789abcdef0123456789abcdef"}}}'
            % (self.number * ANSWERS_MAX + self.sequence, self.tool, self.text)
        )
        self.sent = time.perf_counter()
        self.transport.write(self.head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        head_end = buffer.find(b"\r\n\r\n")
        if head_end < 0:
            self.buffer = buffer
            return
        at = buffer.lower().find(b"content-length:", 0, head_end)
        size = int(buffer[at + 15 : buffer.index(b"\r\n", at)])
        if len(buffer) < head_end + 4 + size:
            self.buffer = buffer
            return
        now = time.perf_counter()
        self.buffer = b""
        figures = self.figures
        figures.calls += 1
        figures.latencies_s.append(now - self.sent)
        if self.text not in buffer or b'"result"' not in buffer:
            figures.wrong += 1
        if now < self.end:
            self.send()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def _run(
    port: int, headers: dict[str, str], tool: str, callers: int, seconds: float
) -> Figures:
    figures = Figures()
    lines = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", **headers}
    head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{key}: {item}\r\n" for key, item in lines.items())
    start = time.perf_counter()
    loop = asyncio.get_running_loop()
    opened: list[Caller] = []
    for number in range(callers):
        caller = Caller(number, head.encode(), tool, start + seconds, figures)
        await loop.create_connection(lambda made=caller: made, "127.0.0.1", port)
        opened.append(caller)
    async with asyncio.timeout(seconds + ANSWER_S_MAX):
        await asyncio.gather(*(caller.done for caller in opened))
    figures.seconds = time.perf_counter() - start
    return figures


def over_http(
    port: int, headers: dict[str, str], tool: str, callers: int, seconds: float
) -> Figures:
    """`callers` callers of `tool` for `seconds`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(port, headers, tool, callers, seconds))
