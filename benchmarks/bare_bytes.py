"""The yardstick of long lists: the gateway's own HTTP server with ready bytes behind it.

Reads from stdin the size of a body on a line, and the body: what is answered to every request, with
the request's own id before it. Says its port on stdout, and ends with its stdin.

    python -m benchmarks.bare_bytes
"""

import asyncio
import socket
import sys

import msgspec
from msgspec import Raw, Struct

from metamcp_worker.http import request_head, requests
from metamcp_worker.http.serve import HttpServer
from metamcp_worker.runtime import loop

_OK = request_head.head(200, [request_head.JSON])


class Request(Struct):
    id: Raw


async def serve(rest: bytes) -> int:
    decode = msgspec.json.Decoder(Request).decode

    def app(request: requests.HttpRequest) -> None:
        body = request.take()  # it comes in one read: a request for a list is small
        request.answer(_OK, b'{"jsonrpc":"2.0","id":', bytes(decode(body).id), rest)

    sock = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(app)
    print(sock.getsockname()[1], flush=True)
    await server.start([sock])
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await server.drain(0)
    return 0


def main() -> int:
    size = int(sys.stdin.buffer.readline())
    return loop.run(serve(sys.stdin.buffer.read(size)))


if __name__ == "__main__":
    sys.exit(main())
