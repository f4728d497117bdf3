"""The runtime directory: where it is, what lies in it, and who holds it.

Owns: its default place, the names of its files, the lock that lets one gateway in, the token of the
control socket. Never: the socket itself (`control` listens, `client` connects).

Only the standard library at the top and no pathlib: `metamcp ctl` imports this and must be quick.
"""

import contextlib
import os
import resource
import stat
import sys
from collections.abc import Iterable, Mapping

from metamcp_worker.ipc.errors import MetaMCPError

SOCKET = "control.sock"
OWNER = "owner"
"""File in the state directory that says which gateway holds it. The name differs from LOCK, because
both directories may be the same one."""
UNFINISHED = "restore.unfinished"
"""File in the state directory while `metamcp restore` replaces what is in it."""
TOKEN = "token"  # noqa: S105 - the name of a file
CONTEXT = "METAMCP_CONTEXT"
"""Environment variable with the name of a gateway on another machine (`control.contexts`)."""
LOCK = "lock"
CLIENTS = "clients"
"""File on which each bridge to the gateway holds a shared lock while it lives."""
SOCKET_PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103
"""Maximum bytes of a socket's path: the size of `sun_path` in the kernel's address of a unix
socket, without the NUL at its end."""
TOKEN_BYTES = 32


class RuntimeDirUnfit(MetaMCPError):
    """The runtime directory cannot be used. The text says why and what to do."""


class AlreadyRunning(MetaMCPError):
    """Another gateway holds the runtime directory or the state directory."""


def read_environ_dir(environ: Mapping[str, str]) -> str:
    """Return the runtime directory that the environment names, or an empty string.

    systemd names the directory in RUNTIME_DIRECTORY (the first, if there are several).
    """
    if chosen := environ.get("METAMCP_RUNTIME_DIR"):
        return os.path.expanduser(chosen)
    return environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]


SERVICE_DIR = "/run/metamcp"
"""Runtime directory of the service of the machine; only root can make one there."""
SERVICE_STATE_DIR = "/var/lib/metamcp"
"""State directory of the same; its owner is a user that systemd chooses."""


def default(environ: Mapping[str, str]) -> str:
    """Return the runtime directory for gateway and `ctl` if neither a flag nor a file names one.
    `places` appends the digest of a project."""
    if chosen := read_environ_dir(environ):
        return chosen
    if session := environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(session, "metamcp")
    # Not TMPDIR: gateway and ctl may run with different ones. `_check` refuses a foreign directory.
    return f"/tmp/metamcp-{os.geteuid()}"  # noqa: S108 - see the line above


def socket_path(directory: str) -> str:
    """Return the path of the control socket. Raises RuntimeDirUnfit for a path that is too long for
    a unix socket."""
    path = os.path.join(directory, SOCKET)
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise RuntimeDirUnfit(
            f"{path}: the path of a unix socket may have {SOCKET_PATH_BYTES_MAX} bytes and this one"
            f" has {size}; choose a shorter runtime directory (--runtime-dir)"
        )
    return path


class DirectoryLock:
    """The runtime directory, held by this process through `lock_fd` until `release`, and the state
    directory, held through `state_fd` (-1: not held)."""

    def __init__(self, directory: str, lock_fd: int, token: str, state_fd: int = -1) -> None:
        self.directory = directory
        self.socket_path = socket_path(directory)
        self.token = token
        self.lock_fd = lock_fd
        self.state_fd = state_fd

    def release(self) -> str:
        """Remove socket and token. The lock file stays: removing it would let two gateways in, one
        with the old file and one with a new file. Return why socket and token stay, or an empty
        string: the next gateway removes what an earlier one has left."""
        if self.lock_fd < 0:
            return ""
        problem = ""
        try:
            _remove(self.socket_path)
            _remove(os.path.join(self.directory, TOKEN))
        except OSError as error:
            problem = f"socket and token stay in {self.directory}: {error.strerror}"
        os.close(self.lock_fd)
        self.lock_fd = -1
        if self.state_fd >= 0:
            os.close(self.state_fd)
            self.state_fd = -1
        return problem


def claim(directory: str, config: str = "") -> DirectoryLock:
    """Take the runtime directory: make it if missing, check it, lock it, and remove what a dead
    gateway left. `config`: the main file, for commands that ask what runs there.

    Raises AlreadyRunning and RuntimeDirUnfit.
    """
    path = socket_path(directory)
    try:
        _make(directory)
        _check(directory)
        refusal = f"already runs with {directory}; stop it, or give this one another --runtime-dir"
        lock_fd = _lock(os.path.join(directory, LOCK), refusal, config)
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
    return DirectoryLock(directory, lock_fd, token)


def own(
    state_dir: str,
    remedy: str = "stop it, or give this one another --state-dir",
    *,
    restores: bool = False,
) -> int:
    """Take the state directory and make it if missing: two gateways in one directory would
    overwrite each other's files. Return the descriptor that holds it. `remedy`: end of the sentence
    of AlreadyRunning; `restores`: whether the caller may finish a restore that was interrupted.
    Raises AlreadyRunning, OSError, and RuntimeDirUnfit after such a restore."""
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    refusal = f"already keeps its state in {state_dir}; {remedy}"
    fd = _lock(os.path.join(state_dir, OWNER), refusal)
    if not restores and os.path.exists(os.path.join(state_dir, UNFINISHED)):
        os.close(fd)
        problem = f"a restore of {state_dir} was interrupted"
        raise RuntimeDirUnfit(f"{problem}; run 'metamcp restore FILE' again")
    return fd


def join(directory: str) -> int:
    """Count as a client of the gateway of this directory, whether it runs yet or not, until the
    returned descriptor is closed. Raises BlockingIOError while a gateway that has lost its last
    client is ending, RuntimeDirUnfit and OSError."""
    import fcntl

    _make(directory)
    _check(directory)
    fd = _clients(directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


class Clients:
    """The gateway's view of the clients that have joined. `close` lets clients join again."""

    def __init__(self, directory: str) -> None:
        self._fd = _clients(directory)

    def none_left(self, *, and_none_more: bool) -> bool:
        """Whether no client is left. If so, `and_none_more` keeps new clients from joining."""
        import fcntl

        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not and_none_more:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        os.close(self._fd)


def _clients(directory: str) -> int:
    path = os.path.join(directory, CLIENTS)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _make(directory: str) -> None:
    if not os.path.isdir(directory):
        os.makedirs(directory, mode=0o700, exist_ok=True)


def _check(directory: str) -> None:
    """Refuse a directory in which other users may put files: they could pose as the gateway. Raises
    RuntimeDirUnfit and OSError."""
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


def _lock(path: str, refusal: str, config: str = "") -> int:
    """Lock the file at `path` and return its descriptor. `refusal`: the message after the
    name of the other holder. Raises AlreadyRunning and OSError."""
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").partition("\n")[0]
        os.close(fd)
        who = f"a gateway (pid {holder})" if holder.isdigit() else "a gateway"
        raise AlreadyRunning(f"{who} {refusal}") from None
    except OSError:
        os.close(fd)
        raise
    with contextlib.suppress(OSError):  # on a full disk it is held all the same
        os.ftruncate(fd, 0)
        os.pwrite(fd, os.fsencode(f"{os.getpid()}\n{config}\n"), 0)
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


def allow_files(needed: int, processes: Iterable[int]) -> int:
    """Raise the limit of open files of this process and of `processes` to `needed`, as far as the
    hard limit allows. Return the limit of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < needed:
        soft = needed if hard == unlimited else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for pid in processes if hasattr(resource, "prlimit") else ():
            with contextlib.suppress(OSError, ValueError):  # it has ended
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    return needed if soft == unlimited else soft


def no_core() -> None:
    """Let this process, and those that it starts, leave no core dump: it may hold secrets."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
