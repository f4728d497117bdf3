"""Clients that leave in the middle, read slowly, write slowly, or say nothing at all."""

import json
import random
import resource
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.clients.memory import SLACK_BYTES, Watched
from tests.faults.badnet import RESET
from tests.faults.ears import request
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120), pytest.mark.promise("M98")]

SLOTS = 4
CUTS = 60
NOTES, NOTE_BYTES = 400, 50_000
IDLERS = 1000
IDLER_BYTES_MAX = 20 * 1024
CALLS = 200
HEAD_S_MAX = 10
"""What a client may take for the head of its request."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway({"alpha": {**fake(), "concurrency": SLOTS}, "beta": fake()}) as running:
        yield running


def sleeping(client: Client) -> bytes:
    """A call that takes longer than anybody waits, as bytes."""
    params = {"name": "alpha__sleep", "arguments": {"ms": 600_000}, "_meta": client.meta()}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return request(client.http.port, message, "alpha__sleep")


def leave(one: socket.socket, *, rudely: bool) -> None:
    if rudely:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    one.close()


def quiet(gateway: Gateway) -> bool:
    """Is nothing of all this in the log as a fault?"""
    log = gateway.log.read_text()
    return "Traceback" not in log and '"what":"bug"' not in log and '"what":"error"' not in log


@pytest.mark.promise("M23")
def test_a_client_that_leaves_at_any_byte_frees_its_place_and_is_no_error(gateway: Gateway) -> None:
    dice = random.Random(11)
    with closing(Client(gateway.port, MODERN)) as client:
        whole = sleeping(client)
        cuts = [dice.randrange(len(whole)) for _ in range(CUTS)] + [len(whole)] * SLOTS
        for cut in cuts:
            one = socket.create_connection(("127.0.0.1", gateway.port))
            one.sendall(whole[:cut])
            leave(one, rudely=dice.random() < 0.5)
        assert client.text("alpha__echo", text="a") == "a"
        before = cancelled(client)
        waiting = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(SLOTS)]
        for one in waiting:
            one.sendall(whole)
        until(lambda: gateway.server("alpha")["inflight"] == SLOTS, "its slots are taken")
        for one in waiting:
            leave(one, rudely=dice.random() < 0.5)
        assert client.text("alpha__echo", text="b") == "b"
        assert cancelled(client) == before + SLOTS
    until(lambda: gateway.server("alpha")["inflight"] == 0, "nothing is in flight")
    assert gateway.server("alpha")["generation"] == 1
    assert quiet(gateway)


def cancelled(client: Client) -> int:
    """Calls of which the server heard that nobody waits."""
    told = json.loads(client.text("alpha__state"))["told"]
    return sum(one["method"] == "notifications/cancelled" for one in told)


def test_a_client_that_does_not_read_its_stream_is_cut_and_holds_no_memory(
    gateway: Gateway,
) -> None:
    front = Watched(gateway.status()["fronts"][0]["pid"])
    with (
        closing(Client(gateway.port, MODERN)) as client,
        closing(socket.socket()) as deaf,
    ):
        arguments = {"n": NOTES, "note": "x" * NOTE_BYTES}
        meta = {**client.meta(), "progressToken": 1}
        params = {"name": "alpha__progress", "arguments": arguments, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", gateway.port))
        deaf.sendall(request(gateway.port, message, "alpha__progress"))
        assert client.text("beta__echo", text="a") == "a"
        until(lambda: counted(gateway, "alpha") == 1, "its call is over")
        assert front.grown < NOTES * NOTE_BYTES / 2
        assert len(rest(deaf)) < NOTES * NOTE_BYTES
        assert client.text("alpha__echo", text="a") == "a"
    assert quiet(gateway)


def counted(gateway: Gateway, name: str) -> int:
    """Calls that have ended."""
    found = gateway.server(name)
    calls: int = found["calls"]
    return 0 if found["inflight"] else calls


def rest(one: socket.socket) -> bytes:
    """What still comes until the connection ends."""
    one.settimeout(HEAD_S_MAX)
    found = b""
    try:
        while piece := one.recv(65536):
            found += piece
    except ConnectionError:
        pass
    return found


def test_a_thousand_clients_that_dawdle_cost_little_and_delay_nobody(gateway: Gateway) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    count = min(IDLERS, most - most % 2)
    front = Watched(gateway.status()["fronts"][0]["pid"])
    with ExitStack() as stack:
        client = stack.enter_context(closing(Client(gateway.port, MODERN)))
        before = called(client)
        idlers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
            for _ in range(count)
        ]
        for one in idlers[::2]:
            one.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        during = called(client)
        assert front.kept <= count * IDLER_BYTES_MAX + SLACK_BYTES
        # A call takes milliseconds; who waits for others would wait for seconds.
        assert during < max(3 * before, 0.1)
        for one in idlers[::2]:
            one.settimeout(HEAD_S_MAX * 3)
            assert b" 408 " in one.recv(4096).split(b"\r\n")[0], "it is told that it was too slow"
        assert client.text("alpha__echo", text="a") == "a"
    assert quiet(gateway)


def called(client: Client) -> float:
    """The median of some calls, in seconds."""
    took: list[float] = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        assert client.text("alpha__echo", text="a") == "a"
        took.append(time.perf_counter() - begin)
    return statistics.median(took)
