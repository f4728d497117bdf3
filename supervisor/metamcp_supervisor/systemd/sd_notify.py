"""What systemd is told: datagrams to the socket named in NOTIFY_SOCKET (the sd_notify protocol).

Owns: the form of the messages, and sending them. Never: when what is said (`systemd.sd_service`),
what systemd hands in (`sd_sockets`).

Nothing here raises into the caller or waits. A service manager that does not read must not hold up
the gateway: what cannot be sent now is answered with False, and the caller says it again.
"""

import array
import os
import socket
import time
from collections.abc import MutableMapping, Sequence
from typing import Self

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"
STATUS_CHARACTERS_MAX = 500
"""One line on a terminal; systemd cuts datagrams of more than 4 KiB."""
FDS_MAX = 64
"""In one datagram, and in the store that our unit asks for (FileDescriptorStoreMax=)."""


class Notify:
    """`address`: a path, `@name` of the abstract namespace, or nothing. Then nobody is told.

    `watchdog_s`: how often systemd wants a sign of life at least; 0 when it wants none.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self.watchdog_s = watchdog_s
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if not address.startswith(("/", "@")):
            return
        try:
            self._socket = socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
        except OSError:  # no descriptor is free: the start fails elsewhere, with a sentence
            return

    @classmethod
    def take(cls, environ: MutableMapping[str, str], pid: int) -> Self:
        """As the environment says. The variables are removed, so that nothing that this process
        starts takes itself for the service."""
        address = environ.pop("NOTIFY_SOCKET", "")
        period, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = period.isdecimal() and (not meant or meant == str(pid))
        return cls(address, int(period) / 1e6 if watched else 0.0)

    @property
    def wanted(self) -> bool:
        """Does anybody listen?"""
        return self._socket is not None

    def environ(self) -> dict[str, str]:
        """The variables that say so to the next program in this process."""
        if self._socket is None:
            return {}
        found = {"NOTIFY_SOCKET": self._address.replace("\0", "@", 1)}
        if self.watchdog_s:
            found["WATCHDOG_USEC"] = str(round(self.watchdog_s * 1e6))
        return found

    def send(self, *assignments: str, fds: Sequence[int] = ()) -> bool:
        """One datagram with these lines. True if it is sent, and if nobody wants it."""
        if self._socket is None:
            return True
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._socket.sendmsg(["\n".join(assignments).encode()], rights, 0, self._address)
        except (OSError, ValueError):  # ValueError: an address with a NUL in it
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def status(sentence: str) -> str:
    """For people: `systemctl status` shows it."""
    flat = " ".join(sentence.split())
    return f"STATUS={flat[:STATUS_CHARACTERS_MAX]}"


def reloading() -> str:
    """READY=1 must follow. systemd orders this by the clock among its own requests to reload."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"


def longer(seconds: float) -> str:
    """From now on, so long at least: systemd's own limit is not what ends a drain."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def store(name: str) -> str:
    """Keep these descriptors until the next start, also if this process is killed."""
    return f"FDSTORE=1\nFDNAME={name}"


def forget(name: str) -> str:
    """Close what is kept under this name."""
    return f"FDSTOREREMOVE=1\nFDNAME={name}"


def is_booted(root: str = "/") -> bool:
    """Is systemd what runs this machine? The same question as sd_booted(3)."""
    return os.path.isdir(os.path.join(root, "run/systemd/system"))
