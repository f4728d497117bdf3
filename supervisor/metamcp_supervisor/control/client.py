"""Small synchronous client of the control socket, for commands at a prompt.

Owns: finding the gateway, the message if it is not found, requests and streams. Never: the meaning
and printing of an answer (`cli`), asyncio: importing it would take `metamcp ctl` longer than
everything else.
"""

import io
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Raw, Struct

from metamcp_supervisor import runtime
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code, MetaMCPError

ANSWER_S = 10.0
"""Seconds for the gateway to answer a verb that does not wait for anything."""
CONNECT_AGAIN_S = 0.05
"""Seconds between two attempts to connect to a gateway that may still be starting."""
LINE_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a line of the gateway; more than it sends, so that a newer gateway may send
more."""
PROGRAMS, LINES = "/control", "application/x-ndjson"
"""Path of the console for verbs of programs, and the type of its answers: lines as they come from
the control socket."""
KEY_ENDED = "this API key has ended"
"""Sentence for a program at the end of the API key that it shows."""
_SHARED = 0o060
"""Mode bits of a socket that its gateway shares with a group (`access_io`)."""


class Failed(MetaMCPError):
    """Raised if a verb did not succeed. `exit`: exit code of the command; `details`: more lines."""

    def __init__(self, exit_code: Exit, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.exit = exit_code
        self.details = details


class ControlClient:
    """Connection to a running gateway. Close it, or use it in a `with`."""

    def __init__(self, sock: socket.socket, path: str) -> None:
        self._sock = sock
        self._path = path
        self._reader: io.BufferedIOBase = sock.makefile("rb")
        self._asked = 0

    def call(
        self,
        method: str,
        params: object = None,
        *,
        timeout_s: float = ANSWER_S,
        heard: Callable[[str, bytes], None] = lambda kind, raw: None,
    ) -> bytes:
        """Send one verb and return its raw JSON result. `heard`: called with each notification
        before it, kind and raw JSON. Raises Failed."""
        self._ask(method, params, timeout_s)
        while True:
            message = self._read()
            if message.method is None:
                return result(message)
            heard(message.method, bytes(message.params))

    def stream(
        self,
        method: str,
        params: object = None,
        *,
        follow: bool = False,
        begun: Callable[[], None] = lambda: None,
        timeout_s: float = ANSWER_S,
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the notifications of a verb as (kind, raw JSON); with `follow` without end.
        `begun`: called when all past ones have been sent. Raises Failed."""
        self._ask(method, params, timeout_s)
        while True:
            message = self._read()
            if message.method == "lagged":
                raise Failed(Exit.FAILED, "cut off: this command did not read fast enough")
            if message.method == "ended":
                raise Failed(Exit.DENIED, KEY_ENDED)
            if message.method is not None:
                yield message.method, bytes(message.params)
                continue
            result(message)
            if not follow:
                return
            begun()
            self._sock.settimeout(None)  # the user ends it, or the end of the gateway does

    def pid(self) -> int:
        """Return the gateway's process id from the kernel; -1 if the kernel reports none."""
        from metamcp_supervisor.control.access_io import peer

        return peer(self._sock).pid

    def close(self) -> None:
        self._reader.close()
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def greet(self, token: str, timeout_s: float = ANSWER_S) -> None:
        """Read the gateway's hello and show the token. Raises Failed."""
        self._sock.settimeout(timeout_s)
        message = self._read()
        if message.method != "hello":
            result(message)  # raises what the gateway refused with
            raise Failed(Exit.FAILED, f"{self._path} is not the control socket of a gateway")
        self.call("hello", {"token": token}, timeout_s=timeout_s)

    def _ask(self, method: str, params: object, timeout_s: float) -> None:
        self._sock.settimeout(timeout_s)
        self._asked += 1
        request: dict[str, object] = {"jsonrpc": "2.0", "id": self._asked, "method": method}
        if params is not None:
            request["params"] = params
        try:
            self._sock.sendall(codec.dump(request) + b"\n")
        except TimeoutError:
            raise self._silent() from None
        except (BrokenPipeError, ConnectionResetError):
            pass  # what it said before it closed is still to be read

    def _read(self) -> Envelope:
        try:
            line = self._reader.readline(LINE_BYTES_MAX)
        except TimeoutError:
            raise self._silent() from None
        except OSError:
            line = b""
        if not line:
            raise Failed(Exit.NOT_RUNNING, f"the gateway closed the connection to {self._path}")
        try:
            return codec.envelope(line)
        except codec.Malformed as error:
            raise Failed(Exit.FAILED, f"{self._path} sent a bad answer: {error}") from None

    def _silent(self) -> Failed:
        waited = self._sock.gettimeout() or 0.0
        return Failed(Exit.TIMEOUT, f"the gateway at {self._path} gave no answer in {waited:g} s")


def connect(runtime_dir: str | None = None, *, timeout_s: float = ANSWER_S) -> ControlClient:
    """Connect to the gateway of the context that the environment names, or of this directory, or
    else of `find_runtime_dir()`. `timeout_s`: seconds for each answer of the gateway until the
    token is accepted. Raises Failed."""
    if context := os.environ.get(runtime.CONTEXT):
        from metamcp_supervisor.control.contexts import connect_context

        return connect_context(context, runtime_dir, timeout_s)
    directory = runtime_dir or find_runtime_dir()
    try:
        path = runtime.socket_path(directory)
    except runtime.RuntimeDirUnfit as error:
        raise Failed(Exit.USAGE, str(error)) from None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
        is_given = runtime_dir is not None or directory == runtime.SERVICE_DIR
        _check_owner(path, is_explicit=is_given)
        client = ControlClient(sock, path)
    except Failed:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise _unreachable(error, path) from None
    try:
        client.greet(token(directory), timeout_s)
    except Failed:
        client.close()
        raise
    return client


def connect_here(runtime_dir: str | None) -> ControlClient:
    """Connect as `connect` does, but without a directory only to the gateway of this folder. Raises
    Failed."""
    from metamcp_supervisor.config import places

    if context := os.environ.get(runtime.CONTEXT):
        text = f"this is for a gateway of this machine, and the context {context!r} is another one"
        raise Failed(Exit.USAGE, f"{text}; unset {runtime.CONTEXT}")
    if runtime_dir is None and find_runtime_dir() != (own := str(places.find_place().runtime_dir)):
        text = f"no gateway of this folder is running at {own}"
        raise Failed(Exit.NOT_RUNNING, text, _others())
    return connect(runtime_dir)


def directory_of(path: Path) -> str:
    """Return the runtime directory of the gateway of a configuration. Raises Failed."""
    from metamcp_supervisor.config import places

    if not path.exists():
        raise Failed(Exit.CONFIG, f"{path}: does not exist")
    return str(places.find_place(path).runtime_dir)


def find_runtime_dir() -> str:
    """Return the runtime directory that the environment names (`context_dir` for a context), or
    else that of this folder's gateway; where only a client has a file here, that of the user's own
    gateway if it runs alone; outside of a project, that of the only gateway of this user that runs,
    or of the service of the machine. Raises Failed if several run."""
    from metamcp_supervisor.config import places

    if context := os.environ.get(runtime.CONTEXT):
        return context_dir(context)
    if runtime_dir := runtime.read_environ_dir(os.environ):
        return runtime_dir
    here = places.find_place()
    default = str(here.runtime_dir)
    if places.answers(default):
        return default
    if here.of_folder:
        users = runtime.default(os.environ)
        is_clients = here.config is not None and here.config.suffix != ".toml"
        return users if is_clients and places.answers(users) else default
    running = places.find_gateways(os.environ)
    own = [gateway for gateway in running if gateway.runtime_dir != runtime.SERVICE_DIR]
    if len(own) > 1:
        text = "several gateways run and none of them belongs to this folder; say which one"
        raise Failed(Exit.USAGE, text, tuple(map(str, running)))
    return (own or running)[0].runtime_dir if running else default


def context_dir(name: str) -> str:
    """Return what stands for the runtime directory of a context, which is on another machine."""
    return f"context:{name}"


def _others() -> tuple[str, ...]:
    """Return lines that list the running gateways, for a message that the meant one is not
    running."""
    from metamcp_supervisor.config import places

    running = places.find_gateways(os.environ)
    return ("these run:", *map(str, running)) if running else ()


def connect_within(runtime_dir: str | None, timeout_s: float) -> ControlClient:
    """Connect as `connect` does, and try again for `timeout_s` seconds while no gateway runs, since
    it may just be starting."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            return connect(runtime_dir)
        except Failed as failure:
            if failure.exit != Exit.NOT_RUNNING or time.monotonic() >= end:
                raise
        time.sleep(CONNECT_AGAIN_S)


def _check_owner(path: str, *, is_explicit: bool) -> None:
    """Raise Failed for the socket of another user, unless its directory `is_explicit`.

    The default directory may lie where every user can make one, so only that of this user or of
    root is trusted. Another user's directory must be given, by root, who may steer every gateway,
    or for a gateway that shares its socket.
    """
    me, status = os.geteuid(), os.stat(path)
    owner, shared = status.st_uid, bool(status.st_mode & _SHARED)
    if owner not in {me, 0} and not (is_explicit and (me == 0 or shared)):
        raise Failed(
            Exit.DENIED,
            f"{path} belongs to user id {owner}; to steer that gateway, run this as that user",
        )


def token(directory: str) -> str:
    path = os.path.join(directory, runtime.TOKEN)
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096).strip()
    except OSError as error:
        raise _unreachable(error, path) from None


def _unreachable(error: OSError, path: str) -> Failed:
    if isinstance(error, PermissionError):
        return Failed(
            Exit.DENIED,
            f"no permission to open {path}; run this as the user of the gateway, or as root",
        )
    if isinstance(error, TimeoutError):
        return Failed(Exit.TIMEOUT, f"the gateway at {path} accepts no connection")
    absent = isinstance(error, FileNotFoundError | ConnectionRefusedError)
    detail = "" if absent else f" ({error.strerror})"
    return Failed(
        Exit.NOT_RUNNING,
        f"no gateway is running at {path}{detail}; start one with 'metamcp up', or say"
        " where it is with --runtime-dir",
        _others(),
    )


class _Details(Struct, frozen=True):
    problems: tuple[str, ...] = ()


class _Error(Struct, frozen=True):
    code: int = int(Exit.FAILED)
    message: str = ""
    data: Raw = Raw(b"{}")


def result(message: Envelope) -> bytes:
    """Return the result of an answer. Raises Failed with the exit code that the gateway chose."""
    if bytes(message.result):
        return bytes(message.result)
    try:
        error = codec.decode_as(_Error, message.error)
    except codec.Malformed:
        raise Failed(Exit.FAILED, "the gateway sent an answer that cannot be read") from None
    if error.code in {Code.INVALID_PARAMS, Code.METHOD_NOT_FOUND}:
        raise Failed(Exit.FAILED, f"{error.message} (is the gateway an older version?)")
    exit_codes = {int(code) for code in Exit} - {int(Exit.OK)}
    exit_code = Exit(error.code) if error.code in exit_codes else Exit.FAILED
    raise Failed(exit_code, error.message, _problems(error.data))


def _problems(data: Raw) -> tuple[str, ...]:
    try:
        return codec.decode_as(_Details, data).problems
    except codec.Malformed:
        return ()  # details of another kind, for other clients
