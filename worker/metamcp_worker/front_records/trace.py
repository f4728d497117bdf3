"""Traces of calls: which calls are traced, and the two spans of each of them.

Owns: this decision, what is kept of a traced call until it has ended, what its server learns of the
trace, the names and attributes of a span (OpenTelemetry's conventions for MCP), the spans that wait
to be sent and their limits. Never: randomness, ids and clocks of its own, the loop, sending
(`trace_io`), the form of a `traceparent` (`mcp_headers`).

    server    from the request of the client to its answer, a child of the client's span
    client    from the worker to its server and back, a child of the first; the server gets this
              one as its parent

A call of a client that traces is traced if the client's own span is. A share of all other calls is
traced. The trace context of a call that is not traced passes as it came. A span has no arguments,
results, messages of errors or URIs in it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Raw, Struct, structs

from metamcp_worker.front_calls import task_ids
from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
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
from metamcp_worker.ipc import codec, messages, process_names
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

#: Attribute for the name of a tool or prompt, by method.
_NAMES: Mapping[str, str] = {task_ids.CALL: "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}


class _TracedCall(Struct, gc=False):
    """Traced call under way. `parent`: id of the client's span, empty if it has none; `here`,
    `there`: ids of the two spans; `name`, `original`: of its tool or prompt, as the client and as
    the server know it; `leg`: times that the worker has reported."""

    trace_id: str
    flags: int
    parent: str
    here: str
    there: str
    state: str
    method: str
    name: str
    original: str
    leg: ServerCallTimes | None = None


class Tracing:
    """Traces of one front. `front`: its number. `dice`: returns a number from 0 to below 1. `mint`:
    returns so many random bytes, in hexadecimal."""

    def __init__(self, front: int, dice: Callable[[], float], mint: Callable[[int], str]) -> None:
        self._front = front
        self._dice = dice
        self._mint = mint
        self._sample = 0.0
        self._under_way: dict[int, _TracedCall] = {}
        self._pending: deque[Span] = deque()
        self._lost = 0

    def adjust(self, sample: float) -> None:
        """Trace this share of the calls whose client says nothing of a trace."""
        self._sample = sample

    def on_call_start(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw]
    ) -> None:
        """Decide on a call that is about to be sent, and put its trace into the frame. `subject`:
        what the call is about, as the client says it; `params`: as the server will get them."""
        parent, meta = _parent(request)
        if parent is not None and not parent.is_sampled:
            if meta is not request.meta:
                _tell(call, meta, traced=False)
            return
        if parent is None and self._dice() >= self._sample:
            return
        if len(self._under_way) >= UNDER_WAY_MAX:
            self._lost += _OF_CALL
            return
        name_attribute = _NAMES.get(request.method)
        traced = _TracedCall(
            trace_id=parent.trace_id if parent is not None else self._mint(TRACE_BYTES),
            flags=parent.flags if parent is not None else SAMPLED,
            parent=parent.span_id if parent is not None else "",
            here=self._mint(SPAN_BYTES),
            there=self._mint(SPAN_BYTES),
            state=_state(meta) if parent is not None else "",
            method=request.method,
            name=subject if name_attribute else "",
            original=(codec.text(params.get("name", b"null")) or "") if name_attribute else "",
        )
        self._under_way[call.id] = traced
        there = mcp_headers.traceparent(TraceContext(traced.trace_id, traced.there, traced.flags))
        server_meta = {**meta, TRACEPARENT: Raw(codec.dump(there))}
        if parent is None:
            server_meta.pop(TRACESTATE, None)  # of another trace, or of none
        _tell(call, server_meta, traced=True)

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
        code = answer.code if answer is not None else 0
        self._put(self._server(call, traced, outcome, code, now))
        if call.wire is not None or call.ends:
            self._put(self._client(call, traced, outcome, code, now))
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

    def _put(self, span: Span) -> None:
        if len(self._pending) >= PENDING_MAX:
            self._lost += 1
        else:
            self._pending.append(span)

    def _server(self, call: Call, traced: _TracedCall, outcome: str, code: int, now: float) -> Span:
        attributes = _attributes(call, traced.method, traced.name, outcome, code)
        attributes["network.transport"] = NETWORK
        attributes["metamcp.front"] = self._front
        attributes["metamcp.call.id"] = call.id
        origin = call.origin
        if origin is not None:
            attributes["metamcp.endpoint"] = origin.endpoint
            if origin.version:
                attributes["mcp.protocol.version"] = origin.version
        return _span(
            "server", traced, traced.name, traced.here, traced.parent, call.started, now,
            attributes, outcome,
        )  # fmt: skip

    def _client(self, call: Call, traced: _TracedCall, outcome: str, code: int, now: float) -> Span:
        """Return the client span. Without a notice of the worker it takes the time that the front
        has seen."""
        attributes = _attributes(call, traced.method, traced.original, outcome, code)
        start, end, leg = call.started, now, traced.leg
        if leg is not None:
            start, end = max(start, leg.sent), min(end, leg.heard)
            attributes["network.transport"] = NETWORK if leg.far else PIPE
        if call.wire is not None:
            attributes["metamcp.generation"] = call.wire.generation
        if call.ends:
            attributes["metamcp.retried"] = True
        return _span(
            "client", traced, traced.original, traced.there, traced.here, start, end,
            attributes, outcome,
        )  # fmt: skip


def _span(
    kind: Literal["server", "client"], traced: _TracedCall, name: str, span_id: str, parent: str,
    start: float, end: float, attributes: dict[str, Value], outcome: str,
) -> Span:  # fmt: skip
    return Span(
        kind=kind,
        name=f"{traced.method} {name}" if name else traced.method,
        trace_id=traced.trace_id,
        span_id=span_id,
        parent_id=parent,
        far=kind == "server",
        flags=traced.flags,
        start=start,
        end=end,
        attributes=attributes,
        state=traced.state,
        error=outcome,
    )


def _attributes(call: Call, method: str, name: str, outcome: str, code: int) -> dict[str, Value]:
    """Return the attributes that both spans have."""
    attributes: dict[str, Value] = {
        "mcp.method.name": method,
        "metamcp.server": process_names.base(call.server),
    }
    if method == task_ids.CALL:
        attributes["gen_ai.operation.name"] = "execute_tool"
    if name:
        attributes[_NAMES[method]] = name
    if outcome:
        attributes["error.type"] = outcome
    if code:
        attributes["rpc.response.status_code"] = str(int(code))
    return attributes


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
