"""Lines between the gateway and a server: cutting the bytes that a server writes into lines, and
building the lines that it is sent.

Owns: the cutting at newlines, the handling of lines that are too long (a message is passed over, a
log line is cut); the line of a log that says why a server ended; the revisions of the protocol, the
lines of requests, notifications and answers, and the `_meta` of requests (`MetaBuilder`); the
errors that a caller gets when its server does not answer (`ServerErrors`). Never: reading a
descriptor, the meaning of a line.

Both cutters look at each byte once, however small the pieces are, and hold at most one unfinished
line of limited length.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Raw

from metamcp_worker.child.actions import ReplyToFront
from metamcp_worker.ipc import codec, frames
from metamcp_worker.ipc.codec import ID_FIRST
from metamcp_worker.ipc.envelope import ENDS_BYTES, OverlongLine, glimpse
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Error
from metamcp_worker.ipc.jsonrpc_bytes import is_error

LOG_LINE_BYTES_MAX = 8 * 1024
"""Maximum bytes of a log line, enough for a stack frame or a JSON log record; a longer line is cut,
not refused."""
LAST_LINES = 40
"""Number of last lines of a log that are searched for the reason why a server ended."""
LAST_LINE_CHARACTERS_MAX = 300
"""Maximum characters of each of these lines."""
LINES_OTHERWISE = 3
"""Number of last lines that are shown if none of them names a reason."""
_TELLING = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:^|\s)(?:[\w.]*(?:error|exception)(?: \[\w+\])?|fatal|panic|caused by|cause): \S",
        r"not found|no such|cannot find|can't find|denied|refused|in use|is required|because",
        r"error|fatal|cause|failed|invalid|missing",
    )
)
"""Patterns of lines that name the reason, the surest first."""
_BESIDE = re.compile(r"complete log of this run|^\s+at |^\s*File \"", re.IGNORECASE)
"""Pattern of lines that only say where to look, and name no reason."""


class LineCutter:
    """Cutter for lines of JSON-RPC. Empty lines and a carriage return at the end are tolerated."""

    def __init__(self, limit_bytes: int = frames.MESSAGE_BYTES) -> None:
        self._limit = limit_bytes
        self._pieces: list[bytes] = []
        self._held = 0
        self._beginning = b""
        """Beginning of an unfinished line above the limit, whose end is in the pieces; else
        empty."""
        self._overlong: list[OverlongLine] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without line ends and without lines above the
        limit."""
        # Looking for the first newline is far quicker than splitting, and most pieces of a long
        # line have none.
        if data.find(b"\n") < 0:
            self._hold(data)
            return []
        lines = data.split(b"\n")
        beginning = lines.pop()
        if self._pieces:
            self._hold(lines[0])
            lines[0] = self._take_line()
        # A line between two newlines of one read is shorter than the read; still, the limit holds.
        if len(data) > self._limit:
            lines = [raw if len(raw) <= self._limit else self._skip_overlong(raw) for raw in lines]
        self._hold(beginning)
        return [line for raw in lines if (line := raw.strip(b" \t\r"))]

    @property
    def is_skipping(self) -> bool:
        """Whether the unfinished line is above the limit already."""
        return bool(self._beginning)

    def overlong(self) -> list[OverlongLine]:
        """Return the lines above the limit that have ended since the last call."""
        if not self._overlong:
            return self._overlong
        lines, self._overlong = self._overlong, []
        return lines

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held <= self._limit:
            return
        if not self._beginning:
            self._beginning = _first(self._pieces)
        self._pieces = [_last(self._pieces)]

    def _take_line(self) -> bytes:
        """Return the held line, which has ended; empty if the line was above the limit."""
        line = b"".join(self._pieces)
        if self._beginning:
            self._overlong.append(OverlongLine(self._held, glimpse(self._beginning, line)))
            line = self._beginning = b""
        self._pieces.clear()
        self._held = 0
        return line

    def _skip_overlong(self, line: bytes) -> bytes:
        self._overlong.append(OverlongLine(len(line), glimpse(line, line)))
        return b""


def _first(pieces: Sequence[bytes]) -> bytes:
    """Return as much of the beginning as a glimpse needs, without joining all pieces."""
    beginning = b""
    for piece in pieces:
        beginning += piece[:ENDS_BYTES]
        if len(beginning) >= ENDS_BYTES:
            break
    return beginning


def _last(pieces: Sequence[bytes]) -> bytes:
    """Return as much of the end as a glimpse needs, without joining all pieces."""
    end = b""
    for piece in reversed(pieces):
        end = piece[-ENDS_BYTES:] + end
        if len(end) >= ENDS_BYTES:
            break
    return end


class LogCutter:
    """Cutter for lines of a log: a line above the limit loses its end, bad UTF-8 is replaced."""

    def __init__(self, limit_bytes: int = LOG_LINE_BYTES_MAX) -> None:
        self._limit = limit_bytes
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes, without empty lines."""
        *ended, last = data.split(b"\n")
        lines: list[str] = []
        for piece in ended:
            self._hold(piece)
            self._end(lines)
        self._hold(last)
        return lines

    def skip(self, data: bytes) -> int:
        """Pass over `data` without keeping its lines. Return the number of lines that ended in
        it."""
        ended = data.count(b"\n")
        if ended:
            self._forget()
            self._hold(data[data.rindex(b"\n") + 1 :])
        else:
            self._hold(data)
        return ended

    def rest(self) -> list[str]:
        """Return the last line at the end of the stream, which has no newline, if there is one."""
        lines: list[str] = []
        self._end(lines)
        return lines

    def _hold(self, piece: bytes) -> None:
        fitting = piece[: self._limit - self._held]
        if fitting:
            self._pieces.append(fitting)
            self._held += len(fitting)

    def _end(self, lines: list[str]) -> None:
        text = b"".join(self._pieces).decode(errors="replace").rstrip()
        if text:
            lines.append(text)
        self._forget()

    def _forget(self) -> None:
        self._pieces.clear()
        self._held = 0


def reason(lines: Iterable[str]) -> str:
    """Return the reason why a server ended from the last lines of its log: the last line of the
    surest kind that occurs, else the last few lines. Empty for an empty log."""
    candidates = [line.strip() for line in lines if not _BESIDE.search(line)]
    for kind in _TELLING:
        if matches := [line for line in candidates if kind.search(line)]:
            return matches[-1]
    return " | ".join(candidates[-LINES_OTHERWISE:])


MODERN = "2026-07-28"
"""Revision without a handshake: every request names the client that asks and its capabilities."""
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07")
"""Revisions with `initialize`, the newest first."""

_PREFIX = "io.modelcontextprotocol/"
_EMPTY_OBJECT = re.compile(rb"\{\s*\}\Z")
_STAMPS_MAX = 256
"""Maximum number of clients whose stamp is remembered; beyond that all are forgotten and created
again."""
_STAMP_BYTES_MAX = 4096
"""Maximum bytes of a client's description whose stamp is remembered; for a longer one the stamp is
created again at each call."""


VIEWED_BYTES: Final = 16 * 1024
"""Size from which parameters are not copied twice; below, a copy is quicker than a view of them."""
PROGRESSING: Final = frozenset({"prompts/get", "resources/read", "tools/call"})
"""Methods of the calls that may take long."""
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D
"""Bytes as numbers, because Python looks for a number five times as fast as for bytes."""
_METHOD: Final = b',"method":'
_PARAMS: Final = b',"params":'
_PARAMS_META: Final = b',"params":{"_meta":'


def request(key: bytes, method: str, params: bytes, meta: bytes = b"") -> bytes:
    """Return the line of a request. `key`: the id as on the wire. `meta`: a raw object, or
    empty."""
    body = params.strip() or b"{}"
    if _NEWLINE in body or _RETURN in body:
        body = _one_line(body)
    if not meta:
        return b"".join((ID_FIRST, key, _METHOD, codec.dump(method), _PARAMS, body, b"}\n"))
    if _NEWLINE in meta or _RETURN in meta:
        meta = _one_line(meta)
    remainder: bytes | memoryview = b"}"
    if body[1:2] == b'"' or not _EMPTY_OBJECT.match(body):
        meta += b","
        remainder = body[1:] if len(body) < VIEWED_BYTES else memoryview(body)[1:]
    return b"".join(
        (ID_FIRST, key, _METHOD, codec.dump(method), _PARAMS_META, meta, remainder, b"}\n")
    )


def notification(method: str, params: bytes = b"") -> bytes:
    if not params:
        return b'{"jsonrpc":"2.0","method":%b}\n' % codec.dump(method)
    return _line(b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (codec.dump(method), params))


def build_cancel_notification(key: bytes, reason: bytes) -> bytes:
    """Return the notification that no client waits for the request `key` any more."""
    params: dict[str, object] = {"requestId": Raw(key)}
    if reason:
        params["reason"] = reason.decode(errors="replace")
    return notification("notifications/cancelled", codec.dump(params))


def answer(id: bytes, result: bytes) -> bytes:  # noqa: A002 - the wire's own name
    return _line(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result))


def refusal(id: bytes, error: bytes) -> bytes:  # noqa: A002 - the wire's own name
    return _line(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, error))


def error_object(code: int, message: str, data: object = None) -> bytes:
    """Return a raw error object of the gateway's own."""
    body: dict[str, object] = {"code": int(code), "message": message}
    if data is not None:
        body["data"] = data
    return codec.dump(body)


class MetaBuilder:
    """Builder of `_meta`. A modern server gets the protocol and the client that asks; a legacy
    server knows both from the handshake. Calls that may take long have a token for their progress,
    whether their client gave one or not."""

    def __init__(self, protocol: str, gateway_version: str) -> None:
        self._modern = protocol == MODERN
        self._protocol = codec.dump(protocol)
        self._gateway = gateway_info(gateway_version)
        self._stamps: dict[bytes, bytes] = {}

    def of(self, call: CallFrame, key: bytes) -> bytes:
        """Return the `_meta` of this call, or nothing if there is nothing to say."""
        token = call.wants_progress or call.method in PROGRESSING
        if not (self._modern or call.meta):
            return b"".join((b'{"progressToken":', key, b"}")) if token else b""
        parts = [self._stamp(call.caller)] if self._modern else []
        if token:
            parts.append(b'"progressToken":' + key)
        if call.meta:
            others = call.meta.strip()[1:-1].strip()
            if others:
                parts.append(others)
        return b"{" + b",".join(parts) + b"}" if parts else b""

    def own(self, caller: bytes = b"") -> bytes:
        """Return the `_meta` of a request of the gateway's own, on behalf of this client or, if
        empty, of no client."""
        return b"{" + self._stamp(caller) + b"}" if self._modern else b""

    def _stamp(self, caller: bytes) -> bytes:
        stamp = self._stamps.get(caller)
        if stamp is None:
            stamp = self._describe(caller)
            if len(self._stamps) >= _STAMPS_MAX:
                self._stamps.clear()
            if len(caller) <= _STAMP_BYTES_MAX:
                self._stamps[caller] = stamp
        return stamp

    def _describe(self, caller: bytes) -> bytes:
        caller_members = codec.members(caller)
        members: dict[str, Raw | bytes] = {
            "protocolVersion": self._protocol,
            "clientInfo": caller_members.get("clientInfo", self._gateway),
            "clientCapabilities": caller_members.get("clientCapabilities", b"{}"),
        }
        if "logLevel" in caller_members:
            members["logLevel"] = caller_members["logLevel"]
        return b",".join(
            codec.dump(_PREFIX + name) + b":" + bytes(value) for name, value in members.items()
        )


def gateway_info(version: str) -> bytes:
    """Return the `clientInfo` of the gateway as an MCP client."""
    return codec.dump({"name": "metamcp", "version": version})


def server_info(result_meta: Raw | bytes) -> Raw:
    """Return the `serverInfo` that a modern server gives in the `_meta` of its results; {} if
    absent."""
    try:
        info = codec.level(result_meta).get(_PREFIX + "serverInfo", Raw(b"{}"))
        codec.level(info)
    except codec.Malformed:
        return Raw(b"{}")
    return info


def _line(message: bytes) -> bytes:
    return _one_line(message) + b"\n"


def _one_line(message: bytes) -> bytes:
    return message.replace(b"\n", b" ").replace(b"\r", b" ")


FIT: Final = b'{"content":['
"""Bytes with which nearly all results begin. Only other results are looked at, in less than a
microsecond."""
NO_LIST_WITHIN_BYTES = 64
"""Number of bytes at the start of a result in which content is looked for that is not a list:
servers that send none say so there."""
_NO_LIST = re.compile(rb'"(?:content|messages|contents)"\s*:\s*[^\s\[]')

#: Member that a result must have, by method.
_CONTENT = {"tools/call": "content", "prompts/get": "messages", "resources/read": "contents"}


class ServerErrors:
    """Errors about one server. `why` continues the sentence that the server's name begins."""

    def __init__(self, server: str) -> None:
        self._server = server

    def body(self, code: Code, problem: str, data: dict[str, object] | None = None) -> bytes:
        """Return the raw error object."""
        about = {"server": self._server, **(data or {})}
        return error_object(code, f"server '{self._server}' {problem}", about)

    def answer(self, front: int, call: int, code: Code, problem: str) -> ReplyToFront:
        return ReplyToFront(front, Error(call, self.body(code, problem)))

    def build_overload_reply(
        self, front: int, call: int, load: dict[str, object], problem: str = ""
    ) -> ReplyToFront:
        """Return the error of a call that found no place. `load`: as `ServerCalls.load` returns
        it."""
        return ReplyToFront(front, Error(call, self.overload(load, problem)))

    def overload(self, load: dict[str, object], problem: str = "") -> bytes:
        """Return the raw error object of a call that was not sent."""
        problem = problem or f"has {load['inflight']} calls in flight and {load['queued']} waiting"
        data = {"may_have_run": False, **load}
        return self.body(Code.OVERLOADED, f"{problem}; try again later", data)

    def unfit(self, method: str, result: bytes) -> bytes:
        """Return the raw error object in place of a result that clients cannot read; empty if they
        can read this result."""
        location = ""
        if result[:1] == b"{":
            if _NO_LIST.search(result, 0, NO_LIST_WITHIN_BYTES) is None:
                return b""
            member = _CONTENT.get(method, "")
            content = bytes(codec.level(result).get(member, Raw()))
            if content[:1] in (b"", b"["):
                return b""
            location, result = f" with '{member}'", content
        kinds = {
            b"[": "an array", b"{": "an object", b'"': "a text", b"n": "null", b"t": "true",
            b"f": "false",
        }  # fmt: skip
        kind = kinds.get(result[:1], "a number")
        problem = (
            f"answered {method}{location} as {kind}, which clients cannot read; its author can mend"
            " it"
        )
        return self.body(Code.INTERNAL_ERROR, problem, {"reason": "invalid_result"})

    def with_refusal(self, result: bytes, error: bytes, refusal: str) -> tuple[bytes, bytes]:
        """Return result and error of a call, one of them empty, with a sentence about what the
        sandbox refused during the call, if it failed; the same bytes if it did not."""
        text = f"MetaMCP: while server '{self._server}' worked on this, {refusal}"
        if not error and not is_error(result):
            return result, error
        try:
            members = codec.level(error or result)
            if error:
                words = codec.text(members.get("message", Raw(b'""'))) or ""
                return b"", codec.dump(members | {"message": f"{words}; {text}" if words else text})
            items = codec.decode_as(list[Raw], members.get("content", Raw(b"[]")))
            items.append(Raw(codec.dump({"type": "text", "text": text})))
            return codec.dump(members | {"content": items}), b""
        except codec.Malformed:
            return result, error

    def timed_out(
        self, front: int, call: int, method: str, timeout_s: float, of: str = ""
    ) -> ReplyToFront:
        """Return the error of a call whose time is over. `of`: continues the sentence."""
        problem = f"did not answer {method} within {timeout_s:g} s{of}"
        return ReplyToFront(
            front, Error(call, self.body(Code.TIMED_OUT, problem, {"timeout_s": timeout_s}))
        )

    def not_sent(self, front: int, call: int, method: str, timeout_s: float) -> ReplyToFront:
        problem = f"was busy with other calls for {timeout_s:g} s, so it was not asked for {method}"
        data: dict[str, object] = {"timeout_s": timeout_s, "may_have_run": False}
        return ReplyToFront(front, Error(call, self.body(Code.TIMED_OUT, problem, data)))


def describe_auth_error(error: bytes, server: str) -> str:
    """Return the words of an error object of the gateway about missing authorization, as they
    continue "it"; empty for any other error. The link in the error is left out, because it becomes
    invalid when the worker ends."""
    try:
        failure = codec.level(error)
        if failure.get("code") != Raw(b"%d" % Code.AUTHORIZATION_NEEDED):
            return ""
        if "authorization_url" in codec.level(failure.get("data", Raw(b"{}"))):
            return f"needs authorization: run 'metamcp login {server}'"
    except codec.Malformed:
        return ""
    words = codec.text(failure.get("message", Raw(b'""'))) or ""
    return words.removeprefix(f"server '{server}' ")
