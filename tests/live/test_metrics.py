"""Every family has its figures in a gateway that works, and none falls when processes die."""

import http.client
import os
import signal
from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from metamcp_supervisor.telemetry.metric_names import families
from metamcp_worker.ipc.figures import SAMPLED_OF_CALLS
from tests.waiting import until

from .client import MODERN, Client
from .gateway import Gateway, fake

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

CALLS = 2 * SAMPLED_OF_CALLS
#: What nothing happened for in the life of this gateway, or that this machine does not tell.
EMPTY = {
    "metamcp_call_retries_total", "metamcp_stop_escalations_total",
    "metamcp_requests_refused_total", "metamcp_protocol_errors_total",
    "metamcp_sessions", "metamcp_call_errors_total", "metamcp_tool_errors_total",
    "metamcp_engine_orders_total", "metamcp_engine_runs", "metamcp_consent_total",
    "metamcp_policy_matches_total", "metamcp_sandbox_refusals_total",
    "metamcp_middleware_requests_total",
    "metamcp_certificate_expiry_timestamp_seconds", "metamcp_key_expiry_timestamp_seconds",
    "metamcp_token_expiry_timestamp_seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {"one": fake() | {"memory_max": "1G", "limits": {"calls_per_day": 1000}}}
    with Gateway(servers, extra='[code]\n[suggestions]\n[audit]\nlevel = "metadata"') as found:
        client = Client(found.port, MODERN)
        for number in range(CALLS):
            client.text("one__echo", text=str(number))
        client.close()
        yield found


def page(gateway: Gateway) -> dict[str, Metric]:
    text = gateway.ops("/metrics")[1]
    return {family.name: family for family in text_string_to_metric_families(text)}


def total(gateway: Gateway, name: str, /, **labels: str) -> float:
    return sum(
        sample.value
        for family in page(gateway).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.mark.promise("M85")
def test_every_family_has_figures_once_there_were_calls_and_a_crash(gateway: Gateway) -> None:
    calls = "mcp_server_operation_duration_seconds_count"
    until(lambda: total(gateway, calls, server="one") == CALLS, "the fronts' figures")
    answers = "mcp_client_operation_duration_seconds_count"
    until(lambda: total(gateway, answers, network_transport="pipe") == CALLS, "the worker's")
    assert total(gateway, "metamcp_tool_calls_total", gen_ai_tool_name="echo") == CALLS
    for stage in ("front", "pipe", "worker"):
        assert total(gateway, "metamcp_overhead_seconds_count", stage=stage) == 2, stage
        assert 0 < total(gateway, "metamcp_overhead_seconds_sum", stage=stage) < 2, stage

    os.kill(gateway.server("one")["pid"], signal.SIGKILL)
    failed_over = "metamcp_failover_duration_seconds_count"
    until(lambda: total(gateway, failed_over, server="one") == 1, "it is back")
    assert total(gateway, "metamcp_server_last_exit_code", server="one") == -signal.SIGKILL
    assert total(gateway, answers, server="one") == CALLS, "what a dead worker told is kept"
    assert total(gateway, "metamcp_process_memory_limit_bytes", server="one") == 2**30
    until(lambda: total(gateway, "metamcp_heartbeat_age_seconds", role="worker") > 0, "a beat")
    until(lambda: total(gateway, "metamcp_process_open_fds", role="server") > 2, "descriptors")
    for role in ("front", "worker", "supervisor"):
        assert total(gateway, "metamcp_loop_lag_seconds_count", role=role) > 0, role
        assert total(gateway, "metamcp_process_threads", role=role) > 0, role
        open_, most = (
            total(gateway, f"metamcp_process_{what}_fds", role=role) for what in ("open", "max")
        )
        assert 0 < open_ < most, role

    found = page(gateway)
    silent = {name for name in families() if not found[name.removesuffix("_total")].samples}
    assert silent <= EMPTY


def test_a_scraper_of_openmetrics_gets_that(gateway: Gateway) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.ops_port, timeout=20)
    wanted = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    connection.request("GET", "/metrics", headers={"Accept": wanted})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert set(types) == set(page(gateway))
