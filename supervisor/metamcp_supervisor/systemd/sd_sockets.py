"""Listening sockets that this process was started with: from a socket unit, or from the store of
descriptors that systemd keeps over a restart (the LISTEN_FDS protocol).

Owns: reading LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, and refusing sockets that do not fit.
Never: binding (`listen`), the choice between several sockets (`sd_service`).

The descriptors belong to us only if LISTEN_PID names this process. Either way the variables are
removed, so that no server takes them for its own.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping, Sequence

from metamcp_worker.ipc.errors import MetaMCPError

FIRST_FD = 3
"""Number of the first descriptor, by the protocol."""
FDS_MAX = 64
"""Maximum descriptors: as many as our unit lets systemd keep; with more, something is wrong."""
CLIENTS = "mcp-http"
"""Name of the listeners for clients, in the socket unit (FileDescriptorName=)."""
OPS = "ops"
"""Name of the listeners for metrics and health."""
STORED = "stored-"
"""Prefix of the name of a listener that the gateway bound and gave to systemd to keep."""
NAMES = (CLIENTS, OPS, STORED + CLIENTS, STORED + OPS)


class SocketUnusable(MetaMCPError):
    """Raised if a descriptor from systemd cannot be used. The text says which, why, and what to
    do."""


Inherited = dict[str, list[socket.socket]]
"""Listeners by name. The holder closes those that it does not use."""


def take(environ: MutableMapping[str, str], pid: int, first_fd: int = FIRST_FD) -> Inherited:
    """Return the listeners that are for this process. Raises SocketUnusable; then all of them are
    closed, unless there are more than FDS_MAX."""
    meant, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    if meant != str(pid) or not count.isdecimal() or not int(count):
        return {}
    if int(count) > FDS_MAX:
        raise SocketUnusable(f"systemd hands in {count} sockets, and {FDS_MAX} are the limit")
    fds = range(first_fd, first_fd + int(count))
    inherited: Inherited = {}
    try:
        for fd, name in zip(fds, _names(names, len(fds)), strict=True):
            inherited.setdefault(name, []).append(_listener(fd, name))
    except SocketUnusable:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        for sock in (sock for several in inherited.values() for sock in several):
            sock.detach()  # its descriptor is closed already
        raise
    return inherited


def close(inherited: Inherited) -> None:
    for sock in (sock for several in inherited.values() for sock in several):
        sock.close()


def _names(text: str, count: int) -> Sequence[str]:
    """Return one name per descriptor. A socket unit without FileDescriptorName= gives its own name;
    then a single socket is for clients."""
    names = text.split(":") if text else []
    if len(names) != count:
        names = ["unknown"] * count
    if count == 1 and names[0] not in NAMES:
        return [CLIENTS]
    return names


def _listener(fd: int, name: str) -> socket.socket:
    if name not in NAMES:
        raise SocketUnusable(
            f"descriptor {fd} from systemd has the name '{name}'; a socket unit of the gateway has"
            f" FileDescriptorName={CLIENTS} or FileDescriptorName={OPS}"
        )
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise SocketUnusable(
            f"{name} (descriptor {fd}) is not a socket: {error.strerror}"
        ) from None
    if flaw := _flaw(sock, name):
        sock.detach()
        form = "HOST:PORT or ListenStream=/PATH" if name == OPS else "HOST:PORT"
        raise SocketUnusable(f"{name} (descriptor {fd}) {flaw}; use ListenStream={form}")
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _flaw(sock: socket.socket, name: str) -> str:
    if sock.family == socket.AF_UNIX and name == OPS:
        address = sock.getsockname()
        if not isinstance(address, str) or not address:
            return "is a unix socket without a file, which has no permissions"
        if not address.isprintable():
            return "is a unix socket whose path cannot be shown"
    elif sock.family not in (socket.AF_INET, socket.AF_INET6):
        return "is not a socket of the internet"
    if sock.type != socket.SOCK_STREAM:
        return "is not a stream socket"
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen (Accept=yes hands in connections; it must be Accept=no)"
    return ""
