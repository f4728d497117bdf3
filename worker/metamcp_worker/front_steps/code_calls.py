"""Calls that code makes: the requests that they become, and the answers that code gets.

Owns: the limits of a run; the request of a call, which is one of the client that runs the code; the
names by which code knows tools; what an answer is for code. Never: the connection to the sandboxes
and the table of runs (`code_calls_io`), which calls are allowed (`calls`).
"""

import re

from msgspec import Raw, structs

from metamcp_worker.builtin_tools import code_tools
from metamcp_worker.builtin_tools.builtin import Run
from metamcp_worker.catalog.catalog import MergedCatalog
from metamcp_worker.front_calls import mcp_request, mrtr, task_ids
from metamcp_worker.front_calls.request_facts import CallAnswer, InnerRun, McpRequest
from metamcp_worker.guard.consent import plain, shown_arguments
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.code_runs import CodeLimits, HostReply
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.runtime.masking import SecretMasker

DEPTH_MAX = 3
"""Maximum runs that are within each other: a script that runs a script that runs a script."""
DEPTH_SPARE = 64
"""Levels that an answer could have more before a reader refuses it. The sandboxes read it with
fewer levels to spare than this process, and would end all runs of this front for it."""
ASKS = (
    "the tool asks its user something before it goes on, which a call from code cannot pass on;"
    " call it without code"
)
"""Refusal for a server that wants input from the client."""
ALL = "all"
UNASKABLE = (
    "it wanted to call {}, which may change or destroy something, and the client cannot ask its"
    " user; consent = false in [ai] lets agents make such calls"
)
DECLINED = "it wanted to call {}, and the user did not agree"
UNSHOWN = "it wanted to call {}, and the arguments cannot be shown to the user: {}"

_TRACE = frozenset({"traceparent", "tracestate", "baggage"})
_OTHER = re.compile(r"[^A-Za-z0-9_$]")


def refusal(run: Run, request: McpRequest) -> str:
    """Return why this run cannot begin, or an empty string."""
    within = request.run
    if within is None or not within.depth:
        return ""
    if not run.script:
        return f"{code_tools.WITHIN}."
    if within.depth >= DEPTH_MAX:
        return f"Scripts run at most {DEPTH_MAX} deep within each other; this is one more."
    return ""


def limits(most: CodeLimits, run: Run) -> CodeLimits:
    """Return the limits of a run. `most`: those of its endpoint, whose time a call may lower."""
    if not 0 < run.timeout_ms < most.timeout_ms:
        return most
    return structs.replace(most, timeout_ms=run.timeout_ms)


def base(request: McpRequest, run: str) -> McpRequest:
    """Return the request that the calls of a run are built from. `request`: for the run itself;
    `run`: id of the run."""
    outer = InnerRun("", 0) if request.run is None else request.run
    caller = request.caller
    if b"/tasks" in caller:  # nobody could ask for the result of a task
        caller = mcp_request.without_tasks(caller)
    meta = {key: raw for key, raw in request.meta.items() if key in _TRACE}
    return structs.replace(
        request, method=task_ids.CALL, params={}, meta=meta, caller=caller, wants_progress=False,
        id=b"", run=InnerRun(run, outer.depth + 1, outer.allowed, outer.source),
    )  # fmt: skip


def call(of: McpRequest, name: str, arguments: Raw) -> McpRequest:
    """Return the request for one call. `of`: see `base`; `name`: of the tool, as exposed."""
    return structs.replace(of, params={"name": Raw(codec.dump(name)), "arguments": arguments})


class NeedsConsent(Exception):
    """Raised for a call that the user of an agent has to agree to. `name`: of the tool."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def check_consent(merged: MergedCatalog, name: str, request: McpRequest) -> None:
    """Raise NeedsConsent if the user has to agree to this call first: an agent makes it, and the
    tool may destroy something. Annotations that are left out mean that it may: `ToolAnnotations` of
    MCP has the defaults false for `readOnlyHint` and true for `destructiveHint`."""
    allowed = None if request.run is None else request.run.allowed
    if allowed is None or name in allowed or (owner := merged.tool(name)) is None:
        return
    if owner.guard is not None and owner.guard.asks:
        return  # a person is asked about this very call in any case
    entries = (*merged.lists["tools"], *merged.offered)
    raw = next((entry.item.raw for entry in entries if entry.key == name), Raw(b"{}"))
    hints = codec.level(codec.level(raw).get("annotations", b"{}"))
    if not owner.server and bytes(hints.get("openWorldHint", b"")) == b"true":
        return  # a tool of the gateway that calls others, each of which is asked about
    reads = bytes(hints.get("readOnlyHint", b"")) == b"true"
    if not reads and bytes(hints.get("destructiveHint", b"")) != b"false":
        raise NeedsConsent(name)


def consent(name: str, arguments: Raw) -> bytes:
    """Return the params of the question whether an agent may make this call. Raises
    codec.Malformed for arguments that cannot be shown as they will run."""
    text = shown_arguments(bytes(arguments), SecretMasker())
    all_of_them = {"type": "boolean", "title": "Also further calls of this tool", "default": False}
    return codec.dump({
        "message": f"May the agent call {plain(name)}? It may change or destroy something."
        f" With: {text}",
        "requestedSchema": {"type": "object", "properties": {ALL: all_of_them}},
    })  # fmt: skip


def parse_consent(body: bytes, *, error: bool) -> tuple[bool, bool]:
    """Return whether the user agrees to the call, and to further ones of the tool. `body`: the raw
    answer; `error`: whether it is an error object."""
    try:
        members = {} if error else codec.level(body)
        further = codec.level(members.get("content", b"{}"))
    except codec.Malformed:
        return False, False
    agreed = codec.text(members.get("action", b"null")) == "accept"
    return agreed, agreed and bytes(further.get(ALL, b"")) == b"true"


class ToolNames:
    """Exposed names of the tools of one merge, by server and tool. A character that no identifier
    has may be written as `_`, unless another tool has that name."""

    def __init__(self, merged: MergedCatalog) -> None:
        self.merged = merged
        self._servers = {process_names.label(name): name for name in merged.eras}
        self._servers |= {process_names.label(name): name for name in merged.unknown}
        for label, name in list(self._servers.items()):
            self._servers.setdefault(identifier(label), name)
        pairs = [
            (owner.server, codec.text(owner.original) or name, name)
            for name, owner in merged.tools.items()
            if owner.server
        ]
        self._names = {(server, tool): name for server, tool, name in pairs}
        for server, tool, name in pairs:
            self._names.setdefault((server, identifier(tool)), name)

    def find(self, server: str, tool: str) -> str:
        """Return the exposed name of the tool; for an unknown one a name that no tool has, or by
        which a server that lists not all of its tools knows it. Raises ProtocolError for an unknown
        server."""
        own = self._servers.get(server)
        if own is None:
            names = ", ".join(sorted(map(process_names.label, self._servers.values()))) or "none"
            message = f"server {server[:64]!r} is not behind this endpoint; there are: {names}"
            raise ProtocolError(Code.INVALID_PARAMS, message)
        name = self._names.get((own, tool)) or self._names.get((own, identifier(tool)))
        if name is not None:
            return name
        return tool if self.merged.only is not None else f"{own}.{tool}"


def identifier(name: str) -> str:
    return _OTHER.sub("_", name)


def describe_refusal(refusal: ProtocolError, name: str, merged: MergedCatalog) -> str:
    """Return the sentence for code whose call was refused. `name`: of the tool, as exposed."""
    is_known = merged.tool(name) is not None or not name
    return (
        refusal.message if is_known else refusal.message + code_tools.unknown(name, merged.offered)
    )


def error(run: int, number: int, message: str) -> HostReply:
    """Return what code gets for a call that failed. `message`: a sentence."""
    return HostReply(run=run, call=number, result=Raw(b"null"), error=message)


def reply(run: int, number: int, answer: CallAnswer | None) -> HostReply:
    """Return what code gets for an answer; None: the call was cancelled."""
    if answer is None:
        return error(run, number, "the call was cancelled")
    try:
        if answer.code:
            message = codec.text(codec.level(answer.body).get("message", b"null"))
            return error(run, number, message or f"error {answer.code}")
        if mrtr.parse(answer.body) is not None:
            return error(run, number, ASKS)
        codec.check(b"[" * DEPTH_SPARE + answer.body + b"]" * DEPTH_SPARE)
    except codec.Malformed as malformed:
        return error(run, number, f"the answer cannot be read: {malformed}")
    return HostReply(run=run, call=number, result=Raw(answer.body))
