"""A signal of an operator for a server's own process.

Owns: which process that is, and that no other one gets it. Never: which signals there are
(`control.orders`), what becomes of a server that ends by one (`tree`).
"""

import errno
import os
import signal
import sys

from metamcp_supervisor.control.steering import NotNow
from metamcp_supervisor.servers.entries import Entry


def send(entry: Entry, number: int) -> int:
    """The process that got it. Raises NotNow with the reason why there is none."""
    server, instance = entry.server, entry.instance
    if server.url is not None:
        raise NotNow(f"{entry.name} is reached by URL: it has no process here")
    if server.module is not None:
        raise NotNow(
            f"{entry.name} runs in its worker and has no process of its own; 'metamcp ctl restart'"
            " starts it anew"
        )
    if instance is None or instance.reported or not instance.server_pid:
        raise NotNow(f"{entry.name} has no process of its own at this moment")
    try:
        deliver(instance.server_pid, number, parent=instance.pid)
    except (ProcessLookupError, FileNotFoundError):
        raise NotNow(f"the process of {entry.name} has just ended") from None
    except OSError as error:
        why = f"process {instance.server_pid} of {entry.name} takes no signal {number}"
        raise NotNow(f"{why}: {error.strerror}") from None
    return instance.server_pid


def deliver(pid: int, number: int, *, parent: int) -> None:
    """To this process, if it is a child of that one. Raises OSError."""
    if not hasattr(os, "pidfd_open"):
        os.kill(pid, number)
        return
    descriptor = os.pidfd_open(pid)
    try:
        # From here on it is this process or none. Is it the right one? A worker that is about to
        # tell of the end of its server may have left the number to somebody else.
        if sys.platform == "linux" and _parent(pid) != parent:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _parent(pid: int) -> int:
    """Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name of a program is in brackets and may hold anything, brackets as well.
        return int(file.read().rpartition(b")")[2].split()[1])
