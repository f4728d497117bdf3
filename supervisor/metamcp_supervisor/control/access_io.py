"""Clients of the control socket as the kernel knows them, and the users with whom it is shared.

Owns: asking the kernel about a client, the group with which a gateway shares its socket, the modes
that follow from that. Never: what a role may do (`access`, `orders`), the runtime directory itself
(`runtime`).

The runtime directory decides: the socket is shared when that directory belongs to the group
`metamcp` and lets the group in. A directory that is open by chance, because of a user's umask,
shares nothing.
"""

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Collection

from msgspec import Struct

GROUP = "metamcp"
_SO_PEERGROUPS = 59
"""Socket option of Linux, on all architectures but two old ones; there the number of the option is
different and the kernel refuses this one."""
_GROUPS_BYTES_MAX = 65536 * 4
"""Maximum bytes of a process's list of groups; a process has at most 65536 groups."""
_WORKER_DEPTH = 2
"""How far a worker is below this process: it is a child of the nursery."""
_GROUP_MAY_ENTER, _OTHERS_MAY_ENTER = 0o010, 0o001


class SocketPeer(Struct, frozen=True):
    """Client of the control socket. `pid`, `uid`: -1 where the kernel does not report them.
    `command`: name of the client's process."""

    pid: int = -1
    uid: int = -1
    groups: frozenset[int] = frozenset()
    command: str = ""

    def __str__(self) -> str:
        if self.uid < 0:
            return "a client of the control socket"
        command = f" ({self.command})" if self.command else ""
        return f"process {self.pid} of user id {self.uid}{command}"


def peer(sock: socket.socket) -> SocketPeer:
    """Return the client as it was when it connected. A system without SO_PEERCRED cannot
    distinguish clients: there the modes and the token alone decide."""
    if not hasattr(socket, "SO_PEERCRED"):
        return SocketPeer()
    layout = struct.Struct("3i")
    pid, uid, gid = layout.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    )
    return SocketPeer(pid, uid, frozenset({gid, *_groups(sock)}), _command(pid))


def below_worker(pid: int) -> bool:
    """Whether a process runs below a worker, as a server does, or has ended. A process
    that a server starts stays below its worker, whatever it does."""
    depth, own = 0, os.getpid()
    while pid > 1 and pid != own and sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            return True
        # "pid (name) state ppid …"; the name may hold anything, parentheses and spaces too.
        pid, depth = int(stat[stat.rindex(b")") + 1 :].split()[1]), depth + 1
    return pid == own and depth > _WORKER_DEPTH


def share(directory: str, files: Collection[str], group: int | None) -> int | None:
    """Open `files` of the runtime directory for those users who may enter the directory: members of
    `group`, or else of GROUP, and all others if they may enter too. Return the group, or None if
    the files stay private. Raises OSError if the directory is shared and its files cannot be."""
    status = os.stat(directory)
    if not status.st_mode & _GROUP_MAY_ENTER:
        return None
    # Looked up here only, because it may be asked over a network.
    group = _gid_of(GROUP) if group is None else group
    if group is None or status.st_gid != group:
        return None
    others = bool(status.st_mode & _OTHERS_MAY_ENTER)
    for path in files:
        # Connecting to a socket takes the right to write to it; the token is only read.
        mode = (0o660, 0o666) if path.endswith(".sock") else (0o640, 0o644)
        os.chown(path, -1, group)
        os.chmod(path, mode[others])
    return group


def _gid_of(name: str) -> int | None:
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _groups(sock: socket.socket) -> Collection[int]:
    if sys.platform != "linux":
        return ()
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES_MAX)
    except OSError:
        return ()  # before Linux 4.13
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return "".join(each if each.isprintable() else "?" for each in file.read(64).strip())
    return ""
