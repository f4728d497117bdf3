"""Views: the tools in view beside the built-in tools, and the orders that change a view.

Owns: the owner of a view, its content and size, tool sets, orders, also about scripts, outcomes,
and the messages between a front and the supervisor about them. Never: deciding on an order (the
supervisor's `views/ledger`), building lists (`catalog/catalog`, `catalog/exposure`), the names of
the built-in tools (`builtin_definitions`), scripts themselves (`saved_scripts`).

A front asks; the supervisor decides, stores, notifies all fronts, and waits until each of them has
new lists. Only then clients are notified and the client that asked is answered: a client that hears
of a change finds it in the list of every front.
"""

import re
from typing import Literal, TypeVar

from msgspec import Struct, structs

from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.code_runs import Language
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.saved_scripts import Script

Pair = tuple[str, str]
"""Identity of a tool: its server, and the name that the server gives it."""
Exposure = Literal["all", "toolset", "servers", "search", "code"]
"""How much of an endpoint is in view at first: everything, or only the built-in tools, until a tool
set is equipped, a server is activated or a tool is loaded. With `code` no tool of a server comes
into view; code calls them."""

TOOLS_MAX = 2000
"""Maximum tools of one view or tool set: far more than any client takes; it bounds the storage."""
TOOLSETS_MAX = 1000
"""Maximum tool sets of one workspace."""
NAME_CHARACTERS_MAX = 64
"""Maximum characters of a tool set's name."""
DESCRIPTION_CHARACTERS_MAX = 1024
"""Maximum characters of a tool set's description."""


class ViewOwner(Struct, frozen=True, array_like=True, gc=False):
    """Owner of a view: one principal on one endpoint, or one session of it, as `view_scope` says,
    if `session` is set."""

    endpoint: str
    principal: str
    session: str = ""


class ViewContent(Struct, frozen=True, omit_defaults=True):
    """Content of a view beside the built-in tools. `toolset`: name of the equipped tool set; then
    `tools` are its tools. `servers`: all servers whose tools are in view. `own`: the session's own
    view is empty, whatever its principal sees."""

    tools: tuple[Pair, ...] = ()
    servers: tuple[str, ...] = ()
    toolset: str = ""
    own: bool = False


def within(view: ViewContent, exposure: Exposure) -> ViewContent:
    """Return the part of a view that counts under an exposure: the part that its built-in tools can
    change, because a client could not take the rest out. The rest comes back with its exposure."""
    if exposure in ("toolset", "search"):
        return structs.replace(view, servers=()) if view.servers else view
    if exposure in ("all", "code"):
        return ViewContent()
    return structs.replace(view, tools=(), toolset="") if view.tools or view.toolset else view


class ViewStats(Struct, frozen=True, gc=False):
    """Figures of one view's list of tools at this moment. `session`: a word for the session, if the
    view is of one session alone; `toolset`: the equipped tool set; `tools`, `tokens`: how many are
    in the list, built-in tools included; `offered`, `everything`: number of all tools behind the
    endpoint, and their tokens. Tokens are estimated."""

    endpoint: str
    exposure: Exposure
    principal: str
    session: str
    toolset: str
    tools: int
    tokens: int
    offered: int
    everything: int


class ToolSet(Struct, frozen=True):
    """Named choice of tools across servers. `created`, `updated`: seconds since the epoch."""

    name: str
    tools: tuple[Pair, ...]
    description: str = ""
    created: float = 0.0
    updated: float = 0.0


# --- orders -----------------------------------------------------------------------------------


class Order(Struct, frozen=True, tag=True):
    """Root of the orders; each changes a view, the tool sets or the scripts in one step. The tag is
    the class name."""


class Equip(Order, frozen=True):
    """Bring the tools of this set into view, and take everything else out. Fails while another
    order for this view is carried out."""

    toolset: str


class Unequip(Order, frozen=True):
    """Take everything but the built-in tools out of view. Waits for its turn."""


class Activate(Order, frozen=True):
    """Bring all tools of this server into view."""

    server: str


class Deactivate(Order, frozen=True):
    """Take all tools of this server out of view; the server runs on."""

    server: str


class Load(Order, frozen=True):
    """Bring these tools into view as well."""

    tools: tuple[Pair, ...]


class Unload(Order, frozen=True):
    """Take these tools out of view."""

    tools: tuple[Pair, ...]


class Build(Order, frozen=True):
    """Create a tool set. `replace`: it may replace one of the same name. `equip`: equip it at
    once."""

    toolset: str
    tools: tuple[Pair, ...]
    description: str = ""
    equip: bool = False
    replace: bool = False


class Save(Order, frozen=True):
    """Save the loaded tools of this view as a tool set, in place of one of the same name."""

    toolset: str
    description: str = ""


class Amend(Order, frozen=True):
    """Add tools to a tool set and remove tools; views in which it is equipped follow."""

    toolset: str
    add: tuple[Pair, ...] = ()
    remove: tuple[Pair, ...] = ()


class Delete(Order, frozen=True):
    """Delete a tool set. Views in which it is equipped do not show its tools any more."""

    toolset: str


class SaveScript(Order, frozen=True):
    """Save a version of a script. Members that are None stay as in the version before."""

    script: str
    code: str
    language: Language | None = None
    description: str | None = None
    parameters: str | None = None
    expose: bool | None = None


class DeleteScript(Order, frozen=True):
    """Delete a script with all of its versions."""

    script: str


AnyOrder = (
    Equip | Unequip | Activate | Deactivate | Load | Unload | Build | Save
    | Amend | Delete | SaveScript | DeleteScript
)  # fmt: skip


class OrderOutcome(Struct, frozen=True):
    """Outcome of an order. `error`: empty, or a sentence that says why nothing was changed;
    `before`, `after`: the view; `toolset`, `script`: those of the order, as they are now."""

    error: str = ""
    before: ViewContent = ViewContent()
    after: ViewContent = ViewContent()
    toolset: ToolSet | None = None
    script: Script | None = None


# --- messages ---------------------------------------------------------------------------------


class ViewOrder(Struct, frozen=True):
    """Content of `OrderRequest`: an order, and the view that it is for."""

    whose: ViewOwner
    order: AnyOrder


class OrderRequest(Message, frozen=True, kw_only=True):
    """From a front: carry out an order. Descriptor: blob with a `ViewOrder`. `ticket`: chosen by
    the front, comes back with the outcome."""

    ticket: int


class OrderReply(Message, frozen=True, kw_only=True):
    """To the front that asked, after `DisclosureUpdate` if anything changed. Descriptor: blob with
    an `OrderOutcome`."""

    ticket: int


class DisclosureUpdate(Message, frozen=True, kw_only=True):
    """To a front: what is in view now, and the tool sets. Descriptor: blob with `DisclosureState`
    if it is `whole`, else with `DisclosureDelta`. `number`: comes back with `DisclosureApplied`; 0:
    the supervisor does not wait for `DisclosureApplied`."""

    number: int = 0
    whole: bool = True


class DisclosureApplied(Message, frozen=True, kw_only=True):
    """From a front: its lists are as `DisclosureUpdate` with this number wants them; it has not
    notified clients yet."""

    number: int


class ServerListsChanged(Message, frozen=True, kw_only=True):
    """From a front: servers have changed its lists, and it has not notified clients yet; begin a
    round. `number`: of the last round that it has carried out; the next round has the news."""

    number: int


class AnnounceLists(Message, frozen=True, kw_only=True):
    """To a front: the lists of all fronts are as `DisclosureUpdate` with this number wants them;
    notify the clients."""

    number: int


class ListsAnnounced(Message, frozen=True, kw_only=True):
    """From a front: it has carried out `AnnounceLists` with this number."""

    number: int


class DisclosureState(Struct, frozen=True):
    """All views that are not empty, all tool sets and the newest versions of all scripts, both in
    the order of their names. A view, tool set or script that is missing here is gone."""

    views: tuple[tuple[ViewOwner, ViewContent], ...] = ()
    toolsets: tuple[ToolSet, ...] = ()
    scripts: tuple[Script, ...] = ()


class DisclosureDelta(Struct, frozen=True):
    """Differences from before. `views`: new contents, each with the owners of the views that have
    it; `put`: tool sets that are new or changed; `drop`: names of the tool sets that are gone;
    `scripts`, `drop_scripts`: the same of scripts."""

    views: tuple[tuple[ViewContent, tuple[ViewOwner, ...]], ...] = ()
    put: tuple[ToolSet, ...] = ()
    drop: tuple[str, ...] = ()
    scripts: tuple[Script, ...] = ()
    drop_scripts: tuple[str, ...] = ()


def shift(before: DisclosureState, after: DisclosureState) -> DisclosureDelta:
    """Compute the differences. Views are compared by identity first, which is quick for thousands
    of views when few of them changed."""
    old = dict(before.views)
    groups: dict[ViewContent, list[ViewOwner]] = {}
    for whose, view in after.views:
        old_view = old.pop(whose, None)
        if old_view is not view and old_view != view:
            groups.setdefault(view, []).append(whose)
    if old:
        groups[ViewContent()] = list(old)
    views = tuple((view, tuple(those)) for view, those in groups.items())
    return DisclosureDelta(
        views,
        *_news(before.toolsets, after.toolsets),
        *_news(before.scripts, after.scripts),
    )


_Kept = TypeVar("_Kept", ToolSet, Script)


def _news(
    before: tuple[_Kept, ...], after: tuple[_Kept, ...]
) -> tuple[tuple[_Kept, ...], tuple[str, ...]]:
    """Return those that are new or changed, and the names of those that are gone."""
    remaining = {saved.name: saved for saved in before}
    put = tuple(saved for saved in after if remaining.pop(saved.name, None) is not saved)
    return put, tuple(remaining)


def with_full_name(order: AnyOrder, workspace: str) -> AnyOrder:
    """Return the order with the full name of its tool set or script, which belongs to this
    workspace."""
    if isinstance(order, Equip | Build | Save | Amend | Delete):
        return structs.replace(order, toolset=process_names.within(workspace, order.toolset))
    if isinstance(order, SaveScript | DeleteScript):
        return structs.replace(order, script=process_names.within(workspace, order.script))
    return order


def with_label(saved: _Kept) -> _Kept:
    """Return the tool set or script under its name within its workspace."""
    return structs.replace(saved, name=process_names.label(saved.name))


_SEPARATOR = re.compile(r"__|[./]")


def format_pair(pair: Pair) -> str:
    """Return a tool as people write it, whatever an endpoint calls it: `git.status`."""
    return f"{pair[0]}.{pair[1]}"


def read(text: str) -> Pair | None:
    """Return the tool that a text names, as `git.status`, `git/status` or `git__status`; None if it
    cannot name one. The name of a server never has what separates it from its tool."""
    parts = _SEPARATOR.split(text, maxsplit=1)
    return (parts[0], parts[1]) if len(parts) > 1 and all(parts) else None


def is_named(text: str, server: str, tool: str, exposed: str) -> bool:
    """Whether a text names this tool of a server, which clients know as `exposed`."""
    pair = read(text)
    return text == exposed or (pair is not None and pair in ((server, tool), read(exposed)))
