"""Which tools somebody means who writes their names.

Owns: reading exposed names and namespaced ones (`git.status`), and the words about names that are
nobody's, with those that are like them. Never: whether a tool is there just now, or in view.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.builtin_tools.builtin import ToolContext
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.ipc.disclosure import Pair, read

MISSING_TOLD_MAX = 5
"""Names that are nobody's, in one answer."""
EXPLAINED_MAX = 2
"""Of them, those for which others are looked for that are like them."""
ALIKE_MAX = 3
"""Names that are told for one."""
COMPARED_MAX = 5_000
"""Tools of an endpoint that are looked at for that, so that nobody else waits for it."""
COMPARED_CHARACTERS_MAX = 128
LIKENESS_MIN = 0.5
"""Of two names, from 0 to 1: below it one is not meant by the other."""
_TELLS = {"toolset": "discover-all-tools", "search": "search_tools"}
"""The built-in tool that does, of those exposures in which tools are named."""
_NO_TOOL, _ALIKE = "there is no tool ", ", did you mean "
_OWN_NAME = 0.9
"""What it counts when somebody wrote the name without its server."""


class Picked(Struct, frozen=True):
    """`pairs`: each tool once, in the order of the names; `missing`: names that are nobody's."""

    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]


def pick(names: Iterable[str], context: ToolContext) -> Picked:
    """An exposed name goes before a namespaced one. What is hidden is nobody's."""
    pairs: dict[Pair, None] = {}
    missing: dict[str, None] = {}
    known: dict[Pair, str] | None = None
    for name in names:
        pair = None if kept(name, context) else context.pair(name)
        if pair in context.everything.hidden:
            pair = None
        if pair is None and (meant := read(name)) is not None:
            known = context.names() if known is None else known
            pair = meant if meant in known else None
        if pair is None:
            missing[name] = None
        else:
            pairs[pair] = None
    return Picked(tuple(pairs), tuple(missing))


def unknown(missing: Sequence[str], context: ToolContext) -> str:
    """What to say of names that are nobody's; a sentence without its capital and its full stop."""
    said = [
        _explained(name, context) if number < EXPLAINED_MAX else _none(name)
        for number, name in enumerate(missing[:MISSING_TOLD_MAX])
    ]
    if (rest := len(missing) - MISSING_TOLD_MAX) > 0:
        said.append(f"nor any of {rest} more")
    tells = _TELLS.get(context.spec.exposure)
    nobodys = any(one.startswith(_NO_TOOL) for one in said)
    if tells and nobodys and not any(_ALIKE in one for one in said):
        said.append(f"{tells} tells which there are")
    return "; ".join(said)


def alike(name: str, entries: Sequence[ListEntry]) -> list[str]:
    """The exposed names that are most like this one, the likest first."""
    text = _squeezed(name)
    if not text:
        return []
    wanted = frozenset(text[at : at + 2] for at in range(max(1, len(text) - 1)))
    scored = [
        (-likeness, entry.key)
        for entry in entries[:COMPARED_MAX]
        if (likeness := _likeness(wanted, entry)) >= LIKENESS_MIN
    ]
    return [key for _, key in sorted(scored)[:ALIKE_MAX]]


def kept(name: str, context: ToolContext) -> str:
    """Why nobody gets the tool of this name, exposed or namespaced; empty if that is not so."""
    owner = context.everything.tool_named(name)
    if owner is not None:
        return owner.kept
    meant = read(name)
    return "" if meant is None else context.everything.kept.get(meant, "")


def _explained(name: str, context: ToolContext) -> str:
    if why := kept(name, context):
        return why
    meant = read(name)
    if meant is not None and meant[0] in context.everything.unknown:
        return f"nothing is known yet of the tools of {tool_text.plain(meant[0])}"
    found = alike(name, context.everything.offered)
    return _none(name) + (f"{_ALIKE}{tool_text.told(found)}?" if found else "")


def _none(name: str) -> str:
    return f"{_NO_TOOL}{tool_text.plain(name)!r} behind this endpoint"


def _likeness(wanted: frozenset[str], entry: ListEntry) -> float:
    own, exposed = _squeezed(entry.item.key), _squeezed(entry.key)
    return max(_share(wanted, exposed), _OWN_NAME * _share(wanted, own))


def _share(wanted: frozenset[str], text: str) -> float:
    """How many of these pairs of neighbouring letters are in the text, of all pairs in both."""
    both = 0
    for pair in wanted:
        if pair in text:
            both += 1
    return 2 * both / (len(wanted) + max(1, len(text) - 1))


def _squeezed(name: str) -> str:
    """Whatever stands between words."""
    return name[:COMPARED_CHARACTERS_MAX].lower().replace("_", "").replace("-", "").replace(".", "")
