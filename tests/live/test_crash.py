"""SIGKILL of every process under load: answers at once, neighbours untouched, nothing left."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.live import processes
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

# Twenty kills of each, in four gateways: a process that dies more often in a row is an outage, and
# the policies for that (circuits, giving up) have tests of their own.
GATEWAYS = 4
KILLS = 5
NAMES = ["left", "right", "victim", "widow"]
VICTIMS = {"victim": "pid", "widow": "worker_pid"}
"""Servers with the process of theirs that is killed."""
DOWN = -10001


@pytest.fixture(scope="module", params=range(GATEWAYS))
def gateway() -> Iterator[Gateway]:
    # How long a restart waits is no matter here, and callers would have the processor meanwhile.
    server = {**fake("--era", "both"), "restart_delay_max": "100ms"}
    with Gateway(dict.fromkeys(NAMES, server)) as running:
        yield running


def kill_and_wait(gateway: Gateway) -> None:
    """Kill a process of each victim; come back when others serve."""
    old = {name: gateway.server(name) for name in VICTIMS}
    for name, field in VICTIMS.items():
        os.kill(old[name][field], signal.SIGKILL)

    def back() -> bool:
        now = {name: gateway.server(name) for name in VICTIMS}
        return all(
            now[name]["state"] == "active" and now[name]["generation"] > old[name]["generation"]
            for name in VICTIMS
        )

    until(back, "the victims are back after their processes were killed")


@pytest.mark.promise("M75", "M72")
def test_a_killed_server_or_worker_comes_back_and_its_neighbours_notice_nothing(
    gateway: Gateway,
) -> None:
    before = {name: gateway.server(name)["generation"] for name in NAMES}
    with Callers(gateway.port, NAMES, callers=12) as run:
        for _ in range(KILLS):
            kill_and_wait(gateway)
    assert run.tally.wrong == []
    assert run.tally.broken == run.tally.refused == 0
    assert set(run.tally.failed) <= {*VICTIMS}
    assert set(run.tally.errors) <= {DOWN}
    assert min(run.tally.per_server[name] for name in NAMES) > 0
    for name in NAMES:
        kills = KILLS if name in VICTIMS else 0
        assert gateway.server(name)["generation"] == before[name] + kills


def kill_front(gateway: Gateway) -> None:
    """Kill the front; come back when another one serves."""
    old = gateway.status()["fronts"][0]["pid"]
    os.kill(old, signal.SIGKILL)

    def back() -> bool:
        now = gateway.status()["fronts"][0]
        return now["pid"] not in (0, old) and now["state"] == "ready"

    until(back, "the front is back")


def kill_nursery(gateway: Gateway) -> None:
    """Kill the nursery; come back when its whole tree is gone and another one works."""
    old = gateway.status()["nursery_pid"]
    tree = processes.below(old)
    os.kill(old, signal.SIGKILL)
    until(lambda: not processes.alive(tree), "the old tree is gone")
    until(lambda: gateway.status()["nursery_pid"] not in (0, old), "there is a new nursery")
    gateway.wait()


def kill_supervisor(gateway: Gateway) -> None:
    """Kill the supervisor with one worker stopped and a daemon of a server; all of it goes."""
    daemon = make_daemon(gateway)
    os.kill(gateway.server("right")["worker_pid"], signal.SIGSTOP)
    os.kill(gateway.pid, signal.SIGKILL)
    assert gateway.process is not None
    gateway.process.wait(timeout=30)
    until(lambda: not gateway.left(), "the whole tree is gone")
    assert not processes.alive({daemon})


@pytest.mark.promise("M79")
def test_a_killed_front_refuses_nobody(gateway: Gateway) -> None:
    with Callers(gateway.port, NAMES, callers=12, era="2026-07-28") as run:
        for _ in range(KILLS):
            kill_front(gateway)
    assert run.tally.wrong == []
    assert run.tally.refused == 0
    assert run.tally.errors.total() == 0
    assert run.tally.right > 0


@pytest.mark.promise("M70")
def test_a_killed_nursery_takes_its_tree_along_and_comes_back(gateway: Gateway) -> None:
    with Callers(gateway.port, NAMES, callers=12, era="2026-07-28") as run:
        for _ in range(KILLS):
            kill_nursery(gateway)
    assert run.tally.wrong == []
    assert run.tally.refused == 0
    assert set(run.tally.errors) <= {DOWN}
    assert run.tally.right > 0


@pytest.mark.promise("M70")
def test_a_gateway_whose_nursery_dies_six_times_in_a_minute_ends_and_says_what_to_do() -> None:
    with Gateway({}) as gateway:
        for _ in range(5):
            kill_nursery(gateway)
        os.kill(gateway.status()["nursery_pid"], signal.SIGKILL)
        assert gateway.process is not None
        assert gateway.process.wait(timeout=30) == 70
        last = gateway.log.read_text().splitlines()[-1]
        assert "the nursery died 6 times in 60 s" in last
        assert "start the gateway again" in last


@pytest.mark.promise("M74")
@pytest.mark.parametrize("round_", range(GATEWAYS * KILLS))
def test_a_killed_supervisor_leaves_nothing_behind(round_: int) -> None:
    servers = {name: fake("--ignore-term", "--ignore-eof") for name in NAMES}
    with Gateway(servers) as gateway, Callers(gateway.port, NAMES, callers=6) as run:
        until(lambda: run.tally.right > 20, "calls are answered")
        kill_supervisor(gateway)
        run.stop()
    assert run.tally.wrong == []


@pytest.mark.promise("M74")
def test_a_stopped_server_takes_its_daemons_along(gateway: Gateway) -> None:
    daemon = make_daemon(gateway)
    gateway.ctl("stop", "victim", "--wait")
    until(lambda: not processes.alive({daemon}), "the daemon is gone")
    assert gateway.server("victim")["state"] == "stopped"
    gateway.ctl("start", "victim", "--wait")


def make_daemon(gateway: Gateway) -> int:
    """A setsid grandchild of the victim; its pid."""
    from tests.live.client import Client

    client = Client(gateway.port)
    daemon = int(client.text("victim__spawn_daemon"))
    client.close()
    assert processes.alive({daemon})
    return daemon
