"""View of a principal on one endpoint: the lists as ready bytes, page by page and era by era.

Owns: `View`: pages, cursors, capabilities, instructions; `PageCache`: the bytes that all views
keep. Never: which views there are (`front_views`), what is in view (`exposure`), sending, HTTP,
calls.

A view is never changed: it is built as a whole and swapped as one. The bytes of a page are built at
the first request for the page and kept, because every client asks for the same few pages.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from weakref import ref

from msgspec import Raw

from metamcp_worker.access import gate
from metamcp_worker.catalog import offers
from metamcp_worker.catalog.catalog import ListEntry, MergedCatalog
from metamcp_worker.catalog.offers import CAPABILITIES
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import ViewContent
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.server_catalog import GATEWAYS, KEYS, KINDS
from metamcp_worker.ipc.spec import EndpointSpec

LIST_METHODS: Mapping[str, str] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}

PAGE_ITEMS_MAX = 2500
"""Maximum number of definitions on one page: few clients ask for the second page, so the first one
holds many."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of one page: half of a message, so that a page always fits into an answer."""
CHECKSUM_BYTES = 6
"""Bytes of the checksum of a cursor: enough to tell cursors of this list from anything else; a
cursor does not grant access."""

_NOTHING = ViewContent()


Place = tuple[str, bool, int]
"""Place of a page: its kind, its era, and where it starts."""
PAGES_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of the pages of all views of a front. A page that is not there is built again,
which takes a millisecond."""


class PageCache:
    """Ready bytes of all views. Beyond `bytes_max` the oldest lists lose their bytes; the bytes of
    a view go with the view."""

    def __init__(self, bytes_max: int = PAGES_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._sizes: dict[ref[ListPages], int] = {}

    def pages(self) -> "ListPages":
        """Return a place for the bytes of one more list."""
        pages = ListPages(self)
        pages.name = ref(pages, self.forget_pages)
        hash(pages.name)  # the reference keeps its hash, for when its object is gone
        return pages

    def count_bytes(self, pages: "ref[ListPages]", size: int) -> None:
        """Count so many more bytes of these pages, and drop the bytes of older ones beyond the
        limit."""
        self.bytes += size
        self._sizes[pages] = self._sizes.get(pages, 0) + size
        while self.bytes > self._bytes_max and len(self._sizes) > 1:
            oldest = next(other for other in self._sizes if other is not pages)
            if (oldest_pages := oldest()) is not None:
                oldest_pages.ready.clear()
            self.forget_pages(oldest)

    def forget_pages(self, pages: "ref[ListPages]") -> None:
        """Count no more bytes of these pages."""
        self.bytes -= self._sizes.pop(pages, 0)


class ListPages:
    """Bytes of one list of each kind, kept once for all views that show the same."""

    __slots__ = ("__weakref__", "_shelf", "name", "ready")
    name: "ref[ListPages]"

    def __init__(self, shelf: PageCache) -> None:
        self.ready: dict[Place, bytes] = {}
        self._shelf = shelf

    def put(self, key: Place, page: bytes) -> None:
        self.ready[key] = page
        self._shelf.count_bytes(self.name, len(page))


class View:
    """View of `principal` on one endpoint. `merged`: its lists and tables; `legacy`: those for
    clients of the earlier era, where a server speaks both; `shown`: what is in view beside the
    built-in tools; `spec`: of the endpoint, or of the part of it that `endpoint` names; `whole`:
    name of the endpoint itself. `pages`: of a view with the same lists, to keep their bytes
    once. `gateway`: id of this gateway, which results of lists have, with those of the gateways
    behind it: a gateway finds itself there if it is its own server; empty for none."""

    def __init__(
        self,
        merged: MergedCatalog,
        spec: EndpointSpec,
        version: str,
        principal: str = gate.LOCAL,
        shown: ViewContent = _NOTHING,
        pages: ListPages | None = None,
        legacy: MergedCatalog | None = None,
        gateway: str = "",
    ) -> None:
        self.legacy = merged if legacy is None else legacy
        self.endpoint = merged.endpoint
        self.whole = spec.part_of or merged.endpoint
        self.principal = principal
        self.merged = merged
        self.spec = spec
        self.shown = shown
        self.instructions: str | None = merged.instructions
        self._version = version
        self._gateway = gateway
        self._capabilities: dict[bool, bytes] = {}
        self.pages = PageCache().pages() if pages is None else pages
        self._starts = {(kind, modern, 0) for kind in KINDS for modern in (False, True)}
        self._places: dict[tuple[str, bool], dict[str, int]] = {}

    def of(self, *, modern: bool) -> MergedCatalog:
        """Return the lists and tables for clients of one era."""
        return self.merged if modern else self.legacy

    def hashes(self, kind: str) -> tuple[bytes, bytes]:
        """Return the hashes of the lists of this kind, one for each era. A hash changes when a
        client would see another list."""
        return self.merged.hashes[kind], self.legacy.hashes[kind]

    def page(self, method: str, params: Mapping[str, Raw], *, modern: bool) -> bytes:
        """Return the raw result of one of LIST_METHODS. Raises ProtocolError."""
        kind = LIST_METHODS[method]
        start = self._start(kind, params.get("cursor"), modern=modern)
        key = (kind, modern, start)
        page = self.pages.ready.get(key)
        if page is None:
            page, end = self._build(kind, start, modern=modern)
            if key in self._starts:  # not for cursors of an earlier list, which could be many
                self.pages.put(key, page)
                self._starts.add((kind, modern, end))
        return page

    def capabilities(self, *, modern: bool) -> bytes:
        """Return the raw capabilities for clients of one era. Until a server has reported what it
        offers, all is declared that the gateway can serve, because a client asks once and would
        never look again."""
        capabilities = self._capabilities.get(modern)
        if capabilities is None:
            merged = self.of(modern=modern)
            kinds = frozenset(KINDS) if merged.unknown else merged.kinds
            if self.spec.results is not None:
                kinds = frozenset((*kinds, "tools", "resources"))
            lists = list(dict.fromkeys(CAPABILITIES[kind] for kind in KINDS if kind in kinds))
            if merged.only is not None and merged.declared:
                capabilities = offers.of_one(merged.declared[0], lists, modern=modern)
            else:
                routed = set(merged.claims)
                if self.principal != gate.LOCAL:
                    routed &= gate.EXTENSIONS
                capabilities = offers.of_many(
                    merged.declared, lists, modern=modern,
                    routed=routed, unknown=bool(merged.unknown),
                )  # fmt: skip
            if not modern and "workflows" in self.spec.builtins:
                capabilities = offers.with_runs(capabilities)
            self._capabilities[modern] = capabilities
        return capabilities

    def hint(self, kind: str) -> dict[str, object]:
        """Return how long, and by whom, a result may be kept. `kind`: one of KINDS, or DISCOVER.
        Results of a principal other than LOCAL are private."""
        hint = self.merged.hints[kind]
        scope = hint.cacheScope if self.principal == gate.LOCAL else "private"
        return {"ttlMs": hint.ttlMs, "cacheScope": scope}

    def _build(self, kind: str, start: int, *, modern: bool) -> tuple[bytes, int]:
        """Return the page from the item at `start` on, and where the next one starts."""
        merged = self.of(modern=modern)
        entries, results = merged.lists[kind], self.spec.results is not None
        definitions: list[bytes] = []
        size, end = 0, start
        for entry in entries[start : start + PAGE_ITEMS_MAX]:
            if entry.item.fault is not None and not modern:
                end += 1
                continue
            bare = results or (entry.item.modern_output and not modern)
            definition = _definition(kind, entry, bare=bare)
            size += len(definition) + 1
            if definitions and size > PAGE_BYTES_MAX:
                break
            definitions.append(definition)
            end += 1
        result: dict[str, object] = {"resultType": "complete"} if modern else {}
        result[kind] = [Raw(definition) for definition in definitions]
        if end < len(entries):
            result["nextCursor"] = self._cursor(kind, entries[end - 1].key)
        meta: dict[str, object] = {}
        if modern:
            result |= self.hint(kind)
            meta["io.modelcontextprotocol/serverInfo"] = {
                "name": "metamcp",
                "version": self._version,
            }
        if self._gateway:
            meta[GATEWAYS] = [self._gateway, *merged.gateways]
        if meta:
            result["_meta"] = meta
        return codec.dump(result), end

    def _start(self, kind: str, cursor: Raw | None, *, modern: bool) -> int:
        """Return the place behind the item that the cursor names, wherever the item is now. Raises
        ProtocolError."""
        if cursor is None or bytes(cursor) == b"null":
            return 0
        text = codec.text(cursor)
        key = None if text is None else _key(text)
        if (kind, modern) not in self._places:
            entries = self.of(modern=modern).lists[kind]
            self._places[kind, modern] = {entry.key: at for at, entry in enumerate(entries)}
        at = None if key is None else self._places[kind, modern].get(key)
        if key is None or at is None or self._cursor(kind, key) != text:
            raise ProtocolError(
                Code.INVALID_PARAMS,
                "Invalid cursor: it does not belong to this list, or the list has changed; "
                "start again without one",
            )
        return at + 1

    def _cursor(self, kind: str, key: str) -> str:
        name = key.encode("utf-8", "surrogatepass")
        scope = f"{self.endpoint}\0{kind}\0".encode()
        checksum = hashlib.sha256(scope + name).digest()[:CHECKSUM_BYTES]
        return base64.urlsafe_b64encode(checksum + name).decode("ascii").rstrip("=")


def _definition(kind: str, entry: ListEntry, *, bare: bool) -> bytes:
    """Return the definition as it came, except for its name. `bare`: without an output schema,
    because clients cannot read it, or refuse a short result in place of a kept one that does not
    fit it."""
    raw = entry.item.raw
    another = entry.key != entry.item.key
    bare = bare and kind == "tools" and b'"outputSchema"' in raw
    if not another and not bare:
        return raw
    members = codec.level(raw)
    if bare:
        members.pop("outputSchema", None)
    if another:
        members[KEYS[kind]] = Raw(codec.dump(entry.key))
    return codec.dump(members)


def _key(cursor: str) -> str | None:
    """Return the item that a cursor claims to name; only making the cursor again proves the
    claim."""
    try:
        data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return data[CHECKSUM_BYTES:].decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return None
