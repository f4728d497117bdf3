"""Everything there is behind this front, and what of it one endpoint merges into its lists.

Owns: the servers' offers; the order of merged lists; who owns a name; the hash of each merged list.
Never: pages and their bytes (`views`), what leads to a resource (`uris`), routing, transport.

A merged *list* holds what the listed servers offer. A merged *table* also holds what servers offer
that are away just now: a name does not change because the server of another one went down, and a
call to a server that is away is told so instead of "unknown tool".
"""

import hashlib
from collections.abc import Iterable, Mapping

from msgspec import Struct

from metamcp_worker import codec, names
from metamcp_worker.catalogue import DISCOVER, KINDS, Hint, ServerCatalogue, strictest
from metamcp_worker.front.capabilities import Declared
from metamcp_worker.front.offers import Item, Offer, Owner, relinked
from metamcp_worker.front.uris import Exposed, Places, Uris
from metamcp_worker.spec import EndpointSpec

NOTES_MAX = 100
"""Sentences about what a merge left out; the rest is alike."""


class Entry(Struct, frozen=True, gc=False):
    """One definition in a merged list. `key`: the exposed name, or the exposed URI."""

    key: str
    item: Item


class Merged(Struct, frozen=True):
    """What one endpoint makes of its servers. A value: rebuilt as a whole, never changed.

    `apps`: tools by the names that the user interface of their own server knows, where the endpoint
    has others. `kinds`: the lists that some server has. `declared`: the servers' capabilities.
    `eras`: is a server of the handshake era? `tasked`: the servers whose tasks have other ids here
    than there. `unknown`: servers of which nothing is known yet. `only`: the owner of everything
    else, on an endpoint with one server. `barred`: names that are not, where names are bare; None:
    no name that is not in a table is anybody's.
    """

    endpoint: str
    lists: dict[str, tuple[Entry, ...]]
    hashes: dict[str, bytes]
    hints: dict[str, Hint]
    tools: dict[str, Owner]
    apps: dict[str, Owner]
    prompts: dict[str, Owner]
    uris: Uris
    kinds: frozenset[str]
    declared: tuple[Declared, ...]
    eras: dict[str, bool]
    tasked: frozenset[str]
    instructions: str | None
    unknown: tuple[str, ...]
    only: Owner | None
    barred: frozenset[str] | None
    notes: tuple[str, ...]

    def tool(self, name: str) -> Owner | None:
        return self.tools.get(name) or self.apps.get(name) or self._unlisted(name)

    def prompt(self, name: str) -> Owner | None:
        return self.prompts.get(name) or self._unlisted(name)

    def resource(self, uri: str) -> Owner | None:
        return self.uris.resource(uri) or self.only

    def resource_or_template(self, uri: str) -> Owner | None:
        return self.uris.resource_or_template(uri) or self.only

    def _unlisted(self, name: str) -> Owner | None:
        """A server may have what it does not list, and says best itself that it has not."""
        if self.only is None or self.barred is None or name in self.barred:
            return None
        return self.only


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
        uris = merge.by_uri()
        tools = merge.named("tools", frozenset(endpoint.disabled))
        prompts = merge.named("prompts", frozenset())
        return Merged(
            endpoint=endpoint.name,
            lists=merge.lists,
            hashes={kind: _hash(entries) for kind, entries in merge.lists.items()},
            hints={what: merge.hint(what) for what in (*KINDS, DISCOVER)},
            tools=tools,
            apps=_apps(tools, offers),
            prompts=prompts,
            uris=uris,
            kinds=frozenset(kind for offer in offers.values() for kind in offer.kinds()),
            declared=tuple(offer.declared for offer in offers.values()),
            eras={server: offer.legacy for server, offer in offers.items()},
            tasked=frozenset(
                server
                for server, offer in offers.items()
                if len(endpoint.servers) > 1 and offer.declared.has_tasks()
            ),
            instructions=_instructions(endpoint, offers, self._listed),
            unknown=tuple(name for name in endpoint.servers if name not in offers),
            only=_only(endpoint, offers),
            barred=_barred(endpoint),
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
        self._exposed: dict[str, Exposed] = {}
        self.lists: dict[str, tuple[Entry, ...]] = {}
        self.notes: list[str] = []

    def by_uri(self) -> Uris:
        """Resources and templates under their own URIs, as far as no other server has them."""
        places = Places(self._note)
        self._exposed = {
            server: places.add(server, offer) for server, offer in self._offers.items()
        }
        for kind in ("resources", "resourceTemplates"):
            self.lists[kind] = tuple(
                Entry(self._exposed[server][kind][item.key], item)
                for server, offer in self._offers.items()
                if server in self._listed
                for item in offer.items[kind]
                if item.key in self._exposed[server][kind]
            )
        return places.uris()

    def named(self, kind: str, disabled: frozenset[names.Pair]) -> dict[str, Owner]:
        """Tools or prompts under their exposed names; `by_uri` comes first."""
        found: dict[names.Pair, Item] = {}
        for server, offer in self._offers.items():
            moved = self._moved(server)
            for item in offer.items[kind]:
                if (server, item.key) not in disabled:
                    found[server, item.key] = relinked(item, moved) if moved else item
        exposed = names.expose(list(found), self._endpoint.naming)
        entries: list[Entry] = []
        table: dict[str, Owner] = {}
        for (pair, item), name in zip(found.items(), exposed, strict=True):
            table[name] = Owner(pair[0], item.raw_key, self._offers[pair[0]].legacy)
            if pair[0] in self._listed:
                entries.append(Entry(name, item))
        self.lists[kind] = tuple(entries)
        return table

    def hint(self, what: str) -> Hint:
        """How long this list, or the discovery, may be kept: as briefly as one server wants. A
        server that is away may come back at any moment; one that has no such list has no say."""
        hints: list[Hint] = []
        for server in self._endpoint.servers:
            offer = self._offers.get(server)
            if offer is None or server not in self._listed:
                hints.append(Hint())
            elif what == DISCOVER or what in offer.kinds():
                hints.append(offer.hints.get(what, Hint()))
        return strictest(hints)

    def _moved(self, server: str) -> dict[str, str]:
        resources = self._exposed[server]["resources"]
        return {uri: exposed for uri, exposed in resources.items() if uri != exposed}

    def _note(self, sentence: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(sentence)


def _apps(tools: Mapping[str, Owner], offers: Mapping[str, Offer]) -> dict[str, Owner]:
    """The script of a user interface calls the tools of its server by the names that these have
    there. Those that stand for one tool only, of a server with a user interface, are understood."""
    found: dict[str, list[Owner]] = {}
    for owner in tools.values():
        if offers[owner.server].has_app():
            found.setdefault(codec.text(owner.original) or "", []).append(owner)
    return {
        name: owners[0] for name, owners in found.items() if len(owners) == 1 and name not in tools
    }


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


def _barred(endpoint: EndpointSpec) -> frozenset[str] | None:
    if len(endpoint.servers) != 1 or endpoint.naming.style != "bare":
        return None
    return frozenset(name for server, name in endpoint.disabled if server in endpoint.servers)


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
