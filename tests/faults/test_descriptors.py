"""No descriptor is free in a front, a worker or the supervisor: clients wait, nobody spins, people
can still ask why, and all of it ends when there are descriptors again."""

import os
import resource
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, closing

import pytest

from metamcp_supervisor.runtime import SOCKET
from metamcp_supervisor.verbs import Exit
from tests.faults.starving import CPU_MAX, share_of_a_core, starving
from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live]

CLIENTS = 12
"""More than any process has free numbers below its highest descriptor."""
NONE_MORE = 5
"""As a limit: every process has these open."""

RESENT_S = 2.5
"""A pipe that nobody took is sent again twice in so long."""


class Crowd:
    """Clients that come at once, over a connection each that they keep, and make one call."""

    def __init__(self, gateway: Gateway) -> None:
        self.answers: list[str] = []
        self._port = gateway.port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def served(self) -> bool:
        return self.answers == ["in"] * CLIENTS

    def leave(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self) -> None:
        client = Client(self._port, MODERN)
        self.answers.append(client.text("one__echo", text="in"))
        self._over.wait(60)
        client.close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts something else at /proc")
def test_an_empty_proc_is_named() -> None:
    hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc; exec "$@"', "sh")
    gateway = Gateway({"one": fake()}, wait=False)
    gateway.wrapper = hidden
    with gateway:
        assert gateway.process is not None
        assert gateway.process.wait(60) == Exit.INTERNAL
        said = gateway.log.read_text()
        assert "did not start: /dev/fd is not there, most likely because /proc is empty" in said
        assert "Traceback" not in said
        doctor = (*hidden, *gateway.command("ctl", "doctor"))
        told = subprocess.run(doctor, capture_output=True, text=True, check=False, timeout=60)
        assert "/proc shows no processes" in told.stdout


def test_clients_that_a_starving_front_cannot_take_are_served_by_another_or_wait() -> None:
    with Gateway({"one": fake()}, extra="[gateway]\nfronts = 2") as gateway, ExitStack() as later:
        first, second = (front["pid"] for front in gateway.status()["fronts"])
        early = Client(gateway.port, MODERN)
        assert early.text("one__echo", text="in") == "in"
        with starving(first):
            for _ in range(2):  # what one front can still take is used up by the first of them
                crowd = Crowd(gateway)
                later.callback(crowd.leave)
                until(crowd.served, "the other front serves them")
            with starving(second):
                waiting = Crowd(gateway)
                later.callback(waiting.leave)
                assert early.text("one__echo", text="in") == "in", "who is in is served"
                assert max(map(share_of_a_core, (first, second))) < CPU_MAX
                assert not waiting.served(), "nobody can take them now"
        until(waiting.served, "nobody was cut; they only waited")
        early.close()
        assert [front["pid"] for front in gateway.status()["fronts"]] == [first, second]


def test_a_front_that_could_not_take_a_pipe_gets_another_one_and_all_say_so() -> None:
    with (
        Gateway({"one": {**fake(), "required": True}, "two": fake()}) as gateway,
        closing(Client(gateway.port, MODERN)) as client,
    ):
        pid = gateway.status()["fronts"][0]["pid"]
        assert client.text("one__echo", text="in") == "in"
        with starving(pid, at=NONE_MORE):
            gateway.ctl("restart", "one")
            until(lambda: gateway.server("one")["reason"] == "descriptors", "its state is told")
            assert gateway.server("one")["state"] == "error"
            assert "not reach it (descriptors: " in gateway.ctl("describe", "one")
            assert "1 of 2 not ready" in gateway.ctl("status", ok=(3,))
            # The pipe is sent again each second, and is not there before somebody took it.
            end = time.monotonic() + RESENT_S
            while time.monotonic() < end:
                assert gateway.ops("/readyz")[0] == 503
            gateway.ctl("wait", "one", "--timeout", "100ms", ok=(6,))
            assert client.text("two__echo", text="in") == "in", "the pipes that it has are good"
            assert "error" in client.call("one__echo"), "a call waits for a while, not for ever"
            assert share_of_a_core(pid) < CPU_MAX
        until(lambda: "result" in client.call("one__echo"), "the pipe is there")
        until(lambda: gateway.server("one")["state"] == "active", "and that is told")
        assert gateway.ops("/readyz")[0] == 200
        assert gateway.status()["fronts"][0]["pid"] == pid


def soft_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


def test_the_limit_is_raised_to_what_the_servers_need_or_what_follows_is_told() -> None:
    gateway = Gateway({"one": fake()})
    gateway.wrapper = ("sh", "-c", 'ulimit -Sn 100; ulimit -Hn 270; exec "$@"', "sh")
    with gateway:
        front = gateway.status()["fronts"][0]["pid"]
        assert soft_limit(gateway.pid) == soft_limit(front) == 263
        assert "descriptors" not in gateway.journal()
        gateway.write({f"s{number}": fake() for number in range(4)})
        gateway.ctl("reload")
        assert soft_limit(gateway.pid) == soft_limit(front) == 270
        said = "4 servers need about 272 open files in one process, and the limit is 270"
        assert said in gateway.journal()
        until(
            lambda: (
                "limit 270 (up to 270), about 272 are needed" in gateway.ctl("doctor", ok=(0, 1))
            ),
            "the server that left the configuration is gone, and doctor says the same",
        )


def test_a_worker_that_could_not_take_a_pipe_gets_another_one() -> None:
    with Gateway({"one": fake(), "two": fake()}) as gateway:
        before = gateway.server("one")
        with starving(before["worker_pid"], at=NONE_MORE):
            gateway.ctl("roll")
            client = Client(gateway.port, MODERN)
            assert client.text("two__echo", text="in") == "in", "no other server is hurt"
            assert "error" in client.call("one__echo")
            assert share_of_a_core(before["worker_pid"]) < CPU_MAX
        until(lambda: "result" in client.call("one__echo"), "the pipe is there")
        client.close()
        assert gateway.server("one")["pid"] == before["pid"]


def test_a_supervisor_without_descriptors_still_says_why_and_starts_servers_later() -> None:
    with Gateway({"one": fake(), "two": fake()}) as gateway, ExitStack() as held:
        client = Client(gateway.port, MODERN)
        assert client.text("two__echo", text="in") == "in"
        with starving(gateway.pid) as limit:
            for _ in range(CLIENTS):
                there = held.enter_context(socket.socket(socket.AF_UNIX))
                there.connect(str(gateway.folder / "run" / SOCKET))
            until(lambda: processes.descriptors(gateway.pid) == limit, "all are in use")
            assert gateway.ops("/livez")[0] == 200, "the ops listener has places of its own"
            for _ in range(CLIENTS):
                other = socket.create_connection(("127.0.0.1", gateway.ops_port))
                held.callback(other.close)
            os.kill(gateway.server("one")["pid"], signal.SIGKILL)
            until(
                lambda: "Too many open files" in str(gateway.describe("one")),
                "ctl says why it does not come back",
            )
            assert client.text("two__echo", text="in") == "in", "calls need no supervisor"
            assert share_of_a_core(gateway.pid) < CPU_MAX
            held.close()
        until(lambda: "result" in client.call("one__echo"), "it is started")
        assert gateway.ops("/livez")[0] == 200
        client.close()
