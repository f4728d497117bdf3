"""An installed program whose commands are forks of one process, which has imported most of what
they need: a start takes 0.25 s of processor time, and there are 140 of them.

The other side is this file too, run by the interpreter of the program: PYTHON typist.py SOCKET
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

IMPORTED = (
    "metamcp_supervisor.__main__", "metamcp_supervisor.cli.ctl", "metamcp_supervisor.cli.up",
    "metamcp_supervisor.config.files", "metamcp_supervisor.control.client",
)  # fmt: skip
REQUEST_BYTES_MAX = 64 * 1024
COMMAND_S_MAX = 30.0


class Typed(NamedTuple):
    code: int
    out: bytes
    err: bytes


class Typist:
    """Commands of this program, typed in one folder; leaving the `with` block ends the process."""

    def __init__(self, program: Path, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(COMMAND_S_MAX)
        python, here = program.with_name("python"), Path(__file__).resolve()
        with theirs:
            self._process = subprocess.Popen(
                [python, "-I", here, program, str(theirs.fileno())],
                cwd=folder, env=environ, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
        self._process.wait(COMMAND_S_MAX)

    def type(self, arguments: Sequence[str]) -> Typed:
        """Wait for the end of a command. One that follows is interrupted after its first line."""
        with (self._folder / "out").open("wb") as out, (self._folder / "err").open("wb") as err:
            request = json.dumps(arguments).encode()
            socket.send_fds(self._sock, [request], [out.fileno(), err.fileno()])
        pid = int(self._sock.recv(32))
        if "-f" in arguments:
            self._interrupt(pid)
        code = int(self._sock.recv(32))
        return Typed(code, *((self._folder / name).read_bytes() for name in ("out", "err")))

    def _interrupt(self, pid: int) -> None:
        from tests.waiting import until

        out = self._folder / "out"
        until(lambda: b"\n" in out.read_bytes(), "what it follows has begun", COMMAND_S_MAX)
        os.kill(pid, signal.SIGINT)


def serve(program: str, sock: socket.socket) -> None:
    """Fork for each request, and answer with the pid and then with the exit code."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # the collector of a fork does not copy what is here
    while True:
        request, descriptors, _, _ = socket.recv_fds(sock, REQUEST_BYTES_MAX, 2)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            sock.close()
            become([program, *json.loads(request)], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        sock.send(str(pid).encode())
        sock.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def become(words: list[str], descriptors: Sequence[int]) -> None:
    """What the script of the program does, with this output."""
    for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = words
    sys.exit(importlib.import_module("metamcp_supervisor.__main__").main())


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
