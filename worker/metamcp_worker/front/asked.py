"""What one client was asked and has not answered.

Owns: the ids of the gateway's own requests, and which answer belongs to which question. Never:
whether a client may be asked, sending, deadlines.

A question is in this table from the moment that it is asked until it is answered, withdrawn or
unreachable, whichever comes first; it leaves the table before anybody hears of it, so none ends
twice. The table belongs to one session, and ids are never used twice in a front, so an answer of
another client finds nothing here.
"""

import itertools
from collections.abc import Mapping

from msgspec import Raw

from metamcp_worker.front.questions import Question
from metamcp_worker.ipc import codec

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


class Asked:
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
