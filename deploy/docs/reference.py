"""Reference pages as Markdown: verbs, codes, built-in tools.

Owns: the form of these pages. Never: the words, which are those of the program (`commands`,
`notes`, `metamcp_worker.ipc.builtin_definitions`), and files (`write`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from deploy.docs.commands import Verb, all_below
from deploy.docs.notes import Note
from metamcp_supervisor.config.document import list_of, table_of
from metamcp_worker.ipc import builtin_definitions
from metamcp_worker.ipc.builtin_definitions import BuiltinTool
from metamcp_worker.ipc.disclosure import Exposure

WRITTEN = "`make reference` writes this page from the program; a test fails when it is stale."


def verbs(metamcp: Verb, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the page of all verbs. `groups`: as in the help, names of verbs by heading."""
    lines = ["# Verbs", "", WRITTEN, ""]
    lines += [
        "Every verb has `--help`. A verb ends with one of the [exit codes](codes.md#exit-codes)."
    ]
    for heading, names in groups.items():
        lines += ["", f"**{heading}**", "", "| verb | what it does |", "|---|---|"]
        found = [verb for name in names for verb in metamcp.below if verb.words[-1] == name]
        lines += [f"| [`{one.name}`](#{anchor(one.name)}) | {prose(one.short)} |" for one in found]
    for each in all_below(metamcp):
        lines += _verb(each)
    return "\n".join(lines) + "\n"


def _verb(verb: Verb) -> Iterator[str]:
    yield from ("", "#" * len(verb.words) + f" {verb.name}", "")
    if verb.same:
        same = " ".join(verb.same)
        yield f"{prose(verb.short)} Same as [`{same}`](#{anchor(same)})."
        return
    yield from ("```text", f"{verb.name} {verb.usage}".strip(), "```")
    for each in verb.paragraphs:
        yield ""
        yield from ("```text", each.text, "```") if each.verbatim else (prose(each.text),)
    options = [(name, text) for name, text in verb.options if name != "--help"]
    if options:
        yield from ("", "| option | meaning |", "|---|---|")
        yield from (f"| `{either(name)}` | {cell(prose(text))} |" for name, text in options)


def codes(
    errors: Iterable[Note], http: Mapping[int, int], rest: Mapping[int, int], exits: Iterable[Note]
) -> str:
    """Return the page of error codes and exit codes. `http`, `rest`: status by error code."""
    lines = ["# Error codes and exit codes", "", WRITTEN, "", "## Error codes", ""]
    lines += [
        "The gateway answers a request with one of these JSON-RPC codes. Errors of servers cross",
        "the gateway unchanged, so a code that is not in this table comes from a server. The",
        "column *HTTP* has the status of an answer in revision 2026-07-28, if it starts no stream.",
        "The column *REST* has the status of a call by [REST](../rest.md); for any other code, the",
        "status is 502.",
        "",
        "| code | name | meaning | HTTP | REST |",
        "|---|---|---|---|---|",
    ]
    for note in errors:
        name = note.name.lower().replace("_", " ")
        status = http.get(note.value, 200)
        lines += [
            f"| {note.value} | {name} | {note.text} | {status} | {rest.get(note.value, '-')} |"
        ]
    lines += [
        "", "## Exit codes", "",
        "Each verb ends with one of these codes. With `--json`, a verb that fails also prints the",
        "word, as `code` of the object on standard error.",
        "", "| code | word | meaning |", "|---|---|---|",
    ]  # fmt: skip
    for note in exits:
        word = f"`{note.name.lower()}`" if note.name else "-"
        lines += [f"| {note.value} | {word} | {note.text} |"]
    return "\n".join(lines) + "\n"


def builtin_tools() -> str:
    """Return the page of the tools that the gateway itself offers to clients."""
    lines = ["# Built-in tools", "", WRITTEN, ""]
    lines += [
        "An endpoint offers the tools of its `exposure` ([views](../views.md)), and those that its",
        "key `builtins` names. With [code mode](../code-mode.md), the exposure `search` also has",
        f"{', '.join(f'`{tool.name}`' for tool in _of_code_mode())}.",
        "",
        "| exposure or `builtins` | tools |",
        "|---|---|",
    ]
    families = [
        *((name, builtin_definitions.of(name)) for name in get_args(Exposure)),
        *builtin_definitions.families().items(),
    ]
    tools: dict[str, BuiltinTool] = {}
    for name, found in families:
        links = ", ".join(f"[`{tool.name}`](#{anchor(tool.name)})" for tool in found)
        lines += [f"| `{name}` | {links or 'none'} |"]
        tools |= {tool.name: tool for tool in found}
    for tool in tools.values():
        lines += _tool(tool)
    return "\n".join(lines) + "\n"


def _tool(tool: BuiltinTool) -> Iterator[str]:
    yield from ("", f"## {tool.name}", "", prose(tool.description))
    if tool.properties:
        yield from ("", "| argument | type | required | meaning |", "|---|---|---|---|")
    for name, schema in tool.properties.items():
        needed = "yes" if name in tool.required else "no"
        text = prose(str(schema.get("description", "")))
        yield f"| `{name}` | {cell(_type(schema))} | {needed} | {cell(text)} |"
    hints = json.loads(tool.definition())["annotations"]
    said = [name.removesuffix("Hint") for name, value in hints.items() if value is True]
    yield from ("", f"Hints: {', '.join(said) or 'none'}.")


def _of_code_mode() -> list[BuiltinTool]:
    without = builtin_definitions.of("search")
    return [one for one in builtin_definitions.of("search", code=True) if one not in without]


def _type(schema: Mapping[str, object]) -> str:
    """Return the type of an argument in words."""
    if choices := list_of(schema.get("enum")):
        return " or ".join(f"`{choice}`" for choice in choices)
    if either := list_of(schema.get("anyOf")):
        return " or ".join(_type(table_of(each) or {}) for each in either)
    kind, items = schema.get("type", "any"), table_of(schema.get("items"))
    return f"{kind} of {_type(items)}" if items else str(kind)


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def prose(text: str) -> str:
    """Return text in which Markdown finds nothing to obey outside of backquotes."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([<*\\])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def either(name: str) -> str:
    """Return an option for a table, in which no bar may stand."""
    return name.replace("|", " or ")


def cell(text: str) -> str:
    return text.replace("|", "\\|")
