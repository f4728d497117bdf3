"""A listener that is a file: the unix socket on which the ops pages may answer.

Owns: making that file, with its mode, in the place of one that a dead gateway left, and removing
it. Never: ports (`listen`), whether somebody wants it (`service`).

The file outlives its listener, so whoever finds one asks the kernel whether somebody listens. That
and what follows from it is done by one process after the other, under a lock of the directory: of
two that start at once, the second would take the first one's file for a dead one.
"""

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Generator

from metamcp_supervisor.config.config import UnixAddress
from metamcp_supervisor.control import peers
from metamcp_supervisor.systemd.listen import BACKLOG, CannotBind

MODE = 0o660
"""Of the file: whoever may write to it may connect. The group is that of the process, or of the
directory where that hands its own down."""


def bind(address: UnixAddress, flag: str) -> socket.socket:
    """A listening socket; a dead one at this path is replaced. `flag`: what sets the address, for
    the message. Raises CannotBind."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone(address, flag):
            if is_dead(address, flag):
                os.unlink(address.path)
            before = os.umask(0o777 & ~MODE)  # so that there is no moment with another mode
            try:
                sock.bind(str(address.path))
            finally:
                os.umask(before)
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise CannotBind(_reason(address, error, flag)) from None
    except CannotBind:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def is_dead(address: UnixAddress, flag: str) -> bool:
    """Is there a socket on which nobody listens? False: there is nothing. Raises CannotBind for
    what must stay: a living one, and what is no socket."""
    path = address.path
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise CannotBind(f"{path} is there and no socket; choose another path with {flag}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # somebody is slow to accept
                probe.connect(str(path))
            raise CannotBind(
                f"{path}: {_holder(probe)} listens there; stop it, or choose another path with"
                f" {flag}"
            )
    except FileNotFoundError:
        return False
    except ConnectionRefusedError:
        return True
    except OSError as error:
        raise CannotBind(_reason(address, error, flag)) from None


def remove(address: UnixAddress) -> None:
    """The file, unless somebody else listens there by now, or is about to."""
    with contextlib.suppress(OSError, CannotBind), _alone(address, ""):
        if is_dead(address, ""):
            os.unlink(address.path)


@contextlib.contextmanager
def _alone(address: UnixAddress, flag: str) -> Generator[None]:
    """Meanwhile no other gateway makes or removes a socket in this directory. Where it cannot be
    locked, which needs the right to read it, this is not so. Raises CannotBind."""
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


def _holder(probe: socket.socket) -> str:
    with contextlib.suppress(OSError):
        if (peer := peers.peer(probe)).pid > 0:
            return str(peer)
    return "another process"


def _reason(address: UnixAddress, error: OSError, flag: str) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"{address.path}: there is no directory {address.path.parent}; make it, or choose"
            f" another path with {flag}"
        )
    return f"{address.path}: {error.strerror or error}; choose another path with {flag}"
