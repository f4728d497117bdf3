"""Which calls are traced, what their servers are told of that, and what is told of them."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Raw

from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin, McpRequest
from metamcp_worker.front_calls.server_links import Call, ServerLink, Wire
from metamcp_worker.front_records.trace import PENDING_MAX, UNDER_WAY_MAX, Tracing
from metamcp_worker.ipc import codec, messages
from metamcp_worker.ipc.frames import CallFrame
from metamcp_worker.ipc.messages import ServerCallTimes, Span

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


def traced(sample: float = 0.5, throw: float = 0.0) -> Tracing:
    dice = Dice(throw)
    made = Tracing(0, dice.throws, dice.mint)
    made.adjust(sample)
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
    request = McpRequest(method, dict(given), members, b"", modern=True, headers=headers)
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
    for code, outcome in ((-32603, "-32603"), (0, "tool_error")):
        for span in over(tracing, begun(tracing), code, outcome):
            assert (span.error, span.attributes["error.type"]) == (outcome, outcome)
            said = span.attributes.get("rpc.response.status_code")
            assert said == (str(code) if code else None)
    tracing.on_call_end(sent(begun(tracing)), None, "cancelled", 12.0)
    server, client = tracing.take(9)[0]
    assert server.error == client.error == "cancelled"
    assert (client.start, client.end) == (10.0, 12.0), "no worker told when"
    assert "network.transport" not in client.attributes


async def test_a_server_elsewhere_is_reached_over_the_network() -> None:
    tracing = traced()
    call = begun(tracing)
    tracing.on_worker_notice(messages.pack_leg(ServerCallTimes(call.id, 9.0, 13.0, True)))
    server, client = over(tracing, call)
    assert client.attributes["network.transport"] == "tcp"
    assert (client.start, client.end) == (server.start, server.end), "never outside of it"


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
