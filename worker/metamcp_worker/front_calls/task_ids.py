"""Ids of tasks as clients know them, and texts that are of use to their owner alone.

Owns: the id under which an endpoint exposes the task of a server, who a task belongs to, the places
of task ids in messages; texts for a client that nobody else can use (`seal`, `unseal`). Never:
tasks, their states, sending.

A client asks for a task by its id alone, and the server cannot tell clients apart. A table of ids
would have to last as long as any task, and all fronts would have to share it. So the exposed id is
built from the server's name and its own id, and a code that only this gateway can make binds it to
the endpoint and the principal. The id of another principal is an unknown id.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence

from msgspec import Raw, Struct

from metamcp_worker.builtin_tools import engine_tools
from metamcp_worker.catalog.catalog import MergedCatalog
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.front_calls.client_questions import Caller, Question
from metamcp_worker.ipc import codec

ID_BYTES_MAX = 1024
"""Maximum bytes of an id as clients know it; it has to fit into a header, and is mostly a UUID."""
CODE_BYTES = 16
"""Bytes of the code in a sealed text, which nobody can guess."""
OWNER_BYTES = 16
"""Bytes of the word for an owner that a worker gets."""
OWNER = "owner"
"""Member of a listed task in which a worker says whose task it is."""

CALL = "tools/call"
LIST = "tasks/list"
#: Methods that name a task in `params.taskId`, in one era or in both.
METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel", "tasks/result"})
RELATED = "io.modelcontextprotocol/related-task"
"""Key in the `_meta` of every message that belongs to a task, in revision 2025-11-25."""

_ID = b'"taskId"'
#: Function that returns the exposed id for an id of the server.
Exposing = Callable[[str], str]


def seal(key: bytes, scope: Sequence[bytes], content: bytes) -> str:
    """Return a text from which `unseal` gives the content back, for this scope alone. `key`: of the
    state directory. The text does not hide the content."""
    code = _digest(key, (*scope, content), CODE_BYTES)
    return base64.urlsafe_b64encode(code + content).decode("ascii").rstrip("=")


def unseal(key: bytes, scope: Sequence[bytes], text: str) -> bytes | None:
    """Return the content of a text; None if `seal` has not created the text for this scope."""
    try:
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[CODE_BYTES:]
    except (binascii.Error, ValueError):
        return None
    same = hmac.compare_digest(seal(key, scope, content), text)
    return content if same else None


def _digest(key: bytes, scope: Iterable[bytes], size_bytes: int) -> bytes:
    hasher = hashlib.blake2b(key=key, digest_size=size_bytes)
    for each in scope:
        hasher.update(b"%d:" % len(each))
        hasher.update(each)
    return hasher.digest()


class TaskOwner(Struct, frozen=True, gc=False):
    """Client to whom tasks belong: a principal at an endpoint. `key`: of the state directory."""

    key: bytes
    endpoint: str
    principal: str

    @property
    def scope(self) -> tuple[bytes, ...]:
        return b"task", self.endpoint.encode(), self.principal.encode("utf-8", "surrogatepass")

    @property
    def word(self) -> str:
        """Word for this owner, from which nobody learns who it is."""
        return _digest(self.key, (b"owner", *self.scope), OWNER_BYTES).hex()

    def expose_id(self, server: str, task: str) -> str:
        """Return the id under which this owner knows the task of a server."""
        name = f"{server}\0{task}".encode("utf-8", "surrogatepass")
        return seal(self.key, self.scope, name)

    def find_server(self, merged: MergedCatalog, task: str) -> Owner | None:
        """Return the server of this task and the server's own id of the task, or the gateway itself
        for a run of a workflow; None if this owner has no task with this id."""
        if task.startswith(engine_tools.TASK) and (gateway := own(merged)) is not None:
            return gateway
        name = unseal(self.key, self.scope, task)
        try:
            server, _, original = (name or b"").decode().partition("\0")
        except UnicodeDecodeError:
            return None
        if server not in merged.eras and server not in merged.unknown:
            return None
        return Owner(server, codec.dump(original), merged.eras.get(server, True))


def with_word(caller: bytes, word: str) -> bytes:
    """Return the caller of a call whose worker is to know the word for the owner of its tasks. The
    word comes first, where the worker looks for it."""
    return b'{"%s":"%b"%b' % (
        OWNER.encode(), word.encode(), b"," + caller[1:] if len(caller) > 2 else b"}",
    )  # fmt: skip


def own(merged: MergedCatalog) -> Owner | None:
    """Return the gateway itself, if it has tasks here: runs of workflows."""
    owner = merged.tools.get(engine_tools.RUN)
    return None if owner is None or owner.server else owner


def in_result(method: str, body: bytes, expose: Exposing) -> bytes:
    """Return the result of a request, with the ids of its server changed to those that the endpoint
    exposes."""
    if _ID not in body:
        return body
    members = codec.members(body)
    changed = _expose_related(members, expose)
    if method == CALL:
        created = codec.text(members.get("resultType", b"null")) == "task"
        changed = (created and _own(members, expose)) or _inner(members, "task", expose) or changed
    elif method != "tasks/result":  # that is the outcome of the task, without its id
        changed = _own(members, expose) or changed
    return codec.dump(members) if changed else body


def in_list(body: bytes, expose: Exposing, word: str) -> bytes:
    """Return the result of `tasks/list`, with the ids changed in the same way. `word`: for the
    owner, whose tasks alone stay in the list; empty if all tasks of the server are theirs."""
    members = codec.members(body)
    try:
        tasks = [codec.members(each) for each in codec.items(members.get("tasks", Raw(b"[]")))]
    except codec.Malformed:
        tasks = []
    own_tasks: list[dict[str, Raw]] = []
    for task in tasks:
        whose = codec.text(task.pop(OWNER, Raw(b"null"))) or ""
        if word in ("", whose) and _own(task, expose):
            own_tasks.append(task)
    return codec.dump({**members, "tasks": own_tasks})


def in_params(params: bytes, expose: Exposing) -> bytes:
    """Return the parameters of a notification or question that belongs to a task, with its id
    changed in the same way."""
    if _ID not in params:
        return params
    members = codec.members(params)
    return codec.dump(members) if _expose_related(members, expose) else params


def find_related_task(params: bytes) -> str | None:
    """Return the server's id of the task that a notification with these parameters belongs to."""
    if _ID not in params:
        return None
    about = codec.members(
        codec.members(codec.members(params).get("_meta", Raw())).get(RELATED, Raw())
    )
    return codec.text(about.get("taskId", b"null"))


def read_task_id(body: bytes) -> str | None:
    """Return the id of the task that this result of `tools/call` stands for, in either era."""
    if _ID not in body:
        return None
    members = codec.members(body)
    if codec.text(members.get("resultType", b"null")) != "task":
        members = codec.members(members.get("task", Raw()))
    return codec.text(members.get("taskId", b"null"))


class TaskIdCaller:
    """Caller in front of a server that may have tasks: messages that belong to a task name it as
    the client knows it."""

    __slots__ = ("_caller", "_expose")

    def __init__(self, caller: Caller, expose: Exposing) -> None:
        self._caller = caller
        self._expose = expose

    def on_progress(self, params: bytes) -> None:
        self._caller.on_progress(in_params(params, self._expose))

    def on_notification(self, method: str, params: bytes) -> None:
        self._caller.on_notification(method, in_params(params, self._expose))

    def on_question(self, question: Question) -> None:
        question.params = in_params(question.params, self._expose)
        self._caller.on_question(question)


def _own(members: dict[str, Raw], expose: Exposing) -> bool:
    task = codec.text(members.get("taskId", b"null"))
    if task is None:
        return False
    members["taskId"] = Raw(codec.dump(expose(task)))
    return True


def _inner(members: dict[str, Raw], name: str, expose: Exposing) -> bool:
    inner = codec.members(members.get(name, Raw()))
    if not _own(inner, expose):
        return False
    members[name] = Raw(codec.dump(inner))
    return True


def _expose_related(members: dict[str, Raw], expose: Exposing) -> bool:
    meta = codec.members(members.get("_meta", Raw()))
    if not _inner(meta, RELATED, expose):
        return False
    members["_meta"] = Raw(codec.dump(meta))
    return True
