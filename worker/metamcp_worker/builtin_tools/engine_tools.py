"""Built-in tools beside those of an exposure: the catalogue, workflows, the agent.

Owns: their arguments, what `get_catalog` answers, the orders for the engine that the others are;
runs of workflows as tasks of revision 2025-11-25.
Never: carrying out an order (`engine_calls_io`), which endpoint has which tool
(`front_calls.front_views`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct, structs

from metamcp_worker.builtin_tools import builtin, tool_text
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    EngineWork,
    ToolContext,
    ToolReply,
    Work,
)
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.engine_runs import (
    AgentArguments,
    Method,
    ReportedRun,
    RunOrder,
    SuggestionArguments,
)
from metamcp_worker.search.definitions import read


class RunArgument(Struct, frozen=True, forbid_unknown_fields=True):
    run: str


class StatusArguments(Struct, frozen=True, forbid_unknown_fields=True):
    run: str = ""


class ListWorkflowsArguments(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class CatalogArguments(Struct, frozen=True, forbid_unknown_fields=True):
    server: str = ""


def _order(method: Method) -> Callable[[Any, ToolContext], Decision]:
    """Return the function of a tool whose arguments are those of an order for the engine."""
    return lambda arguments, context: EngineWork(method, Raw(codec.dump(arguments)))


def _workflow(arguments: RunOrder, context: ToolContext) -> Decision:
    if (arguments.definition is UNSET) == (not arguments.name):
        text = "run_workflow takes the name of a workflow or a definition, one of the two."
        return ToolReply(text, failed=True)
    return EngineWork("workflow/run", Raw(codec.dump(arguments)))


def _status(arguments: StatusArguments, context: ToolContext) -> Decision:
    if not arguments.run:
        return EngineWork("workflow/runs", Raw(b"{}"))
    return EngineWork("workflow/status", Raw(codec.dump({"run": arguments.run, "ask": True})))


def catalogue(context: ToolContext, server: str = "") -> ToolReply:
    """Return what is behind the endpoint, server by server, also of servers that are down.
    `server`: only this one, by the name that clients know."""
    names = {process_names.label(name): name for name in context.spec.servers}
    if server and server not in names:
        listing = tool_text.join_names(sorted(names)) or "none"
        return ToolReply(
            f"There is not a server {server[:64]!r} here; there are: {listing}.", failed=True
        )
    servers = [
        _server(name, label, context) for label, name in names.items() if server in ("", label)
    ]
    structured: dict[str, object] = {"servers": servers}
    return ToolReply(codec.dump(structured).decode("utf-8", "replace"), structured)


def _server(name: str, label: str, context: ToolContext) -> Mapping[str, object]:
    everything = context.everything
    tools = [entry for entry in everything.offered if entry.server == name]
    prompts, resources, templates = (
        [
            entry
            for entry in (*everything.lists[kind], *everything.away[kind])
            if entry.server == name
        ]
        for kind in ("prompts", "resources", "resourceTemplates")
    )
    return {
        "server_id": label,
        "available": context.listed(name),
        "commands": [entry.key for entry in tools],
        "descriptions": [_describe_entry(entry) for entry in tools],
        "tools": [
            {"name": entry.key, "tool": entry.item.key, "description": _describe_entry(entry)}
            for entry in tools
        ],
        "prompts": [
            {"name": entry.key, "description": _describe_entry(entry)} for entry in prompts
        ],
        "resources": [
            *({"uri": entry.key, "description": _describe_entry(entry)} for entry in resources),
            *(
                {"uriTemplate": entry.key, "description": _describe_entry(entry)}
                for entry in templates
            ),
        ],
    }


def _describe_entry(entry: ListEntry) -> str:
    definition = read(entry.item.raw)
    return tool_text.first_sentence(definition.description or definition.title)


RUN = "run_workflow"
TASK = "metamcp-run-"
"""Beginning of the id of a task that is a run. The id of the run follows, which the journal of the
engine knows, so that the task outlives any process."""
TASKS: Mapping[str, Method] = {
    "tasks/get": "workflow/status", "tasks/result": "workflow/status",
    "tasks/cancel": "workflow/cancel", "tasks/list": "workflow/runs",
}  # fmt: skip
POLL_MS = 1000
"""Milliseconds after which a client asks for a task again."""
_ENDS = {"done": "completed", "failed": "failed", "cancelled": "cancelled"}


def as_task(work: EngineWork) -> EngineWork:
    """Return the order that begins a run whose client takes it as a task."""
    params = codec.level(work.params) | {"wait": Raw(b"false")}
    return structs.replace(work, params=Raw(codec.dump(params)), task=True)


def task_order(method: str, params: Mapping[str, Raw]) -> EngineWork:
    """Return the order that a request about tasks is. `method`: one of TASKS."""
    run = (codec.text(params.get("taskId", b"null")) or "").removeprefix(TASK)
    arguments: dict[str, object] = {} if method == "tasks/list" else {"run": run}
    arguments |= {"wait": True} if method == "tasks/result" else {}
    return EngineWork(TASKS[method], Raw(codec.dump(arguments)), task=True)


def task_result(method: str, reply: ToolReply, dated: Callable[[float], str]) -> bytes:
    """Return the raw result of a call that became a task, or of one of TASKS. `dated`: makes a date
    of seconds since the epoch."""
    raw = Raw(codec.dump(reply.structured))
    if method == "tasks/list":
        runs = codec.items(codec.level(raw)["runs"])
        return codec.dump({"tasks": [_task(each, dated) for each in runs]})
    task = _task(raw, dated)
    if method != "tasks/result":
        return codec.dump(task if method in TASKS else {"task": task})
    failed = task["status"] != "completed"
    members = codec.level(builtin.result(structs.replace(reply, failed=failed), modern=False))
    related = {"io.modelcontextprotocol/related-task": {"taskId": task["taskId"]}}
    return codec.dump({**members, "_meta": related})


def _task(raw: Raw, dated: Callable[[float], str]) -> dict[str, object]:
    """Return a run as a task, which is kept as long as the journal keeps the run."""
    run = codec.decode_as(ReportedRun, raw)
    words = f"{run.workflow} is {run.status}{f' at step {run.step}' if run.step else ''}"
    return {
        "taskId": f"{TASK}{run.run}", "status": _ENDS.get(run.status, "working"),
        "statusMessage": f"{words}: {run.error}" if run.error else words,
        "createdAt": dated(run.created), "lastUpdatedAt": dated(run.ended or run.created),
        "ttl": None, "pollInterval": POLL_MS,
    }  # fmt: skip


AGENT: Mapping[str, Work] = {"run_agent": (AgentArguments, _order("agent"))}
WORKS: Mapping[str, Work] = {
    "get_catalog": (
        CatalogArguments,
        lambda arguments, context: catalogue(context, arguments.server),
    ),
    "suggest_workflow": (SuggestionArguments, _order("suggest")),
    "run_workflow": (RunOrder, _workflow),
    "workflow_status": (StatusArguments, _status),
    "cancel_workflow": (RunArgument, _order("workflow/cancel")),
    "list_workflows": (ListWorkflowsArguments, _order("workflows")),
}
