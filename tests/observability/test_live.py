"""Every panel and every alert, evaluated by a real Prometheus that watched a gateway go wrong."""

import re
from collections.abc import Iterator

import pytest

from tests.observability import faults, rules
from tests.observability.boards import Panel, boards, filled, panels
from tests.observability.faults import Run
from tests.observability.prometheus import needed, promtool

pytestmark = [pytest.mark.live, pytest.mark.promise("M87"), pytest.mark.timeout(240), needed]

RATE = "5s"
"""Some scrapes long; minutes in a dashboard of a real gateway."""
UNIT_TESTED = {
    "MetaMCPSeriesDropped": "needs 50,000 series",
    "MetaMCPCertificateExpires": "needs TLS, which none of the clients here speaks",
    "MetaMCPAuditRecordsLost": "needs an audit that is not required, and a full disk",
}
"""Alerts that only the unit tests of the rules fire, and why."""
QUIET = {
    "server / What it uses / Killed for memory": "needs a control group for memory",
    "capacity / The metrics themselves / Series refused": "needs 50,000 series",
    "capacity / The metrics themselves / Spans": "no collector listens",
    "capacity / The metrics themselves / Recorded calls": "nothing is recorded",
    "fronts / What ends / Certificates": "needs TLS, which none of the clients here speaks",
    "fronts / Clients / Texts for searches by meaning": "nothing makes vectors",
}
"""Panels that stay at zero or empty here, and why."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """What happened is over, and the gateway with it."""
    with faults.running(tmp_path_factory.mktemp("prometheus")) as found:
        faults.stop(found)
        yield found


def test_promtool_has_nothing_to_say_about_the_page_of_metrics(run: Run) -> None:
    assert promtool("check", "metrics", text=run.page) == (0, "")


def test_prometheus_evaluates_all_rules(run: Run) -> None:
    found = run.prometheus.ask("rules")["groups"]
    states = {rule["name"]: rule["health"] for group in found for rule in group["rules"]}
    assert set(states.values()) == {"ok"}
    wanted = {rule.record or rule.alert for rule in rules.rules("recording.yml") + rules.alerts()}
    assert set(states) == wanted


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel.name)
def test_every_panel_shows_what_happened(run: Run, panel: Panel) -> None:
    for query in panel.queries:
        expr = filled(query.expr, {}, RATE)
        found = run.prometheus.over(expr, run.begin, run.end)
        shows = any(value for series in found for _, value in series.points)
        assert shows == (panel.name not in QUIET), expr


@pytest.mark.parametrize("name", boards())
def test_every_variable_has_something_to_choose(run: Run, name: str) -> None:
    for one in boards()[name]["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
        assert asked
        match = {"match[]": filled(asked[1], {}, RATE)}
        assert run.prometheus.ask(f"label/{asked[2]}/values", **match)


@pytest.mark.parametrize("alert", sorted({rule.alert for rule in rules.alerts()}))
def test_every_alert_has_fired(run: Run, alert: str) -> None:
    fired = {name for name, _ in run.prometheus.fired()}
    assert (alert in fired) == (alert not in UNIT_TESTED)


def test_a_gateway_that_was_there_and_is_gone_is_told(run: Run) -> None:
    assert run.metric(faults.DOWN) == 1


def test_servers_without_a_fault_of_their_own_are_not_called_failed(run: Run) -> None:
    blamed = {server for name, server in run.prometheus.fired() if name == "MetaMCPServerFailed"}
    assert blamed == {"wiki"}
    kept_out = {server for name, server in run.prometheus.fired() if "Quarantined" in name}
    assert kept_out == {"guest"}
    flapping = {server for name, server in run.prometheus.fired() if "Flapping" in name}
    assert flapping == {"flaky"}
