"""Messages between supervisor, nursery and workers on the control sockets.

Owns: the messages as tagged values, and their bytes, also those that move connections and sessions
from front to front (and the number of the front in a name) and those about spans of traced calls.
Never: sending them (`packets`), views (`disclosure`), vectors (`embedding`), figures (`figures`).

The docstring of a message names its descriptors, in order. "blob" means a descriptor created by
`packets.blob`, for values that may be larger than a packet.
"""

import struct
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.consent_records import (
    ConsentClosed,
    ConsentDecided,
    ConsentGiven,
    ConsentGrants,
    ConsentOpened,
)
from metamcp_worker.ipc.disclosure import (
    AnnounceLists,
    DisclosureApplied,
    ListsAnnounced,
    ServerListsChanged,
)
from metamcp_worker.ipc.disclosure import DisclosureUpdate as DisclosureUpdate  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.disclosure import OrderReply as OrderReply  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.disclosure import OrderRequest as OrderRequest  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.embedding import Embed, Embedded
from metamcp_worker.ipc.envelope import Message as Message  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import BUCKETS_S as BUCKETS_S  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import (
    OVERHEAD_BUCKETS_S as OVERHEAD_BUCKETS_S,  # noqa: PLC0414 - and so are these
)
from metamcp_worker.ipc.figures import AnswerStats as AnswerStats  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import AnswerTimes as AnswerTimes  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import CallsShown as CallsShown  # noqa: PLC0414 - and so are these
from metamcp_worker.ipc.figures import CallStats as CallStats  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import CallUnderWay as CallUnderWay  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import DayCounts as DayCounts  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import Durations as Durations  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import Figures as Figures  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import FrontStats as FrontStats  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import ShowCalls as ShowCalls  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import ShowKeyUse
from metamcp_worker.ipc.figures import ShowPath as ShowPath  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import ShowTools as ShowTools  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.figures import ToolStats as ToolStats  # noqa: PLC0414 - re-exported
from metamcp_worker.ipc.key_table import ChangeKeys, KeysApplied
from metamcp_worker.ipc.process_names import By as By  # noqa: PLC0414 - re-exported
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


class NurseryReady(Message, frozen=True, kw_only=True):
    """The nursery is ready to fork. `missing`: modules that it could not preload, with reasons."""

    pid: int
    missing: tuple[str, ...] = ()


class Forked(Message, frozen=True, kw_only=True):
    ticket: int
    pid: int


class ForkFailed(Message, frozen=True, kw_only=True):
    """The nursery could not fork the worker. `reason` is a sentence."""

    ticket: int
    reason: str


class WorkerExit(Message, frozen=True, kw_only=True):
    """A worker is gone, with all its descendants.

    `code`: exit status, or None when a signal ended it; `signal`: its number, or 0;
    `orphans`: how many of its descendants had to be killed (of workers that died together the first
    has the number for all). The supervisor adds `stacks`, the last ones that the worker wrote, on
    request or at a crash, and `with_nursery` where the nursery died too.
    """

    pid: int
    code: int | None = None
    signal: int = 0
    orphans: int = 0
    stacks: str = ""
    with_nursery: bool = False


class Halted(Message, frozen=True, kw_only=True):
    """A worker was stopped by SIGSTOP or the like."""

    pid: int


class Resumed(Message, frozen=True, kw_only=True):
    pid: int


# --- supervisor -> any worker ---------------------------------------------------------------


class Stop(Message, frozen=True, kw_only=True):
    """Finish the calls in flight, for at most `grace_s`, then exit. `heirs`: for a front; other
    fronts serve on and get its connections."""

    grace_s: float
    heirs: bool = False


# --- any worker -> supervisor ---------------------------------------------------------------


class Heartbeat(Message, frozen=True, kw_only=True):
    """Heartbeat of the event loop, once a second; the worker of a server that has nothing to report
    has a pulse instead (`runtime.after_fork`). `lag_ms`: how late the loop was with it. `idle_s`:
    seconds since the server was last used, 0 while it is in use. `probes_missed`: by the server, in
    a row."""

    seq: int
    lag_ms: float = 0.0
    inflight: int = 0
    queued: int = 0
    idle_s: float = 0.0
    probes_missed: int = 0


class AttachFailed(Message, frozen=True, kw_only=True):
    """An `AttachFront` or `AttachServer` came without its descriptor, because this process has no
    free descriptors. Try again later."""

    what: str
    number: int


# --- supervisor -> child worker ---------------------------------------------------------------


class RunServer(Message, frozen=True, kw_only=True):
    """Start this server. Descriptor: blob with a `spec.ServerSpec`. `generation`: of the instance;
    goes up by one with every start. `version`: of the gateway, as servers get it."""

    generation: int
    version: str


class Tune(Message, frozen=True, kw_only=True):
    """Log from now on as `spec.LogSpec` says, with the secrets that the process knows.
    `processes_max`: maximum number of processes of the server from now on, if the worker holds one;
    0: as before."""

    format: str
    level: str
    levels: dict[str, str]
    processes_max: int = 0


class AttachFront(Message, frozen=True, kw_only=True):
    """Use this pipe to front number `front`. Descriptor: this worker's end of it."""

    front: int


# --- child worker -> supervisor -----------------------------------------------------------------


class Spawned(Message, frozen=True, kw_only=True):
    """The server's process exists. `pid`: 0 for an in-process server. `achieved`: what confines it,
    empty for a server that is not to be confined; `lacking`: what it is not kept from though its
    profile asks for it."""

    pid: int
    achieved: str = ""
    lacking: tuple[str, ...] = ()


class ServerReady(Message, frozen=True, kw_only=True):
    """Handshake and lists are done. Descriptor: blob with the catalogue (see `server_catalog`).

    `protocol`: the revision spoken with the server; `start_s`: seconds from spawn to now;
    `list_hash`: hash of the lists alone.
    """

    protocol: str
    start_s: float
    list_hash: str


class CatalogueChanged(Message, frozen=True, kw_only=True):
    """The lists changed. Descriptor: blob with the whole new catalogue."""


class ServerDown(Message, frozen=True, kw_only=True):
    """The server is gone; the worker exits after this.

    `reason`: an exit class of `docs/states.md` (`spawn exit clean signal start_timeout protocol
    limit authorization hang tls`); `message`: a sentence; `code`, `signal`: of its process, if it
    had one. `retry_after_s`: seconds that the server asked to be left alone. `probing`: the server
    exited when it was asked whether it is modern, as some legacy servers do; the next start should
    have `legacy-first` in its spec.
    """

    reason: str
    message: str
    code: int | None = None
    signal: int = 0
    probing: bool = False
    retry_after_s: float = 0.0


class LogLines(Message, frozen=True, kw_only=True):
    """Lines of the server. `stream`: "stderr", or "stdout" for lines that are not JSON-RPC.

    `dropped`: lines lost to the rate limit since the last message.
    """

    stream: str
    lines: tuple[str, ...]
    dropped: int = 0


HTTP = "http_"
"""Prefix of a counter in `EventCounts`, before a status: requests that a remote server answered
with this status and without a message."""
REFUSED = "refused_"
"""Prefix of a counter in `EventCounts` for a right that a sandbox refused, which
`confinement.denials.denied_of` reads."""
LEARNT = "learnt_"
"""The same for a right that the server used in a trial, in which it had all of them."""
THROTTLED = "throttled"
"""Counter in `EventCounts`: checks of a worker, several a second, that found its server over its
budget of messages and so not read from."""
LARGE_MESSAGE = "large_message"
"""Counter in `EventCounts` of a server that shares its worker: messages for which the other servers
of that worker waited noticeably."""


class EventCounts(Message, frozen=True, kw_only=True):
    """Events since the last message, by the name of the counter: `stray_stdout`, `late_reply`,
    `broken_reply`, `unknown_id`, `unroutable_request`, `unattributed_log`; `contested_request`: the
    unroutable requests that several callers could have caused. For failed requests to remote
    servers: `HTTP` with the status, `broken_answer`, `too_large`. For refused rights: names that
    begin with `REFUSED` or `LEARNT`. For kept results: `result_kept`, `result_tokens_saved`."""

    counts: dict[str, int]


# --- supervisor -> front ------------------------------------------------------------------------


class ServeOn(Message, frozen=True, kw_only=True):
    """Serve these endpoints. Descriptors: blob with a `spec.FrontSpec`, then the listening sockets.
    Messages about all servers follow, then `Listen`.

    `front`: this front's number, never used twice in the life of a supervisor.
    """

    front: int


class Listen(Message, frozen=True, kw_only=True):
    """Accept connections: messages about all servers were sent. A front that accepted earlier would
    refuse tools as unknown that it is about to hear of."""


class Reconfigure(Message, frozen=True, kw_only=True):
    """Use a new configuration. Descriptor: blob with the new `spec.FrontSpec`. `vital`: a front
    that does not get it must end, because it would show or forward unapproved definitions."""

    vital: bool = False


class Catalogue(Message, frozen=True, kw_only=True):
    """Catalogue of a server. Descriptor: blob, as in `ServerReady`."""

    server: str
    list_hash: str


class AttachServer(Message, frozen=True, kw_only=True):
    """Use this pipe to the worker of `server`, generation `generation`, in place of the pipe to an
    older generation. Descriptor: this front's end of it. `legacy`: the server speaks a revision
    with sessions."""

    server: str
    generation: int
    legacy: bool = False


class AttachRole(Message, frozen=True, kw_only=True):
    """Connect to this process of the gateway by this connector from now on (`packets`), in place of
    the one before. Descriptor: the connector."""

    role: str


class ServerState(Message, frozen=True, kw_only=True):
    """State of a server. `state` is one of `warming ready idle draining stopped error
    quarantined`.

    `listed`: whether its tools are part of the lists now. `reason`, `message`: for `error`.
    `retry_after_ms`: until the next start, -1 if none is planned. `call_after_ms`: until a call
    starts it, -1 if none does. `hold_ms`: how long a call may wait for the server, -1 for the
    default. `by`: whether it has a process for each client or
    project (`process_names.By`); `roots`: when it asks its client for roots, if that decides which
    process a client gets. `both`: it speaks both eras, as far as known, so clients with a session
    that have none of these processes share one of their era (`process_names.LEGACY`).
    """

    server: str
    state: str
    listed: bool
    generation: int = 0
    reason: str = ""
    message: str = ""
    retry_after_ms: int = -1
    call_after_ms: int = -1
    hold_ms: int = -1
    by: By = ""
    roots: Asked = ""
    both: bool = False


class ForgetServer(Message, frozen=True, kw_only=True):
    """The server is not configured any more."""

    server: str


# --- front -> supervisor ------------------------------------------------------------------------


class FrontReady(Message, frozen=True, kw_only=True):
    """The front accepts connections."""


class Tenant(Struct, frozen=True, kw_only=True):
    """Client of a process that is not for all clients. `who`: the word for the client that called;
    `caller`: JSON that the client sends about itself; `roots`: JSON, its answer to `roots/list`,
    empty if it was not asked; `modern`: it speaks revision 2026-07-28."""

    who: str = ""
    caller: str = ""
    roots: str = ""
    modern: bool = False


class ServerWanted(Message, frozen=True, kw_only=True):
    """A client called this server, which is not ready: a reason to start it now. Sent at most once
    a second per server; the supervisor starts it at its own pace. `tenant`: client of a process
    that is not for all; each client of a process for a project is reported once."""

    server: str
    tenant: Tenant | None = None


class RootsChanged(Message, frozen=True, kw_only=True):
    """The client with this word has new roots. `roots`: as in `Tenant`."""

    who: str
    roots: str


class SessionRecord(Struct, frozen=True, kw_only=True):
    """Data of a session of the handshake era that another front needs to continue it.

    `caller`: JSON that the client sent about itself; `level`: of the log messages that it wants, or
    empty; `subscriptions`: URIs of resources that it watches; `principal`: its owner; `key`: id of
    the API key that opened it, empty without one.
    """

    id: str
    endpoint: str
    protocol: str
    caller: str
    level: str = ""
    subscriptions: tuple[str, ...] = ()
    principal: str = "local"
    key: str = ""


class SessionKept(Message, frozen=True, kw_only=True):
    """A session was opened, or its data changed. Descriptor: blob with its `SessionRecord`. The
    supervisor keeps it for a front that comes after this one."""


class SessionsOver(Message, frozen=True, kw_only=True):
    """Sessions have ended."""

    ids: tuple[str, ...]


ToNursery = Fork | Signal | Tune
FromNursery = NurseryReady | Forked | ForkFailed | WorkerExit | Halted | Resumed
ToChild = RunServer | Tune | AttachFront | ShowCalls | Stop
FromChild = (
    Spawned | ServerReady | CatalogueChanged | ServerDown | LogLines | EventCounts | Heartbeat
    | AnswerTimes | AttachFailed
)  # fmt: skip


class HostServer(Message, frozen=True, kw_only=True):
    """To a shared worker: work for one more server. Descriptor: the worker's end of a control
    socket for this server alone, on which it gets what a worker of its own would get. `slot`:
    number of the server in this worker, unique."""

    slot: int


class DropServer(Message, frozen=True, kw_only=True):
    """To a shared worker: end the server with this number at once."""

    slot: int


class ServerLeft(Message, frozen=True, kw_only=True):
    """A server of a shared worker is gone, with everything below it. `code`: exit code that a
    worker of its own would have."""

    slot: int
    code: int


ToShared = HostServer | DropServer
FromShared = ServerLeft


HOPS_MAX = 3
"""Maximum moves of a connection for one request: to the owner; to the owner's heir, if the owner
has ended; back."""
NAME_LENGTH_MAX = 256
"""Maximum characters of a name: twice the longest name of a front, and it fits into a packet."""
NUMBER_DIGITS_MAX = 9
"""Maximum digits of a front's number: no supervisor lives to start more fronts than that."""


class HandOver(Message, frozen=True, kw_only=True):
    """A connection whose first request is for a session or task of another front. From a front to
    the supervisor, and from there to the owner, or back with `hops` used up. Descriptors: blob with
    the bytes read from the connection, then its socket.

    `name`: of the session or task, as the client knows it; empty for a connection of a front that
    ends, which any other front may take, because it is between two requests or does not need that
    front. `maker`: the number of the front that created the name; `hops`: moves for this request,
    this one included; `last`: bytes that come after the ones read do not count.
    """

    name: str
    maker: int
    hops: int
    last: bool = False

    def with_final_hop(self) -> "HandOver":
        """Return the message for a front that is to answer that no front has the name; the
        connection goes nowhere else from there."""
        return structs.replace(self, hops=HOPS_MAX)


class ConnectionTaken(Message, frozen=True, kw_only=True):
    """Acknowledgement of a front: from now on it reads the oldest connection that was handed to it
    and not yet acknowledged. Sent before a byte of the connection counts."""


class AdoptSessions(Message, frozen=True, kw_only=True):
    """Sessions of a front that is gone, to be served by this one. Descriptor: blob with a JSON list
    of `SessionRecord`. A new front gets it before `Listen`. `untold`: the front that is gone may
    not have notified their clients that lists changed."""

    untold: bool = False


def with_front_number(token: str, front: int) -> str:
    """Return the name that this front makes of a secret token."""
    return f"{token}.{front}"


def maker(name: str) -> int | None:
    """Return the number of the front that created this name; None if no front did."""
    if len(name) > NAME_LENGTH_MAX:
        return None
    _, dot, digits = name.rpartition(".")
    number = len(digits) <= NUMBER_DIGITS_MAX and digits.isascii() and digits.isdecimal()
    return int(digits) if dot and number else None


NOTICE = "metamcp/traced"
"""Method of the notice that a worker sends before the answer to a traced call. A notification that
a server sends under this name is not mistaken for it: JSON begins with a brace, and the packed
number of a call never begins with that byte."""

_LAYOUT = struct.Struct("!Qdd?")
_BRACE = b"{"

Value = str | int | bool
SPAN_KIND, INTERNAL = "span.kind", "internal"
"""Attribute and its value for a span that is neither towards a client nor towards a server."""
SPAN_STATUS = "otel.status_description"
"""Attribute with a sentence about an error."""


class Span(Struct, frozen=True, gc=False, array_like=True):
    """Span of a trace. A traced call has two: `kind` is `server` for the gateway's span towards its
    client, `client` for the span towards the server. `trace_id`, `span_id`, `parent_id`:
    hexadecimal, `parent_id` empty at the beginning of a trace; `far`: the parent is a span of
    another program. `start`, `end`: monotonic seconds. `state`: the `tracestate` of the request.
    `error`: as in the metrics, empty for a call that succeeded. SPAN_KIND and SPAN_STATUS are in
    `attributes`, because a program of another version could not read another member."""

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
    """Spans of a front, once a second or more often while there are any. Descriptor: blob with a
    JSON list of `count` values of `Span`. `lost`: spans lost since the last message."""

    count: int
    lost: int = 0


class ServerCallTimes(NamedTuple):
    """The server's part of call `id`. `sent`, `heard`: monotonic seconds when the call was sent to
    the server and when the answer came; `far`: the server is reached over the network. `request`:
    id of the request at the server, as a text; `protocol`: revision that the server speaks;
    `address`, `port`: of a server at a URL, empty and 0 for others."""

    id: int
    sent: float
    heard: float
    far: bool
    request: str = ""
    protocol: str = ""
    address: str = ""
    port: int = 0


def pack_leg(leg: ServerCallTimes) -> bytes:
    return _LAYOUT.pack(*leg[:4]) + codec.dump(leg[4:])


def unpack_leg(data: bytes) -> ServerCallTimes | None:
    """Return the times in a notice; None if the bytes are not such a notice."""
    if len(data) < _LAYOUT.size or data.startswith(_BRACE):
        return None
    number, sent, heard, far = _LAYOUT.unpack_from(data)
    try:
        about = codec.decode_as(tuple[str, str, str, int], data[_LAYOUT.size :])
    except codec.Malformed:  # a worker of an earlier version says less
        return ServerCallTimes(number, sent, heard, far)
    return ServerCallTimes(number, sent, heard, far, *about)


#: Answers of a front; the part of the supervisor that asked takes them.
Answered = CallsShown | DisclosureApplied | ListsAnnounced
ToFront = (
    ServeOn | Listen | Reconfigure | Catalogue | AttachServer | AttachRole | ServerState
    | ForgetServer | AdoptSessions | HandOver | ShowCalls | OrderReply | DisclosureUpdate
    | AnnounceLists | Embedded | ChangeKeys | DayCounts | ConsentGrants | ConsentDecided | ShowPath
    | ShowTools | ShowKeyUse | Stop
)  # fmt: skip
FromFront = (
    FrontReady | ServerWanted | RootsChanged | FrontStats | Heartbeat | AttachFailed | SessionKept
    | SessionsOver | HandOver | ConnectionTaken | Spans | OrderRequest | Embed | ServerListsChanged
    | KeysApplied | DayCounts | ConsentOpened | ConsentClosed | ConsentGiven
)  # fmt: skip


_to_nursery = codec.reader(ToNursery)
_from_nursery = codec.reader(FromNursery)
_to_child = codec.reader(ToChild)
_from_child = codec.reader(FromChild | CallsShown)
_to_shared = codec.reader(ToShared)
_from_shared = codec.reader(FromShared)
_to_front = codec.reader(ToFront)
_from_front = codec.reader(FromFront | Answered)


def pack(message: Message) -> bytes:
    return codec.dump(message)


def unpack_to_nursery(data: bytes) -> ToNursery:
    """Decode a message. Raises codec.Malformed, as the other unpack functions do."""
    message: ToNursery = _to_nursery(data)
    return message


def unpack_from_nursery(data: bytes) -> FromNursery:
    message: FromNursery = _from_nursery(data)
    return message


def unpack_to_child(data: bytes) -> ToChild:
    message: ToChild = _to_child(data)
    return message


def unpack_to_shared(data: bytes) -> ToShared:
    message: ToShared = _to_shared(data)
    return message


def unpack_from_shared(data: bytes) -> FromShared:
    message: FromShared = _from_shared(data)
    return message


def unpack_from_child(data: bytes) -> FromChild | CallsShown:
    message: FromChild | CallsShown = _from_child(data)
    return message


def unpack_to_front(data: bytes) -> ToFront:
    message: ToFront = _to_front(data)
    return message


def unpack_from_front(data: bytes) -> FromFront | Answered:
    message: FromFront | Answered = _from_front(data)
    return message
