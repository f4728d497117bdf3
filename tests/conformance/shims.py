"""Shims of clients, each a fork of one process that has loaded what all of them need, and that has
started the gateway before which they are.

The suite starts a program for each of 68 scenarios. An interpreter that loads the SDK takes 0.7 s
of processor time, so what the suite starts is `shim_caller.py`, which asks here for a fork. A
gateway takes a second, so a shim adds its server to this one, and removes it.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.live.gateway import ROOT, Gateway

CALLER = Path(__file__).with_name("shim_caller.py")
LOADED = (
    "anyio._backends._asyncio", "httpcore2", "metamcp_supervisor.cli.login",
    "metamcp_supervisor.cli.up", "metamcp_supervisor.config.files", "metamcp_supervisor.features",
    "metamcp_supervisor.servers.specs", "metamcp_supervisor.servers.tokens",
    "metamcp_worker.oauth.flow", "tests.conformance.client_shim", "truststore",
)  # fmt: skip
"""Modules that are there before the first fork, also those that a login imports at its first use:
they are 0.15 s of it."""
REQUEST_BYTES_MAX = 128 * 1024
END_S_MAX = 60


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
            process.send_signal(signal.SIGINT)
            assert process.wait(END_S_MAX) == 0, "the gateway of the shims ends well"


def serve(listener: socket.socket, gateway: Gateway) -> None:
    """Fork a shim for each connection, which carries its arguments, environment and output."""
    while True:
        caller, _ = listener.accept()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            listener.close()
            os._exit(shim(caller, gateway))
        caller.close()


def shim(caller: socket.socket, gateway: Gateway) -> int:
    """Run one shim in this process, and tell the caller its exit code."""
    from tests.conformance import client_shim

    request, descriptors, _, _ = socket.recv_fds(caller, REQUEST_BYTES_MAX, 2)
    for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
    (era, url), environ = json.loads(request)
    os.environ.clear()
    os.environ.update(environ)
    try:
        client_shim.play(gateway, era, url)
        code = 0
    except BaseException:  # noqa: BLE001 - the suite hears of any failure by the exit code
        traceback.print_exc()
        sys.stderr.write(gateway.log.read_text()[-8000:])
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        caller.send(bytes([code]))
    return code


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    with Gateway({}) as running, suppress(KeyboardInterrupt):
        running.hang_up()
        gc.freeze()  # the collector of a fork does not copy what is here
        serve(socket.socket(fileno=int(sys.argv[1])), running)
