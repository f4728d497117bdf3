"""Messages to systemd: datagrams to the socket named in NOTIFY_SOCKET (the sd_notify protocol).

Owns: the form of the messages, and sending them. Never: the time of each message (`sd_service`),
sockets from systemd (`sd_sockets`).

No function here raises or waits, because a service manager that does not read must not hold up the
gateway. For a message that cannot be sent now, `send` returns False, and the caller sends it again.
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
"""Maximum characters of the status, for one line on a terminal; systemd cuts datagrams of more than
4 KiB."""
FDS_MAX = 64
"""Maximum descriptors in one datagram, and in the store that our unit asks for
(FileDescriptorStoreMax=)."""


class SystemdNotifier:
    """Sender of messages to systemd. `address`: a path, `@name` of the abstract namespace, or
    empty; then nothing is sent.

    `watchdog_s`: maximum seconds between two signs of life that systemd wants; 0 if it wants none.
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
        """Return the sender that the environment describes. The variables are removed, so that a
        process that this one starts does not take itself for the service."""
        address = environ.pop("NOTIFY_SOCKET", "")
        period, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = period.isdecimal() and (not meant or meant == str(pid))
        return cls(address, int(period) / 1e6 if watched else 0.0)

    @property
    def has_manager(self) -> bool:
        """Whether there is a service manager to send to."""
        return self._socket is not None

    def environ(self) -> dict[str, str]:
        """Return the variables that give address and watchdog to the next program in this
        process."""
        if self._socket is None:
            return {}
        variables = {"NOTIFY_SOCKET": self._address.replace("\0", "@", 1)}
        if self.watchdog_s:
            variables["WATCHDOG_USEC"] = str(round(self.watchdog_s * 1e6))
        return variables

    def send(self, *assignments: str, fds: Sequence[int] = ()) -> bool:
        """Send one datagram with these lines. Return True if it is sent, or if there is not a
        service manager to send to."""
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
    """Return the message with a sentence for people, which `systemctl status` shows."""
    flat = " ".join(sentence.split())
    return f"STATUS={flat[:STATUS_CHARACTERS_MAX]}"


def build_reloading_message() -> str:
    """Return the message that a reload begins; READY=1 must follow. By the clock time in the
    message, systemd knows which of its own requests to reload came before."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"


def longer(seconds: float) -> str:
    """Return the message that asks for at least so many more seconds from now on, so that systemd's
    own limit does not end a drain."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def store(name: str) -> str:
    """Return the message to keep the datagram's descriptors until the next start, also if this
    process is killed."""
    return f"FDSTORE=1\nFDNAME={name}"


def forget(name: str) -> str:
    """Return the message to close the descriptors that are kept under this name."""
    return f"FDSTOREREMOVE=1\nFDNAME={name}"


def is_booted(root: str = "/") -> bool:
    """Whether systemd runs this machine, found out as sd_booted(3) does."""
    return os.path.isdir(os.path.join(root, "run/systemd/system"))
