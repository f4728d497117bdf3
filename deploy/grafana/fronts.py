"""Fronts and clients: who is connected, what is turned away, what the gateway itself costs."""

from grafana_foundation_sdk.models import dashboard

from deploy.grafana.frame import Row, framed
from deploy.grafana.panels import Ask, graph, number
from deploy.grafana.queries import CALLS, HERE, grown, quantile, rate, total

FRONT = f'{HERE},role="front"'


def fronts() -> dashboard.Dashboard:
    return framed(
        "metamcp-fronts",
        "Fronts and clients",
        "Who is connected, what is turned away, and what the gateway itself costs.",
        [
            Row("Now", _now()),
            Row("Clients", _clients()),
            Row("Turned away", _refused()),
            Row("What ends", _ends()),
            Row("The gateway's own time", _own()),
        ],
    )


def _now() -> list[dashboard.Panel]:
    return [
        number("Connections", "Open connections of clients.", "short",
               total("metamcp_connections", HERE)),
        number("Sessions", "Open sessions of clients that have sessions.", "short",
               total("metamcp_sessions", HERE), absent="none"),
        number("Streams", "Open streams of events.", "short", total("metamcp_streams", HERE)),
        number("In the queue", "Connections that no front has accepted yet.", "short",
               total("metamcp_accept_queue", HERE),
               steps=((None, "green"), (16.0, "orange"), (128.0, "red"))),
        number("Requests", "Per second.", "reqps", rate(f"{CALLS}_count", HERE)),
        number("Lag of a front", "95 % of the turns of its event loop came within.", "s",
               quantile(0.95, "metamcp_loop_lag_seconds", FRONT),
               steps=((None, "green"), (0.1, "orange"), (1.0, "red"))),
    ]  # fmt: skip


def _clients() -> list[dashboard.Panel]:
    return [
        graph("Connections and streams", "Open ones.", "short",
              Ask(total("metamcp_connections", HERE), "connections"),
              Ask(total("metamcp_streams", HERE), "streams")),
        graph("Sessions by revision", "Clients of revision 2026-07-28 have none.", "short",
              Ask(total("metamcp_sessions", HERE, "protocol_version"), "{{protocol_version}}"),
              stacked=True),
        graph("Connections in the queue", "Of the listening socket. A queue that stays says that "
              "the fronts do not keep up, or have no free descriptor.", "short",
              Ask(total("metamcp_accept_queue", HERE), "waiting")),
        graph("Requests by revision", "Per second.", "reqps",
              Ask(rate(f"{CALLS}_count", HERE, "mcp_protocol_version"),
                  "{{mcp_protocol_version}}"), width=12, stacked=True),
        graph("Requests by method", "Per second.", "reqps",
              Ask(rate(f"{CALLS}_count", HERE, "mcp_method_name"), "{{mcp_method_name}}"),
              width=12, stacked=True),
        graph("Tokens in view", "Estimated, of the list of tools in the fullest view of each "
              "endpoint.", "short",
              Ask(total("metamcp_view_tokens", HERE, "endpoint"), "{{endpoint}}"), width=12),
        graph("Tokens of everything", "Estimated, of all tool definitions behind each endpoint: "
              "what a client has in context that sees all of them.", "short",
              Ask(total("metamcp_endpoint_tokens", HERE, "endpoint"), "{{endpoint}}"), width=12),
        graph("Texts for searches by meaning", "Tools and queries that became vectors, were known "
              "already, came too late for their search, or failed.", "short",
              Ask(grown("metamcp_embedded_texts_total", HERE, "outcome"), "{{outcome}}"),
              width=12, bars=True),
        graph("Records of the audit", "Written, lost (a gap tells of them), refused by the disk; "
              "and whether its process runs.", "short",
              Ask(grown("metamcp_audit_records_total", HERE, "outcome"), "{{outcome}}"),
              Ask(total("metamcp_audit_up", HERE), "writer runs"),
              width=12, bars=True),
        graph("Runs of code", "By outcome, `ok` or the kind of failure.", "short",
              Ask(grown("metamcp_code_runs_total", HERE, "outcome"), "{{outcome}}"),
              width=12, bars=True),
        graph("Sandboxes", "Runs of code under way, runs that wait for their turn, and sandboxes "
              "that wait for a run.", "short",
              Ask(total("metamcp_code_running", HERE), "running"),
              Ask(total("metamcp_code_waiting", HERE), "waiting"),
              Ask(total("metamcp_code_warm", HERE), "warm"), width=12),
        graph("Orders to the engine", "Agents, suggestions and orders about workflows that ended, "
              "by method and outcome.", "short",
              Ask(grown("metamcp_engine_orders_total", HERE, "method, outcome"),
                  "{{method}} {{outcome}}"),
              width=12, bars=True),
        graph("Runs of workflows", "Runs that have not ended, by status; those with "
              "`needs_decision` or `needs_answer` wait for a person.", "short",
              Ask(total("metamcp_engine_runs", HERE, "status"), "{{status}}"), width=12),
        graph("Waiting for people", "Runs of workflows that somebody has to answer or to decide "
              "about, and calls that need consent.", "short",
              Ask(total("metamcp_waiting_for_people", HERE, "kind"), "{{kind}}"), width=12),
    ]  # fmt: skip


def _refused() -> list[dashboard.Panel]:
    return [
        graph("Refused requests", "Turned away before they reached a server, per second.", "reqps",
              Ask(rate("metamcp_requests_refused_total", HERE, "reason"), "{{reason}}"),
              width=12, stacked=True),
        graph("Clients that read too slowly", "Disconnected, because too much waited for them; per "
              "second.", "short",
              Ask(rate("metamcp_slow_client_disconnects_total", HERE), "disconnected"), width=12),
        graph("Above a limit of use", "Calls, streams and bodies that were refused, by whose limit "
              "it is; all API keys together.", "short",
              Ask(grown("metamcp_limited_total", HERE, "kind, name, limit"),
                  "{{kind}} {{name}} {{limit}}"), width=12, bars=True),
        graph("Policies", "Calls that a policy denied, asked about or logged, or would have, and "
              "those that it failed for.", "short",
              Ask(grown("metamcp_policy_matches_total", HERE, "policy, outcome"),
                  "{{policy}} {{outcome}}"), width=12, bars=True),
        graph("Requests through middleware", "By middleware and outcome, `ok` or the kind of "
              "failure.", "short",
              Ask(grown("metamcp_middleware_requests_total", HERE, "middleware, outcome"),
                  "{{middleware}} {{outcome}}"), width=12, bars=True),
        graph("Consent", "Calls about which a person is asked, by how that ended.", "short",
              Ask(grown("metamcp_consent_total", HERE, "outcome"), "{{outcome}}"), width=12,
              bars=True),
        graph("Used of the quotas of today", "At 100 % calls are refused until midnight UTC; of "
              "API keys the fullest one.", "percentunit",
              Ask(f"max by (kind, name) (metamcp_quota_used_ratio{{{HERE}}})", "{{kind}} {{name}}"),
              width=12),
    ]  # fmt: skip


def _ends() -> list[dashboard.Panel]:
    return [
        graph("Certificates", "Until the first one ends that clients check, or that theirs are "
              "checked with.", "s", Ask(_left("certificate", "certificate"), "{{certificate}}")),
        graph("API keys", "Until the last valid key of a name ends, of the 100 names that end "
              "first.", "s", Ask(_left("key", "workspace, key"), "{{workspace}} {{key}}")),
        graph("Tokens for remote servers", "Until a person has to authorize the gateway again. "
              "Tokens that the gateway renews are left out.", "s",
              Ask(_left("token", "server"), "{{server}}")),
    ]  # fmt: skip


def _left(of: str, by: str) -> str:
    return f"min by ({by}) (metamcp_{of}_expiry_timestamp_seconds{{{HERE}}}) - time()"


def _own() -> list[dashboard.Panel]:
    where = "metamcp_overhead_seconds"
    return [
        graph("What the gateway adds", "Half and 99 % of the calls within, by where the time goes; "
              "one of many calls is measured so.", "s",
              Ask(quantile(0.5, where, HERE, "stage"), "{{stage}} 50%"),
              Ask(quantile(0.99, where, HERE, "stage"), "{{stage}} 99%"), width=12),
        graph("Lag of the event loops", "99 % of the turns came within, by role.", "s",
              Ask(quantile(0.99, "metamcp_loop_lag_seconds", HERE, "role"), "{{role}}"), width=12),
        graph("Processor of the fronts", "How many cores they keep busy.", "short",
              Ask(rate("metamcp_process_cpu_seconds_total", FRONT), "fronts")),
        graph("Memory of the fronts", "Pages that they share count once.", "bytes",
              Ask(total("metamcp_process_memory_bytes", FRONT), "fronts")),
        graph("Age of the heartbeat", "Of the front that said nothing for the longest time.", "s",
              Ask(f"max(metamcp_heartbeat_age_seconds{{{FRONT}}})", "fronts")),
    ]  # fmt: skip
