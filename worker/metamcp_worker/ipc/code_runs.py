"""Messages about runs of code, between a front and the process of the sandboxes.

Owns: their fields, limits and frames. Never: sandboxes (`sandbox`), carrying out the calls of a run
(`front_steps.code_calls_io`).

A front connects to the process by its connector (`packets`) and sends frames: 4 bytes with the
size, little-endian, then the message as JSON. Values of users are raw JSON on the whole way. When
a connection ends, its runs end with it.
"""

import struct
from typing import Literal

from msgspec import Raw, Struct

from metamcp_worker.ipc.envelope import Message

ROLE = "code"
"""Name of the process of the sandboxes."""
FRAME = struct.Struct("<I")
FRAME_BYTES_MAX = 64 * 1024 * 1024
Language = Literal["typescript", "javascript", "python"]
Failure = Literal[
    "syntax", "exception", "timeout", "memory", "calls", "size", "crashed", "language", "busy"
]


class CodeLimits(Struct, frozen=True):
    """Limits of one run."""

    timeout_ms: int = 30_000
    memory_bytes: int = 128 * 1024 * 1024
    output_bytes: int = 1024 * 1024
    calls: int = 1000
    parallel: int = 32


class StartRun(Message, frozen=True, kw_only=True):
    """Front: run this code. `run`: chosen by the front, unique on its connection. `args`: raw.
    `inner`: code of another run waits for this one, which takes the place of that run; a front
    sends one at a time for each run."""

    run: int
    code: str
    language: Language = "typescript"
    args: Raw = Raw(b"{}")
    limits: CodeLimits = CodeLimits()
    inner: bool = False


class EndRun(Message, frozen=True, kw_only=True):
    """Front: nobody waits for this run any more; kill it."""

    run: int


class HoldRun(Message, frozen=True, kw_only=True):
    """Front: the time of this run stands still while its user is asked, or goes on."""

    run: int
    hold: bool


class HostReply(Message, frozen=True, kw_only=True):
    """Front: answer to a `HostCall`. `result`: raw; `error`: a sentence, if there is none."""

    run: int
    call: int
    result: Raw = Raw(b"null")
    error: str = ""


class HostCall(Message, frozen=True, kw_only=True):
    """Guest, without `run`, and sandbox: the code calls something. `kind`: `call` for a tool by its
    exposed name `name`; `server` for the tool `name` of the server `server`; `tools` for a list of
    tools that match the query `name`, all if it is empty. `arguments`: raw, an object."""

    run: int = 0
    call: int
    kind: Literal["call", "server", "tools"]
    name: str
    server: str = ""
    arguments: Raw = Raw(b"{}")


class RunEnded(Message, frozen=True, kw_only=True):
    """Sandbox: the run is over. `value`: raw, what the code returned; `logs`: lines of the console;
    `calls`: made; `ms`: milliseconds. `failure`: empty, or the kind of error, then `message` is a
    sentence; `line`, `column`: place in the code from 1, 0 if not known; `stack`: frames of the
    code alone. `consent` is a failure of the front: the user has not agreed to a call."""

    run: int
    value: Raw = Raw(b"null")
    logs: tuple[str, ...] = ()
    calls: int = 0
    ms: float = 0.0
    failure: Failure | Literal["", "consent"] = ""
    message: str = ""
    line: int = 0
    column: int = 0
    stack: str = ""


class CodeOn(Message, frozen=True, kw_only=True):
    """Supervisor: first message to the process of the sandboxes, on its control socket, with its
    acceptor as descriptor. `deno`: path of the binary; `runs_max`: runs at once, more wait;
    `warm`: sandboxes that wait for a run; `idle_s`: after so long without a run they end;
    `memory_bytes`: the largest `CodeLimits.memory_bytes` of any endpoint; `jit`: whether V8
    compiles; `confinement`: `require`, `prefer` or `off` for Landlock."""

    deno: str
    runs_max: int
    warm: int = 2
    idle_s: float = 300.0
    memory_bytes: int = 128 * 1024 * 1024
    jit: bool = False
    confinement: Literal["require", "prefer", "off"] = "prefer"


class CodeFigures(Message, frozen=True, kw_only=True):
    """Sandbox to supervisor, when they have changed: runs since the process began by outcome (`ok`
    or a `Failure`); `running`, `waiting`: runs now; `warm`: sandboxes that wait; `confined`: what
    Landlock achieved, as a word with its ABI, e.g. `landlock-7`, or `none`."""

    counts: dict[str, int]
    running: int = 0
    waiting: int = 0
    warm: int = 0
    confined: str = ""
