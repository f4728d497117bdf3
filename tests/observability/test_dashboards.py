"""The dashboards as files: made by the script, of queries that fit what the gateway exports."""

import json
import re
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard

from deploy.grafana import queries
from deploy.grafana.build import files
from deploy.grafana.frame import WIDTH
from metamcp_supervisor.telemetry import metric_names
from metamcp_worker.ipc.errors import Code
from tests.observability import rules
from tests.observability.boards import Panel, boards, everything, filled, panels
from tests.observability.promql import refused
from tests.observability.registry import LABELS

pytestmark = pytest.mark.promise("M87")
BOARDS = boards()
SERVED = {"metamcp-runbook", *(whole["uid"] for whole in BOARDS.values())}


def readable(expr: str) -> str:
    return filled(expr, {}, "1m")


def named(panel: Panel) -> str:
    return panel.name


def test_the_committed_dashboards_are_those_that_the_script_makes() -> None:
    for path, text in files().items():
        assert path.read_text() == text, "python -m deploy.grafana.build"
    assert {path.stem for path in files()} == set(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_survives_being_read_by_the_types_of_grafana(name: str) -> None:
    register_default_plugins()
    again = json.dumps(dashboard.Dashboard.from_json(BOARDS[name]), cls=JSONEncoder)
    assert json.loads(again) == BOARDS[name]


@pytest.mark.parametrize("panel", panels(), ids=named)
def test_every_query_is_promql_of_metrics_and_labels_that_there_are(panel: Panel) -> None:
    for query in panel.queries:
        expr = readable(query.expr)
        assert refused(expr) == ""
        assert "$" not in expr
        shown = set(re.findall(r"{{(\w+)}}", query.legend))
        assert shown <= LABELS.out(expr), f"{query.legend}: not among the labels of {expr}"


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        ("sum(rate(metamcp_no_such_total[1m]))", "no metric is called"),
        ('metamcp_generation{tool="a"}', "has no label"),
        ("sum by (role) (metamcp_generation)", "has no label"),
        ("histogram_quantile(0.5, sum(rate(metamcp_loop_lag_seconds_bucket[1m])))", "label le"),
        ("sum by (server) (metamcp_inflight_calls) / sum(metamcp_connections)", "differ"),
        ("mcp_server_operation_duration_seconds", "no metric is called"),
    ],
)
def test_a_query_of_what_there_is_not_is_refused(expr: str, why: str) -> None:
    if why == "differ":
        expr = expr.replace("sum(", "sum by (job) (")
    with pytest.raises(AssertionError, match=why):
        LABELS.out(expr)


@pytest.mark.parametrize("panel", panels(), ids=named)
def test_every_panel_has_a_unit_a_description_and_the_chosen_source(panel: Panel) -> None:
    assert panel.raw["fieldConfig"]["defaults"]["unit"]
    assert panel.raw["description"].endswith(".")
    sources = [panel.raw["datasource"], *(one["datasource"] for one in panel.raw["targets"])]
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)
    assert len({one["refId"] for one in panel.raw["targets"]}) == len(panel.queries)


@pytest.mark.parametrize("name", BOARDS)
def test_numbers_are_unique_and_panels_do_not_overlap(name: str) -> None:
    found = BOARDS[name]["panels"]
    assert len({one["id"] for one in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for one in found:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, one["title"]
        taken |= cells


def test_dashboards_and_titles_are_told_apart() -> None:
    assert len({whole["uid"] for whole in BOARDS.values()}) == len(BOARDS)
    assert len({whole["title"] for whole in BOARDS.values()}) == len(BOARDS)
    names = [panel.name for panel in everything() if panel.title]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", BOARDS)
def test_variables_choose_source_job_and_gateway(name: str) -> None:
    variables: list[dict[str, Any]] = BOARDS[name]["templating"]["list"]
    assert [one["name"] for one in variables][:3] == ["datasource", "job", "instance"]
    used = set(re.findall(r"\$(\w+)", json.dumps(BOARDS[name]["panels"])))
    assert used - {"__rate_interval"} <= {one["name"] for one in variables}
    for one in variables[1:]:
        assert one["datasource"]["uid"] == "${datasource}"
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
        assert asked, one["query"]
        assert asked[2] in LABELS.out(readable(asked[1]))


@pytest.mark.parametrize("name", BOARDS)
def test_links_lead_to_dashboards_that_there_are(name: str) -> None:
    (menu, runbook) = BOARDS[name]["links"]
    assert (menu["type"], menu["tags"]) == ("dashboards", BOARDS[name]["tags"])
    assert runbook["url"] == "/d/metamcp-runbook"
    inside = re.findall(r"/d/([\w-]+)", json.dumps(BOARDS[name]))
    assert set(inside) <= SERVED


def test_every_state_has_its_word_and_place() -> None:
    assert sorted(queries.STATES) == sorted(metric_names.STATES)


def test_rules_and_panels_count_the_same_errors_as_failures() -> None:
    (rule,) = [
        one
        for one in rules.rules("recording.yml")
        if one.record == "server:mcp_server_operation_errors:ratio_rate5m"
    ]
    assert queries.FAILED in rule.expr
    asked_for = re.compile(queries.ASKED_FOR)
    ours = {code.name for code in Code if not asked_for.fullmatch(str(code.value))}
    assert ours == {"INTERNAL_ERROR", "SERVER_DOWN", "OVERLOADED", "TIMED_OUT"}


def test_every_metric_is_on_a_dashboard_or_in_a_rule() -> None:
    text = "\n".join(
        [query.expr for panel in panels() for query in panel.queries]
        + [rule.expr for rule in (*rules.alerts(), *rules.rules("recording.yml"))]
    )
    assert [name for name in metric_names.families() if name not in text] == []
