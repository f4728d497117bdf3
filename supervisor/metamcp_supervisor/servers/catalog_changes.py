"""What differs between two catalogues of a server, in words for the journal.

Owns: the comparison and its sentence. Never: what is done about it.

A server that offers something else than before its restart may have been updated, or may be up to
something: a definition is what a model acts on. So the journal names what changed.
"""

from collections.abc import Iterable, Mapping

from msgspec import Raw

from metamcp_worker.ipc import codec, server_catalog
from metamcp_worker.ipc.server_catalog import KINDS

CHANGES_TOLD_MAX = 6
"""In a minute, of one server; of more only how many they were."""
NAMES_MAX = 5
"""Of each sort that are named; the others are counted."""
NAME_CHARACTERS_MAX = 64

_KEYS: Mapping[str, str] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}


def changes(before: bytes, after: bytes) -> str:
    """`tools: new added, old removed, echo changed (12 in all)`; empty if the lists are the same.
    Raises codec.Malformed for bytes that are no catalogue."""
    old, new = server_catalog.unpack(before), server_catalog.unpack(after)
    found = (_of_kind(kind, old.of(kind), new.of(kind)) for kind in KINDS)
    return "; ".join(filter(None, found))


def _of_kind(kind: str, before: Iterable[Raw], after: Iterable[Raw]) -> str:
    old, new = _named(kind, before), _named(kind, after)
    both = old.keys() & new.keys()
    parts = [
        _listed([name for name in new if name not in old], "added"),
        _listed([name for name in old if name not in new], "removed"),
        _listed([name for name in new if name in both and new[name] != old[name]], "changed"),
    ]
    told = ", ".join(filter(None, parts))
    if not told and list(old) != list(new):
        told = "in another order"
    return f"{kind}: {told} ({len(new)} in all)" if told else ""


def _listed(names: list[str], what: str) -> str:
    if not names:
        return ""
    shown = [name[:NAME_CHARACTERS_MAX] for name in names[:NAMES_MAX]]
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return f"{', '.join(shown)}{more} {what}"


def _named(kind: str, definitions: Iterable[Raw]) -> dict[str, bytes]:
    """By name; what has none goes by its place."""
    found: dict[str, bytes] = {}
    for place, definition in enumerate(definitions):
        try:
            name = codec.text(codec.level(definition).get(_KEYS[kind], Raw(b"null")))
        except codec.Malformed:
            name = None
        found[name if name is not None else f"#{place}"] = bytes(definition)
    return found
