"""Messages about middleware, between fronts, the process of a middleware and the supervisor.

Owns: the names of hooks, the fields and limits of messages. Never: the order of middleware in a
call (`middleware.chain`), running a hook (`middleware.run`).

A front connects to each middleware by its connector (`packets`), and both send frames as for runs
of code (`code_runs`). The process begins with `MiddlewareReady`. Values of users are raw JSON all
the way; `null` stands for a value that is as the other side has it.
"""

from typing import Literal

from msgspec import Raw, Struct

from metamcp_worker.ipc.envelope import Message

Hook = Literal["on_call_tool", "on_get_prompt", "on_read_resource", "on_list_tools"]
HOOKS: tuple[Hook, ...] = ("on_call_tool", "on_get_prompt", "on_read_resource", "on_list_tools")
OF_METHOD: dict[str, Hook] = {
    "tools/call": "on_call_tool",
    "prompts/get": "on_get_prompt",
    "resources/read": "on_read_resource",
}
"""Hook for requests, by method."""
ROLE = "middleware"
"""Word for all processes of middleware."""
EXIT_MEMORY = 71
"""Exit code of a process whose memory is used up."""
SAME = Raw(b"null")
"""Raw value that stands for the one that the other side has already."""


def role_of(name: str) -> str:
    """Return the name of the process of a middleware."""
    return f"{ROLE} {name}"


class MiddlewareSpec(Struct, frozen=True, kw_only=True):
    """Middleware as fronts know it. `match`: patterns `SERVER/NAME`; `timeout_ms`: of its own time
    in one request; `enforce`: a failure ends the request."""

    name: str
    match: tuple[str, ...]
    timeout_ms: int
    enforce: bool = True


class MiddlewareReady(Message, frozen=True, kw_only=True):
    """Process: it takes requests. `hooks`: those that the middleware defines; `trouble`: a sentence
    why it cannot work, empty if it can; `listens`: it wants to hear of changed lists."""

    hooks: tuple[Hook, ...] = ()
    trouble: str = ""
    listens: bool = False


class StartHook(Message, frozen=True, kw_only=True):
    """Front: run a hook. `id`: chosen by the front, unique on its connection, 0 in the facts about
    a request before any hook has it. `name`: the server's own name of the tool or prompt, or the
    URI; `arguments`: raw, as the client sent them; `annotations`: raw, of the tool; `caller`: raw,
    as in `McpRequest`."""

    id: int = 0
    hook: Hook
    server: str
    name: str = ""
    arguments: Raw = SAME
    annotations: Raw = SAME
    endpoint: str = ""
    workspace: str = ""
    principal: str = ""
    caller: Raw = SAME


class HookNext(Message, frozen=True, kw_only=True):
    """Process: the hook awaits `call_next`. `arguments`: raw, `SAME` if the hook has not changed
    them."""

    id: int
    arguments: Raw = SAME


class NextDone(Message, frozen=True, kw_only=True):
    """Front: result of `call_next`, raw; an error object if `failed`."""

    id: int
    result: Raw
    failed: bool = False


class HookEnded(Message, frozen=True, kw_only=True):
    """Process: the hook is over. `result`: raw, `SAME` for that of `call_next`; `failure`: words
    for what went wrong, empty if nothing did; `refuses`: it ends the request in any mode."""

    id: int
    result: Raw = SAME
    failure: str = ""
    refuses: bool = False


class EndHook(Message, frozen=True, kw_only=True):
    """Front: the request is over; cancel its hook."""

    id: int


class ListsChanged(Message, frozen=True, kw_only=True):
    """Front: lists of this server may have changed."""

    server: str


class MiddlewareReplaced(Message, frozen=True, kw_only=True):
    """Process: it is being replaced. New requests go to the next one, on a new connection; those
    under way go on."""


class MiddlewareOn(Message, frozen=True, kw_only=True):
    """Supervisor: first message to the process, with its acceptor as descriptor. `entry`:
    name of the entry point; `options`: raw; `hang_s`: seconds without a turn of the event loop
    after which the kernel ends the process; `memory_bytes`: of data beyond those of the start."""

    name: str
    entry: str
    options: Raw
    hang_s: float
    memory_bytes: int


class MiddlewareFigures(Message, frozen=True, kw_only=True):
    """Process to supervisor, when they have changed: requests since the process began, and those
    under way; `trouble`: as in `MiddlewareReady`."""

    requests: int = 0
    running: int = 0
    trouble: str = ""
