"""Built-in tools about scripts: they save, run, list and delete programs of a workspace.

Owns: `save_script`, `run_script`, `list_scripts`, `delete_script`, their words, the check of the
arguments of a run, the definitions of scripts that are tools of their own. Never: the rules of
scripts (`ipc.saved_scripts`), carrying a run out (`code_calls_io`), keeping scripts (the
supervisor), which exposure has which tool (`front.front_views`).
"""

import hashlib
from collections.abc import Collection, Mapping

from msgspec import Raw, Struct

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    OrderAndThen,
    Run,
    ToolContext,
    ToolReply,
    Work,
)
from metamcp_worker.builtin_tools.search_index import SCRIPTS
from metamcp_worker.builtin_tools.tool_text import Row
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.catalog.exposure import OWN
from metamcp_worker.catalog.offers import OfferedItem
from metamcp_worker.ipc import codec, exposed_names, parameters, saved_scripts, validation
from metamcp_worker.ipc.code_runs import Language
from metamcp_worker.ipc.disclosure import DeleteScript, OrderOutcome, SaveScript
from metamcp_worker.ipc.saved_scripts import Script
from metamcp_worker.ipc.spec import NamingSpec


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


def _save(arguments: ScriptSaving, context: ToolContext) -> Decision:
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
        return ToolReply(text, {"success": True, "script": _value(made, now)})

    return OrderAndThen(order, build_reply)


def _run(arguments: ScriptRun, context: ToolContext) -> Decision:
    return run(context, arguments.name, arguments.args)


def run(context: ToolContext, name: str, args: Raw) -> Decision:
    """Return the run of a script with these arguments, or the reply that says why it cannot run.
    `args`: raw; empty means none."""
    script = context.scripts.get(name)
    if script is None:
        return _make_failure("run", _unknown(name, context))
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


def build_entries(
    scripts: Mapping[str, Script], naming: NamingSpec, taken: Collection[str]
) -> tuple[ListEntry, ...]:
    """Return the entries of these scripts as tools of a server SCRIPTS. `taken`: names that other
    tools have."""
    names = exposed_names.expose([(SCRIPTS, name) for name in scripts], naming, taken)
    items = map(_item, scripts.values())
    entries = (ListEntry(name, item, OWN) for name, item in zip(names, items, strict=True))
    return tuple(entry for entry in entries if entry.item.fault is None or entry.item.fault.legacy)


def _item(script: Script) -> OfferedItem:
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


def _list(arguments: SavedScripts, context: ToolContext) -> Decision:
    if arguments.name:
        script = context.scripts.get(arguments.name)
        if script is None:
            return _make_failure("list", _unknown(arguments.name, context))
        row = _row(script, context)
        value = {**row.value, "code": script.code}
        text = f"{row.text}\n\n{tool_text.fit(script.code, saved_scripts.CODE_BYTES_MAX)}"
        return ToolReply(text, {"success": True, "scripts": [value]})
    every = list(context.scripts.values())
    page = tool_text.portion(every, arguments.offset, lambda script: _row(script, context))
    structured: dict[str, object] = {"success": True, "scripts": page.values}
    lines = page.texts or ["No script is saved; save_script saves one."]
    if page.left:
        lines.append(f"{page.left} more: ask with offset {page.end}.")
        structured["nextOffset"] = page.end
    return ToolReply("\n".join(lines), structured)


def _delete(arguments: ScriptName, context: ToolContext) -> Decision:
    if arguments.name not in context.scripts:
        return _make_failure("delete", _unknown(arguments.name, context))

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("delete", outcome.error)
        text = f"Script {_quote_name(arguments.name)} is deleted, with all of its versions."
        return ToolReply(text, {"success": True, "deleted": arguments.name})

    return OrderAndThen(DeleteScript(arguments.name), build_reply)


def _row(script: Script, context: ToolContext) -> Row:
    about = tool_text.line(script.description, saved_scripts.DESCRIPTION_CHARACTERS_MAX)
    lines = [f"- {tool_text.code(script.name)}{': ' if about else ''}{about}"]
    if script.parameters:
        lines.append(f"  parameters: {tool_text.fit(script.parameters, len(script.parameters))}")
    return Row("\n".join(lines), _value(script, context))


def _value(script: Script, context: ToolContext) -> dict[str, object]:
    return {
        "name": script.name,
        "version": script.version,
        "description": tool_text.fit(script.description, saved_scripts.DESCRIPTION_CHARACTERS_MAX),
        "language": script.language,
        "parameters": Raw(script.parameters.encode() or b"{}"),
        "expose": script.expose,
        "savedAt": context.dated(script.created),
    }


def _unknown(name: str, context: ToolContext) -> str:
    names = tool_text.join_names(context.scripts) or "none yet"
    return f"no script is named {_quote_name(name)}; there are: {names}"


def _make_failure(action: str, reason: str) -> ToolReply:
    text = f"Failed to {action} script: {reason}"
    return ToolReply(text, {"success": False, "error": text}, failed=True)


def _quote_name(name: str) -> str:
    return f'"{tool_text.plain(name)}"'


WORKS: Mapping[str, Work] = {
    "save_script": (ScriptSaving, _save),
    "run_script": (ScriptRun, _run),
    "list_scripts": (SavedScripts, _list),
    "delete_script": (ScriptName, _delete),
}
