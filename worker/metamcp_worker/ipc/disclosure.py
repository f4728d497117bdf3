"""What is in view beside the built-in tools: the values, and the orders that change them.

Owns: whose view it is, what is shown in it and how much that is, tool sets, orders, outcomes, and
the messages between a front and the supervisor about them. Never: deciding on an order (the
supervisor's `remembered`), building lists (`front/catalog`, `front/exposing`), what the built-in
tools are called (`builtin_definitions`).

A front asks, the supervisor decides, remembers, tells all fronts, and waits until each of them has
new lists. Only then clients are told, and who asked is answered: whoever hears of a change finds it
in the list, whichever front it asks.
"""

from typing import Literal

from msgspec import Struct, structs

from metamcp_worker.ipc.message_base import Message

Pair = tuple[str, str]
"""Of a tool: its server, and the server's own name of it."""
Exposure = Literal["all", "toolset", "servers", "search"]
"""How much of an endpoint is in view at first: everything, or nothing but the built-in tools, until
a tool set is equipped, a server is activated, a tool is loaded."""

TOOLS_MAX = 2000
"""In one view or tool set: far more than any client takes, and a bound for what is stored."""
TOOLSETS_MAX = 1000
"""Of one workspace."""
NAME_CHARACTERS_MAX = 64
"""Of a tool set."""
DESCRIPTION_CHARACTERS_MAX = 1024
"""Of a tool set."""


class ViewOwner(Struct, frozen=True, array_like=True, gc=False):
    """A view is one principal's on one endpoint; of one session only (`view_scope`), if that is
    named."""

    endpoint: str
    principal: str
    session: str = ""


class Shown(Struct, frozen=True, omit_defaults=True):
    """What is in view beside the built-in tools. `toolset`: the name of the one that is equipped,
    whose tools `tools` are then; `servers`: all whose tools are in view; `own`: nothing is in view
    of one session, whatever its principal sees."""

    tools: tuple[Pair, ...] = ()
    servers: tuple[str, ...] = ()
    toolset: str = ""
    own: bool = False


def within(shown: Shown, exposure: Exposure) -> Shown:
    """What of this is in view under that exposure: what its built-in tools can change, as nobody
    could take anything else out. The rest comes back with the exposure that it is of."""
    if exposure in ("toolset", "search"):
        return structs.replace(shown, servers=()) if shown.servers else shown
    if exposure == "all":
        return Shown()
    return structs.replace(shown, tools=(), toolset="") if shown.tools or shown.toolset else shown


class ViewStats(Struct, frozen=True, gc=False):
    """What one view has in its list of tools at this moment. `session`: a word that stands for it,
    where it is the view of one session alone; `toolset`: the one that is equipped; `tools`,
    `tokens`: in the list, built-in ones among them; `offered`, `everything`: how many tools there
    are behind the endpoint, and their tokens. Tokens are estimated."""

    endpoint: str
    principal: str
    session: str
    exposure: Exposure
    toolset: str
    tools: int
    tokens: int
    offered: int
    everything: int


class ToolSet(Struct, frozen=True):
    """A named choice of tools across servers. `created`, `updated`: seconds since the epoch."""

    name: str
    tools: tuple[Pair, ...]
    description: str = ""
    created: float = 0.0
    updated: float = 0.0


# --- orders -----------------------------------------------------------------------------------


class Order(Struct, frozen=True, tag=True):
    """Root of what changes a view, or the tool sets, as one; the tag is the class name."""


class Equip(Order, frozen=True):
    """The tools of this set come into view, and nothing else stays there. Fails while another order
    for this view is carried out."""

    toolset: str


class Unequip(Order, frozen=True):
    """Nothing but the built-in tools is in view. Waits for its turn."""


class Activate(Order, frozen=True):
    """All tools of this server come into view."""

    server: str


class Deactivate(Order, frozen=True):
    """They leave it; the server runs on."""

    server: str


class Load(Order, frozen=True):
    """These tools come into view as well."""

    tools: tuple[Pair, ...]


class Unload(Order, frozen=True):
    """They leave it."""

    tools: tuple[Pair, ...]


class Build(Order, frozen=True):
    """A new tool set, unless `replace` allows another one for an old name. `equip`: at once."""

    toolset: str
    tools: tuple[Pair, ...]
    description: str = ""
    equip: bool = False
    replace: bool = False


class Save(Order, frozen=True):
    """What is loaded in this view becomes a tool set, new or in place of the one of that name."""

    toolset: str
    description: str = ""


class Amend(Order, frozen=True):
    """A tool set gets tools and loses tools; views in which it is equipped follow."""

    toolset: str
    add: tuple[Pair, ...] = ()
    remove: tuple[Pair, ...] = ()


class Delete(Order, frozen=True):
    """A tool set is forgotten. Views in which it is equipped show nothing of it any more."""

    toolset: str


AnyOrder = (
    Equip | Unequip | Activate | Deactivate | Load | Unload | Build | Save | Amend | Delete
)  # fmt: skip


class OrderOutcome(Struct, frozen=True):
    """What became of an order. `error`: empty, or the sentence that says why nothing was changed;
    `before`, `after`: the view; `toolset`: the one that the order was about, as it is now."""

    error: str = ""
    before: Shown = Shown()
    after: Shown = Shown()
    toolset: ToolSet | None = None


# --- messages ---------------------------------------------------------------------------------


class Wish(Struct, frozen=True):
    """The content of `Change`."""

    whose: ViewOwner
    order: AnyOrder


class Change(Message, frozen=True, kw_only=True):
    """From a front: carry out an order. Descriptor: blob with a `Wish`. `ticket`: chosen by the
    front, comes back with the outcome."""

    ticket: int


class Changed(Message, frozen=True, kw_only=True):
    """To the front that asked, behind `Disclosed` if there is anything new. Descriptor: blob with
    an `OrderOutcome`."""

    ticket: int


class Disclosed(Message, frozen=True, kw_only=True):
    """To a front: what is in view now, and the tool sets. Descriptor: blob with `Everything` if it
    is `whole`, else with `Shift`. `number`: comes back with `Applied`; 0: nobody waits for that."""

    number: int = 0
    whole: bool = True


class Applied(Message, frozen=True, kw_only=True):
    """From a front: its lists are as `Disclosed` with this number wants them, and no client was
    told so yet."""

    number: int


class News(Message, frozen=True, kw_only=True):
    """From a front: servers have changed its lists, and no client was told so yet; begin a round.
    `number`: of the last one that it has carried out; news are told with the next one."""

    number: int


class Announce(Message, frozen=True, kw_only=True):
    """To a front: the lists of all fronts are as `Disclosed` with this number wants them; tell the
    clients."""

    number: int


class Told(Message, frozen=True, kw_only=True):
    """From a front: it has carried out `Announce` with this number."""

    number: int


class Everything(Struct, frozen=True):
    """All views in which anything is shown, and all tool sets in the order of their names. What is
    not there any more is gone."""

    views: tuple[tuple[ViewOwner, Shown], ...] = ()
    toolsets: tuple[ToolSet, ...] = ()


class Shift(Struct, frozen=True):
    """What is other than before. `views`: what is shown now, and in whose views; `put`: tool sets
    that are new or other ones; `drop`: the names of those that are gone."""

    views: tuple[tuple[Shown, tuple[ViewOwner, ...]], ...] = ()
    put: tuple[ToolSet, ...] = ()
    drop: tuple[str, ...] = ()


def shift(before: Everything, after: Everything) -> Shift:
    """What leads from one to the other. Views are told apart by identity first, so that comparing
    thousands of which few changed is quick."""
    old = dict(before.views)
    groups: dict[Shown, list[ViewOwner]] = {}
    for whose, shown in after.views:
        known = old.pop(whose, None)
        if known is not shown and known != shown:
            groups.setdefault(shown, []).append(whose)
    if old:
        groups[Shown()] = list(old)
    sets = {one.name: one for one in before.toolsets}
    put = tuple(one for one in after.toolsets if sets.pop(one.name, None) is not one)
    views = tuple((shown, tuple(those)) for shown, those in groups.items())
    return Shift(views, put, tuple(sets))


def written(pair: Pair) -> str:
    """A tool as people write it, whatever an endpoint calls it: `git.status`."""
    return f"{pair[0]}.{pair[1]}"


def read(text: str) -> Pair | None:
    """The tool that somebody wrote so; None for what cannot be one. No server has a dot."""
    server, dot, tool = text.partition(".")
    return (server, tool) if server and dot and tool else None
