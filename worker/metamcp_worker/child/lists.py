"""Reading a server's lists: every page, with a guard against each way to make a list endless.

Owns: which lists there are, paging, the limits of a catalogue, the warnings about definitions that
are left out; when a list is late and when it is asked for again (`Listing`); the owner of each task
in a list of tasks (`TaskOwners`). Never: clocks, names as clients see them; who an owner is, and
which tasks a client sees (`front_calls.task_ids`).

A server of revision 2025-11-25 lists the tasks of all its clients, because they are one client to
it. Mostly the tasks end with its process, so the worker of that process keeps the owners: it
outlives a front, and all fronts ask it.
"""

from collections.abc import Collection, Mapping

from msgspec import Raw, Struct

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Actions, CancelRequest, RequestPurpose
from metamcp_worker.child.call_queue import SentCall
from metamcp_worker.child.own_requests import OwnRequest, OwnRequests
from metamcp_worker.ipc import codec, json_schemas
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.server_catalog import (
    KINDS,
    CachingHint,
    SchemaFaults,
    gateways,
    hint,
    strictest,
)

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

TOOLS = "tools"

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


def find_declared_lists(capabilities: Raw) -> frozenset[str]:
    """Return the lists that a server with these capabilities has."""
    have = codec.level(capabilities)
    return frozenset(
        kind
        for kind, (_, _, capability) in _LISTS.items()
        if capability in have and bytes(have[capability]).startswith(b"{")
    )


def first_page(kind: str) -> OwnRequest:
    """Return the request for the first page of a list."""
    return OwnRequest(_LISTS[kind][0])


class DefinitionSize(Struct):
    """Bytes of all definitions of a server that were read in one pass."""

    taken_bytes: int = 0


class ListReader:
    """Reader of one list. Send the request that `ask` returns and feed the answer, until `ask`
    returns None.

    `items`, `hint`: the definitions, and how long they may be kept. `gateways`: ids of the gateways
    that they come from. `warnings`: sentences.
    `failed`: why the list could not be read, or empty; `unknown`: the server has no such list.
    """

    def __init__(self, kind: str, room: DefinitionSize) -> None:
        self.method, self._key, _ = _LISTS[kind]
        self.items: tuple[Raw, ...] = ()
        self.hint = CachingHint()
        self.gateways: tuple[str, ...] = ()
        self.warnings: list[str] = []
        self.failed = ""
        self.unknown = False
        self._kind = kind
        self._room = room
        self._bytes = 0
        self._ended = False
        self._found: dict[str | int, Raw] = {}
        self._cursors: set[bytes] = set()
        self._cursor = b""
        self._page_hints: list[CachingHint] = []
        self._pages = 0
        self._left_out = 0
        self._too_many = 0

    def ask(self) -> OwnRequest | None:
        """Return the request for the next page, or None when all is read or the listing failed."""
        if self._ended or self.failed:
            return None
        params = b'{"cursor":%b}' % self._cursor if self._cursor else b"{}"
        return OwnRequest(self.method, params)

    def on_answer(self, result: bytes) -> None:
        """Take the raw result of the last `ask`. Half of a surrogate pair is replaced, because
        clients that cannot read it would lose the definitions of all servers."""
        original, result = result, codec.readable(result)
        if result != original:
            warning = f"{self.method}: U+FFFD stands for each half of a surrogate pair"
            self.warnings.append(warning)
        try:
            page = codec.level(result)
            items = codec.items(page.get(self._kind, Raw(b"null")))
        except codec.Malformed:
            self._fail(f"{self.method} was answered without an array '{self._kind}'")
            return
        for item in items:
            self._take(item)
        self._page_hints.append(hint(page))
        self.gateways = tuple(dict.fromkeys((*self.gateways, *gateways(page))))
        self._pages += 1
        self._turn(bytes(page.get("nextCursor", b"null")))

    def on_error(self, error: bytes) -> None:
        """Take the error with which the last `ask` was answered."""
        reason = codec.error_object(error)
        self.unknown = reason.code == Code.METHOD_NOT_FOUND
        if self.unknown and self._kind == "resourceTemplates":
            self._end()  # Many servers with resources have no templates and do not know the method.
            return
        self._fail(f"{self.method} was refused: {reason.message[:200]} ({reason.code})")

    def silent(self) -> None:
        """Note that the last `ask` was not answered in time."""
        self._fail(f"{self.method} was not answered in time")

    def _take(self, item: Raw) -> None:
        size = len(bytes(item))
        name = _identity(item, self._key)
        label = "one without a name" if name is None else repr(name[:128])
        if size > ITEM_BYTES_MAX:
            self._leave_out(f"{label}, {size} bytes, the limit is {ITEM_BYTES_MAX}")
        elif name in self._found:
            self._leave_out(f"a second {label}; the first one counts")
        elif len(self._found) >= ITEMS_MAX or self._room.taken_bytes + size > LISTING_BYTES_MAX:
            self._too_many += 1
        else:
            self._found[len(self._found) if name is None else name] = item
            self._bytes += size
            self._room.taken_bytes += size

    def _leave_out(self, description: str) -> None:
        self._left_out += 1
        if self._left_out <= WARNINGS_MAX:
            self.warnings.append(f"left out of {self._kind}: {description}")

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

    def _stop(self, reason: str) -> None:
        self.warnings.append(f"{self.method} was read up to page {self._pages}: {reason}")
        self._end()

    def _fail(self, reason: str) -> None:
        self.failed = reason
        self._room.taken_bytes -= self._bytes

    def _end(self) -> None:
        if self._left_out > WARNINGS_MAX:
            more = self._left_out - WARNINGS_MAX
            self.warnings.append(f"left out of {self._kind}: {more} more of that sort")
        if self._too_many:
            self.warnings.append(
                f"left out of {self._kind}: {self._too_many} above the limit of {ITEMS_MAX} "
                f"definitions or {LISTING_BYTES_MAX} bytes"
            )
        self.items = tuple(self._found.values())
        self.hint = strictest(self._page_hints)
        self._ended = True


TOOLS_AGAIN_S = (1.0, 2.0, 4.0)
"""Seconds after which the tools are asked for again, each time that this fails."""


TOOLS_S_MAX = 60.0
"""Maximum seconds for an answer about tools; as many as a start may take, if those are more."""


class _Reading(Struct):
    """Reading of one list, since `begun`. `key`: of the open request, empty while the next one
    waits. `due`: when the time for the answer is over, or the request is sent. `failures`: how
    often it failed before."""

    reader: ListReader
    begun: float
    due: float
    key: bytes = b""
    failures: int = 0


class Listing:
    """Reading of the lists of one server, all at the same time, so that a list that hangs or fails
    costs itself only.

    `list_s`: seconds for an answer, and for a list not to be late; `tools_s`: seconds for an answer
    about tools. `at_once`: maximum number of open requests. `lists`, `hints`, `gateways`: as in
    `ListReader`, by list, as far as they were read. `schemas`: as in `ServerCatalogue`.
    `news`: whether reading a list has ended.
    """

    def __init__(self, own: OwnRequests, *, list_s: float, tools_s: float, at_once: int) -> None:
        self.lists: dict[str, tuple[Raw, ...]] = {}
        self.hints: dict[str, CachingHint] = {}
        self.gateways: dict[str, tuple[str, ...]] = {}
        self.schemas: dict[str, SchemaFaults] = {}
        self.news = False
        self._own = own
        self._list_s = list_s
        self._tools_s = tools_s
        self._at_once = at_once
        self._room = DefinitionSize()
        self._readings: dict[str, _Reading] = {}
        self._late: dict[str, list[bytes]] = {}
        """Requests that were not answered in time, by list."""
        self._failed: set[str] = set()
        self._warnings: list[str] = []

    def busy(self, now: float) -> bool:
        """Whether a list is being read that is not late."""
        return any(now < reading.begun + self._list_s for reading in self._readings.values())

    @property
    def has_failed(self) -> bool:
        """Whether a list could not be read last time."""
        return bool(self._failed)

    @property
    def unread(self) -> tuple[str, ...]:
        """Lists that were asked for and never read."""
        unread_kinds = {*self._failed, *self._readings} - set(self.lists)
        return tuple(kind for kind in KINDS if kind in unread_kinds)

    @property
    def open(self) -> dict[str, str]:
        """Methods of the lists that are being read, by list."""
        return {kind: reading.reader.method for kind, reading in self._readings.items()}

    def warnings(self) -> list[str]:
        """Take out the warnings about what was read."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def read(self, kinds: Collection[str], now: float) -> Actions:
        """Begin to read these lists."""
        self._room = DefinitionSize()
        self._failed -= set(kinds)
        for kind in KINDS:
            if kind in kinds:
                for key in self._late.pop(kind, ()):
                    self._own.take(key)
                self._readings[kind] = _Reading(ListReader(kind, self._room), now, now)
        return self.tick(now)

    def on_answer(self, key: bytes, result: bytes, error: bytes, now: float) -> Actions:
        """Take the raw result or the raw error for a request."""
        for kind, reading in self._readings.items():
            if reading.key == key:
                if error:
                    reading.reader.on_error(error)
                else:
                    reading.reader.on_answer(result)
                self._turn(kind, reading, now)
                break
        return self.tick(now)

    def tick(self, now: float) -> Actions:
        """Send the requests that are due, and give up those that are not answered in time."""
        actions: Actions = []
        for kind, reading in list(self._readings.items()):
            if reading.key and now >= reading.due:
                # It stays open: the server may be at work on it.
                self._late.setdefault(kind, []).append(reading.key)
                line = jsonrpc_lines.build_cancel_notification(reading.key, b"timeout")
                actions.append(CancelRequest(reading.key, line))
                reading.reader.silent()
                self._turn(kind, reading, now)
        for kind, reading in self._readings.items():
            ask = None if reading.key or now < reading.due else reading.reader.ask()
            if ask is not None and sum(bool(other.key) for other in self._readings.values()) < (
                self._at_once
            ):
                request = self._own.ask(RequestPurpose.LIST, ask)
                reading.key = request.key
                reading.due = now + (self._tools_s if kind == TOOLS else self._list_s)
                actions.append(request)
        return actions

    def _turn(self, kind: str, reading: _Reading, now: float) -> None:
        """Go on after an answer, or after none in time: to the next page, the next try, the end."""
        reader = reading.reader
        if reader.ask() is not None:
            reading.key, reading.due = b"", now
            return
        again = reader.failed and kind == TOOLS and not reader.unknown
        if again and reading.failures < len(TOOLS_AGAIN_S):
            due = now + TOOLS_AGAIN_S[reading.failures]
            self._readings[kind] = _Reading(
                ListReader(kind, self._room), reading.begun, due, b"", reading.failures + 1
            )
            return
        del self._readings[kind]
        self.news = True
        self._warnings += reader.warnings
        if reader.failed:
            lost = "stays as it was" if kind in self.lists else "is left out"
            self._warnings.append(f"{reader.failed}; the list {lost}")
            self._failed.add(kind)
        else:
            self.lists[kind], self.hints[kind] = reader.items, reader.hint
            self.gateways[kind] = reader.gateways
            if kind == TOOLS:
                self.schemas = json_schemas.faults(reader.items)


def _identity(item: Raw, member: str) -> str | None:
    return codec.text(codec.members(item).get(member, Raw(b"null")))


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

    def record_owners(self, call: SentCall, result: bytes) -> bytes:
        """Note whose task a result stands for, and return the result; a list of tasks with the
        owner of each of them."""
        if not call.caller.startswith(_OWNED):
            return result
        if call.method == _LIST:
            return self._with_owners(result)
        if call.method == _CALL and (task := _find_task_id(result)) is not None:
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
        meta = codec.members(codec.members(params).get("_meta", _NOTHING))
        task = codec.text(codec.members(meta.get(RELATED, _NOTHING)).get("taskId", Raw(b"null")))
        return self._owners.get(task or "", "")

    def _with_owners(self, result: bytes) -> bytes:
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


def _find_task_id(result: bytes) -> str | None:
    """Return the id of the task that a result stands for; None if the result is not a task."""
    if b'"taskId"' not in result:
        return None
    task = codec.members(codec.members(result).get("task", b""))
    return codec.text(task.get("taskId", Raw(b"null")))
