"""What an endpoint says that its servers can do.

Owns: which capabilities of servers hold through a gateway, for clients of each era, and what is
made of several. Never: lists, sending.

Nothing is declared that no server has. What a server has beside what the protocol knows is passed
on where it is the only server, since there everything that it does can be asked for.
"""

from collections.abc import Mapping, Sequence

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec

LISTS = ("tools", "prompts", "resources")
"""Capabilities that stand for lists. The gateway itself announces their changes, in both eras."""
TASKS = "tasks"
"""Of revision 2025-11-25. What became of it in the next one is an extension."""
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
_TRUE = b"true"


class Declared(Struct, frozen=True):
    """What one server declares: raw values, in its order."""

    members: Mapping[str, Raw]
    legacy: bool

    @classmethod
    def read(cls, raw: Raw, *, legacy: bool) -> "Declared":
        members = {name: value for name, value in _level(raw).items() if bytes(value) != b"null"}
        return cls(members, legacy)

    def has(self, name: str) -> bool:
        """Is it declared as what the protocol knows, an object?"""
        return bytes(self.members.get(name, b"")).startswith(b"{")

    def lists(self) -> frozenset[str]:
        return frozenset(name for name in LISTS if self.has(name))

    def has_tasks(self) -> bool:
        """Can a call become a task, in its era?"""
        return self.has(TASKS) if self.legacy else TASKS_EXTENSION in self.level("extensions")

    def level(self, name: str) -> dict[str, Raw]:
        return _level(self.members.get(name, Raw(b"{}")))


def of_one(server: Declared, lists: Sequence[str], *, modern: bool) -> bytes:
    """What an endpoint with this server alone declares: what the server does, but for what does
    not reach a client of this era. `lists`: what it has, declared or not."""
    found: dict[str, Raw] = {
        name: _announced(b"{}") for name in lists if name not in server.members
    }
    for name, raw in server.members.items():
        if name in LISTS:
            if server.has(name):
                found[name] = _announced(bytes(raw))
        elif name == TASKS:
            if server.legacy and not modern:
                found[name] = raw
        elif name == "extensions":
            extensions = _extensions(server, modern=modern)
            if len(extensions) == len(server.level(name)):
                found[name] = raw
            elif extensions:
                found[name] = Raw(codec.dump(extensions))
        else:
            found[name] = raw
    return codec.dump(found)


def of_many(servers: Sequence[Declared], lists: Sequence[str], *, modern: bool) -> bytes:
    """What an endpoint with these servers declares: what can be asked of one of them. `lists`: what
    they have together."""
    found: dict[str, object] = {name: {"listChanged": True} for name in LISTS if name in lists}
    if "resources" in found and any(_subscribes(server) for server in servers):
        found["resources"] = {"subscribe": True, "listChanged": True}
    for name in ("completions", "logging"):
        if any(server.has(name) for server in servers):
            found[name] = {}
    tasks = {} if modern else _tasks([server for server in servers if server.legacy])
    if tasks:
        found[TASKS] = tasks
    experimental: dict[str, Raw] = {}
    extensions: dict[str, Raw] = {}
    for server in reversed(servers):  # the first one keeps a key
        experimental = {**experimental, **server.level("experimental")}
        extensions = {**extensions, **_extensions(server, modern=modern)}
    if experimental:
        found["experimental"] = experimental
    if extensions:
        found["extensions"] = extensions
    return codec.dump(found)


def _announced(raw: bytes) -> Raw:
    members = _level(Raw(raw))
    if bytes(members.get("listChanged", b"")) == _TRUE:
        return Raw(raw)
    return Raw(codec.dump({**members, "listChanged": True}))


def _subscribes(server: Declared) -> bool:
    return bytes(server.level("resources").get("subscribe", b"")) == _TRUE


def _extensions(server: Declared, *, modern: bool) -> dict[str, Raw]:
    """Without that of tasks where the client or the server is of the other era than it."""
    extensions = server.level("extensions")
    if not modern or server.legacy:
        extensions.pop(TASKS_EXTENSION, None)
    return extensions


def _tasks(servers: Sequence[Declared]) -> dict[str, object]:
    """What a client can do with tasks of several servers: the id of a task tells whose it is, but
    nothing makes one list of several lists of tasks."""
    found: dict[str, object] = {}
    for server in servers:
        tasks = server.level(TASKS)
        requests = _level(tasks.get("requests", Raw(b"{}")))
        if "call" in _level(requests.get("tools", Raw(b"{}"))):
            found["requests"] = {"tools": {"call": {}}}
        if "cancel" in tasks:
            found["cancel"] = {}
    return found if "requests" in found else {}


def _level(raw: Raw) -> dict[str, Raw]:
    try:
        return codec.level(raw)
    except codec.Malformed:
        return {}
