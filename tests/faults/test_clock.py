"""Clocks that jump, have just begun, or have run for ten years: nobody is late because of them."""

import os
import signal

import pytest

from tests.faults.clocks import Uptime, Wall
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = [pytest.mark.live]

HOUR_S = 3600.0
TEN_YEARS_S = 10 * 365 * 24 * HOUR_S


def killed_and_back(gateway: Gateway, name: str) -> None:
    old = gateway.server(name)
    os.kill(old["pid"], signal.SIGKILL)
    until(lambda: gateway.server(name)["generation"] > old["generation"], "it is started again")
    gateway.wait()


def goes_on(run: Callers) -> None:
    now = run.tally.right
    until(lambda: run.tally.right > now + 50, "calls are answered")


def test_a_wall_clock_that_jumps_ends_nothing_and_delays_nothing() -> None:
    with Wall({"one": fake(), "two": fake() | {"timeout": "5s"}}) as gateway:
        before = gateway.status()
        with Callers(gateway.port, ["two"], callers=4) as run:
            for ahead_s in (HOUR_S, -HOUR_S):
                gateway.jump(ahead_s)
                goes_on(run)
                killed_and_back(gateway, "one")
        assert run.tally.wrong == []
        assert run.tally.errors.total() == run.tally.broken == run.tally.refused == 0
        after = gateway.status()
        assert after["servers"][1]["pid"] == before["servers"][1]["pid"]
        assert after["fronts"][0]["pid"] == before["fronts"][0]["pid"]
        assert 0 <= after["servers"][0]["up_s"] < HOUR_S / 2
        times: list[float] = [event["time"] for event in gateway.events(n=99)]
        assert max(times) - times[0] > HOUR_S / 2, "the journal has the time of the day"
        assert times[-1] - times[0] < -HOUR_S / 2


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a time namespace")
@pytest.mark.parametrize("up_s", [1.0, TEN_YEARS_S])
def test_a_machine_that_has_just_started_or_was_never_stopped_serves_like_any_other(
    up_s: float,
) -> None:
    with Uptime({"one": fake()}, up_s=up_s) as gateway:
        client = Client(gateway.port, MODERN)
        assert client.text("one__echo", text="in") == "in"
        killed_and_back(gateway, "one")
        assert client.text("one__echo", text="in") == "in"
        client.close()
