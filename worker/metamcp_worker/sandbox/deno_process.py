"""Deno with no permission, as the program of a sandbox.

Owns: its command, environment and `boot.js`. Never: the process (`sandbox_process`), what the code
in it sees (`boot.js`).
"""

import os
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from msgspec import Struct

from metamcp_worker.ipc import codec, packets
from metamcp_worker.sandbox import confinement

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
