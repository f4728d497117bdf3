"""The gateway's own tools as clients see them, and the tokens that definitions cost.

Owns: the names, words, parameters and hints of the tools; the estimate of the tokens that a
definition costs in the context of a model, so that every place shows the same. Never: what such a
tool does (`builtin_tools/servers_tools`, `builtin_tools/toolset_tools`,
`builtin_tools/search_tools`), which endpoint has which (`front_calls/front_views`), exact
counts of tokens, which differ from model to model.

Definitions are apart from the code of the tools, because the supervisor reserves their names and
shows what they cost.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Final, Literal

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Exposure

BUILTINS: Mapping[str, tuple[str, str]] = {
    "catalog": (
        "metamcp_worker.ipc.builtin_definitions:CATALOG",
        "metamcp_worker.builtin_tools.engine_tools:WORKS",
    ),
    "workflows": (
        "metamcp_worker.ipc.builtin_definitions:WORKFLOWS",
        "metamcp_worker.builtin_tools.engine_tools:WORKS",
    ),
    "agent": (
        "metamcp_worker.ipc.builtin_definitions:AGENT",
        "metamcp_worker.builtin_tools.engine_tools:AGENT",
    ),
    "results": (
        "metamcp_worker.ipc.builtin_definitions:RESULTS",
        "metamcp_worker.builtin_tools.builtin:RESULT_WORKS",
    ),
}
"""Tools that an endpoint of any exposure can have, by the names of `builtins`: references to their
definitions, and to the function of each by its name (`builtin_tools.builtin.Work`). A process
imports those that it uses."""

Schema = Mapping[str, object]
Detail = Literal["brief", "detailed", "full"]
"""How much an answer of `search_tools` says about each tool."""
DETAILS: Final[Sequence[Detail]] = ("brief", "detailed", "full")
HITS = 10
"""Tools that `search_tools` returns if the client gives no `limit`."""


class BuiltinTool(Struct, frozen=True):
    """Definition of one built-in tool. `properties`: its arguments as JSON Schema; `required`: the
    arguments that a client must send; `changes`: a call changes the view or the stored tool sets;
    `destroys`: a call may lose stored data; `forwards`: a call calls a tool of a server, which may
    do anything; `task`: a client may take the call as a task (revision 2025-11-25)."""

    name: str
    title: str
    description: str
    properties: Mapping[str, Schema] = {}
    required: tuple[str, ...] = ()
    changes: bool = False
    destroys: bool = False
    forwards: bool = False
    task: bool = False

    def definition(self) -> bytes:
        """Return the JSON that stands in a list, in the form that servers use."""
        schema: dict[str, object] = {"type": "object", "properties": self.properties}
        if self.required:
            schema["required"] = self.required
        schema["additionalProperties"] = False
        reads = not self.changes and not self.forwards
        hints: dict[str, object] = {"title": self.title, "readOnlyHint": reads}
        if not reads:
            hints["destructiveHint"] = self.destroys or self.forwards
            hints["idempotentHint"] = not self.forwards
        hints["openWorldHint"] = self.forwards
        tasks = {"execution": {"taskSupport": "optional"}} if self.task else {}
        return codec.dump({
            "name": self.name, "title": self.title, "description": self.description,
            "inputSchema": schema, "annotations": hints, **tasks,
        })  # fmt: skip


def of(
    exposure: Exposure, *, code: bool = False, builtins: Iterable[str] = ()
) -> Sequence[BuiltinTool]:
    """Return the built-in tools of an endpoint in the order of the list. `code`: whether it has
    code mode, which gives the exposure `search` its tools and the agent too; `builtins`: names of
    `families` that it has beside those of its exposure."""
    own = _OWN[exposure]
    if code and exposure == "search":
        own = (*own, *CODE, RUN_AGENT)
    more = (tool for name, tools in families().items() if name in builtins for tool in tools)
    return (*own, *(tool for tool in more if tool not in own))


def names() -> frozenset[str]:
    """Return the names of all built-in tools of all endpoints."""
    return frozenset(
        tool.name for tools in (*_OWN.values(), *families().values()) for tool in tools
    )


@cache
def families() -> Mapping[str, Sequence[BuiltinTool]]:
    """Return the tools that an endpoint of any exposure can have, by the names of `builtins`."""
    return {name: resolve_name(definitions) for name, (definitions, _) in BUILTINS.items()}


@cache
def size(exposure: Exposure, *, code: bool = False, builtins: tuple[str, ...] = ()) -> int:
    """Bytes of all these definitions: the context that a client needs before a tool is in view."""
    return sum(len(tool.definition()) for tool in of(exposure, code=code, builtins=builtins))


_SERVER = {"type": "string", "description": "The name of the server, as gateway_status shows it."}
_SERVERS = (
    BuiltinTool(
        "gateway_activate",
        "Activate a server",
        "Bring the tools of one server into view. They are in the list of tools at once.",
        {"name": _SERVER},
        ("name",),
        changes=True,
    ),
    BuiltinTool(
        "gateway_deactivate",
        "Deactivate a server",
        "Take the tools of one server out of view. The server runs on and can be activated again"
        " at once.",
        {"name": _SERVER},
        ("name",),
        changes=True,
    ),
    BuiltinTool(
        "gateway_status",
        "Servers and their states",
        "All servers: whether each is warming, ready, active (its tools are in view) or in error,"
        " and how many tools it has.",
    ),
)

_TOOLSET = {"type": "string", "description": "Of the toolset."}
_REFERENCE = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"namespacedName": {"type": "string"}},
            "required": ["namespacedName"],
            "additionalProperties": False,
        },
    ]
}
_OFFSET = {"type": "integer", "description": "Go on where an answer ended."}
_ONLY = {"type": "string", "description": "Only this server's."}
_TOOLSETS = (
    BuiltinTool(
        "discover-all-tools",
        "Discover all tools",
        "All tools of all servers, equipped or not: names, what they do, what they cost.",
        {"server": _ONLY, "offset": _OFFSET},
    ),
    BuiltinTool(
        "build-toolset",
        "Build a toolset",
        'Save chosen tools of any servers as a toolset, such as {"name": "dev", "tools":'
        ' [{"namespacedName": "git.status"}]}.',
        {
            "name": {"type": "string", "description": "A new one."},
            "tools": {"type": "array", "items": _REFERENCE},
            "description": {"type": "string"},
            "autoEquip": {"type": "boolean", "description": "Equip it at once."},
        },
        ("name", "tools"),
        changes=True,
    ),
    BuiltinTool(
        "equip-toolset",
        "Equip a toolset",
        "Bring the tools of this toolset into the list of tools, in place of others.",
        {"name": _TOOLSET},
        ("name",),
        changes=True,
    ),
    BuiltinTool(
        "unequip-toolset",
        "Unequip the toolset",
        "Take the tools of the equipped toolset out of the list.",
        changes=True,
    ),
    BuiltinTool(
        "get-active-toolset",
        "The equipped toolset",
        "Which toolset is equipped, its tools, and which of them are missing.",
    ),
    BuiltinTool(
        "list-saved-toolsets",
        "Saved toolsets",
        "All toolsets that can be equipped.",
        {"offset": _OFFSET},
    ),
    BuiltinTool(
        "delete-toolset",
        "Delete a toolset",
        "Forget a toolset, for everybody.",
        {"name": _TOOLSET, "confirm": {"type": "boolean", "description": "Must be true."}},
        ("name",),
        changes=True,
        destroys=True,
    ),
)

_NAME = {"type": "string", "description": "As search_tools tells it."}
_NAMES = {"anyOf": [_NAME, {"type": "array", "items": {"type": "string"}}]}
_SET = {"type": "string", "description": "Of the tool set."}
_SEARCH = (
    BuiltinTool(
        "search_tools",
        "Search tools",
        "Find tools by name or by what they should do.",
        {
            "query": {"type": "string", "description": "A name, words or a task."},
            "limit": {"type": "integer", "default": HITS},
            "detail": {
                "type": "string",
                "enum": list(DETAILS),
                "description": "detailed: with arguments; full: with schemas.",
            },
            "server": _ONLY,
        },
        ("query",),
    ),
    BuiltinTool(
        "load_tool",
        "Load tools",
        "Bring tools into the list of tools.",
        {"name": _NAMES},
        ("name",),
        changes=True,
    ),
    BuiltinTool(
        "unload_tool",
        "Unload tools",
        "Take loaded tools out of the list of tools.",
        {"name": _NAMES},
        ("name",),
        changes=True,
    ),
    BuiltinTool(
        "load_tool_set",
        "Load a tool set",
        "Bring all tools of a saved tool set into the list of tools.",
        {"name": _SET},
        ("name",),
        changes=True,
    ),
    BuiltinTool(
        "save_tool_set",
        "Save a tool set",
        "Save what is loaded as a tool set, in place of one of that name.",
        {"name": _SET, "description": {"type": "string"}},
        ("name",),
        changes=True,
        destroys=True,
    ),
    BuiltinTool(
        "list_loaded_tools",
        "Loaded tools",
        "What is loaded, what it costs, and the saved tool sets.",
        {"offset": _OFFSET},
    ),
    BuiltinTool(
        "describe_tool",
        "Describe a tool",
        "The whole definition of a tool, with its arguments.",
        {"name": _NAME},
        ("name",),
    ),
    BuiltinTool(
        "call_tool",
        "Call a tool",
        "Call any tool, loaded or not.",
        {"name": _NAME, "arguments": {"type": "object", "description": "Of that tool."}},
        ("name",),
        forwards=True,
    ),
)
_SCRIPT = {"type": "string", "description": "Of the script."}
SCRIPTS = (
    BuiltinTool(
        "save_script",
        "Save a script",
        "Save code as a script, or a new version of one; what is left out stays as it is.",
        {
            "name": _SCRIPT,
            "code": {"type": "string", "description": "As run_code takes it."},
            "description": {"type": "string"},
            "language": {"enum": ["typescript", "javascript", "python"]},
            "parameters": {"type": "object", "description": "JSON Schema of args."},
            "expose": {"type": "boolean", "description": "As a tool of its own."},
        },
        ("name", "code"),
        changes=True,
    ),
    BuiltinTool(
        "run_script",
        "Run a script",
        "Run a saved script.",
        {"name": _SCRIPT, "args": {"type": "object", "description": "By its parameters."}},
        ("name",),
        forwards=True,
    ),
    BuiltinTool(
        "list_scripts",
        "Saved scripts",
        "All saved scripts with their parameters, or one with its code.",
        {"name": {"type": "string", "description": "Only this, with its code."}, "offset": _OFFSET},
    ),
)
DELETE_SCRIPT = BuiltinTool(
    "delete_script",
    "Delete a script",
    "Forget a script with all of its versions, for everybody.",
    {"name": _SCRIPT},
    ("name",),
    changes=True,
    destroys=True,
)
"""With the exposure `search` it can be called, but is not listed: few clients delete scripts."""
RUN_CODE = BuiltinTool(
    "run_code",
    "Run code",
    "Run a program that calls tools, in place of one call after the other: only what it returns"
    " comes back. The code is the body of an async function. `await mcp.call(name, {…})` or"
    " `await mcp.servers.NAME.TOOL({…})` calls a tool and returns its data, a failing tool throws;"
    " `await mcp.tools(query)` finds tools; `args` is the argument of that name; console.log writes"
    " to `logs`. No network, files, imports. Example: `const texts = await"
    " Promise.all(args.paths.map(path => mcp.call('read_file', {path}))); return"
    " texts.filter(text => text.includes('error')).length`",
    {
        "code": {"type": "string"},
        "language": {"enum": ["typescript", "javascript", "python"]},
        "args": {"type": "object", "description": "Data for the code."},
        "timeout_ms": {"type": "integer", "minimum": 1, "description": "Lowers the limit."},
    },
    ("code",),
    forwards=True,
)
CODE = (RUN_CODE, *SCRIPTS)
"""Tools of endpoints with code mode."""
_TASK = {"type": "string", "description": "In plain words."}
_RUN = {"type": "string", "description": "Id of the run, as run_workflow returns it."}
RUN_AGENT = BuiltinTool(
    "run_agent",
    "Run an agent",
    "Give a whole task to a model, which finds and calls the tools behind this gateway until it is"
    " done, and get its answer alone.",
    {
        "task": _TASK,
        "dry_run": {
            "type": "boolean",
            "description": "End with the first program, which does not run.",
        },
        "limits": {
            "type": "object",
            "description": "Lower limits than the configured ones.",
            "properties": {
                "steps": {"type": "integer", "minimum": 1},
                "tokens": {"type": "integer", "minimum": 1},
                "timeout": {"type": "number", "description": "Seconds."},
                "cost": {"type": "number"},
            },
            "additionalProperties": False,
        },
    },
    ("task",),
    forwards=True,
)
_GET_CATALOG = BuiltinTool(
    "get_catalog",
    "The catalogue",
    "All servers with their commands and descriptions, prompts and resources, also of servers that"
    " are down.",
    {"server": _ONLY},
)
_SUGGEST_WORKFLOW = BuiltinTool(
    "suggest_workflow",
    "Suggest a workflow",
    "A sequence of tools for a task, as a workflow that run_workflow takes. Nothing is run.",
    {
        "task": _TASK,
        "refine": {"type": "boolean", "description": "Let a model improve what a rule suggests."},
    },
    ("task",),
)
WORKFLOWS = (
    BuiltinTool(
        "run_workflow",
        "Run a workflow",
        "Run a workflow by its name, or by a definition. The run goes on when this client leaves;"
        " workflow_status shows it.",
        {
            "name": {"type": "string", "description": "As list_workflows shows it."},
            "definition": {"type": "object", "description": "In place of a name."},
            "inputs": {"type": "object", "description": "By the inputs of the workflow."},
            "wait": {
                "anyOf": [{"type": "boolean"}, {"type": "string"}],
                "description": 'Wait for the end, e.g. "30s" at most; false: return at once.',
            },
        },
        forwards=True,
        task=True,
    ),
    BuiltinTool(
        "workflow_status",
        "State of a run",
        "State, steps and output of a run of a workflow; without an id, the latest runs.",
        {"run": _RUN},
    ),
    BuiltinTool(
        "cancel_workflow",
        "Cancel a run",
        "End a run of a workflow; what its steps have done stays done.",
        {"run": _RUN},
        ("run",),
        changes=True,
    ),
    BuiltinTool(
        "list_workflows",
        "Workflows",
        "All workflows that can be run, with their inputs.",
    ),
)
_READ_RESULT = BuiltinTool(
    "read_result",
    "Read a kept result",
    "Read more of a large result that the gateway keeps: a piece, the value at a path, or what"
    " matches an expression.",
    {
        "handle": {"type": "string", "description": "As the short result tells it."},
        "offset": {"type": "integer", "minimum": 0, "description": "Bytes to skip."},
        "length": {"type": "integer", "minimum": 0, "description": "Bytes to read."},
        "path": {"type": "string", "description": "JSON Pointer, such as /rows/0/name."},
        "grep": {"type": "string", "description": "Regular expression; shows what matches."},
    },
    ("handle",),
)
CATALOG = (_GET_CATALOG, _SUGGEST_WORKFLOW)
AGENT = (RUN_AGENT,)
RESULTS = (_READ_RESULT,)
_OWN: Mapping[Exposure, Sequence[BuiltinTool]] = {
    "all": (),
    "toolset": _TOOLSETS,
    "servers": _SERVERS,
    "search": _SEARCH,
    "code": (
        *(one for one in _SEARCH if one.name in ("search_tools", "describe_tool")),
        *CODE,
        DELETE_SCRIPT,
    ),
}


TOKEN_BYTES = 4
"""Bytes of JSON per token: the usual ratio of models for English and JSON."""


class TokenSavings(Struct, frozen=True):
    """Tokens saved by a list that does not have all tools. `everything`: tokens of all definitions
    behind an endpoint; `shown`: tokens of the definitions in the list."""

    everything: int
    shown: int

    @property
    def tokens(self) -> int:
        """Saved tokens; negative if the list costs more, as for built-in tools and few others."""
        return self.everything - self.shown

    @property
    def percent(self) -> int:
        """Percent of `everything` that is saved, rounded towards zero; 0 if nothing is saved."""
        return max(0, self.tokens) * 100 // self.everything if self.everything else 0


def tokens(definition: bytes | Raw) -> int:
    """Estimate the tokens of one definition, as it is sent."""
    return tokens_of_bytes(len(bytes(definition)))


def tokens_of_all(definitions: Iterable[bytes | Raw]) -> int:
    """Estimate the tokens of all definitions of a server, a view or an endpoint, from the sum of
    their bytes, so that small ones are not rounded up one by one."""
    return tokens_of_bytes(sum(len(bytes(definition)) for definition in definitions))


def tokens_of_bytes(count: int) -> int:
    return -(-count // TOKEN_BYTES)


def sent_bytes(definition: bytes | Raw, name: bytes, exposed: bytes) -> int:
    """Return the bytes of a definition that a list gives under another name. `name`, `exposed`: as
    JSON. The list leaves out blanks between members then, but these are counted here."""
    return len(bytes(definition)) - len(name) + len(exposed)
