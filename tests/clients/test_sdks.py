"""Clients of the official SDKs do everything that there is, over every transport and in both eras,
against servers of both eras behind both transports."""

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product

import pytest

from tests.clients import programs
from tests.clients.expected import Seen, check
from tests.clients.places import KINDS, Place, running
from tests.clients.sdk import python

# The first test waits for all clients.
pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

#: The SDK, the transport, and the era that it speaks or finds out.
CLIENTS = (
    ("python", "http", "legacy"),
    ("python", "http", "auto"),
    ("python", "sse", "legacy"),
    ("python", "stdio", "legacy"),
    ("python", "stdio", "auto"),
    ("v1", "http", "legacy"),
    ("v1", "sse", "legacy"),
    ("v1", "stdio", "legacy"),
    ("v2", "http", "legacy"),
    ("v2", "http", "modern"),
    ("v2", "http", "auto"),
    ("v2", "sse", "legacy"),
    ("v2", "stdio", "legacy"),
    ("v2", "stdio", "modern"),
    ("v2", "stdio", "auto"),
)
CELLS = tuple(product(KINDS, CLIENTS))


def played(place: Place, sdk: str, way: str, era: str) -> Seen:
    if sdk == "python":
        return python(place, way, era)
    return programs.typescript({"sdk": sdk, "era": era, **place.names, **place.way(way)})


@pytest.fixture(scope="module")
def found() -> dict[object, tuple[Place, Future[Seen]]]:
    """Where each client was, and what it saw. Two at one server would hear of each other's changes,
    so they come one after the other there. Each lane has two places in turns: a server whose lists
    change again and again without a pause is read more and more slowly, up to eight seconds."""
    if why := programs.missing():
        pytest.skip(why)
    outcomes: dict[object, tuple[Place, Future[Seen]]] = {}

    def lane(places: list[Place]) -> None:
        for client, place in product(CLIENTS, places):
            outcome: Future[Seen] = Future()
            outcomes[(place.transport, place.era), client] = place, outcome
            try:
                outcome.set_result(played(place, *client))
            except Exception as error:  # noqa: BLE001 - it fails the test of this client
                outcome.set_exception(error)

    with running() as places, ThreadPoolExecutor(2) as pool:
        list(pool.map(lane, [places[::2], places[1::2]]))
    return outcomes


@pytest.mark.promise("M1", "M3", "M5", "M11", "M23")
@pytest.mark.parametrize("client", CLIENTS, ids="-".join)
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_client_of_an_sdk_can_do_everything(
    found: dict[object, tuple[Place, Future[Seen]]], kind: object, client: tuple[str, str, str]
) -> None:
    place, seen = found[kind, client]
    check(seen.result(), place, client[2])
