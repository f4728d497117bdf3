"""Shims of clients, each a fork of one process that has loaded what all of them need.

The suite starts a program for each of 75 scenarios. An interpreter that loads the SDK takes 0.7 s
of processor time, so what the suite starts is `shim_caller.py`, which asks here for a fork.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.live.gateway import ROOT

CALLER = Path(__file__).with_name("shim_caller.py")
LOADED = (
    "metamcp_supervisor.cli.login", "metamcp_worker.oauth.flow", "tests.conformance.client_shim",
)  # fmt: skip
"""Modules that are there before the first fork."""
REQUEST_BYTES_MAX = 128 * 1024
END_S_MAX = 30


@contextmanager
def shims() -> Generator[str]:
    """Yield the command of a shim, without its era and the address of the suite's server."""
    with tempfile.TemporaryDirectory(prefix="metamcp-shims-") as folder:
        path = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(64)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.conformance.shims", str(listener.fileno())],
                cwd=ROOT,
                pass_fds=[listener.fileno()],
            )
        try:
            yield f"{sys.executable} -I -S {CALLER} {path}"
        finally:
            process.terminate()
            process.wait(END_S_MAX)


def serve(listener: socket.socket) -> None:
    """Fork a shim for each connection, which carries its arguments, environment and output."""
    while True:
        caller, _ = listener.accept()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            listener.close()
            os._exit(shim(caller))
        caller.close()


def shim(caller: socket.socket) -> int:
    """Run one shim in this process, and tell the caller its exit code."""
    from tests.conformance import client_shim

    request, descriptors, _, _ = socket.recv_fds(caller, REQUEST_BYTES_MAX, 2)
    for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
    (era, url), environ = json.loads(request)
    os.environ.clear()
    os.environ.update(environ)
    try:
        client_shim.play(era, url)
        code = 0
    except BaseException:  # noqa: BLE001 - the suite hears of any failure by the exit code
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        caller.send(bytes([code]))
    return code


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
