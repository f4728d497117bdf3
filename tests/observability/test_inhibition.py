"""The inhibition rules for Alertmanager: which alerts notify nobody while others fire.

Alertmanager takes a missing label for an empty one. It is not on the machines of the tests, so they
judge by its rules themselves.
"""

import re
from collections.abc import Sequence

import msgspec
import pytest

from tests.observability import rules
from tests.observability.registry import LABELS

pytestmark = pytest.mark.promise("M87")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
Alert = dict[str, str]
"""Labels of an alert that fires."""


class Inhibition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source_matchers: list[str]
    target_matchers: list[str]
    equal: list[str]


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    inhibit_rules: list[Inhibition]


RULES = msgspec.yaml.decode((rules.FOLDER / "inhibition.yml").read_bytes(), type=File).inhibit_rules
ALERTS = {(rule.alert, rule.labels["severity"]): rule for rule in rules.alerts()}


def matches(matchers: Sequence[str], alert: Alert) -> bool:
    for text in matchers:
        matcher = MATCHER.fullmatch(text)
        assert matcher, text
        label, operator, wanted = matcher.groups()
        value = alert.get(label, "")
        same = bool(re.fullmatch(wanted, value)) if "~" in operator else value == wanted
        if same == operator.startswith("!"):
            return False
    return True


def fires(name: str, severity: str = "", **labels: str) -> Alert:
    severity = severity or next(severity for alert, severity in ALERTS if alert == name)
    fixed = {"alertname": name, "severity": severity, "job": "metamcp", "instance": "gw:6271"}
    return {**fixed, **labels}


def notifies(*firing: Alert) -> list[str]:
    """The names of the alerts that somebody hears of."""

    def inhibited(target: Alert) -> bool:
        return any(
            matches(rule.target_matchers, target)
            and matches(rule.source_matchers, source)
            and all(source.get(label, "") == target.get(label, "") for label in rule.equal)
            for rule in RULES
            for source in firing
        )

    return [alert["alertname"] for alert in firing if not inhibited(alert)]


def concerned(matchers: Sequence[str]) -> set[tuple[str, str]]:
    """Name and severity of the alerts that these matchers match."""
    return {
        (name, severity)
        for name, severity in ALERTS
        if matches(matchers, {"alertname": name, "severity": severity})
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.source_matchers[0])
def test_a_rule_names_only_alerts_and_labels_that_there_are(rule: Inhibition) -> None:
    for matchers in (rule.source_matchers, rule.target_matchers):
        assert concerned(matchers)
        for text in matchers:
            matcher = MATCHER.fullmatch(text)
            assert matcher, text
            label, _, wanted = matcher.groups()
            assert label in {"alertname", "severity"}
            words = re.sub(r"(\w+)\(([^)]*)\)", spelt_out, wanted).split("|")
            named = {name for name, _ in ALERTS} | {severity for _, severity in ALERTS}
            for word in words:
                assert any(re.fullmatch(word, each) for each in named), word
        for alert in concerned(matchers):
            assert set(rule.equal) <= LABELS.out(ALERTS[alert].expr), alert


def spelt_out(found: re.Match[str]) -> str:
    return "|".join(f"{found[1]}{end}" for end in found[2].split("|"))


def test_no_alert_inhibits_itself_and_no_two_each_other() -> None:
    pairs = {
        (source, target)
        for rule in RULES
        for source in concerned(rule.source_matchers)
        for target in concerned(rule.target_matchers)
    }
    assert [(source, target) for source, target in pairs if (target, source) in pairs] == []


def test_a_gateway_that_is_down_notifies_once() -> None:
    everything = [
        fires(name, severity, server="git")
        for name, severity in ALERTS
        if name not in ("MetaMCPGatewayDown", "MetaMCPWatchdog")
    ]
    down, watchdog = fires("MetaMCPGatewayDown"), {"alertname": "MetaMCPWatchdog"}
    assert notifies(down, watchdog, *everything) == ["MetaMCPGatewayDown", "MetaMCPWatchdog"]
    elsewhere = fires("MetaMCPServerFailed", server="git", instance="other:6271")
    assert notifies(down, elsewhere) == ["MetaMCPGatewayDown", "MetaMCPServerFailed"]


def test_a_server_that_is_down_notifies_once_and_hides_no_other_server() -> None:
    failed = fires("MetaMCPServerFailed", "warning", server="git")
    ratios = [
        fires("MetaMCPHighErrorRatio", each, server="git") for each in ("critical", "warning")
    ]
    slow = fires("MetaMCPLatencyP99", server="git")
    assert notifies(failed, *ratios, slow) == ["MetaMCPServerFailed"]
    assert notifies(*ratios) == ["MetaMCPHighErrorRatio"]
    other = fires("MetaMCPHighErrorRatio", "critical", server="wiki")
    assert notifies(failed, other) == ["MetaMCPServerFailed", "MetaMCPHighErrorRatio"]


def test_a_gateway_that_starts_or_has_no_audit_notifies_once() -> None:
    servers = [
        fires(name, server="git")
        for name in ("MetaMCPServerFailed", "MetaMCPServerFlapping", "MetaMCPHighErrorRatio")
    ]
    assert notifies(fires("MetaMCPNotReady"), *servers) == ["MetaMCPNotReady"]
    ratio, lost = servers[-1], fires("MetaMCPAuditRecordsLost")
    assert notifies(fires("MetaMCPAuditDown"), ratio, lost) == ["MetaMCPAuditDown"]
