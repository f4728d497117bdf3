"""Everything there is behind this front, and what of it one endpoint merges into its lists.

Owns: the servers' catalogues, opened once; the order of merged lists; who owns a name, a URI or a
template; the hash of each merged list. Never: pages and their bytes (`views`), routing, transport.

A merged *list* holds what the listed servers offer. A merged *table* also holds what servers offer
that are away just now: a name does not change because the server of another one went down, and a
call to a server that is away is told so instead of "unknown tool".
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Raw, Struct

from metamcp_worker import codec, names
from metamcp_worker.catalogue import KINDS, ServerCatalogue
from metamcp_worker.spec import EndpointSpec

URI_BYTES_MAX = 2048
"""Of a resource or template; as long as the URLs that browsers and servers agree on."""
NOTES_MAX = 100
"""Sentences about what a merge left out; the rest is alike."""
MODERN_SINCE = "2026-07-28"
"""The first protocol revision without sessions. Revisions are dates, so they compare as text."""

#: The member that names a definition, per kind.
KEYS = {"tools": "name", "prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}
#: Capabilities that an endpoint takes over from its servers.
CAPABILITIES = ("tools", "prompts", "resources", "completions")


class Item(Struct, frozen=True, gc=False):
    """One definition of a server. `key`: the server's own name of it, `raw_key` as JSON; `digest`
    of the whole definition."""

    key: str
    raw_key: bytes
    raw: bytes
    digest: bytes


class Offer:
    """What one server offers, opened as far as merging needs it."""

    def __init__(self, catalogue: ServerCatalogue) -> None:
        self.legacy = catalogue.protocol < MODERN_SINCE
        self.instructions = catalogue.instructions or ""
        self.items = {kind: _items(kind, catalogue.of(kind)) for kind in KINDS}
        self.capabilities = _capabilities(catalogue.capabilities)


class Owner(Struct, frozen=True, gc=False):
    """Where requests about one thing go. `original`: the server's own name as raw JSON."""

    server: str
    original: bytes = b""
    legacy: bool = True


class Entry(Struct, frozen=True, gc=False):
    """One definition in a merged list. `key`: the exposed name, or the URI."""

    key: str
    item: Item


class Template(Struct, frozen=True):
    """A resource template: which URIs it covers, and how much of it is fixed text."""

    owner: Owner
    pattern: re.Pattern[str]
    literal_chars: int


class Merged(Struct, frozen=True):
    """What one endpoint makes of its servers. A value: rebuilt as a whole, never changed.

    `templates`: the most specific first. `unknown`: servers of which nothing is known yet.
    `only`: the owner of everything else, on an endpoint with one server.
    """

    endpoint: str
    lists: dict[str, tuple[Entry, ...]]
    hashes: dict[str, bytes]
    tools: dict[str, Owner]
    prompts: dict[str, Owner]
    resources: dict[str, Owner]
    templates: tuple[Template, ...]
    template_keys: dict[str, Owner]
    capabilities: frozenset[str]
    instructions: str | None
    unknown: tuple[str, ...]
    only: Owner | None
    notes: tuple[str, ...]

    def tool(self, name: str) -> Owner | None:
        return self.tools.get(name)

    def prompt(self, name: str) -> Owner | None:
        return self.prompts.get(name)

    def resource(self, uri: str) -> Owner | None:
        """By its URI, else by the most specific template that covers it, else the only server."""
        owner = self.resources.get(uri)
        if owner is not None:
            return owner
        for template in self.templates:
            if template.pattern.match(uri):
                return template.owner
        return self.only

    def resource_or_template(self, uri: str) -> Owner | None:
        """The same, where the URI may also be a template itself."""
        return self.template_keys.get(uri) or self.resource(uri)


class Catalog:
    """The servers' offers and whether they are part of the lists now."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        self._listed: set[str] = set()

    def put(self, server: str, catalogue: ServerCatalogue) -> None:
        self._offers[server] = Offer(catalogue)

    def set_listed(self, server: str, listed: bool) -> bool:
        """Did this change anything?"""
        if listed == (server in self._listed):
            return False
        (self._listed.add if listed else self._listed.discard)(server)
        return True

    def forget(self, server: str) -> None:
        self._offers.pop(server, None)
        self._listed.discard(server)

    def merge(self, endpoint: EndpointSpec) -> Merged:
        offers = {name: self._offers[name] for name in endpoint.servers if name in self._offers}
        merge = _Merge(endpoint, offers, self._listed)
        tools = merge.named("tools", frozenset(endpoint.disabled))
        prompts = merge.named("prompts", frozenset())
        resources = merge.by_uri("resources")
        template_keys = merge.by_uri("resourceTemplates")
        return Merged(
            endpoint=endpoint.name,
            lists=merge.lists,
            hashes={kind: _hash(entries) for kind, entries in merge.lists.items()},
            tools=tools,
            prompts=prompts,
            resources=resources,
            templates=_templates(template_keys),
            template_keys=template_keys,
            capabilities=frozenset(
                name for offer in offers.values() for name in offer.capabilities
            ),
            instructions=_instructions(endpoint, offers, self._listed),
            unknown=tuple(name for name in endpoint.servers if name not in offers),
            only=_only(endpoint, offers),
            notes=tuple(merge.notes),
        )


class _Merge:
    """One merge in the making: fills lists and tables kind by kind."""

    def __init__(
        self, endpoint: EndpointSpec, offers: Mapping[str, Offer], listed: Iterable[str]
    ) -> None:
        self._endpoint = endpoint
        self._offers = offers
        self._listed = frozenset(listed)
        self.lists: dict[str, tuple[Entry, ...]] = {}
        self.notes: list[str] = []

    def named(self, kind: str, disabled: frozenset[names.Pair]) -> dict[str, Owner]:
        """Tools or prompts under their exposed names."""
        found: dict[names.Pair, Item] = {}
        for server, offer in self._offers.items():
            for item in offer.items[kind]:
                pair = (server, item.key)
                if pair in found:
                    self._note(f"{server} lists {kind} {item.key!r} twice; the first one counts")
                elif pair not in disabled:
                    found[pair] = item
        exposed = names.expose(list(found), self._endpoint.naming)
        entries: list[Entry] = []
        table: dict[str, Owner] = {}
        for (pair, item), name in zip(found.items(), exposed, strict=True):
            table[name] = self._owner(pair[0], item)
            if pair[0] in self._listed:
                entries.append(Entry(name, item))
        self.lists[kind] = tuple(entries)
        return table

    def by_uri(self, kind: str) -> dict[str, Owner]:
        """Resources or templates under their own URIs; the first server keeps a URI."""
        entries: list[Entry] = []
        table: dict[str, Owner] = {}
        for server, offer in self._offers.items():
            for item in offer.items[kind]:
                first = table.get(item.key)
                if first is not None:
                    self._note(f"{server} also lists {item.key!r}; it stays with {first.server}")
                elif len(item.key.encode("utf-8", "replace")) > URI_BYTES_MAX:
                    self._note(f"{server} lists a URI of more than {URI_BYTES_MAX} bytes")
                else:
                    table[item.key] = self._owner(server, item)
                    if server in self._listed:
                        entries.append(Entry(item.key, item))
        self.lists[kind] = tuple(entries)
        return table

    def _owner(self, server: str, item: Item) -> Owner:
        return Owner(server, item.raw_key, self._offers[server].legacy)

    def _note(self, sentence: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(sentence)


def _items(kind: str, definitions: Sequence[Raw]) -> tuple[Item, ...]:
    """The definitions that name themselves; what does not cannot be asked for."""
    items: list[Item] = []
    for definition in definitions:
        try:
            raw_key = codec.level(definition).get(KEYS[kind], Raw(b"null"))
        except codec.Malformed:
            continue
        key = codec.text(raw_key)
        if key is not None:
            raw = bytes(definition)
            items.append(Item(key, bytes(raw_key), raw, hashlib.sha256(raw).digest()))
    return tuple(items)


def _capabilities(raw: Raw) -> frozenset[str]:
    try:
        declared = codec.level(raw)
    except codec.Malformed:
        return frozenset()
    return frozenset(name for name in CAPABILITIES if bytes(declared.get(name, b"null")) != b"null")


def _hash(entries: Iterable[Entry]) -> bytes:
    """Moves when a client would see another list."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(entry.key.encode("utf-8", "surrogatepass") + b"\0" + entry.item.digest)
    return digest.digest()


def _only(endpoint: EndpointSpec, offers: Mapping[str, Offer]) -> Owner | None:
    if len(endpoint.servers) != 1:
        return None
    server = endpoint.servers[0]
    return Owner(server, legacy=offers[server].legacy if server in offers else True)


def _instructions(
    endpoint: EndpointSpec, offers: Mapping[str, Offer], listed: Iterable[str]
) -> str | None:
    """Word for word on an endpoint with one server, else each text under its server's name."""
    texts = {
        server: offer.instructions
        for server, offer in offers.items()
        if server in listed and offer.instructions
    }
    if len(endpoint.servers) == 1:
        return next(iter(texts.values()), None)
    return "\n\n".join(f"# {server}\n\n{text}" for server, text in texts.items()) or None


_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_ANYTHING = frozenset("+#./;?&")


def _templates(table: Mapping[str, Owner]) -> tuple[Template, ...]:
    found = [
        Template(owner, _pattern(template), len(_EXPRESSION.sub("", template)))
        for template, owner in table.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.literal_chars))


def _pattern(template: str) -> re.Pattern[str]:
    """Which URIs a template (RFC 6570) covers, read generously: the server has the last word.

    A plain expression `{x}` covers what has no slash, `{x*}` and those with an operator anything.
    Every piece but the last is atomic, so that matching takes linear time whatever the template.
    """
    pieces = _EXPRESSION.split(template)
    pattern = re.escape(pieces[0])
    for at in range(1, len(pieces), 2):
        expression, literal = pieces[at], re.escape(pieces[at + 1])
        anything = expression[:1] in _ANYTHING or expression.endswith("*")
        gap = r"[\s\S]*?" if anything else r"[^/]*?"
        last = at + 2 == len(pieces)
        pattern += gap + literal + r"\Z" if last else f"(?>{gap}{literal})"
    return re.compile(pattern if len(pieces) > 1 else pattern + r"\Z")
