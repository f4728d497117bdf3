"""Capacity: what everything uses, how near it is to its limits, and how it grows."""

from grafana_foundation_sdk.models import dashboard

from deploy.grafana.frame import Row, framed
from deploy.grafana.panels import BAD_ABOVE_ZERO, Ask, graph, number
from deploy.grafana.queries import HERE, SERVER, quantile, rate, total

TOP = 10
"""Servers that are shown where all would be too many."""
MEMORY = "metamcp_process_memory_bytes"
PROCESSOR = "metamcp_process_cpu_seconds_total"
OWN = f'{SERVER},server!="",role=~"worker|server"'


def capacity() -> dashboard.Dashboard:
    return framed(
        "metamcp-capacity",
        "Capacity",
        "What everything uses, how near it is to its limits, and how it grows.",
        [
            Row("Now", _now()),
            Row("Memory", _memory()),
            Row("Processor, files, threads", _rest()),
            Row("Calls", _calls()),
            Row("The metrics themselves", _metrics()),
        ],
        servers="many",
    )


def _now() -> list[dashboard.Panel]:
    return [
        number("Memory", "Of the gateway and all its servers. Pages that processes share count "
               "once.", "bytes", total(MEMORY, HERE)),
        number("Cores", "That the gateway and all its servers keep busy.", "short",
               rate(PROCESSOR, HERE)),
        number("Open files", "Of the process that has most of what it may have.", "percentunit",
               f"max({_files()})", steps=((None, "green"), (0.7, "orange"), (0.85, "red"))),
        number("Threads", "Of all processes.", "short", total("metamcp_process_threads", HERE)),
        number("Servers", "That are configured.", "short",
               f"count(count by (server) (metamcp_server_state{{{SERVER}}}))"),
        number("Version", "What runs.", "none",
               f"count by (version) (metamcp_build_info{{{HERE}}})", name="{{version}}"),
    ]  # fmt: skip


def _memory() -> list[dashboard.Panel]:
    server = f'{SERVER},role="server"'
    return [
        graph("Memory by role", "Pages that processes share count once.", "bytes",
              Ask(total(MEMORY, HERE, "role"), "{{role}}"), stacked=True),
        graph("Memory by server", f"The {TOP} largest, each with its worker.", "bytes",
              Ask(f"topk({TOP}, {total(MEMORY, OWN, 'server')})", "{{server}}")),
        graph("Share of the limit", "Of servers that have a limit; at 80 % one is restarted after "
              "its calls, unless `memory_high` says otherwise.", "percentunit",
              Ask(f"{total(MEMORY, server, 'server')} / on (server) "
                  f"{total('metamcp_process_memory_limit_bytes', SERVER, 'server')}",
                  "{{server}}"), top=1.0),
    ]  # fmt: skip


def _rest() -> list[dashboard.Panel]:
    return [
        graph("Processor by role", "Cores that are kept busy.", "short",
              Ask(rate(PROCESSOR, HERE, "role"), "{{role}}"), stacked=True),
        graph("Processor by server", f"Cores, of the {TOP} busiest servers.", "short",
              Ask(f"topk({TOP}, {rate(PROCESSOR, OWN, 'server')})", "{{server}}")),
        graph("Share of the open files", "Descriptors, as a share of what the process may have.",
              "percentunit", Ask(f"topk({TOP}, {_files()})", "{{role}} {{server}}"), top=1.0),
        graph("Open files by role", "Descriptors of the process that is nearest to its limit.",
              "short", Ask(f"max by (role) (metamcp_process_open_fds{{{HERE}}})", "{{role}}"),
              width=12),
        graph("Threads by role", "A number that only grows is a leak.", "short",
              Ask(total("metamcp_process_threads", HERE, "role"), "{{role}}"), width=12,
              stacked=True),
    ]  # fmt: skip


def _files() -> str:
    return f"metamcp_process_open_fds{{{HERE}}} / metamcp_process_max_fds{{{HERE}}}"


def _calls() -> list[dashboard.Panel]:
    return [
        graph("In flight by server", f"Of the {TOP} with most of them.", "short",
              Ask(f"topk({TOP}, {total('metamcp_inflight_calls', SERVER, 'server')})",
                  "{{server}}")),
        graph("Waiting by server", "For their turn, or for a server that is not up.", "short",
              Ask(f"topk({TOP}, {total('metamcp_queued_calls', SERVER, 'server')})",
                  "{{server}}")),
        graph("Lag of the supervisor", "99 % of the turns of its event loop came within.", "s",
              Ask(quantile(0.99, "metamcp_loop_lag_seconds", f'{HERE},role="supervisor"'),
                  "supervisor")),
    ]  # fmt: skip


def _metrics() -> list[dashboard.Panel]:
    return [
        graph("Series", "That this Prometheus reads from the gateway.", "short",
              Ask(f"sum(scrape_samples_scraped{{{HERE}}})", "series")),
        graph("Time of a scrape", "How long the page takes.", "s",
              Ask(f"max(scrape_duration_seconds{{{HERE}}})", "scrape")),
        number("Series refused", "By the gateway's own limit, `series_max`, since it started.",
               "short", total("metamcp_metric_series_dropped_total", HERE), width=8,
               steps=BAD_ABOVE_ZERO),
        graph("Spans", "Of traced calls, that the collector has or that were lost, per second.",
              "short", Ask(rate("metamcp_spans_total", HERE, "outcome"), "{{outcome}}"), width=12),
        graph("Recorded calls", "That are written, or that were lost, per second; none where "
              "nothing is recorded.", "short",
              Ask(rate("metamcp_recorded_calls_total", HERE, "outcome"), "{{outcome}}"), width=12),
    ]  # fmt: skip
