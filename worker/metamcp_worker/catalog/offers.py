"""Offers of single servers: owners of names, added arguments, and capabilities.

Owns: the definitions that one server offers (`ServerOffer`), where a request about one of them goes
(`Owner`), the changes to a client's arguments before they go to the server (`ArgumentOverrides`);
which capabilities of servers hold through a gateway, for clients of each era, and how those of
several servers are joined. Never: merging offers (`catalog`), which tools have such arguments, and
their schemas (`tool_overrides`).

Other arguments keep the bytes that the client sent, in their place. Added arguments come last: if a
server takes two names for one that differ in their case, the last one counts.

A capability that no server has is not declared. Capabilities beyond the protocol are passed on if
the endpoint has only one server, because everything that this server does can be asked for. If it
has several, those are passed on that one server alone has: methods that begin with their names go
to this server.
"""

import copy
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Raw, Struct, structs

from metamcp_worker.guard.guard_rules import CallGuard
from metamcp_worker.ipc import codec, json_schemas, validation
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.server_catalog import (
    KINDS,
    MODERN_SINCE,
    TASKS_EXTENSION,
    SchemaFaults,
    ServerCatalogue,
    iter_definitions,
)
from metamcp_worker.ipc.validation import Fault

_ARGUMENTS = "arguments"
_NOTHING = frozenset({b"", b"null"})
"""Raw values that mean the same as missing arguments."""


class ArgumentOverrides(Struct, frozen=True):
    """Changes to arguments; values are raw JSON. `fixed`: sent, whatever the client says of them;
    `defaults`: sent where the client says nothing."""

    fixed: Mapping[str, bytes] = {}
    defaults: Mapping[str, bytes] = {}


def fill_arguments(params: Mapping[str, Raw], mend: ArgumentOverrides) -> Mapping[str, Raw]:
    """Return the parameters of `tools/call` as the server gets them. Raises ProtocolError.

    Arguments that are not an object are passed on for the server to refuse, unless something is
    fixed: then no server may take them for an empty object.
    """
    raw = bytes(params.get(_ARGUMENTS, b""))
    if raw in _NOTHING:
        raw, arguments = b"{}", dict[str, Raw]()
    else:
        try:
            arguments = codec.level(raw)
        except codec.Malformed as error:
            if not mend.fixed:
                return params
            message = f"params.arguments must be an object, and some of it is fixed here: {error}"
            raise ProtocolError(Code.INVALID_PARAMS, message) from None
    if not arguments.keys().isdisjoint(mend.fixed):
        arguments = {name: value for name, value in arguments.items() if name not in mend.fixed}
        raw = codec.dump(arguments)
    added = {name: value for name, value in mend.defaults.items() if name not in arguments}
    added.update(mend.fixed)
    return {**params, _ARGUMENTS: Raw(_with(raw, added, first=not arguments))}


def _with(raw: bytes, added: Mapping[str, bytes], *, first: bool) -> bytes:
    """Return the raw object with these members behind all others. `first`: there are none
    before."""
    members = b",".join(codec.dump(name) + b":" + value for name, value in added.items())
    if not members:
        return raw
    return b"%b%b%b}" % (raw.rstrip()[:-1], b"" if first else b",", members)


#: The capability under which the lists of each kind are declared.
CAPABILITIES = {"tools": "tools", "prompts": "prompts", "resources": "resources",
                "resourceTemplates": "resources"}  # fmt: skip
APP_SCHEME = "ui://"
"""Scheme of resources that are the user interface of a tool (MCP Apps)."""
_FLAT_LINK = "ui/resourceUri"
"""Key that the first hosts of MCP Apps used for `ui.resourceUri` in the `_meta` of a tool."""


class OfferedItem(Struct, frozen=True, gc=False):
    """Definition of a server. `key`: the server's own name of the thing, `raw_key` as JSON;
    `digest`: of the whole definition; `renamed`: an operator gave it another name, which is not in
    the definition; `fault`: what keeps it out of lists; `modern_output`: clients before
    2026-07-28 cannot read its output schema."""

    key: str
    raw_key: bytes
    raw: bytes
    digest: bytes
    renamed: bool = False
    fault: Fault | None = None
    modern_output: bool = False


class Owner(Struct, frozen=True, gc=False):
    """Target of requests about one thing. `original`: the server's own name as raw JSON, or empty
    where the client says the same. `kept`: a sentence why no client gets the thing; empty if
    clients do. `mend`: changes to the arguments of a tool. `invalid`: the sentence for clients of
    the handshake era, if the definition is not valid. `guard`: what is to be done about a call
    first; None for nearly all."""

    server: str
    original: bytes = b""
    legacy: bool = True
    kept: str = ""
    mend: ArgumentOverrides | None = None
    invalid: str = ""
    guard: CallGuard | None = None


class ServerOffer:
    """Offer of one server. `links`: the URIs that its tools name as their user interface;
    `has_app`: whether it has such a user interface of its own (MCP Apps); `kinds`: the lists that
    it has, even if they are empty; `gateways`: as in `ServerCatalogue`."""

    def __init__(self, catalogue: ServerCatalogue, like: "ServerOffer | None" = None) -> None:
        """Read an offer. `like`: the server's offer in the other era; lists that are equal in both
        are kept once."""
        self.legacy = catalogue.protocol < MODERN_SINCE
        self.instructions = catalogue.instructions or ""
        self.gateways = catalogue.gateways
        self.hints = {} if self.legacy else catalogue.hints  # its revision knows no such words
        schemas = catalogue.schemas
        if schemas is None:  # kept on disk by an earlier version
            schemas = json_schemas.faults(catalogue.tools)
        self.items = {kind: _items(kind, catalogue.of(kind), schemas) for kind in KINDS}
        if like is not None:
            same = [kind for kind in KINDS if self.items[kind] == like.items[kind]]
            self.items |= {kind: like.items[kind] for kind in same}
        self.declared = DeclaredCapabilities.read(catalogue.capabilities, legacy=self.legacy)
        self.links = tuple(link for tool in self.items["tools"] for link in _links(tool.raw))
        self.has_app = self._has_app()
        self.kinds = self._kinds()
        self._safe_tools: tuple[OfferedItem, ...] | None = None

    def with_tools(self, tools: Sequence[bytes]) -> "ServerOffer":
        """Return this offer with other raw definitions of tools."""
        made = copy.copy(self)
        definitions = list(map(Raw, tools))
        items = _items("tools", definitions, json_schemas.faults(definitions))
        made.items = {**self.items, "tools": items}
        made.links = tuple(link for tool in items for link in _links(tool.raw))
        made.kinds = made._kinds()
        made._safe_tools = None
        return made

    def safe_tools(self) -> tuple[OfferedItem, ...]:
        """Return the tools without what clients and APIs of models refuse in their schemas."""
        if self._safe_tools is None:
            self._safe_tools = tuple(map(_safe, self.items["tools"]))
        return self._safe_tools

    def _kinds(self) -> frozenset[str]:
        declared = self.declared.lists()
        return frozenset(
            kind for kind in KINDS if self.items[kind] or CAPABILITIES[kind] in declared
        )

    def _has_app(self) -> bool:
        listed = (
            item.key for kind in ("resources", "resourceTemplates") for item in self.items[kind]
        )
        return bool(self.links) or any(uri.startswith(APP_SCHEME) for uri in listed)


def with_exposed_links(tool: OfferedItem, moved: Mapping[str, str]) -> OfferedItem:
    """Return the tool with the URIs of its user interface as the endpoint exposes them."""
    if not any(link in moved for link in _links(tool.raw)):
        return tool
    members = codec.level(tool.raw)
    meta = codec.level(members["_meta"])
    if _FLAT_LINK in meta:
        meta[_FLAT_LINK] = _link(meta[_FLAT_LINK], moved)
    interface = codec.members(meta.get("ui", Raw()))
    if "resourceUri" in interface:
        interface["resourceUri"] = _link(interface["resourceUri"], moved)
        meta["ui"] = Raw(codec.dump(interface))
    members["_meta"] = Raw(codec.dump(meta))
    raw = codec.dump(members)
    return structs.replace(tool, raw=raw, digest=hashlib.sha256(raw).digest())


def _items(
    kind: str, definitions: Sequence[Raw], schemas: Mapping[str, SchemaFaults]
) -> tuple[OfferedItem, ...]:
    """Return the definitions of one kind, tools without an output schema that clients cannot read.
    `schemas`: faults of the schemas of tools."""
    items: list[OfferedItem] = []
    for key, raw_key, definition in iter_definitions(kind, definitions):
        raw, modern_output = definition, False
        if kind == "tools" and (faults := schemas.get(key)) is not None and faults.output:
            modern_output = faults.legacy
            raw = raw if modern_output else without_output(raw)
        digest, fault = hashlib.sha256(raw).digest(), validation.fault(kind, raw)
        items.append(OfferedItem(key, raw_key, raw, digest, False, fault, modern_output))
    return tuple(items)


def without_output(tool: bytes) -> bytes:
    """Return a tool without its output schema."""
    members = codec.level(tool)
    del members["outputSchema"]
    return codec.dump(members)


def _safe(tool: OfferedItem) -> OfferedItem:
    raw = json_schemas.safe_tool(tool.raw)
    if raw is tool.raw:
        return tool
    fault = validation.fault("tools", raw)
    return structs.replace(tool, raw=raw, digest=hashlib.sha256(raw).digest(), fault=fault)


def _links(tool: bytes) -> Iterator[str]:
    """Yield the URIs of a tool's user interface. The definition is decoded only where its bytes
    make such a URI likely."""
    if b"resourceUri" not in tool:
        return
    meta = codec.members(codec.members(Raw(tool)).get("_meta", Raw()))
    for raw in (meta.get(_FLAT_LINK), codec.members(meta.get("ui", Raw())).get("resourceUri")):
        uri = None if raw is None else codec.text(raw)
        if uri is not None and uri.startswith(APP_SCHEME):
            yield uri


def _link(raw: Raw, moved: Mapping[str, str]) -> Raw:
    exposed = moved.get(codec.text(raw) or "")
    return raw if exposed is None else Raw(codec.dump(exposed))


LISTS = ("tools", "prompts", "resources")
"""Capabilities that stand for lists. The gateway itself announces changes of these lists, in both
eras."""
TASKS = "tasks"
"""Capability of revision 2025-11-25; in the next revision an extension takes its place."""
APPS_EXTENSION = "io.modelcontextprotocol/ui"
_MERGED = frozenset({APPS_EXTENSION, TASKS_EXTENSION})
"""Extensions that several servers can have at once: one has no methods, the other has ids that name
their server."""
_CAPABILITIES = frozenset({*LISTS, TASKS, "completions", "logging", "experimental", "extensions"})
_PROTOCOL = frozenset({
    *LISTS, TASKS, "completion", "elicitation", "initialize", "logging", "metamcp", "notifications",
    "ping", "roots", "sampling", "server", "subscriptions",
})  # fmt: skip
"""Beginnings of methods that have a meaning of their own."""
_TRUE = b"true"


class DeclaredCapabilities(Struct, frozen=True):
    """Capabilities that one server declares: raw values, in its order."""

    members: Mapping[str, Raw]
    legacy: bool

    @classmethod
    def read(cls, raw: Raw, *, legacy: bool) -> "DeclaredCapabilities":
        members = {
            name: value for name, value in codec.members(raw).items() if bytes(value) != b"null"
        }
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
        return codec.members(self.members.get(name, Raw(b"{}")))

    def beyond(self) -> dict[str, Raw]:
        """Return the capabilities that the protocol does not know."""
        return {name: raw for name, raw in self.members.items() if name not in _CAPABILITIES}

    def claims(self) -> frozenset[str]:
        """Return the beginnings of the methods of its capabilities beyond the protocol: the name of
        each one, and the last part of this name."""
        names = {*self.beyond(), *self.level("experimental"), *self.level("extensions")} - _MERGED
        claimed = names | {name.rpartition("/")[2] for name in names}
        return frozenset(claimed - _PROTOCOL - {""})


def sole_claims(servers: Mapping[str, DeclaredCapabilities]) -> dict[str, str]:
    """Return the beginnings of methods that one of these servers claims alone, with its name."""
    claims = [(claim, name) for name, server in servers.items() for claim in server.claims()]
    counts = Counter(claim for claim, _ in claims)
    return {claim: name for claim, name in claims if counts[claim] == 1}


def of_one(server: DeclaredCapabilities, lists: Sequence[str], *, modern: bool) -> bytes:
    """Return the raw capabilities of an endpoint with this server alone: what the server declares,
    except what does not reach a client of this era. `lists`: lists that the server has, declared or
    not."""
    capabilities: dict[str, Raw] = {
        name: _with_list_changed(b"{}") for name in lists if name not in server.members
    }
    for name, raw in server.members.items():
        if name in LISTS:
            if server.has(name):
                capabilities[name] = _with_list_changed(bytes(raw))
        elif name == TASKS:
            if server.legacy and not modern:
                capabilities[name] = raw
        elif name == "extensions":
            extensions = _extensions(server, modern=modern)
            if len(extensions) == len(server.level(name)):
                capabilities[name] = raw
            elif extensions:
                capabilities[name] = Raw(codec.dump(extensions))
        else:
            capabilities[name] = raw
    return codec.dump(capabilities)


def of_many(
    servers: Sequence[DeclaredCapabilities],
    lists: Sequence[str],
    *,
    modern: bool,
    routed: Collection[str] = (),
    unknown: bool = False,
) -> bytes:
    """Return the raw capabilities of an endpoint with these servers: what one of them can be asked
    for. `lists`: lists that they have together; `routed`: beginnings of methods that lead to one of
    them; `unknown`: further servers have not reported yet what they have."""
    capabilities: dict[str, object] = {
        name: {"listChanged": True} for name in LISTS if name in lists
    }
    if "resources" in capabilities and (unknown or any(_subscribes(server) for server in servers)):
        capabilities["resources"] = {"subscribe": True, "listChanged": True}
    for name in ("completions", "logging"):
        if unknown or any(server.has(name) for server in servers):
            capabilities[name] = {}
    tasks = {} if modern else _tasks([server for server in servers if server.legacy])
    if tasks:
        capabilities[TASKS] = tasks
    beyond: dict[str, Raw] = {}
    experimental: dict[str, Raw] = {}
    extensions: dict[str, Raw] = {}
    for server in reversed(servers):  # the first one keeps a key
        beyond |= server.beyond()
        experimental |= server.level("experimental")
        extensions |= _extensions(server, modern=modern)
    capabilities |= _filter_capabilities(beyond, routed)
    if experimental := _filter_capabilities(experimental, routed):
        capabilities["experimental"] = experimental
    if extensions := _filter_capabilities(extensions, routed):
        capabilities["extensions"] = extensions
    return codec.dump(capabilities)


def _filter_capabilities(capabilities: dict[str, Raw], routed: Collection[str]) -> dict[str, Raw]:
    """Return the capabilities whose methods are answered."""
    return {
        name: raw
        for name, raw in capabilities.items()
        if name in _MERGED or name.rpartition("/")[2] in routed
    }


def with_runs(raw: bytes) -> bytes:
    """Return the raw capabilities of an endpoint where the gateway itself has tasks (revision
    2025-11-25)."""
    own: dict[str, object] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    return codec.dump({**codec.members(Raw(raw)), TASKS: own})


def _with_list_changed(raw: bytes) -> Raw:
    members = codec.members(Raw(raw))
    if bytes(members.get("listChanged", b"")) == _TRUE:
        return Raw(raw)
    return Raw(codec.dump({**members, "listChanged": True}))


def _subscribes(server: DeclaredCapabilities) -> bool:
    return bytes(server.level("resources").get("subscribe", b"")) == _TRUE


def _extensions(server: DeclaredCapabilities, *, modern: bool) -> dict[str, Raw]:
    """Return the extensions of a server, without the one for tasks if the client or the server is
    of the handshake era."""
    extensions = server.level("extensions")
    if not modern or server.legacy:
        extensions.pop(TASKS_EXTENSION, None)
    return extensions


def _tasks(servers: Sequence[DeclaredCapabilities]) -> dict[str, object]:
    """Return what a client can do with tasks of several servers: the id of a task names its server,
    but several lists of tasks cannot be merged into one."""
    capability: dict[str, object] = {}
    for server in servers:
        tasks = server.level(TASKS)
        requests = codec.members(tasks.get("requests", Raw(b"{}")))
        if "call" in codec.members(requests.get("tools", Raw(b"{}"))):
            capability["requests"] = {"tools": {"call": {}}}
        if "cancel" in tasks:
            capability["cancel"] = {}
    return capability if "requests" in capability else {}
