"""The runtime directory: where it is, what lies in it, and who holds it.

Owns: its default place, the names of its files, the lock that lets one gateway in, the token of the
control socket. Never: the socket itself (`control` listens, `client` connects).

Only the standard library at the top and no pathlib: `metamcp ctl` imports this and must be quick.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Mapping

from metamcp_worker.errors import MetaMCPError

SOCKET = "control.sock"
TOKEN = "token"  # noqa: S105 - the name of a file
LOCK = "lock"
SOCKET_PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103
"""`sun_path` in the kernel's address of a unix socket, without the NUL at its end."""
TOKEN_BYTES = 32


class RuntimeDirUnfit(MetaMCPError):
    """The directory cannot be used. The text says why and what to do."""


class AlreadyRunning(MetaMCPError):
    """Another gateway holds the runtime directory."""


def default(environ: Mapping[str, str]) -> str:
    """Where gateway and `ctl` meet when neither a flag nor a file says it.

    systemd names the directory in RUNTIME_DIRECTORY (the first, if there are several).
    """
    if given := environ.get("METAMCP_RUNTIME_DIR"):
        return os.path.expanduser(given)
    if given := environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return given
    if given := environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(given, "metamcp")
    # Not TMPDIR: gateway and ctl may run with different ones. `_check` refuses a foreign directory.
    return f"/tmp/metamcp-{os.geteuid()}"  # noqa: S108 - see the line above


def socket_path(directory: str) -> str:
    """Raises RuntimeDirUnfit for a path that no unix socket can have."""
    path = os.path.join(directory, SOCKET)
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise RuntimeDirUnfit(
            f"{path}: the path of a unix socket may have {SOCKET_PATH_BYTES_MAX} bytes and this one"
            f" has {size}; choose a shorter runtime directory (--runtime-dir)"
        )
    return path


class Claim:
    """The runtime directory, held by this process until `release`, over `lock_fd`."""

    def __init__(self, directory: str, lock_fd: int, token: str) -> None:
        self.directory = directory
        self.socket_path = socket_path(directory)
        self.token = token
        self.lock_fd = lock_fd

    def release(self) -> None:
        """Remove socket and token. The lock file stays: removing it would let two gateways in, one
        with the old file and one with a new one."""
        if self.lock_fd < 0:
            return
        _remove(self.socket_path)
        _remove(os.path.join(self.directory, TOKEN))
        os.close(self.lock_fd)
        self.lock_fd = -1


def claim(directory: str) -> Claim:
    """Take the directory: made if missing, checked, locked, what a dead gateway left removed.

    Raises AlreadyRunning and RuntimeDirUnfit.
    """
    path = socket_path(directory)
    try:
        _make(directory)
        _check(directory)
        lock_fd = _lock(directory)
    except OSError as error:
        raise RuntimeDirUnfit(f"{directory}: {error.strerror}; choose another --runtime-dir") from (
            None
        )
    try:
        _remove(path)
        token = _new_token(os.path.join(directory, TOKEN))
    except OSError as error:
        os.close(lock_fd)
        raise RuntimeDirUnfit(f"{directory}: {error.strerror}; choose another --runtime-dir") from (
            None
        )
    return Claim(directory, lock_fd, token)


def _make(directory: str) -> None:
    if not os.path.isdir(directory):
        os.makedirs(directory, mode=0o700, exist_ok=True)


def _check(directory: str) -> None:
    """Nobody but this user may put files there: whoever can could pose as the gateway."""
    me = os.geteuid()
    link, target = os.lstat(directory), os.stat(directory)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in {me, 0}:
        raise RuntimeDirUnfit(
            f"{directory} is a symbolic link of user id {link.st_uid}; remove it or choose another"
            " --runtime-dir"
        )
    if target.st_uid != me:
        raise RuntimeDirUnfit(
            f"{directory} belongs to user id {target.st_uid}, not to {me}; remove it or choose"
            " another --runtime-dir"
        )
    if target.st_mode & 0o022:
        raise RuntimeDirUnfit(
            f"others may write to {directory} (mode {stat.S_IMODE(target.st_mode):04o}); run"
            f" 'chmod 700 {directory}' if it is meant for this, or choose another --runtime-dir"
        )


def _lock(directory: str) -> int:
    import fcntl

    path = os.path.join(directory, LOCK)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise AlreadyRunning(
            f"a gateway{f' (pid {holder})' if holder.isdigit() else ''} already runs with"
            f" {directory}; stop it, or give this one another --runtime-dir"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _new_token(path: str) -> str:
    import secrets

    token = secrets.token_hex(TOKEN_BYTES)
    _remove(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, token.encode())
    finally:
        os.close(fd)
    return token


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
