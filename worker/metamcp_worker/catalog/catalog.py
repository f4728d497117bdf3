"""Offers of all servers behind a front, and the merge of those of one endpoint into its lists.

Owns: the servers' offers; the order of merged lists; the owner of a name; the hash of each merged
list. Never: pages and their bytes (`views`), the owners of resources (`uris`), routing, transport.

A merged *list* has what the listed servers offer. A merged *table* also has what servers offer that
are away just now: a name does not change because another server went down, and a call to a server
that is away is answered with that reason, not with "unknown tool".
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from msgspec import Struct

from metamcp_worker.catalog.offers import DeclaredCapabilities, Owner, ServerOffer, sole_claims
from metamcp_worker.catalog.parts import ListEntry as ListEntry  # noqa: PLC0414 - re-exported
from metamcp_worker.catalog.parts import MergedParts, ServerPart, mark
from metamcp_worker.catalog.tool_overrides import ToolOverrides
from metamcp_worker.catalog.uris import Exposed, Uris, UrisBuilder
from metamcp_worker.guard.conditions import ThingKind
from metamcp_worker.guard.guard_rules import GuardRules
from metamcp_worker.ipc import builtin_definitions, codec, exposed_names, process_names
from metamcp_worker.ipc.server_catalog import (
    DISCOVER,
    KINDS,
    CachingHint,
    ServerCatalogue,
    strictest,
)
from metamcp_worker.ipc.spec import ConsentSpec, EndpointSpec

NOTES_MAX = 100
"""Maximum number of sentences about what a merge left out; further ones are alike."""
SKILLS = "skills"
"""Beginning of the methods of the extension `io.modelcontextprotocol/skills`, to which
`resources/directory/read` belongs, too."""


def sent_bytes(entry: ListEntry) -> int:
    """Return the number of bytes of a tool or prompt, as it is in a list."""
    item = entry.item
    if entry.key == item.key:
        return len(item.raw)
    return builtin_definitions.sent_bytes(item.raw, item.raw_key, codec.dump(entry.key))


class MergedCatalog(Struct, frozen=True):
    """Merge of the servers of one endpoint. A value: rebuilt as a whole, never changed.

    `away`: prompts, resources and templates of servers that are away, which no list has. `offered`:
    definitions of all tools in the table, whether their servers are there or away, but for tools in
    quarantine and hidden ones. `kept`: tools in quarantine, with the sentence for a client that
    calls one. `hidden`: tools that can be called but are not listed. `aliases`: tools
    by further names, which no list has. `apps`: tools by the names that the user interface of their
    own server knows, where the endpoint has others. `kinds`: the lists that some server has.
    `declared`: the servers' capabilities. `eras`: whether a server is of the handshake era.
    `tasked`: the servers that have tasks, or may have some. `unknown`: servers that have not
    reported yet what they offer. `only`: on an endpoint with one server, the owner of everything
    else. `claims`: on an endpoint with several, the owners of methods beyond the protocol, by the
    beginnings of these methods. `barred`: names that this owner does not get, where names are bare;
    None: it gets no name that is not in a table. `held`: it gets no such name of a tool in any
    case, because its server is held to what was approved. `closed`: servers that cannot be asked
    for anything, because nothing of them is in view. `gateways`: ids of the gateways that the lists
    come from, but for this one. `parts`: the same tools, server by server; `listed`: the parts that
    make up the list of tools.
    """

    endpoint: str
    lists: dict[str, tuple[ListEntry, ...]]
    away: dict[str, tuple[ListEntry, ...]]
    hashes: dict[str, bytes]
    hints: dict[str, CachingHint]
    tools: dict[str, Owner]
    apps: dict[str, Owner]
    prompts: dict[str, Owner]
    uris: Uris
    kinds: frozenset[str]
    declared: tuple[DeclaredCapabilities, ...]
    eras: dict[str, bool]
    tasked: frozenset[str]
    instructions: str | None
    unknown: tuple[str, ...]
    only: Owner | None
    claims: Mapping[str, Owner]
    barred: frozenset[str] | None
    notes: tuple[str, ...]
    held: bool = False
    closed: frozenset[str] = frozenset()
    offered: tuple[ListEntry, ...] = ()
    kept: Mapping[exposed_names.Pair, str] = {}
    hidden: frozenset[exposed_names.Pair] = frozenset()
    aliases: Mapping[str, Owner] = {}
    gateways: tuple[str, ...] = ()
    parts: tuple[ServerPart, ...] = ()
    listed: tuple[ServerPart, ...] = ()

    def tool(self, name: str) -> Owner | None:
        owner = self.tools.get(name) or self._find_alias_or_app(name)
        return self._find_unlisted_owner(name) if owner is None and not self.held else owner

    def tool_named(self, name: str) -> Owner | None:
        """Return the owner of a tool that has this name here, in a list or not."""
        return self.tools.get(name) or self.aliases.get(name)

    def prompt(self, name: str) -> Owner | None:
        return self.prompts.get(name) or self._find_unlisted_owner(name)

    def resource(self, uri: str) -> Owner | None:
        return self._open(self.uris.resource(uri) or self.only)

    def claimant(self, method: str) -> Owner | None:
        """Return the owner of a method that the protocol does not know."""
        if self.only is not None or not self.claims:
            return self._open(self.only)
        ends = [at for at, character in enumerate(method) if character == "/"]
        for end in (len(method), *reversed(ends)):
            if owner := self.claims.get(method[:end]):
                return self._open(owner)
        return None

    def directory(self, uri: str) -> Owner | None:
        """Return the owner of a directory of skills."""
        return self.resource(uri) or self.claimant(SKILLS)

    def resource_or_template(self, uri: str) -> Owner | None:
        return self._open(self.uris.resource_or_template(uri) or self.only)

    def _find_alias_or_app(self, name: str) -> Owner | None:
        return self.aliases.get(name) or self.apps.get(name)

    def _open(self, owner: Owner | None) -> Owner | None:
        return owner if owner is None or owner.server not in self.closed else None

    def _find_unlisted_owner(self, name: str) -> Owner | None:
        """Return the only server for a name that it does not list: the server may have the thing,
        and otherwise says best itself that it has not."""
        if self.only is None or self.barred is None or name in self.barred:
            return None
        return self.only


class Catalog:
    """Offers of all servers, and whether they are part of the lists now."""

    def __init__(self) -> None:
        self._offers: dict[str, ServerOffer] = {}
        self._plain: dict[str, ServerOffer] = {}
        """Offers as servers make them, where middleware shows other tools."""
        self._withheld: dict[str, str] = {}
        """Sentences why no tool of a server is shown."""
        self._listed: set[str] = set()
        self._kept: dict[str, dict[str, str]] = {}
        self._held: frozenset[str] = frozenset()
        self._overrides: dict[str, ToolOverrides] = {}
        self._parts: dict[tuple[str, bool], MergedParts] = {}
        self.rules = GuardRules(ConsentSpec())
        """Rules about calls, which count from the next merge on."""

    def keep_back(
        self,
        withdrawn: Mapping[exposed_names.Pair, str],
        held_servers: frozenset[str] = frozenset(),
    ) -> None:
        """Withdraw these tools and their names, from the next merge on. `held_servers`: those
        whose unlisted tools are all withdrawn, because no operator can have approved them."""
        self._held = held_servers
        self._kept = {}
        for (server, tool), reason in withdrawn.items():
            self._kept.setdefault(server, {})[tool] = reason

    def put(self, server: str, catalogue: ServerCatalogue) -> None:
        self._plain.pop(server, None)
        self._offers[server] = ServerOffer(catalogue, self._offers.get(process_names.base(server)))

    def servers(self) -> Sequence[str]:
        """Return the names of all servers that offer something."""
        return list(self._offers)

    def tools(self, server: str) -> Sequence[bytes]:
        """Return the raw definitions of a server's tools, as the server made them, without output
        schemas that clients cannot read."""
        offer = self._plain.get(server) or self._offers.get(server)
        return [] if offer is None else [item.raw for item in offer.items["tools"]]

    def retool(self, server: str, tools: Sequence[bytes] | None, why_none: str = "") -> bool:
        """Show these tools of a server in place of its own; None: its own. `why_none`: a sentence
        why none is shown; empty if they are. Returns whether this is a change."""
        before, why_before = self._offers[server], self._withheld.pop(server, "")
        if why_none:
            self._withheld[server] = why_none
        plain = self._plain.pop(server, before)
        if tools is None:
            self._offers[server] = plain
        else:
            self._plain[server] = plain
            self._offers[server] = plain.with_tools(tools)
        same = self._offers[server].items["tools"] == before.items["tools"]
        return not same or why_none != why_before

    def set_listed(self, server: str, listed: bool) -> bool:
        """Set whether a server is part of the lists. Returns whether this is a change."""
        if listed == (server in self._listed):
            return False
        (self._listed.add if listed else self._listed.discard)(server)
        return True

    def is_listed(self, server: str) -> bool:
        return server in self._listed

    def forget(self, server: str) -> None:
        self._offers.pop(server, None)
        self._plain.pop(server, None)
        self._withheld.pop(server, None)
        self._listed.discard(server)

    def two(self, endpoint: EndpointSpec) -> bool:
        """Whether a server of this endpoint has a catalogue for each era."""
        return any(
            process_names.own(name, process_names.LEGACY) in self._offers
            for name in endpoint.servers
        )

    def merge(
        self, endpoint: EndpointSpec, reserved: Collection[str] = (), *, legacy: bool = False
    ) -> MergedCatalog:
        """Merge the offers for an endpoint. `reserved`: names that no tool gets. `legacy`: for
        clients of the earlier era, with that era's offers of servers that speak both."""
        offers = {name: self._offers[name] for name in endpoint.servers if name in self._offers}
        withdrawn = self._all_kept() if self._withheld else self._kept
        for name in offers if legacy else ():
            own = process_names.own(name, process_names.LEGACY)
            offers[name] = self._offers.get(own, offers[name])
            withdrawn = {**withdrawn, name: {**withdrawn.get(name, {}), **withdrawn.get(own, {})}}
        overrides = self._overrides_of(endpoint)
        key = (endpoint.name, legacy)
        rules = self.rules.at(endpoint)
        parts = MergedParts(rules, self._parts.get(key))
        merge = _Merge(endpoint, offers, self._listed, withdrawn, overrides, reserved, parts)
        uris = merge.by_uri()
        tools = merge.merge_by_name("tools", _find_disabled_tools(endpoint, offers))
        prompts = merge.merge_by_name("prompts", frozenset())
        parts.seal()
        self._parts[key] = parts
        return MergedCatalog(
            endpoint=endpoint.name,
            lists=merge.lists,
            away=merge.away,
            hashes=merge.hashes,
            hints={kind: merge.hint(kind) for kind in (*KINDS, DISCOVER)},
            tools=tools,
            apps=_apps(tools, offers),
            prompts=prompts,
            uris=uris,
            kinds=frozenset(kind for offer in offers.values() for kind in offer.kinds),
            declared=tuple(offer.declared for offer in offers.values()),
            eras={server: offer.legacy for server, offer in offers.items()},
            tasked=frozenset(
                server
                for server in endpoint.servers
                if server not in offers or offers[server].declared.has_tasks()
            ),
            instructions=_instructions(endpoint, offers, self._listed),
            unknown=tuple(name for name in endpoint.servers if name not in offers),
            only=_only(endpoint, offers, rules),
            claims=_claims(offers, rules),
            barred=_find_barred_names(endpoint, overrides, merge.kept),
            held=not self._held.isdisjoint(endpoint.servers),
            notes=tuple(merge.notes),
            offered=merge.offered,
            kept=merge.kept,
            hidden=frozenset(merge.hidden),
            aliases=merge.aliases,
            gateways=tuple(
                dict.fromkeys(
                    gateway
                    for name, offer in offers.items()
                    if name in self._listed
                    for gateway in offer.gateways
                )
            ),
            parts=merge.parts,
            listed=merge.listed,
        )

    def _all_kept(self) -> Mapping[str, Mapping[str, str]]:
        """Return the tools that no client gets, with the reasons, by server."""
        reasons: dict[str, Mapping[str, str]] = dict(self._kept)
        for server, reason in self._withheld.items():
            tools = {item.key: reason for item in self._offers[server].items["tools"]}
            reasons[server] = {**tools, **reasons.get(server, {})}
        return reasons

    def unmerge(self, endpoint: str) -> None:
        """Drop what is kept for an endpoint that is not served any more."""
        self._overrides.pop(endpoint, None)
        for legacy in (False, True):
            self._parts.pop((endpoint, legacy), None)

    def _overrides_of(self, endpoint: EndpointSpec) -> ToolOverrides:
        """Return the overrides of an endpoint, with the definitions built before, as long as the
        same is wanted."""
        overrides = self._overrides.get(endpoint.name)
        if overrides is None or overrides.wanted != endpoint.overrides:
            overrides = self._overrides[endpoint.name] = ToolOverrides(endpoint.overrides)
        return overrides


class _Merge:
    """Merge in the making: fills lists and tables kind by kind."""

    def __init__(
        self,
        endpoint: EndpointSpec,
        offers: Mapping[str, ServerOffer],
        listed: Iterable[str],
        withdrawn: Mapping[str, Mapping[str, str]],
        overrides: ToolOverrides,
        reserved: Collection[str],
        made: MergedParts,
    ) -> None:
        self._endpoint = endpoint
        self._reserved = reserved
        self._offers = offers
        self._listed = frozenset(listed)
        self._all_kept = withdrawn
        self._overrides = overrides
        self._made = made
        self.kept: dict[exposed_names.Pair, str] = {}
        self.hidden: set[exposed_names.Pair] = set()
        self.aliases: Mapping[str, Owner] = {}
        self._exposed: dict[str, Exposed] = {}
        self.lists: dict[str, tuple[ListEntry, ...]] = {}
        self.hashes: dict[str, bytes] = {}
        self.away: dict[str, tuple[ListEntry, ...]] = {}
        self.offered: tuple[ListEntry, ...] = ()
        self.parts: tuple[ServerPart, ...] = ()
        self.listed: tuple[ServerPart, ...] = ()
        self.notes: list[str] = []

    def by_uri(self) -> Uris:
        """Make the lists of resources and templates, and return the owners of URIs. A URI stays as
        it is, unless an earlier server has the same."""
        places = UrisBuilder(self._note, self._made.rules)
        self._exposed = {
            server: places.add(server, offer) for server, offer in self._offers.items()
        }
        for kind in ("resources", "resourceTemplates"):
            self.lists[kind] = self._resources(kind, self._listed)
            self.away[kind] = self._resources(kind, self._offers.keys() - self._listed)
            self.hashes[kind] = hash_of(self.lists[kind])
        return places.uris()

    def _resources(self, kind: str, servers: Collection[str]) -> tuple[ListEntry, ...]:
        return tuple(
            ListEntry(self._exposed[server][kind][item.key], item, server)
            for server, offer in self._offers.items()
            if server in servers
            for item in offer.items[kind]
            if item.key in self._exposed[server][kind]
            if item.fault is None or item.fault.legacy
            if not self._made.rules.hides("resources", server, item.key)
        )

    def merge_by_name(
        self, kind: ThingKind, disabled: frozenset[exposed_names.Pair]
    ) -> dict[str, Owner]:
        """Make the list of tools or prompts, and return their owners by exposed name. Call `by_uri`
        first."""
        off: dict[str, set[str]] = {}
        for server, key in disabled:
            off.setdefault(server, set()).add(key)
        naming = self._endpoint.naming
        pools = [
            self._made.pool(
                kind, server, offer, off.get(server, ()), self._find_changed_uris(server), naming,
                safe=self._endpoint.safe_schemas,
            )
            for server, offer in self._offers.items()
        ]  # fmt: skip
        pairs = list(chain.from_iterable(pool.pairs for pool in pools))
        plain = list(chain.from_iterable(pool.names for pool in pools))
        reserved = self._reserved if kind == "tools" else ()
        overrides = self._overrides if kind == "tools" else _NO_OVERRIDES
        withdrawn = self._all_kept if kind == "tools" else _NOTHING_KEPT
        fixed_names = overrides.names(disabled, reserved)
        exposed = exposed_names.resolve_clashes(pairs, plain, naming, reserved, fixed_names)
        parts: list[ServerPart] = []
        table: dict[str, Owner] = {}
        start = 0
        for server, pool in zip(self._offers, pools, strict=True):
            theirs = exposed[start : (start := start + len(pool.pairs))]
            server_part = self._made.part(
                kind, server, theirs, withdrawn.get(server, {}), overrides
            )
            table.update(zip(server_part.exposed, server_part.owners, strict=True))
            parts.append(server_part)
        self._list(kind, parts)
        if overrides:
            self._note_overrides(parts, table, reserved)
        return table

    def _list(self, kind: str, parts: Sequence[ServerPart]) -> None:
        listed = tuple(server_part for server_part in parts if server_part.server in self._listed)
        self.lists[kind] = tuple(chain.from_iterable(server_part.entries for server_part in listed))
        self.hashes[kind] = hash_of_marks(
            chain.from_iterable(server_part.marks for server_part in listed)
        )
        if kind == "prompts":
            away = (
                server_part.entries
                for server_part in parts
                if server_part.server not in self._listed
            )
            self.away[kind] = tuple(chain.from_iterable(away))
        if kind == "tools":
            self.parts, self.listed = tuple(parts), listed
            self.offered = tuple(chain.from_iterable(server_part.entries for server_part in parts))
            for server_part in parts:
                self.kept.update(server_part.kept)
                self.hidden.update(server_part.hidden)

    def _note_overrides(
        self, parts: Sequence[ServerPart], table: Mapping[str, Owner], reserved: Collection[str]
    ) -> None:
        exposed = {
            pair: name
            for server_part in parts
            if server_part.server in self._overrides.servers
            for pair, name in zip(server_part.pool.pairs, server_part.exposed, strict=True)
        }
        self.aliases, lost = self._overrides.aliases(exposed, table, reserved)
        for sentence in (*lost, *self._overrides.notes(exposed, self._offers)):
            self._note(sentence)

    def hint(self, kind: str) -> CachingHint:
        """Return how long this list, or the discovery, may be kept: as briefly as one server wants.
        A server that is away may come back at any moment; a server without such a list has no
        say."""
        hints: list[CachingHint] = []
        for server in self._endpoint.servers:
            offer = self._offers.get(server)
            if offer is None or server not in self._listed:
                hints.append(CachingHint())
            elif kind == DISCOVER or kind in offer.kinds:
                hints.append(offer.hints.get(kind, CachingHint()))
        return strictest(hints)

    def _find_changed_uris(self, server: str) -> dict[str, str]:
        resources = self._exposed[server]["resources"]
        return {uri: exposed for uri, exposed in resources.items() if uri != exposed}

    def _note(self, sentence: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(sentence)


_NO_OVERRIDES = ToolOverrides()
_NOTHING_KEPT: Mapping[str, Mapping[str, str]] = {}


def _apps(tools: Mapping[str, Owner], offers: Mapping[str, ServerOffer]) -> dict[str, Owner]:
    """Return the owners of tools by the names that the script of a user interface uses: their names
    at its own server. Names that stand for several tools are left out, and so are tools of servers
    without a user interface."""
    having = {server for server, offer in offers.items() if offer.has_app}
    by_name: dict[str, list[Owner]] = {}
    if having:
        for owner in tools.values():
            if owner.server in having:
                by_name.setdefault(codec.text(owner.original) or "", []).append(owner)
    return {
        name: owners[0]
        for name, owners in by_name.items()
        if len(owners) == 1 and name not in tools
    }


def hash_of(entries: Iterable[ListEntry]) -> bytes:
    """Return a hash that changes when a client would see another list."""
    return hash_of_marks(map(mark, entries))


def hash_of_marks(marks: Iterable[bytes]) -> bytes:
    return hashlib.sha256(b"".join(marks)).digest()


def _only(
    endpoint: EndpointSpec, offers: Mapping[str, ServerOffer], rules: GuardRules
) -> Owner | None:
    if len(endpoint.servers) != 1:
        return None
    server = endpoint.servers[0]
    legacy = offers[server].legacy if server in offers else True
    return Owner(server, legacy=legacy, guard=rules.rest(server))


def _claims(offers: Mapping[str, ServerOffer], rules: GuardRules) -> dict[str, Owner]:
    """Return the owners of methods beyond the protocol."""
    claims = sole_claims({name: offer.declared for name, offer in offers.items()})
    return {
        claim: Owner(server, legacy=offers[server].legacy, guard=rules.rest(server))
        for claim, server in claims.items()
    }


def _find_disabled_tools(
    endpoint: EndpointSpec, offers: Mapping[str, ServerOffer]
) -> frozenset[exposed_names.Pair]:
    """Return the tools that are switched off, by name or by a pattern."""
    disabled = frozenset(endpoint.disabled)
    if not endpoint.switches:
        return disabled
    pairs = (
        (server, item.key) for server, offer in offers.items() for item in offer.items["tools"]
    )
    return disabled | exposed_names.switched_off(endpoint.switches, pairs)


def _find_barred_names(
    endpoint: EndpointSpec, overrides: ToolOverrides, withdrawn: Iterable[exposed_names.Pair]
) -> frozenset[str] | None:
    if len(endpoint.servers) != 1 or endpoint.naming.style != "bare" or endpoint.switches:
        return None  # with patterns: of what is not listed, nobody knows whether it is switched off
    off = (*endpoint.disabled, *overrides.barred, *withdrawn)
    return frozenset(name for server, name in off if server in endpoint.servers)


def _instructions(
    endpoint: EndpointSpec, offers: Mapping[str, ServerOffer], listed: Iterable[str]
) -> str | None:
    """Return the description of the namespace, and after it the instructions of the servers: word
    for word on an endpoint with one server, else each text under its server's name."""
    texts = {
        server: offer.instructions
        for server, offer in offers.items()
        if server in listed and offer.instructions
    }
    instructions = list(texts.values())
    if len(endpoint.servers) != 1:
        instructions = [
            f"# {process_names.label(server)}\n\n{text}" for server, text in texts.items()
        ]
    return "\n\n".join(filter(None, [endpoint.description, *instructions])) or None
