"""Notifications that are passed on: of the server to one call or to all fronts, of a client to the
server; and the worker's own about a traced call.

Owns: the recipient of each notification, the merging of updates of resources (`Updates`). Never:
lists that change, subscriptions, questions.
"""

from msgspec import Raw

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Actions, CountOnce, ReplyToFront, TellFronts, WriteToServer
from metamcp_worker.child.call_queue import SentCall
from metamcp_worker.child.jsonrpc_lines import PROGRESSING
from metamcp_worker.child.lists import TaskOwners, word_of
from metamcp_worker.child.server_calls import ServerCalls
from metamcp_worker.ipc import codec, messages
from metamcp_worker.ipc.frames import METHOD_BYTES_MAX, ClientNotice, Notice, Progress
from metamcp_worker.ipc.messages import ServerCallTimes

LOG = "notifications/message"
UPDATED = "notifications/resources/updated"
DEFAULT_PORTS = {"http": 80, "https": 443}
UPDATES_MAX = 4096
"""Maximum number of resources whose updates are merged between two ticks."""

#: Notifications that name their subject, from which fronts know the clients concerned.
_FOR_ALL = frozenset({
    "notifications/elicitation/complete",
    UPDATED,
    "notifications/tasks",
    "notifications/tasks/status",
})  # fmt: skip

#: Notifications about the gateway's own connection, which do not concern a client; and about
#: changes that no client was declared to announce.
_NOT_FOR_SERVERS = frozenset({
    "notifications/cancelled",
    "notifications/initialized",
    "notifications/roots/list_changed",
})  # fmt: skip


class Updates:
    """Merging of updates of resources: between two ticks the first update of a resource is passed
    on at once, and all others as one at the next tick."""

    def __init__(self) -> None:
        self._again: dict[bytes, bool] = {}

    def defer_update(self, params: bytes) -> bool:
        """Whether this update is passed on later; if not, pass it on now."""
        if params in self._again:
            self._again[params] = True
            return True
        if len(self._again) < UPDATES_MAX:
            self._again[params] = False
        return False

    @property
    def is_merging(self) -> bool:
        """Whether an update is passed on later, or was passed on since the last tick."""
        return bool(self._again)

    def tick(self) -> Actions:
        if not self._again:
            return []
        due = [params for params, again in self._again.items() if again]
        self._again = dict.fromkeys(due, False)
        return [TellFronts(Notice(UPDATED, params)) for params in due]


def times(call: SentCall, key: bytes, heard: float, url: str | None, protocol: str) -> ReplyToFront:
    """Return the times at which the server had this call, for its front, to send before the answer.
    `key`: raw id of the request; `heard`: when the answer came; `url`: of a remote server."""
    address, port = "", 0
    if url is not None:
        from urllib.parse import urlsplit  # a worker of a process on this machine does not need it

        parts = urlsplit(url)
        address, port = parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    request = codec.text(key) or key.decode()
    leg = ServerCallTimes(
        call.call, call.since, heard, url is not None, request, protocol, address, port
    )
    return ReplyToFront(call.front, Notice(messages.NOTICE, messages.pack_leg(leg)))


def forward_progress(params: bytes, calls: ServerCalls, now: float) -> Actions:
    """Pass on progress to the call whose id is the token. A front whose client did not ask for it
    only learns that there is some."""
    try:
        members = codec.level(params)
    except codec.Malformed:
        return [CountOnce("broken_notification")]
    call = calls.on_progress(bytes(members.pop("progressToken", Raw())), now)
    if call is None or not (call.wants_progress or call.method in PROGRESSING):
        return [CountOnce("unknown_token")]
    body = codec.dump(members) if call.wants_progress else b""
    return [ReplyToFront(call.front, Progress(call.call, body))]


def route_notification(
    method: str,
    params: bytes,
    calls: ServerCalls,
    stream: bytes | None,
    now: float,
    owners: TaskOwners,
    *,
    modern: bool,
) -> Actions:
    """Pass on any other notification of the server. `stream`: see `transport`; `owners`: of its
    tasks. Messages of the task of another client than the caller go to all fronts, which know the
    owner."""
    if len(method.encode()) > METHOD_BYTES_MAX:
        return [CountOnce("broken_notification")]
    if method in _FOR_ALL:
        return [TellFronts(Notice(method, params))]
    key = calls.cause(stream, now)
    if (owner := owners.find(params)) and not (key and owner == word_of(calls.in_flight[key])):
        return [TellFronts(Notice(method, params))]
    if method == LOG and modern and not stream:
        # A modern server logs for those requests that asked for it.
        key = _newest_with_logs(calls) if key else b""
    if key:
        call = calls.in_flight[key]
        return [ReplyToFront(call.front, Notice(method, params, call.call))]
    if key is not None:  # another client must not hear what it may say of the call
        return [CountOnce("unattributed_log")]
    return [TellFronts(Notice(method, params))]


def forward_notification(tell: ClientNotice, *, modern: bool) -> Actions:
    """Pass on a notification of a client to the server. Modern servers take none."""
    if modern or tell.method in _NOT_FOR_SERVERS:
        return [CountOnce("untold_notification")]
    return [WriteToServer(jsonrpc_lines.notification(tell.method, tell.body))]


def _newest_with_logs(calls: ServerCalls) -> bytes:
    for key in reversed(calls.in_flight):
        if "logLevel" in codec.members(calls.in_flight[key].caller):
            return key
    return b""
