"""A gateway to which everything happens that dashboards and alerts show, within a minute.

Owns: the servers, the load, what is done to them and when. Never: what is to be seen of it.
"""

import base64
import contextlib
import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metamcp_worker.oauth.vault import KEY_BYTES, TokenRecord, Vault
from tests.faults.ears import hearing
from tests.faults.test_stopped import stopped
from tests.live import canaries, processes
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, SERVER, Gateway, fake
from tests.live.raw import Raw
from tests.observability.prometheus import Prometheus
from tests.waiting import until

MIB = 1024 * 1024
MEMORY_MAX_MIB = 160
LEAK_MIB = 4
NEAR = 0.94
"""Of the limit: near enough for the alert, and not above it."""
SLOW_MS = range(10_600, 18_000, 250)
"""Of calls that end one after the other, each after more than the ten seconds of the alert."""
HELD_MS = 8_000
"""Of a call to which something happens meanwhile."""
PULSE_S = 0.02
"""Between two calls of the load, so that it takes no processor."""
DOWN = 'ALERTS{alertname="MetaMCPGatewayDown",alertstate="firing",instance!=""}'
"""Of a gateway that was there: without `instance` there has been none yet."""
DRAIN_MS = 60_000
"""Of the call that keeps the gateway from stopping, until its client goes away."""
QUEUED = 6
TRIES = 3

TALKS = 'yes "a line" | head -n 4000 >&2; exec "$0" "$@"'
"""More at once than is kept in a second."""
CHATTY = ["sh", "-c", TALKS, *SERVER]

OFTEN = {"restarts_max": 1000, "restart_delay_max": "100ms"}

#: What is behind the gateway, by name. Each has one weakness.
SERVERS: dict[str, dict[str, Any]] = {
    "files": {**fake("--resources", "--prompts"), "spares": 1, "retry": "read-only"},
    "search": {**fake("--era", "modern"), "required": True},
    "tickets": fake("--era", "legacy"),
    "mail": {**fake(), "concurrency": 1},
    "notes": {**fake("--era", "legacy", "--logging"), "sharing": "shared"},
    "browser": {**fake("--daemons", "8", "--ignore-eof", "--ignore-term"), "stop_grace": "100ms"},
    "logs": {"command": CHATTY, "pinning": "enforce"},
    "index": {**fake(), "memory_max": f"{MEMORY_MAX_MIB}M", "memory_high": f"{MEMORY_MAX_MIB}M"},
    "db": fake("--invalid"),
    "chat": {**fake("--garbage"), "timeout": "1s"},
    "flaky": {**fake("--exit-after", "300"), "retry": "read-only", **OFTEN},
    "wiki": {"command": ["no-such-program"]},
    "guest": fake(),
    "paid": {**fake(), "limits": {"calls_per_day": 10}},
    "docker": {"command": [sys.executable, str(ROOT / "tests" / "fakes" / "hostile_server.py")]},
}
SETTINGS = """[audit]
level = "metadata"
[code]
runs_max = 1
warm = 1
[suggestions]
[endpoints.default]
namespace = "default"
[endpoints.coded]
namespace = "default"
exposure = "code"
[endpoints.kept]
namespace = "default"
results = { max = "8K" }
[consent]
rules = [{ match = "files/pid", effect = "ask" }]
[[middleware]]
name = "redaction"
match = "index/echo"
mode = "permissive"
[[policies]]
name = "watched"
match = "index/echo"
effect = "log"
"""
REMOTE = """[servers.remote]
url = "{url}"
transport = "http"
oauth = true
"""
TOKEN_S = 3600.0
STEADY = [name for name in SERVERS if name not in ("flaky", "wiki")]


@dataclass
class Run:
    """`begin` and `end`: of what is worth a look, in seconds since the epoch. `page`: the metrics
    at the end. `held`: what is closed with it. `pending`: calls that have to be answered."""

    gateway: Gateway
    prometheus: Prometheus
    pool: ThreadPoolExecutor
    begin: float = 0.0
    end: float = 0.0
    page: str = ""
    held: ExitStack = field(default_factory=ExitStack)
    pending: list[Future[Any]] = field(default_factory=list[Future[Any]])

    def metric(self, text: str) -> float | None:
        """The newest value that Prometheus has."""
        return self.prometheus.value(text)

    def sees(self, expr: str, what: str, within_s: float = 30) -> None:
        until(lambda: self.metric(expr), what, within_s)

    def fires(self, alert: str, server: str = "", within_s: float = 40) -> None:
        until(lambda: (alert, server) in self.prometheus.fired(), f"{alert} {server}", within_s)

    def calls(self, server: str) -> None:
        """Returns when it has a call that sleeps."""
        until(lambda: self.gateway.server(server)["inflight"], f"{server} has a call")

    def pid(self, server: str, field: str = "pid") -> int:
        return int(self.gateway.server(server)[field])


@contextlib.contextmanager
def running(folder: Path) -> Generator[Run]:
    """All of it has happened when this yields; the gateway still serves."""
    with ExitStack() as stack:
        remote = canaries.Remote()
        stack.callback(remote.close)
        extra = SETTINGS + REMOTE.format(url=remote.url)
        gateway = stack.enter_context(
            _authorized(Gateway(SERVERS, wait=False, extra=extra), remote)
        )
        until(gateway.answers, "the gateway answers")
        prometheus = stack.enter_context(Prometheus(folder, gateway.ops_port))
        pool = stack.enter_context(ThreadPoolExecutor(64))
        gateway.wait(*STEADY)
        until(lambda: prometheus.value("metamcp_up"), "Prometheus has begun")
        held = stack.enter_context(ExitStack())
        run = Run(gateway, prometheus, pool, begin=time.time(), held=held)
        with _load(run):
            for fault in FAULTS:
                fault(run)
            for call in run.pending:
                call.result(60)
            _until_seen(run)
        run.page = gateway.ops("/metrics")[1]
        run.end = time.time()
        yield run


def _authorized(gateway: Gateway, remote: canaries.Remote) -> Gateway:
    """With a token for the remote server that ends in a while, and that nothing renews."""
    key = os.urandom(KEY_BYTES)
    gateway.environ["METAMCP_OAUTH_KEY"] = base64.b64encode(key).decode()
    record = TokenRecord(
        server="remote", issuer="http://127.0.0.1:1", url=remote.url, access_token="token",
        expires_at=time.time() + TOKEN_S,
    )  # fmt: skip
    Vault(str(gateway.folder / "state" / "oauth"), key).put(record)
    return gateway


def _until_seen(run: Run) -> None:
    """What takes its time."""
    run.fires("MetaMCPServerFailed", "wiki")
    run.fires("MetaMCPServerQuarantined", "guest")
    run.fires("MetaMCPToolsKeptBack", "logs")
    run.fires("MetaMCPWaitingForPeople")
    run.fires("MetaMCPKeyExpires")
    run.fires("MetaMCPTokenExpires", "remote")
    run.fires("MetaMCPServerFlapping", "flaky")
    run.fires("MetaMCPHighErrorRatio", "tickets")
    run.fires("MetaMCPHeartbeatLate", "db")
    run.fires("MetaMCPLatencyP99", "search")
    run.fires("MetaMCPOrphansReaped", "browser")
    run.fires("MetaMCPMemoryNearLimit", "index")
    run.fires("MetaMCPFdNearLimit", "mail")
    run.sees("metamcp_slow_client_disconnects_total > 0", "half a request was cut")


def stop(run: Run) -> None:
    """The end of the gateway, with a call that it waits for: first not ready, then away."""
    params = b'{"name":"search__sleep","arguments":{"ms":%d}}' % DRAIN_MS
    last = Raw(run.gateway.port, MODERN).start("tools/call", params)
    run.calls("search")
    assert run.gateway.process is not None
    run.gateway.process.terminate()
    run.fires("MetaMCPNotReady")
    last.close()
    run.sees(DOWN, "Prometheus misses it")


# --- load -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _load(run: Run) -> Generator[None]:
    """Clients of both eras, one call after the other, until the block is over."""
    over = threading.Event()
    plan = ["files__echo", "search__echo", "index__echo", "notes__echo"]
    callers = [
        (MODERN, [*plan, "tickets__fail", "tickets__error", "files__pid"]),
        (LEGACY, [*plan, "tickets__error", "tickets__echo"]),
        (MODERN, ["flaky__sleep", "wiki__echo"]),
        (MODERN, ["db__echo"]),
        (MODERN, ["chat__echo"]),
        (MODERN, ["paid__echo"]),
        *((MODERN, ["mail__sleep"]) for _ in range(QUEUED)),
    ]
    futures = [run.pool.submit(_calling, run.gateway.port, era, tools, over)
               for era, tools in callers]  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.enter_context(hearing(run.gateway.port, LEGACY))
        try:
            yield
        finally:
            over.set()
            for future in futures:
                future.result(60)


def _calling(port: int, era: str, tools: Sequence[str], over: threading.Event) -> None:
    client: Client | None = None
    at = 0
    while not over.wait(PULSE_S):
        tool = tools[at % len(tools)]
        at += 1
        try:
            client = client or Client(port, era)
            client.call(tool, **({"ms": 200} if tool.endswith("sleep") else {}))
        except (OSError, http.client.HTTPException):
            client = None  # its front was killed, or rolled
    if client is not None:
        client.close()


# --- what happens ---------------------------------------------------------------------------


def _sleep(run: Run, server: str, ms: int) -> None:
    """A call that takes so long, by a client of its own. Its answer is looked at in the end."""

    def call() -> None:
        with contextlib.closing(Client(run.gateway.port, LEGACY)) as client:
            assert "result" in client.call(f"{server}__sleep", ms=ms)

    run.pending.append(run.pool.submit(call))


def _code(run: Run, code: str) -> Future[None]:
    """A run of code, by a client of its own."""

    def call() -> None:
        path = "/metamcp/coded/mcp"
        with contextlib.closing(Client(run.gateway.port, MODERN, path=path)) as client:
            assert not client.call("run_code", code=code)["result"]["isError"]

    return run.pool.submit(call)


def _code_that_waits(run: Run) -> None:
    """A run of code that waits for a call, and one that waits for its turn."""
    _code(run, "return 1").result()
    run.sees("metamcp_code_warm > 0", "a sandbox waits")
    calling = f"return await mcp.call('search__sleep', {{ ms: {HELD_MS} }})"
    runs = [_code(run, calling) for _ in range(2)]
    run.sees("metamcp_code_running > 0 and metamcp_code_waiting > 0", "both wait")
    for each in runs:
        each.result()


def _workflow(run: Run, *words: str) -> str:
    where = ["--runtime-dir", str(run.gateway.folder / "run")]
    command = [sys.executable, "-m", "metamcp_supervisor", "workflow", *words, *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def _a_run_that_waits(run: Run) -> None:
    """A run of a workflow that waits, and orders to the engine about it."""
    folder = run.gateway.folder
    (folder / "waits.yaml").write_text("name: waits\nsteps:\n  - wait: 10m\n")
    begun = _workflow(run, "run", str(folder / "waits.yaml"), "--no-wait").split()[1]
    run.sees("sum(metamcp_engine_runs) > 0", "it waits")
    _workflow(run, "runs")
    run.sees('metamcp_engine_orders_total{method="workflow/runs"} > 0', "an order is counted")
    _workflow(run, "runs")
    _workflow(run, "cancel", begun)


def _a_run_that_waits_for_a_person(run: Run) -> None:
    """A run that asks, with nobody there to answer. It waits until the end."""
    (run.gateway.folder / "asks.yaml").write_text(
        "name: asks\nsteps:\n  - elicit: {message: Go on?, schema: {type: object}}\n"
    )
    _workflow(run, "run", str(run.gateway.folder / "asks.yaml"), "--no-wait")


def _a_key_that_ends_soon(run: Run) -> None:
    run.gateway.run("keys", "create", "desk", "--expires", "3d")


def _slow_calls(run: Run) -> None:
    for ms in SLOW_MS:
        _sleep(run, "search", ms)


def _half_a_request(run: Run) -> None:
    """A client that never finishes it; the gateway cuts it after ten seconds."""
    client = run.held.enter_context(socket.create_connection(("127.0.0.1", run.gateway.port)))
    client.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n")


def _a_dead_worker(run: Run) -> None:
    """SIGKILL, with a call in flight that its spare may make once more."""
    worker = run.pid("files", "worker_pid")
    _sleep(run, "files", HELD_MS)
    run.calls("files")
    os.kill(worker, signal.SIGKILL)


def _a_frozen_worker(run: Run) -> None:
    """It is killed and replaced while other things happen."""
    os.kill(run.pid("db", "worker_pid"), signal.SIGSTOP)


def _someone_in_the_way(run: Run) -> None:
    """Two callers at a server that does not say in whose call it asks."""
    _sleep(run, "notes", HELD_MS)
    run.calls("notes")
    other = Raw(run.gateway.port, LEGACY)
    for params in (b'{"name":"notes__roots"}', b'{"name":"notes__log"}'):
        other.answer("tools/call", params)


def _odd_answers(run: Run) -> None:
    """Answers that are none."""
    with contextlib.closing(Client(run.gateway.port, MODERN)) as client:
        for kind in ("both", "neither", "bad-utf8"):
            client.call("chat__odd", kind=kind)


def _large_results(run: Run) -> None:
    with contextlib.closing(Client(run.gateway.port, MODERN, "/metamcp/kept/mcp")) as client:
        assert "metamcp-result" in str(client.call("files__blob", kib=100))


def _a_late_answer(run: Run) -> None:
    with contextlib.closing(Client(run.gateway.port, MODERN)) as client:
        with stopped(run.pid("chat")):
            assert "error" in client.call("chat__echo", text="late")
        client.call("chat__echo", text="in time")


def _a_refused_right(run: Run) -> None:
    """A server that connects to a socket which its sandbox keeps from it."""
    path = str(run.gateway.folder / "run" / "control.sock")
    with contextlib.closing(Client(run.gateway.port, MODERN)) as client:
        for count in (1, 2):
            assert client.call("docker__connect", path=path)["result"]["isError"]
            run.sees(f"metamcp_sandbox_refusals_total >= {count}", "the refusal is counted")


def _strangers(run: Run) -> None:
    """Requests that are turned away at the door, until their growth is seen: a series begins with
    what it counted before the first look, and that does not count as growth."""

    def turned_away() -> float | None:
        client = http.client.HTTPConnection("127.0.0.1", run.gateway.port, timeout=10)
        client.request("POST", "/mcp", b"{}", {"Host": "elsewhere.example"})
        assert client.getresponse().status >= 400
        client.close()
        return run.metric("sum(rate(metamcp_requests_refused_total[5s])) > 0")

    until(turned_away, "they are seen", 30)


def _what_is_left_behind(run: Run) -> None:
    """A server that ignores SIGTERM and leaves daemons behind, and one that has much to say."""
    run.gateway.ctl("restart", "browser", "logs", "--wait")


def _a_full_queue(run: Run) -> None:
    """Clients that nobody accepts while the front is stopped. It is killed for that after six
    seconds; on a busy machine it takes another one until Prometheus has seen them."""
    for _ in range(TRIES):
        front = int(run.gateway.status()["fronts"][0]["pid"])
        with ExitStack() as stack, stopped(front), contextlib.suppress(AssertionError):
            for _ in range(8):
                stack.enter_context(socket.create_connection(("127.0.0.1", run.gateway.port)))
            run.sees("metamcp_accept_queue > 0", "they wait in the queue", 5)
            return
    raise AssertionError("Prometheus has never seen clients in the queue")


def _somebody_is_kept_out(run: Run) -> None:
    run.gateway.ctl("quarantine", "guest", "--why", "it is not trusted")


def _other_fronts(run: Run) -> None:
    run.gateway.ctl("roll")


def _other_tools(run: Run) -> None:
    """A server that has tools now which it did not have at first. They are kept back."""
    more = {**SERVERS["logs"], "command": [*CHATTY, "--tools", "3"]}
    run.gateway.write({**SERVERS, "logs": more})
    run.gateway.ctl("reload")
    run.sees('metamcp_drifted_tools{server="logs"} > 0', "they are told")


def _few_descriptors(run: Run) -> None:
    """A server that has almost all that it may have."""
    pid = run.pid("mail")
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (processes.descriptors(pid), most))


def _little_memory(run: Run) -> None:
    """A leak up to near the limit."""
    pid = run.pid("index")
    with contextlib.closing(Client(run.gateway.port, MODERN)) as client:
        while _resident(pid) < MEMORY_MAX_MIB * MIB * NEAR:
            assert "result" in client.call("index__leak", mib=LEAK_MIB)


def _a_bad_file(run: Run) -> None:
    """A configuration that is refused, until the alert is there."""
    valid = run.gateway.config.read_text()
    run.gateway.config.write_text(valid + "\n[servers.x\n")
    run.gateway.ctl("reload", ok=(65,))
    run.fires("MetaMCPReloadFailed")
    run.gateway.config.write_text(valid)
    run.gateway.ctl("reload")


def _an_audit_that_is_not_written(run: Run) -> None:
    """Its process ends again and again, until its next start waits long enough for the alert."""

    def fires() -> bool:
        for role in run.gateway.status()["roles"]:
            if role["role"] == "audit" and role["pid"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(role["pid"], signal.SIGKILL)
        return ("MetaMCPAuditDown", "") in run.prometheus.fired()

    until(fires, "the alert about the audit", 60)


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


FAULTS = (
    _a_key_that_ends_soon, _half_a_request, _code_that_waits, _a_run_that_waits,
    _a_run_that_waits_for_a_person, _slow_calls, _somebody_is_kept_out, _a_dead_worker,
    _a_frozen_worker,
    _someone_in_the_way, _odd_answers, _large_results, _a_late_answer, _strangers,
    _a_refused_right,
    _what_is_left_behind, _a_full_queue, _other_fronts, _other_tools, _few_descriptors,
    _little_memory, _a_bad_file, _an_audit_that_is_not_written, _odd_answers, _strangers,
    _what_is_left_behind,
)  # fmt: skip
"""In this order. What begins a new series shows as a rate only when it comes again."""
