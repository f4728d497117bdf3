"""Reading a server's lists: every page, with a guard against each way to make a list endless.

Owns: which lists there are, paging, the limits of a catalogue, the warnings about definitions that
are left out; the owner of each task in a list of tasks (`TaskOwners`). Never: lines, ids, clocks;
names as clients see them; who an owner is, and which tasks a client sees (`front.task_ids`).

A server of revision 2025-11-25 lists the tasks of all its clients, because they are one client to
it. Mostly the tasks end with its process, so the worker of that process keeps the owners: it
outlives a front, and all fronts ask it.
"""

from collections.abc import Iterable, Mapping

from msgspec import Raw, Struct

from metamcp_worker.child.call_queue import SentCall
from metamcp_worker.child.own_requests import OwnRequest
from metamcp_worker.ipc import codec, server_catalog
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.server_catalog import Hint, gateways, hint, strictest

PAGES_MAX = 100
ITEMS_MAX = 3000
"""Maximum number of definitions in a list. A model can choose from far fewer, but a gateway behind
this one, or a server that wraps a whole API, may well list two thousand for its clients to
search."""
ITEM_BYTES_MAX = 64 * 1024
LISTING_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes of all definitions of a server, because every front holds a copy."""
CURSOR_BYTES_MAX = 64 * 1024
"""Maximum bytes of a cursor. All cursors of a list are kept until its end, to notice a cursor that
comes twice."""
WARNINGS_MAX = 20
"""Maximum number of left out definitions that are reported one by one; only the number of further
ones is reported."""

#: list, by the name of its array in answers -> (method, what identifies an item, capability)
_LISTS: Mapping[str, tuple[str, str, str]] = {
    "tools": ("tools/list", "name", "tools"),
    "prompts": ("prompts/list", "name", "prompts"),
    "resources": ("resources/list", "uri", "resources"),
    "resourceTemplates": ("resources/templates/list", "uriTemplate", "resources"),
}

#: notification -> the lists that it is about
CHANGES: Mapping[str, frozenset[str]] = {
    "notifications/tools/list_changed": frozenset({"tools"}),
    "notifications/prompts/list_changed": frozenset({"prompts"}),
    "notifications/resources/list_changed": frozenset({"resources", "resourceTemplates"}),
}


def declared(capabilities: Raw) -> frozenset[str]:
    """Return the lists that a server with these capabilities has."""
    have = codec.level(capabilities)
    return frozenset(
        kind
        for kind, (_, _, capability) in _LISTS.items()
        if capability in have and bytes(have[capability]).startswith(b"{")
    )


class _Error(Struct):
    code: int = 0
    message: str = ""


_read_error = codec.reader(_Error)


class ListReader:
    """Reader of some lists, for one pass. Send the request that `ask` returns and feed the answer,
    until `ask` returns None.

    `lists`, `hints`, `gateways`: the definitions, the hints, and the ids of the gateways that they
    come from, by list; a list that could not be read is missing.
    `warnings`: sentences. `failed`: why the tools could not be read, or empty; `ask` returns None
    then.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._todo = [kind for kind in server_catalog.KINDS if kind in set(kinds)]
        self.lists: dict[str, tuple[Raw, ...]] = {}
        self.hints: dict[str, Hint] = {}
        self.gateways: dict[str, tuple[str, ...]] = {}
        self.warnings: list[str] = []
        self.failed = ""
        self._bytes = 0
        self._begin()

    def ask(self) -> OwnRequest | None:
        """Return the request for the next page, or None when all is read or the listing failed."""
        if not self._todo or self.failed:
            return None
        params = b'{"cursor":%b}' % self._cursor if self._cursor else b"{}"
        return OwnRequest(_LISTS[self._todo[0]][0], params)

    def answered(self, result: bytes) -> None:
        """Take the raw result of the last `ask`. Half of a surrogate pair is replaced, because
        clients that cannot read it would lose the definitions of all servers."""
        kind = self._todo[0]
        whole, result = result, codec.readable(result)
        if result != whole:
            told = f"{_LISTS[kind][0]}: U+FFFD stands for each half of a surrogate pair"
            self.warnings.append(told)
        try:
            page = codec.level(result)
            items = codec.items(page.get(kind, Raw(b"null")))
        except codec.Malformed:
            self._broke(f"{_LISTS[kind][0]} was answered without an array '{kind}'")
            return
        for item in items:
            self._take(kind, item)
        self._page_hints.append(hint(page))
        self._gateways |= dict.fromkeys(gateways(page))
        self._pages += 1
        self._turn(bytes(page.get("nextCursor", b"null")))

    def refused(self, error: bytes) -> None:
        """Take the error with which the last `ask` was answered."""
        method = _LISTS[self._todo[0]][0]
        try:
            reason = _read_error(error)
        except codec.Malformed:
            reason = _Error(message="an error that cannot be read")
        if reason.code == Code.METHOD_NOT_FOUND and method == "resources/templates/list":
            self._end()  # Many servers with resources have no templates and do not know the method.
            return
        self._broke(f"{method} was refused: {reason.message[:200]} ({reason.code})")

    def silent(self) -> None:
        """Note that the last `ask` was not answered in time."""
        self._broke(f"{_LISTS[self._todo[0]][0]} was not answered in time")

    def _take(self, kind: str, item: Raw) -> None:
        size = len(bytes(item))
        name = _identity(item, _LISTS[kind][1])
        told = "one without a name" if name is None else repr(name[:128])
        if size > ITEM_BYTES_MAX:
            self._leave_out(kind, f"{told}, {size} bytes, the limit is {ITEM_BYTES_MAX}")
        elif name in self._found:
            self._leave_out(kind, f"a second {told}; the first one counts")
        elif len(self._found) >= ITEMS_MAX or self._bytes + size > LISTING_BYTES_MAX:
            self._too_many += 1
        else:
            self._found[len(self._found) if name is None else name] = item
            self._bytes += size

    def _leave_out(self, kind: str, what: str) -> None:
        self._left_out += 1
        if self._left_out <= WARNINGS_MAX:
            self.warnings.append(f"left out of {kind}: {what}")

    def _turn(self, cursor: bytes) -> None:
        """Turn to the page that `cursor` names; an empty string names a page too."""
        if cursor == b"null":
            self._end()
        elif codec.text(cursor) is None:
            self._stop("its nextCursor is not a string")
        elif len(cursor) > CURSOR_BYTES_MAX:
            self._stop(f"its nextCursor has more than {CURSOR_BYTES_MAX} bytes")
        elif cursor in self._cursors:
            self._stop("a cursor came twice")
        elif self._pages >= PAGES_MAX:
            self._stop(f"it has more than {PAGES_MAX} pages")
        else:
            self._cursors.add(cursor)
            self._cursor = cursor

    def _stop(self, why: str) -> None:
        self.warnings.append(f"{_LISTS[self._todo[0]][0]} was read up to page {self._pages}: {why}")
        self._end()

    def _broke(self, why: str) -> None:
        kind = self._todo[0]
        if kind == "tools":
            self.failed = why
            return
        self.warnings.append(why)
        self._todo.pop(0)
        self._begin()

    def _end(self) -> None:
        kind = self._todo.pop(0)
        if self._left_out > WARNINGS_MAX:
            more = self._left_out - WARNINGS_MAX
            self.warnings.append(f"left out of {kind}: {more} more of that sort")
        if self._too_many:
            self.warnings.append(
                f"left out of {kind}: {self._too_many} above the limit of {ITEMS_MAX} definitions "
                f"or {LISTING_BYTES_MAX} bytes"
            )
        self.lists[kind] = tuple(self._found.values())
        self.hints[kind] = strictest(self._page_hints)
        self.gateways[kind] = tuple(self._gateways)
        self._begin()

    def _begin(self) -> None:
        """Begin the next list, of which nothing is read yet."""
        self._found: dict[str | int, Raw] = {}
        self._cursors: set[bytes] = set()
        self._cursor = b""
        self._page_hints: list[Hint] = []
        self._gateways: dict[str, None] = {}
        self._pages: int = 0
        self._left_out = 0
        self._too_many = 0


def _identity(item: Raw, member: str) -> str | None:
    try:
        found = codec.level(item).get(member, Raw(b"null"))
    except codec.Malformed:
        return None
    return codec.text(found)


OWNED_MAX = 10_000
"""Maximum number of tasks whose owners are known. The oldest make room; no list has them then."""
OWNER = "owner"
"""Member of a caller with the word for the owner of its tasks, and of each task in a list."""
RELATED = "io.modelcontextprotocol/related-task"
"""Key in the `_meta` of a message that belongs to a task."""
_NOTHING = Raw(b"{}")
_OWNED = b'{"owner":'
_CALL, _LIST = "tools/call", "tasks/list"


class TaskOwners:
    """Words for the owners of tasks, by the server's ids of the tasks."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def answered(self, call: SentCall, result: bytes) -> bytes:
        """Note whose task a result stands for, and return the result; a list of tasks with the
        owner of each of them."""
        if not call.caller.startswith(_OWNED):
            return result
        if call.method == _LIST:
            return self._listed(result)
        if call.method == _CALL and (task := _created(result)) is not None:
            self._owners.pop(task, None)
            if len(self._owners) >= OWNED_MAX:
                del self._owners[next(iter(self._owners))]
            self._owners[task] = word_of(call)
        return result

    def find(self, params: bytes) -> str:
        """Return the owner of the task that a message with these parameters belongs to; empty if it
        belongs to none whose owner is known."""
        if not self._owners or b'"taskId"' not in params:
            return ""
        try:
            meta = codec.level(codec.level(params).get("_meta", _NOTHING))
            task = codec.text(codec.level(meta.get(RELATED, _NOTHING)).get("taskId", Raw(b"null")))
        except codec.Malformed:
            return ""
        return self._owners.get(task or "", "")

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


def word_of(call: SentCall) -> str:
    """Return the word for the owner of the tasks of a call; empty if its front gives none."""
    if not call.caller.startswith(_OWNED):
        return ""
    return codec.text(codec.level(call.caller)[OWNER]) or ""


def _created(result: bytes) -> str | None:
    """Return the id of the task that a result stands for; None if the result is not a task."""
    if b'"taskId"' not in result:
        return None
    try:
        task = codec.level(codec.level(result).get("task", Raw(b"{}")))
    except codec.Malformed:
        return None
    return codec.text(task.get("taskId", Raw(b"null")))
