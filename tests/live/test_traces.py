"""One trace from the client through front and worker to the server, as a collector gets it."""

import http.client
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client as Official
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from prometheus_client.parser import text_string_to_metric_families

from tests.live.client import LEGACY, MODERN, Client
from tests.live.collector import Collector, Span
from tests.live.gateway import Gateway, fake, free_port
from tests.live.test_audit import records
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M88"), pytest.mark.timeout(120)]

SERVERS = {"old": fake("--era", "legacy"), "new": fake("--era", "modern")}
ERAS = [LEGACY, MODERN]
TOKEN = "of-the-collector-alone"


def section(endpoint: str, sample: float = 0.0) -> str:
    headers = '{ Authorization = "Bearer ${env:METAMCP_TEST_COLLECTOR}" }'
    return f'[traces]\nendpoint = "{endpoint}"\nsample = {sample}\nheaders = {headers}\n'


def gateway_with(extra: str) -> Gateway:
    made = Gateway(SERVERS, extra=extra)
    made.environ["METAMCP_TEST_COLLECTOR"] = TOKEN
    return made


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as found:
        yield found


@pytest.fixture(scope="module")
def gateway(collector: Collector) -> Iterator[Gateway]:
    with gateway_with(section(collector.url)) as found:
        yield found


class Parent:
    """A client's place in a trace of its own."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.trace, self.span = secrets.token_hex(16), secrets.token_hex(8)
        self.flags = "01" if sampled else "00"

    @property
    def text(self) -> str:
        return f"00-{self.trace}-{self.span}-{self.flags}"

    @property
    def meta(self) -> dict[str, str]:
        return {"traceparent": self.text, "tracestate": "vendor=1", "baggage": "user=x"}


def called(client: Client, tool: str, parent: Parent, **arguments: Any) -> dict[str, Any]:
    """The whole answer."""
    params = {"name": tool, "arguments": arguments, "_meta": parent.meta}
    return client.request("tools/call", params)


def meta_at_the_server(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer["result"]["content"][0]["text"])["_meta"]
    return found


def by_kind(spans: list[Span]) -> tuple[Span, Span]:
    server, client = sorted(spans, key=lambda span: span.kind, reverse=True)
    assert (server.kind, client.kind) == ("server", "client")
    return server, client


def calls_of(collector: Collector, parent: Parent) -> list[Span]:
    """The spans of calls of tools in this trace, so far."""
    spans = [span for span in collector.spans if span.trace == parent.trace]
    return [span for span in spans if span.attributes["mcp.method.name"] == "tools/call"]


def counted(gateway: Gateway, outcome: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(gateway.ops("/metrics")[1])
        for sample in family.samples
        if sample.name == "metamcp_spans_total" and sample.labels["outcome"] == outcome
    )


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server", SERVERS)
def test_one_trace_leads_from_the_client_to_the_server(
    gateway: Gateway, collector: Collector, era: str, server: str
) -> None:
    client, parent, before = Client(gateway.port, era), Parent(), time.time_ns()
    meta = meta_at_the_server(called(client, f"{server}__raw", parent, secret="hunter2"))
    client.end()
    ours, theirs = by_kind(collector.of(parent.trace))
    assert (ours.parent, theirs.parent) == (parent.span, ours.id)
    assert meta["traceparent"] == f"00-{parent.trace}-{theirs.id}-01"
    assert (meta["tracestate"], meta["baggage"]) == ("vendor=1", "user=x")
    assert (ours.name, theirs.name) == (f"tools/call {server}__raw", "tools/call raw")
    assert (ours.state, theirs.state) == ("vendor=1", "vendor=1")
    assert before <= ours.start <= theirs.start <= theirs.end <= ours.end <= time.time_ns()
    assert not ours.failed
    assert not theirs.failed
    assert ours.attributes["mcp.protocol.version"] == era
    assert theirs.attributes["mcp.protocol.version"] == {"old": LEGACY, "new": MODERN}[server]
    assert ours.attributes["jsonrpc.request.id"] == str(client.next_id)
    assert int(theirs.attributes["jsonrpc.request.id"]) > 0
    assert theirs.attributes["network.transport"] == "pipe"
    assert "server.address" not in theirs.attributes
    assert ours.attributes["metamcp.server"] == theirs.attributes["metamcp.server"] == server
    assert ours.attributes["gen_ai.operation.name"] == "execute_tool"
    assert ours.resource["service.name"] == "metamcp"
    assert ours.resource["service.version"] == gateway.status()["version"]
    assert ours.resource["service.instance.id"]
    assert "hunter2" not in str(collector.of(parent.trace))
    assert collector.headers[-1]["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in gateway.log.read_text()


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_trace_of_the_official_client_goes_on(
    gateway: Gateway, collector: Collector, mode: str
) -> None:
    parent = Parent()
    flags = TraceFlags(TraceFlags.SAMPLED)
    place = SpanContext(
        int(parent.trace, 16), int(parent.span, 16), is_remote=False, trace_flags=flags
    )

    async with Official(gateway.url, mode=mode) as client:
        with trace.use_span(NonRecordingSpan(place)):
            await client.call_tool("new__echo", {"text": "hi"})
    until(lambda: len(calls_of(collector, parent)) == 2, "the spans of the call")
    ours, theirs = by_kind(calls_of(collector, parent))
    assert (ours.parent, theirs.parent) == (parent.span, ours.id)


def test_a_client_of_rest_says_it_in_a_header(gateway: Gateway, collector: Collector) -> None:
    client, parent = Client(gateway.port, MODERN), Parent()
    headers = {"Content-Type": "application/json", "traceparent": parent.text}
    client.http.request("POST", "/metamcp/default/api/new__raw", b"{}", headers)
    answer = json.loads(client.http.getresponse().read())
    client.end()
    ours, theirs = by_kind(collector.of(parent.trace))
    assert ours.parent == parent.span
    assert "mcp.protocol.version" not in ours.attributes
    meta = json.loads(answer["content"][0]["text"])["_meta"]
    assert meta["traceparent"] == f"00-{parent.trace}-{theirs.id}-01"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("tool", "error", "code"), [("error", "-32050", "-32050"), ("fail", "tool_error", None)]
)
def test_a_failure_is_one_of_both_spans(
    gateway: Gateway, collector: Collector, era: str, tool: str, error: str, code: str | None
) -> None:
    client, parent = Client(gateway.port, era), Parent()
    called(client, f"old__{tool}", parent)
    client.end()
    for span in collector.of(parent.trace):
        assert span.failed
        assert (
            span.status
            == {
                "-32050": "the answer is the error -32050",
                "tool_error": "the tool reports a failure",
            }[error]
        )
        assert span.attributes["error.type"] == error
        assert span.attributes.get("rpc.response.status_code") == code


@pytest.mark.parametrize("era", ERAS)
def test_a_server_that_is_killed_in_the_middle_of_a_call_ends_its_spans(
    gateway: Gateway, collector: Collector, era: str
) -> None:
    client, parent, answers = Client(gateway.port, era), Parent(), list[dict[str, Any]]()
    # Of the process that answers now: the gateway may not have noticed an earlier kill yet.
    back: Any = until(lambda: client.call("old__pid").get("result"), "it is back")
    pid = int(back["content"][0]["text"])
    # The count is a beat old: a call that waited for the start may still be in it.
    until(lambda: gateway.server("old")["inflight"] == 0, "the earlier calls are counted out")
    waiting = threading.Thread(
        target=lambda: answers.append(called(client, "old__sleep", parent, ms=60_000))
    )
    waiting.start()
    until(lambda: gateway.server("old")["inflight"] == 1, "the call is under way")
    os.kill(pid, signal.SIGKILL)
    waiting.join(30)
    client.end()
    assert answers[0]["error"]["code"] == -10001
    ours, theirs = by_kind(collector.of(parent.trace))
    assert ours.failed
    assert theirs.failed
    assert ours.attributes["error.type"] == theirs.attributes["error.type"] == "-10001"
    assert ours.start <= theirs.start < theirs.end <= ours.end


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("path", ["mcp", "rest"])
def test_a_list_has_a_span(gateway: Gateway, collector: Collector, era: str, path: str) -> None:
    client, parent = Client(gateway.port, era), Parent()
    if path == "rest":
        client.http.request("GET", "/metamcp/default/api", headers={"traceparent": parent.text})
        assert json.loads(client.http.getresponse().read())["tools"]
    else:
        client.request("tools/list", {"_meta": parent.meta})
    client.end()
    (span,) = collector.of(parent.trace, 1)
    assert (span.kind, span.name, span.parent) == ("server", "tools/list", parent.span)
    assert span.attributes["metamcp.endpoint"] == "default"
    assert "metamcp.server" not in span.attributes


@pytest.mark.parametrize("era", ERAS)
def test_a_call_of_a_server_that_never_came_up_has_a_span_with_the_reason(
    collector: Collector, era: str
) -> None:
    made = Gateway({"gone": {"command": ["/bin/false"]}}, extra=section(collector.url), wait=False)
    made.environ["METAMCP_TEST_COLLECTOR"] = TOKEN
    with made as gateway:
        until(lambda: gateway.answers() and gateway.server("gone")["message"], "it has failed")
        client, parent = Client(gateway.port, era), Parent()
        answer = called(client, "gone__echo", parent)
        client.end()
        assert answer["error"]["code"] == -10001
        (span,) = collector.of(parent.trace, 1)
    assert (span.kind, span.name) == ("server", "tools/call gone__echo")
    assert span.failed
    assert span.status.startswith("the server is not available: ")
    assert span.attributes["error.type"] == "-10001"
    assert span.attributes["metamcp.server"] == "gone"


def test_a_server_at_a_url_is_told_with_its_address(plain: Gateway, collector: Collector) -> None:
    made = Gateway({"far": {"url": plain.url}}, extra=section(collector.url))
    made.environ["METAMCP_TEST_COLLECTOR"] = TOKEN
    with made as gateway:
        client, parent = Client(gateway.port, MODERN), Parent()
        called(client, "far__new__echo", parent, text="x")
        client.end()
        _, theirs = by_kind(collector.of(parent.trace))
    assert theirs.attributes["network.transport"] == "tcp"
    assert theirs.attributes["server.address"] == "127.0.0.1"
    assert theirs.attributes["server.port"] == plain.port


@pytest.mark.parametrize("era", ERAS)
def test_a_trace_names_the_session_as_the_audit_does(collector: Collector, era: str) -> None:
    with gateway_with(section(collector.url) + "[audit]\n") as gateway:
        client, parent = Client(gateway.port, era), Parent()
        called(client, "new__echo", parent, text="x")
        session = client.session
        client.end()
        (record,) = until(
            lambda: [one for _, one in records(gateway) if one.event == "call"], "its record"
        )
        ours, _ = by_kind(collector.of(parent.trace))
    assert ours.attributes["mcp.session.id"] == record.session
    assert record.session not in {"", session}


WORKFLOW = """
name: two
steps:
  - id: first
    call: new.raw
  - output: ${{ steps.first.result._meta.traceparent }}
"""


@pytest.mark.parametrize("era", ERAS)
def test_a_run_of_a_workflow_is_traced_with_its_steps_and_their_calls(
    collector: Collector, era: str, tmp_path: Path
) -> None:
    (tmp_path / "two.yaml").write_text(WORKFLOW)
    endpoint = '[endpoints.default]\nnamespace = "default"\nbuiltins = ["workflows"]\n'
    made = gateway_with(endpoint + section(collector.url))
    made.config.write_text(f'workflows = ["{tmp_path}"]\n{made.config.read_text()}')
    with made as gateway:
        client, parent = Client(gateway.port, era), Parent()
        answer = called(client, "run_workflow", parent, name="two")
        client.end()
        assert not answer["result"].get("isError"), answer
        spans = {span.name: span for span in collector.of(parent.trace, 5)}
    asked = spans["tools/call run_workflow"]
    run, step = spans["invoke_workflow two"], spans["step first"]
    ours, theirs = spans["tools/call new__raw"], spans["tools/call raw"]
    chain = [(span.parent, span.id) for span in (asked, run, step, ours, theirs)]
    assert [above for above, _ in chain] == [parent.span, *(below for _, below in chain[:-1])]
    assert (run.kind, step.kind) == ("internal", "internal")
    assert run.attributes["gen_ai.workflow.name"] == "two"
    assert run.attributes["metamcp.run"] == step.attributes["metamcp.run"]
    assert step.attributes["metamcp.step"] == "first"
    assert asked.start <= run.start <= step.start <= ours.start
    assert ours.end <= step.end <= run.end <= asked.end


def test_a_scraper_of_openmetrics_learns_which_trace_was_the_last_in_a_bucket(
    gateway: Gateway, collector: Collector
) -> None:
    client, parent = Client(gateway.port, MODERN), Parent()
    called(client, "new__echo", parent, text="x")
    client.end()
    collector.of(parent.trace)
    connection = http.client.HTTPConnection("127.0.0.1", gateway.ops_port, timeout=20)

    def named() -> list[str]:
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
        page = connection.getresponse().read().decode()
        return [line for line in page.splitlines() if parent.trace in line]

    (line,) = until(named, "its trace is on the page")
    connection.close()
    assert line.startswith("mcp_server_operation_duration_seconds_bucket{")
    assert parent.trace not in gateway.ops("/metrics")[1]


def test_what_the_client_does_not_sample_passes_and_is_not_told(
    gateway: Gateway, collector: Collector
) -> None:
    client, quiet, loud = Client(gateway.port, MODERN), Parent(sampled=False), Parent()
    meta = meta_at_the_server(called(client, "new__raw", quiet))
    assert meta["traceparent"] == quiet.text
    called(client, "new__raw", loud)
    client.end()
    collector.of(loud.trace)
    assert not [span for span in collector.spans if span.trace == quiet.trace]


def test_a_reload_switches_traces_on_and_off(collector: Collector) -> None:
    with gateway_with("") as gateway:
        client, parents = Client(gateway.port, MODERN), [Parent() for _ in range(3)]

        def reloaded(extra: str) -> None:
            gateway.extra = extra
            gateway.write(SERVERS)
            assert "[traces]" in gateway.ctl("reload")

        for parent, extra in zip(parents, [None, section(collector.url, 1.0), ""], strict=True):
            if extra is not None:
                reloaded(extra)
            meta = meta_at_the_server(called(client, "new__raw", parent))
            assert (meta["traceparent"] == parent.text) is (not extra)
            if extra:
                begun = meta_at_the_server(client.call("new__raw"))["traceparent"]
                collector.of(begun.split("-")[1])
        client.end()
        assert [parent for parent in parents if parent.trace in str(collector.spans)] == parents[
            1:2
        ]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server", SERVERS)
def test_without_traces_what_the_client_says_passes_untouched(
    plain: Gateway, era: str, server: str
) -> None:
    client, parent = Client(plain.port, era), Parent()
    meta = meta_at_the_server(called(client, f"{server}__raw", parent))
    client.end()
    assert {key: meta[key] for key in parent.meta} == parent.meta
    assert counted(plain, "exported") == counted(plain, "lost") == 0


@pytest.fixture(scope="module")
def plain() -> Iterator[Gateway]:
    with Gateway(SERVERS) as found:
        yield found


def test_the_last_spans_of_a_front_and_of_a_gateway_are_told(collector: Collector) -> None:
    first, last = Parent(), Parent()
    with gateway_with(section(collector.url)) as gateway:
        client = Client(gateway.port, MODERN)
        called(client, "new__echo", first, text="x")
        client.end()
        gateway.ctl("roll")
        client = Client(gateway.port, MODERN)
        called(client, "new__echo", last, text="x")
        client.end()
    assert [len(collector.of(one.trace)) for one in (first, last)] == [2, 2]


def test_a_dead_collector_costs_spans_and_no_call() -> None:
    """Seconds, because each batch is tried for as long before it counts as lost."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/v1/traces?key=${{env:METAMCP_TEST_COLLECTOR}}"
    with gateway_with(section(endpoint, 1.0)) as gateway:
        client = Client(gateway.port, MODERN)
        for number in range(20):
            assert client.text("new__echo", text=str(number)) == str(number)
        until(lambda: counted(gateway, "lost") == 40, "they are lost, and counted")
        said = [line for line in gateway.log.read_text().splitlines() if "spans cannot be" in line]
        assert len(said) == 1, said
        assert f"http://127.0.0.1:{port}: " in said[0]
        assert "Connection refused" in said[0]
        assert "key=" not in said[0]
        assert TOKEN not in said[0]
        with Collector(port) as collector:
            parent = Parent()
            called(client, "new__echo", parent, text="x")
            collector.of(parent.trace)
            until(lambda: counted(gateway, "exported") == 2, "they are counted too")
        client.end()
        until(lambda: "are exported to" in gateway.log.read_text(), "it is told")
