"""Run of code: what its guest may send, what that means, and how the run ends.

Owns: frames from and to a guest, their checks (type, size, order, ids), limits of calls and output,
failures and their places in the code. Never: processes and time (`sandbox_process`, `run`).

All bytes of a guest are hostile: the code in it may have taken over the whole process. Then it
gains the calls that it may make anyway, and an end of the run.
"""

import re
from typing import Final

from msgspec import Raw, structs

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import (
    FRAME,
    Failure,
    HostCall,
    HostReply,
    RunEnded,
    StartRun,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import TooLarge

MESSAGE_CHARS_MAX = 4096
"""Maximum characters of the text of an error; of its stack four times as many."""
SLACK_BYTES = 64 * 1024
"""Bytes of a frame of a guest beside the value in it, which has the limit of the output."""
LINE_BYTES = 16
"""Bytes that each line of the console counts beside its text."""
STDERR_BYTES_MAX = 64 * 1024
"""Bytes of standard error that are read when a process has ended."""
NO_MEMORY: Final = re.compile(
    r"out of memory|memory allocation of|cannot allocate memory|(?:heap|memory) limit|OOM",
    re.IGNORECASE,
)
"""Last words of V8, of Rust and of the C library in a process that got no more memory."""
DEEP = "nested too deeply"
"""Text of codec.Malformed for JSON that is nested more deeply than any reader here goes."""
_NO_BUFFER = re.compile(
    r"MemoryError\b"
    r"|RangeError: (?:Array buffer allocation failed|ArrayBuffer\.prototype\.resize: Out of memory"
    r"|could not deserialize value)"
    r"|DataCloneError: Data cannot be cloned, out of memory"
)
"""Errors of the code for which its process had no memory. `structuredClone` reads what it has
written itself, so only lack of memory keeps it from that."""
_ABORT = 6
"""SIGABRT: V8 ends with it, and says nothing, when it gets no memory for a large number."""
_DEEP_CODE = "has overflowed its stack"
"""Last words of the thread that reads code."""
_TRACE = re.compile(r"\n {1,8}at \S")
_PLACE = re.compile(r"(?:blob:null/[0-9a-f-]{36}|python):(\d+):(\d+)")
_FRAME = re.compile(r"\s*at (?:(?P<name>[^(]*?) \()?" + _PLACE.pattern)
_SYNTAX = re.compile(r"(?:TypeError: )?SyntaxError: ")
_WRAPPER_LINES = {"python": 0}
"""Lines that a guest puts before the code, by language; `boot.js` puts one."""


class GuestReady(Message, frozen=True):
    """A guest waits for its code."""


class GuestOverrun(Message, frozen=True):
    """The code calls more often than it may; the guest keeps calls above `parallel` back itself."""


class GuestLog(Message, frozen=True):
    """Line of the console."""

    line: str


class GuestValue(Message, frozen=True):
    """The code has returned."""

    value: Raw


class GuestLarge(Message, frozen=True):
    """The code has returned a value that is larger than the limit."""


class GuestThrew(Message, frozen=True):
    """The code has thrown."""

    message: str
    stack: str


class GuestUnread(Message, frozen=True):
    """The code cannot be read, as a rule for its syntax."""

    message: str
    stack: str


GuestMessage = (
    HostCall | GuestOverrun | GuestLog | GuestValue | GuestLarge | GuestThrew | GuestUnread
)
_read_message = codec.reader(GuestMessage)
_read_ready = codec.reader(GuestReady)


class FrameBuffer:
    """Bytes of a stream that are cut into the bodies of frames of at most `bytes_max` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that are whole now. Raises TooLarge."""
        self._data += data
        bodies: list[bytes] = []
        at = 0
        while len(self._data) - at >= FRAME.size:
            (size,) = FRAME.unpack_from(self._data, at)
            if size > self.bytes_max:
                raise TooLarge("a frame", size, self.bytes_max)
            end = at + FRAME.size + size
            if len(self._data) < end:
                break
            bodies.append(bytes(self._data[at + FRAME.size : end]))
            at = end
        del self._data[:at]
        return bodies


def frame(body: bytes) -> bytes:
    return FRAME.pack(len(body)) + body


def check_ready(body: bytes) -> None:
    """Raise codec.Malformed unless this is the first message of a guest."""
    _read_ready(body)


class CodeRun:
    """State of one run. `end`: how it ended, without its time; None while it runs."""

    def __init__(self, order: StartRun) -> None:
        self.order = order
        self.limits = order.limits
        self.end: RunEnded | None = None
        self._calls = 0
        self._open: set[int] = set()
        self._logs: list[str] = []
        self._output_bytes = 0
        self._frames = FrameBuffer(order.limits.output_bytes + SLACK_BYTES)

    def begin(self) -> bytes:
        """Return the first frame for the guest. Raises codec.Malformed for `args` that the guest
        could not read."""
        codec.check(self.order.args)
        return frame(codec.dump(self.order))

    def read(self, data: bytes) -> list[HostCall]:
        """Take bytes of the guest, and return the calls that the front is to make."""
        made: list[HostCall] = []
        try:
            for body in self._frames.feed(data):
                if self.end is None:
                    made += self._read(body)
        except TooLarge:
            self._too_large("the code returned, printed or passed")
        except codec.Malformed as error:
            if str(error) == DEEP:
                self.fail("size", f"a value that the code returned or passed is {DEEP}")
            else:
                self.fail("crashed", "the sandbox sent something that is not part of its protocol")
        return made

    def reply(self, message: HostReply) -> bytes:
        """Return the frame for the guest with the answer to a call; empty if none was made."""
        if message.call not in self._open or self.end is not None:
            return b""
        self._open.remove(message.call)
        return frame(codec.dump(message))

    def on_timeout(self) -> None:
        """The time of the run is over."""
        self.fail("timeout", f"the code ran longer than {self.limits.timeout_ms / 1000:g} s")

    def on_exit(self, code: int, stderr: str) -> None:
        """The process of the guest has ended by itself. `code`: as os.waitstatus_to_exitcode."""
        silent = code == -_ABORT and not stderr.strip()
        if silent or NO_MEMORY.search(stderr):
            self._no_memory()
        elif _DEEP_CODE in stderr:
            self.fail("syntax", "the code is nested too deeply")
        else:
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            self.fail("crashed", f"the sandbox ended with {how} before the code returned")

    def fail(
        self, failure: Failure, message: str, position: tuple[int, int] = (0, 0), stack: str = ""
    ) -> None:
        """End the run with a failure, unless it has ended."""
        if self.end is None:
            self.end = RunEnded(
                run=self.order.run, logs=tuple(self._logs), calls=self._calls, failure=failure,
                message=message, line=position[0], column=position[1], stack=stack,
            )  # fmt: skip

    def _read(self, body: bytes) -> tuple[HostCall, ...]:
        """Take one message of the guest. Raises codec.Malformed."""
        match _read_message(body):
            case HostCall() as call:
                return self._call(call)
            case GuestOverrun():
                self._too_many_calls()
            case GuestLog(line=line):
                self._output_bytes += len(line.encode()) + LINE_BYTES
                if self._output_bytes > self.limits.output_bytes:
                    self._too_large("the code printed")
                else:
                    self._logs.append(line)
            case GuestValue(value=value):
                self._on_value(value)
            case GuestLarge():
                self._too_large("the code returned")
            case GuestThrew(message=message, stack=stack):
                self._threw(message, stack)
            case GuestUnread(message=message, stack=stack):
                self._unread(message, stack)
            case _:
                pass
        return ()

    def _call(self, call: HostCall) -> tuple[HostCall, ...]:
        """Raises codec.Malformed."""
        if self._calls >= self.limits.calls:
            self._too_many_calls()
            return ()
        if call.call != self._calls + 1 or len(self._open) >= self.limits.parallel:
            raise codec.Malformed("a call out of order")
        if not bytes(call.arguments).startswith(b"{"):
            raise codec.Malformed("arguments that are not an object")
        if len(call.arguments) > self.limits.output_bytes:
            self._too_large("the code passed to a tool")
            return ()
        self._calls += 1
        self._open.add(call.call)
        return (structs.replace(call, run=self.order.run),)

    def _on_value(self, value: Raw) -> None:
        if self._output_bytes + len(value) > self.limits.output_bytes:
            self._too_large("the code returned and printed")
            return
        self.end = RunEnded(
            run=self.order.run, value=value, logs=tuple(self._logs), calls=self._calls
        )

    def _threw(self, message: str, stack: str) -> None:
        if _NO_BUFFER.match(message):
            self._no_memory()
            return
        position, frames = self._frames_of(stack)
        words = _TRACE.split(message[:MESSAGE_CHARS_MAX])[0].strip()
        self.fail("exception", words, position, frames)

    def _unread(self, message: str, stack: str) -> None:
        if not (syntax := _SYNTAX.match(message)):
            self._threw(message, stack)
            return
        positions = _PLACE.findall(message)
        position = self._place(*positions[-1]) if positions else (0, 0)
        words = message[syntax.end() :].partition("\n")[0]
        words = _PLACE.sub("", words).strip().removesuffix(" at")
        self.fail("syntax", words[:MESSAGE_CHARS_MAX], position)

    def _frames_of(self, stack: str) -> tuple[tuple[int, int], str]:
        """Return the first place in the code, and the frames of the code alone."""
        first = (0, 0)
        frames: list[str] = []
        for line in stack[: 4 * MESSAGE_CHARS_MAX].splitlines():
            if match := _FRAME.match(line):
                at = self._place(match[2], match[3])
                first = at if first == (0, 0) else first
                name = (match["name"] or "").replace("Module.default", "default")
                frames.append(f"at {name or 'code'} (line {at[0]}, column {at[1]})")
        return first, "\n".join(frames)

    def _place(self, line: str, column: str) -> tuple[int, int]:
        """Return a place in the code, from 1. Errors behind its end are at its end."""
        lines = self.order.code.split("\n")
        at = int(line[:9]) - _WRAPPER_LINES.get(self.order.language, 1)
        if at > len(lines):
            return len(lines), len(lines[-1]) + 1
        return max(1, at), int(column[:9])

    def _too_many_calls(self) -> None:
        self.fail("calls", f"the code made more than {self.limits.calls:,} calls")

    def _too_large(self, subject: str) -> None:
        self.fail("size", f"{subject} more than {self.limits.output_bytes:,} bytes")

    def _no_memory(self) -> None:
        limit = self.limits.memory_bytes
        self.fail("memory", f"the code needed more than {limit / 2**20:,.0f} MiB of memory")
