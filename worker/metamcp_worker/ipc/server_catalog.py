"""What one server offers, as one JSON object with every definition left as it came.

Owns: the shape of the catalogue blob that crosses from a child worker over the supervisor (which
keeps it on disk) to the fronts, and its hash. Never: exposed names, views, I/O.

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
"""Of milliseconds: thirty thousand years, and still a number that JavaScript keeps."""
MODERN_SINCE = "2026-07-28"
"""The first protocol revision without sessions. Revisions are dates, so they compare as text."""
KINDS = ("tools", "prompts", "resources", "resourceTemplates")


#: The member that names a definition, per kind.
KEYS = {"tools": "name", "prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}


class Hint(Struct, frozen=True):
    """How long, and by whom, a result may be kept. Who gives no hint wants nothing kept."""

    ttlMs: int = 0  # noqa: N815 - the wire's own names
    cacheScope: str = "private"  # noqa: N815 - as above


DISCOVER = "discover"
"""What the hint of `server/discover` is filed under, beside those of the KINDS."""


class ServerCatalogue(Struct, frozen=True, kw_only=True):
    """`serverInfo` and `capabilities` are raw objects, the lists hold raw definitions. `hints`: of
    the lists that the server gave, by kind, and of its discovery. `asksRoots`: when it asked for
    the roots of its client, now or when it ran before."""

    protocol: str
    serverInfo: Raw = Raw(b"{}")  # noqa: N815 - the wire's own names
    capabilities: Raw = Raw(b"{}")
    instructions: str | None = None
    tools: tuple[Raw, ...] = ()
    prompts: tuple[Raw, ...] = ()
    resources: tuple[Raw, ...] = ()
    resourceTemplates: tuple[Raw, ...] = ()  # noqa: N815 - as above
    hints: dict[str, Hint] = {}
    asksRoots: Asked = ""  # noqa: N815 - as above

    def of(self, kind: str) -> Sequence[Raw]:
        """The definitions of one of `KINDS`."""
        return {
            "tools": self.tools,
            "prompts": self.prompts,
            "resources": self.resources,
            "resourceTemplates": self.resourceTemplates,
        }[kind]


def hint(result: Mapping[str, Raw]) -> Hint:
    """What a decoded result says of keeping it; broken words count as none."""
    ttl = bytes(result.get("ttlMs", b""))
    public = codec.text(result.get("cacheScope", b"null")) == "public"
    known = ttl.isdigit() and len(ttl) <= TTL_DIGITS_MAX
    return Hint(int(ttl) if known else 0, "public" if public else "private")


def strictest(hints: Sequence[Hint]) -> Hint:
    """What may be said of a result that is made of these; of none, that nothing is to be kept."""
    if not hints:
        return Hint()
    public = all(one.cacheScope == "public" for one in hints)
    return Hint(min(one.ttlMs for one in hints), "public" if public else "private")


class KeyedDefinition(NamedTuple):
    """One definition and what names it. `raw_key`: as JSON."""

    key: str
    raw_key: bytes
    raw: bytes


def keyed(kind: str, definitions: Iterable[Raw]) -> Iterator[KeyedDefinition]:
    """The definitions of a kind that name themselves; what does not cannot be asked for, nor can
    the second one of a name."""
    found: set[str] = set()
    for definition in definitions:
        try:
            raw_key = codec.level(definition).get(KEYS[kind], Raw(b"null"))
        except codec.Malformed:
            continue
        key = codec.text(raw_key)
        if key is not None and key not in found:
            found.add(key)
            yield KeyedDefinition(key, bytes(raw_key), bytes(definition))


def pack(catalogue: ServerCatalogue) -> bytes:
    return codec.dump(catalogue)


def unpack(data: bytes) -> ServerCatalogue:
    """Raises codec.Malformed."""
    return codec.typed(ServerCatalogue, data)


def list_hash(catalogue: ServerCatalogue) -> str:
    """Sixteen hex digits that move when a definition, or the order of definitions, does."""
    digest = hashlib.sha256()
    for kind in KINDS:
        digest.update(kind.encode() + b"\n")
        for definition in catalogue.of(kind):
            digest.update(bytes(definition) + b"\n")
    return digest.hexdigest()[:16]
