"""What an operator wants otherwise about single tools of an endpoint: names, words, arguments.

Owns: the definition of such a tool as clients see it, its names, and the sentences about what is
wanted and cannot be. Never: tools without an override, reading a configuration (the supervisor),
the arguments of a call (`mending`), lists.

An override belongs to (server, the server's own name of the tool). Of a definition only those
members change that it is about; the values of all others stay the bytes that the server sent. What
it was made of stands in its `_meta`, under `ORIGINAL`.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Raw, Struct

from metamcp_worker.catalog import referring
from metamcp_worker.catalog.mending import Mend
from metamcp_worker.catalog.offers import Item, Owner
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.exposed_names import Pair
from metamcp_worker.ipc.spec import ToolOverride

ORIGINAL = "io.metamcp/original"
"""Of `_meta`: the server of a definition that is not as it sent it, and its own name of the
tool."""


class _Made(Struct, frozen=True):
    """What became of the definition with this digest, and the sentences about that."""

    digest: bytes
    item: Item
    notes: tuple[str, ...]


class Overrides:
    """Those of one endpoint. A definition is made once, for each form that the server gives it.
    `wanted`: as the endpoint has them; `servers`: whose tools these are; `barred`: by the server's
    own names, tools that nobody may call around their override."""

    def __init__(self, wanted: Sequence[ToolOverride] = ()) -> None:
        self.wanted = wanted
        self._by_pair = {(one.server, one.tool): one for one in wanted}
        self._mends = {pair: mend for pair, one in self._by_pair.items() if (mend := _mend(one))}
        self._made: dict[Pair, _Made] = {}
        self.servers = frozenset(one.server for one in wanted)
        self.barred = tuple(
            pair for pair, one in self._by_pair.items() if one.name or pair in self._mends
        )

    def __bool__(self) -> bool:
        return bool(self._by_pair)

    def names(self, off: Collection[Pair], reserved: Collection[str]) -> dict[Pair, str]:
        """Those that tools have whatever the rule says, be their servers known or not. `off`: tools
        that are switched off; `reserved`: names that no tool gets."""
        found: dict[str, Pair] = {}
        for pair, one in self._by_pair.items():
            if one.name and pair not in off and one.name not in reserved:
                found.setdefault(one.name, pair)
        return {pair: name for name, pair in found.items()}

    def item(self, pair: Pair, item: Item) -> Item:
        """The definition as clients see it, but for the name."""
        one = self._by_pair.get(pair)
        if one is None or not _changes(one):
            return item
        made = self._made.get(pair)
        if made is None or made.digest != item.digest:
            notes = tuple(_unnamed(item, one))
            made = self._made[pair] = _Made(item.digest, _item(item, one), notes)
        return made.item

    def mend(self, pair: Pair) -> Mend | None:
        return self._mends.get(pair)

    def is_hidden(self, pair: Pair) -> bool:
        one = self._by_pair.get(pair)
        return one is not None and one.hidden

    def aliases(
        self,
        exposed: Mapping[Pair, str],
        tools: Mapping[str, Owner],
        reserved: Collection[str],
    ) -> tuple[dict[str, Owner], list[str]]:
        """The owners of further names, and the sentences about those that another tool has.
        `exposed`: the name of each tool; `tools`: the owners of these; `reserved`: names that no
        tool gets. An exposed name goes before an alias."""
        found: dict[str, Owner] = {}
        notes: list[str] = []
        for pair, one in self._by_pair.items():
            if pair not in exposed:
                continue
            owner = tools[exposed[pair]]
            for alias in one.aliases:
                other = tools.get(alias) or found.get(alias)
                if other is None and alias not in reserved:
                    found[alias] = owner
                elif other != owner:
                    notes.append(f"{_told(pair)} has no alias {alias}: another tool is called so")
        return found, notes

    def notes(self, tools: Collection[Pair], known: Collection[str]) -> Iterator[str]:
        """What is wanted for nothing. `tools`: all that there are; `known`: servers of which it is
        known what they offer."""
        for server, tool in self._by_pair:
            if (server, tool) in tools:
                made = self._made.get((server, tool))
                yield from made.notes if made is not None else ()
            elif server in known:
                yield f"{server} has no tool {tool[:NAME_TOLD_MAX]!r}, which is overridden here"


NAME_TOLD_MAX = 80
"""Characters of a name in a note."""


def _mend(one: ToolOverride) -> Mend | None:
    if not one.fixed and not one.defaults:
        return None
    return Mend(_raw(one.fixed), _raw(one.defaults))


def _raw(values: Mapping[str, str]) -> dict[str, bytes]:
    return {name: value.encode() for name, value in values.items()}


def _changes(one: ToolOverride) -> bool:
    """Is the definition another one?"""
    words = one.title is not None or one.description is not None
    return bool(one.name or one.fixed or one.defaults) or words


def _item(item: Item, one: ToolOverride) -> Item:
    members = codec.level(item.raw)
    if one.title is not None:
        _entitle(members, Raw(codec.dump(one.title)))
    if one.description is not None:
        members["description"] = Raw(codec.dump(one.description))
    if (one.fixed or one.defaults) and (schema := _level(members.get("inputSchema"))) is not None:
        members["inputSchema"] = _schema(schema, _raw(one.fixed), _raw(one.defaults))
    meta = _level(members.get("_meta", Raw(b"{}")))
    if meta is not None:
        meta[ORIGINAL] = Raw(codec.dump({"server": one.server, "name": Raw(item.raw_key)}))
        members["_meta"] = Raw(codec.dump(meta))
    raw = codec.dump(members)
    digest = hashlib.sha256(raw).digest()
    return Item(item.key, item.raw_key, raw, digest, bool(one.name), item.fault)


def _entitle(members: dict[str, Raw], title: Raw) -> None:
    """Older revisions have it among the annotations."""
    members["title"] = title
    annotations = _level(members.get("annotations"))
    if annotations is not None and "title" in annotations:
        annotations["title"] = title
        members["annotations"] = Raw(codec.dump(annotations))


def _schema(
    schema: dict[str, Raw], fixed: Mapping[str, bytes], defaults: Mapping[str, bytes]
) -> Raw:
    """Without what is fixed, unless something refers to it; what has a default says so, and nobody
    has to send it."""
    properties = _level(schema.get("properties"))
    if properties is not None:
        left = {name: raw for name, raw in properties.items() if name not in fixed}
        for name, value in defaults.items():
            if name in left:
                left[name] = _defaulted(left[name], value)
        schema["properties"] = Raw(codec.dump(left))
    gone = {name: raw for name, raw in (properties or {}).items() if name in fixed}
    required = _items(schema.get("required"))
    still = [raw for raw in required if (codec.text(raw) or "") not in {*fixed, *defaults}]
    if still:
        schema["required"] = Raw(codec.dump(still)) if still != required else schema["required"]
    elif required:
        del schema["required"]  # an empty list is none in the oldest drafts of JSON Schema
    return Raw(codec.dump(referring.reachable(schema, gone) if gone else schema))


def _defaulted(raw: Raw, value: bytes) -> Raw:
    """`true` is a schema too, and says nothing; of any other that is no object nothing is known."""
    schema = {} if bytes(raw) == b"true" else _level(raw)
    return raw if schema is None else Raw(codec.dump({**schema, "default": Raw(value)}))


def _unnamed(item: Item, one: ToolOverride) -> Iterator[str]:
    """Arguments that the tool does not name: they are sent all the same."""
    schema = _level(codec.level(item.raw).get("inputSchema")) or {}
    properties = _level(schema.get("properties"))
    if properties is None:
        return
    for name in (*one.fixed, *one.defaults):
        if name not in properties:
            told = _told((one.server, one.tool))
            yield f"{told} names no argument {name[:NAME_TOLD_MAX]!r}, which is overridden here"


def _told(pair: Pair) -> str:
    return f"{pair[0]}.{pair[1][:NAME_TOLD_MAX]}"


def _level(raw: Raw | None) -> dict[str, Raw] | None:
    """The members of an object; None: it is none."""
    try:
        return None if raw is None else codec.level(raw)
    except codec.Malformed:
        return None


def _items(raw: Raw | None) -> list[Raw]:
    try:
        return [] if raw is None else codec.items(raw)
    except codec.Malformed:
        return []
