"""Part of an endpoint that one view shows: its lists cut down, with the built-in tools in front.

Owns: what is in view of the four kinds of lists, what can be asked for that is not in view. Never:
the built-in tools themselves (`front_calls.front_views`), which client sees what (the supervisor
decides), pages.

Names are those of the whole endpoint, so a tool has the same name whatever else is in view.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from metamcp_worker.catalog.catalog import ListEntry, MergedCatalog, hash_of, hash_of_marks
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.catalog.parts import mark
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Pair, ViewContent
from metamcp_worker.ipc.server_catalog import CachingHint
from metamcp_worker.ipc.spec import EndpointSpec

OWN = ""
"""Server of the built-in tools: the gateway itself."""


class EndpointLists:
    """Lists of a whole endpoint, prepared once for the views that are cut out of them. `own`:
    entries of the gateway's own tools; `unlisted`: names of more of these, which no list has;
    `guide`: how to use them."""

    def __init__(
        self,
        merged: MergedCatalog,
        endpoint: EndpointSpec,
        own: Sequence[ListEntry],
        unlisted: Iterable[str],
        guide: str,
    ) -> None:
        self._endpoint = endpoint
        self._all = merged
        if endpoint.exposure == "all" and not own:
            return
        owners = {name: Owner(OWN, codec.dump(name)) for name in unlisted}
        owners |= {entry.key: Owner(OWN, entry.item.raw_key) for entry in own}
        tools, kinds = {**merged.tools, **owners}, merged.kinds | {"tools"}
        if endpoint.exposure == "all":
            listed = (*own, *merged.lists["tools"])
            self._all = structs.replace(
                merged, tools=tools, kinds=kinds, lists={**merged.lists, "tools": listed},
                hashes={**merged.hashes, "tools": hash_of(listed)},
            )  # fmt: skip
            return
        self._own = tuple(own)
        self._all = structs.replace(
            merged,
            # A view changes at any moment, and another client may change it.
            hints={**merged.hints, **dict.fromkeys(merged.lists, CachingHint())},
            tools=tools,
            kinds=kinds,
            instructions=guide,
        )
        self._own_mark = b"".join(map(mark, self._own))
        self._parts = {server_part.server: server_part for server_part in merged.listed}
        self._starts: dict[str, int] = {}
        self._marks: list[bytes] = []
        for server_part in merged.listed:
            self._starts[server_part.server] = len(self._marks)
            self._marks += server_part.marks

    def share_pairs(self, content: ViewContent) -> ViewContent:
        """Return the same content, built from the tools that are known here: the supervisor sends
        new objects each time, and thousands of views would need ten times as much memory."""
        if not content.tools or self._endpoint.exposure == "all":
            return content
        return structs.replace(
            content, tools=tuple([self._intern_pair(pair) for pair in content.tools])
        )

    def select_visible(self, content: ViewContent) -> MergedCatalog:
        """Return the part of the endpoint that is in view."""
        merged, endpoint = self._all, self._endpoint
        if endpoint.exposure == "all":
            return merged
        pairs = frozenset(content.tools)
        whole_servers = frozenset(content.servers)
        servers = whole_servers | {server for server, _ in pairs}
        lists = {
            kind: tuple(entry for entry in entries if entry.server in servers)
            for kind, entries in merged.lists.items()
            if kind != "tools"
        }
        hashes = {kind: hash_of(entries) for kind, entries in lists.items()}
        seen, tools, marks = (
            self._find_positions(pairs, whole_servers),
            merged.lists["tools"],
            self._marks,
        )
        lists["tools"] = (*self._own, *[tools[at] for at in seen])
        hashes["tools"] = hash_of_marks([self._own_mark, *[marks[at] for at in seen]])
        changes: dict[str, object] = {"lists": lists, "hashes": hashes}
        if not endpoint.call_hidden and endpoint.exposure != "code":
            changes |= {
                "tools": _inside(merged.tools, whole_servers, pairs),
                "aliases": _inside(merged.aliases, whole_servers, pairs),
                "prompts": {
                    name: owner for name, owner in merged.prompts.items() if owner.server in servers
                },
                "apps": {},
                "barred": None,
                "closed": frozenset(endpoint.servers) - servers,
            }
        return structs.replace(merged, **changes)

    def _find_positions(self, pairs: frozenset[Pair], whole_servers: frozenset[str]) -> list[int]:
        """Return the places of the tools in view, in the list of all."""
        places: set[int] = set()
        for pair in pairs:
            server_part = self._parts.get(pair[0])
            at = None if server_part is None else server_part.places.get(pair)
            if at is not None:
                places.add(self._starts[pair[0]] + at)
        for server in whole_servers & self._parts.keys():
            start = self._starts[server]
            places.update(range(start, start + len(self._parts[server].entries)))
        return sorted(places)

    def _intern_pair(self, pair: Pair) -> Pair:
        server_part = self._parts.get(pair[0])
        at = None if server_part is None else server_part.places.get(pair)
        return pair if server_part is None or at is None else server_part.pairs[at]


def _inside(
    tools: Mapping[str, Owner], whole_servers: frozenset[str], pairs: frozenset[Pair]
) -> dict[str, Owner]:
    """Return the tools in view, and the built-in ones."""
    return {
        name: owner
        for name, owner in tools.items()
        if owner.server == OWN or _is_visible(owner, whole_servers, pairs)
    }


def _is_visible(tool: Owner, servers: frozenset[str], pairs: frozenset[Pair]) -> bool:
    """Whether a tool is in view, whether its server is there or away."""
    return tool.server in servers or (tool.server, codec.text(tool.original)) in pairs
