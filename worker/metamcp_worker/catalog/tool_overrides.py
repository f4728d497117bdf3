"""Overrides of single tools of an endpoint by its operator: names, texts, arguments.

Owns: the definition of such a tool as clients see it, its names, its schema without fixed arguments
(`reachable`), and sentences about overrides without effect. Never: tools without an override,
reading a configuration (the supervisor), the arguments of a call (`offers`), lists.

An override belongs to (server, the server's own name of the tool). Members of a definition that it
is not about keep the bytes that the server sent. The origin stands in `_meta`, under `ORIGINAL`.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from msgspec import Raw, Struct, structs

from metamcp_worker.catalog.offers import ArgumentOverrides, OfferedItem, Owner
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.exposed_names import Pair
from metamcp_worker.ipc.spec import ToolOverride

ORIGINAL = "io.metamcp/original"
"""Key in the `_meta` of a changed definition, for its server and the server's own name of the
tool."""


class _OverriddenItem(Struct, frozen=True):
    """Definition that was built from the one with this digest, and sentences about it."""

    digest: bytes
    item: OfferedItem
    notes: tuple[str, ...]


class ToolOverrides:
    """Overrides of one endpoint. A definition is built once for each form that the server gives it.
    `wanted`: as the endpoint has them; `servers`: servers of these tools; `barred`: tools, by the
    server's own names, that no client may call around their override."""

    def __init__(self, wanted: Sequence[ToolOverride] = ()) -> None:
        self.wanted = wanted
        self._by_pair = {(override.server, override.tool): override for override in wanted}
        self._mends = {
            pair: mend for pair, override in self._by_pair.items() if (mend := _mend(override))
        }
        self._made: dict[Pair, _OverriddenItem] = {}
        self.servers = frozenset(override.server for override in wanted)
        self.barred = tuple(
            pair for pair, override in self._by_pair.items() if override.name or pair in self._mends
        )

    def __bool__(self) -> bool:
        return bool(self._by_pair)

    def names(self, off: Collection[Pair], reserved: Collection[str]) -> dict[Pair, str]:
        """Return the names that tools have whatever the rule says, whether their servers are known
        or not. `off`: tools that are switched off; `reserved`: names that no tool gets."""
        by_name: dict[str, Pair] = {}
        for pair, override in self._by_pair.items():
            if override.name and pair not in off and override.name not in reserved:
                by_name.setdefault(override.name, pair)
        return {pair: name for name, pair in by_name.items()}

    def item(self, pair: Pair, item: OfferedItem) -> OfferedItem:
        """Return the definition as clients see it, except for the name."""
        override = self._by_pair.get(pair)
        if override is None or not _changes(override):
            return item
        made = self._made.get(pair)
        if made is None or made.digest != item.digest:
            notes = tuple(_note_unknown_arguments(item, override))
            made = self._made[pair] = _OverriddenItem(item.digest, _item(item, override), notes)
        return made.item

    def mend(self, pair: Pair) -> ArgumentOverrides | None:
        return self._mends.get(pair)

    def is_hidden(self, pair: Pair) -> bool:
        override = self._by_pair.get(pair)
        return override is not None and override.hidden

    def aliases(
        self,
        exposed: Mapping[Pair, str],
        tools: Mapping[str, Owner],
        reserved: Collection[str],
    ) -> tuple[dict[str, Owner], list[str]]:
        """Return the owners of further names, and sentences about aliases that another tool has.
        `exposed`: the name of each tool; `tools`: the owners of these names; `reserved`: names that
        no tool gets. An exposed name goes before an alias."""
        owners: dict[str, Owner] = {}
        notes: list[str] = []
        for pair, override in self._by_pair.items():
            if pair not in exposed:
                continue
            owner = tools[exposed[pair]]
            for alias in override.aliases:
                other = tools.get(alias) or owners.get(alias)
                if other is None and alias not in reserved:
                    owners[alias] = owner
                elif other != owner:
                    notes.append(
                        f"{_format_tool(pair)} has no alias {alias}: another tool is called so"
                    )
        return owners, notes

    def notes(self, tools: Collection[Pair], servers: Collection[str]) -> Iterator[str]:
        """Yield sentences about overrides without effect. `tools`: all tools that there are;
        `servers`: those whose offers are known."""
        for server, tool in self._by_pair:
            if (server, tool) in tools:
                made = self._made.get((server, tool))
                yield from made.notes if made is not None else ()
            elif server in servers:
                yield f"{server} has no tool {tool[:NAME_TOLD_MAX]!r}, which is overridden here"


NAME_TOLD_MAX = 80
"""Maximum characters of a name in a note."""


def _mend(override: ToolOverride) -> ArgumentOverrides | None:
    if not override.fixed and not override.defaults:
        return None
    return ArgumentOverrides(_raw(override.fixed), _raw(override.defaults))


def _raw(values: Mapping[str, str]) -> dict[str, bytes]:
    return {name: value.encode() for name, value in values.items()}


def _changes(override: ToolOverride) -> bool:
    """Whether an override changes the definition."""
    words = override.title is not None or override.description is not None
    return bool(override.name or override.fixed or override.defaults) or words


def _item(item: OfferedItem, override: ToolOverride) -> OfferedItem:
    members = codec.level(item.raw)
    if override.title is not None:
        _entitle(members, Raw(codec.dump(override.title)))
    if override.description is not None:
        members["description"] = Raw(codec.dump(override.description))
    if (override.fixed or override.defaults) and (
        schema := _level(members.get("inputSchema"))
    ) is not None:
        members["inputSchema"] = _schema(schema, _raw(override.fixed), _raw(override.defaults))
    meta = _level(members.get("_meta", Raw(b"{}")))
    if meta is not None:
        meta[ORIGINAL] = Raw(codec.dump({"server": override.server, "name": Raw(item.raw_key)}))
        members["_meta"] = Raw(codec.dump(meta))
    raw = codec.dump(members)
    digest = hashlib.sha256(raw).digest()
    return structs.replace(item, raw=raw, digest=digest, renamed=bool(override.name))


def _entitle(members: dict[str, Raw], title: Raw) -> None:
    """Set the title, also among the annotations, where older revisions have it."""
    members["title"] = title
    annotations = _level(members.get("annotations"))
    if annotations is not None and "title" in annotations:
        annotations["title"] = title
        members["annotations"] = Raw(codec.dump(annotations))


def _schema(
    schema: dict[str, Raw], fixed: Mapping[str, bytes], defaults: Mapping[str, bytes]
) -> Raw:
    """Return the schema without fixed arguments, unless something refers to them. An argument with
    a default says so, and is not required any more."""
    properties = _level(schema.get("properties"))
    if properties is not None:
        remaining = {name: raw for name, raw in properties.items() if name not in fixed}
        for name, value in defaults.items():
            if name in remaining:
                remaining[name] = _with_default(remaining[name], value)
        schema["properties"] = Raw(codec.dump(remaining))
    removed = {name: raw for name, raw in (properties or {}).items() if name in fixed}
    required = _items(schema.get("required"))
    still = [raw for raw in required if (codec.text(raw) or "") not in {*fixed, *defaults}]
    if still:
        schema["required"] = Raw(codec.dump(still)) if still != required else schema["required"]
    elif required:
        del schema["required"]  # an empty list is none in the oldest drafts of JSON Schema
    return Raw(codec.dump(reachable(schema, removed) if removed else schema))


def _with_default(raw: Raw, value: bytes) -> Raw:
    """Return a schema with this default. `true` is a schema too, and says nothing; any other schema
    that is not an object stays as it is."""
    schema = {} if bytes(raw) == b"true" else _level(raw)
    return raw if schema is None else Raw(codec.dump({**schema, "default": Raw(value)}))


def _note_unknown_arguments(item: OfferedItem, override: ToolOverride) -> Iterator[str]:
    """Yield sentences about overridden arguments that the tool does not name; these arguments are
    sent all the same."""
    schema = _level(codec.level(item.raw).get("inputSchema")) or {}
    properties = _level(schema.get("properties"))
    if properties is None:
        return
    for name in (*override.fixed, *override.defaults):
        if name not in properties:
            subject = _format_tool((override.server, override.tool))
            yield f"{subject} names no argument {name[:NAME_TOLD_MAX]!r}, which is overridden here"


def _format_tool(pair: Pair) -> str:
    return f"{pair[0]}.{pair[1][:NAME_TOLD_MAX]}"


def _level(raw: Raw | None) -> dict[str, Raw] | None:
    """Return the members of a raw object; None for any other value."""
    try:
        return None if raw is None else codec.level(raw)
    except codec.Malformed:
        return None


def _items(raw: Raw | None) -> list[Raw]:
    try:
        return [] if raw is None else codec.items(raw)
    except codec.Malformed:
        return []


DEPTH_MAX = 48
"""Maximum levels of a schema in which references are looked for; schemas that people write have
few."""
NAMES_MAX = 100
"""Maximum number of names in references that are looked for; with more of them, every argument
counts as referred to."""
_LIKELY = re.compile(rb'[rR]ef"')
"""Pattern that every schema with a reference contains."""
_REFERENCES = frozenset({"$ref", "$dynamicRef"})
_VALUES = frozenset({"const", "default", "enum", "examples"})
_BY_NAME = frozenset({
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties",
})  # fmt: skip
"""Keywords whose values are objects with schemas as members, by any names."""
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def reachable(schema: Mapping[str, Raw], removed: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """Return the schema with all that it refers to. `removed`: schemas that were taken out of its
    properties; those with a reference to them go among the definitions."""
    holder = _holder(schema)
    there = _members(schema.get(holder, Raw(b"{}")))
    if there is None:
        return schema
    walk = _ReferenceRewriter(schema, holder, _places(removed, there))
    members = walk.members(schema, 0)
    referred: dict[str, Raw] = {}
    while missing := [
        name for name in removed if name not in referred and walk.means(name, removed[name])
    ]:
        referred |= {name: walk.schema(removed[name], 1) for name in missing}
    if not referred:
        return schema
    there = _members(members.get(holder, Raw(b"{}"))) or {}
    moved = {walk.places[name]: raw for name, raw in referred.items()}
    return {**members, holder: Raw(codec.dump({**there, **moved}))}


class _ReferenceRewriter:
    """Search through a schema for references, which are changed to new places. `places`: names that
    schemas which are gone have among the definitions."""

    def __init__(self, schema: Mapping[str, Raw], holder: str, places: Mapping[str, str]) -> None:
        self.places = places
        self._holder = holder
        self._own = (codec.text(schema.get("$id", Raw(b'""'))) or "").removesuffix("#")
        self._wanted: set[str] = set()
        self._names: set[bytes] = set()

    def means(self, name: str, raw: Raw) -> bool:
        """Whether any reference so far leads into this schema."""
        if name in self._wanted or len(self._names) > NAMES_MAX:
            return True
        return any(reference in bytes(raw) for reference in self._names)

    def schema(self, raw: Raw, depth: int) -> Raw:
        """Return a schema, or a list of several, with its references changed."""
        if depth > DEPTH_MAX or _LIKELY.search(bytes(raw)) is None:
            return raw
        if bytes(raw).lstrip()[:1] == b"[":
            before = codec.items(raw)
            after = [self.schema(each, depth + 1) for each in before]
            return raw if _same(before, after) else Raw(codec.dump(after))
        members = _members(raw)
        if members is None or _is_document(members):
            return raw
        rewritten = self.members(members, depth)
        return raw if rewritten is members else Raw(codec.dump(rewritten))

    def members(self, members: Mapping[str, Raw], depth: int) -> Mapping[str, Raw]:
        """Return the members of a schema with their references changed; the same object if there
        are none."""
        rewritten = {
            key: self._reference(raw)
            if key in _REFERENCES
            else self._by_name(raw, depth + 1)
            if key in _BY_NAME
            else self.schema(raw, depth + 1)
            for key, raw in members.items()
            if key not in _VALUES
        }
        changed = {key: raw for key, raw in rewritten.items() if raw is not members[key]}
        return {**members, **changed} if changed else members

    def _by_name(self, raw: Raw, depth: int) -> Raw:
        before = _members(raw)
        if before is None:
            return raw
        after = {name: self.schema(each, depth + 1) for name, each in before.items()}
        return raw if _same(before.values(), after.values()) else Raw(codec.dump(after))

    def _reference(self, raw: Raw) -> Raw:
        text = codec.text(raw)
        if text is None:
            return raw
        base, _, fragment = text.partition("#")
        steps = fragment.split("/")
        if base not in ("", self._own):
            self._names.add(codec.dump(base))
        elif fragment and steps[0]:
            self._names |= {codec.dump(fragment), codec.dump(f"#{fragment}")}
        elif steps[1:2] == ["properties"] and len(steps) > 2:
            name = unquote(steps[2]).replace("~1", "/").replace("~0", "~")
            if name in self.places:
                self._wanted.add(name)
                steps[1:3] = self._holder, self.places[name]
                return Raw(codec.dump(f"{base}#{'/'.join(steps)}"))
        return raw


def _holder(schema: Mapping[str, Raw]) -> str:
    """Return the member in which this schema has its definitions: before 2019 it was a different
    one."""
    old = b"draft-0" in bytes(schema.get("$schema", b""))
    return "definitions" if "$defs" not in schema and (old or "definitions" in schema) else "$defs"


def _places(removed: Mapping[str, Raw], there: Mapping[str, Raw]) -> dict[str, str]:
    """Return names that are free among the definitions, and that a reference need not escape."""
    places: dict[str, str] = {}
    for number, name in enumerate(removed, 1):
        free_name = name if _PLAIN.fullmatch(name) else f"argument{number}"
        while free_name in there or free_name in places.values():
            free_name += "_"
        places[name] = free_name
    return places


def _is_document(members: Mapping[str, Raw]) -> bool:
    """Whether references in this schema begin at the schema itself."""
    own = codec.text(members.get("$id", Raw(b"null")))
    return own is not None and not own.startswith("#")


def _same(before: Iterable[Raw], after: Iterable[Raw]) -> bool:
    return all(old is new for old, new in zip(before, after, strict=True))


def _members(raw: Raw) -> dict[str, Raw] | None:
    """Return the members of a raw object; None for any other value."""
    try:
        return codec.level(raw)
    except codec.Malformed:
        return None
