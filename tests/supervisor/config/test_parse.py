"""metamcp.toml: what it comes to, and every error in it at once."""

from pathlib import Path

import pytest
from msgspec import structs

from metamcp_supervisor.config.config import (
    AiConfig,
    CodeConfig,
    Endpoint,
    HookConfig,
    Namespace,
    ResultsConfig,
    Tls,
    ToolConfig,
    UnixAddress,
)
from metamcp_supervisor.config.options import all_options
from metamcp_supervisor.embeddings.embedding_settings import Embeddings
from metamcp_supervisor.workflows.engine_settings import EngineConfig
from metamcp_worker.ipc.code_runs import CodeLimits
from metamcp_worker.ipc.spec import IssuerSpec, NamingSpec, OAuth, UseLimits
from tests.supervisor.configs import loaded, messages

ISSUER = IssuerSpec(
    issuer="https://id.example.com", scopes=("staff",), client_id="gateway",
    audience="https://gateway.example.com/metamcp/Work.1/mcp",
    introspection="https://id.example.com/introspect", client_secret="/home/me", allow_private=True,
)  # fmt: skip
EVERYTHING = """
workflows = []
consent.rules = [{ match = "git/*", effect = "ask" }]
consent.on_no_elicitation = "queue"
consent.use_annotations = true
middleware = [{ name = "a", uses = "filter", match = "a/*", order = 3, mode = "permissive" }]
suggestions = { rules = [], shipped = false }
[gateway]
listen = "127.0.0.1:1000"
auth = "keys"
behind_proxy = true
tls = { cert = "a.pem", key = "a.key", client_ca = "ca.pem" }
ops_listen = "127.0.0.1:1001"
console_listen = "127.0.0.1:1002"
health_listen = "0.0.0.0:1002"
socket = "mcp.sock"
allowed_hosts = ["box:8443", "*.example.com"]
trusted_proxies = ["10.0.0.0/8", "::1"]
fronts = 1
workers = "each"
watch = true
state_dir = "${BASE}/state"
runtime_dir = "run"
drain_delay = "10s"
store = "postgresql://u:${USER:-somebody}@host/state"
cluster_secret = "${USER:-somebody}-and-some-more-characters"
[log]
format = "text"
level = "warning"
levels = { http = "debug" }
server_max = "2M"
[recording]
calls = "metadata"
file_max = "1M"
files_max = 3
body_max = "4K"
[audit]
level = "redacted"
durability = "power"
required = false
retention = "30d"
[code]
timeout = "5s"
memory_max = "64M"
output_max = "64K"
calls_max = 10
parallel_max = 2
runs_max = 3
warm = 0
idle = "1m"
jit = true
confinement = "require"
[[policies]]
name = "no-force"
match = "git/*"
when = "has(mcp.tool.arguments.force)"
effect = "deny"
message = "No."
mode = "permissive"
[metrics]
per_tool = true
series_max = 30_000
[traces]
endpoint = "https://host/v1/traces"
sample = 0.5
headers = { X-Key = "${USER:-somebody}" }

[embeddings]
url = "https://host/v1/embeddings"
model = "small"
key = "${USER:-somebody}"
weight = 0.5
timeout = "3s"
batch = 8

[ai]
provider = "anthropic"
url = "https://models.example"
model = "small"
key = "${USER:-somebody}"
steps_max = 5
tokens_max = 1000
timeout = "1m"
answer_tokens_max = 100
cost_max = 1.5
consent = false
input_price = 3
output_price = 15

[engine]
database = "postgresql://u:${USER:-somebody}@host/runs"
keep = "7d"
sync = "normal"
runs_max = 3

[notify]
command = ["say", "it"]

[hooks]
on = ["drifted", "failed"]
command = ["page", "me"]

[workspaces.acme.limits]
in_flight = 9
[workspaces.acme.servers.git]
command = "acme-git"
[workspaces.acme.namespaces.default]
servers = ["git"]
[workspaces.acme.endpoints.acme-dev]
namespace = "default"

[servers.git]
command = "uvx"
args = ["mcp-server-git", "--user=${USER:-somebody}"]
inherit_env = ["GIT_*"]
env = { HOME = "${HOME}", LEVEL = "2" }
cwd = "sub"
enabled = true
start = "eager"
depends_on = ["notes"]
spares = 1
worker = "own"
required = true
recording = "full"
pinning = "off"
restart = "always"
restarts_max = 3
restart_window = "10m"
restart_delay_max = "5s"
retry = "idempotent"
start_timeout = "1m"
timeout = "90s"
timeout_max = "2h"
list_timeout = "2s"
stop_grace = "500ms"
probe_interval = "2m"
hide_after = "1s"
strict_listing = true
trust_annotations = true
concurrency = 1
queue = 10
message_max = "8M"
memory_max = "1.5G"
memory_high = "1G"
memory_rlimit = true
cpu_max = "150%"
processes_max = 20
nofile_max = 256
sandbox = "strict"
sandbox_required = true
read = ["/srv"]
write = ["data"]
needs = ["kube"]
unix_sockets = ["/run/x.sock"]
disk_max = "2G"
network = { tcp_ports = [443] }
limits = { calls_per_minute = 60, burst = 5, calls_per_day = 1000, in_flight = 3 }
tools.log = { name = "history", fixed = { all = true } }
[servers.notes]
module = "notes.main:server"
start = "lazy"
idle_stop = "5m"
sharing = "auto"
era = "legacy"
protocol = "2025-03-26"
extensions = { "com.example/x" = { y = 1 } }

[servers.wiki]
url = "https://wiki.example.com/${USER:-somebody}/mcp?key=${HOME}"
transport = "http"
headers = { X-Team = "a", Cookie = "id=${HOME}" }
[servers.wiki.oauth]
client_id = "me"
client_secret = "${HOME}"
scopes = ["read"]
require_pkce = true
callback_port = 7001
grant = "client_credentials"

[servers.mail]
url = "http://127.0.0.1:1/"
oauth = { client_metadata_url = "https://me.example.com/client.json" }

[servers.queue]
transport = "kafka"
options = { topic = "${HOME}" }
enabled = false

[namespaces.dev]
description = "What developers need."
servers = ["notes", "git"]
tools."git.reset.hard" = { enabled = false }
tools."git.status" = { enabled = true }

[endpoints.dev]
namespace = "dev"
path = "Work.1"
exposure = "toolset"
view_scope = "session"
call_hidden = false
schemas = "safe"
auth = ["keys", "oauth"]
oauth.issuer = "https://id.example.com"
oauth.audience = "https://gateway.example.com/metamcp/Work.1/mcp"
oauth.scopes = ["staff"]
oauth.introspection = "https://id.example.com/introspect"
oauth.client_id = "gateway"
oauth.client_secret = "${HOME}"
oauth.allow_private = true
url_keys = true
keys = ["ci", "mmcp_k3Jq9ZxA"]
code = { timeout = "1s", calls_max = 20 }
builtins = ["catalog"]
tools."git.status".hidden = true
tools."git.status".aliases = ["old"]
tools."git.status".title = "Status"
tools."git.status".description = "What changed."
tools."git.status".defaults.path = "."
sse = false
rest = false
limits = { calls_per_minute = 6, streams = 2, body_max = "1K" }
results = { max = "32K", keep = "10m", total = "1M" }
naming = { style = "flat", separator = "-", hyphens = "underscore", length_max = 32 }
"""


def test_every_option_of_the_gateway_arrives_at_its_place(tmp_path: Path) -> None:
    got = loaded(tmp_path, EVERYTHING, environ={"BASE": "/b", "HOME": "/home/me"})
    assert got.gateway.state_dir == Path("/b/state")
    assert got.gateway.watch
    assert got.gateway.tls == Tls(
        cert=tmp_path / "a.pem", key=tmp_path / "a.key", client_ca=tmp_path / "ca.pem"
    )
    places = got.gateway.runtime_dir, got.gateway.socket
    assert places == (tmp_path / "run", UnixAddress(tmp_path / "mcp.sock"))
    assert got.gateway.store is not None
    assert got.gateway.store.url == "postgresql://u:somebody@host/state"
    assert got.gateway.cluster_secret == "somebody-and-some-more-characters"
    assert (got.gateway.drain_delay_s, got.metrics.per_tool) == (10.0, True)
    assert got.metrics.series_max == 30_000
    assert got.log.server_max == 2 << 20
    assert (got.traces.sample, got.traces.headers) == (0.5, {"X-Key": "somebody"})
    assert got.code == CodeConfig(
        enabled=True, limits=CodeLimits(5000, 64 << 20, 64 << 10, 10, 2), runs_max=3, warm=0,
        idle_s=60.0, jit=True, confinement="require",
    )  # fmt: skip
    assert got.ai == AiConfig(
        provider="anthropic", url="https://models.example", model="small", key="somebody",
        steps_max=5, tokens_max=1000, timeout_s=60.0, answer_tokens_max=100, cost_max=1.5,
        consent=False, input_price=3.0, output_price=15.0,
    )  # fmt: skip
    assert got.table(EngineConfig) == EngineConfig(
        database="postgresql://u:somebody@host/runs", keep_s=7 * 86_400.0, sync="normal", runs_max=3
    )
    assert got.notify == ("say", "it")
    assert got.hooks == HookConfig(on=("drifted", "failed"), command=("page", "me"))
    assert got.table(Embeddings) == Embeddings(
        url="https://host/v1/embeddings", model="small", key="somebody", weight=0.5, timeout_s=3.0,
        batch=8,
    )  # fmt: skip


def test_every_option_arrives_at_its_place(tmp_path: Path) -> None:
    got = loaded(tmp_path, EVERYTHING, environ={"BASE": "/b", "HOME": "/home/me"})
    git = got.servers["git"]
    assert git.command == ("uvx", "mcp-server-git", "--user=somebody")
    assert git.command_written == ("uvx", "mcp-server-git", "--user=${USER:-somebody}")
    assert git.inherit_env == ("GIT_*",)
    assert (git.env, git.cwd) == ({"HOME": "/home/me", "LEVEL": "2"}, tmp_path / "sub")
    notes = got.servers["notes"]
    assert git.spares == 1
    assert (git.depends_on, notes.start, notes.idle_stop_s) == (("notes",), "lazy", 300.0)
    assert (git.required, git.restart, git.strict_listing) == (True, "always", True)
    assert (git.retry, git.pinning) == ("idempotent", "off")
    assert (git.sharing, notes.sharing) == ("auto", "auto")
    assert (git.era, notes.era) == ("auto", "legacy")
    assert (git.protocol, notes.protocol) == (None, "2025-03-26")
    patience = (git.restarts_max, git.restart_window_s, git.restart_delay_max_s)
    assert patience == (3, 600.0, 5.0)
    assert (git.start_timeout_s, git.timeout_s, git.timeout_max_s) == (60.0, 90.0, 7200.0)
    assert (git.list_timeout_s, git.stop_grace_s, git.hide_after_s) == (2.0, 0.5, 1.0)
    assert git.probe_interval_s == 120.0
    assert (git.concurrency, git.queue, git.message_max) == (1, 10, 8 * 1024 * 1024)
    assert (git.memory_max, git.memory_high, git.memory_rlimit) == (1536 << 20, 1 << 30, True)
    assert (git.cpu_max, git.processes_max, git.nofile_max) == (1.5, 20, 256)
    assert (git.sandbox, git.read, git.network) == ("strict", ("/srv",), (443,))
    assert git.limits == UseLimits(60, 5, 1000, 3)
    assert (got.servers["notes"].module, got.servers["notes"].cwd) == (
        "notes.main:server", tmp_path,
    )  # fmt: skip
    assert got.namespaces["dev"].description == "What developers need."
    assert got.namespaces["dev"].tools == {
        "git": {"reset.hard": ToolConfig(enabled=False), "status": ToolConfig(enabled=True)}
    }
    assert git.tools == {"log": ToolConfig(name="history", fixed={"all": "true"})}
    here = ToolConfig(
        hidden=True, aliases=("old",), title="Status", description="What changed.",
        defaults={"path": '"."'},
    )  # fmt: skip
    rules = NamingSpec(style="flat", separator="-", hyphens="underscore", length_max=32)
    endpoint = Endpoint(
        name="dev", namespace="dev", path="Work.1", naming=rules, sse=False, rest=False,
        exposure="toolset", view_scope="session", call_hidden=False, schemas="safe",
        auth=("keys", "oauth"), url_keys=True, keys=("ci", "mmcp_k3Jq9ZxA"), oauth=ISSUER,
        limits=UseLimits(calls_per_minute=6, streams=2, body_max=1024),
        code={"timeout_ms": 1000, "calls": 20}, builtins=("catalog",),
        results=ResultsConfig(32 * 1024, 600.0, 1024 * 1024),
        tools={"git": {"status": here}},
    )  # fmt: skip
    theirs = Endpoint(name="acme-dev", namespace="acme:default", auth=("keys",), workspace="acme")
    assert got.endpoints == {"dev": endpoint, "acme-dev": theirs}
    assert got.servers["acme:git"].command == ("acme-git",)
    assert got.namespaces["acme:default"].servers == ("acme:git",)
    assert got.workspace_limits == {"acme": UseLimits(in_flight=9)}
    assert got.warnings == ()


@pytest.mark.promise("M37")
def test_what_agents_choose_belongs_to_their_session_and_a_tool_set_to_the_user(
    tmp_path: Path,
) -> None:
    exposures = ("all", "toolset", "servers", "search")
    names = [*exposures, "shared"]
    text = "".join(
        f'[endpoints.{name}]\nnamespace = "default"\nexposure = "{name}"\n' for name in exposures
    )
    text += '[endpoints.shared]\nnamespace = "default"\nexposure = "search"\n'
    got = loaded(tmp_path, text + 'view_scope = "principal"\n').endpoints
    scopes = ["principal", "principal", "session", "session", "principal"]
    assert [got[name].scope for name in names] == scopes


@pytest.mark.promise("M35")
def test_a_server_behind_the_exposure_servers_is_listed_strictly_unless_it_says_otherwise(
    tmp_path: Path,
) -> None:
    text = "".join(f'[servers.{name}]\ncommand = ["x"]\n' for name in ("a", "b", "c"))
    text = text.replace("[servers.c]", "strict_listing = false\n[servers.c]")
    text += '[namespaces.two]\nservers = ["a", "b"]\n'
    one, two = '[endpoints.one]\nnamespace = "default"\n', '[endpoints.two]\nnamespace = "two"\n'
    got = loaded(tmp_path, f'{text}{one}{two}exposure = "servers"\n').servers
    assert [got[name].strict_listing for name in "abc"] == [True, False, False]


def test_every_option_of_a_server_elsewhere_arrives_at_its_place(tmp_path: Path) -> None:
    got = loaded(tmp_path, EVERYTHING, environ={"BASE": "/b", "HOME": "/home/me"}).servers
    wiki = got["wiki"]
    assert wiki.url == "https://wiki.example.com/somebody/mcp?key=/home/me"
    assert wiki.url_written == "https://wiki.example.com/${USER:-somebody}/mcp?key=${HOME}"
    assert (wiki.command, wiki.module, wiki.transport) == ((), None, "http")
    assert wiki.headers == {"X-Team": "a", "Cookie": "id=/home/me"}
    assert wiki.headers_written == {"X-Team": "a", "Cookie": "id=${HOME}"}
    oauth = OAuth(
        client_id="me", client_secret="/home/me", scopes=("read",), grant="client_credentials",
        callback_port=7001,
    )  # fmt: skip
    assert wiki.oauth == oauth
    assert wiki.oauth_written == structs.replace(oauth, client_secret="${HOME}")
    assert got["mail"].oauth == OAuth(client_metadata_url="https://me.example.com/client.json")
    queue = got["queue"]
    assert (queue.transport, queue.url) == ("kafka", None)
    assert (queue.options, queue.options_written) == ({"topic": "/home/me"}, {"topic": "${HOME}"})
    assert "/home/me" not in repr(wiki) + repr(queue.options_written)


def test_the_file_above_has_every_option_there_is() -> None:
    for each in all_options():
        if each.key not in {"include", "folder"}:  # a folder is in place of a URL
            assert each.key in EVERYTHING, each


def test_a_launcher_has_time_to_download_the_server(tmp_path: Path) -> None:
    text = (
        '[servers.a]\ncommand = ["/usr/bin/npx", "-y", "a"]\n[servers.b]\ncommand = ["b"]\n'
        '[servers.c]\ncommand = ["uvx", "c"]\nstart_timeout = "9s"\n'
    )
    got = loaded(tmp_path, text).servers
    assert [got[name].start_timeout_s for name in "abc"] == [180.0, 30.0, 9.0]


@pytest.mark.promise("M61", "M62")
def test_namespace_and_endpoint_default_exist_unless_they_are_written(tmp_path: Path) -> None:
    servers = '[servers.b]\ncommand = ["x"]\n[servers.a]\ncommand = ["x"]\n'
    got = loaded(tmp_path, servers)
    assert got.namespaces == {"default": Namespace(name="default", servers=("b", "a"))}
    assert got.endpoints == {"default": Endpoint(name="default", namespace="default")}
    got = loaded(tmp_path, servers + '[namespaces.default]\nservers = ["a"]\n')
    assert got.namespaces["default"].servers == ("a",)
    got = loaded(tmp_path, servers + '[namespaces.default.tools]\n"a.x" = { enabled = false }\n')
    assert got.namespaces["default"].servers == ("b", "a")


@pytest.mark.promise("M61")
def test_a_server_that_another_namespace_names_is_not_in_default(tmp_path: Path) -> None:
    text = (
        '[servers.b]\ncommand = ["x"]\n[servers.a]\ncommand = ["x"]\n'
        '[namespaces.dev]\nservers = ["a"]\n[endpoints.dev]\nnamespace = "dev"\n'
    )
    assert loaded(tmp_path, text).namespaces["default"].servers == ("b",)
    assert loaded(tmp_path, f"{text}[namespaces.default]\n").namespaces["default"].servers == ("b",)
    got = loaded(tmp_path, f'{text}[namespaces.default]\nservers = ["*"]\n')
    assert got.namespaces["default"].servers == ("b", "a")
    (why,) = messages(tmp_path, f'{text}[namespaces.default]\nservers = ["b", "*"]\n')
    assert "namespaces.default.servers[1]: stands for every server, so it stands alone" in why


@pytest.mark.promise("M61")
def test_a_namespace_that_no_endpoint_exposes_gives_a_warning(tmp_path: Path) -> None:
    text = '[servers.a]\ncommand = ["x"]\n[namespaces.dev]\nservers = ["a"]\n'
    (warning,) = loaded(tmp_path, text).warnings
    assert "no endpoint exposes this namespace" in warning


@pytest.mark.promise("M62")
def test_two_endpoints_have_two_paths(tmp_path: Path) -> None:
    one, two = (
        f'[endpoints.{name}]\nnamespace = "default"\npath = "{path}"\n'
        for name, path in (("a", "b"), ("c", "d/e"))
    )
    (why,) = messages(tmp_path, f'{one}[endpoints.b]\nnamespace = "default"\n')
    assert "/metamcp/b/ leads to the endpoint 'a' already" in why
    (why,) = messages(tmp_path, two)
    assert "3: endpoints.c.path: is one part of a URL" in why


def test_a_file_without_servers_is_valid_and_says_so(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").warnings == (
        f"{tmp_path}/metamcp.toml: has no server that can be started",
    )


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("srvers = 1", "1: srvers: unknown key 'srvers'; did you mean 'servers'?"),
        ("port = 8000", "1: port: unknown key 'port'; write listen = \"127.0.0.1:PORT\" in"),
        ("[gateway]\nport = 8000", "2: gateway.port: unknown key 'port'; write listen = "),
        (
            '[endpoints.x]\nnamespace = "default"\napiKeyRequired = true',
            "3: endpoints.x.apiKeyRequired: unknown key 'apiKeyRequired'; write auth",
        ),
        ("servers = 1", "1: servers: must be a table, not a number"),
        ("[servers]\ngit = 'x'", "2: servers.git: must be a table, not a string"),
        ("[servers.a]\n[servers.a]", "2: the table [servers.a] is written twice at column 11"),
        ("[servers.Git]\ncommand = 'x'", "1: servers.Git: the name 'Git' may have only"),
        (f"[servers.{'a' * 65}]\ncommand = 'x'", f"1: servers.{'a' * 65}: the name 'aaa"),
        ("[servers.a__b]\ncommand = 'x'", "1: servers.a__b: the name 'a__b' has '__' in it"),
        (
            "[workspaces.default]",
            "1: workspaces.default: is the workspace of the tables at the top",
        ),
        ("[workspaces.A]", "1: workspaces.A: the name 'A' may have only"),
        ("[gateway]\nlisten = 6270", "2: gateway.listen: must be a string, not a number"),
        (
            "[gateway]\nlisten = '0.0.0.0:1'\nbehind_proxy = true",
            "2: gateway.listen: other machines could reach 0.0.0.0:1, and the endpoint 'default'",
        ),
        (
            "[gateway]\nlisten = '0.0.0.0:1'\nauth = 'keys'",
            "2: gateway.listen: keys would travel unencrypted to 0.0.0.0:1; write tls",
        ),
        ("[gateway]\ntls = {}", "2: gateway.tls: needs 'cert' and 'key', both files in PEM"),
        (
            "[gateway]\ntls = 'required'\nlisten = '127.0.0.1:1'\nfronts = 2",
            "3: gateway.listen: TLS needs fronts = 1",
        ),
        ("[gateway]\nops_listen = '127.0.0.1:6270'", "2: gateway.ops_listen: 'listen' and"),
        ("[gateway]\nfronts = 17", "2: gateway.fronts: must be from 1 to 16"),
        ("[gateway]\nfronts = 0", "2: gateway.fronts: must be from 1 to"),
        ("[gateway]\nstate_dir = ''", "2: gateway.state_dir: is empty; name a directory"),
        ("[gateway]\nstate_dir = '${NO}'", "2: gateway.state_dir: the environment variable NO"),
        ("[namespaces.x]", "1: namespaces.x: has no 'servers'"),
        ("[namespaces.x]\nservers = ['gti']", "2: namespaces.x.servers[0]: no server is named"),
        ("[endpoints.x]", "1: endpoints.x: has no 'namespace'"),
        ("[endpoints.x]\nnamespace = 'defualt'", "2: endpoints.x.namespace: no namespace is"),
    ],
)
def test_an_error_says_where_it_is_and_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    (got,) = messages(tmp_path, text)
    assert got.startswith(f"metamcp.toml:{message}")


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("comand = 1", "comand: unknown key 'comand'; did you mean 'command'?"),
        ("url = 'https://x'", "url: a server has only one of 'command' and 'url'"),
        ("labels = []", "labels: 'labels' is not available in this version"),
        ("start = 'lzy'", "start: 'lzy' is not a choice; did you mean 'lazy'?"),
        (
            "idle_stop = '1m'\nsharing = 'shared'",
            'idle_stop: is only for a server with start = "lazy"',
        ),
        ("required = true\nstart = 'lazy'", "required: a server that starts when it is called"),
        ("depends_on = ['gti']", "depends_on[0]: no server is named 'gti'; did you mean 'git'?"),
        ("depends_on = ['git']", "depends_on: these servers wait for each other: git → git"),
        ("restart = 'alwyas'", "restart: 'alwyas' is not a choice; did you mean 'always'?"),
        ("timeout = 60", 'timeout: a number has no unit; write it like "60s" or "60ms"'),
        ("timeout = nan", "timeout: a number has no unit"),
        ("timeout = '0s'", "timeout: is too short"),
        ("timeout = '9999h'", "timeout: is too long"),
        ("timeout = true", "timeout: must be a duration"),
        ("concurrency = 0", "concurrency: must be from 1 to 65536"),
        ("concurrency = true", "concurrency: must be a whole number, not a boolean"),
        ("queue = 1e9", "queue: must be a whole number, not a number"),
        ("queue = 0x" + "f" * 4000, "queue: must be from 1 to 65536"),
        ("enabled = 'no'", "enabled: must be true or false, not a string"),
        ("module = 'a:b'", "module: a server has only one of 'command' and 'module'"),
        ("args = ['x']", "args: 'command' is a list and has all arguments"),
        ("env = { N = 3 }", "env.N: must be a string, in quotes, not a number"),
        ('env = { "A=B" = "x" }', 'env."A=B": is not a name for an environment variable'),
        ('env = { A = "\\u0000" }', "env.A: has a NUL character in it"),
        ("env = { A = '${NO}' }", "env.A: the environment variable NO is not set"),
        ("transport = 'sse'", "transport: is for a server with 'url', or stands alone"),
        ("headers = { A = 'b' }", "headers: is for a server with 'url'"),
        ("oauth = true", "oauth: is for a server with 'url'"),
        ("options = {}", "options: is for a transport that a package brings"),
        ("cwd = 1979-05-27", "cwd: must be a string, not a date or time"),
    ],
)
def test_a_wrong_setting_of_a_server_is_told(tmp_path: Path, setting: str, message: str) -> None:
    (got,) = messages(tmp_path, f'[servers.git]\ncommand = ["x"]\n{setting}\n')
    assert got.startswith(f"metamcp.toml:3: servers.git.{message}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "has no 'command'"),
        ("command = []", "command: is empty; name a program"),
        ("command = ['']", "command: is empty; name a program"),
        ("command = ['${E:-}', 'x']", "command: is empty; name a program"),
        ("command = ['x', 3]", "command[1]: must be a string, not a number"),
        (f"command = ['{'x' * 131_072}']", "command[0]: is longer than 131071 bytes"),
        (f"command = {['x'] * 1025}", "command: has more than 1024 arguments"),
        ("args = ['x']\nmodule = 'a:b'", "args: needs 'command', the program that gets these"),
        ("module = 'a b'", 'module: must be written "package.module:object"'),
        ("command = 'x'\nrequired = true\nenabled = false", "required: a server cannot be"),
    ],
)
def test_a_server_without_a_proper_program_is_told(
    tmp_path: Path, settings: str, message: str
) -> None:
    (got,) = messages(tmp_path, f"[servers.git]\n{settings}\n", environ={"E": ""})
    assert message in got


def test_what_a_variable_holds_must_be_something_a_program_can_be_given(tmp_path: Path) -> None:
    text = '[servers.git]\ncommand = ["x"]\nenv = { A = "${BAD}" }\n'
    (got,) = messages(tmp_path, text, environ={"BAD": "\udcff"})
    assert "env.A: after its references are resolved it has half a surrogate pair" in got
    many = ", ".join(f"V{number} = ''" for number in range(1025))
    (got,) = messages(tmp_path, f"[servers.git]\ncommand = 'x'\nenv = {{ {many} }}\n")
    assert "env: has more than 1024 variables" in got


def test_naming_rules_are_checked(tmp_path: Path) -> None:
    got = messages(
        tmp_path,
        '[endpoints.x]\nnamespace = "default"\nexposure = "codes"\n'
        '[endpoints.x.naming]\nstyle = "Flat"\nseparator = "/"\nlength_max = 8\nhyphens = ""\n',
    )
    assert [each.split(": ", 2)[2] for each in got] == [
        "'codes' is not a choice; did you mean 'code'?",
        "'Flat' is not a choice; did you mean 'flat'?",
        "may have up to 8 letters, digits, '_', '.' and '-'",
        "must be from 16 to 128",
        "'' is not a choice; there are: keep, underscore",
    ]
