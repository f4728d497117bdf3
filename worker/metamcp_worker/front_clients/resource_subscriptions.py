"""Subscriptions to resources: many clients, one subscription of each resource at its server.

Owns: asking servers for the resources that clients watch, and notifying clients of updates. Never:
which client watches which resource (`watches`), sessions and streams, the way to a server.

The request of a client is sent at once. Requests for which no client waits (a client went away, a
server was restarted) may be many at once: they take their turn, a few per server at a time. While
the server is away, such requests are left out: a server that comes back holds nothing and is asked
then.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from functools import partial

from msgspec import Raw

from metamcp_worker.catalog.catalog import MergedCatalog
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.mcp_request import owner_of_resource
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_clients.watches import Key, TooManyWatched, Watcher, Watches
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import Code, ProtocolError

__all__ = ["ResourceSubscriptions", "Watcher"]

SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"
UPDATED = "notifications/resources/updated"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
UNATTENDED_MAX = 16
"""Maximum number of requests at one server for which no client waits: few beside the number that a
server takes at once, so that calls do not queue behind them."""

_NOTHING = CallAnswer(b"{}")

log = logging.getLogger("metamcp.front")


class ResourceSubscriptions:
    """Subscriptions of one front."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._watches = Watches()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._futures: dict[int, asyncio.Future[CallAnswer | None]] = {}
        self._asked: dict[Key, Call] = {}
        self._turns: dict[str, dict[Key, None]] = {}
        self._unattended: dict[str, set[Key]] = {}
        calls.on_notice(UPDATED, self.on_resource_updated)
        calls.on_attached(self.renew)

    async def watch(self, view: View, uri: str, watcher: Watcher) -> CallAnswer | None:
        """Tell `watcher` of updates from now on, if the answer is a result. The answer comes from
        the server for the first client that watches, and is empty for others. None: the watcher was
        forgotten during the wait. Raises ProtocolError."""
        owner, original = owner_of_resource(_get_merged(view, watcher), uri)
        key = (self._calls.process(owner.server, watcher), original)
        self._enqueue(self._watches.rebind_uri(key, watcher, uri))
        number = next(self._numbers)
        try:
            if self._watches.watch(key, watcher, uri, number):
                return _NOTHING
        except TooManyWatched as full:
            raise ProtocolError(Code.OVERLOADED, str(full)) from None
        return await self._outcome(number, key)

    async def unwatch(self, view: View, uri: str, watcher: Watcher) -> CallAnswer | None:
        """Tell `watcher` of updates no longer. The answer comes from the server for the last client
        that watched, and is empty for others. None: the watcher was forgotten during the wait.
        Raises ProtocolError."""
        number = next(self._numbers)
        key = self._watches.unwatch(watcher, uri, number)
        if key is not None:
            return await self._outcome(number, key)
        owner_of_resource(_get_merged(view, watcher), uri)
        return _NOTHING

    def adopt(self, view: View, uri: str, watcher: Watcher) -> None:
        """Go on with a subscription that `watcher` had at another front. The server is asked in its
        turn, or when it is there. A resource that the endpoint does not have any more is left
        out."""
        try:
            owner, original = owner_of_resource(_get_merged(view, watcher), uri)
            server = self._calls.process(owner.server, watcher)
            self._enqueue(self._watches.adopt((server, original), watcher, uri))
        except (ProtocolError, TooManyWatched) as error:
            log.info("a subscription of a session that was taken over is dropped: %s", error)

    def forget(self, watcher: Watcher) -> None:
        """End the subscriptions of a client that is gone, in the background. A request for this
        client alone that waits for its server is cancelled, so that it is not a reason to start the
        server."""
        before = self._watches.of(watcher)
        keys, numbers = self._watches.leave(watcher)
        for number in numbers:
            self._resolve(number, None)
        self._enqueue(keys)
        for key in before:
            call = self._asked.get(key)
            if call is not None and call.wire is None and not self._watches.is_watched(key):
                call.cancel("nobody watches it any more")

    def on_resource_updated(self, server: str, params: bytes) -> None:
        """Notify the watchers of a resource that it changed, as its server says."""
        try:
            members = codec.level(params)
            meta = codec.level(members["_meta"]) if "_meta" in members else {}
        except codec.Malformed:
            return
        uri = codec.text(members.get("uri", b"null"))
        if uri is None:
            return
        if meta.pop(SUBSCRIPTION_ID, None) is not None:  # of the gateway's own subscription
            members["_meta"] = Raw(codec.dump(meta))
            params = codec.dump(members)
        for watcher, exposed in self._watchers(server, uri):
            if exposed != uri:
                watcher.send_resource_updated(codec.dump({**members, "uri": exposed}))
            else:
                watcher.send_resource_updated(params)

    def renew(self, server: str) -> None:
        """Ask for all watched resources again, because another process is the server now."""
        self._take_along(server)
        sent_keys = {key for key, call in self._asked.items() if _sent_to_newest(call)}
        for process in self._processes(server):
            self._enqueue(self._watches.renew(process, sent_keys))

    # --- underneath ---------------------------------------------------------------------------

    def _take_along(self, server: str) -> None:
        """Watch here what a client watched before, if the client has got this process for
        itself."""
        base = process_names.base(server)
        for uri, watcher, exposed in self._watches.all_of(base) if server != base else ():
            if self._calls.process(base, watcher) == server:
                key = (server, uri)
                self._enqueue(self._watches.rebind_uri(key, watcher, exposed))
                self._enqueue(self._watches.adopt(key, watcher, exposed))

    def _processes(self, server: str) -> list[str]:
        """Return this process, and the process in whose place it is."""
        legacy = process_names.own(process_names.base(server), process_names.LEGACY)
        own = legacy if self._calls.heir(legacy) == server else server
        return list(dict.fromkeys((server, own)))

    def _watchers(self, server: str, uri: str) -> list[tuple[Watcher, str]]:
        return [
            each
            for process in self._processes(server)
            for each in self._watches.watchers(process, uri)
        ]

    async def _outcome(self, number: int, key: Key) -> CallAnswer | None:
        future: asyncio.Future[CallAnswer | None] = self._loop.create_future()
        self._futures[number] = future
        self._ask(key)
        try:
            return await future
        finally:
            self._futures.pop(number, None)
            self._enqueue(self._watches.give_up(number))  # nothing, unless this task was cancelled

    def _ask(self, key: Key, *, attended: bool = True) -> bool:
        """Send the server the next request for this resource, if there is one. Returns whether a
        request is on its way now."""
        server, uri = key
        while (wish := self._watches.next(key)) is not None:
            if not wish and self._is_shared(key):
                self._settle(key, _NOTHING)
            elif self._calls.reachable(server) or (attended and wish):
                method = SUBSCRIBE if wish else UNSUBSCRIBE
                call = self._asked[key] = self._calls.ask(server, method, codec.dump({"uri": uri}))
                call.answer.add_callback(partial(self._on_answer, key))
                return True
            else:
                # What a server held is gone with its process; what it lacks is asked for later.
                self._settle(key, None if wish else _NOTHING)
        return False

    def _is_shared(self, key: Key) -> bool:
        """Whether another client watches the resource at the same process, under another name of
        the process."""
        server, uri = key
        others = (
            process for process in self._processes(self._calls.heir(server)) if process != server
        )
        return any(self._watches.is_watched((process, uri)) for process in others)

    def _on_answer(self, key: Key, answer: CallAnswer | None) -> None:
        del self._asked[key]
        self._settle(key, answer)
        server = key[0]
        if not self._ask(key) and key in self._unattended.get(server, ()):
            self._unattended[server].discard(key)
            self._take_turns(server)

    def _settle(self, key: Key, answer: CallAnswer | None) -> None:
        ok = answer is not None and not answer.code
        for settled in self._watches.on_answer(key, ok=ok):
            self._resolve(settled.number, answer if settled.answered else _NOTHING)

    def _resolve(self, number: int, answer: CallAnswer | None) -> None:
        future = self._futures.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _enqueue(self, keys: Sequence[Key]) -> None:
        servers = {server for server, _ in keys}
        for key in keys:
            self._turns.setdefault(key[0], {})[key] = None
        for server in servers:
            self._take_turns(server)

    def _take_turns(self, server: str) -> None:
        turns = self._turns.get(server, {})
        unattended = self._unattended.setdefault(server, set())
        while turns and len(unattended) < UNATTENDED_MAX:
            key = next(iter(turns))
            del turns[key]
            if self._ask(key, attended=False):
                unattended.add(key)
        if not turns:
            self._turns.pop(server, None)
        if not unattended:
            del self._unattended[server]


def _get_merged(view: View, watcher: Watcher) -> MergedCatalog:
    return view.of(modern=not process_names.has_session(watcher.who))


def _sent_to_newest(call: Call) -> bool:
    """Whether this call was sent to the process that is the server now."""
    return call.wire is not None and call.wire is call.wire.link.target
