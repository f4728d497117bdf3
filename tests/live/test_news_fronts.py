"""Several fronts: who is told that a server comes or goes finds that in the list, whichever front
it asks then; and who could not be told hears of it from the front that takes over its session."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress

import pytest

from tests.live import processes
from tests.live.client import Client
from tests.live.gateway import Gateway
from tests.live.raw import MODERN, Raw
from tests.live.test_sessions import Events, resumed
from tests.live.viewed import CHANGED, called, endpoint, heard, listeners, named
from tests.waiting import until

pytestmark = pytest.mark.live

SERVERS = {"git": named("status"), "db": named("query")}
CHANGES = 4
ASKED = 12
"""New connections after each change, so that hardly ever all are accepted by one front."""
TWO = "[gateway]\nfronts = 2\n" + endpoint("default", exposure='"servers"')


@pytest.mark.promise("M28")
def test_whichever_front_is_asked_has_the_list_that_a_client_was_told_of() -> None:
    with Gateway(SERVERS, extra="[gateway]\nfronts = 3") as gateway, listeners(gateway) as both:
        for number in range(CHANGES):
            gone = number % 2 == 0
            gateway.ctl("stop" if gone else "start", "git")
            heard(both)
            lists = [Raw(gateway.port, MODERN).result("tools/list")["tools"] for _ in range(ASKED)]
            names = [[tool["name"] for tool in tools] for tools in lists]
            assert names == [["db__query"] if gone else ["git__status", "db__query"]] * ASKED


@pytest.mark.promise("M28")
def test_whichever_front_is_asked_after_a_wait_has_the_lists_of_what_is_ready() -> None:
    with Gateway(SERVERS, extra="[gateway]\nfronts = 3") as gateway:
        for _ in range(CHANGES):
            gateway.ask("stop", {"names": ["git"]})
            gateway.ask("start", {"names": ["git"]})
            gateway.wait("git")
            lists = [Raw(gateway.port, MODERN).result("tools/list")["tools"] for _ in range(ASKED)]
            assert [[tool["name"] for tool in tools] for tools in lists] == [
                ["git__status", "db__query"]
            ] * ASKED


def activate(gateway: Gateway, server: str) -> None:
    called(Raw(gateway.port, MODERN), "gateway_activate", name=server)


def deactivate(gateway: Gateway, server: str) -> None:
    called(Raw(gateway.port, MODERN), "gateway_deactivate", name=server)


def stop(gateway: Gateway, server: str) -> None:
    gateway.ctl("stop", server)


def message(events: Events) -> str | None:
    found = events.next()
    return None if found is None else str(found["method"])


@contextmanager
def stopped(pid: int) -> Generator[None, None, None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def listening(gateway: Gateway) -> Generator[tuple[int, Client, Events]]:
    """A client with a session, which has heard that there is something in view: the front that has
    it, and its stream."""
    mine, other = (front["pid"] for front in gateway.status()["fronts"])
    with stopped(other):
        client = Client(gateway.port)
        client.close()
        events = resumed(client, gateway.port, "")
    with closing(events):
        activate(gateway, "git")
        assert message(events) == CHANGED
        yield mine, client, events


def back(client: Client, gateway: Gateway, before: Events) -> closing[Events]:
    """It comes back for what was told behind the last event that it had."""
    return closing(resumed(client, gateway.port, before.last_id))


@pytest.mark.parametrize("change", [deactivate, stop], ids=["by an order", "by a server"])
def test_a_client_whose_front_hung_while_its_list_changed_hears_of_it_once_from_another_front(
    change: Callable[[Gateway, str], None],
) -> None:
    with Gateway(SERVERS, extra=TWO) as gateway, listening(gateway) as (front, client, events):
        with stopped(front):
            change(gateway, "git")
            until(lambda: not processes.alive({front}), "it is killed")
        with back(client, gateway, events) as later:
            assert message(later) == CHANGED
            activate(gateway, "db")
            assert message(later) == CHANGED
            client.end()
            assert message(later) is None


def test_a_client_whose_front_died_and_had_told_everything_hears_nothing_anew() -> None:
    with Gateway(SERVERS, extra=TWO) as gateway, listening(gateway) as (front, client, events):
        os.kill(front, signal.SIGKILL)
        until(lambda: not processes.alive({front}), "it is dead")
        with back(client, gateway, events) as later:
            activate(gateway, "db")
            assert message(later) == CHANGED
            client.end()
            assert message(later) is None
