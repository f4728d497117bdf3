"""Differences between two catalogues of a server, as a sentence for the journal.

Owns: the comparison and its sentence. Never: reactions to a change.

A server whose catalogue differs from the one before its restart may have been updated, or may be
malicious: a model acts on definitions. So the journal names what changed.
"""

from collections.abc import Iterable, Mapping

from msgspec import Raw

from metamcp_worker.ipc import codec, server_catalog
from metamcp_worker.ipc.server_catalog import KINDS

CHANGES_TOLD_MAX = 6
"""Maximum number of changes of one server that the journal tells in a minute; further ones are only
counted."""
NAMES_MAX = 5
"""Maximum number of names in each list of additions, removals or changes; the rest is counted."""
NAME_CHARACTERS_MAX = 64

_KEYS: Mapping[str, str] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}


def changes(before: bytes, after: bytes) -> str:
    """Return a sentence such as `tools: new added, old removed, echo changed (12 in all)`; empty if
    the lists are the same. Raises codec.Malformed for bytes that are not a catalogue."""
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
    """Return definitions by name; a definition without a name has its place (`#0`) as key."""
    found: dict[str, bytes] = {}
    for place, definition in enumerate(definitions):
        try:
            name = codec.text(codec.level(definition).get(_KEYS[kind], Raw(b"null")))
        except codec.Malformed:
            name = None
        found[name if name is not None else f"#{place}"] = bytes(definition)
    return found
