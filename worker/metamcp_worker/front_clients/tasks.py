"""News of tasks on their way through the gateway: which clients get them.

Owns: which clients watch which tasks, and notifying servers and clients. Never: what a task is,
where a request about a task goes (`mcp_request`), how ids are exposed (`task_ids`).

A server of revision 2026-07-28 reports only the tasks that it was asked about, so its worker always
gets the whole set. A server of the handshake era reports every task; news of tasks that no client
watches end here.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec import Raw, Struct

from metamcp_worker.catalog.catalog import MergedCatalog
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import task_ids
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.server_processes import ProcessClient
from metamcp_worker.front_clients.resource_subscriptions import SUBSCRIPTION_ID
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, ProtocolError

WATCHER_TASKS_MAX = 1000
"""Maximum number of tasks that one client may watch: more than it can have asked for at once."""
TASKS_MAX = 100_000
"""Maximum number of tasks that are watched through one front."""
BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of the ids of these tasks, as workers get them: a worker gets all tasks that it is
to watch in one message, which has to fit into a frame."""
WATCH = "metamcp/tasks"
"""Method of the message to a worker with all tasks of its server that this front watches."""
_CHANGED = ("notifications/tasks", "notifications/tasks/status")
_OVER = frozenset({"completed", "failed", "cancelled"})


class TaskWatcher(ProcessClient, Protocol):
    """Client that wants to hear of tasks, as long as it can be reached."""

    def task_changed(self, params: bytes) -> None:
        """Take the raw params of the notification of its era. Never waits."""
        ...


class _WatchedTask(Struct, frozen=True):
    """Task that a client watches. `task`: the server's own id; `kept`: watched until the client is
    gone, else until the task is over; `size_bytes`: of the raw id."""

    server: str
    task: str
    kept: bool
    size_bytes: int


class Tasks:
    """Tasks that are watched through one front."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._watchers: dict[TaskWatcher, dict[str, _WatchedTask]] = {}
        self._topics: dict[str, dict[str, dict[TaskWatcher, str]]] = {}
        self._count = 0
        self._bytes = 0
        self._stale: set[str] = set()
        for method in _CHANGED:
            calls.on_notice(method, self.on_task_status)
        calls.on_attached(self._told_later)

    def watch(self, view: View, ids: Sequence[str], watcher: TaskWatcher) -> tuple[str, ...]:
        """Tell `watcher` of these tasks until it is forgotten. Returns the ids of tasks that a
        server of its era may have. Raises ProtocolError."""
        watched: dict[str, _WatchedTask] = {}
        for exposed in ids:
            owner = self._owner(view, view.merged, exposed)
            if owner is not None and not owner.legacy:
                watched[exposed] = self._make_watched(owner, watcher, kept=True)
        own = self._watchers.get(watcher, {})
        new = [exposed for exposed in watched if exposed not in own]
        full = self._count + len(new) > TASKS_MAX
        full |= self._bytes + sum(watched[exposed].size_bytes for exposed in new) > BYTES_MAX
        if full or len(own) + len(new) > WATCHER_TASKS_MAX:
            message = f"One client may watch {WATCHER_TASKS_MAX} tasks, all of them {TASKS_MAX}."
            raise ProtocolError(Code.OVERLOADED, message)
        for exposed in new:
            self._add(watcher, exposed, watched[exposed])
        return tuple(watched)

    def watch_new_task(self, view: View, body: bytes, watcher: TaskWatcher) -> None:
        """Tell `watcher` of the task that a result stands for, if it does, until the task is over.
        `body`: result of `tools/call` as a client of the handshake era gets it. If there are very
        many tasks, only the newest are watched, because a client has to ask for its tasks
        anyway."""
        exposed = task_ids.read_task_id(body)
        owner = None if exposed is None else self._owner(view, view.legacy, exposed)
        if exposed is None or owner is None or not owner.legacy:
            return
        own = self._watchers.get(watcher, {})
        if len(own) >= WATCHER_TASKS_MAX:
            self._drop(watcher, next(iter(own)))
        watched = self._make_watched(owner, watcher, kept=False)
        room = self._count < TASKS_MAX and self._bytes + watched.size_bytes <= BYTES_MAX
        if exposed not in own and room:
            self._add(watcher, exposed, watched)

    def forget(self, watcher: TaskWatcher) -> None:
        """Drop the tasks of a client that is gone."""
        for exposed in list(self._watchers.get(watcher, {})):
            self._drop(watcher, exposed)

    def on_task_status(self, server: str, params: bytes) -> None:
        """Notify the watchers of a task how it goes on, as its server says."""
        try:
            members = codec.level(params)
            meta = codec.level(members["_meta"]) if "_meta" in members else {}
        except codec.Malformed:
            return
        task = codec.text(members.get("taskId", b"null"))
        watchers = self._topics.get(server, {}).get(task or "", {})
        if meta.pop(SUBSCRIPTION_ID, None) is not None:  # of the gateway's own subscription
            members["_meta"] = Raw(codec.dump(meta))
        over = codec.text(members.get("status", b"null")) in _OVER
        for watcher, exposed in list(watchers.items()):
            watcher.task_changed(codec.dump({**members, "taskId": exposed}))
            if over and not self._watchers[watcher][exposed].kept:
                self._drop(watcher, exposed)

    def watchers(self, server: str, task: str) -> list[tuple[TaskWatcher, str]]:
        """Return who watches this task of a server, each with the id by which it knows the task."""
        return list(self._topics.get(server, {}).get(task, {}).items())

    def empty(self) -> bool:
        """Whether no task is watched, and nothing is kept of any server."""
        return not (self._watchers or self._topics or self._count or self._bytes)

    # --- underneath ---------------------------------------------------------------------------

    def _make_watched(self, owner: Owner, watcher: TaskWatcher, *, kept: bool) -> _WatchedTask:
        task = codec.text(owner.original)
        assert task is not None
        size_bytes = len(owner.original)
        return _WatchedTask(self._calls.process(owner.server, watcher), task, kept, size_bytes)

    def _owner(self, view: View, merged: MergedCatalog, exposed: str) -> Owner | None:
        """Return the server of this task; None if no request could ask for it, or it is a run of a
        workflow: a client asks for its state."""
        if len(exposed.encode("utf-8", "replace")) > task_ids.ID_BYTES_MAX:
            return None
        owner = self._calls.task_owner(view).find_server(merged, exposed)
        return owner if owner is not None and owner.server else None

    def _add(self, watcher: TaskWatcher, exposed: str, watched: _WatchedTask) -> None:
        before = self._topics.get(watched.server, {}).get(watched.task, {}).get(watcher)
        if before is not None:  # when its endpoint had fewer servers, or more
            self._drop(watcher, before)
        tasks = self._topics.setdefault(watched.server, {})
        self._watchers.setdefault(watcher, {})[exposed] = watched
        tasks.setdefault(watched.task, {})[watcher] = exposed
        self._count += 1
        self._bytes += watched.size_bytes
        if watched.kept:
            self._told_later(watched.server)

    def _drop(self, watcher: TaskWatcher, exposed: str) -> None:
        own = self._watchers[watcher]
        watched = own.pop(exposed)
        self._count -= 1
        self._bytes -= watched.size_bytes
        if not own:
            del self._watchers[watcher]
        tasks = self._topics[watched.server]
        watchers = tasks[watched.task]
        del watchers[watcher]
        if not watchers:
            del tasks[watched.task]
            if watched.kept:
                self._told_later(watched.server)
            elif not tasks and watched.server not in self._stale:
                del self._topics[watched.server]

    def _told_later(self, server: str) -> None:
        """Notify the worker once, however much changes in this turn of the loop."""
        if server in self._topics and not self._stale:
            self._loop.call_soon(self._tell)
        if server in self._topics:
            self._stale.add(server)

    def _tell(self) -> None:
        stale, self._stale = self._stale, set()
        for server in stale:
            tasks = self._topics.get(server, {})
            if not tasks:
                self._topics.pop(server, None)
            self._calls.tell(server, WATCH, codec.dump({"taskIds": list(tasks)}))
