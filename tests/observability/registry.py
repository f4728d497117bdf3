"""Which metrics there are, and their labels: the gateway's, Prometheus's, and those of rules."""

from metamcp_supervisor.telemetry.metric_names import families
from tests.observability import promql, rules


def _families() -> dict[str, frozenset[str]]:
    found = dict(promql.OF_PROMETHEUS)
    for name, family in families().items():
        labels = frozenset(family.labels) | promql.AROUND
        if family.kind == "histogram":
            found |= {f"{name}{suffix}": labels for suffix in promql.SUFFIXES}
            found[f"{name}_bucket"] = labels | {"le"}
        else:
            found[name] = labels
    return found


def _with_rules() -> promql.Labels:
    """Records in the order of their file, since one may use another."""
    known = promql.Labels(_families())
    for rule in rules.rules("recording.yml"):
        known.of[rule.record] = known.out(rule.expr)
    return known


MEASURED = promql.Labels(_families())
"""Without rules, which a user may not have loaded."""
LABELS = _with_rules()
