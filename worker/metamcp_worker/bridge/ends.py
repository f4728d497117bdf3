"""A client's end of a pipe or socket, for the event loop, without a change that others would feel.

Owns: reading and writing that never waits, what a loop may watch for it. Never: lines.

A loop makes non-blocking what it watches, and that would hold for everybody who has the descriptor.
So a pipe is opened once more, which makes a descriptor that is ours alone. A socket cannot be: it
is told with each call not to wait, and the loop watches an epoll of ours that watches the socket.
There is no such way for files and terminals, nor without Linux: then threads do it (`pipes`).
"""

import asyncio
import os
import select
import socket
import stat
from collections.abc import Callable

from msgspec import Struct

READ_BYTES = 64 * 1024


class End(Struct, frozen=True):
    """`read`, `write`: as much as goes at once, `read` nothing at the end of the input; they raise
    OSError, and BlockingIOError if nothing goes. `watched`: shows when something does, by becoming
    writable if `as_writer`, else readable."""

    watched: int
    as_writer: bool
    read: Callable[[], bytes]
    write: Callable[[memoryview], int]
    close: Callable[[], None]

    def watch(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        (loop.add_writer if self.as_writer else loop.add_reader)(self.watched, call)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        (loop.remove_writer if self.as_writer else loop.remove_reader)(self.watched)


def opened(fd: int, *, writes: bool) -> End | None:
    """Our way to `fd`, which stays open; None if there is none."""
    if not hasattr(select, "epoll"):
        return None
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode):
            return _pipe(fd, writes=writes)
        if stat.S_ISSOCK(mode):
            return _socket(fd, select.EPOLLOUT if writes else select.EPOLLIN)
    except OSError:  # of another user, without /proc, or nobody is at its other end
        return None
    return None


def _pipe(fd: int, *, writes: bool) -> End:
    flags = os.O_WRONLY if writes else os.O_RDONLY
    own = os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    return End(
        own,
        writes,
        lambda: os.read(own, READ_BYTES),
        lambda data: os.write(own, data),
        lambda: os.close(own),
    )


def _socket(fd: int, events: int) -> End | None:
    sock = socket.socket(fileno=os.dup(fd))
    if sock.type != socket.SOCK_STREAM:
        sock.close()
        return None
    watch = select.epoll()
    watch.register(sock.fileno(), events)

    def close() -> None:
        watch.close()
        sock.close()

    return End(
        watch.fileno(),
        False,
        lambda: sock.recv(READ_BYTES, socket.MSG_DONTWAIT),
        lambda data: sock.send(data, socket.MSG_DONTWAIT),
        close,
    )
