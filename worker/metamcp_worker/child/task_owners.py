"""Owners of the tasks of one server, as far as lists of tasks need them.

Owns: which call made which task, for calls whose front says for whom it asks; the owner of each
task in a list. Never: who an owner is, which tasks a client sees (`front.task_ids`), requests about
one task, whose id says by itself whose it is.

A server of revision 2025-11-25 lists the tasks of all its clients, because they are one client to
it. Mostly the tasks end with its process, so the worker of that process keeps the owners: it
outlives a front, and all fronts ask it.
"""

from msgspec import Raw

from metamcp_worker.child.call_queue import SentCall
from metamcp_worker.ipc import codec

OWNED_MAX = 10_000
"""Maximum number of tasks whose owners are known. The oldest make room; no list has them then."""
OWNER = "owner"
"""Member of a caller with the word for the owner of its tasks, and of each task in a list."""
_BEGIN = b'{"owner":'
CALL, LIST = "tools/call", "tasks/list"


class TaskOwners:
    """Words for the owners of tasks, by the server's ids of the tasks."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def answered(self, call: SentCall, result: bytes) -> bytes:
        """Note whose task a result stands for, and return the result; a list of tasks with the
        owner of each of them."""
        if not call.caller.startswith(_BEGIN):
            return result
        if call.method == LIST:
            return self._listed(result)
        if call.method == CALL and (task := _created(result)) is not None:
            self._owners.pop(task, None)
            if len(self._owners) >= OWNED_MAX:
                del self._owners[next(iter(self._owners))]
            self._owners[task] = codec.text(codec.level(call.caller)[OWNER]) or ""
        return result

    def _listed(self, result: bytes) -> bytes:
        try:
            members = codec.level(result)
            tasks = [codec.level(each) for each in codec.items(members.get("tasks", Raw(b"[]")))]
        except codec.Malformed:
            return b'{"tasks":[]}'
        for task in tasks:
            owner = self._owners.get(codec.text(task.get("taskId", Raw(b"null"))) or "", "")
            task[OWNER] = Raw(codec.dump(owner))
        return codec.dump({**members, "tasks": tasks})


def _created(result: bytes) -> str | None:
    """Return the id of the task that a result stands for; None if the result is not a task."""
    if b'"taskId"' not in result:
        return None
    try:
        task = codec.level(codec.level(result).get("task", Raw(b"{}")))
    except codec.Malformed:
        return None
    return codec.text(task.get("taskId", Raw(b"null")))
