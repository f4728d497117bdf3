"""One server: its calls, its life, what it uses, and how well it behaves."""

from grafana_foundation_sdk.models import dashboard

from deploy.grafana.frame import Row, framed
from deploy.grafana.overview import WORDS
from deploy.grafana.panels import BAD_ABOVE_ZERO, Ask, graph, heat, number, timeline
from deploy.grafana.queries import (
    CALLS,
    SERVER,
    UPSTREAM,
    failing,
    grown,
    quantile,
    rate,
    state,
    total,
)

TOOLS_MAX = 10
"""Of a server with hundreds of them the busiest are shown."""
OURS = f'{SERVER},role=~"worker|server"'


def server() -> dashboard.Dashboard:
    return framed(
        "metamcp-server",
        "One server",
        "All that is measured of one server behind the gateway.",
        [
            Row("Now", _now()),
            Row("Calls", _calls()),
            Row("Its life", _life()),
            Row("What it uses", _use()),
            Row("How it behaves", _manners()),
        ],
        servers="one",
    )


def _now() -> list[dashboard.Panel]:
    return [
        number("State", "As clients see it.", "none",
               f"max({state(SERVER, 'instance, server')})", words=WORDS),
        number("Generation", "How often it was started.", "short",
               f"max(metamcp_generation{{{SERVER}}})"),
        number("Last start took", "From the start of its process to its lists.", "s",
               f"max(metamcp_server_start_duration_seconds{{{SERVER}}})"),
        number("Last exit", "How its process last ended: a status, or a signal as a negative "
               "number. Empty before it ever ended.", "none",
               f"max(metamcp_server_last_exit_code{{{SERVER}}})", absent="never ended"),
        number("Circuit", "Open: it failed so often that it is only tried now and then.", "none",
               f"max(metamcp_circuit_open{{{SERVER}}})",
               words={"0": ("closed", "green"), "1": ("open", "red")}),
        number("Required", "Without it the gateway is not ready; its alerts are critical.", "none",
               f"max(metamcp_server_required{{{SERVER}}})",
               words={"0": ("no", "text"), "1": ("yes", "text")}),
        number("Next start in", "0: none is planned.", "s",
               f"max(metamcp_backoff_seconds{{{SERVER}}})"),
    ]  # fmt: skip


def _calls() -> list[dashboard.Panel]:
    tools = "metamcp_tool_calls_total"
    return [
        graph("Requests by method", "Per second.", "reqps",
              Ask(rate(f"{CALLS}_count", SERVER, "mcp_method_name"), "{{mcp_method_name}}"),
              stacked=True),
        graph("Failing", "Share of its requests that failed.", "percentunit",
              Ask(failing(SERVER, "server"), "{{server}}"), top=1.0),
        graph("Errors by type", "All errors, also those that are no failure.", "reqps",
              Ask(rate("metamcp_call_errors_total", SERVER, "error_type"), "{{error_type}}"),
              stacked=True),
        heat("How long requests take", "From a client's request to the end of its answer; each "
             "row is a bucket.", "s", grown(f"{CALLS}_bucket", SERVER, "le")),
        graph("Whose time it is", "95 % of the requests within: as the client sees it, and as the "
              "server itself takes. What lies between is waiting and the gateway.", "s",
              Ask(quantile(0.95, CALLS, SERVER), "client"),
              Ask(quantile(0.95, UPSTREAM, SERVER), "server"), width=12),
        graph("Calls by tool", f"Per second, of the {TOOLS_MAX} busiest tools.", "reqps",
              Ask(f"topk({TOOLS_MAX}, {rate(tools, SERVER, 'gen_ai_tool_name')})",
                  "{{gen_ai_tool_name}}")),
        graph("Errors by tool", "Per second.", "reqps",
              Ask(f"topk({TOOLS_MAX}, "
                  f"{rate('metamcp_tool_errors_total', SERVER, 'gen_ai_tool_name')})",
                  "{{gen_ai_tool_name}}")),
        graph("In flight and waiting", "Requests without an answer, and how many of them wait for "
              "their turn, or until it is up.", "short",
              Ask(total("metamcp_inflight_calls", SERVER), "in flight"),
              Ask(total("metamcp_queued_calls", SERVER), "waiting")),
    ]  # fmt: skip


def _life() -> list[dashboard.Panel]:
    return [
        timeline("States", "Its state over time.", Ask(state(SERVER, "instance, server"),
                 "{{instance}}"), WORDS),
        graph("Restarts", "By what made them necessary.", "short",
              Ask(grown("metamcp_server_restarts_total", SERVER, "reason"), "{{reason}}"),
              bars=True),
        graph("How long clients were without it", "95 % of its failures were over within: from its "
              "end to the next process that serves.", "s",
              Ask(quantile(0.95, "metamcp_failover_duration_seconds", SERVER), "95%")),
        graph("Age of the heartbeat", "Its worker sends one each second; calls wait after 3 s, and "
              "after 6 s it is replaced.", "s",
              Ask(f"max by (role) (metamcp_heartbeat_age_seconds{{{SERVER}}})", "{{role}}")),
        graph("Stops that needed force", "Steps of stopping it beyond the polite one.", "short",
              Ask(grown("metamcp_stop_escalations_total", SERVER, "step"), "{{step}}"), bars=True),
        graph("Orphans", "Processes that it left behind and that were ended.", "short",
              Ask(grown("metamcp_orphans_reaped_total", SERVER), "orphans"), bars=True),
        number("Spares", "Copies that stand by.", "short", total("metamcp_spares_ready", SERVER),
               width=8, absent="none"),
    ]  # fmt: skip


def _use() -> list[dashboard.Panel]:
    return [
        graph("Memory", "Of its processes and of our worker, and the limit if there is one.",
              "bytes",
              Ask(total("metamcp_process_memory_bytes", OURS, "role"), "{{role}}"),
              Ask(f"max(metamcp_process_memory_limit_bytes{{{SERVER}}})", "limit"), width=12),
        graph("Processor", "How many cores it keeps busy.", "short",
              Ask(rate("metamcp_process_cpu_seconds_total", OURS, "role"), "{{role}}"), width=12),
        graph("Open files", "Descriptors of that process which is nearest to its limit.", "short",
              Ask(f"max by (role) (metamcp_process_open_fds{{{OURS}}})", "{{role}}")),
        graph("Threads", "Of its processes.", "short",
              Ask(total("metamcp_process_threads", OURS, "role"), "{{role}}")),
        number("Killed for memory", "How often the kernel ended it in the last hour.", "short",
               grown("metamcp_oom_kills_total", SERVER, within="1h"), width=8,
               steps=BAD_ABOVE_ZERO),
    ]  # fmt: skip


def _manners() -> list[dashboard.Panel]:
    return [
        graph("Noise on stdout", "Lines that were no message, per second.", "short",
              Ask(rate("metamcp_stray_stdout_lines_total", SERVER), "lines")),
        graph("Broken protocol", "Messages that broke it, per second, by kind.", "short",
              Ask(rate("metamcp_protocol_errors_total", SERVER, "kind"), "{{kind}}")),
        graph("Too late, or for nobody", "Late answers, and questions and log messages that belong "
              "to no single caller, per second.", "short",
              Ask(rate("metamcp_late_replies_total", SERVER), "late answers"),
              Ask(rate("metamcp_unroutable_requests_total", SERVER), "questions"),
              Ask(rate("metamcp_unattributed_logs_total", SERVER), "log messages")),
        graph("Lost log lines", "It wrote more than is kept, per second.", "short",
              Ask(rate("metamcp_log_lines_dropped_total", SERVER), "lines")),
        graph("Calls made once more", "Calls whose process died and that went to the next one.",
              "short", Ask(grown("metamcp_call_retries_total", SERVER, "outcome"), "{{outcome}}"),
              bars=True),
        graph("Large results that were kept", "Clients got a short one in place of each.", "short",
              Ask(grown("metamcp_results_kept_total", SERVER), "results"), bars=True),
        graph("Tokens that kept results saved", "Estimated.", "short",
              Ask(grown("metamcp_result_tokens_saved_total", SERVER), "tokens"), bars=True),
        graph("Confinement", "1 if all that the profile asks for confines its process.", "short",
              Ask(f"min by (profile, achieved) (metamcp_server_confinement{{{SERVER}}})",
                  "{{profile}}: {{achieved}}")),
        graph("Rights that its sandbox refused", "As far as the kernel tells.", "short",
              Ask(grown("metamcp_sandbox_refusals_total", SERVER, "right"), "{{right}}"),
              bars=True),
        graph("Tools that are not as approved", "Those in quarantine are kept from clients.",
              "short", Ask(f"max by (drift) (metamcp_drifted_tools{{{SERVER}}})", "{{drift}}"),
              Ask(f"max(metamcp_invalid_definitions{{{SERVER}}})", "not valid, left out")),
    ]  # fmt: skip
