"""Subscriptions at a legacy server: the first subscribe to a resource and the last unsubscribe go
to the server, the others are answered here.

Owns: what the server was told about each resource. Never: lines, ids, who hears of updates.

Of each resource one request is open at a time, so that the server sees an order that makes sense
whatever the clients do meanwhile.
"""

import math
from collections.abc import Callable, Iterable

from msgspec import Raw, Struct

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Actions, Drop, ReplyToFront, RequestPurpose
from metamcp_worker.child.fault_answers import Faults
from metamcp_worker.child.jsonrpc_lines import OwnRequest
from metamcp_worker.child.own_requests import Own
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Error, Result


class _Resource(Struct):
    """`on`: the server knows that it is watched. `key`, `method`, `deadline`: of the request that
    is open; without one `key` is empty."""

    on: bool = False
    key: bytes = b""
    method: str = ""
    deadline: float = 0.0


class LegacySubscriptions:
    """`timeout_s`: for the server to answer. `calls_max`: how many calls may wait for it."""

    def __init__(self, own: Own, faults: Faults, *, timeout_s: float, calls_max: int) -> None:
        self._own = own
        self._faults = faults
        self._timeout_s = timeout_s
        self._holders = Holders()
        self._waiters = Waiters(faults, calls_max=calls_max)
        self._resources: dict[str, _Resource] = {}
        self._open: dict[bytes, str] = {}

    @property
    def waiting(self) -> int:
        """Calls that are not answered yet."""
        return len(self._waiters)

    @property
    def watched(self) -> bool:
        """Does anybody want to hear of something?"""
        return bool(self._holders.uris)

    def call(
        self, front: int, frame: CallFrame, deadline: float, timeout_s: float, now: float
    ) -> Actions:
        """A front subscribes or unsubscribes."""
        uri = uri_of(frame)
        done = ReplyToFront(front, Result(frame.id, b"{}"))
        if not uri:
            why = f"can take a URI of 1 to {URI_BYTES_MAX} bytes only"
            return [self._faults.answer(front, frame.id, Code.INVALID_PARAMS, why)]
        if frame.method == UNSUBSCRIBE:
            if not self._holders.remove(front, uri) or self._wanted(uri):
                return [done]
        else:
            found = self._resources.get(uri)
            if found is not None and found.on and not found.key:
                self._holders.add(front, uri)
                return [done]
            if self._waiters.full or (found is None and len(self._resources) >= URIS_MAX):
                why = f"has {len(self._resources)} subscriptions, {self.waiting} calls wait"
                return [self._faults.answer(front, frame.id, Code.OVERLOADED, why)]
        self._waiters.add(front, frame, uri, deadline, timeout_s)
        return self._step(uri, now)

    def cancel(self, front: int, call: int) -> None:
        """A front does not wait for the answer any more; then it does not watch either."""
        self._waiters.take(lambda one: one.front == front and one.call == call)

    def front_gone(self, front: int, now: float) -> Actions:
        self._waiters.take(lambda one: one.front == front)
        gone = self._holders.front_gone(front)
        return [action for uri in gone for action in self._step(uri, now)]

    def answered(self, key: bytes, result: bytes, error: bytes, now: float) -> Actions:
        """The server answered, or it is certain that it will not: then that is an error."""
        uri = self._open.pop(key)
        found = self._resources[uri]
        found.key = b""
        done = self._waiters.take(lambda one: one.uri == uri and one.method == found.method)
        found.on = found.method == SUBSCRIBE and not error
        for one in done if found.on else ():
            self._holders.add(one.front, uri)
        return [*answered(done, result, error), *self._step(uri, now)]

    def tick(self, now: float) -> Actions:
        actions = self._waiters.expired(now)
        for key, uri in list(self._open.items()):
            found = self._resources[uri]
            if found.deadline <= now:
                self._own.take(key)
                actions.append(Drop(key, jsonrpc_lines.cancelled(key, b"timeout")))
                error = self._faults.body(Code.TIMED_OUT, f"did not answer {found.method} in time")
                actions += self.answered(key, b"", error, now)
        return actions

    def lost(self, error: bytes) -> Actions:
        """There will be no answers any more."""
        return answered(self._waiters.take(lambda _: True), b"", error)

    def _wanted(self, uri: str) -> bool:
        return self._holders.held(uri) or self._waiters.on(uri)

    def _step(self, uri: str, now: float) -> Actions:
        """What the server must be told now about this resource."""
        found = self._resources.setdefault(uri, _Resource())
        wanted = self._wanted(uri)
        if found.key or (wanted and found.on):
            return []
        if not wanted and not found.on:
            del self._resources[uri]
            return []
        found.method = SUBSCRIBE if wanted else UNSUBSCRIBE
        found.deadline = now + self._timeout_s
        ask = OwnRequest(found.method, codec.dump({"uri": uri}))
        request = self._own.ask(RequestPurpose.SUBSCRIBE, ask)
        found.key = request.key
        self._open[request.key] = uri
        return [request]


SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"
METHODS = frozenset({SUBSCRIBE, UNSUBSCRIBE})
"""Calls that are about who watches what, whatever the era of the server."""

URIS_MAX = 10_000
"""Watched at one server."""
URI_BYTES_MAX = 2048


class Waiter(Struct, gc=False):
    """A call that is answered when the server has said something."""

    front: int
    call: int
    method: str
    uri: str
    deadline: float
    timeout_s: float


class Holders:
    """A front may watch a URI several times, for several clients."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}

    @property
    def uris(self) -> Iterable[str]:
        return self._counts.keys()

    def held(self, uri: str) -> bool:
        return uri in self._counts

    def add(self, front: int, uri: str) -> None:
        fronts = self._counts.setdefault(uri, {})
        fronts[front] = fronts.get(front, 0) + 1

    def remove(self, front: int, uri: str) -> bool:
        """One time less. Was it there at all?"""
        fronts = self._counts.get(uri, {})
        if front not in fronts:
            return False
        fronts[front] -= 1
        if not fronts[front]:
            self._drop(uri, front)
        return True

    def front_gone(self, front: int) -> list[str]:
        """It watches nothing any more. The URIs that nobody watches now."""
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
    """At most `calls_max`. Each is taken out exactly once, with its answer or without one."""

    def __init__(self, faults: Faults, *, calls_max: int) -> None:
        self._faults = faults
        self._calls_max = calls_max
        self._all: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def full(self) -> bool:
        return len(self._all) >= self._calls_max

    def on(self, uri: str) -> bool:
        """Does somebody wait to watch it?"""
        return any(one.uri == uri and one.method == SUBSCRIBE for one in self._all)

    def add(self, front: int, call: CallFrame, uri: str, deadline: float, timeout_s: float) -> None:
        self._all.append(Waiter(front, call.id, call.method, uri, deadline, timeout_s))

    def uris(self) -> set[str]:
        """Of all who wait."""
        return {one.uri for one in self._all}

    def take(self, wanted: Callable[[Waiter], bool]) -> list[Waiter]:
        found = [one for one in self._all if wanted(one)]
        if found:
            self._all = [one for one in self._all if not wanted(one)]
        return found

    def expired(self, now: float) -> Actions:
        """Those whose time is up are told so."""
        return [
            self._faults.timed_out(one.front, one.call, one.method, one.timeout_s)
            for one in self.take(lambda one: one.deadline <= now)
        ]


def answered(waiters: Iterable[Waiter], result: bytes, error: bytes = b"") -> Actions:
    """The same answer for each of them: a raw result or, if there is one, a raw error."""
    return [
        ReplyToFront(one.front, Error(one.call, error) if error else Result(one.call, result))
        for one in waiters
    ]


def uri_of(call: CallFrame) -> str:
    """The URI that a subscription is about; empty if it names none, or one that is too long."""
    try:
        uri = codec.text(codec.level(call.params).get("uri", Raw(b"null")))
    except codec.Malformed:
        return ""
    return uri if uri and len(uri.encode()) <= URI_BYTES_MAX else ""


LISTEN_AGAIN_S = 5.0
"""After a server ended its subscription; what it could not announce meanwhile is then read."""
LISTEN_AGAIN_S_MAX = 60.0
"""Each time that it fails again, it is left alone for twice as long, up to this."""
URIS_BYTES_MAX = 4 * 1024 * 1024
"""All URIs together: they are in one request, with room for the rest."""
TASKS_MAX = 10_000
TASK_ID_BYTES_MAX = 256

_SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
#: Who wants to hear of tasks has to say that it knows of them.
_WITH_TASKS = b'{"clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}'


class _Wanted(Struct, frozen=True):
    uris: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()


class _Listen(Struct):
    """One that was sent. `honoured`: the URIs of which the server said that it tells; None: it has
    not acknowledged it."""

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
    """`timeout_s`: for an acknowledgement. `calls_max`: how many calls may wait for one.

    `gap`: changes of lists may have been missed since somebody set it to False.
    """

    def __init__(self, own: Own, faults: Faults, *, timeout_s: float, calls_max: int) -> None:
        self._own = own
        self._faults = faults
        self._timeout_s = timeout_s
        self._kinds: list[str] | None = None
        self._holders = Holders()
        self._waiters = Waiters(faults, calls_max=calls_max)
        self._tasks: dict[int, frozenset[str]] = {}
        self._now: _Listen | None = None
        self._next: _Listen | None = None
        self._again_at = 0.0
        """When to ask again for what was refused or has ended; 0 if there is no such thing."""
        self._again_s = LISTEN_AGAIN_S
        self._asked = self._worked = False
        self.gap = False

    @property
    def waiting(self) -> int:
        """Calls that are not answered yet."""
        return len(self._waiters)

    @property
    def watched(self) -> bool:
        """Does anybody want to hear of something? Changes of lists do not count: they are found
        when the server is next started."""
        return bool(self._holders.uris or any(self._tasks.values()))

    def start(self, kinds: frozenset[str], now: float) -> Actions:
        """The server is ready, and modern. `kinds`: the lists that it has."""
        self._kinds = sorted(kinds & {"tools", "prompts", "resources"})
        return self._step(now)

    # --- what fronts want -------------------------------------------------------------------

    def call(
        self, front: int, frame: CallFrame, deadline: float, timeout_s: float, now: float
    ) -> Actions:
        """A front subscribes or unsubscribes."""
        uri = uri_of(frame)
        done = ReplyToFront(front, Result(frame.id, b"{}"))
        if not uri:
            why = f"can take a URI of 1 to {URI_BYTES_MAX} bytes only"
            return [self._faults.answer(front, frame.id, Code.INVALID_PARAMS, why)]
        if frame.method == UNSUBSCRIBE:
            self._holders.remove(front, uri)
            return [done, *self._step(now)]
        honoured = self._now.honoured if self._now is not None and self._next is None else None
        if uri in (honoured or ()) or self._holders.held(uri):
            self._holders.add(front, uri)
            return [done]
        uris = {uri, *self._holders.uris, *self._waiters.uris()}
        size = sum(len(one.encode()) for one in uris)
        if self._waiters.full or len(uris) > URIS_MAX or size > URIS_BYTES_MAX:
            why = f"has {len(uris) - 1} subscriptions, {self.waiting} calls wait"
            return [self._faults.answer(front, frame.id, Code.OVERLOADED, why)]
        self._waiters.add(front, frame, uri, deadline, timeout_s)
        return self._step(now)

    def cancel(self, front: int, call: int) -> None:
        """A front does not wait for the answer any more; then it does not watch either."""
        self._waiters.take(lambda one: one.front == front and one.call == call)

    def front_gone(self, front: int, now: float) -> Actions:
        self._waiters.take(lambda one: one.front == front)
        self._holders.front_gone(front)
        self._tasks.pop(front, None)
        return self._step(now)

    def watch_tasks(self, front: int, params: bytes, now: float) -> Actions:
        """From now on the clients of this front watch these tasks and no others."""
        try:
            ids = codec.typed(_Tasks, params).task_ids
        except codec.Malformed:
            return []
        self._tasks[front] = frozenset(one for one in ids if len(one) <= TASK_ID_BYTES_MAX)
        return self._step(now)

    # --- what the server says ---------------------------------------------------------------

    def acknowledged(self, params: bytes, stream: bytes | None, now: float) -> Actions:
        """The server listens to what is wanted of it. `stream`: see `transport`."""
        try:
            key = stream or bytes(_meta(codec.level(params)).get(_SUBSCRIPTION_ID, b""))
            honoured = codec.typed(_Acknowledged, params).notifications.resource_subscriptions
        except codec.Malformed:
            return []
        new, old = self._next, self._now
        if new is None or key != new.key:
            return []
        new.honoured = frozenset(honoured)
        self._now, self._next = new, None
        self._again_at, self._again_s, self._worked = 0.0, LISTEN_AGAIN_S, True
        actions = self._end(old, b"replaced") if old is not None else []
        return [*actions, *self._decided(new), *self._step(now)]

    def answered(self, key: bytes, error: bytes, now: float, *, lost: bool = False) -> Actions:
        """A listen has ended. `error`: raw, if there is one; `lost`: it is not the server's."""
        again = lost or self._worked or not error
        ended = self._next
        if ended is not None and key == ended.key:
            self._next = None
            why = error or self._faults.body(Code.INTERNAL_ERROR, "ended the subscription at once")
            actions = answered(self._covered(ended), b"", why)
        else:
            self._now, actions = None, []
            self.gap = self.gap or self._next is not None
        self._rest(now, again=again)
        return [*actions, *self._step(now)]

    def torn_down(self, params: bytes, now: float) -> Actions:
        """The server says that it dropped a request of ours; only subscriptions can be meant."""
        try:
            key = bytes(codec.level(params).get("requestId", b""))
        except codec.Malformed:
            return []
        if key not in {one.key for one in (self._now, self._next) if one is not None}:
            return []
        self._own.take(key)
        return self.answered(key, b"", now)

    def tick(self, now: float) -> Actions:
        actions = self._waiters.expired(now)
        late = self._next
        if late is not None and late.deadline <= now:
            self._next = None
            if self._now is None:
                # Some never acknowledge anything, and yet tell.
                self._now = late
            else:
                actions += self._end(late, b"timeout")
                self._rest(now, again=True)
            return [*actions, *self._step(now)]
        if self._again_at and now >= self._again_at:
            actions += self._step(now)
        return actions

    def lost(self, error: bytes) -> Actions:
        """There will be no answers any more."""
        return answered(self._waiters.take(lambda _: True), b"", error)

    # --- listens ----------------------------------------------------------------------------

    def _wanted(self) -> _Wanted:
        uris = frozenset(self._holders.uris) | self._waiters.uris()
        tasks = frozenset[str]().union(*self._tasks.values())
        return _Wanted(uris, frozenset(sorted(tasks)[:TASKS_MAX]))

    def _step(self, now: float) -> Actions:
        """Open the listen that is needed, unless one is just being opened."""
        if self._kinds is None or self._next is not None:
            return []
        wanted = self._wanted()
        if self._now is not None and wanted == self._now.asked:
            self._again_at = 0.0
            # Somebody may have come while another listen was tried, which the server refused.
            decided = self._decided(self._now)
            return [*decided, *self._step(now)] if decided else []
        if now < self._again_at and not self._waiters:
            return []
        if not (self._kinds or wanted.uris or wanted.tasks):
            old, self._now, self._again_at = self._now, None, 0.0
            return self._end(old, b"nothing is watched") if old is not None else []
        self.gap = self.gap or (self._now is None and self._asked)
        self._asked = True
        kinds: dict[str, object] = {f"{kind}ListChanged": True for kind in self._kinds}
        if wanted.uris:
            kinds["resourceSubscriptions"] = sorted(wanted.uris)
        if wanted.tasks:
            kinds["taskIds"] = sorted(wanted.tasks)
        params = codec.dump({"notifications": kinds})
        ask = OwnRequest("subscriptions/listen", params, _WITH_TASKS if wanted.tasks else b"")
        request = self._own.ask(RequestPurpose.LISTEN, ask)
        self._next = _Listen(request.key, wanted, now + self._timeout_s)
        return [request]

    def _decided(self, listen: _Listen) -> Actions:
        """The answers that follow from what the server has said of this listen."""
        actions: Actions = []
        for one in self._covered(listen) if listen.honoured is not None else ():
            if one.uri in (listen.honoured or ()):
                self._holders.add(one.front, one.uri)
                actions += answered([one], b"{}")
            else:
                why = "does not tell of updates of this resource"
                actions.append(self._faults.answer(one.front, one.call, Code.INVALID_PARAMS, why))
        return actions

    def _covered(self, listen: _Listen) -> list[Waiter]:
        """Take out the calls that this listen decides on."""
        return self._waiters.take(lambda one: one.uri in listen.asked.uris)

    def _end(self, listen: _Listen, reason: bytes) -> Actions:
        self._own.take(listen.key)
        return [Drop(listen.key, jsonrpc_lines.cancelled(listen.key, reason))]

    def _rest(self, now: float, *, again: bool) -> None:
        """Ask for nothing for a while, or never again, unless a client waits for it."""
        self._again_at = now + self._again_s if again else math.inf
        self._again_s = min(self._again_s * 2, LISTEN_AGAIN_S_MAX)


def stripped(params: bytes) -> bytes:
    """Parameters of a notification without the id of our subscription; nobody else knows it."""
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
    """Raises codec.Malformed."""
    return codec.level(members.get("_meta", b"{}"))
