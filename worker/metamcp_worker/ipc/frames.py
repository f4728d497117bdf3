"""Frames on the pipe between a front and a worker: typed headers around raw JSON bodies.

Owns: the kinds of frames and their meaning, the version, the limits. Never: their bytes
(`frame_bytes`), reading or writing a pipe, opening a JSON body.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Final
from zlib import crc32

from msgspec import Struct

from metamcp_worker.ipc.process_names import DEFAULT

VERSION: Final = 3
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of a JSON-RPC message of a client."""
MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a JSON-RPC message of a server, unless the configuration sets another limit."""
MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest limit in bytes that the configuration may set for a message of a server."""
FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + 64 * 1024
METHOD_BYTES_MAX: Final = 256

NUMBER_MAX = 2**32 - 1
"""Largest number of a peer or a question that the header of a frame can hold."""


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


PAYERS_MAX = 4096
"""Maximum numbers of workspaces and principals that a process keeps; any other one is computed
again."""
NOBODY: Final = 0
"""Payer of the gateway's own requests, and of the user of this machine in the default workspace."""


@lru_cache(PAYERS_MAX)
def payer(workspace: str, principal: str) -> int:
    """Return the number under which calls take turns at a server, the same in all fronts: workspace
    in the upper 32 bits, principal in the lower ones. Two that get the same number share turns."""
    if (workspace, principal) == (DEFAULT, "local"):
        return NOBODY
    return crc32(workspace.encode()) << 32 | crc32(principal.encode())


class CallFrame(Struct, frozen=True, gc=False):
    """front -> worker: send this request to the server.

    `id`: the front's number for the call, unique on its pipe. `params`: raw JSON object without
    `_meta`, with the server's own names. `meta`: raw JSON object with the rest of `_meta` (without
    progress token and keys of the protocol), or empty. `caller`: raw JSON object
    `{"clientInfo":…, "clientCapabilities":…, "logLevel":…}` of the client that asked, or empty.
    `deadline_ms`: how long the answer may take, 0 for the server's own timeout.
    `wants_progress`: the client sent a progress token. `peer`: the front's number of the caller;
    all calls of one session have the same number, 0 is a call that stands alone. `traced`: the
    front wants to know when the server had the call (`messages.ServerCallTimes`). `payer`: who
    takes a turn for it in the queue of the server. `results`: raw JSON, where a large result is
    kept (`results.result_summary.ResultPlace`), empty where every result passes whole."""

    id: int
    method: str
    params: bytes
    meta: bytes = b""
    caller: bytes = b""
    deadline_ms: int = 0
    wants_progress: bool = False
    peer: int = 0
    traced: bool = False
    payer: int = NOBODY
    results: bytes = b""


class Result(Struct, frozen=True, gc=False):
    """worker -> front: the raw `result` of a call."""

    id: int
    body: bytes


class Error(Struct, frozen=True, gc=False):
    """worker -> front: the raw `error` object of a call."""

    id: int
    body: bytes


class Cancel(Struct, frozen=True, gc=False):
    """front -> worker: cancel this call; no client waits for its answer any more. `reason` is text,
    perhaps empty."""

    id: int
    reason: bytes = b""


class Progress(Struct, frozen=True, gc=False):
    """worker -> front: raw params of a progress notification, without its token; empty if only the
    gateway asked for progress, and the time of the call begins again."""

    id: int
    body: bytes


class Notice(Struct, frozen=True, gc=False):
    """worker -> front: a notification of the server, with raw params. `id`: the call of the
    notification, 0 for none."""

    method: str
    body: bytes
    id: int = 0


class ServerGone(Struct, frozen=True, gc=False):
    """worker -> front: the server is gone; the body is `{"reason": …, "message": …}`."""

    body: bytes


class QuestionFrame(Struct, frozen=True, gc=False):
    """worker -> front: the server asks the client that made call `id` something. `question`: the
    worker's number for it, never used again; `params`: raw, as the server sent them."""

    id: int
    question: int
    method: str
    params: bytes


class ReplyFrame(Struct, frozen=True, gc=False):
    """front -> worker: the raw `result` that answers a question, or the raw `error`."""

    question: int
    body: bytes
    failed: bool = False


class WithdrawQuestion(Struct, frozen=True, gc=False):
    """worker -> front: the server does not wait for the answer to this question any more."""

    question: int


class ClientNotice(Struct, frozen=True, gc=False):
    """front -> worker: a notification of a client for the server, with raw params or nothing."""

    method: str
    body: bytes = b""


class KeepCall(Struct, frozen=True, gc=False):
    """front -> worker: keep call `id` if this front ends, so that the client can get the answer
    from another front. `owner` and `name`: identify the call in the `RecoverCall` of that front;
    `note`: data that the other front needs, never empty. The last `KeepCall` of a call counts."""

    id: int
    owner: bytes
    name: bytes
    note: bytes


class RecoverCall(Struct, frozen=True, gc=False):
    """front -> worker: go on under this `id` with the call that was kept for this owner under this
    name. `peer`: as in `CallFrame`. The worker answers with `KeptFrame`; then the frames follow
    that came for the call in between."""

    id: int
    owner: bytes
    name: bytes
    peer: int = 0


class KeptFrame(Struct, frozen=True, gc=False):
    """worker -> front: answer to `RecoverCall`, with the note of the call; an empty note means that
    the call is not here."""

    id: int
    note: bytes = b""


class ReleaseCalls(Struct, frozen=True, gc=False):
    """front -> worker: drop the calls that fronts which are gone kept for this owner; no client
    comes back for them. An empty owner: forget each `KeepCall` of the sending front instead, which
    ends and answers all its calls itself."""

    owner: bytes = b""


Frame = (
    CallFrame | Result | Error | Cancel | Progress | Notice | ServerGone | QuestionFrame
    | ReplyFrame | WithdrawQuestion | ClientNotice | KeepCall | RecoverCall | KeptFrame |
    ReleaseCalls
)  # fmt: skip
