"""Datagrams with descriptors over AF_UNIX SOCK_SEQPACKET: the control sockets.

Owns: sending and receiving one packet, the event-loop side of it (`Channel`), blobs (larger values
that travel as a descriptor), connections between processes of the gateway. Never: the meaning of a
packet (`messages`).

A process that works for fronts has no address. The supervisor makes a pair of sockets: the process
gets the *acceptor*, and each front a *connector*. A front connects by making a stream pair and
sending one end of it through its connector (`Connectors`); the end waits in the pair, as in the
queue of a listening socket, until the process takes it (`accept`). No other process can connect.

Two facts of the kernel shape this file. A process at its open-file limit receives the packet
*without* the descriptors and with MSG_CTRUNC set, and no exception: `receive` raises
DescriptorsLost. A peer that died with unread packets gives ECONNRESET once, before the packets that
it sent; then these are read, and the end of file, which is PeerGone.
"""

import array
import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Container, Sequence

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import DescriptorsLost, PeerGone, TooLarge

PACKET_BYTES_MAX = 64 * 1024
PACKET_FDS_MAX = 16
QUEUE_PACKETS_MAX = 4096
"""Maximum packets that wait for a peer that does not read its control socket; with more, the peer
counts as gone."""
BLOB_BYTES_MAX = 256 * 1024 * 1024

_TRUNCATED = int(socket.MSG_CTRUNC)  # the operators of enums run in Python, for each packet
_ANCILLARY_BYTES = socket.CMSG_SPACE(PACKET_FDS_MAX * array.array("i").itemsize)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends, both closed on exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def acceptor() -> tuple[socket.socket, socket.socket]:
    """Return an acceptor and its connector; neither blocks. Raises OSError."""
    ends = pair()
    for end in ends:
        end.setblocking(False)
    return ends


def connect(connector: socket.socket) -> socket.socket:
    """Return a new connection to the process that has the acceptor; it does not block. Raises
    OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        ours.setblocking(False)
        theirs.setblocking(False)
        send(connector, b"+", [theirs.fileno()])
    except PeerGone:
        ours.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "no process accepts it") from None
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours


def accept(acceptor: socket.socket) -> socket.socket:
    """Take the oldest connection. Raises as `receive`."""
    return socket.socket(fileno=receive(acceptor)[1][0])


class Connectors:
    """Connectors of a front, by the name of the process (`messages.AttachRole`)."""

    def __init__(self) -> None:
        self._socks: dict[str, socket.socket] = {}

    def attach(self, role: str, fd: int) -> None:
        """Use this connector from now on. Takes the descriptor."""
        self.detach(role)
        self._socks[role] = socket.socket(fileno=fd)

    def detach(self, role: str) -> None:
        if (sock := self._socks.pop(role, None)) is not None:
            sock.close()

    def keep(self, roles: Container[str]) -> None:
        """Close the connectors of all other processes."""
        for role in [role for role in self._socks if role not in roles]:
            self.detach(role)

    def has(self, role: str) -> bool:
        return role in self._socks

    def connect(self, role: str) -> socket.socket:
        """Return a new connection to this process. Raises OSError."""
        sock = self._socks.get(role)
        if sock is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "it has no connector here")
        return connect(sock)


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send one packet; the descriptors stay open here. Raises PeerGone, TooLarge, and
    BlockingIOError on a non-blocking socket whose peer does not read."""
    if len(data) > PACKET_BYTES_MAX:
        raise TooLarge("a control packet", len(data), PACKET_BYTES_MAX)
    assert len(fds) <= PACKET_FDS_MAX
    try:
        socket.send_fds(sock, [data], list(fds), socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError, ConnectionRefusedError):
        raise PeerGone("the control socket is closed") from None


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a packet and its descriptors; these belong to the caller and are closed on exec.

    Raises PeerGone, DescriptorsLost (with the packet's data), and BlockingIOError.
    """
    try:
        data, ancillary, flags, _ = _receive(sock)
    except ConnectionResetError:
        # The reset of a peer that left packets unread comes before the last packets that it sent.
        try:
            data, ancillary, flags, _ = _receive(sock)
        except ConnectionResetError:
            raise PeerGone("the control socket was reset") from None
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            complete_bytes = len(payload) - len(payload) % array.array("i").itemsize
            fds.extend(array.array("i", payload[:complete_bytes]))
    if flags & _TRUNCATED:
        close_all(fds)
        raise DescriptorsLost(data)
    if not data:
        close_all(fds)
        raise PeerGone("the control socket is closed")
    return data, fds


def _receive(sock: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
    return sock.recvmsg(PACKET_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def take_fd(fds: list[int]) -> int:
    """Remove and return the first descriptor of a message. Raises codec.Malformed."""
    if not fds:
        raise codec.Malformed("it came without its descriptor")
    return fds.pop(0)


def read_value(fds: list[int]) -> bytes:
    """Read the blob that came with a message. Raises codec.Malformed, TooLarge, OSError."""
    return read_blob(take_fd(fds))


def blob(data: bytes) -> int:
    """Return a descriptor that holds `data`, for a value too large for a packet. Raises TooLarge
    and OSError."""
    if len(data) > BLOB_BYTES_MAX:
        raise TooLarge("a value for another process", len(data), BLOB_BYTES_MAX)
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("metamcp", os.MFD_CLOEXEC)
    else:
        import tempfile  # only where it is needed: it brings every library that packs files

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd


def read_blob(fd: int) -> bytes:
    """Return the data of `blob` and close the descriptor. Reads from the beginning, so other
    descriptors of the same blob can be read too. Raises TooLarge and OSError."""
    try:
        size = os.fstat(fd).st_size
        if size > BLOB_BYTES_MAX:
            raise TooLarge("a value from another process", size, BLOB_BYTES_MAX)
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


class ChannelSnapshot(Struct, frozen=True):
    """State of a control socket. `waiting`: packets for the peer, each with its descriptors."""

    fd: int
    waiting: tuple[tuple[bytes, tuple[int, ...]], ...] = ()


class Channel:
    """A control socket on the event loop.

    `on_packet(data, fds)` owns the descriptors that it gets. `on_lost(data)` gets a packet whose
    descriptors did not arrive. `on_gone()` is called once.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_packet: Callable[[bytes, list[int]], None],
        on_gone: Callable[[], None],
        on_lost: Callable[[bytes], None] | None = None,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_packet = on_packet
        self._on_gone = on_gone
        self._on_lost = on_lost
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._loop.add_reader(sock, self._readable)

    @property
    def is_closed(self) -> bool:
        return not self._open

    @property
    def queue_length(self) -> int:
        """Number of packets that wait for the peer to read."""
        return len(self._queue)

    def take_snapshot(self) -> ChannelSnapshot:
        """Return the descriptor and the waiting packets, for the program that takes both over."""
        waiting = tuple((data, tuple(fds)) for data, fds in self._queue)
        return ChannelSnapshot(self._sock.fileno(), waiting)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Queue one packet. The channel takes the descriptors and closes them once sent."""
        if not self._open:
            close_all(fds)
            return
        if len(data) > PACKET_BYTES_MAX:
            close_all(fds)
            raise TooLarge("a control packet", len(data), PACKET_BYTES_MAX)
        self._queue.append((data, list(fds)))
        if len(self._queue) > QUEUE_PACKETS_MAX:
            self._give_up()
        elif len(self._queue) == 1:
            self._writable()

    def close(self) -> None:
        """Close without a call of `on_gone`, after one attempt to send the queued packets."""
        if self._open:
            self._writable()
            self._shut()

    def _readable(self) -> None:
        for _ in range(64):  # then let others have their turn
            if not self._open:
                return
            try:
                data, fds = receive(self._sock)
            except BlockingIOError:
                return
            except DescriptorsLost as error:
                if self._on_lost is not None:
                    self._on_lost(error.data)
                continue
            except (PeerGone, OSError):
                self._give_up()
                return
            self._on_packet(data, fds)

    def _writable(self) -> None:
        while self._queue:
            data, fds = self._queue[0]
            try:
                send(self._sock, data, fds)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
                return
            except PeerGone:
                # What the peer sent before it died is still to be read; reading finds the end.
                break
            except OSError:
                # Such as too many descriptors in flight: nothing will arrive any more.
                self._give_up()
                return
            self._queue.popleft()
            close_all(fds)
        self._loop.remove_writer(self._sock)
        while self._queue:
            close_all(self._queue.popleft()[1])

    def _give_up(self) -> None:
        if self._open:
            self._shut()
            self._on_gone()

    def _shut(self) -> None:
        self._open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        while self._queue:
            close_all(self._queue.popleft()[1])
        self._sock.close()
