"""Listening sockets: bound once by the supervisor and inherited by every front.

Owns: binding, copies for fronts, saying who holds a port that is taken, whether sockets of before
are those that are wanted now. Never: accepting, where sockets of before come from (`service`), the
file of a unix socket (`sockfile`).
"""

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from metamcp_supervisor.config.config import Address, AnyAddress, UnixAddress
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import MetaMCPError

BACKLOG = 4096
"""Connections that wait while a front restarts; the kernel may lower it to its own limit."""
PROCESSES_MAX = 4096
"""How many processes are searched for the holder of a port; beyond it nobody is named."""
_LISTENING = "0A"


class CannotBind(MetaMCPError):
    """An address cannot be listened on. The text says why and what to do."""


class PortTaken(CannotBind):
    """Somebody else listens there."""


def bind(address: Address, flag: str) -> list[socket.socket]:
    """Listening sockets on every address that the host name has. `flag`: what sets the address, for
    the message. Raises CannotBind."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise CannotBind(f"{address} is not an address of this machine: {error.strerror}") from None
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, kind, protocol, _, place in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((place[0], port, *place[2:]))
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
    """Descriptors of the same sockets, for another process. Raises OSError; then `beside`, which
    was to go with them, is closed too.

    `socket.dup` would make sockets that block of those that were adopted by number, and whoever
    accepts on them now would hang.
    """
    fds: list[int] = []
    try:
        fds.extend(os.dup(sock.fileno()) for sock in sockets)
    except OSError:
        packets.close_all([beside, *fds])
        raise
    return fds


def bound(address: Address, sockets: list[socket.socket]) -> Address:
    """The address with the port that it got, for a configured port 0."""
    return Address(address.host, sockets[0].getsockname()[1])


def address_of(sockets: list[socket.socket]) -> Address:
    """Of sockets that somebody else has bound: the first one's."""
    host, port = sockets[0].getsockname()[:2]
    return Address(host, port)


def any_address_of(sockets: list[socket.socket]) -> AnyAddress:
    """The same where the first one may be a unix socket."""
    if sockets[0].family == socket.AF_UNIX:
        return UnixAddress(Path(sockets[0].getsockname()))
    return address_of(sockets)


def fits(address: AnyAddress, sockets: list[socket.socket]) -> bool:
    """Would `bind` make these very sockets? For a configured port 0, with any port. Those of files
    are never kept."""
    if isinstance(address, UnixAddress):
        return False
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return False  # binding will fail, with a sentence
    places = [sock.getsockname()[:2] for sock in sockets]
    wanted = {place[0] for *_, place in found}
    ports = {port for _, port in places}
    return (
        sorted(host for host, _ in places) == sorted(wanted)
        and len(ports) == 1
        and address.port in {0, *ports}
    )


def give_up(sockets: list[socket.socket]) -> None:
    """Close them so that the port is free although others hold copies of them."""
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
    """`name (pid)` of the process that listens on a port, or nothing if it cannot be seen."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    with contextlib.suppress(OSError):
        pids = [name for name in os.listdir("/proc") if name.isdecimal()]
        for pid in pids[:PROCESSES_MAX] if wanted else ():
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") in wanted:
                        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})"
    return ""


def _inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found
