"""Figures as fronts tell them, and the page of metrics as a scraper reads it."""

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from metamcp_supervisor.telemetry import exposition
from metamcp_supervisor.telemetry.health import Readings
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_worker.ipc.messages import BUCKETS_S, CallStats, Figures, FrontStats
from tests.supervisor.small_gateway import SmallGateway, server


def buckets(*seconds: float) -> tuple[int, ...]:
    counts = [0] * (len(BUCKETS_S) + 1)
    for one in seconds:
        counts[sum(one > bound for bound in BUCKETS_S)] += 1
    return tuple(counts)


def calls(
    server: str, *seconds: float, method: str = "tools/call", error: str = "", version: str = ""
) -> CallStats:
    counts = buckets(*seconds)
    return CallStats(server, method, len(seconds), sum(seconds), counts, error, version)


def figures(*stats: CallStats) -> Figures:
    return Figures(calls=stats)


def summary(refused: dict[str, int] | None = None) -> FrontStats:
    return FrontStats(connections=3, streams=1, sessions={"2025-11-25": 2}, refused=refused or {})


def gateway(*names: str) -> GatewayStatus:
    return SmallGateway(*(server(name) for name in names)).status()


def text(
    metrics: Metrics,
    status: GatewayStatus,
    readings: Readings | None = None,
    *,
    openmetrics: bool = False,
) -> str:
    snapshot = metrics.snapshot(status, readings or Readings())
    return exposition.page(snapshot, as_openmetrics=openmetrics)[1].decode()


def page(
    metrics: Metrics, status: GatewayStatus, readings: Readings | None = None
) -> dict[str, Metric]:
    found = text_string_to_metric_families(text(metrics, status, readings))
    return {family.name: family for family in found}


def value(
    metrics: Metrics,
    status: GatewayStatus,
    name: str,
    readings: Readings | None = None,
    **labels: str,
) -> float | None:
    """The one sample with this name and at least these labels, or None."""
    found = [
        sample.value
        for family in page(metrics, status, readings).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) < 2, f"{name} {labels}: {found}"
    return found[0] if found else None
