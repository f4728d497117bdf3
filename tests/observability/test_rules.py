"""The rules and their runbook: they fit each other and what the gateway exports."""

import re
from pathlib import Path

import click
import pytest

from metamcp_supervisor.cli.ctl import ctl
from tests.observability import rules
from tests.observability.prometheus import TOOL_S_MAX, needed, promtool
from tests.observability.promql import refused
from tests.observability.registry import LABELS

pytestmark = pytest.mark.promise("M87")
RUNBOOK = (rules.ROOT / "docs" / "runbook.md").read_text()
ALERTS = rules.alerts()
RECORDS = rules.rules("recording.yml")
SEVERITIES = {"critical", "warning", "info", "none"}
LEVELS = {"server": {"job", "instance", "server"}, "role": {"job", "instance", "server", "role"}}
"""What comes first in the name of a record -> the labels that are left."""


def sections() -> list[str]:
    return re.findall(r"^## (.+)$", RUNBOOK, re.MULTILINE)


def test_every_alert_has_its_section_in_the_runbook_and_every_section_its_alert() -> None:
    assert sorted(sections()) == sorted({rule.alert for rule in ALERTS})
    for rule in ALERTS:
        assert rule.annotations["runbook_url"] == f"docs/runbook.md#{rule.alert.lower()}"


def test_the_job_for_another_machine_is_one_that_prometheus_reads(tmp_path: Path) -> None:
    page = (rules.ROOT / "docs" / "observability.md").read_text()
    part = page.partition("## From another machine")[2].partition("\n## ")[0]
    key, config = tmp_path / "metamcp.key", tmp_path / "prometheus.yml"
    key.write_text("mmcp_key")
    job = part.partition("```yaml\n")[2].partition("```")[0]
    config.write_text(job.replace("/etc/prometheus/metamcp.key", str(key)))
    needed("promtool")
    code, said = promtool("check", "config", config)
    assert code == 0, said


def test_every_section_says_what_to_do_by_commands_that_there_are() -> None:
    for part in RUNBOOK.split("\n## ")[1:]:
        assert re.search(r"^- ", part, re.MULTILINE), part
    assert isinstance(ctl, click.Group)
    named = set(re.findall(r"metamcp ctl ([a-z-]+)", RUNBOOK))
    assert len(named) > 8
    assert named <= set(ctl.list_commands(click.Context(ctl)))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.alert)
def test_an_alert_says_how_bad_it_is_and_what_it_is_about(rule: rules.Rule) -> None:
    assert set(rule.labels) == {"severity"}
    assert rule.labels["severity"] in SEVERITIES
    assert set(rule.annotations) == {"summary", "description", "runbook_url"}
    there = LABELS.out(rule.expr)
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule.annotations.values())))
    assert named <= there | {"instance"} if "absent" in rule.expr else named <= there


@pytest.mark.parametrize("rule", RECORDS, ids=lambda rule: rule.record)
def test_a_record_has_the_labels_that_its_name_says(rule: rules.Rule) -> None:
    assert refused(rule.expr) == ""
    level, metric, operation = rule.record.split(":")
    assert metric
    assert operation
    assert LABELS.out(rule.expr) == LEVELS[level]


def test_shortened_rules_have_seconds_where_there_were_minutes() -> None:
    text = rules.shortened("recording.yml") + rules.shortened("alerts.yml")
    assert set(re.findall(r"(?:\[|offset )(\d+[smhd])", text)) == {"5s", "10s", "15s", "20s"}
    assert set(re.findall(r"for: (\d+\w)$", text, re.MULTILINE)) == {"1s", "2s", "5s"}


@needed
@pytest.mark.process
def test_promtool_has_nothing_to_say_about_the_rules() -> None:
    files = [rules.FOLDER / name for name in ("alerts.yml", "recording.yml")]
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", *files)
    assert (code, re.findall(r"SUCCESS: \d+ rules", said)) == (
        0,
        [f"SUCCESS: {len(ALERTS)} rules", f"SUCCESS: {len(RECORDS)} rules"],
    ), said
    code, said = promtool("check", "config", "--lint=all", "--lint-fatal", rules.CONFIG)
    assert (code, "FAILED" in said) == (0, False), said


@needed
@pytest.mark.process
@pytest.mark.timeout(TOOL_S_MAX + 30)
@pytest.mark.parametrize("name", ["alerts", "burn"])
def test_the_unit_tests_of_the_rules_pass(name: str) -> None:
    code, said = promtool("test", "rules", rules.FOLDER / f"{name}.test.yml")
    assert (code, "FAILED" in said) == (0, False), said


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    text = "\n".join(path.read_text() for path in sorted(rules.FOLDER.glob("*.test.yml")))
    fires = set(re.findall(r"- alertname: (\w+)", text))
    silent = set(re.findall(r"{alertname: (\w+)", text))
    names = {rule.alert for rule in ALERTS}
    assert fires == names
    assert silent == names - {"MetaMCPWatchdog"}
