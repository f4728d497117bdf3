"""Traces of calls: which calls are traced, and the spans of each of them.

Owns: this decision, what is kept of a traced call until it has ended, what its server learns of the
trace, the names and attributes of a span (OpenTelemetry's conventions for MCP), the spans that wait
to be sent and their limits. Never: randomness, ids and clocks of its own, the loop, sending
(`trace_io`), the form of a `traceparent` (`mcp_headers`).

    server    from the request of the client to its answer, a child of the client's span
    client    from the worker to its server and back, a child of the first; the server gets this
              one as its parent
    client    from a question of the server to the answer of its client, a child of the second

Lists, calls of tools of the gateway, and calls whose server has not been up have only the first.
A call of a client that traces is traced if the client's own span is. A share of all other calls is
traced. The trace context of a call that is not traced passes as it came. A span has no arguments,
results, messages of errors or URIs in it, and of sessions and people only pseudonyms.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Raw, Struct, structs

from metamcp_worker.front_calls import call_faults, mcp_request, task_ids
from metamcp_worker.front_calls.calls import OWN
from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.http import mcp_headers
from metamcp_worker.http.mcp_headers import (
    SAMPLED,
    SPAN_BYTES,
    STATE_CHARACTERS_MAX,
    TRACE_BYTES,
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
)
from metamcp_worker.ipc import audit_records, codec, messages, process_names
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.messages import ServerCallTimes, Span, Value

UNDER_WAY_MAX = 10_000
"""Maximum number of traced calls that wait for their answer; a further call is not traced, and its
spans count as lost."""
PENDING_MAX = 8192
"""Maximum number of spans that wait to be sent: as many as the busiest front makes in a second when
all calls are traced."""
_OF_CALL = 2
"""Number of spans of one call."""
PIPE, NETWORK = "pipe", "tcp"
CANCELLED = "cancelled"
ID_CHARACTERS_MAX = 256
"""Maximum characters of the id of a request, which a client made up."""

#: Sentences for the status of a span, by `error.type`: messages of errors may hold arguments.
_STATUSES: Mapping[str, str] = {
    CANCELLED: "the call was cancelled",
    "tool_error": "the tool reports a failure",
    "refused": "a rule or a person refused the call",
    str(int(Code.SERVER_DOWN)): "the server is not available",
    str(int(Code.OVERLOADED)): "too many calls wait, or a limit is reached",
    str(int(Code.TIMED_OUT)): "the server did not answer in time",
    str(int(Code.TOO_LARGE)): "a message is larger than its limit",
    str(int(Code.AUTHORIZATION_NEEDED)): "the remote server needs authorization",
}

#: Attribute for the name of a tool or prompt, by method.
_NAMES: Mapping[str, str] = {task_ids.CALL: "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}


class _Failure(Struct, frozen=True, gc=False):
    """Failure of a request. `error`: as in the metrics, empty for a success; `code`: of the error;
    `status`: a sentence."""

    error: str = ""
    code: int = 0
    status: str = ""


_SUCCESS = _Failure()
_ABSENT = (Code.SERVER_DOWN, Code.OVERLOADED, Code.TIMED_OUT)
"""Codes of a list whose server has not answered it; another error is an answer of the server, which
may have no tools."""
_WORD = re.compile("[a-z_]{1,32}")


class TracedCall(Struct, gc=False):
    """Traced call under way. `parent`: id of the client's span, empty if it has none; `here`,
    `there`: ids of the two spans, the same without a second one; `name`, `original`: of its
    tool or prompt, as the client and as the server know it; `origin`: of its request, `id`: raw;
    `leg`: what the worker has reported; `waits`: the call only waits for the server of the
    request."""

    trace_id: str
    flags: int
    parent: str
    here: str
    there: str
    state: str
    method: str
    name: str
    original: str
    origin: CallOrigin | None
    id: bytes
    leg: ServerCallTimes | None = None
    waits: str = ""


class Tracing:
    """Traces of one front. `front`: its number. `dice`: returns a number from 0 to below 1. `mint`:
    returns so many random bytes, in hexadecimal."""

    def __init__(self, front: int, dice: Callable[[], float], mint: Callable[[int], str]) -> None:
        self._front = front
        self._dice = dice
        self._mint = mint
        self._sample = 0.0
        self._salt = b""
        self._under_way: dict[int, TracedCall] = {}
        self._pending: deque[Span] = deque()
        self._lost = 0

    def adjust(self, sample: float, salt: bytes) -> None:
        """Trace this share of the calls whose client says nothing of a trace. `salt`: of pseudonyms
        of the audit, empty without one."""
        self._sample, self._salt = sample, salt

    def on_call_start(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw]
    ) -> None:
        """Decide on a call that is about to be sent, and put its trace into the frame. `subject`:
        what the call is about, as the client says it; `params`: as the server will get them."""
        parent, meta = _parent(request)
        if parent is not None and not parent.is_sampled and meta is not request.meta:
            _tell(call, meta, traced=False)
        traced = self._trace(request, subject, parent, meta, call.origin)
        if traced is None:
            return
        if len(self._under_way) >= UNDER_WAY_MAX:
            self._lost += _OF_CALL
            return
        if call.server != OWN:
            traced.there = self._mint(SPAN_BYTES)
        if traced.method in _NAMES:
            traced.original = codec.text(params.get("name", b"null")) or ""
        self._under_way[call.id] = traced
        there = mcp_headers.traceparent(TraceContext(traced.trace_id, traced.there, traced.flags))
        server_meta = {**meta, TRACEPARENT: Raw(codec.dump(there))}
        if parent is None:
            server_meta.pop(TRACESTATE, None)  # of another trace, or of none
        _tell(call, server_meta, traced=True)

    def _trace(
        self, request: McpRequest, subject: str, parent: TraceContext | None,
        meta: Mapping[str, Raw], origin: CallOrigin | None,
    ) -> TracedCall | None:  # fmt: skip
        """Return what is kept of a request that is traced; None if it is not. `parent`, `meta`: see
        `_parent`."""
        if self._dice() >= self._sample if parent is None else not parent.is_sampled:
            return None
        trace_id = parent.trace_id if parent is not None else self._mint(TRACE_BYTES)
        here = self._mint(SPAN_BYTES)
        return TracedCall(
            trace_id=trace_id,
            flags=parent.flags if parent is not None else SAMPLED,
            parent=parent.span_id if parent is not None else "",
            here=here,
            there=here,
            state=_state(meta) if parent is not None else "",
            method=request.method,
            name=subject if request.method in _NAMES else "",
            original="",
            origin=origin,
            id=request.id,
        )

    def on_list(self, endpoint: str, request: McpRequest, began: float, now: float) -> bool:
        """Make the span of a list that was answered. Returns whether it is traced."""
        traced = self._trace(request, "", *_parent(request), _origin(endpoint, request))
        if traced is None:
            return False
        self.put(self._build_server_span(traced, began, now, {}, _SUCCESS))
        return True

    def on_server_missing(
        self, early: mcp_request.ServerNotReady, endpoint: str, first: Call | None, now: float
    ) -> bool:
        """Make the span of a request that is refused, because its server has not been up; `first`:
        when this call fails. Returns whether a span was made."""
        request = early.request
        origin = _origin(endpoint, request)
        traced = self._trace(request, early.subject, *_parent(request), origin)
        if traced is None:
            return False
        if len(self._under_way) >= UNDER_WAY_MAX:
            self._lost += 1
            return False
        traced.waits = early.server
        if first is not None:
            self._under_way[first.id] = traced
            return False
        code = int(early.code)
        attributes: dict[str, Value] = {"metamcp.server": early.server}
        failure = _failure(str(code), code)
        self.put(self._build_server_span(traced, now, now, attributes, failure))
        return True

    def find(self, call: Call) -> TracedCall | None:
        """Return what is kept of a call that is traced; None if it is not."""
        return self._under_way.get(call.id)

    def on_question_over(
        self, traced: TracedCall, question: Question, began: float, now: float, error: bytes | None
    ) -> None:
        """Make the span of a question that the server of a call asked. `error`: see `Question`."""
        attributes: dict[str, Value] = {
            "mcp.method.name": question.method,
            "metamcp.server": process_names.base(question.server),
            "network.transport": NETWORK,
        }
        self._describe_client(traced, attributes)
        code = call_faults.code_of(error) if error else 0
        failure = _failure(CANCELLED if error is None else str(code) if code else "", code)
        self.put(_span(
            "client", traced, question.method, self._mint(SPAN_BYTES), traced.there, began, now,
            attributes, failure,
        ))  # fmt: skip

    def on_worker_notice(self, notice: bytes) -> None:
        """Take over the notice in which a worker says when its server had a call."""
        leg = messages.unpack_leg(notice)
        traced = self._under_way.get(leg.id) if leg is not None else None
        if traced is not None:
            traced.leg = leg

    def on_call_end(self, call: Call, answer: CallAnswer | None, outcome: str, now: float) -> bool:
        """Make the spans of a call that has ended. `answer`: None if it was cancelled; `outcome`:
        empty, or what was wrong. Returns whether the call was traced."""
        traced = self._under_way.pop(call.id, None)
        if traced is None:
            return False
        if traced.waits and answer is not None and answer.code not in _ABSENT:
            return False  # the request goes on, and is traced then
        failure = _failure(outcome, answer.code if answer is not None else 0, answer)
        attributes: dict[str, Value] = {"metamcp.server": process_names.base(call.server)}
        if not traced.waits:
            attributes |= {"metamcp.front": self._front, "metamcp.call.id": call.id}
        self.put(self._build_server_span(traced, call.started, now, attributes, failure))
        if traced.there != traced.here and (call.wire is not None or call.ends):
            self.put(self._build_client_span(call, traced, now, failure))
        return True

    def take(self, most: int) -> tuple[list[Span], int]:
        """Return the next spans to send, the oldest first, and how many were lost."""
        lost, self._lost = self._lost, 0
        spans = [self._pending.popleft() for _ in range(min(most, len(self._pending)))]
        return spans, lost

    def lose(self, count: int) -> None:
        """Count spans that could not be sent."""
        self._lost += count

    def forget(self) -> None:
        """Drop the calls under way, because tracing is off; they get no spans."""
        self._under_way.clear()

    @property
    def pending_count(self) -> int:
        """Number of spans that wait to be sent."""
        return len(self._pending)

    def put(self, span: Span) -> None:
        """Let a span wait to be sent; it is lost if too many wait."""
        if len(self._pending) >= PENDING_MAX:
            self._lost += 1
        else:
            self._pending.append(span)

    def _build_server_span(
        self, traced: TracedCall, start: float, end: float, attributes: dict[str, Value],
        failure: _Failure,
    ) -> Span:  # fmt: skip
        """Return the span towards the client. `attributes`: that it has beside its usual ones."""
        attributes |= _name(traced.method, traced.name)
        attributes["network.transport"] = NETWORK
        self._describe_client(traced, attributes)
        if traced.id:
            request = codec.text(traced.id) or traced.id.decode("utf-8", "replace")
            attributes["jsonrpc.request.id"] = request[:ID_CHARACTERS_MAX]
        name = f"{traced.method} {traced.name}" if traced.name else traced.method
        return _span(
            "server", traced, name, traced.here, traced.parent, start, end, attributes, failure
        )

    def _describe_client(self, traced: TracedCall, attributes: dict[str, Value]) -> None:
        """Add what is known of the client: people and sessions as the audit names them."""
        origin = traced.origin
        if origin is None:
            return
        attributes["metamcp.endpoint"] = origin.endpoint
        if origin.version:
            attributes["mcp.protocol.version"] = origin.version
        if not self._salt:
            return
        who = origin.principal
        if origin.who:
            attributes["mcp.session.id"] = audit_records.pseudonym(self._salt, origin.who)
        if who.key:
            attributes["metamcp.key"] = who.key
        elif who.auth == "oauth":
            attributes["enduser.pseudo.id"] = audit_records.pseudonym(self._salt, who.name)

    def _build_client_span(
        self, call: Call, traced: TracedCall, now: float, failure: _Failure
    ) -> Span:
        """Return the span towards the server. Without a notice of the worker it takes the time that
        the front has seen."""
        attributes = _name(traced.method, traced.original)
        attributes["metamcp.server"] = process_names.base(call.server)
        start, end, leg = call.started, now, traced.leg
        if leg is not None:
            start, end = max(start, leg.sent), min(end, leg.heard)
            attributes["network.transport"] = NETWORK if leg.far else PIPE
            about: dict[str, Value] = {
                "jsonrpc.request.id": leg.request, "mcp.protocol.version": leg.protocol,
                "server.address": leg.address, "server.port": leg.port,
            }  # fmt: skip
            attributes |= {key: value for key, value in about.items() if value}
        if call.wire is not None:
            attributes["metamcp.generation"] = call.wire.generation
        if call.ends:
            attributes["metamcp.retried"] = True
        name = f"{traced.method} {traced.original}" if traced.original else traced.method
        return _span(
            "client", traced, name, traced.there, traced.here, start, end, attributes, failure
        )


def _span(
    kind: Literal["server", "client"], traced: TracedCall, name: str, span_id: str, parent: str,
    start: float, end: float, attributes: dict[str, Value], failure: _Failure,
) -> Span:  # fmt: skip
    if failure.error:
        attributes["error.type"] = failure.error
    if failure.code:
        attributes["rpc.response.status_code"] = str(failure.code)
    if failure.status:
        attributes[messages.SPAN_STATUS] = failure.status
    return Span(
        kind=kind,
        name=name,
        trace_id=traced.trace_id,
        span_id=span_id,
        parent_id=parent,
        far=kind == "server",
        flags=traced.flags,
        start=start,
        end=end,
        attributes=attributes,
        state=traced.state,
        error=failure.error,
    )


def _name(method: str, name: str) -> dict[str, Value]:
    """Return the attributes that say what a call is."""
    attributes: dict[str, Value] = {"mcp.method.name": method}
    if method == task_ids.CALL:
        attributes["gen_ai.operation.name"] = "execute_tool"
    if name:
        attributes[_NAMES[method]] = name
    return attributes


def _failure(outcome: str, code: int, answer: CallAnswer | None = None) -> _Failure:
    """Return what was wrong, as the metrics name it; for a server that is down with the reason."""
    if not outcome:
        return _SUCCESS
    status = _STATUSES.get(outcome) or f"the answer is the error {outcome}"
    if code == Code.SERVER_DOWN and answer is not None:
        data = codec.members(codec.members(answer.body).get("data", b""))
        reason = codec.text(data.get("reason", b"null")) or ""
        if _WORD.fullmatch(reason):
            status = f"{status}: {reason}"
    return _Failure(outcome, int(code), status)


def _origin(endpoint: str, request: McpRequest) -> CallOrigin:
    """Return the origin of a request that becomes no call."""
    return CallOrigin(
        endpoint, "", b"", request.who, progress=False, version=request.version,
        principal=request.principal,
    )  # fmt: skip


def _parent(request: McpRequest) -> tuple[TraceContext | None, dict[str, Raw]]:
    """Return the client's place in a trace, and `_meta` as the server is to get it. If only HTTP
    headers give the place, their members are put into `_meta`. Baggage belongs to the request, so
    it stays wherever the place comes from."""
    meta = request.meta
    context = mcp_headers.parsed_traceparent(codec.text(meta.get(TRACEPARENT, b"null")) or "")
    if context is not None or not request.headers:
        return context, meta
    header_members = mcp_headers.trace_headers(request.headers)
    context = mcp_headers.parsed_traceparent(header_members.get(TRACEPARENT, ""))
    if context is None:
        return None, meta
    others = {key: raw for key, raw in meta.items() if key not in (TRACEPARENT, TRACESTATE)}
    return context, others | {key: Raw(codec.dump(text)) for key, text in header_members.items()}


def _state(meta: Mapping[str, Raw]) -> str:
    text = codec.text(meta.get(TRACESTATE, b"null")) or ""
    return text if len(text) <= STATE_CHARACTERS_MAX else ""


def _tell(call: Call, meta: Mapping[str, Raw], *, traced: bool) -> None:
    """Put this `_meta` into the frame that the server gets."""
    assert call.frame is not None  # it is not sent yet
    call.frame = structs.replace(call.frame, meta=codec.dump(meta), traced=traced)
