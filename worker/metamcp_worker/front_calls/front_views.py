"""Views of a front: the view of each principal or session, and which views to build again.

Owns: building views when a server, the configuration or the tools shown in them change, and finding
out whose lists have really changed. Never: the contents of a view (`views`, `exposure`), deciding
on the tools that are shown (the supervisor), sending.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from weakref import WeakValueDictionary

from metamcp_worker.access import gate
from metamcp_worker.builtin_tools import (
    code_tools,
    search_tools,
    servers_tools,
    toolset_tools,
)
from metamcp_worker.builtin_tools.builtin import ToolFamily, tools_of_features
from metamcp_worker.builtin_tools.search_index import Indexes
from metamcp_worker.catalog.catalog import Catalog, ListEntry, MergedCatalog
from metamcp_worker.catalog.exposure import OWN, EndpointLists
from metamcp_worker.catalog.views import PageCache, View
from metamcp_worker.front_calls.stats import ListTokens
from metamcp_worker.guard.guard_rules import GuardRules
from metamcp_worker.guard.policies import Policies, PolicyNote
from metamcp_worker.ipc import builtin_definitions, process_names
from metamcp_worker.ipc.disclosure import Exposure, ViewContent, ViewOwner, ViewStats, within
from metamcp_worker.ipc.saved_scripts import Script
from metamcp_worker.ipc.server_catalog import KINDS, ServerCatalogue, gateway_id
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec
from metamcp_worker.search.index import Index

PRINCIPALS_MAX = 4096
"""Maximum number of views kept for principals other than the local one; beyond this limit, a view
is built again each time, unless it shows something."""
OTHERS = ""
"""Principal of the view that stands for those of all principals beyond this limit, which are alike.
No client has this name."""

Changed = Mapping[ViewOwner, frozenset[str]]
"""Kinds of the lists that have changed, by owner."""

_NOTHING = ViewContent()
_NO_KINDS: frozenset[str] = frozenset()


class Viewers:
    """Views of all endpoints. A view belongs to a principal, or to one session that has shown tools
    of its own. Equal views share their contents. `local`: views of the user of this machine, by
    endpoint."""

    def __init__(self) -> None:
        self._catalog = Catalog()
        self.indexes = Indexes()
        self._exposed: dict[str, Sequence[ListEntry]] = {}
        self._version = self._gateway = ""
        self._endpoints: dict[str, EndpointSpec] = {}
        self._merged: dict[str, MergedCatalog] = {}
        self._opened: dict[str, _Opened] = {}
        self._shown: dict[ViewOwner, ViewContent] = {}
        self._scripts: Mapping[str, Mapping[str, Script]] = {}
        """Scripts that are tools, by workspace and name."""
        self._views: dict[ViewOwner, View] = {}
        self.local: dict[str, View] = {}
        self._alike: WeakValueDictionary[_Like, View] = WeakValueDictionary()
        self._shelf = PageCache()
        self._stale: set[str] = set()
        self._touched: set[ViewOwner] = set()
        self._list_tokens = ListTokens()
        self._noted: list[str] = []
        self._withheld: object = None
        """Withheld things of the configuration that the views are of."""
        self._failed: dict[str, PolicyNote] = {}
        """Policies that failed while lists were built; see `GuardRules.failures`."""
        self.fails: Callable[[PolicyNote], None] = lambda note: None
        self.build: Callable[[], object] = self.refresh
        """Calls `refresh`, and announces whose lists have changed."""
        self.deferred = False
        """Whether stale views are built when somebody asks for a view."""

    def get(self, endpoint: str, principal: str = gate.LOCAL) -> View | None:
        """Return the view of a principal; None if the endpoint is unknown or not built yet."""
        if self.deferred:
            self.build()
        if principal == gate.LOCAL:
            return self.local.get(endpoint)
        if endpoint not in self._merged:
            return None
        whose = ViewOwner(endpoint, principal)
        view = self._views.get(whose)
        if view is None:
            view = self._build(whose)
            others = ViewOwner(endpoint, OTHERS)
            if len(self._views) < PRINCIPALS_MAX:
                self._views[whose] = view
            elif others not in self._views:
                self._views[others] = self._build(others)
        return view

    def own(self, view: View, session: str) -> View:
        """Return the view of this session. `view`: of its principal, returned if the session has
        no view of its own."""
        return self._views.get(ViewOwner(view.endpoint, view.principal, session), view)

    def find_changed_kinds(self, changed: "Changed", whose: ViewOwner) -> frozenset[str]:
        """Return the kinds of lists whose change the owner of this view has to hear of. `changed`:
        result of the last `refresh`."""
        if whose.session and (whose in changed or whose in self._views):
            return changed.get(whose, _NO_KINDS)
        principal = ViewOwner(whose.endpoint, whose.principal)
        if principal not in self._views:
            principal = ViewOwner(whose.endpoint, OTHERS)
        return changed.get(principal, _NO_KINDS)

    def alone(self, server: str, kinds: Iterable[str]) -> Changed:
        """Return changes of these kinds of lists, for the views that show all of this server and no
        other server."""
        specs = self._endpoints.values()
        names = {
            spec.name for spec in specs if spec.exposure == "all" and spec.servers == (server,)
        }
        return {whose: frozenset(kinds) for whose in self._views if whose.endpoint in names}

    def find_merged(self, endpoint: str) -> MergedCatalog:
        """Return everything behind an endpoint, in view or not. The endpoint must be served."""
        return self._merged[endpoint]

    def rules(self, endpoint: str) -> GuardRules:
        """Return the rules for clients of an endpoint, which must be served."""
        return self._catalog.rules.at(self._endpoints[endpoint])

    def index(self, endpoint: str) -> Index:
        """Return the index over everything behind the endpoint; empty if it has no search."""
        return self.indexes.of(endpoint)

    def index_for_now(self, endpoint: str) -> None:
        """Index what is behind an endpoint without a search, until its lists change."""
        if not self._endpoints[endpoint].needs_index:
            self.indexes.update(endpoint, self._merged[endpoint].parts)

    def is_listed(self, server: str) -> bool:
        """Whether the tools of this server are part of the lists now."""
        return self._catalog.is_listed(server)

    def stats(self) -> tuple[ViewStats, ...]:
        """Return figures of what is in view now."""
        return self._list_tokens.stats(self._views, self._merged)

    def configure(self, spec: FrontSpec) -> None:
        self._version = spec.version
        self._gateway = gateway_id(spec.handle_key) if spec.handle_key else ""
        before, self._endpoints = (
            self._endpoints,
            {endpoint.name: endpoint for endpoint in spec.endpoints},
        )
        reasons = {(server, tool): reason for server, tool, reason in spec.quarantined}
        self._catalog.keep_back(reasons, frozenset(spec.held))
        if not self._catalog.rules.like(spec.consent, spec.policies, spec.middleware):
            policies = Policies(spec.policies)
            self._catalog.rules = GuardRules(spec.consent, policies, middleware=spec.middleware)
            self._failed, before = {}, {}
        withheld = spec.quarantined, spec.held, spec.version
        if withheld != self._withheld:
            self._withheld, before = withheld, {}
        self._stale.update(
            name
            for name in (*self._endpoints, *self._merged)
            if name not in before or before[name] != self._endpoints.get(name)
        )

    def put(self, server: str, catalogue: ServerCatalogue) -> None:
        self._catalog.put(server, catalogue)
        self._touch(server)

    def servers(self) -> Sequence[str]:
        """Return the names of all servers that offer something."""
        return self._catalog.servers()

    def tools(self, server: str) -> Sequence[bytes]:
        """Return the raw definitions of a server's tools, as the server made them."""
        return self._catalog.tools(server)

    def retool(self, server: str, tools: Sequence[bytes] | None, why_none: str = "") -> None:
        """Show these tools of a server in place of its own; None: its own. `why_none`: a sentence
        why none is shown; empty if they are."""
        if self._catalog.retool(server, tools, why_none):
            self._touch(server)

    def set_listed(self, server: str, listed: bool) -> None:
        if self._catalog.set_listed(server, listed):
            self._touch(server)

    def forget(self, server: str) -> None:
        self._catalog.forget(server)
        self._touch(server)

    def show(self, contents: Mapping[ViewOwner, ViewContent]) -> None:
        """Set what all views show from the next `refresh` on; other views show nothing."""
        emptied = [((whose,), _NOTHING) for whose in self._shown if whose not in contents]
        self.shift(
            (content, those)
            for those, content in (*emptied, *(((w,), s) for w, s in contents.items()))
        )

    def shift(self, changes: Iterable[tuple[ViewContent, Iterable[ViewOwner]]]) -> None:
        """Set what these views show from the next `refresh` on; other views stay as they are."""
        for content, views in changes:
            for whose in views:
                if self._shown.get(whose, _NOTHING) == content:
                    continue
                self._touched.add(whose)
                if content == _NOTHING:
                    del self._shown[whose]
                else:
                    self._shown[whose] = content

    def keep(self, scripts: Mapping[str, Mapping[str, Script]]) -> None:
        """Set the scripts by workspace and name; those that are tools are in lists from the next
        `refresh` on."""
        before = self._scripts
        self._scripts = {
            workspace: {name: script for name, script in those.items() if script.expose}
            for workspace, those in scripts.items()
        }
        for name, endpoint in self._endpoints.items():
            old, new = (
                by_workspace.get(endpoint.workspace, {}) for by_workspace in (before, self._scripts)
            )
            if endpoint.code is not None and old != new:
                self._stale.add(name)

    def defer(self) -> None:
        """Leave views that are stale because of a server to the next `get` or `refresh`; `local`
        has none of them until then. Views that show other tools are built at once."""
        self.deferred = bool(self._stale)
        for name in self._stale:
            self.local.pop(name, None)
        if self._touched:
            self.build()

    def refresh(self) -> "Changed":
        """Build stale views, and return the owners and kinds of lists that have changed. Lists of a
        new endpoint are not among them, because no client has seen them before."""
        self.deferred = False
        stale, self._stale = self._stale, set()
        touched, self._touched = self._touched, set()
        for name in stale:
            if name in self._endpoints:
                spec = self._endpoints[name]
                reserved = builtin_family(spec).tools.keys()
                earlier = self._merged.get(name)
                merged = self._merged[name] = self._catalog.merge(spec, reserved)
                earlier_notes = earlier.notes if earlier is not None else ()
                self._noted += [
                    f"endpoint {name}: {n}" for n in merged.notes if n not in earlier_notes
                ]
                opened = older = self._open(merged, spec, reserved)
                if self._catalog.two(spec):
                    merged = self._catalog.merge(spec, reserved, legacy=True)
                    older = self._open(merged, spec, reserved)
                self._opened[name] = opened, older
                self._note_failures(self._catalog.rules.at(spec).failures)
                if spec.needs_index:
                    self.indexes.update(name, merged.parts, self.scripts_of(name))
                else:
                    self.indexes.drop(name)
            else:
                self._merged.pop(name, None)
                self._catalog.unmerge(name)
                self._exposed.pop(name, None)
                self.indexes.drop(name)
                self._opened.pop(name, None)
        affected = dict.fromkeys((*self._of_endpoints(stale), *touched))
        before = {whose: self._find_view(whose) for whose in affected}
        own = [whose for whose in affected if whose.session and whose in self._views]
        for whose in affected:
            self._place(whose)
        # A view that is gone is named too, with nothing: the changes of its principal's view are
        # not for the session.
        removed = {whose: _NO_KINDS for whose in own if whose not in self._views}
        return removed | dict(_find_changes(before, self._find_view))

    def _note_failures(self, failures: Mapping[str, PolicyNote]) -> None:
        """Report policies that failed, each once."""
        for sentence, note in failures.items():
            if sentence not in self._failed:
                self._failed[sentence] = note
                self._noted.append(sentence)
                self.fails(note)

    def _open(
        self, merged: MergedCatalog, spec: EndpointSpec, reserved: Collection[str]
    ) -> EndpointLists:
        """Put the gateway's own tools, and scripts that are tools, in front of a merge. `reserved`:
        names of the built-in tools."""
        family, code = builtin_family(spec), spec.code is not None
        own = [ListEntry(item.key, item, OWN) for item in family.items]
        if code and spec.exposure != "all" and (scripts := self._scripts.get(spec.workspace)):
            taken = {*reserved, *merged.tools, *merged.aliases}
            exposed = code_tools.build_script_entries(scripts, spec.naming, taken)
            own += exposed
            self._exposed[merged.endpoint] = exposed
        else:
            self._exposed.pop(merged.endpoint, None)
        return EndpointLists(merged, spec, own, family.tools, family.guide)

    def scripts_of(self, endpoint: str) -> Sequence[ListEntry]:
        """Return the scripts that are tools of their own at this endpoint."""
        return self._exposed.get(endpoint, ())

    def take_omissions(self) -> list[str]:
        """Return sentences about everything that merges had to leave out since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def _of_endpoints(self, names: Collection[str]) -> Iterator[ViewOwner]:
        """Yield the owners of all views of these endpoints, of future views as well."""
        if names:
            yield from (ViewOwner(name, gate.LOCAL) for name in names)
            yield from (whose for whose in self._views if whose.endpoint in names)
            yield from (whose for whose in self._shown if whose.endpoint in names)

    def _find_view(self, whose: ViewOwner) -> View | None:
        """Return the view that this owner sees now: a session without its own view sees the view of
        its principal."""
        return self._views.get(whose) or self._views.get(ViewOwner(whose.endpoint, whose.principal))

    def _place(self, whose: ViewOwner) -> None:
        """Build this view, or remove it if it is not wanted any more."""
        served = whose.endpoint in self._merged
        if whose.session:
            own = served and self._endpoints[whose.endpoint].per_session
            needed = own and whose in self._shown
        else:
            needed = served
        if needed:
            view = self._views[whose] = self._build(whose)
            if whose in self._shown and self._shown[whose] == view.shown:
                self._shown[whose] = view.shown  # one value for all that are equal
        else:
            self._views.pop(whose, None)
        if whose == (local := ViewOwner(whose.endpoint, gate.LOCAL)):
            self.local.pop(whose.endpoint, None)
            if local in self._views:
                self.local[whose.endpoint] = self._views[local]

    def _of(self, whose: ViewOwner) -> ViewContent:
        exposure = self._endpoints[whose.endpoint].exposure
        return within(self._shown.get(whose, _NOTHING), exposure)

    def _build(self, whose: ViewOwner) -> View:
        spec, content = self._endpoints[whose.endpoint], self._of(whose)
        opened = self._opened[whose.endpoint]
        like = (opened, whose.principal == gate.LOCAL, content)
        alike = self._alike.get(like)
        if alike is None:
            content = opened[0].share_pairs(content)
            like = (opened, whose.principal == gate.LOCAL, content)
            merged, legacy = (variant.select_visible(content) for variant in opened)
            pages = self._shelf.pages()
        elif alike.principal == whose.principal:
            return alike
        else:
            merged, legacy, content, pages = alike.merged, alike.legacy, alike.shown, alike.pages
        view = View(
            merged, spec, self._version, whose.principal, content, pages, legacy, self._gateway
        )
        self._alike[like] = view
        return view

    def _touch(self, server: str) -> None:
        base = process_names.base(server)
        self._stale.update(
            name for name, endpoint in self._endpoints.items() if base in endpoint.servers
        )


_Opened = tuple[EndpointLists, EndpointLists]
"""Endpoint made ready for clients of the modern era, and for clients of the earlier era; twice the
same if no server has two catalogues."""
_Like = tuple[_Opened, bool, ViewContent]
"""Key of views that show the same: their merge, whether the principal is local, what is shown."""


def _find_changes(
    before: Mapping[ViewOwner, View | None], seen: Callable[[ViewOwner], View | None]
) -> Iterator[tuple[ViewOwner, frozenset[str]]]:
    for whose, old in before.items():
        new = seen(whose)
        if old is None or new is None or old is new:
            continue
        kinds = frozenset(kind for kind in KINDS if old.hashes(kind) != new.hashes(kind))
        if kinds:
            yield whose, kinds


_NO_FAMILY = ToolFamily({}, (), "")
_FAMILIES: Mapping[Exposure, ToolFamily] = {
    "servers": servers_tools.FAMILY,
    "toolset": toolset_tools.FAMILY,
    "search": search_tools.FAMILY,
    "code": code_tools.FAMILY,
}


def builtin_family(spec: EndpointSpec) -> ToolFamily:
    """Return the built-in tools of an endpoint, those of its exposure and of further families.
    Tools of servers cannot have their names there."""
    return _family(spec.exposure, spec.code is not None, spec.builtins)


@cache
def _family(exposure: Exposure, code: bool, builtins: tuple[str, ...]) -> ToolFamily:
    search = code and exposure == "search"
    own = code_tools.SEARCH_FAMILY if search else _FAMILIES.get(exposure, _NO_FAMILY)
    if not builtins:
        return own
    families = (name for name in builtin_definitions.BUILTINS if name in builtins)
    more = [tool for tool in tools_of_features(families) if tool.name not in own.tools]
    tools = {**own.tools, **{tool.name: tool for tool in more}}
    return ToolFamily(tools, (*own.items, *(tool.item() for tool in more)), own.guide)
