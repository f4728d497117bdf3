"""The ceiling: the shape of the bare relay with as little in it as Python can do.

HTTP -> front process -> socket pair -> worker process -> stdio child. HTTP is cut by hand out of
what arrives, in an `asyncio.Protocol`; there is no server library, no header is looked at but the
length, and no connection has a limit. No product can be so bare: it shows what the rest costs.

    python -m benchmarks.ceiling PORT CHILD_COMMAND...
"""

import asyncio
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop
from msgspec import Raw, Struct

TOOL = os.environ.get("BENCH_TOOL", "echo").encode()
HEADER = struct.Struct("!IQ")  # bytes of the body, number of the call
BUFFER_BYTES = 1 << 18


class Params(Struct):
    arguments: Raw


class Request(Struct):
    id: Raw
    params: Params


class Reply(Struct):
    id: int = 0
    result: Raw = Raw(b"null")


class Link(asyncio.BufferedProtocol):
    """Numbered bodies, cut out of one buffer without a copy until a whole one is there."""

    def __init__(self, receive: Callable[[int, bytes], None]) -> None:
        self.receive = receive
        self.buffer = bytearray(BUFFER_BYTES)
        self.filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if len(self.buffer) - self.filled < BUFFER_BYTES // 4:
            self.buffer = self.buffer + bytearray(len(self.buffer))
        return memoryview(self.buffer)[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.filled += nbytes
        at, buffer, filled = 0, self.buffer, self.filled
        while filled - at >= HEADER.size:
            size, number = HEADER.unpack_from(buffer, at)
            end = at + HEADER.size + size
            if end > filled:
                break
            self.receive(number, bytes(memoryview(buffer)[at + HEADER.size : end]))
            at = end
        if at:
            buffer[: filled - at] = buffer[at:filled]
            self.filled = filled - at

    def send(self, number: int, body: bytes) -> None:
        self.transport.write(HEADER.pack(len(body), number) + body)

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(0)  # the other process is gone


class Child(asyncio.SubprocessProtocol):
    """The server: lines in, lines out."""

    def __init__(self, answered: Callable[[int, bytes], None]) -> None:
        self.answered = answered
        self.decode = msgspec.json.Decoder(Reply).decode
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pipe = cast(asyncio.SubprocessTransport, transport).get_pipe_transport(0)
        self.stdin = cast(asyncio.WriteTransport, pipe)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            reply = self.decode(line)
            self.answered(reply.id, bytes(reply.result))


class Http(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, front: "Front") -> None:
        self.front = front
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        while (head_end := data.find(b"\r\n\r\n")) >= 0:
            at = data.lower().index(b"content-length:", 0, head_end)
            end = head_end + 4 + int(data[at + 15 : data.index(b"\r\n", at)])
            if len(data) < end:
                break
            self.front.call(self, data[head_end + 4 : end])
            data = data[end:]
        self.rest = data


class Front:
    """Who waits for which answer."""

    def __init__(self) -> None:
        self.link: Link
        self.calls = 0
        self.waiting: dict[int, tuple[Http, bytes]] = {}
        self.decode = msgspec.json.Decoder(Request).decode

    def call(self, http: Http, body: bytes) -> None:
        request = self.decode(body)
        self.calls += 1
        self.waiting[self.calls] = http, bytes(request.id)
        self.link.send(self.calls, bytes(request.params.arguments))

    def answered(self, number: int, result: bytes) -> None:
        http, name = self.waiting.pop(number)
        http.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (33 + len(name) + len(result), name, result)
        )


async def link_over(sock: socket.socket, receive: Callable[[int, bytes], None]) -> Link:
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: Link(receive), sock=sock)
    return link


async def work(sock: socket.socket, command: list[str]) -> None:
    def to_child(number: int, arguments: bytes) -> None:
        child.stdin.write(
            b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%b",'
            b'"arguments":%b}}\n' % (number, TOOL, arguments)
        )

    link = await link_over(sock, to_child)
    _, child = await asyncio.get_running_loop().subprocess_exec(
        lambda: Child(link.send), *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    await asyncio.Event().wait()


async def serve(sock: socket.socket, port: int) -> None:
    front = Front()
    front.link = await link_over(sock, front.answered)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http(front), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    near, far = socket.socketpair()
    port, command = int(sys.argv[1]), sys.argv[2:]
    if os.fork():
        far.close()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(near, port))
        return
    near.close()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(far, command))


if __name__ == "__main__":
    main()
