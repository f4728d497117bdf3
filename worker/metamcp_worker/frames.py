"""The language of the pipe between a front and a worker: typed headers around raw JSON bodies.

Owns: the kinds of frames, their bytes, the version byte, the limits, and the cutting of a byte
stream into payloads. Never: reading or writing a pipe, opening a JSON body, unpickling anything.

A payload on the pipe is preceded by its length as `multiprocessing.Connection.send_bytes` writes
it (four bytes, network order, signed), so a test can drive a worker with a plain `Connection`.
Inside the payload: one fixed header, then five variable parts whose lengths the header names.
"""

from enum import IntEnum
from struct import Struct as Layout

from msgspec import Struct

from metamcp_worker.errors import FrameBroken, TooLarge

VERSION = 1
BODY_BYTES_MAX = 16 * 1024 * 1024
"""One JSON-RPC message of a server or client: the same limit everywhere."""
FRAME_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024
METHOD_BYTES_MAX = 256

_PREFIX = Layout("!i")
# version, kind, call id, deadline in ms, lengths of: method, meta, caller; the rest is the body.
_HEADER = Layout("!BBQIHII")


class Kind(IntEnum):
    CALL = 1
    RESULT = 2
    ERROR = 3
    CANCEL = 4
    PROGRESS = 5
    NOTICE = 6
    DOWN = 7


class Call(Struct, frozen=True, gc=False):
    """front -> worker: send this request to the server.

    `id`: the front's number for the call, unique on its pipe. `params`: raw JSON object without
    `_meta`, names already the server's own. `meta`: raw JSON object with what is left of `_meta`
    for others (no progress token, no key of the protocol), or empty. `caller`: raw JSON object
    `{"clientInfo":…, "clientCapabilities":…, "logLevel":…}` of the client that asked, or empty.
    `deadline_ms`: how long the answer may take, 0 for the server's own timeout.
    `wants_progress`: the client sent a progress token.
    """

    id: int
    method: str
    params: bytes
    meta: bytes = b""
    caller: bytes = b""
    deadline_ms: int = 0
    wants_progress: bool = False


class Result(Struct, frozen=True, gc=False):
    """worker -> front: the raw `result` of a call."""

    id: int
    body: bytes


class Error(Struct, frozen=True, gc=False):
    """worker -> front: the raw `error` object of a call."""

    id: int
    body: bytes


class Cancel(Struct, frozen=True, gc=False):
    """front -> worker: nobody waits for this call any more. `reason` is text, perhaps empty."""

    id: int
    reason: bytes = b""


class Progress(Struct, frozen=True, gc=False):
    """worker -> front: raw params of a progress notification, without its token."""

    id: int
    body: bytes


class Notice(Struct, frozen=True, gc=False):
    """worker -> front: a notification of the server that belongs to no call, with raw params."""

    method: str
    body: bytes


class Down(Struct, frozen=True, gc=False):
    """worker -> front: the server is gone; the body is `{"reason": …, "message": …}`."""

    body: bytes


Frame = Call | Result | Error | Cancel | Progress | Notice | Down


def pack(frame: Frame) -> bytes:
    """The frame with its length in front, ready for the pipe. Raises TooLarge."""
    match frame:
        case Result(id, body):
            payload = _HEADER.pack(VERSION, Kind.RESULT, id, 0, 0, 0, 0) + body
        case Call():
            payload = _pack_call(frame)
        case Error(id, body):
            payload = _HEADER.pack(VERSION, Kind.ERROR, id, 0, 0, 0, 0) + body
        case Progress(id, body):
            payload = _HEADER.pack(VERSION, Kind.PROGRESS, id, 0, 0, 0, 0) + body
        case Cancel(id, reason):
            payload = _HEADER.pack(VERSION, Kind.CANCEL, id, 0, 0, 0, 0) + reason
        case Notice(method, body):
            name = _method_bytes(method)
            payload = _HEADER.pack(VERSION, Kind.NOTICE, 0, 0, len(name), 0, 0) + name + body
        case Down(body):
            payload = _HEADER.pack(VERSION, Kind.DOWN, 0, 0, 0, 0, 0) + body
    if len(payload) > FRAME_BYTES_MAX:
        raise TooLarge("a frame", len(payload), FRAME_BYTES_MAX)
    return _PREFIX.pack(len(payload)) + payload


def unpack(payload: bytes) -> Frame:
    """The frame in one payload. Raises FrameBroken."""
    if len(payload) < _HEADER.size or payload[0] != VERSION:
        raise FrameBroken(f"not a frame of version {VERSION}: {payload[:16]!r}")
    _, kind, call, deadline_ms, method_len, meta_len, caller_len = _HEADER.unpack_from(payload)
    at = _HEADER.size
    if len(payload) < at + method_len + meta_len + caller_len:
        raise FrameBroken("the lengths in a frame's header exceed the frame")
    if kind == Kind.RESULT:
        return Result(call, payload[at:])
    if kind == Kind.CALL:
        return _unpack_call(payload, call, deadline_ms, (method_len, meta_len, caller_len))
    if kind == Kind.ERROR:
        return Error(call, payload[at:])
    if kind == Kind.PROGRESS:
        return Progress(call, payload[at:])
    if kind == Kind.CANCEL:
        return Cancel(call, payload[at:])
    if kind == Kind.NOTICE:
        return Notice(_text(payload[at : at + method_len]), payload[at + method_len :])
    if kind == Kind.DOWN:
        return Down(payload[at:])
    raise FrameBroken(f"unknown kind of frame: {kind}")


class Cutter:
    """Cuts a byte stream into payloads, whole or in any pieces. Holds at most one frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes. Raises FrameBroken or TooLarge; then stop reading."""
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        at, end = 0, len(buffer)
        view = memoryview(buffer)
        try:
            while end - at >= _PREFIX.size:
                (size,) = _PREFIX.unpack_from(buffer, at)
                if size < 0:
                    raise FrameBroken(f"a frame announces {size} bytes")
                if size > FRAME_BYTES_MAX:
                    raise TooLarge("a frame", size, FRAME_BYTES_MAX)
                stop = at + _PREFIX.size + size
                if stop > end:
                    break
                payloads.append(bytes(view[at + _PREFIX.size : stop]))
                at = stop
        finally:
            view.release()
        if at:
            del buffer[:at]
        return payloads


def _pack_call(frame: Call) -> bytes:
    name = _method_bytes(frame.method)
    # The lowest bit of the deadline field carries the wish for progress.
    deadline = min(frame.deadline_ms, 0x7FFFFFFF) << 1 | frame.wants_progress
    header = _HEADER.pack(
        VERSION, Kind.CALL, frame.id, deadline, len(name), len(frame.meta), len(frame.caller)
    )
    return b"".join((header, name, frame.meta, frame.caller, frame.params))


def _unpack_call(payload: bytes, call: int, deadline: int, lengths: tuple[int, int, int]) -> Call:
    method_end = _HEADER.size + lengths[0]
    meta_end = method_end + lengths[1]
    caller_end = meta_end + lengths[2]
    return Call(
        id=call,
        method=_text(payload[_HEADER.size : method_end]),
        params=payload[caller_end:],
        meta=payload[method_end:meta_end],
        caller=payload[meta_end:caller_end],
        deadline_ms=deadline >> 1,
        wants_progress=bool(deadline & 1),
    )


def _method_bytes(method: str) -> bytes:
    name = method.encode()
    if len(name) > METHOD_BYTES_MAX:
        raise TooLarge("a method name", len(name), METHOD_BYTES_MAX)
    return name


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FrameBroken("a method name in a frame is not UTF-8") from None
