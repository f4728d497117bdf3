"""Orders of clients for the engine, and what the engine asks for, as requests of its owners.

Owns: the order that a tool becomes; the owner of a run, and the principal that it stands for; the
request of a call of a run; the answer that the engine gets. Never: the connection to the engine
(`engine_calls_io`), which calls are allowed (`calls`), what the engine does.
"""

from collections.abc import Mapping

from msgspec import Raw, structs

from metamcp_worker.access import gate
from metamcp_worker.access.gate import Principal
from metamcp_worker.builtin_tools.builtin import EngineWork
from metamcp_worker.catalog.catalog import ListEntry, MergedCatalog
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import call_faults, client_questions, mrtr, task_ids
from metamcp_worker.front_calls.request_facts import CallAnswer, InnerRun, McpRequest
from metamcp_worker.front_steps import code_calls
from metamcp_worker.guard.guard_rules import CallSource
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import EngineOrder, HostAsk, HostDone, Method, RunOwner, Trouble
from metamcp_worker.ipc.errors import Code, ProtocolError

ELICIT, SAMPLE = "elicitation/create", "sampling/createMessage"
UNASKABLE = "the client of this run cannot be asked this"
"""Sentence for a question whose client is away, or has not declared to understand it."""

_NO_MODEL = "A model is not configured here, see [ai]."
_NO_WORKFLOWS = "Workflows are not configured here, see the key workflows."
_MISSING: Mapping[Method, str] = {
    "agent": _NO_MODEL,
    "suggest": "Suggestions are not configured here, see [ai] and [suggestions].",
}
_NESTED = "{} cannot be called from code, an agent or a workflow; call it directly."
_ALONE: Mapping[Method, str] = {"agent": "run_agent", "workflow/run": "run_workflow"}
_LOST = "the process of the engine ended or cannot be reached; try again"
_GOES_ON = (
    "The process of the engine ended or cannot be reached. A run that has begun goes on when it is"
    " back; workflow_status shows it."
)
_LOST_WITH = frozenset({"worker", "front", "stopping"})
"""Reasons of errors for calls that a process of the gateway had when it ended."""
_TROUBLES: Mapping[int, Trouble] = {
    Code.TIMED_OUT: "timeout", Code.SERVER_DOWN: "unavailable", Code.OVERLOADED: "unavailable",
}  # fmt: skip


def refusal(work: EngineWork, request: McpRequest, *, there: bool) -> str:
    """Return why an order is not given, or an empty string. `there`: whether there is an engine."""
    if not there:
        return _MISSING.get(work.method, _NO_WORKFLOWS)
    if request.run is not None and work.method in _ALONE:
        return _NESTED.format(_ALONE[work.method])
    return ""


def describe_loss(method: Method) -> str:
    """Return the sentence for a client whose order lost the engine."""
    return _GOES_ON if method == "workflow/run" else f"{_LOST[:1].upper()}{_LOST[1:]}."


def order(
    number: int, work: EngineWork, view: View, request: McpRequest, *, here: bool, traced: bool
) -> EngineOrder:
    """Return the order for the engine. `here`: whether the client can get messages; `traced`: the
    call has a span, which `_meta` of the request names."""
    caller = request.caller
    trace = codec.text(request.meta["traceparent"]) if traced else ""
    return EngineOrder(
        id=number, method=work.method, owner=owner(view, request), params=work.params,
        progress=here and request.wants_progress,
        asks=here and client_questions.may_be_asked(caller, ELICIT, b"{}"),
        samples=here and client_questions.may_be_asked(caller, SAMPLE, b"{}"), trace=trace or "",
    )  # fmt: skip


def owner(view: View, request: McpRequest) -> RunOwner:
    """Return the owner of a run that this request begins."""
    who = request.principal
    return RunOwner(
        endpoint=view.whole, name=who.name,
        workspace=view.spec.workspace,
        scopes=None if who.scopes is None else tuple(sorted(who.scopes)),
        servers=None if who.servers is None else tuple(sorted(who.servers)),
        key=who.key, auth=who.auth, expires=who.expires, held=tuple(sorted(who.held)),
        label=who.label,
        modern=request.modern,
    )  # fmt: skip


def principal(of: RunOwner) -> Principal:
    """Return the principal that an owner was."""
    if of.auth == gate.USER.auth and of.name == gate.LOCAL:
        return gate.USER
    return Principal(
        name=of.name, workspace=of.workspace,
        scopes=None if of.scopes is None else frozenset(of.scopes),
        servers=None if of.servers is None else frozenset(of.servers),
        key=of.key, auth=of.auth, expires=of.expires, held=frozenset(of.held), label=of.label,
    )  # fmt: skip


def base(ask: HostAsk, who: Principal, of: McpRequest | None, *, agent: bool = False) -> McpRequest:
    """Return the request that a call of a run is built from. `of`: request of the client that
    waits, if there is one; `agent`: the run is an agent's. Raises codec.Malformed."""
    source: CallSource = "agent" if agent or ask.consent else "workflow"
    run, meta = InnerRun(ask.run, 0, source=source), codec.level(ask.meta)
    if of is None:
        modern = ask.owner.modern
        return McpRequest(task_ids.CALL, {}, meta, b"", modern, principal=who, run=run)
    made = code_calls.base(of, ask.run)
    return structs.replace(made, meta=made.meta | meta, principal=who, run=run)


class RepeatableTools:
    """Tools of one merge that may run twice, as their annotations say."""

    def __init__(self, merged: MergedCatalog) -> None:
        self.merged = merged
        self._entries: dict[str, ListEntry] = {entry.key: entry for entry in merged.lists["tools"]}
        self._entries |= {entry.key: entry for entry in merged.offered}

    def has(self, name: str) -> bool:
        """Whether this tool may run twice."""
        entry = self._entries.get(name)
        return entry is not None and bool(call_faults.hint(codec.level(entry.item.raw)))


def build_refusal(number: int, error: ProtocolError) -> HostDone:
    """Return the answer for a call that no server got."""
    trouble = _TROUBLES.get(error.code, "error")
    return build_failure(number, error.message, trouble, repeatable=True)


def build_failure(
    number: int, message: str, trouble: Trouble = "error", *, repeatable: bool = False
) -> HostDone:
    return HostDone(call=number, trouble=trouble, error=message, repeatable=repeatable)


def to_host_done(number: int, answer: CallAnswer | None, *, repeatable: bool) -> HostDone:
    """Return what the engine gets for an answer; None: the call was cancelled."""
    if answer is None:
        return build_failure(number, "the call was cancelled", repeatable=repeatable)
    try:
        if answer.code:
            members = codec.level(answer.body)
            message = codec.text(members.get("message", b"null")) or f"error {answer.code}"
            data = codec.members(members.get("data", Raw()))
            ran = bytes(data.get("may_have_run", b"")) != b"false"
            lost = ran and codec.text(data.get("reason", b"null")) in _LOST_WITH
            return HostDone(
                call=number, trouble=_TROUBLES.get(answer.code, "error"), error=message,
                repeatable=repeatable or not ran, lost=lost and answer.code == Code.SERVER_DOWN,
            )  # fmt: skip
        if mrtr.parse(answer.body) is not None:
            return build_failure(number, code_calls.ASKS, repeatable=repeatable)
        codec.check(answer.body)
        answer.body.decode()
    except (codec.Malformed, UnicodeDecodeError) as why_not:
        return build_failure(number, f"the answer cannot be read: {why_not}", repeatable=repeatable)
    return HostDone(call=number, result=Raw(answer.body), repeatable=repeatable)


def with_structured_content(answer: HostDone) -> HostDone:
    """Return the answer with the structured content of a tool's result in place of the result; a
    failure without such content is an error."""
    if answer.trouble:
        return answer
    members = codec.level(answer.result)
    content = members.get("structuredContent")
    if content is not None:
        return structs.replace(answer, result=content)
    blocks = codec.items(members.get("content", b"[]"))
    text = codec.text(codec.level(blocks[0]).get("text", b"null")) if blocks else None
    return build_failure(answer.call, text or "the code could not begin")


def pack_answer(number: int, body: bytes, *, error: bool) -> HostDone:
    """Return what the engine gets for a client's answer to a question. `error`: whether `body` is
    an error object."""
    return to_host_done(
        number, CallAnswer(body, call_faults.code_of(body) if error else 0), repeatable=True
    )
