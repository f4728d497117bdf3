"""Listening sockets: bound once by the supervisor and inherited by every front.

Owns: TCP and unix sockets, the mode of a socket file, copies for fronts, and the sentence about the
process that holds an address. Never: accepting.

A socket file outlives its listener, so a process that finds a file asks the kernel whether another
process still listens. The question and what follows from the answer are under a lock of the
directory: of two processes that start at once, the second would otherwise take the first one's file
for a dead one.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Generator, Sequence
from pathlib import Path

from metamcp_supervisor.config.config import Address, AnyAddress, UnixAddress
from metamcp_supervisor.control import access_io
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import MetaMCPError

BACKLOG = 4096
"""Maximum connections that wait while a front restarts; the kernel may have a lower limit."""
PROCESSES_MAX = 4096
"""Maximum processes that are searched for the holder of a port; then the message names none."""
_LISTENING = "0A"


class CannotBind(MetaMCPError):
    """Raised if the supervisor cannot listen on an address. The text says why and what to do."""


class PortTaken(CannotBind):
    """Raised if another process listens on the port."""


def bind(address: Address, flag: str) -> list[socket.socket]:
    """Return listening sockets on every address that the host name has. `flag`: option that sets
    the address, for the message. Raises CannotBind."""
    try:
        address_infos = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise CannotBind(f"{address} is not an address of this machine: {error.strerror}") from None
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, kind, protocol, _, socket_address in dict.fromkeys(address_infos):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((socket_address[0], port, *socket_address[2:]))
            port = sock.getsockname()[1]  # for port 0: the same one on every address
            sock.listen(BACKLOG)
            sock.setblocking(False)
    except OSError as error:
        for sock in sockets:
            sock.close()
        refusal = PortTaken if error.errno == errno.EADDRINUSE else CannotBind
        raise refusal(_reason(address, error, flag)) from None
    return sockets


def copies(sockets: Sequence[socket.socket], beside: int) -> list[int]:
    """Return descriptors of the same sockets, for another process. Raises OSError; then `beside`, a
    descriptor that was to go with them, is closed too.

    `socket.dup` is not used: sockets that were adopted by number would become blocking, and a
    process that accepts on them now would hang.
    """
    fds: list[int] = []
    try:
        fds.extend(os.dup(sock.fileno()) for sock in sockets)
    except OSError:
        packets.close_all([beside, *fds])
        raise
    return fds


def with_actual_port(address: Address, sockets: list[socket.socket]) -> Address:
    """Return the address with its actual port, for a configured port 0."""
    return Address(address.host, sockets[0].getsockname()[1])


def address_of(sockets: list[socket.socket]) -> Address:
    """Return the address of the first of these sockets, which another process has bound."""
    host, port = sockets[0].getsockname()[:2]
    return Address(host, port)


def any_address_of(sockets: list[socket.socket]) -> AnyAddress:
    """Return the address of the first of these sockets, which may be a unix socket."""
    if sockets[0].family == socket.AF_UNIX:
        return UnixAddress(Path(sockets[0].getsockname()))
    return address_of(sockets)


def fits(address: AnyAddress, sockets: list[socket.socket]) -> bool:
    """Whether `bind` would make these very sockets; for a configured port 0, with any port. False
    for a socket file, which is never kept."""
    if isinstance(address, UnixAddress):
        return False
    try:
        address_infos = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return False  # binding will fail, with a sentence
    places = [sock.getsockname()[:2] for sock in sockets]
    hosts = {socket_address[0] for *_, socket_address in address_infos}
    ports = {port for _, port in places}
    return (
        sorted(host for host, _ in places) == sorted(hosts)
        and len(ports) == 1
        and address.port in {0, *ports}
    )


def give_up(sockets: list[socket.socket]) -> None:
    """Close the sockets so that the port is free although other processes hold copies."""
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def _reason(address: Address, error: OSError, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = _holder(address.port)
        by = f" by {holder}" if holder else ""
        return (
            f"port {address.port} on {address.host} is in use{by};"
            f" stop that, or choose another address with {flag}"
        )
    if error.errno == errno.EACCES:
        return f"{address}: ports below 1024 need root; choose another address with {flag}"
    return f"{address}: {error.strerror}; choose another address with {flag}"


def _holder(port: int) -> str:
    """Return `name (pid)` of the process that listens on a port, or an empty string if this process
    cannot see it."""
    links = {f"socket:[{inode}]" for inode in _inodes(port)}
    with contextlib.suppress(OSError):
        pids = [name for name in os.listdir("/proc") if name.isdecimal()]
        for pid in pids[:PROCESSES_MAX] if links else ():
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") in links:
                        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})"
    return ""


def _inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes


MODE = 0o660
"""Mode of a socket file; a process that may write to the file may connect. The group is that of the
gateway, or of the directory if the directory passes on its own."""


def bind_file(address: UnixAddress, flag: str) -> socket.socket:
    """Return a listening socket; a dead one at this path is replaced. `flag`: option that sets the
    address, for the message. Raises CannotBind."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone(address, flag):
            if is_dead(address, flag):
                os.unlink(address.path)
            before = os.umask(0o777 & ~MODE)  # so that the file has the mode from the beginning
            try:
                sock.bind(str(address.path))
            finally:
                os.umask(before)
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise CannotBind(_file_reason(address, error, flag)) from None
    except CannotBind:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def is_dead(address: UnixAddress, flag: str) -> bool:
    """Whether there is a socket on which no process listens; False if there is not a file at all.
    Raises CannotBind for a file that must stay: a socket with a listener, or not a socket."""
    path = address.path
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise CannotBind(f"{path} is there and no socket; choose another path with {flag}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # the listener is slow to accept
                probe.connect(str(path))
            raise CannotBind(
                f"{path}: {_file_holder(probe)} listens there; stop it, or choose another path with"
                f" {flag}"
            )
    except FileNotFoundError:
        return False
    except ConnectionRefusedError:
        return True
    except OSError as error:
        raise CannotBind(_file_reason(address, error, flag)) from None


def remove(address: UnixAddress) -> None:
    """Remove the file, unless another process listens there by now, or is about to."""
    with contextlib.suppress(OSError, CannotBind), _alone(address, ""):
        if is_dead(address, ""):
            os.unlink(address.path)


@contextlib.contextmanager
def _alone(address: UnixAddress, flag: str) -> Generator[None]:
    """Keep other gateways from adding or removing a socket in this directory in the `with` block. A
    directory that this process may not read cannot be locked; then they are not kept from it.
    Raises CannotBind if another process holds the lock."""
    try:
        directory = os.open(address.path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        directory = -1
    try:
        if directory >= 0:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(directory)
        raise CannotBind(
            f"{address.path}: another process has just locked that directory; start again, or"
            f" choose another path with {flag}"
        ) from None
    except OSError:
        os.close(directory)
        directory = -1
    try:
        yield
    finally:
        if directory >= 0:
            os.close(directory)


def _file_holder(probe: socket.socket) -> str:
    with contextlib.suppress(OSError):
        if (peer := access_io.peer(probe)).pid > 0:
            return str(peer)
    return "another process"


def _file_reason(address: UnixAddress, error: OSError, flag: str) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"{address.path}: directory {address.path.parent} does not exist; make it, or choose"
            f" another path with {flag}"
        )
    return f"{address.path}: {error.strerror or error}; choose another path with {flag}"
