"""Results of the largest size, from every kind of server to every kind of client: they come through
whole, with a bounded number of copies in memory at a time, and none of them stays."""

from collections.abc import Iterator
from itertools import product

import pytest

from tests.clients.large import BODY_BYTES, CLIENTS, SERVERS, TEXT, running
from tests.clients.memory import Watched
from tests.live.gateway import Gateway

pytestmark = pytest.mark.live

GROWN_MAX = 6 * BODY_BYTES
STREAMS = ("modern-stream", "legacy-stream")
PLAIN = [server for server in SERVERS if server not in {"told", "hosted", "alone"}]
CELLS = [
    *((client, "told" if client in STREAMS else "stdio-legacy") for client in CLIENTS),
    *product(("modern", "legacy"), PLAIN[1:]),
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with running() as found:
        yield found


def watched(gateway: Gateway, server: str) -> tuple[Watched, Watched, Watched]:
    """The front, the worker of a server, and the server itself if it is a process."""
    front: int = gateway.status()["fronts"][0]["pid"]
    found = gateway.server(server)
    return Watched(front), Watched(found["worker_pid"]), Watched(found["pid"] or front)


@pytest.mark.promise("M98")
@pytest.mark.parametrize(("client", "server"), CELLS)
def test_the_largest_result_crosses_with_bounded_memory(
    gateway: Gateway, client: str, server: str
) -> None:
    front, worker, _ = watched(gateway, server)
    assert TEXT in CLIENTS[client](gateway, server)
    assert front.grown <= GROWN_MAX
    assert worker.grown <= GROWN_MAX
    front.returns()
    worker.returns()


@pytest.mark.promise("M98", "M13")
def test_a_hosted_server_costs_its_worker_what_it_costs_alone_and_no_more_than_others(
    gateway: Gateway,
) -> None:
    _, _, alone = watched(gateway, "alone")
    assert TEXT in CLIENTS["modern"](gateway, "alone")
    front, worker, _ = watched(gateway, "hosted")
    assert TEXT in CLIENTS["modern"](gateway, "hosted")
    assert front.grown <= GROWN_MAX
    assert worker.grown <= GROWN_MAX + alone.grown
    front.returns()
    worker.returns(alone.kept)
