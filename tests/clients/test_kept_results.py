"""A result of 20 MB at an endpoint that keeps results: every client gets a short one from every
kind of server, reads all of it in pieces, and no process keeps memory for it."""

import re
from collections.abc import Iterator
from itertools import product

import pytest

from metamcp_worker.ipc import codec
from metamcp_worker.results.result_summary import META, SCHEME
from tests.clients.large import CLIENTS, SERVERS, running
from tests.clients.memory import Watched
from tests.live.client import LEGACY, MODERN
from tests.live.gateway import Gateway
from tests.live.raw import Raw

pytestmark = [pytest.mark.live, pytest.mark.promise("M110")]

BYTES = 20 * 1024 * 1024
SHORT_BYTES_MAX = 8 * 1024
CALLS = 20
GROWN_BYTES_MAX = 8 * 1024 * 1024
EXTRA = """
[endpoints.default]
namespace = "default"
results = { max = "64K" }
"""
CELLS = [
    *((client, "told" if "stream" in client else "stdio-legacy") for client in CLIENTS),
    *product(("modern", "legacy"), [one for one in SERVERS if one not in {"told", "alone"}][1:]),
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with running(EXTRA) as found:
        yield found


def handle(short: bytes) -> str:
    found = re.search(rb'"handle":"([0-9a-f]{24})"', short)
    assert found is not None, short
    return found[1].decode()


@pytest.mark.parametrize(("client", "server"), CELLS)
def test_twenty_megabytes_reach_every_client_as_a_short_result(
    gateway: Gateway, client: str, server: str
) -> None:
    short = CLIENTS[client](gateway, server, BYTES)
    assert len(short) <= SHORT_BYTES_MAX
    assert b"xxxxxxxxxxxxxxxx" in short
    reading = Raw(gateway.port, LEGACY if "legacy" in client else MODERN)
    last = codec.dump({"uri": f"{SCHEME}{handle(short)}?offset={BYTES - 5}"})
    assert reading.result("resources/read", last)["contents"][0]["text"] == "xxxxx"


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_all_of_a_kept_result_is_read_in_pieces(gateway: Gateway, era: str) -> None:
    reading = Raw(gateway.port, era)
    uri = SCHEME + handle(CLIENTS["modern"](gateway, "stdio-modern", BYTES))
    pieces: list[str] = []
    while uri:
        read = reading.result("resources/read", codec.dump({"uri": uri}))
        pieces.append(read["contents"][0]["text"])
        uri = read["_meta"][META].get("next", "")
    assert "".join(pieces) == "x" * BYTES
    assert max(map(len, pieces)) <= 64 * 1024


@pytest.mark.parametrize("server", ["stdio-legacy", "json-modern", "events-legacy", "sse"])
def test_twenty_such_calls_leave_front_and_worker_as_they_were(
    gateway: Gateway, server: str
) -> None:
    CLIENTS["modern"](gateway, server, BYTES)
    front = Watched(gateway.status()["fronts"][0]["pid"])
    worker = Watched(gateway.server(server)["worker_pid"])
    for _ in range(CALLS):
        assert len(CLIENTS["modern"](gateway, server, BYTES)) <= SHORT_BYTES_MAX
    assert front.grown <= GROWN_BYTES_MAX
    assert worker.kept <= GROWN_BYTES_MAX
