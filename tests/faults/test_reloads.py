"""Configurations with errors in them, and orders that come at once or break off."""

import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

ALPHA = '[servers.alpha]\ncommand = ["alpha"]\n'
NEW = '[servers.new]\ncommand = ["new"]\n'

#: What is wrong -> the file, and what is said of it, with its place.
WRONG = {
    "syntax": (f"{NEW}[servers.alpha\n", ("metamcp.toml:3",)),
    "a table twice": (NEW + ALPHA + ALPHA, ("metamcp.toml:5", "alpha")),
    "a name in two files": (
        f'include = ["more.toml"]\n{NEW}{ALPHA}',
        ("line 4", "more.toml:1", "alpha"),
    ),
    "a variable that is not set": (
        f'{NEW}{ALPHA}env = {{ KEY = "${{NOT_SET_ANYWHERE}}" }}\n',
        ("metamcp.toml:5", "NOT_SET_ANYWHERE"),
    ),
    "a duration that is none": (f'{NEW}{ALPHA}timeout = "soon"\n', ("metamcp.toml:5", "timeout")),
    "a wrong type": (f"{NEW}{ALPHA}queue = true\n", ("metamcp.toml:5", "queue")),
    "an unknown key": (f"{NEW}{ALPHA}timeuot = 5\n", ("metamcp.toml:5", "did you mean 'timeout'")),
    "a file that is not there": (f'include = ["gone.toml"]\n{NEW}{ALPHA}', ("gone.toml",)),
    "a circle": (
        f'{NEW}depends_on = ["alpha"]\n{ALPHA}depends_on = ["new"]\n',
        ("metamcp.toml:", "alpha"),
    ),
    "two errors": (f"{NEW}queue = -1\n{ALPHA}queue = -1\n", ("metamcp.toml:3", "metamcp.toml:6")),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"alpha": fake(), "beta": fake()}) as running:
        (running.folder / "more.toml").write_text(ALPHA)
        yield running


def facts(gateway: Gateway) -> object:
    """What runs, and how."""
    status = gateway.status()
    servers = [(one["name"], one["pid"], one["generation"]) for one in status["servers"]]
    return status["config_hash"], servers, status["fronts"][0]["pid"]


@pytest.mark.promise("M78", "M98")
def test_each_error_is_told_with_its_place_and_nothing_of_the_file_counts(gateway: Gateway) -> None:
    before, good = facts(gateway), gateway.config.read_text()
    with Callers(gateway.port, ["alpha", "beta"], callers=2, era=MODERN) as run:
        for text, words in WRONG.values():
            gateway.config.write_text(text)
            done = gateway.run("ctl", "reload", ok=(65,))
            assert [word for word in words if word not in done.stdout + done.stderr] == [], done
            assert "Traceback" not in done.stderr
    gateway.config.write_text(good)
    assert facts(gateway) == before
    assert (run.tally.wrong, run.tally.errors.total(), run.tally.broken) == ([], 0, 0)
    assert "unchanged" in gateway.ctl("reload")


class Written(Gateway):
    """Listens where its file says, and not where a flag does."""

    def start(self) -> None:
        command = [
            *self.command("serve", "--config", self.config),
            *("--state-dir", str(self.folder / "state")),
            *("--ops-listen", f"127.0.0.1:{self.ops_port}"),
        ]
        environ = {**os.environ, "METAMCP_TEST_GATEWAY": self.folder.name}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, cwd=ROOT)
        self.wait_ready()

    def listen(self, port: int) -> None:
        self.extra = f'[gateway]\nlisten = "127.0.0.1:{port}"'
        self.write({"alpha": fake()})


@pytest.mark.promise("M78")
def test_a_port_that_is_taken_waits_for_the_next_start_and_the_old_one_serves() -> None:
    gateway = Written({})
    gateway.listen(gateway.port)
    with gateway, socket.create_server(("127.0.0.1", 0)) as taken:
        before = facts(gateway)
        gateway.listen(taken.getsockname()[1])
        assert "listen changed: needs a full restart" in gateway.ctl("reload")
        client = Client(gateway.port, MODERN)
        assert client.text("alpha__echo", text="a") == "a"
        client.close()
        gateway.listen(gateway.port)
        gateway.ctl("reload")
        assert facts(gateway) == before


@pytest.mark.promise("M78")
def test_reloads_and_restarts_at_once_end_with_what_is_written_last(gateway: Gateway) -> None:
    plain = gateway.server("alpha")["tools"]
    for more in (1, 2, 3):
        gateway.write({"alpha": fake("--tools", str(more)), "beta": fake()})
        orders = [["restart", "alpha"], ["reload"], ["restart", "alpha"], ["reload"]]
        running = [
            subprocess.Popen(gateway.command("ctl", *order), stdout=subprocess.DEVNULL)
            for order in orders
        ]
        assert [one.wait(timeout=30) for one in running] == [0] * len(orders)
        settled(gateway, ("active", plain + more))
    assert gateway.server("beta")["generation"] == 1


@pytest.mark.promise("M80")
def test_an_order_whose_sender_is_killed_is_carried_out_or_not_and_never_half(
    gateway: Gateway,
) -> None:
    dice = random.Random(7)
    until(lambda: at(gateway, "alpha")[0] == "active", "alpha is up")
    before = processes.descriptors(gateway.pid)
    for round_ in range(5):
        names = {"alpha", "beta", f"extra{round_}"}
        gateway.write({name: fake() for name in sorted(names)})
        for order in (["reload"], ["restart", "alpha", "--wait"]):
            with subprocess.Popen(
                gateway.command("ctl", *order), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as ctl:
                try:
                    ctl.wait(timeout=dice.uniform(0.15, 0.5))
                except subprocess.TimeoutExpired:
                    os.kill(ctl.pid, signal.SIGKILL)
    gateway.write({"alpha": fake(), "beta": fake()})
    gateway.ctl("reload")
    until(lambda: at(gateway, "alpha")[0] == at(gateway, "beta")[0] == "active", "both are up")
    until(lambda: [one["name"] for one in gateway.status()["servers"]] == ["alpha", "beta"], "two")
    until(lambda: len(servers(gateway)) == 2, "no process but theirs is left")
    until(lambda: processes.descriptors(gateway.pid) <= before, "no descriptor is left")
    log = gateway.log.read_text()
    assert "Traceback" not in log
    assert '"what":"bug"' not in log


def settled(gateway: Gateway, alpha: tuple[str, int]) -> None:
    """Wait until alpha is so, and one process of each server is left."""
    until(lambda: at(gateway, "alpha") == alpha, f"alpha is {alpha}")
    until(lambda: len(servers(gateway)) == 2, "nothing else is left")


def at(gateway: Gateway, name: str) -> tuple[str, int]:
    found = gateway.server(name)
    return found["state"], found["tools"]


def servers(gateway: Gateway) -> set[int]:
    """The processes of all servers."""
    found: set[int] = set()
    for pid in gateway.left():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if "stdio_server" in command:
            found.add(pid)
    return found
