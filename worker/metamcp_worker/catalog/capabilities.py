"""Capabilities that an endpoint declares, from those of its servers.

Owns: which capabilities of servers hold through a gateway, for clients of each era, and how those
of several servers are joined. Never: lists, sending.

A capability that no server has is not declared. Capabilities beyond the protocol are passed on if
the endpoint has only one server, because everything that this server does can be asked for.
"""

from collections.abc import Mapping, Sequence

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec

LISTS = ("tools", "prompts", "resources")
"""Capabilities that stand for lists. The gateway itself announces changes of these lists, in both
eras."""
TASKS = "tasks"
"""Capability of revision 2025-11-25; in the next revision an extension takes its place."""
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
_TRUE = b"true"


class Declared(Struct, frozen=True):
    """Capabilities that one server declares: raw values, in its order."""

    members: Mapping[str, Raw]
    legacy: bool

    @classmethod
    def read(cls, raw: Raw, *, legacy: bool) -> "Declared":
        members = {name: value for name, value in _level(raw).items() if bytes(value) != b"null"}
        return cls(members, legacy)

    def has(self, name: str) -> bool:
        """Whether a capability is declared as an object, as the protocol knows it."""
        return bytes(self.members.get(name, b"")).startswith(b"{")

    def lists(self) -> frozenset[str]:
        return frozenset(name for name in LISTS if self.has(name))

    def has_tasks(self) -> bool:
        """Whether a call can become a task, in the server's era."""
        return self.has(TASKS) if self.legacy else TASKS_EXTENSION in self.level("extensions")

    def level(self, name: str) -> dict[str, Raw]:
        return _level(self.members.get(name, Raw(b"{}")))


def of_one(server: Declared, lists: Sequence[str], *, modern: bool) -> bytes:
    """Return the raw capabilities of an endpoint with this server alone: what the server declares,
    except what does not reach a client of this era. `lists`: lists that the server has, declared or
    not."""
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
    """Return the raw capabilities of an endpoint with these servers: what one of them can be asked
    for. `lists`: lists that they have together."""
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
    """Return the extensions of a server, without the one for tasks if the client or the server is
    of the handshake era."""
    extensions = server.level("extensions")
    if not modern or server.legacy:
        extensions.pop(TASKS_EXTENSION, None)
    return extensions


def _tasks(servers: Sequence[Declared]) -> dict[str, object]:
    """Return what a client can do with tasks of several servers: the id of a task names its server,
    but several lists of tasks cannot be made into one."""
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
