"""Encoding of frames as bytes, and cutting a stream of bytes into frames.

Owns: the layout of a frame on the pipe. Never: what a frame means, reading or writing a pipe,
opening a JSON body, unpickling anything.

A payload is preceded by its length as `multiprocessing.Connection.send_bytes` writes it (four
bytes, network order, signed), so a test can drive a worker with a plain `Connection`. Inside the
payload: one fixed header, then variable parts whose lengths it names, then the body.
"""

from collections.abc import Callable, Mapping
from struct import Struct as Layout
from typing import Final

from metamcp_worker.ipc.errors import FrameBroken, TooLarge
from metamcp_worker.ipc.frames import (
    FRAME_BYTES_MAX,
    METHOD_BYTES_MAX,
    NOBODY,
    VERSION,
    CallFrame,
    Cancel,
    ClientNotice,
    Error,
    Frame,
    KeepCall,
    KeptFrame,
    Kind,
    Notice,
    Progress,
    QuestionFrame,
    RecoverCall,
    ReleaseCalls,
    ReplyFrame,
    Result,
    ServerGone,
    WithdrawQuestion,
)

_PREFIX: Final = Layout("!i")
# Length of what follows, version, kind, id, deadline in ms, peer or question, lengths of: method,
# meta, caller; the rest is the body.
_HEAD: Final = Layout("!iBBQIIHII")
_Head = tuple[int, int, int, int, int, int, int, int, int]
_unpack_head: Final = _HEAD.unpack_from
_pack_head: Final = _HEAD.pack
_HEAD_BYTES: Final = _HEAD.size
_PREFIX_BYTES: Final = _PREFIX.size
_HEADER_BYTES: Final = _HEAD_BYTES - _PREFIX_BYTES
_CALL: Final = int(Kind.CALL)
_RESULT: Final = int(Kind.RESULT)
# The lowest bits of a call's deadline say whether progress is wanted, and whether it is traced.
_FLAG_BITS: Final = 2
_PROGRESS: Final = 1
_TRACED: Final = 2
# Kinds of a call with a payer, which stands behind the caller, and of one whose large result is
# kept: then the place for it stands behind the payer.
_PAID_CALL: Final = _CALL | 0x80
_KEPT_CALL: Final = _CALL | 0xC0
_PAYER: Final = Layout("!Q")
_PLACE: Final = Layout("!QI")
_DEADLINE_MS_MAX: Final = 2 ** (32 - _FLAG_BITS) - 1


def pack(frame: Frame) -> bytes:
    """Encode a frame with its length in front, ready for the pipe. Raises TooLarge."""
    return b"".join(parts(frame))


def parts(frame: Frame) -> tuple[bytes, bytes]:
    """Encode a frame as two pieces; the second is the body, so that a large body is not copied."""
    # Nearly all frames are results in one direction and calls in the other.
    if type(frame) is Result:
        result = frame.body
        size = _HEADER_BYTES + len(result)
        if size > FRAME_BYTES_MAX:
            raise TooLarge("a frame", size, FRAME_BYTES_MAX)
        return _pack_head(size, VERSION, _RESULT, frame.id, 0, 0, 0, 0, 0), result
    if isinstance(frame, CallFrame):
        return _call_head(frame), frame.params
    return _other_parts(frame)


def _other_parts(frame: Frame) -> tuple[bytes, bytes]:
    match frame:
        case CallFrame() | Result():
            raise AssertionError("calls and results do not come here")
        case Error(id, body):
            return _head(Kind.ERROR, id, len(body)), body
        case Progress(id, body):
            return _head(Kind.PROGRESS, id, len(body)), body
        case Cancel(id, reason):
            return _head(Kind.CANCEL, id, len(reason)), reason
        case Notice(method, body, id):
            return _pack_method_head(Kind.NOTICE, id, 0, method, body), body
        case ServerGone(body):
            return _head(Kind.DOWN, 0, len(body)), body
        case QuestionFrame(id, question, method, params):
            return _pack_method_head(Kind.ASK, id, question, method, params), params
        case ReplyFrame(question, body, failed):
            return _head(Kind.REPLY, 0, len(body), failed, question), body
        case WithdrawQuestion(question):
            return _head(Kind.WITHDRAW, 0, 0, 0, question), b""
        case ClientNotice(method, body):
            return _pack_method_head(Kind.TELL, 0, 0, method, body), body
        case KeptFrame(id, note):
            return _head(Kind.KEPT, id, len(note)), note
        case KeepCall(id, owner, name, note):
            return _pack_owner_head(Kind.KEEP, id, 0, owner, name, note), note
        case RecoverCall(id, owner, name, peer):
            return _pack_owner_head(Kind.CLAIM, id, peer, owner, name), b""
        case ReleaseCalls(owner):
            return _pack_owner_head(Kind.RELEASE, 0, 0, owner), b""


def unpack(payload: bytes) -> Frame:
    """Decode the frame in one payload, without its length. Raises FrameBroken."""
    cutter = FrameCutter()
    frames = cutter.feed(_PREFIX.pack(len(payload)) + payload)
    if cutter.broken is not None:
        raise cutter.broken
    (frame,) = frames
    return frame


class FrameCutter:
    """Cuts a byte stream into frames, in whatever pieces it comes. Holds at most one frame.
    `broken`: the error after the last good frame; then nothing more can be read.

    The pieces of a large body are joined once, when all of them are there.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0
        """Bytes that have to come before the pieces can be decoded further."""
        self._begun: tuple[_Head, bytes] | None = None
        """Header and variable parts in front of the body, if the pieces are of a body."""
        self.broken: FrameBroken | TooLarge | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, up to a broken frame."""
        if len(data) < self._missing:
            self._pieces.append(data)
            self._missing -= len(data)
            return []
        frames: list[Frame] = []
        try:
            self._cut(data, frames)
        except (FrameBroken, TooLarge) as error:
            self.broken = error
        except UnicodeDecodeError:
            self.broken = FrameBroken("a method name in a frame is not UTF-8")
        return frames

    def _cut(self, data: bytes, frames: list[Frame]) -> None:
        at = 0
        if self._missing:
            at, data = self._go_on(data, frames)
        end = len(data)
        while end - at >= _HEAD_BYTES:
            head: _Head = _unpack_head(data, at)
            size, version, kind, id, _, _, first, second, third = head  # noqa: A001 - the wire's
            front_at, stop = at + _HEAD_BYTES, at + _PREFIX_BYTES + size
            body_at = front_at + first + second + third
            if version != VERSION or size > FRAME_BYTES_MAX or body_at > stop:
                raise _refusal(size, version)
            if stop > end:
                break
            body = data[body_at:stop]
            if kind == _RESULT:
                frames.append(Result(id, body))
            elif kind == _CALL:
                frames.append(_call(head, data, front_at, body))
            else:
                frames.append(_frame(head, data[front_at:body_at], body))
            at = stop
        if at < end:
            self._hold(data[at:])

    def _go_on(self, data: bytes, frames: list[Frame]) -> tuple[int, bytes]:
        """Join `data` with the held pieces. Returns the bytes that hold the next frame, and the
        offset where it begins."""
        pieces, missing, begun = self._pieces, self._missing, self._begun
        self._pieces, self._missing, self._begun = [], 0, None
        if begun is None:
            return 0, b"".join((*pieces, data))
        frames.append(_frame(*begun, b"".join((*pieces, data[:missing]))))
        return missing, data

    def _hold(self, beginning: bytes) -> None:
        """Hold the beginning of a frame until the rest comes."""
        here = len(beginning)
        if here >= _PREFIX_BYTES:
            (size,) = _PREFIX.unpack_from(beginning)
            if not _HEADER_BYTES <= size <= FRAME_BYTES_MAX:
                raise _refusal(size, VERSION)
        if here < _HEAD_BYTES:
            self._pieces, self._missing = [beginning], _HEAD_BYTES - here
            return
        head: _Head = _unpack_head(beginning)
        body_at = _HEAD_BYTES + head[6] + head[7] + head[8]
        if here < body_at:
            self._pieces, self._missing = [beginning], body_at - here
        else:
            self._begun = head, beginning[_HEAD_BYTES:body_at]
            self._pieces, self._missing = [beginning[body_at:]], _PREFIX_BYTES + head[0] - here


#: Kinds that have no more than an id and a body.
_PLAIN: Mapping[int, Callable[[int, bytes], Frame]] = {
    Kind.ERROR: Error,
    Kind.PROGRESS: Progress,
    Kind.CANCEL: Cancel,
    Kind.DOWN: lambda _, body: ServerGone(body),
    Kind.KEPT: KeptFrame,
}
#: Kinds that have a method as well.
_NAMED: Mapping[int, Callable[[int, int, str, bytes], Frame]] = {
    Kind.NOTICE: lambda call, _, method, body: Notice(method, body, call),
    Kind.ASK: QuestionFrame,
    Kind.TELL: lambda _, __, method, body: ClientNotice(method, body),
}
#: Kinds about calls that outlive their front: owner, name and note.
_OWNED: Mapping[int, Callable[[int, int, bytes, bytes, bytes], Frame]] = {
    Kind.KEEP: lambda call, _, owner, name, note: KeepCall(call, owner, name, note),
    Kind.CLAIM: lambda call, peer, owner, name, _: RecoverCall(call, owner, name, peer),
    Kind.RELEASE: lambda _, __, owner, ___, ____: ReleaseCalls(owner),
}


def _frame(head: _Head, front: bytes, body: bytes) -> Frame:
    """Build a frame from its parts. `front`: the parts between header and body. Raises
    FrameBroken."""
    _, _, kind, id, deadline, number, first, second, _ = head  # noqa: A001 - the wire's own name
    if kind == _RESULT:
        return Result(id, body)
    if kind == _CALL:
        return _call(head, front, 0, body)
    if kind in (_PAID_CALL, _KEPT_CALL):
        taken = _place if kind == _KEPT_CALL else _payer
        payer, results, front = taken(front, first + second)
        return _call(head, front, 0, body, payer, results)
    if kind in _PLAIN:
        return _PLAIN[kind](id, body)
    if kind in _NAMED:
        return _NAMED[kind](id, number, front.decode(), body)
    if kind == Kind.REPLY:
        return ReplyFrame(number, body, bool(deadline))
    if kind == Kind.WITHDRAW:
        return WithdrawQuestion(number)
    if kind in _OWNED:
        return _OWNED[kind](id, number, front[:second], front[second:], body)
    raise FrameBroken(f"unknown kind of frame: {kind}")


def _call(
    head: _Head, data: bytes, at: int, body: bytes, payer: int = NOBODY, results: bytes = b""
) -> CallFrame:
    """Build a call whose variable parts begin at `data[at]`."""
    _, _, _, id, deadline, peer, first, second, third = head  # noqa: A001 - the wire's own name
    meta_at = at + first
    caller_at = meta_at + second
    return CallFrame(
        id, data[at:meta_at].decode(), body,
        data[meta_at:caller_at], data[caller_at : caller_at + third],
        deadline >> _FLAG_BITS, (deadline & _PROGRESS) != 0, peer, (deadline & _TRACED) != 0,
        payer, results,
    )  # fmt: skip


def _payer(front: bytes, middle: int) -> tuple[int, bytes, bytes]:
    """Return as `_place` does the payer of a call whose result has no place."""
    end = len(front) - _PAYER.size
    if end < middle:
        raise FrameBroken("a call has no room for its payer")
    (payer,) = _PAYER.unpack_from(front, end)
    return payer, b"", front[:end]


def _place(front: bytes, middle: int) -> tuple[int, bytes, bytes]:
    """Return payer and place at the end of a call's variable parts, and the parts before them.
    Raises FrameBroken."""
    end = len(front) - _PLACE.size
    payer, size = _PLACE.unpack_from(front, end) if end >= middle else (NOBODY, 0)
    if end - size < middle or not size:
        raise FrameBroken("a call has no room for the place of its result")
    return payer, front[end - size : end], front[: end - size]


def _refusal(size: int, version: int) -> FrameBroken | TooLarge:
    if size > FRAME_BYTES_MAX:
        return TooLarge("a frame", size, FRAME_BYTES_MAX)
    if size < 0:
        return FrameBroken(f"a frame announces {size} bytes")
    if size < _HEADER_BYTES or version != VERSION:
        return FrameBroken(f"not a frame of version {VERSION}")
    return FrameBroken("the lengths in a frame's header exceed the frame")


def _head(
    kind: int,
    id: int,  # noqa: A002 - the wire's own name
    body_bytes: int,
    deadline: int = 0,
    number: int = 0,
    first: int = 0,
    second: int = 0,
    third: int = 0,
) -> bytes:
    size = _HEADER_BYTES + first + second + third + body_bytes
    if size > FRAME_BYTES_MAX:
        raise TooLarge("a frame", size, FRAME_BYTES_MAX)
    return _pack_head(size, VERSION, kind, id, deadline, number, first, second, third)


def _pack_method_head(kind: Kind, id: int, number: int, method: str, body: bytes) -> bytes:  # noqa: A002 - as above
    name = _method_bytes(method)
    return _head(kind, id, len(body), 0, number, len(name)) + name


def _pack_owner_head(
    kind: Kind,
    id: int,  # noqa: A002 - as above
    number: int,
    owner: bytes,
    name: bytes = b"",
    note: bytes = b"",
) -> bytes:
    head = _head(kind, id, len(note), 0, number, 0, len(owner), len(name))
    return b"".join((head, owner, name))


def _call_head(frame: CallFrame) -> bytes:
    # Without `_method_bytes` and `_head`, because every call comes here.
    name, meta, caller, params = frame.method.encode(), frame.meta, frame.caller, frame.params
    if len(name) > METHOD_BYTES_MAX:
        raise TooLarge("a method name", len(name), METHOD_BYTES_MAX)
    deadline = frame.deadline_ms
    if deadline > _DEADLINE_MS_MAX:
        deadline = _DEADLINE_MS_MAX
    deadline = deadline << _FLAG_BITS | frame.wants_progress
    if frame.traced:
        deadline |= _TRACED
    kind = _CALL
    if frame.results:
        kind = _KEPT_CALL
        caller = caller + frame.results + _PLACE.pack(frame.payer, len(frame.results))
    elif frame.payer:
        kind, caller = _PAID_CALL, caller + _PAYER.pack(frame.payer)
    size = _HEADER_BYTES + len(name) + len(meta) + len(caller) + len(params)
    if size > FRAME_BYTES_MAX:
        raise TooLarge("a frame", size, FRAME_BYTES_MAX)
    head = _pack_head(
        size, VERSION, kind, frame.id, deadline, frame.peer, len(name), len(meta), len(caller)
    )
    return b"%b%b%b%b" % (head, name, meta, caller)


def _method_bytes(method: str) -> bytes:
    name = method.encode()
    if len(name) > METHOD_BYTES_MAX:
        raise TooLarge("a method name", len(name), METHOD_BYTES_MAX)
    return name
