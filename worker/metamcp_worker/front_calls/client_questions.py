"""Messages of servers to a client before the answer to its call: notifications and questions.

Owns: a question, which is answered once; the interface of a caller that takes these messages; which
questions a client declares to understand; the open questions of a session with their ids and
progress tokens; the order of log levels. Never: sending, eras.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Raw

from metamcp_worker.ipc import codec, roots
from metamcp_worker.ipc.errors import Code


class Question:
    """Request of a server to the client that called it. `params`: raw, as the server sent them.

    The first of `answer`, `fail` and `refuse` counts. `on_withdrawn` is called if the server does
    not wait any more, or the call has ended; later answers are dropped. `on_over`: called once with
    the raw error, empty bytes for an answer, or None if the question was withdrawn.
    """

    __slots__ = (
        "_reply",
        "call",
        "method",
        "number",
        "on_over",
        "on_withdrawn",
        "params",
        "server",
    )

    def __init__(
        self,
        server: str,
        call: int,
        number: int,
        method: str,
        params: bytes,
        reply: Callable[["Question", bytes, bool], None],
    ) -> None:
        self.server = server
        self.call = call
        self.number = number
        self.method = method
        self.params = params
        self.on_withdrawn: Callable[[], None] | None = None
        self.on_over: Callable[[bytes | None], None] | None = None
        self._reply: Callable[[Question, bytes, bool], None] | None = reply

    @property
    def open(self) -> bool:
        return self._reply is not None

    def answer(self, result: bytes) -> None:
        """Answer with the raw result of the client."""
        self._end(result, failed=False)

    def fail(self, error: bytes) -> None:
        """Answer with a raw error object."""
        self._end(error, failed=True)

    def refuse(self, reason: str) -> None:
        """Answer with an error, because the client cannot be asked this. `reason`: a sentence."""
        self.fail(codec.dump({"code": int(Code.METHOD_NOT_FOUND), "message": reason}))

    def decline(self, reason: str) -> None:
        """Answer for a client that has not declared to understand the question: a question for
        roots with no roots, any other question with an error. `reason`: a sentence."""
        if self.method == roots.METHOD:
            self.answer(roots.NONE)
        else:
            self.refuse(reason)

    def withdraw(self) -> None:
        if self._reply is not None:
            self._reply = None
            if self.on_over is not None:
                self.on_over(None)
            if self.on_withdrawn is not None:
                self.on_withdrawn()

    def _end(self, body: bytes, *, failed: bool) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            if self.on_over is not None:
                self.on_over(body if failed else b"")
            reply(self, body, failed)


class Caller(Protocol):
    """Takes for a client the messages before the answer. The methods never wait."""

    def on_progress(self, params: bytes) -> None:
        """Take the raw params of a progress notification, without its token."""
        ...

    def on_notification(self, method: str, params: bytes) -> None:
        """Take another notification that belongs to the call, with raw params."""
        ...

    def on_question(self, question: Question) -> None: ...


CALLERS_KEPT = 128
"""Number of clients whose capabilities are remembered, as a client declares the same each time."""
CALLER_BYTES_MAX = 4096
"""Maximum bytes that are remembered of one client; a longer text is decoded for each question."""

_MISSING = Raw()


def may_be_asked(caller: bytes, method: str, params: bytes) -> bool:
    """Whether the client that `caller` describes (see `frames.CallFrame`) declares the capabilities
    that a question needs. `params`: raw, as the server sent them."""
    need = _find_requirements(method, params)
    return need is not None and need <= _get_capabilities(caller)


def may_be_asked_anything(caller: bytes) -> bool:
    """Whether this client declares to understand any question."""
    return bool(_get_capabilities(caller))


def has_extension(caller: bytes, name: str) -> bool:
    """Whether this client declares the extension with this name."""
    extensions = codec.members(_capabilities(caller).get("extensions", _MISSING))
    return _is_object(extensions.get(name))


def _find_requirements(method: str, params: bytes) -> frozenset[str] | None:
    """Return the capabilities that a question needs; None if it is not a question for clients."""
    try:
        members = codec.level(params) if params else {}
    except codec.Malformed:
        return None
    if method == "roots/list":
        return frozenset({"roots"})
    if method == "elicitation/create":
        mode = codec.text(members["mode"]) if "mode" in members else "form"
        return frozenset({f"elicitation.{mode}"})
    if method == "sampling/createMessage":
        needed = {"sampling"}
        if _present(members, "tools") or _present(members, "toolChoice"):
            needed.add("sampling.tools")
        if _present(members, "includeContext") and codec.text(members["includeContext"]) != "none":
            needed.add("sampling.context")
        return frozenset(needed)
    return None


def _get_capabilities(caller: bytes) -> frozenset[str]:
    return _remembered(caller) if len(caller) <= CALLER_BYTES_MAX else _parse_capabilities(caller)


def _parse_capabilities(caller: bytes) -> frozenset[str]:
    capabilities = _capabilities(caller)
    declared: set[str] = set()
    if _is_object(capabilities.get("roots")):
        declared.add("roots")
    if _is_object(capabilities.get("elicitation")):
        modes = codec.members(capabilities["elicitation"])
        declared_modes = {
            f"elicitation.{mode}" for mode in ("form", "url") if _is_object(modes.get(mode))
        }
        # Before there were modes, the capability was an object without them and meant forms.
        declared |= declared_modes or {"elicitation.form"}
    if _is_object(capabilities.get("sampling")):
        finer = codec.members(capabilities["sampling"])
        declared.add("sampling")
        declared |= {
            f"sampling.{name}" for name in ("tools", "context") if _is_object(finer.get(name))
        }
        # Before there were finer capabilities, every client that samples could be asked to
        # include context, and was free not to.
        if not finer:
            declared.add("sampling.context")
    return frozenset(declared)


_remembered = functools.lru_cache(CALLERS_KEPT)(_parse_capabilities)


def _capabilities(caller: bytes) -> dict[str, Raw]:
    return codec.members(codec.members(caller).get("clientCapabilities", _MISSING))


def _is_object(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw).startswith(b"{")


def _present(members: dict[str, Raw], name: str) -> bool:
    return name in members and bytes(members[name]) != b"null"


ASKED_MAX = 64
"""Maximum number of open questions to one client: people answer a few, models not many more."""

_NONE = Raw()


class Ids:
    """Makes the ids of requests to clients. `nonce`: distinguishes these ids from ids of other
    fronts, whose sessions this front may continue."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._numbers = itertools.count(1)

    def new(self) -> bytes:
        """Return a new raw id, a JSON string."""
        return b'"%b-%d"' % (self._nonce, next(self._numbers))


class OpenQuestions:
    """Open questions of one session, by raw id, each with the progress token of its server."""

    __slots__ = ("_ids", "_open")

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._open: dict[bytes, tuple[Question, bytes]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= ASKED_MAX

    def put(self, question: Question) -> tuple[bytes, bytes]:
        """Open a question, and return its raw id and its raw params for the client. If the server
        wants progress, the params have a token that no other server has given to this client."""
        raw_id = self._ids.new()
        params, token = _with_token(question.params, raw_id)
        self._open[raw_id] = question, token
        return raw_id, params

    def take(self, raw_id: bytes) -> Question | None:
        """Close the question with this id and return it; None if there is none."""
        entry = self._open.pop(raw_id, None)
        return None if entry is None else entry[0]

    def progress(self, params: Mapping[str, Raw]) -> tuple[Question, bytes] | None:
        """Return the question that these params of a progress notification belong to, and the raw
        params for its server; None if there is none, or its server does not want progress."""
        question, token = self._open.get(bytes(params.get("progressToken", _NONE)), (None, b""))
        if question is None or not token:
            return None
        return question, codec.dump({**params, "progressToken": Raw(token)})


def _with_token(params: bytes, raw_id: bytes) -> tuple[bytes, bytes]:
    """Replace the progress token with `raw_id`, and return the params and the token before; without
    a token, the params as they are and empty bytes."""
    if b'"progressToken"' not in params:
        return params, b""
    members = codec.members(params)
    meta = codec.members(members.get("_meta", b""))
    token = bytes(meta.get("progressToken", _NONE))
    if not token:
        return params, b""
    meta["progressToken"] = Raw(raw_id)
    return codec.dump({**members, "_meta": Raw(codec.dump(meta))}), token


MESSAGE = "notifications/message"
SET_LEVEL = "logging/setLevel"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Log levels, the one with the most messages first (RFC 5424, as MCP spells them)."""

_PLACES = {level: place for place, level in enumerate(LEVELS)}


def passes(level: str, params: bytes) -> bool:
    """Whether a client that wants messages from `level` on gets the message with these raw params.
    Empty: the client wants all. A message with an unknown level passes."""
    if not level:
        return True
    message_level = codec.text(codec.members(params).get("level", Raw(b"null")))
    rank = _PLACES.get(message_level or "")
    return rank is None or rank >= _PLACES[level]
