"""Built-in tools of code mode: programs that call tools, and scripts, which are programs of a
workspace that it keeps.

Owns: `run_code`; `save_script`, `run_script`, `list_scripts`, `delete_script`, their words, the
check of the arguments of a run, the definitions of scripts that are tools of their own; the
families of endpoints that have all these; the words of a run that is over; the list of tools that
code gets. Never: running code, the calls of a run (`code_calls_io`), what a program may call
(`calls`), the rules of scripts (`ipc.saved_scripts`), keeping scripts (the supervisor), which
exposure has which tool (`front_calls.front_views`).
"""

import hashlib
from collections.abc import Collection, Mapping

from msgspec import Raw, Struct, structs

from metamcp_worker.builtin_tools import (
    engine_tools,
    search_tools,
    tool_choice,
    tool_text,
)
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    OrderAndThen,
    Rankings,
    Run,
    RunArguments,
    ToolContext,
    ToolFamily,
    ToolReply,
    ToolSearch,
    Work,
    family,
)
from metamcp_worker.builtin_tools.search_index import SCRIPTS
from metamcp_worker.builtin_tools.tool_text import Row
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.catalog.exposure import OWN
from metamcp_worker.catalog.offers import OfferedItem
from metamcp_worker.ipc import (
    codec,
    exposed_names,
    parameters,
    process_names,
    saved_scripts,
    validation,
)
from metamcp_worker.ipc.code_runs import Language, RunEnded
from metamcp_worker.ipc.disclosure import DeleteScript, OrderOutcome, SaveScript
from metamcp_worker.ipc.saved_scripts import Script
from metamcp_worker.ipc.spec import NamingSpec
from metamcp_worker.search.definitions import read
from metamcp_worker.search.index import HITS_MAX

GUIDE = (
    "Tools are called from code: run_code runs a TypeScript program that calls them with"
    " mcp.call(name, arguments). search_tools finds tools, describe_tool shows one as TypeScript."
)
TOOLS_LISTED_MAX = 2000
"""Maximum tools that `mcp.tools()` lists; a query finds the others."""
WITHIN = "run_code cannot be called from code that it runs; call the tools themselves"
"""Refusal of a run within a run, without its full stop."""
LOGS_CHARACTERS_MAX = 4000
"""Maximum characters of the logs in the text about a failure; `structuredContent` has all."""


def _run(arguments: RunArguments, context: ToolContext) -> Decision:
    try:
        codec.level(arguments.args)
    except codec.Malformed as error:
        return ToolReply(f"The arguments of run_code are wrong: args: {error}.", failed=True)
    return Run(**structs.asdict(arguments))


def to_reply(end: RunEnded) -> ToolReply:
    """Return the result of a run that is over."""
    numbers = {"logs": end.logs, "calls": end.calls, "ms": end.ms}
    if not end.failure:
        structured: dict[str, object] = {"value": end.value, **numbers}
        return ToolReply(codec.dump(structured).decode("utf-8", "replace"), structured)
    location = f" at line {end.line}, column {end.column}" if end.line else ""
    lines = [f"The code failed ({end.failure}{location}): {end.message}"]
    if end.stack:
        lines.append(end.stack)
    if end.logs:
        logs = "\n".join(end.logs)
        lines.append(f"Logs:\n{tool_text.cut(logs, LOGS_CHARACTERS_MAX)}")
    failure: dict[str, object] = {
        "failure": end.failure, "message": end.message, "line": end.line, "column": end.column,
        "stack": end.stack, **numbers,
    }  # fmt: skip
    return ToolReply("\n".join(lines), failure, failed=True)


def find_tools(query: str, context: ToolContext) -> ToolReply | ToolSearch:
    """Decide about `mcp.tools(query)`: the best hits of the query, or all tools that can be called
    here and whose servers are there."""
    callable_ = {
        entry.key: entry for entry in context.everything.offered if _can_call(entry, context)
    }
    callable_ |= {entry.key: entry for entry in context.exposed}
    if not query:
        return _make_list_reply(list(callable_.values())[:TOOLS_LISTED_MAX])

    def build_reply(others: Rankings, now: ToolContext) -> ToolReply:
        hits = now.search(query, HITS_MAX, None, others).hits
        names = (hit.document.exposed for hit in hits)
        return _make_list_reply([callable_[name] for name in names if name in callable_])

    return ToolSearch(query, None, build_reply)


def _can_call(entry: ListEntry, context: ToolContext) -> bool:
    pair = entry.server, entry.item.key
    seen = context.spec.exposure == "code" or context.spec.call_hidden
    return context.listed(entry.server) and (seen or pair in context.shown.tools)


def _make_list_reply(entries: list[ListEntry]) -> ToolReply:
    return ToolReply("", {"tools": [_tool(entry) for entry in entries]})


def _tool(entry: ListEntry) -> Mapping[str, str]:
    definition = read(entry.item.raw)
    return {
        "name": entry.key,
        "server": process_names.label(entry.server) or SCRIPTS,
        "tool": tool_text.fit(entry.item.key, tool_text.NAME_CHARACTERS_MAX),
        "description": tool_text.first_sentence(definition.description or definition.title),
    }


def unknown(name: str, entries: tuple[ListEntry, ...]) -> str:
    """Return the words about the tools that are most like an unknown name, or nothing."""
    names = tool_choice.alike(name, entries)
    return f"; did you mean {tool_text.join_names(names)}?" if names else ""


class ScriptSaving(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    code: str
    description: str | None = None
    language: Language | None = None
    parameters: Raw = Raw(b"null")
    expose: bool | None = None


class ScriptRun(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    args: Raw = Raw(b"{}")


class SavedScripts(Struct, frozen=True, forbid_unknown_fields=True):
    name: str = ""
    offset: int = 0


class ScriptName(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


def _save_script(arguments: ScriptSaving, context: ToolContext) -> Decision:
    if reason := saved_scripts.check_script_name(arguments.name):
        return _make_failure("save", reason)
    before = context.scripts.get(arguments.name)
    schema = bytes(arguments.parameters).decode()
    order = SaveScript(
        arguments.name,
        arguments.code,
        arguments.language,
        arguments.description,
        None if schema == "null" else schema,
        arguments.expose,
    )

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        made = outcome.script
        if outcome.error or made is None:
            return _make_failure("save", outcome.error or "nothing is known of it")
        version = f"version {made.version}"
        saved = f"is saved as {version}"
        if before is not None and before.version == made.version:
            saved = f"was saved already, as {version}"
        text = f"Script {_quote_name(arguments.name)} {saved}; run_script runs it."
        return ToolReply(text, {"success": True, "script": _build_structured(made, now)})

    return OrderAndThen(order, build_reply)


def _run_script(arguments: ScriptRun, context: ToolContext) -> Decision:
    return run_script(context, arguments.name, arguments.args)


def run_script(context: ToolContext, name: str, args: Raw) -> Decision:
    """Return the run of a script with these arguments, or the reply that says why it cannot run.
    `args`: raw; empty means none."""
    script = context.scripts.get(name)
    if script is None:
        return _make_failure("run", _unknown_script(name, context))
    args = args if bytes(args) else Raw(b"{}")
    try:
        codec.level(args)
        reason = parameters.wrong(script.parameters, args) if script.parameters else ""
    except codec.Malformed as error:
        reason = f"args must be an object: {error}"
    if reason:
        problem = f"the arguments of the script {_quote_name(script.name)} are wrong"
        return _make_failure("run", f"{problem}: {reason}")
    return Run(script.code, script.language, args, script=script.name, version=script.version)


def build_script_entries(
    scripts: Mapping[str, Script], naming: NamingSpec, taken: Collection[str]
) -> tuple[ListEntry, ...]:
    """Return the entries of these scripts as tools of a server SCRIPTS. `taken`: names that other
    tools have."""
    names = exposed_names.expose([(SCRIPTS, name) for name in scripts], naming, taken)
    items = map(_build_item, scripts.values())
    entries = (ListEntry(name, item, OWN) for name, item in zip(names, items, strict=True))
    return tuple(entry for entry in entries if entry.item.fault is None or entry.item.fault.legacy)


def _build_item(script: Script) -> OfferedItem:
    schema = codec.level(script.parameters.encode() or b"{}")
    raw = codec.dump({
        "name": script.name,
        "description": script.description or f"Runs the script {script.name}.",
        "inputSchema": {**schema, "type": "object"},
        "annotations": {"readOnlyHint": False, "openWorldHint": True},
    })  # fmt: skip
    digest = hashlib.sha256(raw).digest()
    fault = validation.fault("tools", raw)
    return OfferedItem(script.name, codec.dump(script.name), raw, digest, fault=fault)


def _list_scripts(arguments: SavedScripts, context: ToolContext) -> Decision:
    if arguments.name:
        script = context.scripts.get(arguments.name)
        if script is None:
            return _make_failure("list", _unknown_script(arguments.name, context))
        row = _describe_script(script, context)
        value = {**row.value, "code": script.code}
        text = f"{row.text}\n\n{tool_text.fit(script.code, saved_scripts.CODE_BYTES_MAX)}"
        return ToolReply(text, {"success": True, "scripts": [value]})
    every = list(context.scripts.values())
    page = tool_text.portion(
        every, arguments.offset, lambda script: _describe_script(script, context)
    )
    structured: dict[str, object] = {"success": True, "scripts": page.values}
    lines = page.texts or ["No script is saved; save_script saves one."]
    if page.left:
        lines.append(f"{page.left} more: ask with offset {page.end}.")
        structured["nextOffset"] = page.end
    return ToolReply("\n".join(lines), structured)


def _delete_script(arguments: ScriptName, context: ToolContext) -> Decision:
    if arguments.name not in context.scripts:
        return _make_failure("delete", _unknown_script(arguments.name, context))

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("delete", outcome.error)
        text = f"Script {_quote_name(arguments.name)} is deleted, with all of its versions."
        return ToolReply(text, {"success": True, "deleted": arguments.name})

    return OrderAndThen(DeleteScript(arguments.name), build_reply)


def _describe_script(script: Script, context: ToolContext) -> Row:
    about = tool_text.line(script.description, saved_scripts.DESCRIPTION_CHARACTERS_MAX)
    lines = [f"- {tool_text.code(script.name)}{': ' if about else ''}{about}"]
    if script.parameters:
        lines.append(f"  parameters: {tool_text.fit(script.parameters, len(script.parameters))}")
    return Row("\n".join(lines), _build_structured(script, context))


def _build_structured(script: Script, context: ToolContext) -> dict[str, object]:
    return {
        "name": script.name,
        "version": script.version,
        "description": tool_text.fit(script.description, saved_scripts.DESCRIPTION_CHARACTERS_MAX),
        "language": script.language,
        "parameters": Raw(script.parameters.encode() or b"{}"),
        "expose": script.expose,
        "savedAt": context.dated(script.created),
    }


def _unknown_script(name: str, context: ToolContext) -> str:
    names = tool_text.join_names(context.scripts) or "none yet"
    return f"no script is named {_quote_name(name)}; there are: {names}"


def _make_failure(action: str, reason: str) -> ToolReply:
    text = f"Failed to {action} script: {reason}"
    return ToolReply(text, {"success": False, "error": text}, failed=True)


def _quote_name(name: str) -> str:
    return f'"{tool_text.plain(name)}"'


SCRIPT_WORKS: Mapping[str, Work] = {
    "save_script": (ScriptSaving, _save_script),
    "run_script": (ScriptRun, _run_script),
    "list_scripts": (SavedScripts, _list_scripts),
    "delete_script": (ScriptName, _delete_script),
}

DELETE = "delete_script"
WORKS: Mapping[str, Work] = {"run_code": (RunArguments, _run), **SCRIPT_WORKS}
"""Tools of every endpoint with code mode."""
_LISTED = {name: work for name, work in WORKS.items() if name != DELETE}
_SEARCH = {name: search_tools.WORKS[name] for name in ("search_tools", "describe_tool")}
FAMILY: ToolFamily = family("code", {**_SEARCH, **WORKS}, GUIDE)
"""Tools of the exposure `code`."""
_search = family(
    "search",
    {**search_tools.WORKS, **_LISTED, **engine_tools.AGENT},
    f"{search_tools.GUIDE} run_code runs a program that calls tools.",
    code=True,
)
SEARCH_FAMILY: ToolFamily = structs.replace(
    _search, tools={**_search.tools, DELETE: FAMILY.tools[DELETE]}
)
"""Tools of the exposure `search` with code mode."""
