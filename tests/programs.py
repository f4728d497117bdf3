"""`metamcp`, and a worker, without the start of an interpreter: a process that has imported all of
it forks.

A start costs 0.15 to 0.3 s of processor time, most of it imports, and the tests start hundreds. The
process is one for each lane, has one thread, and forks once for each command. The fork reads
`__main__` as `python -m metamcp_supervisor` does, with the arguments, the environment, the folder
and the streams of the command, and nothing else is open in it. What stays (`up`, `serve`) and what
has other variables for its interpreter starts as always. A worker is forked in the product, too: it
has one socket, and the errors of the test.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = (sys.executable, "-m", "metamcp_supervisor")
STAYING = {"up", "serve"}
OF_INTERPRETER = ("PYTHON", "LC_", "LANG", "TZ", "METAMCP_PURE")
"""Beginnings of names of variables that count before the first import."""
PATH = "PYTHONPATH"
LATER = {PATH, "PYTHON_KEYRING_BACKEND"}
"""Variables of that kind that a fork can follow."""
ORDER_BYTES_MAX = 150_000
STDIN_BYTES_MAX = 60_000
"""As much as a pipe takes before anybody reads."""
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
LATE = (
    "asyncio", "concurrent.futures.thread", "ctypes", "getpass", "httpx2", "metamcp_supervisor.cli",
    "metamcp_supervisor.control", "metamcp_supervisor.config", "sqlite3", "tomllib",
)  # fmt: skip
"""Modules, and packages with theirs, that verbs import."""
MAINS = ("child", "engine", "front")
"""Packages of `metamcp_worker` whose module `run` has the main function of a worker."""

_lock = threading.Lock()
_forking: list[socket.socket] = []
"""The connection to the process that forks, once it is needed."""


def run(
    command: Sequence[str],
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float = 60.0,
    check: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """What `subprocess.run` returns of this command, which begins with PROGRAM."""
    environ, given = dict(os.environ if env is None else env), stdin.encode()
    order = _order(command, environ, cwd)
    if not _may_fork(command, environ, order) or len(given) > STDIN_BYTES_MAX:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout, check=check,
            env=environ, cwd=cwd,
        )  # fmt: skip
    with contextlib.ExitStack() as opened:
        (stdin_out, stdin_in), *others = [_pipe(opened) for _ in range(4)]
        stdin_in.write(given)
        stdin_in.close()
        _send(order, [stdin_out, *(into for _, into in others)])
        output, error, told = _read([out for out, _ in others], command, timeout)
    _, status = struct.unpack("ii", told)
    code = os.waitstatus_to_exitcode(status)
    done = subprocess.CompletedProcess(command, code, _text(output), _text(error))
    if check:
        done.check_returncode()
    return done


class Fork:
    """A fork, as `subprocess.Popen` has them. `told`: pipe with its pid, and later its end."""

    def __init__(self, told: io.FileIO) -> None:
        self._told = told
        self.returncode: int | None = None
        (self.pid,) = struct.unpack("i", os.read(told.fileno(), 4))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._told, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(PROGRAM, timeout or 0)
            (status,) = struct.unpack("i", self._told.read(4))
            self._told.close()
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and is not told of yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Piped(Fork):
    """A command with pipes. `log`: where its errors go."""

    def __init__(
        self, command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path | str
    ) -> None:
        order = _order(command, env, cwd)
        assert _may_fork(command, env, order), command
        with contextlib.ExitStack() as opened, log.open("wb", 0) as errors:
            (stdin_out, stdin_in), (stdout_out, stdout_in), (told, telling) = [
                _pipe(opened) for _ in range(3)
            ]
            _send(order, [stdin_out, stdout_in, errors, telling])
            opened.pop_all()  # what is not sent stays open
        self.stdin, self.stdout = io.BufferedWriter(stdin_in), io.BufferedReader(stdout_out)
        super().__init__(told)


class Worker(Fork):
    """A worker. `name`: one of MAINS; `sock`: its socket, which is closed here."""

    def __init__(self, name: str, sock: socket.socket) -> None:
        assert name in MAINS, name
        order = json.dumps([name, {**os.environ}, os.getcwd()]).encode()
        with contextlib.ExitStack() as opened:
            nothing = opened.enter_context(open(os.devnull, "rb", 0))
            streams = [io.FileIO(os.dup(at), "wb") for at in (1, 2)]
            told, telling = _pipe(opened)
            _send(order, [nothing, *streams, io.FileIO(sock.detach(), "rb+"), telling])
            opened.pop_all()
        super().__init__(told)


def _order(command: Sequence[str], environ: Mapping[str, str], cwd: Path | str | None) -> bytes:
    assert tuple(command[:3]) == PROGRAM, command
    return json.dumps([command[3:], {**environ}, str(cwd or os.getcwd())]).encode()


def _may_fork(command: Sequence[str], environ: Mapping[str, str], order: bytes) -> bool:
    is_usual = _of_interpreter(environ) == _of_interpreter(os.environ)
    is_usual = is_usual and not _has_start(environ)
    return is_usual and not STAYING & {*command} and len(order) <= ORDER_BYTES_MAX


def _pipe(opened: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    out, into = os.pipe()
    pair = io.FileIO(out, "rb"), io.FileIO(into, "wb")
    for file in pair:
        opened.enter_context(file)
    return pair


def _send(order: bytes, files: Sequence[io.FileIO]) -> None:
    """Have a fork made, with these files as its streams and for what is told of it."""
    with _lock:
        socket.send_fds(_process(), [order], [file.fileno() for file in files])
    for file in files:
        file.close()


def _of_interpreter(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(OF_INTERPRETER) and name not in LATER
    }


def _has_start(environ: Mapping[str, str]) -> bool:
    """Whether PYTHONPATH leads to what an interpreter reads at its start, or to another build."""
    return any(
        (Path(folder) / name).exists()
        for folder in {*_path(environ)} - {*_path(os.environ)}
        for name in ("sitecustomize.py", "usercustomize.py", PROGRAM[2])
    )


def _path(environ: Mapping[str, str]) -> list[str]:
    return [folder for folder in environ.get(PATH, "").split(os.pathsep) if folder]


def _text(raw: bytes) -> str:
    return io.TextIOWrapper(io.BytesIO(raw)).read()


def _read(files: list[io.FileIO], command: Sequence[str], timeout: float) -> list[bytes]:
    """All of these pipes; the last one begins with the pid of the program."""
    end, read = time.monotonic() + timeout, [b"" for _ in files]
    with selectors.DefaultSelector() as selector:
        for at, file in enumerate(files):
            selector.register(file, selectors.EVENT_READ, at)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                with contextlib.suppress(ProcessLookupError, struct.error):
                    os.kill(struct.unpack_from("i", read[-1])[0], signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, timeout, read[0], read[1])
            for key, _ in selector.select(left):
                piece = os.read(key.fd, 65536)
                read[key.data] += piece
                if not piece:
                    selector.unregister(key.fileobj)
    return read


def _process() -> socket.socket:
    """The connection to the process that forks; it ends with this one."""
    if not _forking:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.programs", str(theirs.fileno())]
        with theirs, _giving_orphans_away():
            subprocess.run(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT, check=True
            )
        _forking.append(ours)

        @atexit.register
        def end() -> None:
            ours.settimeout(30)
            ours.shutdown(socket.SHUT_WR)
            ours.recv(1)
            ours.close()

    return _forking[0]


@contextlib.contextmanager
def _giving_orphans_away() -> Iterator[None]:
    """The process that forks may not be below this one: tests of what runs in a worker count the
    processes below them, and end those that they did not start."""
    prctl, was = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


# In the process that forks


def _import_all() -> None:
    for name in MAINS:
        with contextlib.suppress(ModuleNotFoundError):  # of a feature that is left out
            importlib.import_module(f"metamcp_worker.{name}.run")
    for name in LATE:
        module = importlib.import_module(name)
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            if name.startswith("metamcp_"):
                importlib.import_module(f"{name}.{found.name}")
    sys.modules.pop("metamcp_supervisor.__main__", None)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()


def _next_order(orders: socket.socket) -> "tuple[bytes, list[int]]":
    """Fork for each order, and say how each fork ended. Returns in a fork, with its order."""
    forks: dict[int, tuple[int, int]] = {}
    with orders, selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in forks:
                    pid, told = forks.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _tell(told, os.waitpid(pid, 0)[1])
                    os.close(told)
                    continue
                order, fds, *_ = socket.recv_fds(orders, ORDER_BYTES_MAX, 5)
                if not order:
                    sys.exit()
                pid = os.fork()
                if not pid:
                    return order, fds
                *streams, told = fds
                for fd in streams:
                    os.close(fd)
                _tell(told, pid)
                ended = os.pidfd_open(pid)
                forks[ended] = (pid, told)
                selector.register(ended, selectors.EVENT_READ)


def _tell(fd: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # it waited too long, and waits no more
        os.write(fd, struct.pack("i", number))


def _become(order: bytes, fds: list[int]) -> None:
    words, environ, folder = json.loads(order)
    *streams, _ = fds
    for at, fd in enumerate(streams):
        os.dup2(fd, at)
    os.closerange(len(streams), os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    others = [path for path in sys.path[1:] if path not in _path(os.environ)]
    sys.path[:] = [folder, *_path(environ), *others]
    os.environ.clear()
    os.environ.update(environ)
    for at, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = io.FileIO(at, "w" if at else "r", closefd=False)
        buffer = io.BufferedWriter(raw) if at else io.BufferedReader(raw)
        new = io.TextIOWrapper(buffer, old.encoding, old.errors, line_buffering=at == 2)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    if words in MAINS:
        run = sys.modules[f"metamcp_worker.{words}.run"]
        os._exit(run.main(socket.socket(fileno=3)))
    sys.argv = [PROGRAM[2], *words]
    try:
        runpy.run_module(PROGRAM[2], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        vars(threading)["_shutdown"]()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code or 0)  # to part all that was imported would take as long as the rest


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    _import_all()
    _become(*_next_order(socket.socket(fileno=int(sys.argv[1]))))
