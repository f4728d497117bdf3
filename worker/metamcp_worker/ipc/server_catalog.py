"""Catalogue of one server: a JSON object with every definition left as it came.

Owns: the form and the hash of the catalogue blob, which goes from a child worker through the
supervisor (which stores it on disk) to the fronts; cache hints of results; the definitions by their
names or URIs; the ids of gateways, by which a gateway recognizes itself. Never: exposed names,
views, I/O.

    {"protocol": "2025-11-25", "serverInfo": {…}, "capabilities": {…}, "instructions": "…" | null,
     "tools": […], "prompts": […], "resources": […], "resourceTemplates": […],
     "hints": {"tools": {"ttlMs": 0, "cacheScope": "private"}, …}}
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.roots import Asked

TTL_DIGITS_MAX = 15
"""Maximum digits of `ttlMs` (milliseconds): thirty thousand years, and a number that JavaScript
still represents exactly."""
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
"""Extension of the modern era in place of the capability `tasks` of 2025-11-25."""
MODERN_SINCE = "2026-07-28"
"""First protocol revision without sessions. Revisions are dates, so they compare as text."""
KINDS = ("tools", "prompts", "resources", "resourceTemplates")


#: Member that identifies a definition, per kind.
KEYS = {"tools": "name", "prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}


GATEWAYS = "metamcp/gateways"
"""Key in the `_meta` of a result of a list: the ids of the gateway and of all gateways behind it
whose definitions the list may have."""
GATEWAYS_MAX = 64
"""Maximum ids that are read from one result."""
GATEWAY_ID_BYTES = 8
"""Bytes of the id of a gateway, which has two hexadecimal digits for each."""


def gateway_id(key: bytes) -> str:
    """Return the id of the gateway with this key of its state directory, which stays secret."""
    return hashlib.sha256(b"gateway\0" + key).hexdigest()[: 2 * GATEWAY_ID_BYTES]


def gateways(result: Mapping[str, Raw]) -> tuple[str, ...]:
    """Return the ids of gateways in a decoded result of a list, the gateway that answered first;
    empty if another kind of server answered."""
    meta = bytes(result.get("_meta", b""))
    if GATEWAYS.encode() not in meta:
        return ()
    try:
        ids = codec.items(codec.level(meta).get(GATEWAYS, Raw(b"[]")))
    except codec.Malformed:
        return ()
    return tuple(filter(None, map(codec.text, ids[:GATEWAYS_MAX])))


class CachingHint(Struct, frozen=True):
    """How long, and by whom, a result may be cached. Without a hint of the server, a result is not
    cached."""

    ttlMs: int = 0  # noqa: N815 - the wire's own names
    cacheScope: str = "private"  # noqa: N815 - as above


DISCOVER = "discover"
"""Key of the hint of `server/discover` in `ServerCatalogue.hints`, beside the KINDS."""


class SchemaFaults(Struct, frozen=True, gc=False, omit_defaults=True):
    """Faults of the schemas of a tool, a sentence each or nothing. `output`: why lists leave its
    output schema out, `legacy`: only lists for clients before MODERN_SINCE;
    `input`: who may refuse its input schema, and why."""

    output: str = ""
    legacy: bool = False
    input: str = ""

    def __str__(self) -> str:
        clients = f" for clients before {MODERN_SINCE}" if self.legacy else ""
        output = f"its output schema is left out{clients}, {self.output}" if self.output else ""
        return "; ".join(filter(None, [output, self.input]))


class ServerCatalogue(Struct, frozen=True, kw_only=True):
    """Catalogue of one server. `serverInfo` and `capabilities` are raw objects, the lists hold raw
    definitions. `hints`: of the lists that the server gave, by kind, and of its discovery.
    `asksRoots`: when the server asked for the roots of its client, in this run or before.
    `gateways`: if the server is a gateway, its id first, then those of the gateways behind it.
    `unread`: kinds whose list the server has, but did not give. `schemas`: faults of the schemas of
    its tools, by the names of the tools, as far as there are some; None: they were not looked for.
    """

    protocol: str
    serverInfo: Raw = Raw(b"{}")  # noqa: N815 - the wire's own names
    capabilities: Raw = Raw(b"{}")
    instructions: str | None = None
    tools: tuple[Raw, ...] = ()
    prompts: tuple[Raw, ...] = ()
    resources: tuple[Raw, ...] = ()
    resourceTemplates: tuple[Raw, ...] = ()  # noqa: N815 - as above
    hints: dict[str, CachingHint] = {}
    asksRoots: Asked = ""  # noqa: N815 - as above
    gateways: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    schemas: dict[str, SchemaFaults] | None = None

    def of(self, kind: str) -> Sequence[Raw]:
        """Return the definitions of one of `KINDS`."""
        return {
            "tools": self.tools,
            "prompts": self.prompts,
            "resources": self.resources,
            "resourceTemplates": self.resourceTemplates,
        }[kind]


def hint(result: Mapping[str, Raw]) -> CachingHint:
    """Read the cache hint of a decoded result; an invalid member counts as absent."""
    ttl = bytes(result.get("ttlMs", b""))
    public = codec.text(result.get("cacheScope", b"null")) == "public"
    is_valid = ttl.isdigit() and len(ttl) <= TTL_DIGITS_MAX
    return CachingHint(int(ttl) if is_valid else 0, "public" if public else "private")


def strictest(hints: Sequence[CachingHint]) -> CachingHint:
    """Return the hint of a result that is combined from results with these hints; without any, it
    is not cached."""
    if not hints:
        return CachingHint()
    public = all(cache_hint.cacheScope == "public" for cache_hint in hints)
    return CachingHint(
        min(cache_hint.ttlMs for cache_hint in hints), "public" if public else "private"
    )


class KeyedDefinition(NamedTuple):
    """Definition with its name or URI. `raw_key`: the key as JSON."""

    key: str
    raw_key: bytes
    raw: bytes


def iter_definitions(kind: str, definitions: Iterable[Raw]) -> Iterator[KeyedDefinition]:
    """Yield the definitions of a kind that have a key. A definition without a key, or with a key
    that was there before, is left out: clients could not ask for it."""
    keys: set[str] = set()
    for definition in definitions:
        raw_key = codec.members(definition).get(KEYS[kind], Raw(b"null"))
        key = codec.text(raw_key)
        if key is not None and key not in keys:
            keys.add(key)
            yield KeyedDefinition(key, bytes(raw_key), bytes(definition))


def pack(catalogue: ServerCatalogue) -> bytes:
    return codec.dump(catalogue)


def unpack(data: bytes) -> ServerCatalogue:
    """Decode a catalogue blob. Raises codec.Malformed."""
    return codec.decode_as(ServerCatalogue, data)


def list_hash(catalogue: ServerCatalogue) -> str:
    """Return sixteen hex digits that change with every definition, with the order of them, and
    with the gateways that they come from."""
    digest = hashlib.sha256("\n".join(catalogue.gateways).encode())
    for kind in KINDS:
        digest.update(kind.encode() + b"\n")
        for definition in catalogue.of(kind):
            digest.update(bytes(definition) + b"\n")
    return digest.hexdigest()[:16]
