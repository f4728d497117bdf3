"""Process of one sandbox: confined, for one run.

Owns: the fork and what comes before the program, its socket (`ByteStream`, as fronts have one too),
its memory limit, its end; the command and environment of Deno without any permission. Never: what
the code in it sees (`boot.js`, `monty_guest`), frames (`code_run`), the number of sandboxes
(`sandbox_pool`).

Standard input and output of the program are one socket, so its end is also the news that the
process has ended: no process outside of its group holds it. A process that closes it lives no
longer.

A transport of the event loop would do as well as a ByteStream, and opening one takes a turn of the
loop; a guest is to have its code in the turn in which the run comes.

The parent death signal comes when the *thread* that forked ends, so this belongs into the main
thread. `subprocess` could not set it without code of ours between fork and exec, either.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol
from urllib.parse import quote

from msgspec import Struct

from metamcp_worker.ipc import codec, packets
from metamcp_worker.runtime import orphans
from metamcp_worker.sandbox import confinement
from metamcp_worker.sandbox.code_run import STDERR_BYTES_MAX

BEGIN_BYTES = 4 * 1024 * 1024
"""Bytes of the limit that a program itself takes when a run begins: pages that it had reserved, and
now uses."""
READ_BYTES = 256 * 1024
REAP_S = 0.05
"""Seconds between two looks whether the last process of a killed sandbox has ended."""
UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Maximum bytes that wait for a peer that does not read; with more, the peer counts as gone."""
_NO_START = 127
_CPU_CLOCK = 2
"""Linux: the clock of a process is ~pid shifted by three bits, with the kind of time below."""


class SandboxSpec(Protocol):
    """How to start sandboxes of one kind. `share`: part of the memory of a run that the first
    process of a sandbox may have."""

    @property
    def share(self) -> float: ...

    def become(self) -> NoReturn:
        """Become the program, in the forked process, whose standard streams are in place already.
        Raises OSError."""
        ...


class SandboxProcess:
    """`on_data(data)` gets the bytes of the guest. `on_exit(code, stderr)` is called once, unless
    the process is killed here. Raises OSError."""

    def __init__(
        self,
        spec: SandboxSpec,
        on_data: Callable[[bytes], None],
        on_exit: Callable[[int, str], None],
    ) -> None:
        self.on_data, self.on_exit = on_data, on_exit
        self._killed = self._reaped = False
        self._share = spec.share
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
        self._stream = ByteStream(ours, self._data, self._on_stream_end)

    @property
    def alive(self) -> bool:
        """Whether the process lives, as far as the system shows without reaping it."""
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
        limit_bytes = int(limit_bytes * self._share)
        value = int(lines[0].split()[1]) * 1024 + max(limit_bytes // 2, limit_bytes - BEGIN_BYTES)
        resource.prlimit(self.pid, resource.RLIMIT_DATA, (value, value))

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the process has used, 0 if it has ended or the
        system does not report it."""
        if sys.platform != "linux":
            return 0.0
        with contextlib.suppress(OSError):
            return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK)
        return 0.0

    def leave_processor(self) -> None:
        """Keep the process off one processor of this machine, if it has several."""
        if self._killed or not hasattr(os, "sched_setaffinity"):
            return
        processors = os.sched_getaffinity(0)
        if others := processors - {min(processors)}:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{self.pid}/task"):
                    os.sched_setaffinity(int(thread), others)

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

    def _on_stream_end(self) -> None:
        """Reap the process. The kernel frees memory before it closes descriptors. A
        signal to a process that is ending does not change its exit status."""
        ended_itself = not self._killed
        self.kill()
        code = 0
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._reaped = True
        self._reap_below()
        stderr = b""
        with contextlib.suppress(OSError):
            stderr = os.read(self._stderr, STDERR_BYTES_MAX)
        packets.close_all([self._stderr])
        if ended_itself:
            self.on_exit(code, stderr.decode(errors="replace"))

    def _reap_below(self) -> None:
        """Reap the processes below the program, which the kernel gave to this process, as one after
        the other ends; all were killed with their group."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
            asyncio.get_running_loop().call_later(REAP_S, self._reap_below)


def _become(spec: SandboxSpec, sock: int, stderr: int, parent: int) -> NoReturn:
    """Become the program in the forked process."""
    try:
        os.setpgid(0, 0)
        if orphans.die_with_parent(parent):
            for fd, number in ((sock, 0), (sock, 1), (stderr, 2)):
                os.dup2(fd, number)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.chdir("/")
            spec.become()
    except Exception as error:  # noqa: BLE001 - the parent reads it: nothing else may run here
        with contextlib.suppress(OSError):
            os.write(2, f"{error}\n".encode())
    finally:
        os._exit(_NO_START)


class ByteStream:
    """`on_data(data)` gets bytes, `on_end()` is called once when the other side has ended."""

    def __init__(
        self, sock: socket.socket, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_data, self._on_end = on_data, on_end
        self._unsent = bytearray()
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    @property
    def unsent(self) -> int:
        """Number of bytes that wait for the other side to read."""
        return len(self._unsent)

    def write(self, data: bytes) -> None:
        """Send these bytes after those that wait. Bytes for a peer that has ended are dropped."""
        if not self._open or not data:
            return
        if self._unsent:
            self._unsent += data
        elif unsent := data[self._send_some(data) :]:
            self._unsent += unsent
            self._loop.add_writer(self._sock, self._writable)
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self._end_stream()

    def close(self) -> None:
        """Close without a call of `on_end`."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._unsent.clear()
            self._sock.close()

    def _send_some(self, data: bytes | bytearray) -> int:
        """Send what fits; return how much. An error is left to reading, which finds it too."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _writable(self) -> None:
        del self._unsent[: self._send_some(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self._end_stream()

    def _end_stream(self) -> None:
        if self._open:
            self.close()
            self._on_end()


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
_NO_WASM = "--wasm-max-module-size=1,--max-wasm-functions=0"
"""Flags that refuse WebAssembly, which a program without `WebAssembly` may still import; without a
compiler V8 has none anyway."""
_V8 = "--stack-size=900,--single-threaded-gc"


class DenoSpec(Struct, frozen=True):
    """How to start sandboxes. `program`: path of Deno; `heap_bytes`: of V8; `boot`: descriptor of
    `boot.js`; `jit`: whether V8 compiles; `landlock`: as `confinement.confine`."""

    program: str
    heap_bytes: int
    boot: int
    jit: bool = False
    landlock: int = -1
    share: float = 1.0

    @property
    def command(self) -> list[str]:
        flags = f"{_V8},--max-heap-size={max(1, self.heap_bytes // 2**20)}"
        flags += f",{_NO_WASM}" if self.jit else ",--jitless"
        return [self.program, "run", *_OPTIONS, f"--v8-flags={flags}", _BOOT]

    def become(self) -> NoReturn:
        os.dup2(self.boot, _BOOT_FD)
        os.lseek(_BOOT_FD, 0, os.SEEK_SET)
        confinement.confine(self.landlock, self.program)
        os.execve(self.program, self.command, _ENVIRONMENT)  # noqa: S606 - a shell is the last thing to have here


def boot_file() -> int:
    """Return a descriptor of `boot.js`. Raises OSError."""
    return packets.blob(Path(__file__).with_name("boot.js").read_bytes())
