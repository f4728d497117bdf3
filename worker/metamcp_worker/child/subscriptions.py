"""Subscriptions at a legacy server: the first subscribe to a resource and the last unsubscribe go
to the server, the others are answered here.

Owns: what the server was told about each resource. Never: lines, ids, who hears of updates.

Of each resource one request is open at a time, so that the server sees an order that makes sense
whatever the clients do meanwhile.
"""

from msgspec import Struct

from metamcp_worker.child import wire
from metamcp_worker.child.actions import Actions, Drop, Purpose, Reply
from metamcp_worker.child.faults import Faults
from metamcp_worker.child.holders import (
    SUBSCRIBE,
    UNSUBSCRIBE,
    URI_BYTES_MAX,
    URIS_MAX,
    Holders,
    Waiters,
    answered,
    uri_of,
)
from metamcp_worker.child.own import Own
from metamcp_worker.child.wire import Ask
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Call, Result


class _Resource(Struct):
    """`on`: the server knows that it is watched. `key`, `method`, `deadline`: of the request that
    is open; without one `key` is empty."""

    on: bool = False
    key: bytes = b""
    method: str = ""
    deadline: float = 0.0


class Subscriptions:
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
        self, front: int, frame: Call, deadline: float, timeout_s: float, now: float
    ) -> Actions:
        """A front subscribes or unsubscribes."""
        uri = uri_of(frame)
        done = Reply(front, Result(frame.id, b"{}"))
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
                actions.append(Drop(key, wire.cancelled(key, b"timeout")))
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
        ask = Ask(found.method, codec.dump({"uri": uri}))
        request = self._own.ask(Purpose.SUBSCRIBE, ask)
        found.key = request.key
        self._open[request.key] = uri
        return [request]
