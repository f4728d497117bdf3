"""Guest side of a run of Python: Monty interprets the code, in a process of its own.

Owns: what the code sees, its calls and their results, its errors; the processes of Monty. Never:
limits that matter; the process at the other end holds those and kills this one.

The sandbox is two processes: this one, forked and confined, which has no code of the user, and the
interpreter below it, which has nothing but that code and inherits the confinement. Frames are those
of `boot.js`.
"""

import importlib.util
import os
import resource
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn, cast
from uuid import UUID

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import FRAME_BYTES_MAX, HostCall, HostReply, StartRun
from metamcp_worker.sandbox import code_run, confinement
from metamcp_worker.sandbox.code_run import (
    MESSAGE_CHARS_MAX,
    FrameBuffer,
    GuestLarge,
    GuestLog,
    GuestMessage,
    GuestOverrun,
    GuestReady,
    GuestThrew,
    GuestUnread,
    GuestValue,
)

if TYPE_CHECKING:
    from pydantic_monty import (
        ExternalSettledResult,
        FunctionSnapshot,
        FutureSnapshot,
        MontyRuntimeError,
        MontySession,
        MontySyntaxError,
        NameLookupSnapshot,
        ResourceLimits,
        SyncSnapshot,
    )

MISSING = (
    "Python is not available: install the extra [code-python] of metamcp, or write TypeScript or"
    " JavaScript"
)
CODE_SHARE = 0.75
"""Part of the memory of a run that the code may have; the rest is for values on their way."""
SUSPENSIONS = 10
"""Times that the interpreter may ask this process for something, for each call that code may
make."""
FRAMES_MAX = 50
"""Frames of a stack that are reported."""
READ_BYTES = 256 * 1024

_read = codec.reader(StartRun | HostReply)


class MontySpec(Struct, frozen=True):
    """How to start sandboxes. `program`: path of the interpreter; `landlock`: as
    `confinement.confine`."""

    program: str
    landlock: int = -1
    share: float = 1 - CODE_SHARE

    def become(self) -> NoReturn:
        signal.set_wakeup_fd(-1)
        os.closerange(3, max(resource.getrlimit(resource.RLIMIT_NOFILE)))
        os.environ.clear()
        confinement.confine(self.landlock, self.program)
        _serve(_Host(), self.program)


def find(landlock: int) -> MontySpec | None:
    """Return how to start sandboxes; None if Monty is not installed. Monty is loaded from then on,
    and with it what it needs later, when no file can be read any more."""
    if importlib.util.find_spec("pydantic_monty") is None:
        return None
    import pydantic_monty._binary as binary

    try:
        return MontySpec(binary.find_monty_binary(), landlock)
    except FileNotFoundError:
        return None


class _Failed(Exception):
    """Raised for a call that cannot be made; the text is for the code."""


class _Mcp:
    """Object that the code has as `mcp`."""


class _Servers:
    """`mcp.servers`."""


class _Server(Struct):
    """`mcp.servers.NAME`."""

    name: str


class _Host:
    """Connection to the process of the sandboxes. `order`: of the run."""

    def __init__(self) -> None:
        self._sock = socket.socket(fileno=os.dup(0))
        self._frames = FrameBuffer(FRAME_BYTES_MAX)
        self._bodies: deque[bytes] = deque()

    def send(self, message: GuestMessage | GuestReady) -> None:
        self._sock.sendall(code_run.frame(codec.dump(message)))

    def receive(self) -> StartRun | HostReply:
        """Return the next message. Ends this process when there is none any more."""
        while not self._bodies:
            data = self._sock.recv(READ_BYTES)
            if not data:
                os._exit(0)
            self._bodies += self._frames.feed(data)
        message: StartRun | HostReply = _read(self._bodies.popleft())
        return message


def _serve(host: _Host, program: str) -> NoReturn:
    """Have one run, then end."""
    from pydantic_monty import Monty, MontyCrashedError

    try:
        with Monty(binary_path=program, min_processes=1, max_processes=1) as pool:
            host.send(GuestReady())
            order = host.receive()
            assert isinstance(order, StartRun)
            memory = int(order.limits.memory_bytes * CODE_SHARE)
            calls = order.limits.calls
            limits: ResourceLimits = {
                "max_memory": memory,
                "max_suspensions": calls * SUSPENSIONS + 1000,
            }
            with pool.checkout(limits=limits) as session:
                _limit_time(session.worker_pid or 0, order.limits.timeout_ms / 1000)
                _Run(host, order).go(session)
                os._exit(0)  # before the interpreter, which may be busy, is waited for
    except (MontyCrashedError, MemoryError) as error:
        os.write(2, (f"out of memory {error}" if isinstance(error, MemoryError) else "").encode())
    finally:
        os._exit(1)


def _limit_time(pid: int, timeout_s: float) -> None:
    """Let the interpreter have not much more processor time than a run may take, whatever becomes
    of those who watch over it."""
    seconds = int(timeout_s) + 2
    if sys.platform == "linux":
        resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds))


class _Run:
    """Run of one program."""

    def __init__(self, host: _Host, order: StartRun) -> None:
        self._host, self._order = host, order
        self._calls = 0
        self._running = 0
        self._held: deque[HostCall] = deque()
        self._asked: dict[int, tuple[int, bool]] = {}
        """Number for the interpreter of each call under way, and whether it wants all of the
        result."""
        self._objects: dict[UUID, object] = {}
        self._line = ""

    def go(self, session: "MontySession") -> None:
        """Run the code, and report how it ended."""
        from pydantic_monty import (
            FunctionSnapshot,
            FutureSnapshot,
            MontyComplete,
            MontyRuntimeError,
            MontySyntaxError,
        )

        inputs = {"mcp": self._wrap_object(_Mcp()), "args": codec.value(self._order.args)}
        try:
            at = session.feed_start(self._order.code, inputs=inputs, print_callback=self._on_print)
            while not isinstance(at, MontyComplete):
                if isinstance(at, FunctionSnapshot):
                    at = self._function(at)
                elif isinstance(at, FutureSnapshot):
                    at = self._future(at)
                else:
                    at = self._name(at)
        except (MontyRuntimeError, MontySyntaxError) as error:
            self._threw(error, unread=isinstance(error, MontySyntaxError))
        else:
            self._send_value(at.output)

    def _wrap_object(self, value: object) -> object:
        from pydantic_monty import ClassInstance

        made = ClassInstance(value, lazy_attrs="all", allowed_methods="all")
        self._objects[made.id] = value
        return made

    def _name(self, at: "NameLookupSnapshot") -> "SyncSnapshot":
        owner = None if at.object_id is None else self._objects.get(at.object_id)
        name = at.variable_name
        if isinstance(owner, _Mcp) and name == "servers":
            return at.resume(value=self._wrap_object(_Servers()))
        if isinstance(owner, _Servers):
            return at.resume(value=self._wrap_object(_Server(name)))
        return at.resume()

    def _function(self, at: "FunctionSnapshot") -> "SyncSnapshot":
        if at.is_os_function:
            return at.resume_not_handled()
        owner = None if at.object_id is None else self._objects.get(at.object_id)
        try:
            call, wants_all = self._call(owner, str(at.function_name), at.args, at.kwargs)
        except _Failed as error:
            return at.resume({"exc_type": "TypeError", "message": str(error)})
        if self._calls > self._order.limits.calls:
            self._host.send(GuestOverrun())
        self._asked[call.call] = at.call_id, wants_all
        if self._running < self._order.limits.parallel:
            self._running += 1
            self._host.send(call)
        else:
            self._held.append(call)
        return at.resume({"future": ...})

    def _call(
        self, owner: object, function: str, args: tuple[object, ...], named: Mapping[str, object]
    ) -> tuple[HostCall, bool]:
        """Return a call of the code, and whether it wants all of the result. Raises _Failed."""
        server = owner.name if isinstance(owner, _Server) else ""
        positional: list[object] = list(args)
        name = function if server else positional.pop(0) if positional else ""
        if isinstance(owner, _Mcp) and function == "tools":
            name = named.get("query", name)
            return self._make_call("tools", name, "", {}), True
        if not server and not (isinstance(owner, _Mcp) and function in {"call", "raw"}):
            raise _Failed(f"{function} is not a function here; mcp has call, raw, tools, servers")
        arguments: object = positional.pop(0) if positional else None
        if positional or not isinstance(arguments, dict | None):
            raise _Failed("arguments of a tool are one dict, or named")
        everything = {**cast(dict[str, object], arguments or {}), **named}
        kind = "server" if server else "call"
        return self._make_call(kind, name, server, everything), function == "raw" and not server

    def _make_call(
        self, kind: str, name: object, server: str, arguments: Mapping[str, object]
    ) -> HostCall:
        if not isinstance(name, str):
            raise _Failed("the name of a tool is a string")
        try:
            raw = Raw(codec.dump(arguments))
        except (TypeError, ValueError, RecursionError) as error:
            raise _Failed(f"the arguments are not JSON: {error}") from None
        self._calls += 1
        return HostCall(
            call=self._calls, kind="tools" if kind == "tools" else
            "server" if kind == "server" else "call", name=name, server=server, arguments=raw,
        )  # fmt: skip

    def _future(self, at: "FutureSnapshot") -> "SyncSnapshot":
        """Wait for the answer to one of the calls."""
        reply = self._host.receive()
        assert isinstance(reply, HostReply)
        self._running -= 1
        if self._held:
            self._running += 1
            self._host.send(self._held.popleft())
        number, wants_all = self._asked.pop(reply.call)
        return at.resume({number: _answer(reply, wants_all=wants_all)})

    def _on_print(self, stream: str, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        if len(self._line) > self._order.limits.output_bytes:
            lines, self._line = [*lines, self._line], ""
        for line in lines:
            self._host.send(GuestLog(line))

    def _flush(self) -> None:
        if self._line:
            self._host.send(GuestLog(self._line))

    def _send_value(self, value: object) -> None:
        self._flush()
        try:
            body = codec.dump(value)
        except RecursionError:
            self._host.send(GuestLarge())
        except (TypeError, ValueError) as error:
            message = f"TypeError: the code returned a value that JSON does not have: {error}"
            self._host.send(GuestThrew(message, ""))
        else:
            large = len(body) > self._order.limits.output_bytes
            self._host.send(GuestLarge() if large else GuestValue(Raw(body)))

    def _threw(self, error: "MontyRuntimeError | MontySyntaxError", *, unread: bool) -> None:
        self._flush()
        words = error.display("msg" if unread else "type-msg")[:MESSAGE_CHARS_MAX]
        frames = error.traceback()[::-1][:FRAMES_MAX]
        stack = "\n".join(
            f"at {frame.function_name or '<module>'} (python:{frame.line}:{frame.column})"
            for frame in frames
        )
        if unread:
            self._host.send(GuestUnread(f"SyntaxError: {words}\n{stack}", ""))
        else:
            self._host.send(GuestThrew(words, stack))


def _answer(reply: HostReply, *, wants_all: bool) -> "ExternalSettledResult":
    """Return what a call gives the code: see `value` in `boot.js`."""
    if reply.error:
        return {"exc_type": "RuntimeError", "message": reply.error}
    value = codec.value(reply.result)
    if wants_all or not isinstance(value, dict):
        return {"return_value": value}
    result = cast(dict[str, object], value)
    content = cast(list[dict[str, object]], result.get("content") or [])
    texts = [str(block.get("text", "")) for block in content if block.get("type") == "text"]
    words = "\n".join(texts)
    if result.get("isError") is True:
        return {"exc_type": "RuntimeError", "message": words or "the tool failed"}
    structured = result.get("structuredContent")
    if isinstance(structured, dict):
        members = cast(dict[str, object], structured)
        return {"return_value": members["result"] if members.keys() == {"result"} else members}
    if content and not texts:
        return {"return_value": content}
    try:
        return {"return_value": codec.value(words.encode())}
    except codec.Malformed:
        return {"return_value": words}
