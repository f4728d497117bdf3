"""What servers say to a client before they answer its call: progress, notifications, questions.

Owns: one question of a server, answered once, and the shape of whoever takes all this for a client.
Never: sending, eras, deciding who may be asked.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Raw

from metamcp_worker.ipc import codec, roots
from metamcp_worker.ipc.errors import Code


class Question:
    """A request of a server to the client that called it. `params`: raw, the server's own.

    The first of `answer`, `fail` and `refuse` counts. `on_withdrawn` is called if the server does
    not wait any more, or the call has ended; what is answered then goes nowhere.
    """

    __slots__ = ("_reply", "call", "method", "number", "on_withdrawn", "params", "server")

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
        self._reply: Callable[[Question, bytes, bool], None] | None = reply

    @property
    def open(self) -> bool:
        return self._reply is not None

    def answer(self, result: bytes) -> None:
        """With the raw result of the client."""
        self._end(result, failed=False)

    def fail(self, error: bytes) -> None:
        """With a raw error object."""
        self._end(error, failed=True)

    def refuse(self, why: str) -> None:
        """Because the client that called cannot be asked this. `why`: a sentence."""
        self.fail(codec.dump({"code": int(Code.METHOD_NOT_FOUND), "message": why}))

    def decline(self, why: str) -> None:
        """Because the client has not declared that it can be asked this: then it has no roots, and
        what else it is asked is refused. `why`: a sentence."""
        if self.method == roots.METHOD:
            self.answer(roots.NONE)
        else:
            self.refuse(why)

    def withdraw(self) -> None:
        if self._reply is not None:
            self._reply = None
            if self.on_withdrawn is not None:
                self.on_withdrawn()

    def _end(self, body: bytes, *, failed: bool) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply(self, body, failed)


class Caller(Protocol):
    """Who takes for a client what comes before the answer. Nothing here waits."""

    def progressed(self, params: bytes) -> None:
        """Raw params of a progress notification, without its token."""
        ...

    def told(self, method: str, params: bytes) -> None:
        """Another notification that belongs to the call, with raw params."""
        ...

    def asked(self, question: Question) -> None: ...


CALLERS_KEPT = 128
"""Clients whose capabilities are remembered; each says the same with every request."""
CALLER_BYTES_MAX = 4096
"""Of what is remembered about one client; a longer one is read anew for each question."""

_MISSING = Raw()


def may_be_asked(caller: bytes, method: str, params: bytes) -> bool:
    """Does the client that `caller` describes (see `frames.CallFrame`) declare what this question
    needs? `params`: raw, the server's own."""
    need = _needed(method, params)
    return need is not None and need <= _known(caller)


def may_be_asked_anything(caller: bytes) -> bool:
    """Does this client declare that some question may be put to it?"""
    return bool(_known(caller))


def has_extension(caller: bytes, name: str) -> bool:
    """Does this client declare the extension of that name?"""
    extensions = _object(_capabilities(caller).get("extensions", _MISSING))
    return _is_object(extensions.get(name))


def _needed(method: str, params: bytes) -> frozenset[str] | None:
    """What a client must have declared to be asked this; None: it is no question for a client."""
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


def _known(caller: bytes) -> frozenset[str]:
    return _remembered(caller) if len(caller) <= CALLER_BYTES_MAX else _declared(caller)


def _declared(caller: bytes) -> frozenset[str]:
    capabilities = _capabilities(caller)
    declared: set[str] = set()
    if _is_object(capabilities.get("roots")):
        declared.add("roots")
    if _is_object(capabilities.get("elicitation")):
        modes = _object(capabilities["elicitation"])
        found = {f"elicitation.{mode}" for mode in ("form", "url") if _is_object(modes.get(mode))}
        # Before there were modes, the capability was an object without them and meant forms.
        declared |= found or {"elicitation.form"}
    if _is_object(capabilities.get("sampling")):
        finer = _object(capabilities["sampling"])
        declared.add("sampling")
        declared |= {
            f"sampling.{name}" for name in ("tools", "context") if _is_object(finer.get(name))
        }
        # Before there were finer capabilities, every client that samples could be asked to
        # include context, and was free not to.
        if not finer:
            declared.add("sampling.context")
    return frozenset(declared)


_remembered = functools.lru_cache(CALLERS_KEPT)(_declared)


def _capabilities(caller: bytes) -> dict[str, Raw]:
    return _object(_object(caller).get("clientCapabilities", _MISSING))


def _object(raw: bytes | Raw) -> dict[str, Raw]:
    """The members of a raw object; none if it is something else."""
    try:
        return codec.level(raw)
    except codec.Malformed:
        return {}


def _is_object(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw).startswith(b"{")


def _present(members: dict[str, Raw], name: str) -> bool:
    return name in members and bytes(members[name]) != b"null"


ASKED_MAX = 64
"""Open questions to one client: people answer a few, models not many more."""

_NONE = Raw()


class Ids:
    """Makes the ids of requests to clients. `nonce`: tells them from those of other fronts, whose
    sessions this one may go on with."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._numbers = itertools.count(1)

    def new(self) -> bytes:
        """A raw id, a JSON string."""
        return b'"%b-%d"' % (self._nonce, next(self._numbers))


class OpenQuestions:
    """The open questions of one session, by raw id, each with the progress token of its server."""

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
        """The question is open now. Its raw id, and its raw params for the client: if the server
        wants progress, under a token that no other server has given to this client."""
        raw_id = self._ids.new()
        params, token = _with_token(question.params, raw_id)
        self._open[raw_id] = question, token
        return raw_id, params

    def take(self, raw_id: bytes) -> Question | None:
        """The question with this id, which is open no longer; None if there is none."""
        found = self._open.pop(raw_id, None)
        return None if found is None else found[0]

    def progress(self, params: Mapping[str, Raw]) -> tuple[Question, bytes] | None:
        """The question that these params of a progress notification are about, and the raw params
        for its server; None if there is none, or none that wants progress."""
        question, token = self._open.get(bytes(params.get("progressToken", _NONE)), (None, b""))
        if question is None or not token:
            return None
        return question, codec.dump({**params, "progressToken": Raw(token)})


def _with_token(params: bytes, raw_id: bytes) -> tuple[bytes, bytes]:
    """The params with `raw_id` for a progress token, and the token that was there, if any."""
    if b'"progressToken"' not in params:
        return params, b""
    try:
        members = codec.level(params)
        meta = codec.level(members.get("_meta", b"{}"))
    except codec.Malformed:
        return params, b""
    token = bytes(meta.get("progressToken", _NONE))
    if not token:
        return params, b""
    meta["progressToken"] = Raw(raw_id)
    return codec.dump({**members, "_meta": Raw(codec.dump(meta))}), token


MESSAGE = "notifications/message"
SET_LEVEL = "logging/setLevel"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the most talkative on (RFC 5424, as MCP spells it)."""

_PLACES = {level: place for place, level in enumerate(LEVELS)}


def passes(level: str, params: bytes) -> bool:
    """Does a client that wants messages from `level` on get the one with these raw params? Empty:
    it wants all. A level that nobody knows has no place in the order, and passes."""
    if not level:
        return True
    try:
        said = codec.text(codec.level(params).get("level", Raw(b"null")))
    except codec.Malformed:
        return True
    place = _PLACES.get(said or "")
    return place is None or place >= _PLACES[level]
