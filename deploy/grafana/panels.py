"""The kinds of panels: a number, lines, bars of states, a heat map, a table, a text.

Owns: how each of them looks. Never: what they show, where they stand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as parts
from grafana_foundation_sdk.builders import dashboard as pieces
from grafana_foundation_sdk.builders import (
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import heatmap as heat_models
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models import text as text_models

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
CALM = ((None, "green"),)
"""Steps of a number that is never bad."""
BAD_ABOVE_ZERO = ((None, "green"), (1.0, "red"))

Steps = Sequence[tuple[float | None, str]]
Words = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Ask:
    """One query of a panel."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One query of a table: what it is called, and in which unit it is."""

    name: str
    unit: str
    expr: str


def number(
    title: str,
    why: str,
    unit: str,
    expr: str,
    *,
    width: int = 4,
    steps: Steps = CALM,
    words: Words | None = None,
    absent: str = "-",
    name: str = "",
) -> dashboard.Panel:
    """The newest value, large. `words`: value -> what is shown for it, and its colour. `name`: what
    is shown instead of the value, made of labels."""
    made = (
        stat.Panel()
        .with_target(_query(0, Ask(expr, name), instant=True))
        .unit(unit)
        .no_value(absent)
        .thresholds(_thresholds(steps))
        .mappings([_words(words)] if words else [])
        .reduce_options(parts.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
    )
    if name:
        made = made.text_mode(common.BigValueTextMode.NAME)
    return _titled(made.build(), title, why, width, 4)


def graph(
    title: str,
    why: str,
    unit: str,
    *asks: Ask,
    width: int = 8,
    stacked: bool = False,
    bars: bool = False,
    steps: bool = False,
    top: float | None = None,
) -> dashboard.Panel:
    """Lines over time. `stacked`: parts of a whole; `bars`: counts of things that happened."""
    legend = parts.VizLegendOptions().show_legend(show_legend=True)
    legend = legend.display_mode(common.LegendDisplayMode.LIST)
    legend = legend.placement(common.LegendPlacement.BOTTOM)
    draw = common.GraphDrawStyle.BARS if bars else common.GraphDrawStyle.LINE
    made = (
        timeseries.Panel()
        .unit(unit)
        .min(0)
        .draw_style(draw)
        .line_width(1)
        .fill_opacity(60 if bars else 25 if stacked else 8)
        .show_points(common.VisibilityMode.NEVER)
        .stacking(
            parts.StackingConfig().mode(
                common.StackingMode.NORMAL if stacked or bars else common.StackingMode.NONE
            )
        )
        .legend(legend)
        .tooltip(
            parts.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if steps:
        made = made.line_interpolation(common.LineInterpolation.STEP_AFTER)
    if top is not None:
        made = made.max(top)
    for at, ask in enumerate(asks):
        made = made.with_target(_query(at, ask))
    return _titled(made.build(), title, why, width, 8)


def timeline(title: str, why: str, ask: Ask, words: Words, *, width: int = 24) -> dashboard.Panel:
    """A bar for each series whose colour tells its state."""
    made = (
        statetimeline.Panel()
        .unit("none")
        .with_target(_query(0, ask))
        .mappings([_words(words)])
        .show_value(common.VisibilityMode.AUTO)
        .merge_values(merge_values=True)
        .fill_opacity(80)
        .line_width(0)
        .row_height(0.85)
        .legend(parts.VizLegendOptions().show_legend(show_legend=False))
    )
    return _titled(made.build(), title, why, width, 8)


def heat(title: str, why: str, unit: str, expr: str, *, width: int = 12) -> dashboard.Panel:
    """How many values were in which bucket of a histogram, over time."""
    made = (
        heatmap.Panel()
        .with_target(_query(0, Ask(expr, "{{le}}"), shape="heatmap"))
        .unit("short")
        .calculate(calculate=False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .hide_from(
            parts.HideSeriesConfig().legend(legend=False).tooltip(tooltip=False).viz(viz=False)
        )
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heat_models.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .steps(64)
        )
    )
    return _titled(made.build(), title, why, width, 8)


def listing(
    title: str,
    why: str,
    key: str,
    columns: Sequence[Column],
    *,
    link: tuple[str, str] | None = None,
    width: int = 24,
) -> dashboard.Panel:
    """A row for each value of the label `key`. `link`: title and address behind that value."""
    made = table.Panel().unit("none").filterable(filterable=False)
    names: dict[str, str] = {}
    for at, column in enumerate(columns):
        made = made.with_target(_query(at, Ask(column.expr), instant=True, shape="table"))
        names[f"Value #{_letter(at)}"] = column.name
        made = made.override_by_name(
            column.name, [dashboard.DynamicConfigValue(id_val="unit", value=column.unit)]
        )
    if link is not None:
        made = made.override_by_name(key, [_linked(*link)])
    made = made.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    made = made.with_transformation(
        dashboard.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": {"Time": True}, "renameByName": names},
        )
    )
    return _titled(made.build(), title, why, width, 8)


def roster(title: str, why: str, key: str, expr: str, *, link: tuple[str, str]) -> dashboard.Panel:
    """The labels of what there is, without values. `link`: title and address behind `key`."""
    made = (
        table.Panel()
        .unit("none")
        .no_value("none")
        .filterable(filterable=False)
        .with_target(_query(0, Ask(expr), instant=True, shape="table"))
        .override_by_name(key, [_linked(*link)])
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="organize",
                options={"excludeByName": {"Time": True, "Value": True, "Value #A": True}},
            )
        )
    )
    return _titled(made.build(), title, why, 24, 6)


def prose(title: str, markdown: str, *, width: int = 24, height: int = 8) -> dashboard.Panel:
    """A text."""
    made = text.Panel().mode(text_models.TextMode.MARKDOWN).content(markdown).title(title)
    panel = made.build()
    panel.grid_pos = dashboard.GridPos(w=width, h=height)
    return panel


def _titled(
    panel: dashboard.Panel, title: str, why: str, width: int, height: int
) -> dashboard.Panel:
    panel.title, panel.description, panel.datasource = title, why, SOURCE
    panel.grid_pos = dashboard.GridPos(w=width, h=height)
    return panel


def _query(
    at: int, ask: Ask, *, instant: bool = False, shape: str = "time_series"
) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(ask.expr).ref_id(_letter(at)).datasource(SOURCE)
    made = made.instant() if instant else made.range()
    made = made.format(prometheus_models.PromQueryFormat(shape))
    return made.legend_format(ask.legend) if ask.legend else made


def _letter(at: int) -> str:
    return chr(ord("A") + at)


def _linked(title: str, url: str) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val="links", value=[{"title": title, "url": url}])


def _thresholds(steps: Steps) -> pieces.ThresholdsConfig:
    return (
        pieces.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=color) for value, color in steps])
    )


def _words(words: Words) -> dashboard.ValueMap:
    return dashboard.ValueMap(
        options={
            value: dashboard.ValueMappingResult(text=text_, color=color, index=at)
            for at, (value, (text_, color)) in enumerate(words.items())
        }
    )
