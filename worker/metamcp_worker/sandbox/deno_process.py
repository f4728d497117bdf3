"""Process of one sandbox: Deno with no permission, confined, for one run.

Owns: the command, the fork and what comes before the program, its socket, its memory limit, its
end. Never: frames (`code_run`), the number of sandboxes (`run`).

Standard input and output of Deno are one socket, so its end is also the news that the process has
ended: the process starts no other that could hold it. A process that closes it lives no longer.

The parent death signal comes when the *thread* that forked ends, so this belongs into the main
thread. `subprocess` could not set it without code of ours between fork and exec, either.
"""

import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from msgspec import Struct

from metamcp_worker.ipc import codec, packets
from metamcp_worker.runtime import orphans
from metamcp_worker.sandbox import confinement
from metamcp_worker.sandbox.byte_stream import ByteStream
from metamcp_worker.sandbox.code_run import STDERR_BYTES_MAX

_BOOT_FD = 3
_BOOT = f"/dev/fd/{_BOOT_FD}"
"""Place of `boot.js` for Deno; the code sees it in stacks, and not where MetaMCP is installed."""
NODE_MODULES = (
    "_http_agent _http_common _http_outgoing _http_server _stream_duplex _stream_passthrough"
    " _stream_readable _stream_transform _stream_writable _tls_common _tls_wrap assert"
    " assert/strict async_hooks buffer child_process cluster console constants crypto dgram"
    " diagnostics_channel dns dns/promises domain events fs fs/promises http http2 https inspector"
    " inspector/promises module net os path path/posix path/win32 perf_hooks process punycode"
    " querystring readline readline/promises repl sqlite stream stream/consumers stream/promises"
    " stream/web string_decoder sys test test/reporters timers timers/promises tls trace_events tty"
    " url util util/types v8 vm wasi worker_threads zlib"
)
"""Names, separated by blanks, of the modules of Node.js that Deno has within itself, and that no
permission keeps from a program. A test compares them with those of the true Deno."""
_IMPORTS = {"imports": {f"node:{name}": None for name in NODE_MODULES.split()}}
_OPTIONS = (
    "--no-prompt", "--no-remote", "--no-npm", "--no-config", "--no-lock", "--cached-only",
    "--quiet", "--import-map=data:application/json," + quote(codec.dump(_IMPORTS), safe=":,"),
)  # fmt: skip
_ENVIRONMENT = {
    "DENO_DIR": "/dev/null/deno",  # nobody can make it
    # Without it each run would try several times to write a cache: a tenth of a second.
    "DENO_EMIT_CACHE_MODE": "disable",
    "DENO_NO_UPDATE_CHECK": "1",
    "NO_COLOR": "1",
}
_V8 = "--stack-size=900,--single-threaded-gc"
_NO_START = 127
BEGIN_BYTES = 4 * 1024 * 1024
"""Bytes of the limit that Deno itself takes when a run begins: pages that it had reserved, and now
uses."""


class DenoSpec(Struct, frozen=True):
    """How to start sandboxes. `program`: path of Deno; `heap_bytes`: of V8; `boot`: descriptor of
    `boot.js`; `jit`: whether V8 compiles; `landlock`: as `confinement.confine`."""

    program: str
    heap_bytes: int
    boot: int
    jit: bool = False
    landlock: int = -1

    @property
    def command(self) -> list[str]:
        flags = f"{_V8},--max-heap-size={max(1, self.heap_bytes // 2**20)}"
        flags += "" if self.jit else ",--jitless"
        return [self.program, "run", *_OPTIONS, f"--v8-flags={flags}", _BOOT]


def boot_file() -> int:
    """Return a descriptor of `boot.js`. Raises OSError."""
    return packets.blob(Path(__file__).with_name("boot.js").read_bytes())


class DenoProcess:
    """`on_data(data)` gets the bytes of the guest. `on_exit(code, stderr)` is called once, unless
    the process is killed here. Raises OSError."""

    def __init__(
        self,
        spec: DenoSpec,
        on_data: Callable[[bytes], None],
        on_exit: Callable[[int, str], None],
    ) -> None:
        self.on_data, self.on_exit = on_data, on_exit
        self._killed = self._reaped = False
        ours, theirs = socket.socketpair()
        self._stderr, stderr = os.pipe()
        os.set_blocking(self._stderr, False)
        parent = os.getpid()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become(spec, theirs.fileno(), stderr, parent)
        except OSError:
            ours.close()
            os.close(self._stderr)
            raise
        finally:
            theirs.close()
            os.close(stderr)
        self._stream = ByteStream(ours, self._data, self._ended)

    @property
    def alive(self) -> bool:
        """Whether the process lives, as far as the system tells without reaping it."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return not hasattr(os, "waitid") or os.waitid(os.P_PID, self.pid, look) is None

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def limit_memory(self, limit_bytes: int) -> None:
        """Let the process have so many bytes more than it has now. Raises OSError."""
        if sys.platform != "linux":
            return
        with open(f"/proc/{self.pid}/status", "rb") as file:
            lines = [line for line in file if line.startswith(b"VmData:")]
        if not lines:
            raise ProcessLookupError("the process has ended")
        value = int(lines[0].split()[1]) * 1024 + max(limit_bytes // 2, limit_bytes - BEGIN_BYTES)
        resource.prlimit(self.pid, resource.RLIMIT_DATA, (value, value))

    def kill(self) -> None:
        """End the process, and all that it might have started. `on_data` and `on_exit` hear no
        more of it."""
        self._killed = True
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)  # it may not have its group yet
                os.killpg(self.pid, signal.SIGKILL)

    def _data(self, data: bytes) -> None:
        if not self._killed:
            self.on_data(data)

    def _ended(self) -> None:
        """Reap the process. The kernel frees memory before it closes descriptors. A
        signal to a process that is ending does not change its exit status."""
        told = not self._killed
        self.kill()
        code = 0
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._reaped = True
        stderr = b""
        with contextlib.suppress(OSError):
            stderr = os.read(self._stderr, STDERR_BYTES_MAX)
        packets.close_all([self._stderr])
        if told:
            self.on_exit(code, stderr.decode(errors="replace"))


def _become(spec: DenoSpec, sock: int, stderr: int, parent: int) -> NoReturn:
    """Become Deno in the forked process."""
    try:
        os.setsid()
        if orphans.die_with_parent(parent):
            for fd, number in ((sock, 0), (sock, 1), (stderr, 2), (spec.boot, _BOOT_FD)):
                os.dup2(fd, number)
            os.lseek(_BOOT_FD, 0, os.SEEK_SET)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.chdir("/")
            confinement.confine(spec.landlock, spec.program)
            os.execve(spec.program, spec.command, _ENVIRONMENT)  # noqa: S606 - a shell is the last thing to have here
    except Exception as error:  # noqa: BLE001 - the parent reads it: nothing else may run here
        with contextlib.suppress(OSError):
            os.write(2, f"{error}\n".encode())
    finally:
        os._exit(_NO_START)
