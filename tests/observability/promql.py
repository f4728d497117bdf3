"""What an expression of PromQL reads, and which labels come out of it.

Owns: the parsed expression, seen as metrics and labels. Never: values. The only file that uses
promql_parser.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser as parser

AROUND = frozenset({"job", "instance"})
"""What Prometheus adds to every series that it reads."""
OF_PROMETHEUS = {
    "up": AROUND,
    "scrape_samples_scraped": AROUND,
    "scrape_duration_seconds": AROUND,
    "ALERTS": AROUND | {"alertname", "alertstate", "severity", "server", "role"},
}
SETS = ("and", "unless")
SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of each metric that there is, and of what rules make of them."""

    of: dict[str, frozenset[str]]

    def out(self, text: str) -> frozenset[str]:
        """The labels of what this expression gives. Fails on what it cannot have."""
        return self._out(parser.parse(text))

    def _out(self, found: parser.Expr) -> frozenset[str]:
        if isinstance(found, parser.VectorSelector):
            return self._selected(found)
        if isinstance(found, parser.MatrixSelector):
            return self._selected(found.vector_selector)
        if isinstance(found, parser.ParenExpr | parser.SubqueryExpr | parser.UnaryExpr):
            return self._out(found.expr)
        if isinstance(found, parser.AggregateExpr):
            return self._aggregated(found)
        if isinstance(found, parser.BinaryExpr):
            return self._joined(found)
        if isinstance(found, parser.Call):
            return self._called(found)
        return frozenset()

    def _selected(self, found: parser.VectorSelector) -> frozenset[str]:
        assert found.name in self.of, f"no metric is called {found.name!r}"
        labels = self.of[found.name]
        asked = {each.name for each in found.matchers.matchers} - {"__name__"}
        assert asked <= labels, f"{found.name} has no label {sorted(asked - labels)}"
        return labels

    def _aggregated(self, found: parser.AggregateExpr) -> frozenset[str]:
        inner = self._out(found.expr)
        if str(found.op) in ("topk", "bottomk"):
            return inner
        if found.modifier is None:
            return frozenset()
        named = frozenset(found.modifier.labels)
        assert named <= inner, f"what is summed up has no label {sorted(named - inner)}"
        return named if found.modifier.type == parser.AggModifierType.By else inner - named

    def _joined(self, found: parser.BinaryExpr) -> frozenset[str]:
        left, right = self._out(found.lhs), self._out(found.rhs)
        operator = str(found.op)
        if found.modifier is not None and found.modifier.matching is not None:
            on = frozenset(found.modifier.matching.labels)
            assert on <= left & right, f"not on both sides: {sorted(on)}"
            return left if operator in SETS else on
        if operator == "or" or not left:
            return left | right
        assert operator in SETS or not right or left == right, (
            f"labels on both sides differ: {sorted(left)} {operator} {sorted(right)}"
        )
        return left

    def _called(self, found: parser.Call) -> frozenset[str]:
        inner = frozenset[str]().union(*(self._out(one) for one in found.args))
        if found.func.name == "histogram_quantile":
            assert "le" in inner, "a quantile needs the label le"
            return inner - {"le"}
        if found.func.name == "label_replace":
            words = [one.val for one in found.args if isinstance(one, parser.StringLiteral)]
            assert words[2] in inner, f"no label {words[2]!r} to read"
            return inner | {words[0]}
        return frozenset() if found.func.name in ("absent", "vector") else inner


def selectors(text: str) -> Iterator[parser.VectorSelector]:
    """Everything that the expression reads."""
    found: list[parser.VectorSelector] = []

    def visit(one: parser.Expr) -> None:
        if isinstance(one, parser.MatrixSelector):
            found.append(one.vector_selector)
        elif isinstance(one, parser.VectorSelector):
            found.append(one)

    parser.walk(parser.parse(text), visit)
    yield from found


def refused(text: str) -> str:
    """Why this is no PromQL; empty if it is."""
    try:
        parser.parse(text)
    except ValueError as error:
        return str(error)
    return ""
