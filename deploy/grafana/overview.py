"""The first dashboard to look at: does the gateway serve, which server is in trouble."""

from grafana_foundation_sdk.models import dashboard

from deploy.grafana.frame import RUNBOOK, Row, framed
from deploy.grafana.panels import (
    BAD_ABOVE_ZERO,
    Ask,
    Column,
    graph,
    listing,
    number,
    roster,
    timeline,
)
from deploy.grafana.queries import (
    CALLS,
    FAILED,
    HERE,
    SERVER,
    STATES,
    failing,
    grown,
    named,
    quantile,
    rate,
    state,
    total,
)

COLOURS = ("text", "blue", "yellow", "semi-dark-green", "green", "purple", "red", "dark-red")
WORDS = {str(at): word for at, word in enumerate(zip(STATES, COLOURS, strict=True))}
UP = {"0": ("not serving", "red"), "1": ("serving", "green")}
FIRING = 'ALERTS{alertname=~"MetaMCP.+",alertname!="MetaMCPWatchdog",alertstate="firing"}'
"""As far as the rules are loaded into this Prometheus."""
ONE_SERVER = (
    "/d/metamcp-server?var-datasource=${datasource}&${job:queryparam}&${instance:queryparam}"
    "&var-server=${__value.raw}"
)


def overview() -> dashboard.Dashboard:
    return framed(
        "metamcp-overview",
        "Overview",
        "Does the gateway serve, how well, and which server is in trouble.",
        [
            Row("Now", _now()),
            Row("Calls", _calls()),
            Row("Servers", _servers()),
            Row("What changed", _changes()),
        ],
        servers="many",
    )


def _now() -> list[dashboard.Panel]:
    usable = f'metamcp_server_state{{{SERVER},state=~"ready|active|idle"}}'
    return [
        number("Gateway", "Serving, or not: it starts, drains, or one of several is down.",
               "none", f"min(metamcp_up{{{HERE}}})", words=UP, absent="unreachable"),
        number("Usable servers", "Ready, active, or idle until somebody calls them.",
               "short", f"sum({usable})"),
        number("Servers in trouble", "In the state `error` or `quarantined`: waiting for the next "
               "start, failed, or kept out.", "short",
               total("metamcp_server_state", f'{SERVER},state=~"error|quarantined"'),
               steps=BAD_ABOVE_ZERO),
        number("Requests", "Of all clients, per second.", "reqps",
               rate(f"{CALLS}_count", SERVER)),
        number("Failing", "Share of the requests that failed. Errors that tell the caller "
               "something (of a tool, wrong arguments, cancelled) are none.", "percentunit",
               failing(SERVER), steps=((None, "green"), (0.005, "orange"), (0.05, "red")),
               absent="no requests"),
        number("Alerts firing", "Of MetaMCP, as far as its rules are loaded into this Prometheus.",
               "short",
               f"count({FIRING}) or vector(0)", steps=BAD_ABOVE_ZERO),
        roster("Alerts", "Those that fire. Click on a name for what it means and what to do.",
               "alertname", f"max by (alertname, severity, instance, server) ({FIRING})",
               link=("Runbook", RUNBOOK)),
    ]  # fmt: skip


def _calls() -> list[dashboard.Panel]:
    return [
        graph("Requests by server", "Per second. `(gateway)`: what it answers itself.", "reqps",
              Ask(named(rate(f"{CALLS}_count", SERVER, "server")), "{{server}}"), stacked=True),
        graph("Failing by server", "Share of the requests of each server that failed.",
              "percentunit", Ask(named(failing(SERVER, "server")), "{{server}}"), top=1.0),
        graph("Time of a request", "From a client's request to the end of its answer.", "s",
              *(Ask(quantile(part, CALLS, SERVER), f"{part:.0%}") for part in (0.5, 0.95, 0.99))),
        graph("Errors by type", "All errors, also those that are no failure: a JSON-RPC code, "
              "`tool_error` or `cancelled`.", "reqps",
              Ask(rate("metamcp_call_errors_total", SERVER, "error_type"), "{{error_type}}"),
              width=12, stacked=True),
        graph("In flight and waiting", "Requests without an answer, and how many of them wait for "
              "their turn or for a server that is not up.", "short",
              Ask(total("metamcp_inflight_calls", SERVER), "in flight"),
              Ask(total("metamcp_queued_calls", SERVER), "waiting"), width=12),
    ]  # fmt: skip


def _servers() -> list[dashboard.Panel]:
    used = 'role=~"worker|server"'
    return [
        timeline("States", "The state of each server over time.",
                 Ask(state(SERVER, "instance, server"), "{{server}}"), WORDS),
        listing("Servers", "The last minutes of each. Click on a name for its own dashboard.",
                "server", [
            Column("Requests", "reqps", rate(f"{CALLS}_count", SERVER, "server")),
            Column("Failing", "percentunit", failing(SERVER, "server")),
            Column("95 % within", "s", quantile(0.95, CALLS, SERVER, "server")),
            Column("In flight", "short", total("metamcp_inflight_calls", SERVER, "server")),
            Column("Restarts (1 h)", "short",
                   grown("metamcp_server_restarts_total", SERVER, "server", "1h")),
            Column("Memory", "bytes",
                   total("metamcp_process_memory_bytes", f"{SERVER},{used}", "server")),
            Column("Cores", "short",
                   rate("metamcp_process_cpu_seconds_total", f"{SERVER},{used}", "server")),
        ], link=("Open this server", ONE_SERVER)),
    ]  # fmt: skip


def _changes() -> list[dashboard.Panel]:
    return [
        graph("Restarts", "Starts of servers after their first one, by what made them necessary.",
              "short", Ask(grown("metamcp_server_restarts_total", SERVER, "reason"), "{{reason}}"),
              bars=True),
        graph("Failures of this kind", "Requests that failed, by server and type of the error.",
              "reqps", Ask(rate("metamcp_call_errors_total", f"{SERVER},{FAILED}",
                                "server, error_type"), "{{server}} {{error_type}}")),
        number("Configuration", "Whether it was valid when it was last read.", "none",
               f"min(metamcp_config_last_reload_successful{{{HERE}}})",
               words={"0": ("refused", "red"), "1": ("in force", "green")}),
        number("Last reload", "When the configuration was last read with success.",
               "dateTimeFromNow",
               f"max(metamcp_config_last_reload_timestamp_seconds{{{HERE}}}) * 1000"),
    ]  # fmt: skip
