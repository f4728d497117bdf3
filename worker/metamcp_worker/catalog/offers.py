"""The arguments of a call, where an operator has some of them fixed or gives them a default.

Owns: what a client's arguments become before they go to the server. Never: which tools that is
for, and how their schemas look then (`tool_overrides`).

Everything else stays the bytes that the client sent, in its place. What is put in comes last: where
a server takes two names for one that differ in their case, the last one counts.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Raw, Struct

from metamcp_worker.catalog.capabilities import Declared
from metamcp_worker.ipc import codec, validation
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.server_catalog import KINDS, MODERN_SINCE, ServerCatalogue, keyed
from metamcp_worker.ipc.validation import Fault

_ARGUMENTS = "arguments"
_NOTHING = frozenset({b"", b"null"})
"""What says the same as no arguments."""


class Mend(Struct, frozen=True):
    """`fixed`: these are sent, whatever the client says of them; `defaults`: these, where it says
    nothing. Values are raw JSON."""

    fixed: Mapping[str, bytes] = {}
    defaults: Mapping[str, bytes] = {}


def mended(params: Mapping[str, Raw], mend: Mend) -> Mapping[str, Raw]:
    """The parameters of `tools/call` as the server gets them. Raises Refused.

    Arguments that are no object are the server's to refuse, unless something is fixed: then no
    server may take them for an empty object.
    """
    raw = bytes(params.get(_ARGUMENTS, b""))
    if raw in _NOTHING:
        raw, given = b"{}", dict[str, Raw]()
    else:
        try:
            given = codec.level(raw)
        except codec.Malformed as error:
            if not mend.fixed:
                return params
            what = f"params.arguments must be an object, and some of it is fixed here: {error}"
            raise ProtocolError(Code.INVALID_PARAMS, what) from None
    if not given.keys().isdisjoint(mend.fixed):
        given = {name: value for name, value in given.items() if name not in mend.fixed}
        raw = codec.dump(given)
    added = {name: value for name, value in mend.defaults.items() if name not in given}
    added.update(mend.fixed)
    return {**params, _ARGUMENTS: Raw(_with(raw, added, first=not given))}


def _with(raw: bytes, added: Mapping[str, bytes], *, first: bool) -> bytes:
    """The raw object with these members behind all others. `first`: there are no others."""
    members = b",".join(codec.dump(name) + b":" + value for name, value in added.items())
    if not members:
        return raw
    return b"%b%b%b}" % (raw.rstrip()[:-1], b"" if first else b",", members)


#: The capability under which the lists of each kind are declared.
CAPABILITIES = {"tools": "tools", "prompts": "prompts", "resources": "resources",
                "resourceTemplates": "resources"}  # fmt: skip
APP_SCHEME = "ui://"
"""Of resources that are the user interface of a tool (MCP Apps)."""
_FLAT_LINK = "ui/resourceUri"
"""How the first hosts of MCP Apps spelled `ui.resourceUri` in the `_meta` of a tool."""


class OfferedItem(Struct, frozen=True, gc=False):
    """One definition of a server. `key`: the server's own name of it, `raw_key` as JSON; `digest`
    of the whole definition; `renamed`: an operator gave it another name, which is not in it;
    `fault`: what keeps it out of lists."""

    key: str
    raw_key: bytes
    raw: bytes
    digest: bytes
    renamed: bool = False
    fault: Fault | None = None


class Owner(Struct, frozen=True, gc=False):
    """Where requests about one thing go. `original`: the server's own name as raw JSON, or empty
    where that is what the client says. `kept`: why nobody gets it, a sentence; empty: everybody
    does. `mend`: what becomes of the arguments of a tool. `invalid`: the sentence for clients of
    the handshake era, where its definition is not valid."""

    server: str
    original: bytes = b""
    legacy: bool = True
    kept: str = ""
    mend: Mend | None = None
    invalid: str = ""


class ServerOffer:
    """What one server offers. `links`: the URIs that its tools name as their user interface;
    `has_app`: has it such a user interface of its own (MCP Apps)?"""

    def __init__(self, catalogue: ServerCatalogue, like: "ServerOffer | None" = None) -> None:
        """`like`: what it offers in the other era. What is equal in both is there once."""
        self.legacy = catalogue.protocol < MODERN_SINCE
        self.instructions = catalogue.instructions or ""
        self.hints = {} if self.legacy else catalogue.hints  # its revision knows no such words
        self.items = {
            kind: _items(kind, catalogue.of(kind), modern=not self.legacy) for kind in KINDS
        }
        if like is not None:
            same = [kind for kind in KINDS if self.items[kind] == like.items[kind]]
            self.items |= {kind: like.items[kind] for kind in same}
        self.declared = Declared.read(catalogue.capabilities, legacy=self.legacy)
        self.links = tuple(link for tool in self.items["tools"] for link in _links(tool.raw))
        self.has_app = self._has_app()

    def kinds(self) -> frozenset[str]:
        """The lists that it has, even if they are empty."""
        declared = self.declared.lists()
        return frozenset(
            kind for kind in KINDS if self.items[kind] or CAPABILITIES[kind] in declared
        )

    def _has_app(self) -> bool:
        listed = (
            item.key for kind in ("resources", "resourceTemplates") for item in self.items[kind]
        )
        return bool(self.links) or any(uri.startswith(APP_SCHEME) for uri in listed)


def relinked(tool: OfferedItem, moved: Mapping[str, str]) -> OfferedItem:
    """The tool with the URIs of its user interface as the endpoint exposes them."""
    if not any(link in moved for link in _links(tool.raw)):
        return tool
    members = codec.level(tool.raw)
    meta = codec.level(members["_meta"])
    if _FLAT_LINK in meta:
        meta[_FLAT_LINK] = _link(meta[_FLAT_LINK], moved)
    interface = _level(meta.get("ui", Raw()))
    if "resourceUri" in interface:
        interface["resourceUri"] = _link(interface["resourceUri"], moved)
        meta["ui"] = Raw(codec.dump(interface))
    members["_meta"] = Raw(codec.dump(meta))
    raw = codec.dump(members)
    return OfferedItem(tool.key, tool.raw_key, raw, hashlib.sha256(raw).digest(), fault=tool.fault)


def _items(kind: str, definitions: Sequence[Raw], *, modern: bool) -> tuple[OfferedItem, ...]:
    """`modern`: as `validation.fault` has it."""
    return tuple(
        OfferedItem(
            key, raw_key, raw, hashlib.sha256(raw).digest(),
            fault=validation.fault(kind, raw, modern=modern),
        )
        for key, raw_key, raw in keyed(kind, definitions)
    )  # fmt: skip


def _links(tool: bytes) -> Iterator[str]:
    """Opened only where the bytes make it likely that there are any."""
    if b"resourceUri" not in tool:
        return
    meta = _level(_level(Raw(tool)).get("_meta", Raw()))
    for raw in (meta.get(_FLAT_LINK), _level(meta.get("ui", Raw())).get("resourceUri")):
        uri = None if raw is None else codec.text(raw)
        if uri is not None and uri.startswith(APP_SCHEME):
            yield uri


def _link(raw: Raw, moved: Mapping[str, str]) -> Raw:
    exposed = moved.get(codec.text(raw) or "")
    return raw if exposed is None else Raw(codec.dump(exposed))


def _level(raw: Raw) -> dict[str, Raw]:
    """The members of an object; of anything else, none."""
    try:
        return codec.level(raw)
    except codec.Malformed:
        return {}
