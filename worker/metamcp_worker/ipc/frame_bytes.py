"""Encoding of frames as bytes, and cutting a stream of bytes into frames.

Owns: the layout of a frame on the pipe. Never: what a frame means, reading or writing a pipe,
opening a JSON body, unpickling anything.

A payload is preceded by its length as `multiprocessing.Connection.send_bytes` writes it (four
bytes, network order, signed), so a test can drive a worker with a plain `Connection`. Inside the
payload: one fixed header, then variable parts whose lengths it names, then the body.
"""

from collections.abc import Callable, Mapping
from struct import Struct as Layout

from metamcp_worker.ipc.errors import FrameBroken, TooLarge
from metamcp_worker.ipc.frames import (
    FRAME_BYTES_MAX,
    METHOD_BYTES_MAX,
    NOBODY,
    VERSION,
    Ask,
    CallFrame,
    Cancel,
    Claim,
    Down,
    Error,
    Frame,
    Keep,
    KeptFrame,
    Kind,
    Notice,
    Progress,
    Release,
    ReplyFrame,
    Result,
    Tell,
    Withdraw,
)

_PREFIX = Layout("!i")
# Length of what follows, version, kind, id, deadline in ms, peer or question, lengths of: method,
# meta, caller; the rest is the body.
_HEAD = Layout("!iBBQIIHII")
_Head = tuple[int, int, int, int, int, int, int, int, int]
_HEADER_BYTES = _HEAD.size - _PREFIX.size
_RESULT, _CALL = int(Kind.RESULT), int(Kind.CALL)
# The lowest bits of a call's deadline say whether progress is wanted, and whether it is traced.
_FLAG_BITS, _PROGRESS, _TRACED = 2, 1, 2
# Kinds of a call with a payer, which stands behind the caller, and of one whose large result is
# kept: then the place for it stands behind the payer.
_PAID_CALL, _KEPT_CALL = _CALL | 0x80, _CALL | 0xC0
_CALLS = frozenset({_CALL, _PAID_CALL, _KEPT_CALL})
_PAYER, _PLACE = Layout("!Q"), Layout("!QI")
_DEADLINE_MS_MAX = 2 ** (32 - _FLAG_BITS) - 1


def pack(frame: Frame) -> bytes:
    """Encode a frame with its length in front, ready for the pipe. Raises TooLarge."""
    return b"".join(parts(frame))


def parts(frame: Frame) -> tuple[bytes, bytes]:
    """Encode a frame as two pieces; the second is the body, so that a large body is not copied."""
    match frame:
        case CallFrame():
            return _call_head(frame), frame.params
        case Result(id, body):
            return _head(_RESULT, id, len(body)), body
        case Error(id, body):
            return _head(Kind.ERROR, id, len(body)), body
        case Progress(id, body):
            return _head(Kind.PROGRESS, id, len(body)), body
        case Cancel(id, reason):
            return _head(Kind.CANCEL, id, len(reason)), reason
        case Notice(method, body, id):
            return _named(Kind.NOTICE, id, 0, method, body), body
        case Down(body):
            return _head(Kind.DOWN, 0, len(body)), body
        case Ask(id, question, method, params):
            return _named(Kind.ASK, id, question, method, params), params
        case ReplyFrame(question, body, failed):
            return _head(Kind.REPLY, 0, len(body), failed, question), body
        case Withdraw(question):
            return _head(Kind.WITHDRAW, 0, 0, 0, question), b""
        case Tell(method, body):
            return _named(Kind.TELL, 0, 0, method, body), body
        case KeptFrame(id, note):
            return _head(Kind.KEPT, id, len(note)), note
        case Keep(id, owner, name, note):
            return _owned(Kind.KEEP, id, 0, owner, name, note), note
        case Claim(id, owner, name, peer):
            return _owned(Kind.CLAIM, id, peer, owner, name), b""
        case Release(owner):
            return _owned(Kind.RELEASE, 0, 0, owner), b""


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
        return frames

    def _cut(self, data: bytes, frames: list[Frame]) -> None:
        at = 0
        if self._missing:
            at, data = self._go_on(data, frames)
        end = len(data)
        while end - at >= _HEAD.size:
            head: _Head = _HEAD.unpack_from(data, at)
            size, version, kind, id, _, _, first, second, third = head  # noqa: A001 - the wire's
            front_at, stop = at + _HEAD.size, at + _PREFIX.size + size
            body_at = front_at + first + second + third
            if version != VERSION or size > FRAME_BYTES_MAX or body_at > stop:
                raise _refusal(size, version)
            if stop > end:
                break
            body = data[body_at:stop]
            if kind == _RESULT:
                frames.append(Result(id, body))
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

    def _hold(self, rest: bytes) -> None:
        """Hold the beginning of a frame until the rest comes."""
        here = len(rest)
        if here >= _PREFIX.size:
            (size,) = _PREFIX.unpack_from(rest)
            if not _HEADER_BYTES <= size <= FRAME_BYTES_MAX:
                raise _refusal(size, VERSION)
        if here < _HEAD.size:
            self._pieces, self._missing = [rest], _HEAD.size - here
            return
        head: _Head = _HEAD.unpack_from(rest)
        body_at = _HEAD.size + sum(head[6:])
        if here < body_at:
            self._pieces, self._missing = [rest], body_at - here
        else:
            self._begun = head, rest[_HEAD.size : body_at]
            self._pieces, self._missing = [rest[body_at:]], _PREFIX.size + head[0] - here


#: Kinds that have no more than an id and a body.
_PLAIN: Mapping[int, Callable[[int, bytes], Frame]] = {
    Kind.ERROR: Error,
    Kind.PROGRESS: Progress,
    Kind.CANCEL: Cancel,
    Kind.DOWN: lambda _, body: Down(body),
    Kind.KEPT: KeptFrame,
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


def _frame(head: _Head, front: bytes, body: bytes) -> Frame:
    """Build a frame from its parts. `front`: the parts between header and body. Raises
    FrameBroken."""
    _, _, kind, id, deadline, number, first, second, _ = head  # noqa: A001 - the wire's own name
    if kind in _CALLS:
        middle, payer, results = first + second, NOBODY, b""
        if kind == _KEPT_CALL:
            payer, results, front = _place(front, middle)
        elif kind == _PAID_CALL:
            if len(front) - middle < _PAYER.size:
                raise FrameBroken("a call has no room for its payer")
            (payer,) = _PAYER.unpack_from(front, len(front) - _PAYER.size)
            front = front[: -_PAYER.size]
        return CallFrame(
            id, _text(front[:first]), body, front[first:middle], front[middle:],
            deadline >> _FLAG_BITS, bool(deadline & _PROGRESS), number, bool(deadline & _TRACED),
            payer, results,
        )  # fmt: skip
    if kind == _RESULT:
        return Result(id, body)
    if kind in _PLAIN:
        return _PLAIN[kind](id, body)
    if kind in _NAMED:
        return _NAMED[kind](id, number, _text(front), body)
    if kind == Kind.REPLY:
        return ReplyFrame(number, body, bool(deadline))
    if kind == Kind.WITHDRAW:
        return Withdraw(number)
    if kind in _OWNED:
        return _OWNED[kind](id, number, front[:second], front[second:], body)
    raise FrameBroken(f"unknown kind of frame: {kind}")


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
    return _HEAD.pack(size, VERSION, kind, id, deadline, number, first, second, third)


def _named(kind: Kind, id: int, number: int, method: str, body: bytes) -> bytes:  # noqa: A002 - as above
    name = _method_bytes(method)
    return _head(kind, id, len(body), 0, number, len(name)) + name


def _owned(
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
    deadline = min(frame.deadline_ms, _DEADLINE_MS_MAX) << _FLAG_BITS | frame.wants_progress
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
    head = _HEAD.pack(
        size, VERSION, kind, frame.id, deadline, frame.peer, len(name), len(meta), len(caller)
    )
    return b"%b%b%b%b" % (head, name, meta, caller)


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
