"""Every key of metamcp.toml: its kind, its default, and the effect of a change at a reload.

Owns: the list of keys that the parser, the plan of a reload, `metamcp config schema` and
docs/configuration.md all use. Never: reading a value (`document`), the defaults as values
(`config`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from metamcp_supervisor.config import environment

Section = str
"""Table of the file, with `*` for names and `[]` for a list of tables; empty for the top."""
Kind = Literal[
    "string", "strings", "command", "table of strings", "table of values", "table", "tables",
    "boolean or table", "choice or table", "boolean", "integer", "integers", "number",
    "number from 0 to 1", "duration", "size", "cores", "path", "address", "address or socket",
    "choice", "choices",
]  # fmt: skip
Effect = Literal["in place", "next start", "restart", "full restart"]
"""Effect of a changed setting at a reload: at once; from the next start of this server; this server
restarts; the gateway must be restarted."""

FRONTS_MAX = 16
"""Maximum number of fronts; more would not have enough work to be worth a process, because each
holds a pipe to every server."""


OWN = ""
"""For `member`: a function of its table reads and shows the setting."""


@dataclass(frozen=True, slots=True)
class Option:
    """Key of metamcp.toml. `default`: as a user writes it, empty without a default; `choices`: the
    allowed values of a choice.

    `low`, `high`: bounds, as a user writes them. `member`: of the record with the value, or OWN.
    `if_set`: it is shown only if it is set. `after`: key behind which it is shown, if not behind
    the one above.
    """

    section: Section
    key: str
    kind: Kind
    default: str
    effect: Effect
    why: str
    choices: tuple[str, ...] = ()
    low: str = ""
    high: str = ""
    member: str | None = None
    if_set: bool = False
    after: str = ""


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
               "Calls that may begin in a minute, over time; one more is refused.",
           low="1", high="1000000000", if_set=True),
        Option(section, "burst", "integer", "", "in place",
               "Calls that may begin at once; `calls_per_minute` if nothing is written.",
           low="1", high="1000000000", if_set=True),
        Option(section, "calls_per_day", "integer", "", "in place",
               "Calls from midnight to midnight UTC.", low="1", high="1000000000", if_set=True),
        Option(section, "in_flight", "integer", "", "in place",
               "Calls that are not answered yet.", low="1", high="1000000000", if_set=True),
    )  # fmt: skip
    requests = (
        Option(section, "streams", "integer", "", "in place",
               "Streams that stand open and wait for news.",
           low="1", high="1000000000", if_set=True),
        Option(section, "body_max", "size", "", "in place",
               "Bytes of one request, up to 16M.", low="1", if_set=True),
    )  # fmt: skip
    return (*calls, *requests) if section == "endpoints.*.limits" else calls


def _code(section: Section) -> tuple[Option, ...]:
    """Return the limits of a run of code: of all endpoints, or of one."""
    general = section == "code"
    return (
        Option(section, "timeout", "duration", '"30s"' if general else "", "in place",
               "How long a run may take, up to an hour; a client can only lower it.",
           high="1h", member="timeout_ms"),
        Option(section, "memory_max", "size", '"128M"' if general else "", "in place",
               "Memory of the code and its data, up to 4G.",
           low="32M", high="4G", member="memory_bytes"),
        Option(section, "output_max", "size", '"1M"' if general else "", "in place",
               "What a run may return and write to its log, up to 16M.",
           low="1K", high="16M", member="output_bytes"),
        Option(section, "calls_max", "integer", "1000" if general else "", "in place",
               "Calls of tools in one run.", low="1", high="100000", member="calls"),
        Option(section, "parallel_max", "integer", "32" if general else "", "in place",
               "Calls of one run that are not answered yet; more wait.",
           low="1", high="1000", member="parallel"),
    )  # fmt: skip


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
    Option("", "code", "table", "", "in place", "Code mode: clients run programs that call tools."),
    Option("", "middleware", "tables", "[]", "in place",
           "Code around requests: each `[[middleware]]` switches one on."),
    Option("", "consent", "table", "", "in place",
           "Calls about which a person is [asked](consent.md) first."),
    Option("", "workflows", "strings", "[]", "in place",
           "Files of workflows, and folders with such files; `metamcp:NAME` for a shipped one."),
    Option("", "suggestions", "table", "", "in place", "Rules that suggest workflows for tasks."),
    Option("", "ai", "table", "", "in place",
           "The model that agents and suggestions use, and what an agent may use of it."),
    Option("", "engine", "table", "", "in place", "How runs of workflows are kept."),
    Option("", "notify", "table", "", "in place", "What runs when something waits for a person."),
    Option("", "metrics", "table", "", "in place", "How much `/metrics` tells."),
    Option("", "traces", "table", "", "in place", "Where spans of calls go."),
    Option("", "embeddings", "table", "", "in place", "Where searches get vectors from."),
    Option("", "policies", "tables", "[]", "in place",
           "Rules that allow, deny, ask about or log calls: [policies](policies.md)."),
    Option("", "servers", "table", "", "in place", "The MCP servers, by name."),
    Option("", "namespaces", "table", "", "in place", "Groups of servers, by name."),
    Option("", "endpoints", "table", "", "in place", "What clients connect to, by name."),
    Option("", "workspaces", "table", "", "in place",
           "Tenants, by name: each with servers, namespaces and endpoints of its own."),
    Option("gateway", "listen", "address", '"127.0.0.1:6270"', "full restart",
           "Where clients connect; elsewhere than on loopback only with `auth`."),
    Option("gateway", "auth", "choices", '"none"', "full restart",
           "What endpoints ask for that do not say it themselves: a choice, or a list of them.",
           ("none", "keys", "oauth"), member=OWN),
    Option("gateway", "tls", "choice or table", '"off"', "full restart",
           "`local`: TLS by a CA of its own, not on loopback; `required`: there too; or a table.",
           ("off", "local", "required")),
    Option("gateway", "behind_proxy", "boolean", "false", "full restart",
           "A proxy in front of the gateway speaks TLS to clients."),
    Option("gateway", "ops_listen", "address or socket", '"127.0.0.1:6271"', "full restart",
           "Metrics and health, away from the clients' port; loopback, or `unix:PATH`."),
    Option("gateway", "health_listen", "address", "", "full restart",
           "Health pages without names of servers, for probes from other machines too."),
    Option("gateway", "console_listen", "address", "", "full restart",
           "The web console; off until it is set or `metamcp console` is run."),
    Option("gateway", "socket", "path", "", "full restart",
           "A unix socket where clients connect, too, without TLS."),
    Option("gateway", "allowed_hosts", "strings", "[]", "full restart",
           'Further names of the gateway in `Host` and `Origin`: `"box:8443"`, `"*.example.com"`.'),
    Option("gateway", "fronts", "integer", "1", "full restart",
           "Processes that speak to clients, up to 16; with two, nobody waits when one crashes.",
           low="1", high=f"{FRONTS_MAX}"),
    Option("gateway", "watch", "boolean", "false", "full restart",
           "Reload when a file of the configuration changes; `true` under `metamcp up`."),
    Option("gateway", "state_dir", "path", "", "full restart",
           "What is remembered; without it [one of its own](#directories-and-ports)."),
    Option("gateway", "runtime_dir", "path", "", "full restart",
           "Control socket and lock; without it [one of its own](#directories-and-ports)."),
    Option("gateway", "drain_delay", "duration", "", "full restart",
           "From the failing `/readyz` of a gateway that stops to the last connection accepted.",
           if_set=True),
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
           "Of one file; then another one is begun.", low="64K"),
    Option("recording", "files_max", "integer", "8", "in place",
           "So many files stay, up to 1000; the oldest is removed.", low="2", high="1000"),
    Option("recording", "body_max", "size", '"16K"', "in place",
           "Of the arguments and of the result of one call, up to 1M; the rest is cut.",
           low="1K", high="1M"),
    Option("audit", "level", "choice", '"metadata"', "in place",
           "`redacted`, `full`: arguments and results too. Without `[audit]` it is `off`.",
           ("off", "metadata", "redacted", "full")),
    Option("audit", "durability", "choice", '"process"', "in place",
           "What a record survives: the end of any process, or a loss of power too.",
           ("process", "power")),
    Option("audit", "required", "boolean", "true", "in place",
           "Refuse calls while records cannot be written; else the audit has a gap."),
    Option("audit", "retention", "duration", '"90d"', "in place",
           "Age at which a whole segment (a day, or 256 MiB) is removed.",
           low="1h", high="366d"),
    *_code("code"),
    Option("code", "runs_max", "integer", "", "in place",
           "Runs at once, more wait; as many as processors if nothing is written.",
           low="1", high="256", if_set=True),
    Option("code", "warm", "integer", "2", "in place",
           "Sandboxes that wait for a run, from the first run on; each saves a run 20 ms.",
           low="0", high="64"),
    Option("code", "idle", "duration", '"5m"', "in place",
           "Without a run for so long, they end.", low="1s"),
    Option("code", "jit", "boolean", "false", "in place",
           "Compile the code: pure computing is 8 times as fast, and a whole class of faults of the"
           " engine is back."),
    Option("code", "confinement", "choice", '"prefer"', "in place",
           "Landlock around each sandbox: `prefer` goes on without it where the kernel has none.",
           ("prefer", "require", "off")),
    Option("middleware[]", "name", "string", "", "in place",
           "Its name in logs, `ctl status` and figures."),
    Option("middleware[]", "uses", "string", "", "in place",
           "Its entry point in the group `metamcp.middleware`; `name` if nothing is written."),
    Option("middleware[]", "match", "strings", "", "in place",
           'What goes through it, as `SERVER/NAME` with `*` for any text: `"github/*"`.',
           member=OWN),
    Option("middleware[]", "order", "integer", "0", "in place",
           "Those with smaller numbers are outside of those with larger ones.",
           low="0", high="1000000"),
    Option("middleware[]", "timeout", "duration", '"200ms"', "in place", "Its time in a request."),
    Option("middleware[]", "mode", "choice", '"enforce"', "in place",
           "`permissive`: its failure does not end the request.", ("enforce", "permissive")),
    Option("middleware[]", "memory_max", "size", '"256M"', "in place",
           "Memory of its data; with more its process ends, and starts again.",
           low="16M", member="memory_bytes"),
    Option("middleware[]", "options", "table", "{}", "in place", "What its class is made with."),
    Option("consent", "rules", "tables", "[]", "in place",
           "The first rule that matches counts; a call that none matches is allowed."),
    Option("consent", "timeout", "duration", '"120s"', "in place",
           "How long a call waits for an answer; then it is refused.", low="1s"),
    Option("consent", "on_no_elicitation", "choice", '"deny"', "in place",
           "A call whose client cannot ask is refused, allowed, or waits for an operator.",
           ("deny", "allow", "queue")),
    Option("consent", "use_annotations", "boolean", "false", "in place",
           "Ask about every tool that does not say that it only reads, too."),
    Option("consent.rules[]", "match", "strings", "", "in place",
           "The tools, as `server/tool` with `*`: one such glob, or a list of them.", member=OWN),
    Option("consent.rules[]", "effect", "choice", "", "in place",
           "What happens to their calls.", ("allow", "ask", "deny")),
    Option("suggestions", "rules", "strings", "[]", "in place",
           "Files of rules, looked at before those that are shipped.", member=OWN),
    Option("suggestions", "shipped", "boolean", "true", "in place",
           "`false` leaves out the rules that are shipped.", member=OWN),
    Option("ai", "provider", "choice", '"openai"', "in place",
           "The shape of requests: `openai` goes for most servers of models, also local ones.",
           ("openai", "anthropic")),
    Option("ai", "url", "string", "", "in place",
           "`https://api.openai.com/v1`, `https://api.anthropic.com`, or your own."),
    Option("ai", "model", "string", "", "in place", "The name of a model there."),
    Option("ai", "key", "string", "", "in place", "The key for it: `${env:NAME}`, please."),
    Option("ai", "steps_max", "integer", "20", "in place",
           "Requests to the model by one agent; a client can only lower it.", low="1", high="1000"),
    Option("ai", "tokens_max", "integer", "200000", "in place",
           "Tokens of one agent, read and written.", low="1", high="1000000000"),
    Option("ai", "timeout", "duration", '"5m"', "in place", "How long one agent may take.",
           low="1s"),
    Option("ai", "answer_tokens_max", "integer", "4096", "in place",
           "Tokens of one answer of the model.", low="1", high="1000000"),
    Option("ai", "cost_max", "number", "0", "in place",
           "What one agent may cost by the prices below; `0` is no limit.",
           high="1000000", if_set=True),
    Option("ai", "input_price", "number", "0", "in place", "For a million tokens that it reads.",
           high="1000000", if_set=True),
    Option("ai", "output_price", "number", "0", "in place",
           "For a million tokens that it writes.", high="1000000", if_set=True),
    Option("ai", "consent", "boolean", "true", "in place",
           "The user is asked before an agent calls a tool that may destroy something.",
           after="answer_tokens_max"),
    Option("engine", "database", "string", "", "in place",
           "`postgresql://USER:${env:NAME}@HOST/DATABASE`: runs of several machines, in place of a"
           " file in the state directory."),
    Option("engine", "keep", "duration", '"30d"', "in place", "How long ended runs are kept.",
           low="60s", high="366d"),
    Option("engine", "sync", "choice", '"full"', "in place",
           "`full`: a step is on the disk before the next begins; `normal`: twice as many steps,"
           " and a loss of power may lose the last ones.",
           ("full", "normal")),
    Option("engine", "runs_max", "integer", "64", "in place",
           "Workflow runs under way at once; more wait.", low="1", high="10000"),
    Option("notify", "command", "strings", "[]", "in place",
           "A program and its arguments, run when a run or a call begins to wait for a person.",
           member=OWN),
    Option("metrics", "per_tool", "boolean", "false", "in place",
           "Times of calls for each tool by itself, up to 200 per server."),
    Option("traces", "endpoint", "string", "", "in place",
           "Where a collector takes spans: OTLP over HTTP. Without it nothing is traced."),
    Option("traces", "sample", "number from 0 to 1", "0.1", "in place",
           "Of the calls whose client does not trace, so many are; else the client decides.",
           high="1"),
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
           "Of what vectors find, beside 1 of what words find.", high="1"),
    Option("embeddings", "timeout", "duration", '"10s"', "in place",
           "For one request. No search waits for it longer than 150 ms."),
    Option("embeddings", "batch", "integer", "32", "in place",
           "Tools in one request, up to 64.", low="1", high="64"),
    Option("policies[]", "name", "string", "", "in place", "Its name, in answers and figures."),
    Option("policies[]", "match", "strings", '["*/*"]', "in place",
           "What it is about, `server/name` with `*`: one such glob, or a list of them.",
           member=OWN),
    Option("policies[]", "when", "string", "", "in place",
           "A [condition](policies.md#conditions) in CEL; without one the rule always counts."),
    Option("policies[]", "effect", "choice", "", "in place",
           "What happens to the call, and to what is listed.", ("allow", "deny", "ask", "log")),
    Option("policies[]", "message", "string", "", "in place",
           "What the client is told, or asked."),
    Option("policies[]", "mode", "choice", '"enforce"', "in place",
           "`permissive`: what the rule would have done is only counted and recorded.",
           ("enforce", "permissive")),
    Option("servers.*", "command", "command", "", "restart",
           "What to start: a list of arguments, or the program's name with `args`."),
    Option("servers.*", "args", "strings", "[]", "restart",
           "The arguments when `command` is only the program's name.", member=OWN),
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
           "`1`: a second copy stands by, for a server of which two may run at the same time.",
           low="0", high="1", after="extensions"),
    Option("servers.*", "sharing", "choice", '"auto"', "in place",
           "Who shares a process: all, each client, or a folder; `auto`: all if that can be right.",
           ("shared", "per-workspace", "per-session", "per-project", "auto")),
    Option("servers.*", "era", "choice", '"auto"', "restart",
           "`auto`: each client in its own era, if the server speaks both; else in this one only.",
           ("auto", "modern", "legacy")),
    Option("servers.*", "protocol", "choice", "", "restart",
           "The only revision that it is asked for, instead of the newest that it accepts.",
           ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07")),
    Option("servers.*", "extensions", "table of values", "", "restart",
           "Extensions that clients of a shared process are said to have; without it, MCP Apps."),
    Option("servers.*", "depends_on", "strings", "[]", "in place",
           "Servers that must be ready before this one starts, and that stop after it.",
           after="idle_stop"),
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
           "More failures than these within `restart_window`, and it is only probed now and then.",
           low="0", high="1000"),
    Option("servers.*", "restart_window", "duration", '"120s"', "in place",
           "Within which failures are counted."),
    Option("servers.*", "restart_delay_max", "duration", '"30s"', "in place",
           "Each failure doubles the wait for the next start, up to this."),
    Option("servers.*", "retry", "choice", '"never"', "in place",
           "Calls that a server died with go to the next one once, if its tools allow it.",
           ("never", "read-only", "idempotent")),
    Option("servers.*", "start_timeout", "duration", '"30s"', "next start",
           "How long starting and the first lists may take; `3m` for `npx`, `uvx` and their like."),
    Option("servers.*", "timeout", "duration", '"5m"', "in place",
           "How long one call may take, from its last progress on, before it ends with an error."),
    Option("servers.*", "timeout_max", "duration", '"1h"', "next start",
           "How long a call that goes on reporting progress may take."),
    Option("servers.*", "list_timeout", "duration", '"5s"', "next start",
           "How long its prompts, resources and templates may take; it is used without late ones."),
    Option("servers.*", "stop_grace", "duration", '"5s"', "next start",
           "How long a server may take to stop before it is killed."),
    Option("servers.*", "probe_interval", "duration", '"30s"', "next start",
           "A silent server that we run is asked so often whether it still answers."),
    Option("servers.*", "hide_after", "duration", '"3s"', "in place",
           "A server that is back sooner keeps its tools in the lists: clients see no flicker."),
    Option("servers.*", "trust_annotations", "boolean", "false", "in place",
           "Nobody is [asked](consent.md) about tools that say that they only read.", if_set=True),
    Option("servers.*", "strict_listing", "boolean", "", "in place",
           "Take the tools of a server out of the lists the moment it goes down; not written, so it"
           " is where an endpoint with the exposure `servers` has it."),
    Option("servers.*", "concurrency", "integer", "1024", "next start",
           "Calls in flight at the server; `1` for one that cannot do two things at once.",
           low="1", high="65536"),
    Option("servers.*", "queue", "integer", "4096", "next start",
           "Calls that may wait for their turn; one more is refused as overloaded.",
           low="1", high="65536"),
    Option("servers.*", "message_max", "size", '"64M"', "next start",
           "One message of the server, up to 256M. A larger one is passed over, and whoever waits "
           "for it gets an error.", low="64K", high="256M"),
    Option("servers.*", "memory_max", "size", "", "in place",
           "Memory of all its processes together; a server that uses more is killed.", low="16M"),
    Option("servers.*", "memory_high", "size", "", "in place",
           "A server that uses more for a while is restarted; else 80 % of `memory_max`.",
           low="16M"),
    Option("servers.*", "memory_rlimit", "boolean", "false", "next start",
           "The kernel refuses each of its processes more data than `memory_max`.",
           after="memory_max"),
    Option("servers.*", "cpu_max", "cores", "", "in place",
           'Processors that it may keep busy, `1.5` or `"150%"`; needs a delegated cgroup.'),
    Option("servers.*", "processes_max", "integer", "", "in place",
           "Processes that it may have. Without it, a confined one is killed above `256`.",
           low="1", high="65536"),
    Option("servers.*", "disk_max", "size", "", "in place",
           "Disk for its own folders; `1G`, or half of the room if that is less.",
           low="1M", after="unix_sockets"),
    Option("servers.*", "nofile_max", "integer", "", "next start",
           "Open files that each of its processes may have.", low="16", high="1048576"),
    Option("servers.*", "sandbox", "choice", '"basic"', "restart",
           "How its process is [confined](confinement.md); `none`: not at all.",
           ("none", "basic", "strict")),
    Option("servers.*", "sandbox_required", "boolean", "false", "restart",
           "Do not start it where the kernel lacks a part of `basic`.", if_set=True),
    Option("servers.*", "read", "strings", "[]", "restart",
           "Files and folders that it may read beside those of its program and command line.",
           if_set=True),
    Option("servers.*", "write", "strings", "[]", "restart",
           "Files and folders that it may read and change.", if_set=True),
    Option("servers.*", "needs", "strings", "", "restart",
           "What it needs beside its files, such as a browser; not written, as it is"
           " [known](confinement.md#known-servers).", if_set=True, after="disk_max"),
    Option("servers.*", "unix_sockets", "strings", "[]", "restart",
           "Unix sockets outside of its own folders that it may connect to; for `basic`.",
           if_set=True),
    Option("servers.*", "network", "choice or table", "", "restart",
           "`host` for `basic`, `none` for `strict`; or a table.",
           ("host", "none")),
    Option("servers.*.network", "tcp_ports", "integers", "", "restart",
           "The only TCP ports that it may connect to; it can listen on none."),
    Option("servers.*.oauth", "client_id", "string", "", "restart",
           "Of a client that you have registered; without it the gateway registers itself."),
    Option("servers.*.oauth", "client_secret", "string", "", "restart",
           "Its secret; a reference, please."),
    Option("servers.*.oauth", "client_metadata_url", "string", "", "restart",
           "An `https` URL that describes the client and serves as its id."),
    Option("servers.*.oauth", "scopes", "strings", "[]", "restart",
           "What is asked for when the server does not say what it needs.", member=OWN),
    Option("servers.*.oauth", "grant", "choice", '"authorization_code"', "restart",
           "`client_credentials`: nobody is asked, the gateway itself is the user.",
           ("authorization_code", "client_credentials")),
    Option("servers.*.oauth", "require_pkce", "boolean", "true", "restart",
           "`false`: also an authorization server that does not name `S256` in its metadata."),
    Option("servers.*.oauth", "callback_port", "integer", "6273", "restart",
           "The port of 127.0.0.1 to which the browser comes back; another one if that is in use.",
           low="1", high="65535"),
    Option("servers.*", "tools", "table", "{}", "in place",
           "What is to be otherwise about single tools: `tools.reset = { enabled = false }`.",
           after="pinning"),
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
           ("all", "toolset", "servers", "search", "code")),
    Option("endpoints.*", "view_scope", "choice", "", "in place",
           "Who shares a view: all clients of one principal, or each session has its own, as it is"
           " with the exposures `search` and `servers` if nothing is written.",
           ("principal", "session")),
    Option("endpoints.*", "call_hidden", "boolean", "true", "in place",
           "A tool out of view can be called by its name; some clients never list again."),
    Option("endpoints.*", "naming", "table", "{}", "in place", "How tools are called here."),
    Option("endpoints.*", "schemas", "choice", '"as-is"', "in place",
           "`safe`: lists leave out what some clients and models refuse in the schemas of tools.",
           ("as-is", "safe")),
    Option("endpoints.*", "auth", "choices", "", "in place",
           "What it asks for, if not what `[gateway]` says; with `none` everybody who gets there.",
           ("none", "keys", "oauth"), member=OWN),
    Option("endpoints.*", "oauth", "table", "", "in place",
           "Whose tokens are accepted, with `oauth` in `auth`.", after="url_keys"),
    Option("endpoints.*", "keys", "strings", "", "in place",
           "Names or ids of the only API keys that it accepts, of those of its workspace.",
           member=OWN),
    Option("endpoints.*", "url_keys", "boolean", "false", "in place",
           "A key may stand in the URL as `?api_key=`, if it was made with `--url`."),
    Option("endpoints.*", "sse", "boolean", "true", "in place",
           "HTTP+SSE for clients of 2024; off unless written where others can reach `listen`."),
    Option("endpoints.*", "rest", "boolean", "true", "in place",
           "Plain HTTP requests for single tools, for programs that speak no MCP."),
    Option("endpoints.*", "limits", "table", "{}", "in place",
           "How much its clients may do: `limits = { calls_per_minute = 600, streams = 100 }`."),
    *_limits("endpoints.*.limits"),
    Option("endpoints.*", "code", "table", "{}", "in place",
           'Limits of code here that differ from `[code]`: `code = { timeout = "5s" }`.'),
    *_code("endpoints.*.code"),
    Option("endpoints.*", "results", "table", "", "in place",
           'Large results are kept, clients get a short one: `results = { max = "64K" }`.'),
    Option("endpoints.*.results", "max", "size", '"64K"', "in place",
           "A result with more bytes is kept; also the largest piece that clients read.",
           low="8K", member="max_bytes"),
    Option("endpoints.*.results", "keep", "duration", '"1h"', "in place",
           "How long a result is kept, up to a week.", low="10s", high="7d"),
    Option("endpoints.*.results", "total", "size", '"256M"', "in place",
           "Bytes of all results of one principal here; beyond, the oldest go.",
           low="8K", member="total_bytes"),
    Option("endpoints.*", "builtins", "choices", "[]", "in place",
           "Families of built-in tools that clients have here, with any exposure.",
           ("catalog", "workflows", "agent"), after="code", member=OWN),
    Option("endpoints.*", "tools", "table", "{}", "in place",
           'The same at this endpoint: `tools."server.tool" = { name = "reset" }`.'),
    *_tool("endpoints.*.tools.*"),
    Option("endpoints.*.oauth", "issuer", "string", "", "in place",
           "The authorization server: its `issuer`, exactly as its metadata say."),
    Option("endpoints.*.oauth", "audience", "string", "", "in place",
           "The URL that clients use, for which tokens must be; on loopback it is known."),
    Option("endpoints.*.oauth", "scopes", "strings", "[]", "in place",
           "Scopes that every token must have.", member=OWN),
    Option("endpoints.*.oauth", "introspection", "string", "", "in place",
           "A URL to ask about tokens that are not JWTs of the type `at+jwt` (RFC 7662)."),
    Option("endpoints.*.oauth", "client_id", "string", "", "in place",
           "With which the gateway asks there."),
    Option("endpoints.*.oauth", "client_secret", "string", "", "in place",
           "As `${env:NAME}` or another reference."),
    Option("endpoints.*.oauth", "allow_private", "boolean", "false", "in place",
           "The issuer may be on this machine or in its network."),
    Option("endpoints.*.naming", "style", "choice", '"namespaced"', "in place",
           "`git__status`, `git_status`, `git.status` or just `status`.",
           ("namespaced", "flat", "dotted", "bare")),
    Option("endpoints.*.naming", "separator", "string", '""', "in place",
           "Another separator than the style's own: up to 8 of letters, digits and `_.-`."),
    Option("endpoints.*.naming", "hyphens", "choice", '"keep"', "in place",
           "`underscore` for clients that cannot have `-` in the name of a tool.",
           ("keep", "underscore")),
    Option("endpoints.*.naming", "length_max", "integer", "64", "in place",
           "Longer names are cut and get a hash; some clients allow 64 characters only.",
           low="16", high="128"),
    Option("workspaces.*", "servers", "table", "", "in place",
           "Its servers, as at the top of the file; `ctl` shows them as `WORKSPACE:NAME`."),
    Option("workspaces.*", "namespaces", "table", "", "in place",
           "Groups of its servers, and of servers at the top of the file as `default:NAME`."),
    Option("workspaces.*", "endpoints", "table", "", "in place",
           "What its clients connect to; names of endpoints are unique over all workspaces."),
    Option("workspaces.*", "workflows", "strings", "[]", "in place",
           "Its workflows, as at the top of the file."),
    Option("workspaces.*", "limits", "table", "{}", "in place",
           "How much all of its clients together may do."),
    *_limits("workspaces.*.limits"),
)  # fmt: skip

#: Keys that belong to the format but are not available in this version. They are refused rather
#: than ignored: the server of a user who writes `sandbox = "strict"` must not run without one.
LATER: dict[Section, frozenset[str]] = {
    "servers.*": frozenset({"labels"}),
}


_OF_SECTION: dict[Section, tuple[Option, ...]] = {
    section: tuple(option for option in OPTIONS if option.section == section)
    for section in dict.fromkeys(option.section for option in OPTIONS)
}
_OF_RECORDS = frozenset(
    {"strings", "boolean", "integer", "number", "number from 0 to 1", "duration", "size", "cores",
     "choice", "choices"}
)  # fmt: skip
"""Kinds of values that stand in a record as they are read."""


def options_of(section: Section) -> tuple[Option, ...]:
    return _OF_SECTION.get(section, ())


def keys(section: Section) -> tuple[str, ...]:
    return tuple(option.key for option in options_of(section))


def option(section: Section, key: str) -> Option:
    return next(candidate for candidate in options_of(section) if candidate.key == key)


@cache
def members(section: Section) -> tuple[tuple[Option, str], ...]:
    """Return the options that are read and shown by their kind, each with the member of the record
    for it."""
    return tuple(
        (option, option.member or (f"{option.key}_s" if option.kind == "duration" else option.key))
        for option in options_of(section)
        if option.kind in _OF_RECORDS and option.member != OWN
    )
