"""Every key of metamcp.toml: its kind, its default, and the effect of a change at a reload.

Owns: the list of keys that the parser, the plan of a reload, `metamcp config schema` and
docs/configuration.md all use. Never: reading a value (`document`), the defaults as values
(`config`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from metamcp_supervisor.config import environment

Section = Literal[
    "",
    "gateway",
    "gateway.tls",
    "log",
    "recording",
    "audit",
    "metrics",
    "traces",
    "embeddings",
    "servers.*",
    "servers.*.oauth",
    "servers.*.tools.*",
    "namespaces.*",
    "namespaces.*.tools.*",
    "endpoints.*",
    "servers.*.limits",
    "endpoints.*.naming",
    "endpoints.*.limits",
    "workspaces.*",
    "workspaces.*.limits",
    "endpoints.*.tools.*",
]
Kind = Literal[
    "string",
    "strings",
    "command",
    "table of strings",
    "table of values",
    "table",
    "boolean or table",
    "choice or table",
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
    "choices",
]
Effect = Literal["in place", "next start", "restart", "full restart"]
"""Effect of a changed setting at a reload: at once; from the next start of this server; this server
restarts; the gateway must be restarted."""

FRONTS_MAX = 16
"""Maximum number of fronts; more would not have enough work to be worth a process, because each
holds a pipe to every server."""


@dataclass(frozen=True, slots=True)
class Option:
    """Key of metamcp.toml. `default`: as a user writes it, empty without a default; `choices`: the
    allowed values of a choice; `later`: choices that a newer version will have."""

    section: Section
    key: str
    kind: Kind
    default: str
    effect: Effect
    why: str
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def _tool(section: Section) -> tuple[Option, ...]:
    """Return the settings of a tool: of a server, in a namespace, or at an endpoint."""
    return (
        Option(section, "enabled", "boolean", "true", "in place",
               "`false` takes the tool out of every list and refuses calls of it."),
        Option(section, "hidden", "boolean", "false", "in place",
               "`true` takes it out of every list and search; it can still be called by its name."),
        Option(section, "name", "string", "", "in place",
               "What clients call it, exactly so, in place of the name by the rule."),
        Option(section, "aliases", "strings", "[]", "in place",
               "Further names by which it can be called; no list has them."),
        Option(section, "title", "string", "", "in place", "Another title."),
        Option(section, "description", "string", "", "in place", "Another description."),
        Option(section, "fixed", "table of values", "{}", "in place",
               "Arguments that are always sent so; clients neither see nor set them."),
        Option(section, "defaults", "table of values", "{}", "in place",
               "Arguments that are sent so when a client leaves them out."),
    )  # fmt: skip


def _limits(section: Section) -> tuple[Option, ...]:
    """Return the limits of use of an endpoint, a server or a workspace."""
    calls = (
        Option(section, "calls_per_minute", "integer", "", "in place",
               "Calls that may begin in a minute, over time; one more is refused."),
        Option(section, "burst", "integer", "", "in place",
               "Calls that may begin at once; `calls_per_minute` if nothing is written."),
        Option(section, "calls_per_day", "integer", "", "in place",
               "Calls from midnight to midnight UTC."),
        Option(section, "in_flight", "integer", "", "in place",
               "Calls that are not answered yet."),
    )  # fmt: skip
    requests = (
        Option(section, "streams", "integer", "", "in place",
               "Streams that stand open and wait for news."),
        Option(section, "body_max", "size", "", "in place",
               "Bytes of one request, up to 16M."),
    )  # fmt: skip
    return (*calls, *requests) if section == "endpoints.*.limits" else calls


def _texts(values: Sequence[str]) -> str:
    """Write a list of strings as TOML."""
    quoted = (f'"{each}"' for each in values)
    return f"[{', '.join(quoted)}]"


OPTIONS: tuple[Option, ...] = (
    Option("", "include", "strings", "[]", "in place",
           "Take servers from files that you have already, of any shape listed below."),
    Option("", "gateway", "table", "", "full restart", "The gateway itself."),
    Option("", "log", "table", "", "in place", "How the gateway's own processes speak."),
    Option("", "recording", "table", "", "in place", "What is written down of finished calls."),
    Option("", "audit", "table", "", "in place", "Which calls leave a record that is proof."),
    Option("", "metrics", "table", "", "in place", "How much `/metrics` tells."),
    Option("", "traces", "table", "", "in place", "Where spans of calls go."),
    Option("", "embeddings", "table", "", "in place", "Where searches get vectors from."),
    Option("", "servers", "table", "", "in place", "The MCP servers, by name."),
    Option("", "namespaces", "table", "", "in place", "Groups of servers, by name."),
    Option("", "endpoints", "table", "", "in place", "What clients connect to, by name."),
    Option("", "workspaces", "table", "", "in place",
           "Tenants, by name: each with servers, namespaces and endpoints of its own."),
    Option("gateway", "listen", "address", '"127.0.0.1:6270"', "full restart",
           "Where clients connect; elsewhere than on loopback only with `auth`."),
    Option("gateway", "auth", "choices", '"none"', "full restart",
           "What endpoints ask for that do not say it themselves: a choice, or a list of them.",
           ("none", "keys"), ("oauth",)),
    Option("gateway", "tls", "choice or table", '"off"', "full restart",
           "`local`: TLS by a CA of its own, not on loopback; `required`: there too; or a table.",
           ("off", "local", "required")),
    Option("gateway", "behind_proxy", "boolean", "false", "full restart",
           "A proxy in front of the gateway speaks TLS to clients."),
    Option("gateway", "ops_listen", "address or socket", '"127.0.0.1:6271"', "full restart",
           "Metrics and health, away from the clients' port; loopback, or `unix:PATH`."),
    Option("gateway", "health_listen", "address", "", "full restart",
           "Health pages without names of servers, for probes from other machines too."),
    Option("gateway", "allowed_hosts", "strings", "[]", "full restart",
           'Further names of the gateway in `Host` and `Origin`: `"box:8443"`, `"*.example.com"`.'),
    Option("gateway", "fronts", "integer", "1", "full restart",
           "Processes that speak to clients, up to 16; with two, nobody waits when one crashes."),
    Option("gateway", "watch", "boolean", "false", "full restart",
           "Reload when a file of the configuration changes; `true` under `metamcp up`."),
    Option("gateway", "state_dir", "path", "", "full restart",
           "What is remembered; without it [one of its own](#directories-and-ports)."),
    Option("gateway", "runtime_dir", "path", "", "full restart",
           "Control socket and lock; without it [one of its own](#directories-and-ports)."),
    Option("gateway", "drain_delay", "duration", "", "full restart",
           "From the failing `/readyz` of a gateway that stops to the last connection accepted."),
    Option("gateway.tls", "cert", "path", "", "full restart",
           "Certificate of the gateway, with those above it, in PEM; read anew when it changes."),
    Option("gateway.tls", "key", "path", "", "full restart",
           "Its private key, in PEM."),
    Option("gateway.tls", "client_ca", "path", "", "full restart",
           "Only clients with a certificate of one of these may connect."),
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
    Option("audit", "level", "choice", '"metadata"', "in place",
           "`redacted`, `full`: arguments and results too. Without `[audit]` it is `off`.",
           ("off", "metadata", "redacted", "full")),
    Option("audit", "durability", "choice", '"process"', "in place",
           "What a record survives: the end of any process, or a loss of power too.",
           ("process", "power")),
    Option("audit", "required", "boolean", "true", "in place",
           "Refuse calls while records cannot be written; else the audit has a gap."),
    Option("audit", "retention", "duration", '"90d"', "in place",
           "Age at which a whole segment (a day, or 256 MiB) is removed."),
    Option("metrics", "per_tool", "boolean", "false", "in place",
           "Times of calls for each tool by itself, up to 200 per server."),
    Option("traces", "endpoint", "string", "", "in place",
           "Where a collector takes spans: OTLP over HTTP. Without it nothing is traced."),
    Option("traces", "sample", "number from 0 to 1", "0.1", "in place",
           "Of the calls whose client does not trace, so many are; else the client decides."),
    Option("traces", "headers", "table of strings", "{}", "in place",
           "Sent with every batch of spans; refer to secrets, do not write them here."),
    Option("embeddings", "url", "string", "", "in place",
           "An endpoint as that of OpenAI: `https://api.openai.com/v1/embeddings`, or your own."),
    Option("embeddings", "model", "string", "", "in place",
           "The name of a model there; another name makes all vectors anew."),
    Option("embeddings", "key", "string", "", "in place",
           "A bearer token for it; a reference, please."),
    Option("embeddings", "folder", "path", "", "in place",
           "In place of `url`: a folder with a small model that the gateway runs itself."),
    Option("embeddings", "weight", "number from 0 to 1", "0.4", "in place",
           "Of what vectors find, beside 1 of what words find."),
    Option("embeddings", "timeout", "duration", '"10s"', "in place",
           "For one request. No search waits for it longer than 150 ms."),
    Option("embeddings", "batch", "integer", "32", "in place",
           "Tools in one request, up to 64."),
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
    Option("servers.*", "inherit_env", "strings", _texts(environment.DEFAULT), "restart",
           "Variables of the gateway that it gets [beside the usual ones](#environment); globs."),
    Option("servers.*", "cwd", "path", '"."', "restart",
           "Where the server starts; by default where the file is that names it."),
    Option("servers.*", "enabled", "boolean", "true", "restart",
           "Switch a server off without losing its settings."),
    Option("servers.*", "start", "choice", '"eager"', "in place",
           "With the gateway, or when it is first called; until then its lists are the last known.",
           ("eager", "lazy")),
    Option("servers.*", "idle_stop", "duration", "", "in place",
           "A process that nobody needed for so long stops: `10m` if lazy, `5m` if not for all."),
    Option("servers.*", "spares", "integer", "0", "in place",
           "`1`: a second copy stands by, for a server of which two may run at the same time."),
    Option("servers.*", "sharing", "choice", '"auto"', "in place",
           "Who shares a process: all, each client, or a folder; `auto`: all if that can be right.",
           ("shared", "per-workspace", "per-session", "per-project", "auto")),
    Option("servers.*", "era", "choice", '"auto"', "restart",
           "`auto`: each client in its own era, if the server speaks both; else in this one only.",
           ("auto", "modern", "legacy")),
    Option("servers.*", "depends_on", "strings", "[]", "in place",
           "Servers that must be ready before this one starts, and that stop after it."),
    Option("servers.*", "required", "boolean", "false", "in place",
           "The gateway reports that it is ready only when this server is."),
    Option("servers.*", "recording", "choice", "", "in place",
           "What is written down of its calls, if not what `[recording]` says.",
           ("off", "metadata", "full")),
    Option("servers.*", "pinning", "choice", "", "in place",
           "`enforce`: clients do not get tools that drifted; so it is if `metamcp.lock` has it.",
           ("off", "record", "enforce")),
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
           "How long starting and the first lists may take; `3m` for `npx`, `uvx` and their like."),
    Option("servers.*", "timeout", "duration", '"60s"', "in place",
           "How long one call may take before it is answered with an error."),
    Option("servers.*", "stop_grace", "duration", '"5s"', "next start",
           "How long a server may take to stop before it is killed."),
    Option("servers.*", "probe_interval", "duration", '"30s"', "next start",
           "A silent server that we run is asked so often whether it still answers."),
    Option("servers.*", "hide_after", "duration", '"3s"', "in place",
           "A server that is back sooner keeps its tools in the lists: clients see no flicker."),
    Option("servers.*", "strict_listing", "boolean", "", "in place",
           "Take the tools of a server out of the lists the moment it goes down; not written, so it"
           " is where an endpoint with the exposure `servers` has it."),
    Option("servers.*", "concurrency", "integer", "1024", "next start",
           "Calls in flight at the server; `1` for one that cannot do two things at once."),
    Option("servers.*", "queue", "integer", "4096", "next start",
           "Calls that may wait for their turn; one more is refused as overloaded."),
    Option("servers.*", "message_max", "size", '"64M"', "next start",
           "One message of the server, up to 256M. A larger one is passed over, and whoever waits "
           "for it gets an error."),
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
    Option("servers.*.oauth", "require_pkce", "boolean", "true", "restart",
           "`false`: also an authorization server that does not name `S256` in its metadata."),
    Option("servers.*.oauth", "callback_port", "integer", "6273", "restart",
           "The port of 127.0.0.1 to which the browser comes back; another one if that is in use."),
    Option("servers.*", "tools", "table", "{}", "in place",
           "What is to be otherwise about single tools: `tools.reset = { enabled = false }`."),
    *_tool("servers.*.tools.*"),
    Option("servers.*", "limits", "table", "{}", "in place",
           "How much all clients together may call it: `limits = { calls_per_minute = 60 }`."),
    *_limits("servers.*.limits"),
    Option("namespaces.*", "servers", "strings", "", "in place",
           'Its servers, `["*"]`: every server; `default` without it: those that no other names.'),
    Option("namespaces.*", "description", "string", "", "in place",
           "What the group is for; the instructions that clients get begin with it."),
    Option("namespaces.*", "tools", "table", "{}", "in place",
           'The same in this namespace: `tools."server.tool" = { enabled = false }`.'),
    *_tool("namespaces.*.tools.*"),
    Option("endpoints.*", "namespace", "string", "", "in place",
           "The one group of servers that clients see here."),
    Option("endpoints.*", "path", "string", "", "in place",
           "In its URLs in place of its name: `/metamcp/PATH/mcp`."),
    Option("endpoints.*", "exposure", "choice", '"all"', "in place",
           "How much of the namespace a client sees at first.",
           ("all", "toolset", "servers", "search"), ("code",)),
    Option("endpoints.*", "view_scope", "choice", "", "in place",
           "Who shares a view: all clients of one principal, or each session has its own, as it is"
           " with the exposures `search` and `servers` if nothing is written.",
           ("principal", "session")),
    Option("endpoints.*", "call_hidden", "boolean", "true", "in place",
           "A tool out of view can be called by its name; some clients never list again."),
    Option("endpoints.*", "naming", "table", "{}", "in place", "How tools are called here."),
    Option("endpoints.*", "auth", "choices", "", "in place",
           "What it asks for, if not what `[gateway]` says; with `none` everybody who gets there.",
           ("none", "keys"), ("oauth",)),
    Option("endpoints.*", "url_keys", "boolean", "false", "in place",
           "A key may stand in the URL as `?api_key=`, if it was made with `--url`."),
    Option("endpoints.*", "sse", "boolean", "true", "in place",
           "HTTP+SSE for clients of 2024; off unless written where others can reach `listen`."),
    Option("endpoints.*", "rest", "boolean", "true", "in place",
           "Plain HTTP requests for single tools, for programs that speak no MCP."),
    Option("endpoints.*", "limits", "table", "{}", "in place",
           "How much its clients may do: `limits = { calls_per_minute = 600, streams = 100 }`."),
    *_limits("endpoints.*.limits"),
    Option("endpoints.*", "tools", "table", "{}", "in place",
           'The same at this endpoint: `tools."server.tool" = { name = "reset" }`.'),
    *_tool("endpoints.*.tools.*"),
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
    Option("workspaces.*", "servers", "table", "", "in place",
           "Its servers, as at the top of the file; `ctl` shows them as `WORKSPACE:NAME`."),
    Option("workspaces.*", "namespaces", "table", "", "in place",
           "Groups of its servers, and of servers at the top of the file as `default:NAME`."),
    Option("workspaces.*", "endpoints", "table", "", "in place",
           "What its clients connect to; names of endpoints are unique over all workspaces."),
    Option("workspaces.*", "limits", "table", "{}", "in place",
           "How much all of its clients together may do."),
    *_limits("workspaces.*.limits"),
)  # fmt: skip

#: Keys that belong to the format but are not available in this version. They are refused rather
#: than ignored: the server of a user who writes `sandbox = "strict"` must not run without one.
LATER: dict[Section, frozenset[str]] = {
    "gateway": frozenset({"console_listen"}),
    "servers.*": frozenset({
 "sandbox", "sandbox_required", "read", "write", "network",
        "labels",
    }),
}  # fmt: skip

_KEYS = "write auth = \"keys\"; a key is made with 'metamcp keys create NAME --endpoint ENDPOINT'"
_LISTEN = 'write listen = "127.0.0.1:PORT"'
_NAMED = "its name stands in the brackets above it"
_OF_NAMESPACES = "a namespace lists its servers: [namespaces.NAME] servers = […]"
#: Keys of other gateways, and the hint that names the key to write here.
ELSEWHERE: dict[Section, dict[str, str]] = {
    "": {
        "mcpServers": "servers are [servers.NAME] here, or a file that 'include' names",
        "mcp_servers": "servers are [servers.NAME] here, or a file that 'include' names",
        "port": f"{_LISTEN} in [gateway]",
        "host": f"{_LISTEN} in [gateway]",
        "storage_path": "write state_dir in [gateway]",
        "ai_api": "an endpoint for searches by meaning is [embeddings] url",
        "toolsets": "tool sets are made by 'metamcp toolsets create' or 'import'",
        "tool_sets": "tool sets are made by 'metamcp toolsets create' or 'import'",
    },
    "gateway": {
        "port": _LISTEN,
        "host": _LISTEN,
        "storage_path": "write state_dir",
        "exposure": "write it in [endpoints.NAME]",
        "naming": "write it in [endpoints.NAME]",
    },
    "servers.*": {
        "type": "a command or a url says what it is; 'transport' chooses between ways to a url",
        "disabled": "write enabled = false",
        "serverUrl": "write url",
        "httpUrl": "write url",
        "namespace": _OF_NAMESPACES,
        "namespaceId": _OF_NAMESPACES,
        "name": _NAMED,
        "id": _NAMED,
        "autostart": 'write start = "lazy", or enabled = false',
        "autorestart": "write restart",
        "environment": "write env",
        "directory": "write cwd",
    },
    "namespaces.*": {"name": _NAMED, "id": _NAMED},
    "endpoints.*": {
        "namespaceId": "write namespace",
        "apiKeyRequired": _KEYS,
        "allowedApiKeys": _KEYS,
        "name": _NAMED,
        "id": _NAMED,
    },
}  # fmt: skip


def keys(section: Section) -> tuple[str, ...]:
    return tuple(option.key for option in OPTIONS if option.section == section)


def option(section: Section, key: str) -> Option:
    return next(found for found in OPTIONS if (found.section, found.key) == (section, key))
