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

ROUNDS = 20
NAMES = ["left", "right", "victim"]
DOWN = -10001


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway({name: fake("--era", "both") for name in NAMES}) as running:
        yield running


def kill_and_wait(gateway: Gateway, field: str) -> None:
    """Kill the victim's `field` process; come back when another one serves."""
    old = gateway.server("victim")
    os.kill(old[field], signal.SIGKILL)

    def back() -> bool:
        now = gateway.server("victim")
        return now["state"] == "active" and now["generation"] > old["generation"]

    until(back, f"the victim is back after its {field} was killed")


@pytest.mark.promise("M75")
@pytest.mark.promise("M72")
@pytest.mark.parametrize("field", ["pid", "worker_pid"])
def test_a_killed_server_comes_back_and_its_neighbours_notice_nothing(
    gateway: Gateway, field: str
) -> None:
    with Callers(gateway.port, NAMES, callers=12) as run:
        for _ in range(ROUNDS):
            kill_and_wait(gateway, field)
    assert run.tally.wrong == []
    assert run.tally.broken == run.tally.refused == 0
    assert set(run.tally.failed) <= {"victim"}
    assert set(run.tally.errors) <= {DOWN}
    assert min(run.tally.per_server[name] for name in NAMES) > 0


@pytest.mark.promise("M79")
def test_a_killed_front_refuses_nobody(gateway: Gateway) -> None:
    with Callers(gateway.port, NAMES, callers=12, era="2026-07-28") as run:
        for _ in range(ROUNDS):
            old = gateway.status()["fronts"][0]
            os.kill(old["pid"], signal.SIGKILL)
            until(
                lambda old=old: (
                    (now := gateway.status()["fronts"][0])["pid"] not in (0, old["pid"])
                    and now["state"] == "ready"
                ),
                "the front is back",
            )
    assert run.tally.wrong == []
    assert run.tally.refused == 0
    assert run.tally.errors.total() == 0 or set(run.tally.errors) == {DOWN}
    assert run.tally.right > 0


@pytest.mark.promise("M70")
def test_a_killed_nursery_takes_its_tree_along_and_comes_back(gateway: Gateway) -> None:
    with Callers(gateway.port, NAMES, callers=12, era="2026-07-28") as run:
        for _ in range(ROUNDS):
            old = gateway.status()["nursery_pid"]
            tree = processes.below(old)
            os.kill(old, signal.SIGKILL)
            until(lambda tree=tree: not processes.alive(tree), "the old tree is gone")
            until(
                lambda old=old: gateway.status()["nursery_pid"] not in (0, old),
                "there is a new nursery",
            )
            gateway.ctl("wait", "--for", "ready", "--timeout", "30s")
    assert run.tally.wrong == []
    assert run.tally.refused == 0
    assert run.tally.right > 0


@pytest.mark.promise("M74")
def test_a_killed_supervisor_leaves_nothing_behind() -> None:
    for _ in range(ROUNDS):
        with Gateway({name: fake("--ignore-term", "--ignore-eof") for name in NAMES}) as gateway:
            with Callers(gateway.port, NAMES, callers=6) as run:
                until(lambda run=run: run.tally.right > 20, "calls are answered")
                daemon = make_daemon(gateway)
                os.kill(gateway.server("right")["worker_pid"], signal.SIGSTOP)
                os.kill(gateway.pid, signal.SIGKILL)
                assert gateway.process is not None
                gateway.process.wait(timeout=10)
                until(lambda gateway=gateway: not gateway.left(), "the whole tree is gone", 10)
                assert not processes.alive({daemon})
            assert run.tally.wrong == []


@pytest.mark.promise("M74")
def test_a_stopped_server_takes_its_daemons_along(gateway: Gateway) -> None:
    daemon = make_daemon(gateway)
    gateway.ctl("stop", "victim", "--wait")
    until(lambda: not processes.alive({daemon}), "the daemon is gone")
    assert gateway.server("victim")["state"] == "stopped"


def make_daemon(gateway: Gateway) -> int:
    """A setsid grandchild of the victim; its pid."""
    from tests.live.client import Client

    client = Client(gateway.port)
    daemon = int(client.text("victim__spawn_daemon"))
    client.close()
    assert processes.alive({daemon})
    return daemon
