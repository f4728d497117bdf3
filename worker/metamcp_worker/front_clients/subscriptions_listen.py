"""Subscriptions of revision 2026-07-28: one request, answered by a stream of news.

Owns: the filter of a subscription, the part of it that is honoured, and the form of everything that
goes on such a stream. Never: the subscriptions at servers, what has changed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Raw, Struct

from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import client_questions
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.front_clients.resource_subscriptions import (
    SUBSCRIPTION_ID,
    UPDATED,
    ResourceSubscriptions,
)
from metamcp_worker.front_clients.streams import Stream
from metamcp_worker.front_clients.tasks import Tasks
from metamcp_worker.ipc import codec, jsonrpc_bytes
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.server_catalog import TASKS_EXTENSION

ACK_S_MAX = 5.0
"""Seconds for servers to confirm what one subscription wants of them. A resource that is not
confirmed by then is not honoured, and the client goes on with the rest."""
URIS_MAX = 1000
"""Maximum number of resources in one subscription; as many as one client may watch."""
TASKS_MAX = 1000
"""Maximum number of tasks in one subscription."""
EARLY_MAX = 1000
"""Maximum number of news that come before the subscription is acknowledged, and wait until then."""

_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
#: Lists whose changes a client may subscribe to, and the notification for each.
_LISTS = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
_RESOURCES = "resourceSubscriptions"
_TASKS = "taskIds"
_TASK_CHANGED = "notifications/tasks"
_NO_TASKS = "Missing required client capability: the request does not declare the tasks extension."
_NEEDS_TASKS = codec.dump({"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}})
_NONE = Raw(b"null")


class SubscriptionFilter(Struct, frozen=True):
    """Wishes of one client: the lists, URIs and tasks that it wants news of, each URI and each task
    once."""

    lists: Mapping[str, str]
    uris: Sequence[str] = ()
    tasks: Sequence[str] = ()


class SubscriptionsListen:
    """Answers `subscriptions/listen`."""

    def __init__(
        self, subscriptions: ResourceSubscriptions, tasks: Tasks, ack_s: float = ACK_S_MAX
    ) -> None:
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._ack_s = ack_s

    async def answer(
        self, exchange: Exchange, raw_id: bytes, filters: Raw, caller: bytes, view: View, who: str
    ) -> None:
        """Serve a subscription until one side ends it. `filters`: raw, the wishes of the client;
        `who`: the word for the client (`process_names`). Raises ProtocolError and Declined."""
        wishes = parse_filter(filters)
        if wishes.tasks and not client_questions.has_extension(caller, TASKS_EXTENSION):
            raise ProtocolError(Code.MISSING_CAPABILITY, _NO_TASKS, _NEEDS_TASKS)
        exchange.check_stream()
        tag = codec.dump({"_meta": {SUBSCRIPTION_ID: Raw(raw_id)}})
        done = codec.splice(tag, {"resultType": b'"complete"'})
        stream = exchange.stream(farewell=jsonrpc_bytes.event(jsonrpc_bytes.result(raw_id, done)))
        listener = SubscriptionClient(stream, raw_id, who, caller)
        try:
            honoured: dict[str, object] = dict.fromkeys(wishes.lists, True)
            if wishes.uris:
                watched = await self._watch(exchange, wishes.uris, listener, view)
                if watched is None:
                    return
                if watched:
                    honoured[_RESOURCES] = watched
            if wishes.tasks:
                watched_tasks = self._tasks.watch(view, wishes.tasks, listener)
                if watched_tasks:
                    honoured[_TASKS] = watched_tasks
            acknowledged = codec.splice(tag, {"notifications": codec.dump(honoured)})
            listener.acknowledge(
                jsonrpc_bytes.event(jsonrpc_bytes.notification(_ACKNOWLEDGED, acknowledged))
            )
            news = {
                method: jsonrpc_bytes.event(jsonrpc_bytes.notification(method, tag))
                for method in wishes.lists.values()
            }
            await exchange.stand(stream, view, news)
        finally:
            self._subscriptions.forget(listener)
            self._tasks.forget(listener)

    async def _watch(
        self, exchange: Exchange, uris: Sequence[str], listener: "SubscriptionClient", view: View
    ) -> list[str] | None:
        """Return the URIs whose servers report updates from now on; None if the client is gone."""
        lost = asyncio.get_running_loop().create_future()
        on_lost = partial(lost.set_result, None)
        exchange.on_lost = on_lost
        tasks = [asyncio.ensure_future(self._watch_resource(uri, listener, view)) for uri in uris]
        confirmed = asyncio.gather(*tasks)
        try:
            await asyncio.wait(
                [confirmed, lost], timeout=self._ack_s, return_when=asyncio.FIRST_COMPLETED
            )
            done = [task.done() and task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(confirmed, return_exceptions=True)
            exchange.on_lost = None
        return None if lost.done() else [uri for uri, ok in zip(uris, done, strict=True) if ok]

    async def _watch_resource(self, uri: str, listener: "SubscriptionClient", view: View) -> bool:
        try:
            answer = await self._subscriptions.watch(view, uri, listener)
        except ProtocolError:
            return False
        return answer is not None and not answer.code


class SubscriptionClient:
    """Client of one subscription: a `watches.Watcher` and a `tasks.TaskWatcher`. In this revision
    the client cannot be asked for roots here: of a server that wants roots, it hears the process
    for clients without roots."""

    rooted = project = ""
    unasked = modern = True
    roots = b""

    def __init__(self, stream: Stream, raw_id: bytes, who: str = "", caller: bytes = b"") -> None:
        self.who = who
        self.caller = caller
        self._stream = stream
        self._id = Raw(raw_id)
        self._early: list[bytes] | None = []

    def acknowledge(self, event: bytes) -> None:
        """Put the first event of the stream, and behind it the news that came before."""
        early, self._early = self._early or [], None
        self._stream.put(event)
        for update in early:
            self._stream.put(update)

    def send_resource_updated(self, params: bytes) -> None:
        self._tell(UPDATED, params)

    def task_changed(self, params: bytes) -> None:
        self._tell(_TASK_CHANGED, params)

    def _tell(self, method: str, params: bytes) -> None:
        meta: dict[str, Raw] = {}
        if b'"_meta"' in params:
            members = codec.level(params)
            meta = codec.level(members.pop("_meta", b"{}"))
            params = codec.dump(members)
        meta[SUBSCRIPTION_ID] = self._id
        params = codec.splice(params, {"_meta": codec.dump(meta)})
        event = jsonrpc_bytes.event(jsonrpc_bytes.notification(method, params))
        if self._early is None:
            self._stream.announce(event)
        elif event not in self._early and len(self._early) < EARLY_MAX:
            self._early.append(event)


def parse_filter(raw: Raw) -> SubscriptionFilter:
    """Return the wishes in the filter of a subscription. Raises ProtocolError."""
    try:
        members = codec.level(raw)
    except codec.Malformed:
        raise ProtocolError(
            Code.INVALID_PARAMS, "params.notifications must be an object."
        ) from None
    lists = {
        name: method
        for name, method in _LISTS.items()
        if bytes(members.get(name, _NONE)) == b"true"
    }
    return SubscriptionFilter(
        lists,
        _texts(members.get(_RESOURCES, _NONE), _RESOURCES, URIS_MAX),
        _texts(members.get(_TASKS, _NONE), _TASKS, TASKS_MAX),
    )


def _texts(raw: Raw, member: str, count_max: int) -> tuple[str, ...]:
    """Return the items of an array of strings, each once. Raises ProtocolError."""
    if bytes(raw) == b"null":
        return ()
    try:
        texts = [codec.text(item) for item in codec.items(raw)]
    except codec.Malformed:
        texts = [None]
    distinct = tuple(dict.fromkeys(text for text in texts if text is not None))
    if None in texts:
        raise ProtocolError(Code.INVALID_PARAMS, f"params.notifications.{member} must be strings.")
    if len(distinct) > count_max:
        raise ProtocolError(Code.INVALID_PARAMS, f"{member} has more than {count_max} items.")
    return distinct
