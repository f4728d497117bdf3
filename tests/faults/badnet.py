"""Places in the network where no MCP server answers as it should: each a port of its own."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Generator

Handler = Callable[[socket.socket], None]
RESET = struct.pack("ii", 1, 0)
REQUEST_BYTES_MAX = 65536
DROP_S = 0.02


class Place:
    """A listening port, until `close`. `handler` has each connection in a thread of its own, and it
    is closed when that returns. `times`: of each connection."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.times: list[float] = []
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/mcp"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                one = self._listener.accept()[0]
            except OSError:
                return
            self.times.append(time.time())
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                one = self._tls.wrap_socket(one, server_side=True)
            with one:
                self._handler(one)


def resets(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def silent(one: socket.socket) -> None:
    """Reads and says nothing, until the other side goes."""
    while one.recv(REQUEST_BYTES_MAX):
        pass


def answers(head: str) -> Handler:
    """This status line and these headers, to everything."""

    def handler(one: socket.socket) -> None:
        whole = f"HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n".encode()
        while one.recv(REQUEST_BYTES_MAX):
            one.sendall(whole)

    return handler


@contextlib.contextmanager
def black_hole() -> Generator[str]:
    """A URL to which no connection comes about: whatever is sent there is lost."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(4):  # they fill the queue from which nobody takes any
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}/mcp"


@contextlib.contextmanager
def dripping(begin: bytes, drop: bytes, context: ssl.SSLContext | None = None) -> Generator[str]:
    """Begins an answer like this and then says a bit of it every now and then, for ever."""
    over = threading.Event()

    def drip(one: socket.socket) -> None:
        one.recv(REQUEST_BYTES_MAX)
        one.sendall(begin)
        while not over.wait(DROP_S):
            one.sendall(drop)

    place = Place(drip, context)
    try:
        yield place.url
    finally:
        over.set()
        place.close()
