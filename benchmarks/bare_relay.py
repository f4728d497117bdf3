"""The yardstick: HTTP -> front process -> pipe -> worker process -> stdio child, and nothing else.

No sessions, no catalogue, no metrics, no limits, one server, one tool (`$BENCH_TOOL`, or `echo`):
what the shape of the processes costs by itself, in the same language and with the same libraries.

    python -m benchmarks.bare_relay PORT CHILD_COMMAND...
"""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import uvicorn
import uvloop
from msgspec import Raw, Struct

TOOL = Raw(json.dumps(os.environ.get("BENCH_TOOL", "echo")).encode())
HEADER = struct.Struct("!IQ")  # bytes of the body, number of the call

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Request(Struct):
    id: Raw
    params: Raw


class Reply(Struct):
    id: int = 0
    result: Raw = Raw(b"null")


class Link(asyncio.Protocol):
    """Numbered bodies over a stream; what one tick of the loop sends leaves together."""

    def __init__(self, receive: Callable[[int, bytes], None]) -> None:
        self.receive = receive
        self.buffer = bytearray()
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        at = 0
        while len(self.buffer) - at >= HEADER.size:
            size, number = HEADER.unpack_from(self.buffer, at)
            end = at + HEADER.size + size
            if end > len(self.buffer):
                break
            self.receive(number, bytes(self.buffer[at + HEADER.size : end]))
            at = end
        del self.buffer[:at]

    def send(self, number: int, body: bytes) -> None:
        if not self.waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self.waiting += (HEADER.pack(len(body), number), body)

    def flush(self) -> None:
        self.transport.write(b"".join(self.waiting))
        self.waiting.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        asyncio.get_running_loop().stop()


async def link_over(sock: socket.socket, receive: Callable[[int, bytes], None]) -> Link:
    _, link = await asyncio.get_running_loop().create_unix_connection(
        lambda: Link(receive), sock=sock
    )
    return link


async def work(sock: socket.socket, command: list[str]) -> None:
    """The worker process: bodies in, lines to the child, and back."""
    child = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 24
    )
    assert child.stdin is not None
    assert child.stdout is not None
    stdin, decode = child.stdin, msgspec.json.Decoder(Reply).decode
    lines: list[bytes] = []

    def flush() -> None:
        stdin.write(b"".join(lines))
        lines.clear()

    def to_child(number: int, params: bytes) -> None:
        if not lines:
            asyncio.get_running_loop().call_soon(flush)
        lines.append(
            b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%b}\n' % (number, params)
        )

    link = await link_over(sock, to_child)
    while line := await child.stdout.readline():
        reply = decode(line)
        link.send(reply.id, bytes(reply.result))


class Front:
    """The front process: one ASGI application and the table of who waits for what."""

    def __init__(self) -> None:
        self.link: Link
        self.calls = 0
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self.decode = msgspec.json.Decoder(Request).decode
        self.decode_params = msgspec.json.Decoder(dict[str, Raw]).decode
        self.encode = msgspec.json.Encoder().encode

    def answered(self, number: int, result: bytes) -> None:
        self.waiting.pop(number).set_result(result)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body: bytes = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        request = self.decode(body)
        params = self.decode_params(request.params)
        params["name"] = TOOL
        self.calls += 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting[self.calls] = answer
        self.link.send(self.calls, self.encode(params))
        text = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(request.id), await answer)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(text)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})


async def serve(sock: socket.socket, port: int) -> None:
    front = Front()
    front.link = await link_over(sock, front.answered)
    config = uvicorn.Config(
        front,  # type: ignore[arg-type]  # a plain ASGI application; the stub wants its own types
        port=port,
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
    )
    await uvicorn.Server(config).serve()


def main() -> None:
    near, far = socket.socketpair()
    port, command = int(sys.argv[1]), sys.argv[2:]
    if os.fork():
        far.close()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(near, port))
        return
    near.close()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(far, command))
    except RuntimeError:  # the loop was stopped because the front is gone
        os._exit(0)


if __name__ == "__main__":
    main()
