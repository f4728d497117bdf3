"""References in a schema from whose properties some were taken out.

Owns: what of these is still referred to, and where in the schema it is then. Never: which are taken
out (`overriding`), references to other documents.

A reference leads to a place (`#/properties/a`) or to a name that stands in what it means (`#a`).
What is meant moves to the definitions, and references to its place are written anew; everything
else stays the bytes that it was. Values, in which something may look like a reference, are not
looked at.
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from msgspec import Raw

from metamcp_worker.ipc import codec

DEPTH_MAX = 48
"""Levels of a schema in which references are looked for; those that people write have few."""
NAMES_MAX = 100
"""That references lead to and that are looked for; with more of them, everything may be meant."""
_LIKELY = re.compile(rb'[rR]ef"')
"""What is without that has no reference."""
_REFERENCES = frozenset({"$ref", "$dynamicRef"})
_VALUES = frozenset({"const", "default", "enum", "examples"})
_BY_NAME = frozenset({
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties",
})  # fmt: skip
"""Objects whose members are schemas, whatever they are called."""
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def reachable(schema: Mapping[str, Raw], gone: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The schema with all that is referred to. `gone`: what was taken out of its properties."""
    holder = _holder(schema)
    there = _level(schema.get(holder, Raw(b"{}")))
    if there is None:
        return schema
    walk = _Walk(schema, holder, _places(gone, there))
    found = walk.members(schema, 0)
    kept: dict[str, Raw] = {}
    while missing := [name for name in gone if name not in kept and walk.means(name, gone[name])]:
        kept |= {name: walk.schema(gone[name], 1) for name in missing}
    if not kept:
        return schema
    there = _level(found.get(holder, Raw(b"{}"))) or {}
    moved = {walk.places[name]: raw for name, raw in kept.items()}
    return {**found, holder: Raw(codec.dump({**there, **moved}))}


class _Walk:
    """`places`: the names that those which are gone have among the definitions."""

    def __init__(self, schema: Mapping[str, Raw], holder: str, places: Mapping[str, str]) -> None:
        self.places = places
        self._holder = holder
        self._own = (codec.text(schema.get("$id", Raw(b'""'))) or "").removesuffix("#")
        self._wanted: set[str] = set()
        self._names: set[bytes] = set()

    def means(self, name: str, raw: Raw) -> bool:
        """Does any reference so far lead into this one?"""
        if name in self._wanted or len(self._names) > NAMES_MAX:
            return True
        return any(said in bytes(raw) for said in self._names)

    def schema(self, raw: Raw, depth: int) -> Raw:
        """One schema, or several in a list, with what they refer to."""
        if depth > DEPTH_MAX or _LIKELY.search(bytes(raw)) is None:
            return raw
        if bytes(raw).lstrip()[:1] == b"[":
            before = codec.items(raw)
            after = [self.schema(each, depth + 1) for each in before]
            return raw if _same(before, after) else Raw(codec.dump(after))
        members = _level(raw)
        if members is None or _is_document(members):
            return raw
        found = self.members(members, depth)
        return raw if found is members else Raw(codec.dump(found))

    def members(self, members: Mapping[str, Raw], depth: int) -> Mapping[str, Raw]:
        """The same object if nothing in it is another one."""
        found = {
            key: self._reference(raw)
            if key in _REFERENCES
            else self._by_name(raw, depth + 1)
            if key in _BY_NAME
            else self.schema(raw, depth + 1)
            for key, raw in members.items()
            if key not in _VALUES
        }
        changed = {key: raw for key, raw in found.items() if raw is not members[key]}
        return {**members, **changed} if changed else members

    def _by_name(self, raw: Raw, depth: int) -> Raw:
        before = _level(raw)
        if before is None:
            return raw
        after = {name: self.schema(each, depth + 1) for name, each in before.items()}
        return raw if _same(before.values(), after.values()) else Raw(codec.dump(after))

    def _reference(self, raw: Raw) -> Raw:
        text = codec.text(raw)
        if text is None:
            return raw
        base, _, place = text.partition("#")
        steps = place.split("/")
        if base not in ("", self._own):
            self._names.add(codec.dump(base))
        elif place and steps[0]:
            self._names |= {codec.dump(place), codec.dump(f"#{place}")}
        elif steps[1:2] == ["properties"] and len(steps) > 2:
            name = unquote(steps[2]).replace("~1", "/").replace("~0", "~")
            if name in self.places:
                self._wanted.add(name)
                steps[1:3] = self._holder, self.places[name]
                return Raw(codec.dump(f"{base}#{'/'.join(steps)}"))
        return raw


def _holder(schema: Mapping[str, Raw]) -> str:
    """Where this schema has its definitions: before 2019 that was another member."""
    old = b"draft-0" in bytes(schema.get("$schema", b""))
    return "definitions" if "$defs" not in schema and (old or "definitions" in schema) else "$defs"


def _places(gone: Mapping[str, Raw], there: Mapping[str, Raw]) -> dict[str, str]:
    """Names that nothing has yet, and that a reference need not escape."""
    places: dict[str, str] = {}
    for number, name in enumerate(gone, 1):
        place = name if _PLAIN.fullmatch(name) else f"argument{number}"
        while place in there or place in places.values():
            place += "_"
        places[name] = place
    return places


def _is_document(members: Mapping[str, Raw]) -> bool:
    """References in it begin at itself."""
    own = codec.text(members.get("$id", Raw(b"null")))
    return own is not None and not own.startswith("#")


def _same(before: Iterable[Raw], after: Iterable[Raw]) -> bool:
    return all(one is other for one, other in zip(before, after, strict=True))


def _level(raw: Raw) -> dict[str, Raw] | None:
    """The members of an object; None: it is none."""
    try:
        return codec.level(raw)
    except codec.Malformed:
        return None
