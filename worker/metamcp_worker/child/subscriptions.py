"""Subscriptions of clients at a server, in both eras.

Owns: which front watches which resource (`UriWatchers`), the calls that wait for the server
(`Waiters`), the requests that the server needs: one for each resource at a legacy server
(`LegacySubscriptions`), one for everything at a modern server (`ModernSubscriptions`). Never:
lines, ids, which client gets an update.

A legacy server gets only the first subscribe to a resource and the last unsubscribe; all others are
answered here. For each resource only one request is open at a time, so that the server sees a
sensible order whatever the clients do during this time.

A modern server gets one `subscriptions/listen` with all watched resources and tasks, and with the
lists whose changes are wanted. When these change, a new listen replaces the old one once the server
has acknowledged it.
"""

import math
from collections.abc import Callable, Iterable

from msgspec import Raw, Struct

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Actions, CancelRequest, ReplyToFront, RequestPurpose
from metamcp_worker.child.jsonrpc_lines import ServerErrors
from metamcp_worker.child.own_requests import OwnRequest, OwnRequests
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Error, Result


class _Resource(Struct):
    """Watched resource at a legacy server. `on`: whether the server knows that the resource is
    watched. `key`, `method`, `deadline`: of the open request; `key` is empty without one."""

    on: bool = False
    key: bytes = b""
    method: str = ""
    deadline: float = 0.0


class LegacySubscriptions:
    """Subscriptions at a legacy server. `timeout_s`: seconds for the server to answer. `calls_max`:
    maximum number of calls that wait for it."""

    def __init__(
        self, own: OwnRequests, faults: ServerErrors, *, timeout_s: float, calls_max: int
    ) -> None:
        self._own = own
        self._faults = faults
        self._timeout_s = timeout_s
        self._holders = UriWatchers()
        self._waiters = Waiters(faults, calls_max=calls_max)
        self._resources: dict[str, _Resource] = {}
        self._open: dict[bytes, str] = {}

    @property
    def waiting_count(self) -> int:
        """Number of calls that are not answered yet."""
        return len(self._waiters)

    @property
    def has_watchers(self) -> bool:
        """Whether a client watches a resource."""
        return bool(self._holders.uris)

    def call(
        self, front: int, frame: CallFrame, deadline: float, timeout_s: float, now: float
    ) -> Actions:
        """Subscribe or unsubscribe a front."""
        uri = uri_of(frame)
        done = ReplyToFront(front, Result(frame.id, b"{}"))
        if not uri:
            problem = f"can take a URI of 1 to {URI_BYTES_MAX} bytes only"
            return [self._faults.answer(front, frame.id, Code.INVALID_PARAMS, problem)]
        if frame.method == UNSUBSCRIBE:
            if not self._holders.remove(front, uri) or self._is_watched(uri):
                return [done]
        else:
            resource = self._resources.get(uri)
            if resource is not None and resource.on and not resource.key:
                self._holders.add(front, uri)
                return [done]
            if self._waiters.full or (resource is None and len(self._resources) >= URIS_MAX):
                problem = (
                    f"has {len(self._resources)} subscriptions, {self.waiting_count} calls wait"
                )
                return [self._faults.answer(front, frame.id, Code.OVERLOADED, problem)]
        self._waiters.add(front, frame, uri, deadline, timeout_s)
        return self._step(uri, now)

    def cancel(self, front: int, call: int) -> None:
        """Forget a call that its front does not wait for any more; the front does not watch
        then."""
        self._waiters.take(lambda waiter: waiter.front == front and waiter.call == call)

    def front_gone(self, front: int, now: float) -> Actions:
        self._waiters.take(lambda waiter: waiter.front == front)
        uris = self._holders.front_gone(front)
        return [action for uri in uris for action in self._step(uri, now)]

    def on_answer(self, key: bytes, result: bytes, error: bytes, now: float) -> Actions:
        """Handle the answer of the server, or the error in place of an answer that will not
        come."""
        uri = self._open.pop(key)
        resource = self._resources[uri]
        resource.key = b""
        done = self._waiters.take(
            lambda waiter: waiter.uri == uri and waiter.method == resource.method
        )
        resource.on = resource.method == SUBSCRIBE and not error
        for waiter in done if resource.on else ():
            self._holders.add(waiter.front, uri)
        return [*build_replies(done, result, error), *self._step(uri, now)]

    def tick(self, now: float) -> Actions:
        actions = self._waiters.answer_expired(now)
        for key, uri in list(self._open.items()):
            resource = self._resources[uri]
            if resource.deadline <= now:
                self._own.take(key)
                actions.append(
                    CancelRequest(key, jsonrpc_lines.build_cancel_notification(key, b"timeout"))
                )
                error = self._faults.body(
                    Code.TIMED_OUT, f"did not answer {resource.method} in time"
                )
                actions += self.on_answer(key, b"", error, now)
        return actions

    def fail_waiters(self, error: bytes) -> Actions:
        """Answer all waiting calls with this error, because the connection is lost."""
        return build_replies(self._waiters.take(lambda _: True), b"", error)

    def _is_watched(self, uri: str) -> bool:
        return self._holders.has_watcher(uri) or self._waiters.has_waiter(uri)

    def _step(self, uri: str, now: float) -> Actions:
        """Return the request that the server must get now about this resource, if any."""
        resource = self._resources.setdefault(uri, _Resource())
        is_wanted = self._is_watched(uri)
        if resource.key or (is_wanted and resource.on):
            return []
        if not is_wanted and not resource.on:
            del self._resources[uri]
            return []
        resource.method = SUBSCRIBE if is_wanted else UNSUBSCRIBE
        resource.deadline = now + self._timeout_s
        ask = OwnRequest(resource.method, codec.dump({"uri": uri}))
        request = self._own.ask(RequestPurpose.SUBSCRIBE, ask)
        resource.key = request.key
        self._open[request.key] = uri
        return [request]


SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"
METHODS = frozenset({SUBSCRIBE, UNSUBSCRIBE})
"""Methods of calls about subscriptions, whatever the era of the server."""

URIS_MAX = 10_000
"""Maximum number of resources watched at one server."""
URI_BYTES_MAX = 2048


class Waiter(Struct, gc=False):
    """Call that waits for the decision of the server."""

    front: int
    call: int
    method: str
    uri: str
    deadline: float
    timeout_s: float


class UriWatchers:
    """Fronts by the URI that they watch. A front may watch a URI several times, for several
    clients."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}

    @property
    def uris(self) -> Iterable[str]:
        return self._counts.keys()

    def has_watcher(self, uri: str) -> bool:
        return uri in self._counts

    def add(self, front: int, uri: str) -> None:
        fronts = self._counts.setdefault(uri, {})
        fronts[front] = fronts.get(front, 0) + 1

    def remove(self, front: int, uri: str) -> bool:
        """Let a front watch a URI one time less. Return False if the front did not watch it."""
        fronts = self._counts.get(uri, {})
        if front not in fronts:
            return False
        fronts[front] -= 1
        if not fronts[front]:
            self._drop(uri, front)
        return True

    def front_gone(self, front: int) -> list[str]:
        """Forget a front. Return the URIs that no front watches now."""
        mine = [uri for uri, fronts in self._counts.items() if front in fronts]
        for uri in mine:
            self._drop(uri, front)
        return [uri for uri in mine if uri not in self._counts]

    def _drop(self, uri: str, front: int) -> None:
        fronts = self._counts[uri]
        del fronts[front]
        if not fronts:
            del self._counts[uri]


class Waiters:
    """Calls that wait for the server, at most `calls_max`. Each is taken out exactly once, with its
    answer or without one."""

    def __init__(self, faults: ServerErrors, *, calls_max: int) -> None:
        self._faults = faults
        self._calls_max = calls_max
        self._all: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def full(self) -> bool:
        return len(self._all) >= self._calls_max

    def has_waiter(self, uri: str) -> bool:
        """Whether a call waits to watch this URI."""
        return any(waiter.uri == uri and waiter.method == SUBSCRIBE for waiter in self._all)

    def add(self, front: int, call: CallFrame, uri: str, deadline: float, timeout_s: float) -> None:
        self._all.append(Waiter(front, call.id, call.method, uri, deadline, timeout_s))

    def uris(self) -> set[str]:
        """Return the URIs of all waiting calls."""
        return {waiter.uri for waiter in self._all}

    def take(self, is_taken: Callable[[Waiter], bool]) -> list[Waiter]:
        taken = [waiter for waiter in self._all if is_taken(waiter)]
        if taken:
            self._all = [waiter for waiter in self._all if not is_taken(waiter)]
        return taken

    def answer_expired(self, now: float) -> Actions:
        """Answer the calls whose time is over with an error."""
        return [
            self._faults.timed_out(waiter.front, waiter.call, waiter.method, waiter.timeout_s)
            for waiter in self.take(lambda waiter: waiter.deadline <= now)
        ]


def build_replies(waiters: Iterable[Waiter], result: bytes, error: bytes = b"") -> Actions:
    """Return the same answer for each of these calls: a raw result or, if there is one, a raw
    error."""
    return [
        ReplyToFront(
            waiter.front, Error(waiter.call, error) if error else Result(waiter.call, result)
        )
        for waiter in waiters
    ]


def uri_of(call: CallFrame) -> str:
    """Return the URI that a subscription is about; empty if it is missing or too long."""
    uri = codec.text(codec.members(call.params).get("uri", Raw(b"null")))
    return uri if uri and len(uri.encode()) <= URI_BYTES_MAX else ""


LISTEN_AGAIN_S = 5.0
"""Seconds until the next listen after a server ended or refused one. The lists are then read again,
because the server could not announce changes during the pause."""
LISTEN_AGAIN_S_MAX = 60.0
"""Maximum of these seconds, which double each time that a listen fails again."""
URIS_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of all URIs together, because they are in one request, with room for the rest."""
TASKS_MAX = 10_000
TASK_ID_BYTES_MAX = 256

_SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
#: Client capabilities that a listen with tasks has to declare.
_WITH_TASKS = b'{"clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}'


class _Wanted(Struct, frozen=True):
    uris: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()


class _Listen(Struct):
    """Listen that was sent. `honoured`: the URIs whose updates the server has promised; None before
    its acknowledgement."""

    key: bytes
    asked: _Wanted
    deadline: float
    honoured: frozenset[str] | None = None


class _Filter(Struct, rename="camel", frozen=True):
    resource_subscriptions: list[str] = []


class _Acknowledged(Struct):
    notifications: _Filter = _Filter()


class _Tasks(Struct, rename="camel"):
    task_ids: list[str]


class ModernSubscriptions:
    """Subscriptions at a modern server. `timeout_s`: seconds for an acknowledgement. `calls_max`:
    maximum number of calls that wait for one.

    `gap`: whether changes of lists may have been missed since the session set it to False.
    """

    def __init__(
        self, own: OwnRequests, faults: ServerErrors, *, timeout_s: float, calls_max: int
    ) -> None:
        self._own = own
        self._faults = faults
        self._timeout_s = timeout_s
        self._kinds: list[str] | None = None
        self._holders = UriWatchers()
        self._waiters = Waiters(faults, calls_max=calls_max)
        self._tasks: dict[int, frozenset[str]] = {}
        self._now: _Listen | None = None
        self._next: _Listen | None = None
        self._again_at = 0.0
        """When to listen again after a listen was refused or has ended; 0 if nothing was."""
        self._again_s = LISTEN_AGAIN_S
        self._asked = self._worked = False
        self.gap = False

    @property
    def waiting_count(self) -> int:
        """Number of calls that are not answered yet."""
        return len(self._waiters)

    @property
    def has_watchers(self) -> bool:
        """Whether a client watches a resource or task. Changes of lists do not count: they are
        found when the server is started next."""
        return bool(self._holders.uris or any(self._tasks.values()))

    def start(self, kinds: frozenset[str], now: float) -> Actions:
        """Begin to listen, because the server is ready and modern. `kinds`: the lists that it
        has."""
        self._kinds = sorted(kinds & {"tools", "prompts", "resources"})
        return self._step(now)

    # --- what fronts want -------------------------------------------------------------------

    def call(
        self, front: int, frame: CallFrame, deadline: float, timeout_s: float, now: float
    ) -> Actions:
        """Subscribe or unsubscribe a front."""
        uri = uri_of(frame)
        done = ReplyToFront(front, Result(frame.id, b"{}"))
        if not uri:
            problem = f"can take a URI of 1 to {URI_BYTES_MAX} bytes only"
            return [self._faults.answer(front, frame.id, Code.INVALID_PARAMS, problem)]
        if frame.method == UNSUBSCRIBE:
            self._holders.remove(front, uri)
            return [done, *self._step(now)]
        honoured = self._now.honoured if self._now is not None and self._next is None else None
        if uri in (honoured or ()) or self._holders.has_watcher(uri):
            self._holders.add(front, uri)
            return [done]
        uris = {uri, *self._holders.uris, *self._waiters.uris()}
        size = sum(len(watched_uri.encode()) for watched_uri in uris)
        if self._waiters.full or len(uris) > URIS_MAX or size > URIS_BYTES_MAX:
            problem = f"has {len(uris) - 1} subscriptions, {self.waiting_count} calls wait"
            return [self._faults.answer(front, frame.id, Code.OVERLOADED, problem)]
        self._waiters.add(front, frame, uri, deadline, timeout_s)
        return self._step(now)

    def cancel(self, front: int, call: int) -> None:
        """Forget a call that its front does not wait for any more; the front does not watch
        then."""
        self._waiters.take(lambda waiter: waiter.front == front and waiter.call == call)

    def front_gone(self, front: int, now: float) -> Actions:
        self._waiters.take(lambda waiter: waiter.front == front)
        self._holders.front_gone(front)
        self._tasks.pop(front, None)
        return self._step(now)

    def watch_tasks(self, front: int, params: bytes, now: float) -> Actions:
        """Replace the tasks that the clients of this front watch."""
        try:
            ids = codec.decode_as(_Tasks, params).task_ids
        except codec.Malformed:
            return []
        self._tasks[front] = frozenset(
            task_id for task_id in ids if len(task_id) <= TASK_ID_BYTES_MAX
        )
        return self._step(now)

    # --- what the server says ---------------------------------------------------------------

    def on_ack(self, params: bytes, stream: bytes | None, now: float) -> Actions:
        """Take the acknowledgement of a listen. `stream`: see `transport`."""
        try:
            key = stream or bytes(_meta(codec.level(params)).get(_SUBSCRIPTION_ID, b""))
            honoured = codec.decode_as(_Acknowledged, params).notifications.resource_subscriptions
        except codec.Malformed:
            return []
        new, old = self._next, self._now
        if new is None or key != new.key:
            return []
        new.honoured = frozenset(honoured)
        self._now, self._next = new, None
        self._again_at, self._again_s, self._worked = 0.0, LISTEN_AGAIN_S, True
        actions = self._end(old, b"replaced") if old is not None else []
        return [*actions, *self._answer_waiters(new), *self._step(now)]

    def on_answer(self, key: bytes, error: bytes, now: float, *, lost: bool = False) -> Actions:
        """Note that a listen has ended. `error`: raw, if there is one; `lost`: whether the error is
        the gateway's and not the server's."""
        again = lost or self._worked or not error
        ended = self._next
        if ended is not None and key == ended.key:
            self._next = None
            refusal = error or self._faults.body(
                Code.INTERNAL_ERROR, "ended the subscription at once"
            )
            actions = build_replies(self._take_covered(ended), b"", refusal)
        else:
            self._now, actions = None, []
            self.gap = self.gap or self._next is not None
        self._rest(now, again=again)
        return [*actions, *self._step(now)]

    def torn_down(self, params: bytes, now: float) -> Actions:
        """Note that the server dropped a request of the gateway, which can only be a listen."""
        key = bytes(codec.members(params).get("requestId", b""))
        if key not in {listen.key for listen in (self._now, self._next) if listen is not None}:
            return []
        self._own.take(key)
        return self.on_answer(key, b"", now)

    def tick(self, now: float) -> Actions:
        actions = self._waiters.answer_expired(now)
        late = self._next
        if late is not None and late.deadline <= now:
            self._next = None
            if self._now is None:
                # Some servers never acknowledge anything, and yet send news.
                self._now = late
            else:
                actions += self._end(late, b"timeout")
                self._rest(now, again=True)
            return [*actions, *self._step(now)]
        if self._again_at and now >= self._again_at:
            actions += self._step(now)
        return actions

    def fail_waiters(self, error: bytes) -> Actions:
        """Answer all waiting calls with this error, because the connection is lost."""
        return build_replies(self._waiters.take(lambda _: True), b"", error)

    # --- listens ----------------------------------------------------------------------------

    def _collect_targets(self) -> _Wanted:
        uris = frozenset(self._holders.uris) | self._waiters.uris()
        tasks = frozenset[str]().union(*self._tasks.values())
        return _Wanted(uris, frozenset(sorted(tasks)[:TASKS_MAX]))

    def _step(self, now: float) -> Actions:
        """Open the listen that is needed, unless one is being opened."""
        if self._kinds is None or self._next is not None:
            return []
        watched = self._collect_targets()
        if self._now is not None and watched == self._now.asked:
            self._again_at = 0.0
            # A call may have come while another listen was tried, which the server refused.
            decided = self._answer_waiters(self._now)
            return [*decided, *self._step(now)] if decided else []
        if now < self._again_at and not self._waiters:
            return []
        if not (self._kinds or watched.uris or watched.tasks):
            old, self._now, self._again_at = self._now, None, 0.0
            return self._end(old, b"nothing is watched") if old is not None else []
        self.gap = self.gap or (self._now is None and self._asked)
        self._asked = True
        kinds: dict[str, object] = {f"{kind}ListChanged": True for kind in self._kinds}
        if watched.uris:
            kinds["resourceSubscriptions"] = sorted(watched.uris)
        if watched.tasks:
            kinds["taskIds"] = sorted(watched.tasks)
        params = codec.dump({"notifications": kinds})
        ask = OwnRequest("subscriptions/listen", params, _WITH_TASKS if watched.tasks else b"")
        request = self._own.ask(RequestPurpose.LISTEN, ask)
        self._next = _Listen(request.key, watched, now + self._timeout_s)
        return [request]

    def _answer_waiters(self, listen: _Listen) -> Actions:
        """Return the answers to calls that follow from the acknowledgement of this listen."""
        actions: Actions = []
        for waiter in self._take_covered(listen) if listen.honoured is not None else ():
            if waiter.uri in (listen.honoured or ()):
                self._holders.add(waiter.front, waiter.uri)
                actions += build_replies([waiter], b"{}")
            else:
                problem = "does not tell of updates of this resource"
                actions.append(
                    self._faults.answer(waiter.front, waiter.call, Code.INVALID_PARAMS, problem)
                )
        return actions

    def _take_covered(self, listen: _Listen) -> list[Waiter]:
        """Take out and return the calls that this listen decides on."""
        return self._waiters.take(lambda waiter: waiter.uri in listen.asked.uris)

    def _end(self, listen: _Listen, reason: bytes) -> Actions:
        self._own.take(listen.key)
        return [
            CancelRequest(listen.key, jsonrpc_lines.build_cancel_notification(listen.key, reason))
        ]

    def _rest(self, now: float, *, again: bool) -> None:
        """Let the server alone for a while, or for ever, unless a client waits for a listen."""
        self._again_at = now + self._again_s if again else math.inf
        self._again_s = min(self._again_s * 2, LISTEN_AGAIN_S_MAX)


def strip_subscription_id(params: bytes) -> bytes:
    """Return the parameters of a notification without the id of the subscription, which only the
    gateway knows."""
    if b"subscriptionId" not in params:
        return params
    try:
        members = codec.level(params)
        meta = _meta(members)
    except codec.Malformed:
        return params
    if meta.pop(_SUBSCRIPTION_ID, None) is None:
        return params
    del members["_meta"]
    if meta:
        members["_meta"] = Raw(codec.dump(meta))
    return codec.dump(members)


def _meta(members: dict[str, Raw]) -> dict[str, Raw]:
    """Return the members of `_meta`. Raises codec.Malformed."""
    return codec.level(members.get("_meta", b"{}"))
