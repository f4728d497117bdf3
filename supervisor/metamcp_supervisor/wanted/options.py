"""Every key of metamcp.toml: its kind, its default, and what a change of it costs.

Owns: the one list that the parser, the plan of a reload, `metamcp config schema` and
docs/configuration.md agree on. Never: reading a value (`table`), the defaults as values (`config`).
"""

from dataclasses import dataclass
from typing import Literal

Section = Literal[
    "",
    "gateway",
    "log",
    "recording",
    "metrics",
    "traces",
    "servers.*",
    "servers.*.oauth",
    "namespaces.*",
    "namespaces.*.tools.*",
    "endpoints.*",
    "endpoints.*.naming",
]
Kind = Literal[
    "string",
    "strings",
    "command",
    "table of strings",
    "table",
    "boolean or table",
    "boolean",
    "integer",
    "number from 0 to 1",
    "duration",
    "size",
    "cores",
    "path",
    "address",
    "address or socket",
    "choice",
]
Effect = Literal["in place", "next start", "restart", "full restart"]
"""Of a reload: it counts at once, or from the next start of this server, or this server restarts,
or the gateway must be restarted."""

FRONTS_MAX = 16
"""More than that share no work that is worth a process: each holds a pipe to every server."""


@dataclass(frozen=True, slots=True)
class Option:
    """`default`: as one would write it, or empty when there is none. `choices`: what a choice may
    be; `later`: choices that a newer version will have."""

    section: Section
    key: str
    kind: Kind
    default: str
    effect: Effect
    why: str
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


OPTIONS: tuple[Option, ...] = (
    Option("", "include", "strings", "[]", "in place",
           "Take servers from files that you have already, of any shape listed below."),
    Option("", "gateway", "table", "", "full restart", "The gateway itself."),
    Option("", "log", "table", "", "in place", "How the gateway's own processes speak."),
    Option("", "recording", "table", "", "in place", "What is written down of finished calls."),
    Option("", "metrics", "table", "", "in place", "How much `/metrics` tells."),
    Option("", "traces", "table", "", "in place", "Where spans of calls go."),
    Option("", "servers", "table", "", "in place", "The MCP servers, by name."),
    Option("", "namespaces", "table", "", "in place", "Groups of servers, by name."),
    Option("", "endpoints", "table", "", "in place", "What clients connect to, by name."),
    Option("gateway", "listen", "address", '"127.0.0.1:6270"', "full restart",
           "Where clients connect; loopback only, because endpoints have no keys yet."),
    Option("gateway", "ops_listen", "address or socket", '"127.0.0.1:6271"', "full restart",
           "Metrics and health, away from the clients' port; loopback, or `unix:PATH`."),
    Option("gateway", "fronts", "integer", "1", "full restart",
           "Processes that speak to clients, up to 16; with two, nobody waits when one crashes."),
    Option("gateway", "watch", "boolean", "false", "full restart",
           "Reload when a file of the configuration changes; `true` under `metamcp up`."),
    Option("gateway", "state_dir", "path", '"~/.local/state/metamcp"', "full restart",
           "What is remembered over restarts; `$STATE_DIRECTORY` when systemd sets it."),
    Option("gateway", "runtime_dir", "path", '"${XDG_RUNTIME_DIR}/metamcp"', "full restart",
           "Control socket and lock, for this gateway alone; else `/tmp/metamcp-UID`."),
    Option("gateway", "drain_delay", "duration", "", "full restart",
           "From the failing `/readyz` of a gateway that stops to the last connection accepted."),
    Option("log", "format", "choice", '"auto"', "in place",
           "`auto`: text where stderr is a terminal, else JSON, one object a line.",
           ("auto", "text", "json")),
    Option("log", "level", "choice", '"info"', "in place",
           "The least that the gateway's own rooms say.",
           ("debug", "info", "warning", "error")),
    Option("log", "levels", "table of strings", "{}", "in place",
           'The same for single rooms and libraries: `levels = { http = "debug" }`.'),
    Option("recording", "calls", "choice", '"off"', "in place",
           "`metadata`: what was called, how long it took, how it ended; `full`: bodies too.",
           ("off", "metadata", "full")),
    Option("recording", "file_max", "size", '"16M"', "in place",
           "Of one file; then another one is begun."),
    Option("recording", "files_max", "integer", "8", "in place",
           "So many files stay, up to 1000; the oldest is removed."),
    Option("recording", "body_max", "size", '"16K"', "in place",
           "Of the arguments and of the result of one call, up to 1M; the rest is cut."),
    Option("metrics", "per_tool", "boolean", "false", "in place",
           "Times of calls for each tool by itself, up to 200 per server."),
    Option("traces", "endpoint", "string", "", "in place",
           "Where a collector takes spans: OTLP over HTTP. Without it nothing is traced."),
    Option("traces", "sample", "number from 0 to 1", "0.1", "in place",
           "Of the calls whose client does not trace, so many are; else the client decides."),
    Option("traces", "headers", "table of strings", "{}", "in place",
           "Sent with every batch of spans; refer to secrets, do not write them here."),
    Option("servers.*", "command", "command", "", "restart",
           "What to start: a list of arguments, or the program's name with `args`."),
    Option("servers.*", "args", "strings", "[]", "restart",
           "The arguments when `command` is only the program's name."),
    Option("servers.*", "module", "string", "", "restart",
           "A Python server, `package.module:object`, run inside its own worker."),
    Option("servers.*", "url", "string", "", "restart",
           "A server elsewhere, `https://…` or `http://…`; nothing is started for it here."),
    Option("servers.*", "transport", "string", '"auto"', "restart",
           "For a URL `auto`, `http` or `sse`; alone, the name of one that a package brings."),
    Option("servers.*", "headers", "table of strings", "{}", "restart",
           "Sent with every request to `url`; refer to secrets, do not write them here."),
    Option("servers.*", "oauth", "boolean or table", "false", "restart",
           "Get authorized towards `url` by OAuth; a table says as which client."),
    Option("servers.*", "options", "table of strings", "{}", "restart",
           "What a transport that a package brings is told; what they mean, it says."),
    Option("servers.*", "env", "table of strings", "{}", "restart",
           "Variables for this server alone; refer to secrets, do not write them here."),
    Option("servers.*", "cwd", "path", '"."', "restart",
           "Where the server starts; by default where the file is that names it."),
    Option("servers.*", "enabled", "boolean", "true", "restart",
           "Switch a server off without losing its settings."),
    Option("servers.*", "start", "choice", '"eager"', "in place",
           "With the gateway, or when it is first called; until then its lists are the last known.",
           ("eager", "lazy")),
    Option("servers.*", "idle_stop", "duration", '"10m"', "in place",
           "A lazy server that nobody needed for so long is stopped until the next call."),
    Option("servers.*", "spares", "integer", "0", "in place",
           "`1`: a second copy stands by, for a server of which two may run at the same time."),
    Option("servers.*", "sharing", "choice", '"per-workspace"', "in place",
           "`per-session`: a process for each client; `auto`: once a question reached nobody.",
           ("shared", "per-workspace", "per-session", "auto")),
    Option("servers.*", "depends_on", "strings", "[]", "in place",
           "Servers that must be ready before this one starts, and that stop after it."),
    Option("servers.*", "required", "boolean", "false", "in place",
           "The gateway reports that it is ready only when this server is."),
    Option("servers.*", "recording", "choice", "", "in place",
           "What is written down of its calls, if not what `[recording]` says.",
           ("off", "metadata", "full")),
    Option("servers.*", "restart", "choice", '"on-failure"', "in place",
           "When a server that went down by itself is started again.",
           ("always", "on-failure", "never")),
    Option("servers.*", "restarts_max", "integer", "8", "in place",
           "More failures than these within `restart_window`, and it is only probed now and then."),
    Option("servers.*", "restart_window", "duration", '"120s"', "in place",
           "Within which failures are counted."),
    Option("servers.*", "restart_delay_max", "duration", '"30s"', "in place",
           "Each failure doubles the wait for the next start, up to this."),
    Option("servers.*", "retry", "choice", '"never"', "in place",
           "Calls that a server died with go to the next one once, if its tools allow it.",
           ("never", "read-only", "idempotent")),
    Option("servers.*", "start_timeout", "duration", '"30s"', "next start",
           "How long starting and the first lists may take; the first `npx` run is slow."),
    Option("servers.*", "timeout", "duration", '"60s"', "in place",
           "How long one call may take before it is answered with an error."),
    Option("servers.*", "stop_grace", "duration", '"5s"', "next start",
           "How long a server may take to stop before it is killed."),
    Option("servers.*", "probe_interval", "duration", '"30s"', "next start",
           "A silent server that we run is asked so often whether it still answers."),
    Option("servers.*", "hide_after", "duration", '"3s"', "in place",
           "A server that is back sooner keeps its tools in the lists: clients see no flicker."),
    Option("servers.*", "strict_listing", "boolean", "false", "in place",
           "Take the tools of a server out of the lists the moment it goes down."),
    Option("servers.*", "concurrency", "integer", "1024", "next start",
           "Calls in flight at the server; `1` for one that cannot do two things at once."),
    Option("servers.*", "queue", "integer", "4096", "next start",
           "Calls that may wait for their turn; one more is refused as overloaded."),
    Option("servers.*", "memory_max", "size", "", "in place",
           "Memory of all its processes together; a server that uses more is killed."),
    Option("servers.*", "memory_high", "size", "", "in place",
           "A server that uses more for a while is restarted; else 80 % of `memory_max`."),
    Option("servers.*", "memory_rlimit", "boolean", "false", "next start",
           "The kernel refuses each of its processes more data than `memory_max`."),
    Option("servers.*", "cpu_max", "cores", "", "in place",
           'Processors that it may keep busy, `1.5` or `"150%"`; needs a delegated cgroup.'),
    Option("servers.*", "processes_max", "integer", "", "in place",
           "Processes that it may have; a server that has more is killed."),
    Option("servers.*", "nofile_max", "integer", "", "next start",
           "Open files that each of its processes may have."),
    Option("servers.*.oauth", "client_id", "string", "", "restart",
           "Of a client that you have registered; without it the gateway registers itself."),
    Option("servers.*.oauth", "client_secret", "string", "", "restart",
           "Its secret; a reference, please."),
    Option("servers.*.oauth", "client_metadata_url", "string", "", "restart",
           "An `https` URL that describes the client and serves as its id."),
    Option("servers.*.oauth", "scopes", "strings", "[]", "restart",
           "What is asked for when the server does not say what it needs."),
    Option("servers.*.oauth", "grant", "choice", '"authorization_code"', "restart",
           "`client_credentials`: nobody is asked, the gateway itself is the user.",
           ("authorization_code", "client_credentials")),
    Option("namespaces.*", "servers", "strings", "", "in place",
           "The servers of the group; in `default`, every server unless you write them."),
    Option("namespaces.*", "tools", "table", "{}", "in place",
           'Switches for single tools: `tools."server.tool" = { enabled = false }`.'),
    Option("namespaces.*.tools.*", "enabled", "boolean", "true", "in place",
           "`false` takes the tool out of every list and refuses calls of it."),
    Option("endpoints.*", "namespace", "string", "", "in place",
           "The one group of servers that clients see here."),
    Option("endpoints.*", "exposure", "choice", '"all"', "in place",
           "How much of the namespace a client sees at first.",
           ("all",), ("toolset", "servers", "search", "code")),
    Option("endpoints.*", "naming", "table", "{}", "in place", "How tools are called here."),
    Option("endpoints.*", "auth", "choice", '"none"', "in place",
           "Who may connect; with `none` the gateway listens on loopback only.",
           ("none",), ("keys", "oauth")),
    Option("endpoints.*", "sse", "boolean", "true", "in place",
           "HTTP+SSE for clients of 2024; off unless written where others can reach `listen`."),
    Option("endpoints.*", "rest", "boolean", "true", "in place",
           "Plain HTTP requests for single tools, for programs that speak no MCP."),
    Option("endpoints.*.naming", "style", "choice", '"namespaced"', "in place",
           "`git__status`, `git_status`, `git.status` or just `status`.",
           ("namespaced", "flat", "dotted", "bare")),
    Option("endpoints.*.naming", "separator", "string", '""', "in place",
           "Another separator than the style's own: up to 8 of letters, digits and `_.-`."),
    Option("endpoints.*.naming", "hyphens", "choice", '"keep"', "in place",
           "`underscore` for clients that cannot have `-` in the name of a tool.",
           ("keep", "underscore")),
    Option("endpoints.*.naming", "length_max", "integer", "64", "in place",
           "Longer names are cut and get a hash; some clients allow 64 characters only."),
)  # fmt: skip

#: Keys that belong to the format and that this version cannot honour. They are refused with these
#: words rather than ignored: who writes `sandbox = "strict"` must not run without it.
LATER: dict[Section, frozenset[str]] = {
    "": frozenset({"workspaces"}),
    "gateway": frozenset({"console_listen"}),
    "servers.*": frozenset({
 "sandbox", "sandbox_required", "read", "write", "network",
        "pinning", "tools", "labels",
    }),
    "endpoints.*": frozenset({
        "path", "view_scope", "call_hidden", "url_keys", "limits", "tools",
    }),
}  # fmt: skip


def keys(section: Section) -> tuple[str, ...]:
    return tuple(option.key for option in OPTIONS if option.section == section)


def option(section: Section, key: str) -> Option:
    return next(found for found in OPTIONS if (found.section, found.key) == (section, key))
