"""Ids of tasks on endpoints with several servers.

Owns: the id under which such an endpoint exposes the task of a server, and the places of task ids
in messages. Never: tasks, their states, sending.

A client asks for a task by its id alone, so there the id has to name the server. A table of ids
would have to last as long as any task, and all fronts would have to share it. So the exposed id is
made of the server's name and its own id, with a checksum that binds it to this endpoint. The id
does not grant access: a client that may use the endpoint may ask its servers for any task. On an
endpoint with one server ids stay as they are.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable

from msgspec import Raw

from metamcp_worker.builtin_tools import engine_tools
from metamcp_worker.catalog.catalog import Merged
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.front.client_questions import Caller, Question
from metamcp_worker.ipc import codec

ID_BYTES_MAX = 1024
"""Maximum bytes of an id as clients know it; it has to fit into a header, and is mostly a UUID."""
CHECKSUM_BYTES = 6
"""Bytes of the checksum: enough to tell the ids of this endpoint from anything else."""

CALL = "tools/call"
LIST = "tasks/list"
#: Methods that name a task in `params.taskId`, in one era or in both.
METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel", "tasks/result"})
RELATED = "io.modelcontextprotocol/related-task"
"""Key in the `_meta` of every message that belongs to a task, in revision 2025-11-25."""

_ID = b'"taskId"'
#: Function that returns the exposed id for an id of the server.
Exposing = Callable[[str], str]


def exposed(endpoint: str, server: str, task: str) -> str:
    name = f"{server}\0{task}".encode("utf-8", "surrogatepass")
    checksum = hashlib.sha256(endpoint.encode() + b"\0" + name).digest()[:CHECKSUM_BYTES]
    return base64.urlsafe_b64encode(checksum + name).decode("ascii").rstrip("=")


def owner(merged: Merged, task: str) -> Owner | None:
    """Return the server of this task and the server's own id of the task, or the gateway itself for
    a run of a workflow; None if this endpoint has not made the id."""
    if task.startswith(engine_tools.TASK) and (found := own(merged)) is not None:
        return found
    if merged.only is not None:
        return merged.only
    try:
        data = base64.urlsafe_b64decode(task + "=" * (-len(task) % 4))
        name = data[CHECKSUM_BYTES:].decode()
    except (binascii.Error, ValueError):
        return None
    server, _, original = name.partition("\0")
    if server not in merged.eras or exposed(merged.endpoint, server, original) != task:
        return None
    return Owner(server, codec.dump(original), merged.eras[server])


def own(merged: Merged) -> Owner | None:
    """Return the gateway itself, if it has tasks here: runs of workflows."""
    found = merged.tools.get(engine_tools.RUN)
    return None if found is None or found.server else found


def in_result(method: str, body: bytes, expose: Exposing) -> bytes:
    """Return the result of a request, with the ids of its server changed to those that the endpoint
    exposes."""
    if _ID not in body:
        return body
    members = _level(body)
    changed = _related(members, expose)
    if method == CALL:
        created = codec.text(members.get("resultType", b"null")) == "task"
        changed = (created and _own(members, expose)) or _inner(members, "task", expose) or changed
    elif method != "tasks/result":  # that is the outcome of the task, without its id
        changed = _own(members, expose) or changed
    return codec.dump(members) if changed else body


def in_params(params: bytes, expose: Exposing) -> bytes:
    """Return the parameters of a notification or question that belongs to a task, with its id
    changed in the same way."""
    if _ID not in params:
        return params
    members = _level(params)
    return codec.dump(members) if _related(members, expose) else params


def created(body: bytes) -> str | None:
    """Return the id of the task that this result of `tools/call` stands for, in either era."""
    if _ID not in body:
        return None
    members = _level(body)
    if codec.text(members.get("resultType", b"null")) != "task":
        members = _level(members.get("task", Raw()))
    return codec.text(members.get("taskId", b"null"))


class Related:
    """Caller on an endpoint with several servers, in front of a server that may have tasks:
    messages that belong to a task name it as the client knows it."""

    __slots__ = ("_caller", "_expose")

    def __init__(self, caller: Caller, expose: Exposing) -> None:
        self._caller = caller
        self._expose = expose

    def progressed(self, params: bytes) -> None:
        self._caller.progressed(in_params(params, self._expose))

    def told(self, method: str, params: bytes) -> None:
        self._caller.told(method, in_params(params, self._expose))

    def asked(self, question: Question) -> None:
        question.params = in_params(question.params, self._expose)
        self._caller.asked(question)


def _own(members: dict[str, Raw], expose: Exposing) -> bool:
    task = codec.text(members.get("taskId", b"null"))
    if task is None:
        return False
    members["taskId"] = Raw(codec.dump(expose(task)))
    return True


def _inner(members: dict[str, Raw], name: str, expose: Exposing) -> bool:
    inner = _level(members.get(name, Raw()))
    if not _own(inner, expose):
        return False
    members[name] = Raw(codec.dump(inner))
    return True


def _related(members: dict[str, Raw], expose: Exposing) -> bool:
    meta = _level(members.get("_meta", Raw()))
    if not _inner(meta, RELATED, expose):
        return False
    members["_meta"] = Raw(codec.dump(meta))
    return True


def _level(raw: Raw | bytes) -> dict[str, Raw]:
    """Return the members of a raw object; no members for any other value."""
    try:
        return codec.level(raw)
    except codec.Malformed:
        return {}
