"""A second copy that stands by: no gap when the first one dies, or is restarted under load."""

import os
import signal
from functools import partial
from typing import Any

import pytest

from tests.live.client import Client
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def spared(gateway: Gateway) -> dict[str, Any]:
    """The server, once its spare is ready."""
    spares = gateway.journal().count("spare ready")
    server = gateway.server("git")
    return server if spares >= server["generation"] else {}


def newer(gateway: Gateway, generation: int) -> bool:
    return int(gateway.server("git")["generation"]) > generation


@pytest.mark.promise("M76")
def test_the_call_after_a_death_is_answered_by_the_spare() -> None:
    with Gateway({"git": {**fake(), "spares": 1}}) as gateway:
        client = Client(gateway.port)
        for generation in (1, 2, 3):
            found = until(lambda: spared(gateway), "the spare is ready")
            assert found["generation"] == generation
            victim = found["pid"] if generation % 2 else found["worker_pid"]
            os.kill(victim, signal.SIGKILL)
            until(partial(newer, gateway, generation), "the spare serves")
            assert client.text("git__echo", text="a") == "a"
        assert gateway.server("git")["state"] == "active"
        client.close()


@pytest.mark.promise("M72")
def test_a_restart_under_load_costs_no_call() -> None:
    with Gateway({"git": {**fake(), "spares": 1}}) as gateway:
        until(lambda: spared(gateway), "the spare is ready")
        with Callers(gateway.port, ["git"], callers=8) as run:
            for _ in range(3):
                until(lambda: run.tally.right > 200, "calls flow")
                gateway.ctl("restart", "git", "--wait")
            run.stop()
        assert (run.tally.wrong, dict(run.tally.errors), run.tally.broken) == ([], {}, 0)
        assert gateway.server("git")["generation"] >= 4
