"""Decisions about orders: the changes of views, tool sets and scripts, or a refusal.

Owns: the rules of every order, reasons of refusals, the changes to write. Never: writing them
(`store`), when an order is carried out (`ledger_io`), whether tools exist: the front that sent the
order has checked, and a tool set is kept while a server is away.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from metamcp_worker.ipc import parameters
from metamcp_worker.ipc.disclosure import (
    DESCRIPTION_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    TOOLS_MAX,
    TOOLSETS_MAX,
    Activate,
    Amend,
    Build,
    Deactivate,
    Delete,
    DeleteScript,
    DisclosureState,
    Equip,
    Load,
    Pair,
    Save,
    SaveScript,
    ToolSet,
    Unequip,
    Unload,
    ViewContent,
    ViewOrder,
    ViewOwner,
    format_pair,
    read,
)
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.process_names import label, workspace_of
from metamcp_worker.ipc.saved_scripts import SCRIPTS_BYTES_MAX, SCRIPTS_MAX, Script, unfit, weight

VIEWS_MAX = 10_000
"""Maximum number of views with tools or servers: as many as a front has sessions."""
TOOL_CHARACTERS_MAX = 512
"""Maximum characters of the name of a tool with the name of its server: far more than models
get."""
CHARACTERS_MAX = 16 * 1024 * 1024
"""Maximum characters of the names of tools in all views and tool sets together: every front has all
of them, and gets them with each change."""
PAIRS_MAX = 65_536
"""Maximum number of shared values of tools; some may not be in any view any more."""
NAMES_TOLD_MAX = 12
"""Maximum number of names in a sentence."""
_NOTHING = ViewContent()
T = TypeVar("T", ViewContent, ToolSet)


class OrderImpossible(MetaMCPError):
    """An order cannot be carried out. The text is a sentence without a full stop."""


class Delta(Struct, frozen=True):
    """Changes of an order. `views`: changed views as they are afterwards; `put`: tool set that is
    new or changed; `drop`: name of a tool set to delete; `script`: new version of a script;
    `drop_script`: name of a script to delete."""

    views: tuple[tuple[ViewOwner, ViewContent], ...] = ()
    put: ToolSet | None = None
    drop: str = ""
    script: Script | None = None
    drop_script: str = ""


class PairInterner:
    """Shared values of tools, one for each tool in all views and tool sets. Values from clients or
    from disk are new objects each time, and thousands of views would need ten times the memory."""

    def __init__(self) -> None:
        self._known: dict[Pair, Pair] = {}

    def share_pairs(self, value: T) -> T:
        """Return an equal value that uses the known values of tools."""
        pairs = self._known
        if len(pairs) > PAIRS_MAX:
            pairs.clear()  # values in use stay as they are
        return structs.replace(
            value, tools=tuple([pairs.setdefault(pair, pair) for pair in value.tools])
        )


class Ledger:
    """All views with tools or servers, all tool sets, and the newest version of all scripts.
    `characters`: sum over the names of tools in all views and tool sets.

    A session sees what its principal sees until its first order about its view.
    """

    def __init__(self, everything: DisclosureState) -> None:
        self._pairs = PairInterner()
        self._views = {whose: self._pairs.share_pairs(view) for whose, view in everything.views}
        self._toolsets = {
            toolset.name: self._pairs.share_pairs(toolset) for toolset in everything.toolsets
        }
        self._scripts = {script.name: script for script in everything.scripts}
        self.characters = sum(map(_weight, self._views.values()))
        self.characters += sum(map(_weight, self._toolsets.values()))

    def read_everything(self) -> DisclosureState:
        toolsets = sorted(self._toolsets.values(), key=lambda toolset: toolset.name)
        scripts = sorted(self._scripts.values(), key=lambda script: script.name)
        return DisclosureState(tuple(self._views.items()), tuple(toolsets), tuple(scripts))

    def find_view(self, whose: ViewOwner) -> ViewContent:
        """Return what a view shows; for a session without a view of its own, the view of its
        principal."""
        view = self._views.get(whose)
        if view is None and whose.session:
            view = self._views.get(ViewOwner(whose.endpoint, whose.principal))
        return _NOTHING if view is None else view

    def toolset(self, name: str) -> ToolSet | None:
        return self._toolsets.get(name)

    def script(self, name: str) -> Script | None:
        return self._scripts.get(name)

    def sessions(self, words: Iterable[str]) -> list[ViewOwner]:
        """Return the views that belong to these sessions only."""
        over = frozenset(words)
        return [whose for whose in self._views if whose.session in over and whose.session]

    def decide(self, wish: ViewOrder, now: float) -> Delta:
        """Return the changes of an order, without applying them. `now`: seconds since the epoch.
        Raises OrderImpossible."""
        delta = self._decide(wish, now)
        fresh = sum(whose not in self._views and view != _NOTHING for whose, view in delta.views)
        if fresh and len(self._views) + fresh > VIEWS_MAX:
            raise OrderImpossible(
                f"{VIEWS_MAX} views have something in them, and no more can; end sessions that"
                " nobody uses, or take out of a view what nobody needs"
            )
        if (more := self._more(delta)) > 0 and self.characters + more > CHARACTERS_MAX:
            raise OrderImpossible(
                f"the tools of all views and tool sets together have more than {CHARACTERS_MAX}"
                " characters; delete some that nobody needs"
            )
        return delta

    def changes(self, delta: Delta) -> bool:
        """Whether this delta changes anything."""
        if delta.drop or (delta.put is not None and delta.put != self.toolset(delta.put.name)):
            return True
        if delta.script is not None or delta.drop_script:
            return True
        return any(self._views.get(whose, _NOTHING) != view for whose, view in delta.views)

    def _decide(self, wish: ViewOrder, now: float) -> Delta:
        whose, order = wish.whose, wish.order
        view = self.find_view(whose)
        match order:
            case Equip(name):
                return self._view(whose, _view_of_toolset(self._find_toolset(name)))
            case Unequip():
                return self._view(whose, _NOTHING)
            case Activate(server):
                servers = tuple(dict.fromkeys((*view.servers, server)))
                return self._view(whose, structs.replace(view, servers=servers))
            case Deactivate(server):
                servers = tuple(other for other in view.servers if other != server)
                return self._view(whose, structs.replace(view, servers=servers))
            case Load(tools):
                _check_tools(tools)
                return self._view(whose, _with(view, tools))
            case Unload(tools):
                return self._view(whose, _without(view, tools))
            case Build():
                return self._build_toolset(whose, order, now)
            case Save(name, description):
                if not view.tools:
                    raise OrderImpossible("nothing is loaded that could be saved")
                old = self._toolsets.get(name)
                new_description = (
                    old.description if old is not None and not description else description
                )
                return self._build_toolset(
                    whose, Build(name, view.tools, new_description, replace=True), now
                )
            case Amend():
                return self._amend_toolset(whose, order, now)
            case Delete(name):
                self._find_toolset(name)
                views = self._updated_views(name, ToolSet("", ()))
                return Delta(tuple(views.items()), drop=name)
            case SaveScript():
                return self._save_script(order, now)
            case DeleteScript(name):
                if name not in self._scripts:
                    raise OrderImpossible(self._no_script(name))
                return Delta(drop_script=name)

    def apply(self, delta: Delta) -> None:
        self.characters += self._more(delta)
        for whose, view in delta.views:
            if view == _NOTHING:
                self._views.pop(whose, None)
            else:
                self._views[whose] = self._pairs.share_pairs(view)
        if delta.put is not None:
            self._toolsets[delta.put.name] = self._pairs.share_pairs(delta.put)
        self._toolsets.pop(delta.drop, None)
        if delta.script is not None:
            self._scripts[delta.script.name] = delta.script
        self._scripts.pop(delta.drop_script, None)

    def _save_script(self, order: SaveScript, now: float) -> Delta:
        """Return a delta with the next version, or an empty one if the last version is the same."""
        name = order.script
        old = self._scripts.get(name)
        before = Script(name, 0, "") if old is None else old
        fields = {
            "code": order.code, "language": order.language, "description": order.description,
            "parameters": order.parameters, "expose": order.expose,
        }  # fmt: skip
        made = structs.replace(
            before, **{k: value for k, value in fields.items() if value is not None}
        )
        if problem := unfit(made):
            raise OrderImpossible(problem)
        if made.parameters:
            made = structs.replace(made, parameters=parameters.compact(made.parameters))
        if made == old:
            return Delta()
        workspace = workspace_of(name)
        ours = sum(workspace_of(script_name) == workspace for script_name in self._scripts)
        if old is None and ours >= SCRIPTS_MAX:
            raise OrderImpossible(
                f"there are {SCRIPTS_MAX} scripts, and no more can be kept; delete one first"
            )
        others = sum(weight(script) for script in self._scripts.values() if script is not old)
        if others + weight(made) > SCRIPTS_BYTES_MAX:
            raise OrderImpossible(
                f"all scripts together have more than {SCRIPTS_BYTES_MAX} bytes; delete some that"
                " nobody needs"
            )
        return Delta(script=structs.replace(made, version=before.version + 1, created=now))

    def _no_script(self, name: str) -> str:
        workspace = workspace_of(name)
        ours = [
            label(script_name)
            for script_name in self._scripts
            if workspace_of(script_name) == workspace
        ]
        names = _format_names(sorted(ours)) or "none yet"
        return f"no script is named {label(name)[:NAME_CHARACTERS_MAX]!r}; there are: {names}"

    def _find_toolset(self, name: str) -> ToolSet:
        toolset = self._toolsets.get(name)
        if toolset is None:
            workspace = workspace_of(name)
            ours = [
                label(toolset_name)
                for toolset_name in self._toolsets
                if workspace_of(toolset_name) == workspace
            ]
            names = _format_names(sorted(ours)) or "none yet"
            short_name = label(name)[:NAME_CHARACTERS_MAX]
            raise OrderImpossible(f"there is no tool set {short_name!r}; there are: {names}")
        return toolset

    def _more(self, delta: Delta) -> int:
        """Return the number of characters by which the delta increases `characters`."""
        views = self._views
        more = sum(
            _weight(view) - _weight(views.get(whose, _NOTHING)) for whose, view in delta.views
        )
        for name in {delta.drop, "" if delta.put is None else delta.put.name}:
            old = self._toolsets.get(name)
            more -= 0 if old is None else _weight(old)
        return more + (0 if delta.put is None else _weight(delta.put))

    def _view(self, whose: ViewOwner, view: ViewContent) -> Delta:
        if len(view.tools) > TOOLS_MAX:
            raise OrderImpossible(
                f"more than {TOOLS_MAX} tools would be in view; take some out first"
            )
        return Delta(((whose, _of(whose, view)),))

    def _build_toolset(self, whose: ViewOwner, order: Build, now: float) -> Delta:
        name = order.toolset
        old = self._toolsets.get(name)
        if old is not None and not order.replace:
            raise OrderImpossible(
                f"there is a tool set {label(name)!r} already; delete it first, or choose another"
                " name"
            )
        if old is None and len(self._toolsets) >= TOOLSETS_MAX:
            raise OrderImpossible(
                f"there are {TOOLSETS_MAX} tool sets, and no more can be kept; delete one first"
            )
        made = ToolSet(
            name,
            tuple(dict.fromkeys(order.tools)),
            order.description,
            created=now if old is None else old.created,
            updated=now,
        )
        return self._put(whose, made, equip=order.equip)

    def _amend_toolset(self, whose: ViewOwner, order: Amend, now: float) -> Delta:
        old = self._find_toolset(order.toolset)
        present, removed = frozenset(old.tools), frozenset(order.remove)
        if missing := [
            format_pair(pair) for pair in dict.fromkeys(order.remove) if pair not in present
        ]:
            raise OrderImpossible(f"the tool set {old.name!r} has no tool {_format_names(missing)}")
        remaining = (pair for pair in old.tools if pair not in removed)
        tools = tuple(dict.fromkeys((*remaining, *order.add)))
        return self._put(whose, structs.replace(old, tools=tools, updated=now), equip=False)

    def _put(self, whose: ViewOwner, made: ToolSet, *, equip: bool) -> Delta:
        _check(made)
        views = self._updated_views(made.name, made)
        if equip:
            views[whose] = _of(whose, _view_of_toolset(made))
        return Delta(tuple(views.items()), put=made)

    def _updated_views(self, name: str, now: ToolSet) -> dict[ViewOwner, ViewContent]:
        """Return the views in which this tool set is equipped, changed to the tools of `now`.
        Servers that are in view beside the tool set stay there."""
        return {
            whose: _of(whose, structs.replace(view, tools=now.tools, toolset=now.name))
            for whose, view in self._views.items()
            if view.toolset == name
        }


def _of(whose: ViewOwner, view: ViewContent) -> ViewContent:
    """Set `own` as necessary: a session has its own view from its first order on, also when the
    view is empty."""
    bare = structs.replace(view, own=False)
    return structs.replace(bare, own=bool(whose.session) and bare == _NOTHING)


def _view_of_toolset(toolset: ToolSet) -> ViewContent:
    return ViewContent(toolset.tools, toolset=toolset.name)


def _with(view: ViewContent, tools: Iterable[Pair]) -> ViewContent:
    """Add tools; with another tool, the view does not count as the equipped tool set any more."""
    all_tools = tuple(dict.fromkeys((*view.tools, *tools)))
    return view if all_tools == view.tools else structs.replace(view, tools=all_tools, toolset="")


def _without(view: ViewContent, tools: Iterable[Pair]) -> ViewContent:
    removed = frozenset(tools)
    remaining = tuple(pair for pair in view.tools if pair not in removed)
    return view if remaining == view.tools else structs.replace(view, tools=remaining, toolset="")


def _weight(value: ViewContent | ToolSet) -> int:
    """Return the number of characters of the names of all tools."""
    return sum(len(server) + len(tool) for server, tool in value.tools)


def _format_names(names: Sequence[str]) -> str:
    more = len(names) - NAMES_TOLD_MAX
    text = ", ".join(name[:TOOL_CHARACTERS_MAX] for name in names[:NAMES_TOLD_MAX])
    return text + (f" and {more} more" if more > 0 else "")


def _check(made: ToolSet) -> None:
    """Check the limits of a tool set. Raises OrderImpossible."""
    name = made.name
    if not name.strip() or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        rule = f"1 to {NAME_CHARACTERS_MAX} printable characters"
        raise OrderImpossible(f"the name of a tool set has {rule}")
    if len(made.description) > DESCRIPTION_CHARACTERS_MAX:
        rule = f"at most {DESCRIPTION_CHARACTERS_MAX} characters"
        raise OrderImpossible(f"the description of a tool set has {rule}")
    if not made.tools:
        raise OrderImpossible("a tool set has at least one tool")
    if len(made.tools) > TOOLS_MAX:
        raise OrderImpossible(f"a tool set has at most {TOOLS_MAX} tools")
    _check_tools(made.tools)


def _check_tools(tools: Iterable[Pair]) -> None:
    """Check the names of tools. Raises OrderImpossible."""
    for pair in tools:
        name = format_pair(pair)
        if read(name) != pair or len(name) > TOOL_CHARACTERS_MAX:
            form = f"server.tool, with at most {TOOL_CHARACTERS_MAX} characters"
            raise OrderImpossible(
                f"{name[:NAME_CHARACTERS_MAX]!r} is not a tool: one is written {form}"
            )
