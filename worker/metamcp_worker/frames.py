"""The language of the pipe between a front and a worker: typed headers around raw JSON bodies.

Owns: the kinds of frames, their bytes, the version byte, the limits, and the cutting of a byte
stream into payloads. Never: reading or writing a pipe, opening a JSON body, unpickling anything.

A payload on the pipe is preceded by its length as `multiprocessing.Connection.send_bytes` writes
it (four bytes, network order, signed), so a test can drive a worker with a plain `Connection`.
Inside the payload: one fixed header, then five variable parts whose lengths the header names.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from struct import Struct as Layout

from msgspec import Struct

from metamcp_worker.errors import FrameBroken, TooLarge

VERSION = 2
BODY_BYTES_MAX = 16 * 1024 * 1024
"""One JSON-RPC message of a server or client: the same limit everywhere."""
FRAME_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024
METHOD_BYTES_MAX = 256

_PREFIX = Layout("!i")
# version, kind, id, deadline in ms, peer or question, lengths of: method, meta, caller; the rest is
# the body.
_HEADER = Layout("!BBQIIHII")
NUMBER_MAX = 2**32 - 1
"""Of a peer or a question: what its place in the header holds."""


class Kind(IntEnum):
    CALL = 1
    RESULT = 2
    ERROR = 3
    CANCEL = 4
    PROGRESS = 5
    NOTICE = 6
    DOWN = 7
    ASK = 8
    REPLY = 9
    WITHDRAW = 10
    TELL = 11
    KEEP = 12
    CLAIM = 13
    KEPT = 14
    RELEASE = 15


class Call(Struct, frozen=True, gc=False):
    """front -> worker: send this request to the server.

    `id`: the front's number for the call, unique on its pipe. `params`: raw JSON object without
    `_meta`, names already the server's own. `meta`: raw JSON object with what is left of `_meta`
    for others (no progress token, no key of the protocol), or empty. `caller`: raw JSON object
    `{"clientInfo":…, "clientCapabilities":…, "logLevel":…}` of the client that asked, or empty.
    `deadline_ms`: how long the answer may take, 0 for the server's own timeout.
    `wants_progress`: the client sent a progress token. `peer`: who calls, as a number of the front:
    all calls of one session have the same, 0 is a call that stands alone.
    """

    id: int
    method: str
    params: bytes
    meta: bytes = b""
    caller: bytes = b""
    deadline_ms: int = 0
    wants_progress: bool = False
    peer: int = 0


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
    """worker -> front: a notification of the server, with raw params. `id`: the call that it
    belongs to, 0 for none."""

    method: str
    body: bytes
    id: int = 0


class Down(Struct, frozen=True, gc=False):
    """worker -> front: the server is gone; the body is `{"reason": …, "message": …}`."""

    body: bytes


class Ask(Struct, frozen=True, gc=False):
    """worker -> front: the server asks the client that made call `id` something. `question`: the
    worker's number for it, never used again; `params`: raw, as the server sent them."""

    id: int
    question: int
    method: str
    params: bytes


class Reply(Struct, frozen=True, gc=False):
    """front -> worker: the raw `result` that answers a question, or the raw `error`."""

    question: int
    body: bytes
    failed: bool = False


class Withdraw(Struct, frozen=True, gc=False):
    """worker -> front: the server does not wait for the answer to this question any more."""

    question: int


class Tell(Struct, frozen=True, gc=False):
    """front -> worker: a notification of a client for the server, with raw params or nothing."""

    method: str
    body: bytes = b""


class Keep(Struct, frozen=True, gc=False):
    """front -> worker: call `id` outlives its front from now on: its client can ask another front
    for the answer. `owner` and `name`: what is to be said then; `note`: what that front has to know
    of the call, never empty. The last `Keep` of a call counts."""

    id: int
    owner: bytes
    name: bytes
    note: bytes


class Claim(Struct, frozen=True, gc=False):
    """front -> worker: go on under this `id` with the call that was kept for this owner under this
    name. `peer`: as in `Call`. It is answered with `Kept`, and what came for the call meanwhile
    follows."""

    id: int
    owner: bytes
    name: bytes
    peer: int = 0


class Kept(Struct, frozen=True, gc=False):
    """worker -> front: the call that was claimed is here, with this note; an empty one: it is
    not."""

    id: int
    note: bytes = b""


class Release(Struct, frozen=True, gc=False):
    """front -> worker: nobody comes back for what was kept for this owner by fronts that are gone.
    An empty one: nor for any call of the front that says so, which has answered them all."""

    owner: bytes = b""


Frame = (
    Call | Result | Error | Cancel | Progress | Notice | Down | Ask | Reply | Withdraw | Tell
    | Keep | Claim | Kept | Release
)  # fmt: skip


def pack(frame: Frame) -> bytes:
    """The frame with its length in front, ready for the pipe. Raises TooLarge."""
    match frame:
        case Result(id, body):
            payload = _HEADER.pack(VERSION, Kind.RESULT, id, 0, 0, 0, 0, 0) + body
        case Call():
            payload = _pack_call(frame)
        case Error(id, body):
            payload = _plain(Kind.ERROR, id, body)
        case Progress(id, body):
            payload = _plain(Kind.PROGRESS, id, body)
        case Cancel(id, reason):
            payload = _plain(Kind.CANCEL, id, reason)
        case Notice(method, body, id):
            payload = _named(Kind.NOTICE, id, 0, method, body)
        case Down(body):
            payload = _plain(Kind.DOWN, 0, body)
        case Ask(id, question, method, params):
            payload = _named(Kind.ASK, id, question, method, params)
        case Reply(question, body, failed):
            payload = _HEADER.pack(VERSION, Kind.REPLY, 0, failed, question, 0, 0, 0) + body
        case Withdraw(question):
            payload = _HEADER.pack(VERSION, Kind.WITHDRAW, 0, 0, question, 0, 0, 0)
        case Tell(method, body):
            payload = _named(Kind.TELL, 0, 0, method, body)
        case Kept(id, note):
            payload = _plain(Kind.KEPT, id, note)
        case Keep(id, owner, name, note):
            payload = _owned(Kind.KEEP, id, 0, owner, name, note)
        case Claim(id, owner, name, peer):
            payload = _owned(Kind.CLAIM, id, peer, owner, name)
        case Release(owner):
            payload = _owned(Kind.RELEASE, 0, 0, owner)
    if len(payload) > FRAME_BYTES_MAX:
        raise TooLarge("a frame", len(payload), FRAME_BYTES_MAX)
    return _PREFIX.pack(len(payload)) + payload


def unpack(payload: bytes) -> Frame:
    """The frame in one payload. Raises FrameBroken."""
    if len(payload) < _HEADER.size or payload[0] != VERSION:
        raise FrameBroken(f"not a frame of version {VERSION}: {payload[:16]!r}")
    _, kind, id, deadline_ms, number, *lengths = _HEADER.unpack_from(payload)  # noqa: A001 - wire's
    at = _HEADER.size
    if kind == Kind.RESULT:
        return Result(id, payload[at:])
    if len(payload) < at + sum(lengths):
        raise FrameBroken("the lengths in a frame's header exceed the frame")
    if kind == Kind.CALL:
        return _unpack_call(payload, id, deadline_ms, number, lengths)
    if kind in _PLAIN:
        return _PLAIN[kind](id, payload[at:])
    if kind in _NAMED:
        method = _text(payload[at : at + lengths[0]])
        return _NAMED[kind](id, number, method, payload[at + lengths[0] :])
    if kind == Kind.REPLY:
        return Reply(number, payload[at:], bool(deadline_ms))
    if kind == Kind.WITHDRAW:
        return Withdraw(number)
    if kind in _OWNED:
        middle = at + lengths[1]
        owner, name = payload[at:middle], payload[middle : middle + lengths[2]]
        return _OWNED[kind](id, number, owner, name, payload[middle + lengths[2] :])
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


#: Kinds that have no more than an id and a body.
_PLAIN: Mapping[int, Callable[[int, bytes], Frame]] = {
    Kind.ERROR: Error,
    Kind.PROGRESS: Progress,
    Kind.CANCEL: Cancel,
    Kind.DOWN: lambda _, body: Down(body),
    Kind.KEPT: Kept,
}
#: Kinds that have a method as well.
_NAMED: Mapping[int, Callable[[int, int, str, bytes], Frame]] = {
    Kind.NOTICE: lambda call, _, method, body: Notice(method, body, call),
    Kind.ASK: Ask,
    Kind.TELL: lambda _, __, method, body: Tell(method, body),
}
#: Kinds about calls that outlive their front: owner, name and note.
_OWNED: Mapping[int, Callable[[int, int, bytes, bytes, bytes], Frame]] = {
    Kind.KEEP: lambda call, _, owner, name, note: Keep(call, owner, name, note),
    Kind.CLAIM: lambda call, peer, owner, name, _: Claim(call, owner, name, peer),
    Kind.RELEASE: lambda _, __, owner, ___, ____: Release(owner),
}


def _plain(kind: Kind, id: int, body: bytes) -> bytes:  # noqa: A002 - the wire's own name
    return _HEADER.pack(VERSION, kind, id, 0, 0, 0, 0, 0) + body


def _named(kind: Kind, id: int, number: int, method: str, body: bytes) -> bytes:  # noqa: A002 - as above
    name = _method_bytes(method)
    return _HEADER.pack(VERSION, kind, id, 0, number, len(name), 0, 0) + name + body


def _owned(
    kind: Kind,
    id: int,  # noqa: A002 - as above
    number: int,
    owner: bytes,
    name: bytes = b"",
    note: bytes = b"",
) -> bytes:
    header = _HEADER.pack(VERSION, kind, id, 0, number, 0, len(owner), len(name))
    return b"".join((header, owner, name, note))


def _pack_call(frame: Call) -> bytes:
    name = _method_bytes(frame.method)
    # The lowest bit of the deadline field carries the wish for progress.
    deadline = min(frame.deadline_ms, 0x7FFFFFFF) << 1 | frame.wants_progress
    header = _HEADER.pack(
        VERSION, Kind.CALL, frame.id, deadline, frame.peer,
        len(name), len(frame.meta), len(frame.caller),
    )  # fmt: skip
    return b"".join((header, name, frame.meta, frame.caller, frame.params))


def _unpack_call(payload: bytes, call: int, deadline: int, peer: int, lengths: list[int]) -> Call:
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
        peer=peer,
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
