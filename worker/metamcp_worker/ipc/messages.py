"""What supervisor, nursery and workers say to each other on the control sockets.

Owns: the messages, as tagged values, and their bytes. Never: sending them (`packets`).

Descriptors that belong to a message are named in its docstring, in order. "blob" means a descriptor
made by `packets.blob`, for values that may be larger than a packet.
"""

import struct
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Announce, Applied, News, Told
from metamcp_worker.ipc.disclosure import Change as Change  # noqa: PLC0414 - it is had from here
from metamcp_worker.ipc.disclosure import Changed as Changed  # noqa: PLC0414 - and this
from metamcp_worker.ipc.disclosure import Disclosed as Disclosed  # noqa: PLC0414 - and this
from metamcp_worker.ipc.embedding import Embed, Embedded
from metamcp_worker.ipc.figures import BUCKETS_S as BUCKETS_S  # noqa: PLC0414 - it is had from here
from metamcp_worker.ipc.figures import (
    OVERHEAD_BUCKETS_S as OVERHEAD_BUCKETS_S,  # noqa: PLC0414 - and so are these
)
from metamcp_worker.ipc.figures import Answers as Answers  # noqa: PLC0414 - and this
from metamcp_worker.ipc.figures import AnswerStats as AnswerStats  # noqa: PLC0414 - and this
from metamcp_worker.ipc.figures import CallsShown as CallsShown  # noqa: PLC0414 - and so are these
from metamcp_worker.ipc.figures import CallStats as CallStats  # noqa: PLC0414 - and this
from metamcp_worker.ipc.figures import CallUnderWay as CallUnderWay  # noqa: PLC0414 - and this
from metamcp_worker.ipc.figures import Durations as Durations  # noqa: PLC0414 - and this
from metamcp_worker.ipc.figures import Figures as Figures  # noqa: PLC0414 - and this
from metamcp_worker.ipc.figures import FrontStats as FrontStats  # noqa: PLC0414 - and this
from metamcp_worker.ipc.figures import ShowCalls as ShowCalls  # noqa: PLC0414 - and this
from metamcp_worker.ipc.figures import ToolStats as ToolStats  # noqa: PLC0414 - and this
from metamcp_worker.ipc.message_base import Message as Message  # noqa: PLC0414 - it is had from here
from metamcp_worker.ipc.process_names import By as By  # noqa: PLC0414 - and this
from metamcp_worker.ipc.roots import Asked

# --- supervisor -> nursery ------------------------------------------------------------------


class Fork(Message, frozen=True, kw_only=True):
    """Fork one worker. Descriptors: the worker's end of its control socket; a file for its stacks.

    `ticket`: chosen by the supervisor, unique; `role`: "front" or "child"; `name`: for `ps`.
    """

    ticket: int
    role: str
    name: str


class Signal(Message, frozen=True, kw_only=True):
    """Send a signal to a worker that the nursery forked; any other pid is ignored."""

    pid: int
    number: int


# --- nursery -> supervisor ------------------------------------------------------------------


class Born(Message, frozen=True, kw_only=True):
    """The nursery is ready to fork. `missing`: modules it could not preload, with the reason."""

    pid: int
    missing: tuple[str, ...] = ()


class Forked(Message, frozen=True, kw_only=True):
    ticket: int
    pid: int


class ForkFailed(Message, frozen=True, kw_only=True):
    """`reason` is a sentence."""

    ticket: int
    reason: str


class Exited(Message, frozen=True, kw_only=True):
    """A worker is gone and everything that descended from it as well.

    `code`: exit status, or None when a signal ended it; `signal`: its number, or 0;
    `orphans`: how many of its descendants had to be killed.
    """

    pid: int
    code: int | None = None
    signal: int = 0
    orphans: int = 0


class Halted(Message, frozen=True, kw_only=True):
    """A worker was stopped by SIGSTOP or the like."""

    pid: int


class Resumed(Message, frozen=True, kw_only=True):
    pid: int


# --- supervisor -> any worker ---------------------------------------------------------------


class Stop(Message, frozen=True, kw_only=True):
    """Finish what is in flight, for at most `grace_s`, then exit. `heirs`: to a front; others serve
    on, and get its connections."""

    grace_s: float
    heirs: bool = False


# --- any worker -> supervisor ---------------------------------------------------------------


class Beat(Message, frozen=True, kw_only=True):
    """Once a second, from the event loop. `lag_ms`: how late the loop was with it. `idle_s`: since
    a server was last of use, 0 while it is. `probes_missed`: by the server, in a row."""

    seq: int
    lag_ms: float = 0.0
    inflight: int = 0
    queued: int = 0
    idle_s: float = 0.0
    probes_missed: int = 0


class AttachFailed(Message, frozen=True, kw_only=True):
    """An Attach came without its descriptor: this process has no free ones. Try again later."""

    what: str
    number: int


# --- supervisor -> child worker ---------------------------------------------------------------


class RunServer(Message, frozen=True, kw_only=True):
    """Start this server. Descriptor: blob with a `spec.ServerSpec`. `generation`: of the instance;
    it goes up by one with every start. `version`: of the gateway, as servers are told."""

    generation: int
    version: str


class Tune(Message, frozen=True, kw_only=True):
    """Speak so from now on: as `spec.LogSpec` says, with the secrets that the process knows."""

    format: str
    level: str
    levels: dict[str, str]


class AttachFront(Message, frozen=True, kw_only=True):
    """Descriptor: this worker's end of the pipe to front number `front`."""

    front: int


# --- child worker -> supervisor -----------------------------------------------------------------


class Spawned(Message, frozen=True, kw_only=True):
    """The server's process exists. `pid`: 0 for an in-process server."""

    pid: int


class ServerReady(Message, frozen=True, kw_only=True):
    """Handshake and lists are done. Descriptor: blob with the catalogue (see `catalogue`).

    `protocol`: the revision spoken with the server; `start_s`: from spawn to here; `tools`,
    `prompts`, `resources`: how many; `list_hash`: of the lists alone.
    """

    protocol: str
    start_s: float
    tools: int
    prompts: int
    resources: int
    list_hash: str


class Listed(Message, frozen=True, kw_only=True):
    """The lists changed. Descriptor: blob with the whole catalogue anew."""

    tools: int
    prompts: int
    resources: int
    list_hash: str


class ServerDown(Message, frozen=True, kw_only=True):
    """The server is gone; the worker exits after this.

    `reason`: an exit class of `docs/states.md` (`spawn exit clean signal start_timeout protocol
    limit authorization hang tls`); `message`: a sentence; `code`, `signal`: of a process that it
    had. `retry_after_s`: it asked to be left alone for so long.
    `probing`: it exited when asked whether it is modern, as some legacy servers do; the next start
    goes better with `legacy-first` in its spec.
    """

    reason: str
    message: str
    code: int | None = None
    signal: int = 0
    probing: bool = False
    retry_after_s: float = 0.0


class LogLines(Message, frozen=True, kw_only=True):
    """Lines of the server: `stream` is "stderr" or "stdout" (what was no JSON-RPC message).

    `dropped`: lines lost to the rate limit since the last message.
    """

    stream: str
    lines: tuple[str, ...]
    dropped: int = 0


HTTP = "http_"
"""Prefix in `Counted`, before a status: requests that a remote server answered with this status and
without a message."""
THROTTLED = "throttled"
"""Of `Counted`: looks of a worker, some in a second, at which it held its server back."""


class Counted(Message, frozen=True, kw_only=True):
    """Things that happened `n` more times, by the name of the counter (`stray_stdout`,
    `late_reply`, `broken_reply`, `unknown_id`, `unroutable_request`, `unattributed_log`;
    `contested_request`: of the unroutable ones, those that several callers could have caused). Of
    remote servers, requests that failed: `HTTP` with the status, `broken_answer`, `too_large`."""

    counts: dict[str, int]


# --- supervisor -> front ------------------------------------------------------------------------


class ServeOn(Message, frozen=True, kw_only=True):
    """What to serve. Descriptors: blob with a `spec.FrontSpec`, then the listening sockets. What
    there is to know about the servers follows, then `Listen`.

    `front`: this front's number, never used twice in the life of a supervisor.
    """

    front: int


class Listen(Message, frozen=True, kw_only=True):
    """All that there is to know now was sent: accept connections. A front that did so earlier would
    call tools unknown that it is about to hear of."""


class Reconfigure(Message, frozen=True, kw_only=True):
    """Descriptor: blob with the new `spec.FrontSpec`. `vital`: who does not get it must not go on,
    as it would show, or pass on, what nobody has approved."""

    vital: bool = False


class Catalogue(Message, frozen=True, kw_only=True):
    """What a server offers. Descriptor: blob, as in `ServerReady`."""

    server: str
    list_hash: str


class AttachServer(Message, frozen=True, kw_only=True):
    """Descriptor: this front's end of the pipe to the worker of `server`, generation `generation`.
    It replaces the pipe to an older generation. `legacy`: it speaks a revision with sessions."""

    server: str
    generation: int
    legacy: bool = False


class ServerState(Message, frozen=True, kw_only=True):
    """How a server stands. `state` is one of `warming ready idle draining stopped error`.

    `listed`: are its tools part of the lists now? `reason`, `message`: for `error`.
    `retry_after_ms`: until the next start, -1 if none is planned. `hold_ms`: how long a call may
    wait for it, -1 for as long as for any server. `by`: for whom it has processes of their own
    (`sharing`); `roots`: when it asks its client for roots, if that decides which process it has.
    `both`: it speaks both eras, as far as is known, so clients with a session that have none of
    these share one of their era (`sharing.LEGACY`).
    """

    server: str
    state: str
    listed: bool
    generation: int = 0
    reason: str = ""
    message: str = ""
    retry_after_ms: int = -1
    hold_ms: int = -1
    by: By = ""
    roots: Asked = ""
    both: bool = False


class ForgetServer(Message, frozen=True, kw_only=True):
    """The server is no longer configured."""

    server: str


# --- front -> supervisor ------------------------------------------------------------------------


class FrontReady(Message, frozen=True, kw_only=True):
    """The front accepts connections."""


class Tenant(Struct, frozen=True, kw_only=True):
    """Whom a process that is not for all serves. `who`: the word for the client that called;
    `caller`: JSON of what it says of itself; `roots`: JSON, its answer to `roots/list`, empty if it
    was not asked; `modern`: it speaks revision 2026-07-28."""

    who: str = ""
    caller: str = ""
    roots: str = ""
    modern: bool = False


class Wanted(Message, frozen=True, kw_only=True):
    """A client called this server and it is not ready: a reason to start it now. At most one a
    second per server; the supervisor starts it at its own pace. `tenant`: of a process that is not
    for all; a process for a project is wanted by each of its clients once."""

    server: str
    tenant: Tenant | None = None


class Rooted(Message, frozen=True, kw_only=True):
    """The client with this word has other roots now. `roots`: as in `Tenant`."""

    who: str
    roots: str


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session of the handshake era, as far as another front needs to know it.

    `caller`: JSON of what the client said of itself; `level`: of the log messages that it wants, or
    empty; `subscriptions`: URIs of resources that it watches.
    """

    id: str
    endpoint: str
    protocol: str
    caller: str
    level: str = ""
    subscriptions: tuple[str, ...] = ()


class SessionKept(Message, frozen=True, kw_only=True):
    """A session was opened, or what is to be known of it is other now. Descriptor: blob with its
    `SessionRecord`. The supervisor keeps it for a front that comes after this one."""


class SessionsOver(Message, frozen=True, kw_only=True):
    """These sessions have ended."""

    ids: tuple[str, ...]


ToNursery = Fork | Signal | Tune
FromNursery = Born | Forked | ForkFailed | Exited | Halted | Resumed
ToChild = RunServer | Tune | AttachFront | ShowCalls | Stop
FromChild = (
    Spawned | ServerReady | Listed | ServerDown | LogLines | Counted | Beat | Answers | AttachFailed
)  # fmt: skip
#: What is no news of a front but an answer: whoever asked takes it.


HOPS_MAX = 3
"""Moves of a connection for one request: to the owner; to its heir, if it ended meanwhile; back."""
NAME_LENGTH_MAX = 256
"""More than twice the longest that a front makes; it has to fit into a packet."""
NUMBER_DIGITS_MAX = 9
"""Of a front: as many as die in the life of a supervisor."""


class HandOver(Message, frozen=True, kw_only=True):
    """A connection whose first request is for what another front has. From a front to the
    supervisor, and from there to the owner, or back with `hops` used up. Descriptors: blob with
    what was read of the connection, then its socket.

    `name`: of what is asked for, as the client knows it, or nothing for a connection of a front
    that ends: any other may have it, for it is between two requests or asks for nothing that is
    there. `maker`: the number of the front that made this name; `hops`: moves for this request,
    this one included; `last`: nothing counts that comes behind what was read.
    """

    name: str
    maker: int
    hops: int
    last: bool = False

    def back(self) -> "HandOver":
        """To whoever is to say that nobody has it: from there it goes nowhere else."""
        return structs.replace(self, hops=HOPS_MAX)


class Taken(Message, frozen=True, kw_only=True):
    """The oldest connection that was handed to this front, and not yet answered with this, is read
    from now on. Said before a byte of it counts."""


class Adopt(Message, frozen=True, kw_only=True):
    """Sessions of a front that is gone, to be served by this one. Descriptor: blob with a JSON list
    of `SessionRecord`. To a new front sent before `Listen`. `untold`: that front may not have told
    their clients of lists that are others now."""

    untold: bool = False


def marked(token: str, front: int) -> str:
    """The name that this front makes of a token that nobody guesses."""
    return f"{token}.{front}"


def maker(name: str) -> int | None:
    """The number of the front that made this name; None if none did."""
    if len(name) > NAME_LENGTH_MAX:
        return None
    _, dot, digits = name.rpartition(".")
    number = len(digits) <= NUMBER_DIGITS_MAX and digits.isascii() and digits.isdecimal()
    return int(digits) if dot and number else None


NOTICE = "metamcp/traced"
"""The method of the notice that a worker sends before the answer of a server to a traced call.
What a server sends under this name is JSON, and the number of no call begins with the byte of a
brace."""

_LAYOUT = struct.Struct("!Qdd?")

Value = str | int | bool


class Span(Struct, frozen=True, gc=False, array_like=True):
    """One of the two of a call: `server` is the gateway's towards its client, `client` that towards
    the server. `trace_id`, `span_id`, `parent_id`: hexadecimal, `parent_id` empty at the beginning
    of a trace; `far`: the parent is somebody else's. `start`, `end`: monotonic seconds. `state`:
    the `tracestate` that came. `error`: as the metrics have it, empty when it went well."""

    kind: Literal["server", "client"]
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    far: bool
    flags: int
    start: float
    end: float
    attributes: dict[str, Value]
    state: str = ""
    error: str = ""


class Spans(Message, frozen=True, kw_only=True):
    """From a front, once a second or more often while there are any. Descriptor: blob with a JSON
    list of `count` values of `Span`. `lost`: so many more could not be told since the last time."""

    count: int
    lost: int = 0


class Leg(NamedTuple):
    """The server's part of call `id`: when it was sent there, and when the answer came. `far`: the
    server is reached over the network."""

    id: int
    sent: float
    heard: float
    far: bool


def pack_leg(leg: Leg) -> bytes:
    return _LAYOUT.pack(*leg)


def unpack_leg(data: bytes) -> Leg | None:
    """None for what is no such notice."""
    if len(data) != _LAYOUT.size:
        return None
    return Leg(*_LAYOUT.unpack(data))


Answered = CallsShown | Applied | Told
ToFront = (
    ServeOn | Listen | Reconfigure | Catalogue | AttachServer | ServerState | ForgetServer | Adopt
    | HandOver | ShowCalls | Changed | Disclosed | Announce | Embedded | Stop
)  # fmt: skip
FromFront = (
    FrontReady | Wanted | Rooted | FrontStats | Beat | AttachFailed | SessionKept | SessionsOver
    | HandOver | Taken | Spans | Change | Embed | News
)  # fmt: skip


_to_nursery = codec.reader(ToNursery)
_from_nursery = codec.reader(FromNursery)
_to_child = codec.reader(ToChild)
_from_child = codec.reader(FromChild | CallsShown)
_to_front = codec.reader(ToFront)
_from_front = codec.reader(FromFront | Answered)


def pack(message: Message) -> bytes:
    return codec.dump(message)


def unpack_to_nursery(data: bytes) -> ToNursery:
    """Raises codec.Malformed, as all of these do."""
    found: ToNursery = _to_nursery(data)
    return found


def unpack_from_nursery(data: bytes) -> FromNursery:
    found: FromNursery = _from_nursery(data)
    return found


def unpack_to_child(data: bytes) -> ToChild:
    found: ToChild = _to_child(data)
    return found


def unpack_from_child(data: bytes) -> FromChild | CallsShown:
    found: FromChild | CallsShown = _from_child(data)
    return found


def unpack_to_front(data: bytes) -> ToFront:
    found: ToFront = _to_front(data)
    return found


def unpack_from_front(data: bytes) -> FromFront | Answered:
    found: FromFront | Answered = _from_front(data)
    return found
