"""What one server offers, as one JSON object with every definition left as it came.

Owns: the shape of the catalogue blob that crosses from a child worker over the supervisor (which
keeps it on disk) to the fronts, and its hash. Never: exposed names, views, I/O.

    {"protocol": "2025-11-25", "serverInfo": {…}, "capabilities": {…}, "instructions": "…" | null,
     "tools": […], "prompts": […], "resources": […], "resourceTemplates": […]}
"""

import hashlib
from collections.abc import Sequence

from msgspec import Raw, Struct

from metamcp_worker import codec

KINDS = ("tools", "prompts", "resources", "resourceTemplates")


class ServerCatalogue(Struct, frozen=True, kw_only=True):
    """`serverInfo` and `capabilities` are raw objects, the lists hold raw definitions."""

    protocol: str
    serverInfo: Raw = Raw(b"{}")  # noqa: N815 - the wire's own names
    capabilities: Raw = Raw(b"{}")
    instructions: str | None = None
    tools: tuple[Raw, ...] = ()
    prompts: tuple[Raw, ...] = ()
    resources: tuple[Raw, ...] = ()
    resourceTemplates: tuple[Raw, ...] = ()  # noqa: N815 - as above

    def of(self, kind: str) -> Sequence[Raw]:
        """The definitions of one of `KINDS`."""
        return {
            "tools": self.tools,
            "prompts": self.prompts,
            "resources": self.resources,
            "resourceTemplates": self.resourceTemplates,
        }[kind]


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
