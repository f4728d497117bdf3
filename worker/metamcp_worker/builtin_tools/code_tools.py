"""Built-in tools of code mode: programs that call tools.

Owns: `run_code`; the families of endpoints that have it, with scripts; the words of a run that is
over; the list of tools that code gets. Never: running code, the calls of a run (`code_calls_io`),
what a program may call (`calls`).
"""

from collections.abc import Mapping

from msgspec import structs

from metamcp_worker.builtin_tools import (
    engine_tools,
    script_tools,
    search_tools,
    tool_choice,
    tool_text,
)
from metamcp_worker.builtin_tools.builtin import (
    Decision,
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
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.code_runs import RunEnded
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


DELETE = "delete_script"
WORKS: Mapping[str, Work] = {"run_code": (RunArguments, _run), **script_tools.WORKS}
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
