"""Ten thousand sessions that nobody comes back to: what they cost, and that nothing of them stays
when their time is over, or when each was closed.

What small things leave behind Python keeps for the next ones, so the process does not get smaller.
But as many sessions again find room where the first ones were, and nothing else shows that better.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from metamcp_worker.front_clients.client_sessions import SESSIONS_MAX
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.messages import FrontReady, FrontStats, SessionsOver
from tests.clients.memory import Watched
from tests.live import processes
from tests.live.client import Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.test_sessions import initialize
from tests.waiting import until
from tests.worker.front.process import Front

SESSION_BYTES_MAX = 20 * 1024
#: How much more the second ones may take than the first; a tenth of them would take as much.
MORE_BYTES_MAX = 1024 * 1024
CLOSED = 5_000
ROUNDS = 4
HELLO = initialize({"roots": {"listChanged": True}, "sampling": {}})


class LateFront(Front):
    """A front process whose clock can be put forward."""

    def __init__(self) -> None:
        self.sock, theirs = packets.pair()
        self.sock.settimeout(30)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.workers = []
        self.blob = b""
        self.listening = False
        command = [sys.executable, "-m", "tests.clients.late_front", str(theirs.fileno())]
        path = os.pathsep.join([str(ROOT), *sys.path])
        with theirs:
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": path}
            )


@pytest.fixture
def front() -> Iterator[LateFront]:
    found = LateFront()
    found.serve()
    found.offer("git", "status")
    found.attach("git")
    found.heard(FrontReady)
    yield found
    found.close()


def opened(client: Client, count: int) -> list[str]:
    """The ids of so many sessions, all opened over one connection."""
    found: list[str] = []
    for _ in range(count):
        client.session = None
        client.post(HELLO)
        assert client.status == 200
        found.append(client.session or "")
    return found


def end_of_time(front: LateFront) -> set[str]:
    """Let the idle time pass; the ids of the sessions that end."""
    os.kill(front.process.pid, signal.SIGUSR1)
    over: set[str] = set()
    while len(over) < SESSIONS_MAX:
        over.update(front.heard(SessionsOver).ids)
    assert sum(front.heard(FrontStats).sessions.values()) == 0
    return over


def closed(client: Client, session: str) -> None:
    """Say goodbye in this session."""
    client.session = session
    client.http.request("DELETE", client.path, headers=client.headers())
    with client.http.getresponse() as answer:
        assert answer.status == 200
        answer.read()


@pytest.mark.process
@pytest.mark.promise("M98")
def test_sessions_are_all_gone_after_the_idle_time_and_so_is_what_they_cost(
    front: LateFront,
) -> None:
    port: int = front.listener.getsockname()[1]
    client = Client(port, path="/metamcp/default/mcp")
    watched = Watched(front.process.pid)
    ids = {client.session, *opened(client, SESSIONS_MAX - 1)}
    cost = watched.kept
    assert cost <= SESSIONS_MAX * SESSION_BYTES_MAX
    client.close()
    assert end_of_time(front) == ids
    client = Client(port, path="/metamcp/default/mcp")
    assert not ids & {client.session, *opened(client, SESSIONS_MAX - 1)}
    assert watched.kept - cost <= MORE_BYTES_MAX
    client.close()


@pytest.mark.live
@pytest.mark.promise("M98")
def test_sessions_that_are_closed_cost_neither_memory_nor_processes_any_more() -> None:
    with Gateway({"old": fake("--era", "legacy")}) as gateway:
        client = Client(gateway.port)
        pid: int = gateway.status()["fronts"][0]["pid"]
        watched, children = Watched(pid), processes.below(gateway.pid)
        costs: list[int] = []
        for _ in range(ROUNDS):
            first = client.session
            ids = opened(client, CLOSED)
            costs.append(watched.kept)
            assert processes.below(gateway.pid) == children
            for session in ids:
                closed(client, session)
            client.session = first
            until(lambda: gateway.status()["fronts"][0]["sessions"] == 1, "one is left")
        assert max(costs) <= CLOSED * SESSION_BYTES_MAX
        # Holes and tables come once, in the second round or the third; a leak comes in each.
        assert min(more - cost for cost, more in pairwise(costs)) <= MORE_BYTES_MAX // 4
        client.close()
