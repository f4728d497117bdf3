"""Which calls are traced, what their servers are told of that, and what is told of them."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.access.gate import USER, Principal
from metamcp_worker.front_calls.calls import OWN
from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.mcp_request import ServerNotReady
from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin, McpRequest
from metamcp_worker.front_calls.server_links import Call, ServerLink, Wire
from metamcp_worker.front_records.trace import PENDING_MAX, UNDER_WAY_MAX, Tracing
from metamcp_worker.ipc import audit_records, codec, messages
from metamcp_worker.ipc.frames import CallFrame
from metamcp_worker.ipc.messages import SPAN_STATUS, ServerCallTimes, Span

pytestmark = pytest.mark.promise("M88")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"
Headers = tuple[tuple[bytes, bytes], ...]


class Dice:
    """What is thrown next. `minted`: so many ids."""

    def __init__(self, throw: float = 0.0) -> None:
        self.throw = throw
        self.minted = 0

    def throws(self) -> float:
        return self.throw

    def mint(self, size: int) -> str:
        self.minted += 1
        return f"{self.minted:0{2 * size}x}"


def traced(sample: float = 0.5, throw: float = 0.0, salt: bytes = b"") -> Tracing:
    dice = Dice(throw)
    made = Tracing(0, dice.throws, dice.mint)
    made.adjust(sample, salt)
    return made


def _uncancelled(call: Call, why: str) -> None:
    """Nobody cancels these."""


def begun(
    tracing: Tracing,
    number: int = 1,
    method: str = "tools/call",
    headers: Headers = (),
    params: Mapping[str, Raw] | None = None,
    **meta: object,
) -> Call:
    """A call that is about to be sent, of a client that says this in `_meta`."""
    members = {key: Raw(codec.dump(value)) for key, value in meta.items()}
    given = {"name": Raw(b'"t"'), "arguments": Raw(b'{"secret":"hunter2"}'), **(params or {})}
    request = McpRequest(method, dict(given), members, b"", True, headers=headers, id=b'"r-1"')
    raw = codec.dump(members) if members else b""
    frame = CallFrame(number, method, codec.dump(given), raw)
    call = Call("git@abc", frame, _uncancelled, 10.0, label=method)
    call.origin = CallOrigin("default", "git__t", b"", "", False, "2026-07-28", "t")
    tracing.on_call_start(call, "git__t", request, given)
    return call


def sent(call: Call) -> Call:
    call.wire = Wire(ServerLink("git", 60.0), 3)
    return call


def told(call: Call) -> dict[str, Any]:
    """What the server gets as `_meta`."""
    assert call.frame is not None
    found: dict[str, Any] = codec.value(call.frame.meta or b"{}")
    return found


def over(tracing: Tracing, call: Call, code: int = 0, outcome: str = "") -> list[Span]:
    tracing.on_call_end(sent(call), CallAnswer(b"{}", code), outcome, 12.0)
    return tracing.take(99)[0]


async def test_a_call_of_a_client_that_traces_is_a_child_and_its_server_a_grandchild() -> None:
    tracing = traced(sample=0.0)
    call = begun(tracing, traceparent=PARENT, tracestate="a=1", baggage="user=x", other=1)
    assert call.frame is not None
    assert call.frame.traced
    meta = told(call)
    assert (meta["tracestate"], meta["baggage"], meta["other"]) == ("a=1", "user=x", 1)
    tracing.on_worker_notice(messages.pack_leg(ServerCallTimes(call.id, 10.5, 11.5, False)))
    server, client = over(tracing, call)
    assert {server.trace_id, client.trace_id} == {TRACE}
    assert (server.parent_id, server.far) == (SPAN, True)
    assert (client.parent_id, client.far) == (server.span_id, False)
    assert meta["traceparent"] == f"00-{TRACE}-{client.span_id}-01"
    assert (server.name, client.name) == ("tools/call git__t", "tools/call t")
    assert (server.start, server.end) == (10.0, 12.0)
    assert (client.start, client.end) == (10.5, 11.5)
    assert server.state == client.state == "a=1"
    assert server.attributes == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "git__t",
        "mcp.protocol.version": "2026-07-28",
        "network.transport": "tcp",
        "jsonrpc.request.id": "r-1",
        "metamcp.server": "git",
        "metamcp.endpoint": "default",
        "metamcp.front": 0,
        "metamcp.call.id": 1,
    }
    assert client.attributes == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "t",
        "network.transport": "pipe",
        "metamcp.server": "git",
        "metamcp.generation": 3,
    }
    assert "hunter2" not in codec.dump([server, client]).decode()


@pytest.mark.parametrize(
    ("sample", "throw", "yes"),
    [(0.0, 0.0, False), (0.1, 0.0999, True), (0.1, 0.1, False), (1.0, 0.9999, True)],
)
async def test_of_clients_that_do_not_trace_a_share_is_traced(
    sample: float, throw: float, yes: bool
) -> None:
    tracing = traced(sample, throw)
    call = begun(tracing, tracestate="of=another")
    assert call.frame is not None
    assert call.frame.traced is yes
    assert ("traceparent" in told(call)) is yes
    assert ("tracestate" in told(call)) is not yes, "it is of no trace, or of another"
    found = over(tracing, call)
    assert len(found) == (2 if yes else 0)
    assert all(span.parent_id == "" for span in found[:1])


async def test_what_its_client_does_not_trace_passes_as_it_came() -> None:
    tracing = traced(sample=1.0)
    call = begun(tracing, traceparent=UNSAMPLED, tracestate="a=1")
    assert call.frame is not None
    assert call.frame.meta == codec.dump({"traceparent": UNSAMPLED, "tracestate": "a=1"})
    assert not call.frame.traced
    assert over(tracing, call) == []


@pytest.mark.parametrize("said", ["00-1", 7, None, f"00-{'0' * 32}-{SPAN}-01"])
async def test_a_client_that_says_nonsense_does_not_trace(said: object) -> None:
    server, client = over((tracing := traced(sample=1.0)), begun(tracing, traceparent=said))
    assert server.trace_id == f"{1:032x}"
    assert (server.parent_id, client.parent_id) == ("", server.span_id)
    off = begun(traced(sample=0.0), traceparent=said)
    assert told(off) == {"traceparent": said}


async def test_headers_say_what_the_message_does_not() -> None:
    headers = ((b"traceparent", PARENT.encode()), (b"tracestate", b"h=1"), (b"baggage", b"b=1"))
    tracing = traced(sample=0.0)
    call = begun(tracing, headers=headers, other=1, tracestate="stray=1")
    meta = told(call)
    assert (meta["tracestate"], meta["baggage"], meta["other"]) == ("h=1", "b=1", 1)
    server, client = over(tracing, call)
    assert (server.trace_id, server.parent_id, server.state) == (TRACE, SPAN, "h=1")
    assert meta["traceparent"] == f"00-{TRACE}-{client.span_id}-01"

    other = PARENT.replace("4b", "5b")
    call = begun(tracing, headers=headers, traceparent=other)
    assert over(tracing, call)[0].trace_id == other[3:35], "the message is nearer"

    call = begun(tracing, headers=headers[:1], baggage="m=1", tracestate="stray=1")
    assert told(call)["baggage"] == "m=1", "it belongs to no trace"
    assert "tracestate" not in told(call)
    over(tracing, call)

    call = begun(tracing, headers=((b"traceparent", UNSAMPLED.encode()),))
    assert told(call) == {"traceparent": UNSAMPLED}
    assert over(tracing, call) == []


async def test_a_failure_is_told_as_the_metrics_tell_it() -> None:
    tracing = traced()
    for code, outcome, sentence in (
        (-32603, "-32603", "the answer is the error -32603"),
        (0, "tool_error", "the tool reports a failure"),
    ):
        for span in over(tracing, begun(tracing), code, outcome):
            assert (span.error, span.attributes["error.type"]) == (outcome, outcome)
            assert span.attributes.get(SPAN_STATUS, "") == sentence
            said = span.attributes.get("rpc.response.status_code")
            assert said == (str(code) if code else None)
    tracing.on_call_end(sent(begun(tracing)), None, "cancelled", 12.0)
    server, client = tracing.take(9)[0]
    assert server.error == client.error == "cancelled"
    assert server.attributes.get(SPAN_STATUS, "") == "the call was cancelled"
    assert (client.start, client.end) == (10.0, 12.0), "no worker told when"
    assert "network.transport" not in client.attributes


async def test_a_server_elsewhere_is_reached_over_the_network() -> None:
    tracing = traced()
    call = begun(tracing)
    tracing.on_worker_notice(messages.pack_leg(ServerCallTimes(call.id, 9.0, 13.0, True)))
    server, client = over(tracing, call)
    assert client.attributes["network.transport"] == "tcp"
    assert (client.start, client.end) == (server.start, server.end), "never outside of it"
    assert "server.address" not in client.attributes


async def test_the_span_towards_a_server_says_which_request_and_revision_and_where_it_is() -> None:
    tracing = traced()
    call = begun(tracing)
    leg = ServerCallTimes(call.id, 10.0, 11.0, True, "7", "2025-11-25", "mcp.example.com", 443)
    tracing.on_worker_notice(messages.pack_leg(leg))
    server, client = over(tracing, call)
    said = [client.attributes[key] for key in ("jsonrpc.request.id", "mcp.protocol.version")]
    assert said == ["7", "2025-11-25"]
    assert client.attributes["server.address"] == "mcp.example.com"
    assert client.attributes["server.port"] == 443
    assert server.attributes["mcp.protocol.version"] == "2026-07-28"


async def test_a_worker_of_an_earlier_version_says_when_its_server_had_a_call() -> None:
    tracing = traced()
    call = begun(tracing)
    fixed = len(messages.pack_leg(ServerCallTimes(0, 0.0, 0.0, False))) - len(b'["","","",0]')
    tracing.on_worker_notice(
        messages.pack_leg(ServerCallTimes(call.id, 10.5, 11.5, False, "7"))[:fixed]
    )
    _, client = over(tracing, call)
    assert (client.start, client.end) == (10.5, 11.5)
    assert "jsonrpc.request.id" not in client.attributes


async def test_a_server_that_is_down_is_told_with_the_reason_and_without_the_message() -> None:
    tracing = traced()
    for reason, sentence in (("signal", ": signal"), ("/home/ada", "")):
        body = codec.dump({"code": -10001, "message": "secret", "data": {"reason": reason}})
        tracing.on_call_end(begun(tracing), CallAnswer(body, -10001), "-10001", 12.0)
        (span,) = tracing.take(9)[0]
        assert span.attributes.get(SPAN_STATUS, "") == f"the server is not available{sentence}"
        assert "secret" not in codec.dump(span).decode()


def missing(**meta: object) -> ServerNotReady:
    members = {key: Raw(codec.dump(value)) for key, value in meta.items()}
    request = McpRequest("tools/call", {}, members, b"", True, id=b"4", version="2026-07-28")
    return ServerNotReady("git", "git__t", request)


async def test_a_call_whose_server_has_not_been_up_has_a_span_when_it_is_refused() -> None:
    tracing = traced()
    assert tracing.on_server_missing(missing(traceparent=PARENT), "default", None, 5.0)
    first = Call("git", CallFrame(9, "tools/list", b"{}"), _uncancelled, 1.0, label="tools/list")
    assert not tracing.on_server_missing(missing(traceparent=PARENT), "default", first, 1.0)
    assert tracing.on_call_end(first, CallAnswer(b"{}", -10001), "-10001", 5.0)
    at_once, waited = tracing.take(9)[0]
    assert (at_once.start, at_once.end) == (5.0, 5.0)
    assert (waited.start, waited.end) == (1.0, 5.0)
    for span in (at_once, waited):
        assert (span.kind, span.name, span.parent_id) == ("server", "tools/call git__t", SPAN)
        assert (span.error, span.attributes.get(SPAN_STATUS, "")) == (
            "-10001",
            "the server is not available",
        )
        assert span.attributes["metamcp.server"] == "git"
        assert span.attributes["jsonrpc.request.id"] == "4"
        assert "metamcp.call.id" not in span.attributes, "no figure counts it"


@pytest.mark.parametrize(
    ("code", "spans"),
    [(0, 0), (-32601, 0), (-32603, 0), (-10001, 1), (-10002, 1), (-10003, 1), (None, 1)],
)
async def test_a_call_whose_server_comes_up_is_traced_when_it_is_sent(
    code: int | None, spans: int
) -> None:
    """Also if the server has no tools, and so cannot list them. None: the client went away."""
    tracing = traced()
    first = Call("git", CallFrame(9, "tools/list", b"{}"), _uncancelled, 1.0, label="tools/list")
    tracing.on_server_missing(missing(traceparent=PARENT), "default", first, 1.0)
    answer, outcome = (None, "cancelled") if code is None else (CallAnswer(b"{}", code), str(code))
    assert tracing.on_call_end(first, answer, outcome if code != 0 else "", 5.0) is bool(spans)
    assert tracing.pending_count == spans


async def test_a_call_of_a_tool_of_the_gateway_is_the_parent_of_what_it_calls() -> None:
    tracing = traced()
    given = {"name": Raw(b'"run_code"')}
    meta = {"traceparent": Raw(codec.dump(PARENT))}
    request = McpRequest("tools/call", given, meta, b"", True)
    call = Call(OWN, CallFrame(1, "tools/call", b"{}"), _uncancelled, 10.0, label="tools/call")
    tracing.on_call_start(call, "run_code", request, given)
    told_parent = told(call)["traceparent"]
    tracing.on_call_end(call, CallAnswer(b"{}"), "", 12.0)
    (span,) = tracing.take(9)[0]
    assert told_parent == f"00-{TRACE}-{span.span_id}-01"


async def test_a_list_has_a_span_by_the_same_rules() -> None:
    tracing = traced(sample=0.0)
    for parent, count in ((PARENT, 1), (UNSAMPLED, 0), (None, 0)):
        meta = {} if parent is None else {"traceparent": Raw(codec.dump(parent))}
        request = McpRequest("tools/list", {}, meta, b"", modern=True)
        assert tracing.on_list("default", request, 1.0, 2.0) is bool(count)
        found = tracing.take(9)[0]
        assert [(span.name, span.trace_id, span.start) for span in found] == [
            ("tools/list", TRACE, 1.0)
        ] * count


@pytest.mark.parametrize(
    ("error", "outcome", "sentence"),
    [
        (b"", "", ""),
        (None, "cancelled", "the call was cancelled"),
        (b'{"code":-1,"message":"no"}', "-1", "the answer is the error -1"),
    ],
)
async def test_a_question_of_a_server_is_a_child_of_the_span_towards_it(
    error: bytes | None, outcome: str, sentence: str
) -> None:
    tracing = traced()
    call = begun(tracing)
    kept = tracing.find(call)
    assert kept is not None
    question = Question("git", call.id, 1, "elicitation/create", b"{}", lambda *_: None)
    tracing.on_question_over(kept, question, 10.2, 11.0, error)
    asked, _, client = over(tracing, call)
    assert (asked.kind, asked.name) == ("client", "elicitation/create")
    assert (asked.parent_id, asked.start, asked.end) == (client.span_id, 10.2, 11.0)
    assert (asked.error, asked.attributes.get(SPAN_STATUS, "")) == (outcome, sentence)


@pytest.mark.parametrize(
    ("principal", "name", "word"),
    [
        (Principal(name="mmcp:7f", key="7f", auth="keys", label="ada"), "metamcp.key", "7f"),
        (
            Principal(name="ada@example.com", auth="oauth"),
            "enduser.pseudo.id",
            audit_records.pseudonym(b"salt", "ada@example.com"),
        ),
        (USER, "", ""),
    ],
)
async def test_a_client_has_the_words_that_the_audit_has_for_it(
    principal: Principal, name: str, word: str
) -> None:
    request = McpRequest("tools/list", {}, {}, b"", True, who="session-1", principal=principal)
    found = dict[bool, Span]()
    for audited in (True, False):
        tracing = traced(salt=b"salt" if audited else b"")
        tracing.on_list("default", request, 1.0, 2.0)
        ((found[audited],), _) = tracing.take(9)
    whose = {"mcp.session.id": audit_records.pseudonym(b"salt", "session-1")}
    whose |= {name: word} if name else {}
    assert found[True].attributes == found[False].attributes | whose
    assert "ada" not in codec.dump(found[True]).decode()


async def test_a_call_that_never_left_has_no_span_of_a_server() -> None:
    tracing = traced()
    tracing.on_call_end(begun(tracing), CallAnswer(b"{}", -10001), "-10001", 12.0)
    (span,) = tracing.take(9)[0]
    assert span.kind == "server"
    again = begun(tracing)
    again.ends = 60.0  # it was sent, and waits for the next server
    tracing.on_call_end(again, CallAnswer(b"{}", -10001), "-10001", 12.0)
    assert tracing.take(9)[0][1].attributes["metamcp.retried"] is True


@pytest.mark.parametrize(
    ("method", "name", "attribute"),
    [
        ("prompts/get", "prompts/get git__t", "gen_ai.prompt.name"),
        ("resources/read", "resources/read", None),
        ("completion/complete", "completion/complete", None),
    ],
)
async def test_the_name_of_a_span_has_no_uri_in_it(
    method: str, name: str, attribute: str | None
) -> None:
    tracing = traced()
    call = begun(tracing, method=method, params={"uri": Raw(b'"file:///secret"')})
    server, _ = over(tracing, call)
    assert server.name == name
    named = [key for key in server.attributes if key.startswith("gen_ai.")]
    assert named == ([attribute] if attribute else [])


async def test_what_is_kept_has_bounds_and_what_is_lost_is_counted() -> None:
    tracing = traced()
    calls = [begun(tracing, number) for number in range(UNDER_WAY_MAX + 1)]
    assert "traceparent" not in told(calls[-1])
    for call in calls:
        tracing.on_call_end(sent(call), CallAnswer(b"{}"), "", 12.0)
    assert tracing.pending_count == PENDING_MAX
    found, lost = tracing.take(100)
    assert len(found) == 100
    assert lost == 2 + 2 * UNDER_WAY_MAX - PENDING_MAX
    tracing.lose(3)
    assert tracing.take(0) == ([], 3)


async def test_a_long_state_goes_to_the_server_alone() -> None:
    tracing = traced()
    state = "a=" + "x" * 600
    call = begun(tracing, traceparent=PARENT, tracestate=state)
    assert told(call)["tracestate"] == state
    assert over(tracing, call)[0].state == ""


async def test_traces_that_are_switched_off_leave_nothing_behind() -> None:
    tracing = traced()
    call = begun(tracing)
    tracing.forget()
    assert over(tracing, call) == []
    tracing.on_worker_notice(messages.pack_leg(ServerCallTimes(call.id, 1.0, 2.0, False)))
    tracing.on_worker_notice(b"no notice")
