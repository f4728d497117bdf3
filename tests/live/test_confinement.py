"""What a hostile server reaches in each profile, in a running gateway."""

import json
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.confinement import kernel
from tests.live import processes
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180), pytest.mark.promise("M96")]

HOSTILE = (sys.executable, str(ROOT / "tests" / "fakes" / "hostile_server.py"))
LANDLOCK = kernel.landlock_version()
BWRAP = shutil.which("bwrap") is not None
ITS_OWN = frozenset({
    "start a program", "write to its temporary folder",
    "read what it was given", "write what it was given", "limit itself", "limit the caller",
    "lower its priority", "schedule itself by attributes", "pin itself to processors",
    "delay its files", "connect to its own unix socket", "connect to its own abstract socket",
})  # fmt: skip
TCP = frozenset({"connect by TCP", "connect by TCP of several paths"})
NETWORK = TCP | {"listen on TCP", "send by UDP"}
SYSTEM_CALLS = frozenset({
    "trace a sibling", "make a user namespace", "mount", "use keys of the kernel",
    "make a ring of system calls", "limit the gateway", "lower the priority of a sibling",
    "lower the priority of a group", "schedule a sibling", "schedule a sibling by a parameter",
    "schedule a sibling by attributes", "pin the gateway to processors",
    "delay the files of a sibling", "call the host of a virtual machine",
})  # fmt: skip
FILES = frozenset({
    "read a foreign file", "list a foreign folder", "write a foreign file", "read passwords",
    "read the configuration", "read the environment of a sibling",
    "read the environment of the gateway", "read the token of the control socket",
})  # fmt: skip
SHARED = frozenset({
    "share memory by a key", "share a semaphore by a key", "share a queue by a key",
    "share a queue by a name",
})  # fmt: skip
OTHERS = frozenset({"signal a sibling", "connect to an abstract socket"})
ELSEWHERE = frozenset({
    "connect to a foreign unix socket", "connect to a foreign unix socket by a link",
    "send to a foreign unix socket", "connect to the control socket",
})  # fmt: skip
THROUGH = frozenset({"call a neighbour through the gateway", "read the metrics of the gateway"})
FAST, HOME, PRIVILEGES = "connect by TCP with data", "write to its home", "have capabilities"
EVERYTHING = (
    FILES | OTHERS | SYSTEM_CALLS | SHARED | NETWORK | ITS_OWN | ELSEWHERE | THROUGH
    | {FAST, HOME, PRIVILEGES}
)  # fmt: skip
#: What a server of each kind reaches on this machine.
REACHED = {
    "none": EVERYTHING,
    "basic": ITS_OWN | NETWORK,
    "sockets": ITS_OWN | NETWORK | (ELSEWHERE - {"connect to the control socket"}),
    "closed": ITS_OWN,
    "ports": ITS_OWN | {"connect by TCP", "send by UDP"},
    "other ports": ITS_OWN | {"send by UDP"},
    "strict": ITS_OWN | SHARED | {HOME, "listen on TCP", "send by UDP"},
    "strict with the network": ITS_OWN | SHARED | NETWORK | THROUGH | {FAST, HOME},
}
#: Cells that this kernel cannot keep apart, with the reason.
UNKNOWN: dict[str, tuple[frozenset[str], str]] = {
    "files": (FILES if LANDLOCK < 1 else frozenset(), "no Landlock"),
    "others": (OTHERS if LANDLOCK < 6 else frozenset(), "no Landlock of version 6"),
    "ports": (NETWORK if LANDLOCK < 4 else frozenset(), "no Landlock of version 4"),
    "calls": (SYSTEM_CALLS | SHARED if not kernel.has_filters() else frozenset(), "no seccomp"),
}
#: Cells that a machine without this kind of socket has nowhere.
OF_SOCKETS = {
    "call the host of a virtual machine": (socket.AF_VSOCK, 0),
    "connect by TCP of several paths": (socket.AF_INET, 262),
}
SKIPPED = frozenset(one for cells, _ in UNKNOWN.values() for one in cells)


class World:
    """A gateway with hostile servers of each kind, and the targets around them."""

    def __init__(self, folder: Path) -> None:
        self.secret = folder / "elsewhere" / "secret"
        self.given = folder / "given"
        for path in (self.secret.parent, self.given / "read", self.given / "write"):
            path.mkdir(parents=True)
        for path in (self.secret, self.given / "read" / "file"):
            path.write_text("x")
        self.tcp, self.udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        self.tcp.bind(("127.0.0.1", 0))
        self.tcp.listen()
        self.udp.bind(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0{folder.name}-{os.getpid()}")
        self.abstract.listen()
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.secret.with_name("unix")))
        self.unix.listen()
        self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.datagrams.bind(str(self.secret.with_name("datagrams")))
        port = self.tcp.getsockname()[1]
        both = {"read": [str(self.given / "read")], "write": [str(self.given / "write")]}
        hostile: dict[str, Any] = {"command": [*HOSTILE]}
        self.servers: dict[str, dict[str, Any]] = {
            "victim": {**fake(), "sandbox": "none"},
            "none": {**hostile, "sandbox": "none"},
            "basic": {**hostile, **both},
            "sockets": {
                **hostile,
                **both,
                "unix_sockets": [self.unix.getsockname(), self.datagrams.getsockname()],
            },
            "closed": {**hostile, **both, "network": "none"},
            "ports": {**hostile, **both, "network": {"tcp_ports": [port]}},
            "other-ports": {**hostile, **both, "network": {"tcp_ports": [1]}},
        }
        if BWRAP:
            strict = {**hostile, **both, "sandbox": "strict"}
            self.servers |= {"strict": strict}
            self.servers |= {"strict-with-the-network": {**strict, "network": "host"}}

    def targets(self, gateway: Gateway) -> dict[str, Any]:
        run = gateway.folder / "run"
        return {
            "secret": str(self.secret),
            "new": str(self.secret.with_name("new")),
            "config": str(gateway.config),
            "folder": str(self.secret.parent),
            "sibling": gateway.server("victim")["pid"],
            "gateway": gateway.pid,
            "tcp": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "abstract": self.abstract.getsockname()[1:].decode(),
            "unix": self.unix.getsockname(),
            "datagrams": self.datagrams.getsockname(),
            "port": gateway.port,
            "ops": gateway.ops_port,
            "control": str(run / "control.sock"),
            "token": str(run / "token"),
            "readable": str(self.given / "read" / "file"),
            "writable": str(self.given / "write" / "file"),
        }

    def close(self) -> None:
        for sock in (self.tcp, self.udp, self.abstract, self.unix, self.datagrams):
            sock.close()


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """The outcome of every attempt of each server."""
    with (
        closing(World(tmp_path_factory.mktemp("world"))) as world,
        Gateway(world.servers) as gateway,
    ):
        targets = world.targets(gateway)
        with closing(Client(gateway.port)) as client:
            yield {
                name.replace("-", " "): json.loads(client.text(f"{name}__reach", **targets))
                for name in world.servers
                if name != "victim"
            }
        assert client.era


def makes_socket(family: int, protocol: int) -> bool:
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM, protocol):
        return True
    return False


def test_this_machine_can_confine_at_all() -> None:
    assert not EVERYTHING <= SKIPPED, [why for cells, why in UNKNOWN.values() if cells]
    if os.environ.get("CI") == "true":
        assert BWRAP, "bubblewrap is not installed"


@pytest.mark.parametrize("attempt", sorted(EVERYTHING))
@pytest.mark.parametrize("kind", REACHED)
def test_a_hostile_server_reaches_what_its_profile_allows_and_nothing_else(
    reached: dict[str, dict[str, str]], kind: str, attempt: str
) -> None:
    if kind not in reached:
        pytest.skip("bubblewrap is not installed")
    if kind != "none" and (why := [why for cells, why in UNKNOWN.values() if attempt in cells]):
        pytest.skip(f"this kernel has {why[0]}")
    if os.geteuid() and attempt in {"read passwords", "have capabilities", "mount"}:
        pytest.skip("only root can do that without a sandbox") if kind == "none" else None
    if attempt in OF_SOCKETS and not makes_socket(*OF_SOCKETS[attempt]):
        pytest.skip("this kernel has no such sockets")
    outcome = reached[kind][attempt]
    assert (outcome == "done") == (attempt in REACHED[kind]), outcome


@pytest.mark.skipif(not kernel.has_filters(), reason="this kernel has no seccomp")
@pytest.mark.parametrize("user", ["root", "a user without privileges"])
def test_a_server_takes_no_time_no_files_and_no_priority_from_the_gateway(user: str) -> None:
    if user == "root" and os.geteuid():
        pytest.skip("the tests do not run as root")
    gateway = Gateway({"choker": {"command": [*HOSTILE]}, "good": fake()})
    if user != "root" and os.geteuid() == 0:
        gateway.wrapper = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    with gateway, closing(Client(gateway.port)) as client:
        before = gateway.left()
        others = sorted(before - {gateway.server("choker")["pid"]})
        tried = json.loads(client.text("choker__choke", pids=others))
        assert set(tried.values()) == {"Operation not permitted"}
        assert client.text("good__echo", text="here") == "here"
        assert before <= gateway.left()


OPEN_AND_KEYED = """
[endpoints.default]
namespace = "default"

[endpoints.keyed]
namespace = "default"
auth = "keys"
"""


@pytest.mark.skipif(not kernel.has_asking(), reason="no filter of this kernel asks")
def test_a_confined_server_uses_an_endpoint_of_the_gateway_with_a_key_only() -> None:
    hostile: dict[str, Any] = {"command": [*HOSTILE]}
    servers = {"confined": hostile, "free": {**hostile, "sandbox": "none"}}
    with Gateway(servers, extra=OPEN_AND_KEYED) as gateway, closing(Client(gateway.port)) as client:
        made = gateway.run("keys", "create", "it", "--json")
        key = json.loads(made.stdout)["key"]
        unlocked, keyed = gateway.url, f"http://127.0.0.1:{gateway.port}/metamcp/keyed/mcp"

        def through(server: str, url: str, key: str = "") -> dict[str, Any]:
            found: dict[str, Any] = json.loads(client.text(f"{server}__through", url=url, key=key))
            return found

        assert through("free", unlocked)["status"] == 200
        refused = through("confined", unlocked)
        assert refused["status"] == 403
        assert "asks for no credential" in refused["text"]
        assert "metamcp keys create" in refused["text"]
        assert through("confined", unlocked.replace("127.0.0.1", "localhost"))["status"] == 403
        assert through("confined", keyed)["status"] == 401
        assert through("confined", keyed, key)["status"] == 200
        command = [sys.executable, "-m", "metamcp_supervisor", "connect", "--url", unlocked]
        told = json.loads(client.text("confined__bridge", command=command))["text"]
        assert "asks for no credential" in told


@pytest.mark.skipif(not kernel.has_asking(), reason="no filter of this kernel asks")
@pytest.mark.parametrize(
    ("user", "profile"),
    [
        ("root", "basic"),
        ("a user without privileges", "basic"),
        pytest.param("root", "strict", marks=pytest.mark.skipif(not BWRAP, reason="no bwrap")),
    ],
)
def test_a_server_that_forks_on_and_on_has_as_many_processes_as_it_may_and_nobody_else_suffers(
    user: str, profile: str
) -> None:
    if user == "root" and os.geteuid():
        pytest.skip("the tests do not run as root")
    most, bomber = 64, {"command": [*HOSTILE], "sandbox": profile}
    gateway = Gateway({"bomber": {**bomber, "processes_max": most}, "good": fake()})
    if user != "root" and os.geteuid() == 0:
        gateway.wrapper = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    with gateway, closing(Client(gateway.port)) as client, closing(Client(gateway.port)) as evil:
        before = gateway.server("bomber")
        quiet = processes.below(before["worker_pid"])
        with ThreadPoolExecutor(1) as pool:
            bomb = pool.submit(evil.text, "bomber__bomb")
            counts = [0]
            while not bomb.done():
                assert client.text("good__echo", text="here") == "here"
                counts.append(len(processes.below(before["worker_pid"])))
        outcome = json.loads(bomb.result())
        assert outcome["refused"] == "Resource temporarily unavailable"
        assert most / 2 < outcome["forks"] < 2 * most  # a few were counted twice at most
        assert max(counts) <= most
        until(lambda: processes.below(before["worker_pid"]) == quiet, "its processes ended")
        assert gateway.server("bomber")["pid"] == before["pid"]
        gateway.ctl("set", "bomber", f"processes_max={2 * most}")
        assert json.loads(evil.text("bomber__bomb"))["forks"] > most


def test_no_fork_of_a_confined_server_is_interrupted_by_the_end_of_another() -> None:
    shell = (sys.executable, str(ROOT / "tests" / "fakes" / "shell_server.py"))
    script = (
        "import ctypes, os, signal\n"
        "signal.signal(signal.SIGCHLD, lambda *_: None)\n"
        "signal.siginterrupt(signal.SIGCHLD, True)\n"
        "libc = ctypes.CDLL(None)\n"
        "pids = [libc.fork() or os._exit(0) for _ in range(200)]\n"
        "print(min(pids) > 0)"
    )
    command = shlex.join([sys.executable, "-c", script])
    with Gateway({"it": {"command": [*shell]}}) as gateway, closing(Client(gateway.port)) as client:
        assert client.text("it__sh", command=command) == "True\n"


def test_a_server_that_lacks_a_right_is_told_the_line_to_add(tmp_path: Path) -> None:
    (tmp_path / "wanted").write_text("x")
    script = f"open('/' + {str(tmp_path / 'wanted')[1:]!r})"
    wants: dict[str, Any] = {"command": [sys.executable, "-c", script], "restart": "never"}
    with Gateway({"wants": wants, "good": fake()}, wait=False) as gateway:
        until(lambda: gateway.answers() and gateway.server("wants")["message"], "it has failed")
        line = f'add read = ["{tmp_path}/wanted"] to its table'
        assert line in gateway.server("wants")["message"]
        assert "sandbox     basic" in gateway.ctl("describe", "wants")


def test_a_server_whose_database_is_to_be_made_in_the_home_is_told_the_line(tmp_path: Path) -> None:
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('CREATE TABLE t (a)')"
    command = [sys.executable, "-c", script, str(tmp_path / "new.db")]
    gateway = Gateway({"it": {"command": command, "restart": "never"}}, wait=False)
    gateway.environ |= {"HOME": str(tmp_path)}
    with gateway:
        until(lambda: gateway.answers() and gateway.server("it")["message"], "it has failed")
        assert f'write write = ["{tmp_path}"]' in gateway.server("it")["message"]


@pytest.mark.skipif(not BWRAP, reason="bubblewrap is not installed")
def test_the_home_of_a_strict_server_stays_and_temporary_files_go_with_the_process() -> None:
    with Gateway({"it": {"command": [*HOSTILE], "sandbox": "strict"}}) as gateway:
        folder = gateway.folder / "state" / "servers" / "it"
        (link,) = (folder / "tmp").iterdir()
        tmp = link.resolve()
        assert tmp.is_dir()
        (folder / "home" / "kept").touch()
        gateway.ctl("restart", "it")
        until(lambda: not tmp.exists(), "the temporary folder is gone")
        gateway.wait()
        assert (folder / "home" / "kept").exists()
        assert folder.stat().st_mode & 0o077 == 0


def test_a_server_has_a_home_of_its_own_if_that_of_the_gateway_is_its_state_directory() -> None:
    shell = (sys.executable, str(ROOT / "tests" / "fakes" / "shell_server.py"))
    gateway = Gateway({"it": {"command": [*shell]}})
    gateway.environ |= {"HOME": str(gateway.folder / "state")}
    with gateway, closing(Client(gateway.port)) as client:
        text = client.text("it__sh", command="echo x > ~/kept && printf %s ~")
        own = gateway.folder / "state" / "servers" / "it" / "home"
        assert text == str(own)
        assert (own / "kept").exists()


def test_the_temporary_folder_of_a_worker_that_was_killed_goes_with_the_next_start() -> None:
    with Gateway({"it": {"command": [*HOSTILE]}}) as gateway:
        (link,) = (gateway.folder / "state" / "servers" / "it" / "tmp").iterdir()
        tmp, worker = link.resolve(), int(link.name)
        os.kill(worker, signal.SIGKILL)
        until(lambda: not tmp.exists(), "the temporary folder is gone")


def test_a_place_with_secrets_that_a_command_names_stays_closed_and_is_told(
    tmp_path: Path,
) -> None:
    place = tmp_path / ".ssh"
    place.mkdir()
    (place / "id_rsa").write_text("x")
    gateway = Gateway({"it": {"command": [*HOSTILE, str(place)]}})
    gateway.environ |= {"HOME": str(tmp_path)}
    with gateway, closing(Client(gateway.port)) as client:
        answer = client.call("it__read", path=str(place / "id_rsa"))["result"]
        assert "Permission denied" in answer["content"][0]["text"]
        line = f"its command line names {place}, which is a place with secrets or of the gateway"
        until(lambda: line in gateway.ctl("logs", "it"), "the sentence is in the log")


WITHOUT_LANDLOCK = """
import os, sys
from metamcp_worker.confinement import kernel
allowed = kernel.CALLS.keys() - {"landlock_create_ruleset"}
kernel.no_new_privileges()
kernel.filter_calls(kernel.filter_bytes(os.uname().machine, allowed))
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(
    not kernel.has_filters(), reason="this kernel has no seccomp to play one without"
)
def test_a_kernel_without_landlock_is_told_everywhere_and_refused_where_it_must_be_there() -> None:
    servers = {"basic": fake(), "must": {**fake(), "sandbox_required": True, "restart": "never"}}
    gateway = Gateway(servers, wait=False)
    gateway.wrapper = (sys.executable, "-c", WITHOUT_LANDLOCK)
    with gateway:
        until(lambda: gateway.answers() and gateway.server("basic")["achieved"], "it runs")
        gateway.wait("basic")
        lacking = "files and signals to other processes"
        assert gateway.server("basic")["achieved"] == "seccomp"
        assert f"not kept from {lacking}" in gateway.ctl("status", ok=(0, 3))
        assert f"sandbox     basic: seccomp; not kept from {lacking}" in gateway.ctl(
            "describe", "basic"
        )
        assert f"cannot keep it from {lacking}" in gateway.journal()
        sample = 'achieved="seccomp",profile="basic",server="basic"} 0'
        assert f"metamcp_server_confinement{{{sample}" in gateway.ops("/metrics")[1]
        assert f"cannot keep it from {lacking}" in gateway.server("must")["message"]


ASKED_ALREADY = """
import os, sys
from metamcp_worker.confinement import kernel
kernel.no_new_privileges()
every = kernel.filter_bytes(os.uname().machine, kernel.CALLS)
os.set_inheritable(kernel.filter_asking(every), True)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(not kernel.has_asking(), reason="no filter of this kernel asks")
def test_a_gateway_whose_calls_another_process_watches_says_what_it_cannot_keep_servers_from() -> (
    None
):
    servers = {"basic": fake(), "must": {**fake(), "sandbox_required": True, "restart": "never"}}
    gateway = Gateway(servers, wait=False)
    gateway.wrapper = (sys.executable, "-c", ASKED_ALREADY)
    with gateway:
        until(lambda: gateway.answers() and gateway.server("basic")["achieved"], "it runs")
        gateway.wait("basic")
        lacking = "not kept from unix sockets of others and open endpoints of the gateway"
        assert lacking in gateway.ctl("describe", "basic")
        until(lambda: gateway.server("must")["message"], "it was not started")
        assert "it cannot be confined" in gateway.server("must")["message"]
