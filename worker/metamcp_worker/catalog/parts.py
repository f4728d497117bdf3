"""Parts that each server brings into the lists of one endpoint, kept as long as they are the same.

Owns: the entries, owners and marks of one server's tools or prompts under given names, and whether
those of the merge before still hold. Never: choosing the names (`exposed_names`), the order of
lists and what is listed (`catalog`), URIs (`uris`).

A merge puts parts one behind the other. With ten thousand tools of fifty servers nearly all parts
are those of the merge before. So a change of one server costs the work for its own tools, and a
copy of the rest.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from metamcp_worker.catalog.offers import OfferedItem, Owner, ServerOffer, with_exposed_links
from metamcp_worker.catalog.tool_overrides import ToolOverrides
from metamcp_worker.guard.conditions import ThingKind
from metamcp_worker.guard.guard_rules import GuardRules
from metamcp_worker.ipc import exposed_names, validation
from metamcp_worker.ipc.exposed_names import Pair
from metamcp_worker.ipc.spec import NamingSpec


class ListEntry(Struct, frozen=True, gc=False):
    """Definition in a merged list. `key`: the exposed name, or the exposed URI; `server`: the
    server that offers it, empty for the gateway itself."""

    key: str
    item: OfferedItem
    server: str


def mark(entry: ListEntry) -> bytes:
    """Return the bytes of an entry that the hash of its list is computed from."""
    return entry.key.encode("utf-8", "surrogatepass") + b"\0" + entry.item.digest


class Pool(Struct, frozen=True, eq=False):
    """Definitions of one kind that a server has, without those that are `off` by the server's own
    names. `offered`: all of them, as the endpoint shows schemas; `moved`: URIs that are exposed
    under other ones; `names`: names that the definitions would have without other servers."""

    offer: ServerOffer
    offered: Sequence[OfferedItem]
    off: Collection[str]
    moved: Mapping[str, str]
    naming: NamingSpec
    pairs: Sequence[Pair]
    items: Sequence[OfferedItem]
    names: Sequence[str]


class ServerPart:
    """Definitions of a pool under their `exposed` names. `owners`: of all these names; `entries`:
    of definitions that lists may have, with their `marks` and `pairs`; the others are `kept` back,
    with the reason, or `hidden` by an override or a policy, or not valid. `held`: the reasons by
    the server's own names, also of tools that it does not have."""

    def __init__(
        self,
        kind: ThingKind,
        server: str,
        pool: Pool,
        exposed: Sequence[str],
        held: Mapping[str, str],
        overrides: ToolOverrides,
        rules: GuardRules,
    ) -> None:
        self.server = server
        self.pool = pool
        self.exposed = exposed
        self.held = held
        self.overrides = overrides
        self.rules = rules
        self.owners: list[Owner] = []
        self.entries: list[ListEntry] = []
        self.pairs: list[Pair] = []
        self.kept: dict[Pair, str] = {}
        self.hidden: list[Pair] = []
        legacy = pool.offer.legacy
        for pair, item, name in zip(pool.pairs, pool.items, exposed, strict=True):
            fault = item.fault
            invalid = (
                "" if fault is None else validation.explain_refusal(kind, server, item.key, fault)
            )
            reason = held.get(item.key, "")
            unlisted = reason or (invalid if fault is not None and not fault.legacy else "")
            guard = rules.guard(kind, server, item.key, item.raw, item.digest)
            self.owners.append(
                Owner(server, item.raw_key, legacy, unlisted, overrides.mend(pair), invalid, guard)
            )
            if reason:
                self.kept[pair] = reason
            if unlisted:
                continue
            if overrides.is_hidden(pair) or (guard is not None and guard.is_hidden):
                self.hidden.append(pair)
            else:
                self.entries.append(ListEntry(name, overrides.item(pair, item), server))
                self.pairs.append(pair)
        self.marks = list(map(mark, self.entries))

    @cached_property
    def places(self) -> Mapping[Pair, int]:
        """Place of each tool among the entries; only views that are cut out of a list need it."""
        return {pair: at for at, pair in enumerate(self.pairs)}


class MergedParts:
    """Parts of one merge, by kind and server. `rules`: about calls; `before`: parts of the merge
    before."""

    def __init__(self, rules: GuardRules, before: "MergedParts | None" = None) -> None:
        self.rules = rules
        self._before = before
        self._pools: dict[tuple[str, str], Pool] = {}
        self._parts: dict[tuple[str, str], ServerPart] = {}

    def seal(self) -> None:
        """Drop the merge before, because this one is done."""
        self._before = None

    def pool(
        self,
        kind: str,
        server: str,
        offer: ServerOffer,
        off: Collection[str],
        moved: Mapping[str, str],
        naming: NamingSpec,
        *,
        safe: bool = False,
    ) -> Pool:
        """Return the pool of a server. `safe`: its tools as an endpoint with safe schemas shows
        them."""
        offered = offer.safe_tools() if safe and kind == "tools" else offer.items[kind]
        pool = None if self._before is None else self._before._pools.get((kind, server))
        if (
            pool is None
            or pool.offer is not offer
            or pool.offered is not offered
            or pool.off != off
            or pool.moved != moved
            or pool.naming != naming
        ):
            items = [item for item in offered if item.key not in off]
            if moved:
                items = [with_exposed_links(item, moved) for item in items]
            pairs = [(server, item.key) for item in items]
            alone = exposed_names.alone(pairs, naming)
            pool = Pool(offer, offered, off, moved, naming, pairs, items, alone)
        self._pools[kind, server] = pool
        return pool

    def part(
        self,
        kind: ThingKind,
        server: str,
        exposed: Sequence[str],
        withdrawn: Mapping[str, str],
        overrides: ToolOverrides,
    ) -> ServerPart:
        """Return the part for the pool of this merge, from the merge before if it still holds."""
        pool = self._pools[kind, server]
        server_part = None if self._before is None else self._before._parts.get((kind, server))
        if (
            server_part is None
            or server_part.pool is not pool
            or server_part.overrides is not overrides
            or server_part.rules is not self.rules
            or server_part.held != withdrawn
            or server_part.exposed != exposed
        ):
            server_part = ServerPart(kind, server, pool, exposed, withdrawn, overrides, self.rules)
        self._parts[kind, server] = server_part
        return server_part
