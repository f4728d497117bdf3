"""Many callers, many servers, colliding ids: every request gets one right answer, nothing grows."""

import os

import pytest

from tests.live import processes
from tests.live.client import LEGACY, MODERN
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

SERVERS = 20
CALLERS = 200
WARM_UP = 10_000
CALLS = 100_000


def figures(gateway: Gateway) -> dict[str, tuple[int, int]]:
    """(descriptors, resident bytes) of each of the gateway's own processes."""
    status = gateway.status()
    own = {"supervisor": status["pid"], "nursery": status["nursery_pid"]}
    own |= {f"front-{front['number']}": front["pid"] for front in status["fronts"]}
    own |= {server["name"]: server["worker_pid"] for server in status["servers"]}
    return {
        name: (processes.descriptors(pid), processes.memory(pid, "Rss"))
        for name, pid in own.items()
    }


@pytest.mark.promise("M15", "M21")
def test_a_hundred_thousand_calls_get_a_hundred_thousand_right_answers() -> None:
    names = [f"s{number:02}" for number in range(SERVERS)]
    with Gateway({name: fake("--era", "legacy") for name in names}) as gateway:
        warm = [Callers(gateway.port, names, callers=CALLERS, calls=WARM_UP) for _ in range(2)]
        for callers in warm:  # memory settles only when callers have come, gone and come again
            with callers:
                pass
        before = figures(gateway)
        with Callers(
            gateway.port, names, callers=CALLERS, calls=CALLS - 2 * WARM_UP, era=LEGACY
        ) as run:
            pass
        after = figures(gateway)
        assert [callers.tally.wrong for callers in (*warm, run)] == [[], [], []]
        assert sum(callers.tally.right for callers in (*warm, run)) == CALLS
        assert set(run.tally.per_server) == set(names)
        for name, (descriptors, memory) in after.items():
            assert descriptors <= before[name][0] * 1.05, f"{name} has more descriptors"
            assert memory <= before[name][1] * 1.05, f"{name} has grown"


@pytest.mark.promise("M1")
def test_callers_of_both_eras_share_the_servers() -> None:
    names = ["one", "two"]
    servers = {"one": fake("--era", "modern"), "two": fake("--era", "legacy")}
    with (
        Gateway(servers) as gateway,
        Callers(gateway.port, names, callers=16, calls=2000, era=MODERN) as modern,
        Callers(gateway.port, names, callers=16, calls=2000, era="2025-06-18") as legacy,
    ):
        pass
    assert modern.tally.wrong + legacy.tally.wrong == []
    assert (modern.tally.right, legacy.tally.right) == (2000, 2000)


@pytest.mark.promise("M70")
def test_an_idle_worker_is_small_and_ready_at_once() -> None:
    names = [f"s{number:02}" for number in range(SERVERS)]
    with Gateway({name: fake() for name in names}) as gateway:
        status = gateway.status()
        sizes = [processes.memory(server["worker_pid"]) for server in status["servers"]]
        assert max(sizes) <= 6 * 1024 * 1024, sizes
        assert os.path.exists(f"/proc/{status['nursery_pid']}")
