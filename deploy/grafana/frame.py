"""A dashboard around its panels: variables, links, and where each panel stands.

Owns: the grid, the numbers of panels, what all dashboards have in common. Never: what is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as pieces
from grafana_foundation_sdk.models import dashboard

from deploy.grafana.panels import SOURCE

WIDTH = 24
"""Columns of Grafana's grid."""
TAG = "metamcp"
"""All dashboards with it are in the menu of each."""
RUNBOOK = "/d/metamcp-runbook"


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and the panels below it, which are laid out from left to right."""

    title: str
    panels: Sequence[dashboard.Panel]


def framed(
    uid: str, title: str, description: str, rows: Sequence[Row], *, servers: str = ""
) -> dashboard.Dashboard:
    """`servers`: `many` or `one` for a dashboard with a choice of servers."""
    made = (
        pieces.Dashboard(f"MetaMCP / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .editable()
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(
            pieces.DashboardLink("MetaMCP")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(as_dropdown=True)
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
        .link(
            pieces.DashboardLink("Runbook")
            .type(dashboard.DashboardLinkType.LINK)
            .icon("doc")
            .url(RUNBOOK)
            .tooltip("What each alert means, and what to do.")
        )
        .build()
    )
    made.templating = dashboard.DashboardDashboardTemplating(list_val=_variables(servers))
    made.panels = _placed(rows)
    return made


def _placed(rows: Sequence[Row]) -> list[dashboard.Panel | dashboard.RowPanel]:
    found: list[dashboard.Panel | dashboard.RowPanel] = []
    y = 0
    for row in rows:
        head = dashboard.GridPos(x=0, y=y, w=WIDTH, h=1)
        found.append(dashboard.RowPanel(id_val=len(found) + 1, title=row.title, grid_pos=head))
        y, x, deepest = y + 1, 0, 0
        for panel in row.panels:
            place = panel.grid_pos
            assert place is not None, panel.title
            if x + place.w > WIDTH:
                y, x, deepest = y + deepest, 0, 0
            place.x, place.y = x, y
            panel.id_val = len(found) + 1
            found.append(panel)
            x, deepest = x + place.w, max(deepest, place.h)
        y += deepest
    return found


def _variables(servers: str) -> list[dashboard.VariableModel]:
    source = pieces.DatasourceVariable("datasource").label("Data source").type("prometheus")
    found = [
        source.build(),
        _choice("job", "Job", "label_values(metamcp_up, job)"),
        _choice("instance", "Gateway", 'label_values(metamcp_up{job=~"$job"}, instance)'),
    ]
    if servers:
        query = 'label_values(metamcp_server_state{job=~"$job",instance=~"$instance"}, server)'
        found.append(_choice("server", "Server", query, many=servers == "many"))
    return found


def _choice(name: str, label: str, query: str, *, many: bool = True) -> dashboard.VariableModel:
    made = (
        pieces.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"qryType": 1, "query": query, "refId": name})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(many)
        .include_all(many)
    )
    if many:
        everything = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
        made = made.all_value(".*").current(everything)
    return made.build()
