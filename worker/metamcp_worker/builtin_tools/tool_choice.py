"""Choice of tools by the names that a client writes.

Owns: reading exposed names and namespaced ones, as `git.status`, and the words about names that no
tool has, with similar names. Never: whether a tool is available now, or in view.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.builtin_tools.builtin import ToolContext
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.ipc.disclosure import Pair, read

MISSING_TOLD_MAX = 5
"""Maximum unknown names that one answer lists."""
EXPLAINED_MAX = 2
"""Maximum unknown names of an answer for which similar names are looked for."""
ALIKE_MAX = 3
"""Maximum similar names that an answer proposes for an unknown one."""
COMPARED_MAX = 5_000
"""Maximum tools of an endpoint that are compared with a name, so that other clients do not wait."""
COMPARED_CHARACTERS_MAX = 128
LIKENESS_MIN = 0.5
"""Minimum likeness of two names, from 0 to 1, for the answer to propose the other name."""
_TELLS = {"toolset": "discover-all-tools", "search": "search_tools", "code": "search_tools"}
"""Built-in tool that lists the names of tools, for each exposure in which clients write names."""
_NO_TOOL, _ALIKE = "there is no tool ", ", did you mean "
_OWN_NAME = 0.9
"""Factor of the likeness to the name that a tool has at its server, for a client that wrote no
server; below 1, so that the exposed name counts more."""


class ChosenTools(Struct, frozen=True):
    """Chosen tools. `pairs`: each tool once, in the order of names; `missing`: unknown names."""

    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]


def pick(names: Iterable[str], context: ToolContext) -> ChosenTools:
    """Find the tools of these names: an exposed name goes before a namespaced one. The name of a
    hidden tool counts as unknown."""
    pairs: dict[Pair, None] = {}
    missing: dict[str, None] = {}
    names_by_pair: dict[Pair, str] | None = None
    for name in names:
        pair = None if find_hidden_reason(name, context) else context.pair(name)
        if pair in context.everything.hidden:
            pair = None
        if pair is None and (meant := read(name)) is not None:
            names_by_pair = context.names() if names_by_pair is None else names_by_pair
            pair = meant if meant in names_by_pair else None
        if pair is None:
            missing[name] = None
        else:
            pairs[pair] = None
    return ChosenTools(tuple(pairs), tuple(missing))


def unknown(missing: Sequence[str], context: ToolContext) -> str:
    """Return a sentence about unknown names, without its capital and its full stop."""
    clauses = [
        _explain_unknown(name, context) if number < EXPLAINED_MAX else _none(name)
        for number, name in enumerate(missing[:MISSING_TOLD_MAX])
    ]
    if (remaining := len(missing) - MISSING_TOLD_MAX) > 0:
        clauses.append(f"nor any of {remaining} more")
    tells = _TELLS.get(context.spec.exposure)
    nobodys = any(clause.startswith(_NO_TOOL) for clause in clauses)
    if tells and nobodys and not any(_ALIKE in clause for clause in clauses):
        clauses.append(f"{tells} tells which there are")
    return "; ".join(clauses)


def alike(name: str, entries: Sequence[ListEntry]) -> list[str]:
    """Return the exposed names that are most like this name, the most similar first."""
    text = _normalize_name(name)
    if not text:
        return []
    letter_pairs = frozenset(text[at : at + 2] for at in range(max(1, len(text) - 1)))
    scored = [
        (-likeness, entry.key)
        for entry in entries[:COMPARED_MAX]
        if (likeness := _likeness(letter_pairs, entry)) >= LIKENESS_MIN
    ]
    return [key for _, key in sorted(scored)[:ALIKE_MAX]]


def find_hidden_reason(name: str, context: ToolContext) -> str:
    """Return why the tool of this name, exposed or namespaced, is kept from clients; empty if the
    tool is not."""
    owner = context.everything.tool_named(name)
    if owner is not None:
        return owner.kept
    meant = read(name)
    return "" if meant is None else context.everything.kept.get(meant, "")


def _explain_unknown(name: str, context: ToolContext) -> str:
    if reason := find_hidden_reason(name, context):
        return reason
    meant = read(name)
    if meant is not None and meant[0] in context.everything.unknown:
        return f"nothing is known yet of the tools of {tool_text.plain(meant[0])}"
    names = alike(name, context.everything.offered)
    return _none(name) + (f"{_ALIKE}{tool_text.join_names(names)}?" if names else "")


def _none(name: str) -> str:
    return f"{_NO_TOOL}{tool_text.plain(name)!r} behind this endpoint"


def _likeness(letter_pairs: frozenset[str], entry: ListEntry) -> float:
    own, exposed = _normalize_name(entry.item.key), _normalize_name(entry.key)
    return max(_share(letter_pairs, exposed), _OWN_NAME * _share(letter_pairs, own))


def _share(letter_pairs: frozenset[str], text: str) -> float:
    """Return the likeness by pairs of neighbouring letters: twice the number of `letter_pairs` that
    the text has, divided by the number of all pairs of both."""
    both = 0
    for pair in letter_pairs:
        if pair in text:
            both += 1
    return 2 * both / (len(letter_pairs) + max(1, len(text) - 1))


def _normalize_name(name: str) -> str:
    """Return the name in lower case, without the characters between words."""
    return name[:COMPARED_CHARACTERS_MAX].lower().replace("_", "").replace("-", "").replace(".", "")
