"""A reload under load: one server of twenty changes, and nobody notices but its process."""

from typing import Any

import pytest

from tests.live.client import LEGACY, MODERN
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

NAMES = [f"s{number:02}" for number in range(20)]


def servers(**changed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: changed.get(name, fake()) for name in NAMES}


def pids(gateway: Gateway) -> dict[str, int]:
    return {server["name"]: server["pid"] for server in gateway.status()["servers"]}


@pytest.mark.promise("M78")
@pytest.mark.parametrize(
    ("era", "served", "spares"),
    [(MODERN, "s07", 0), (MODERN, "s07", 1), (LEGACY, "s07@legacy", 0)],
)
def test_one_server_of_twenty_is_changed_without_a_failed_call(
    era: str, served: str, spares: int
) -> None:
    """`served`: the process that the callers meet."""
    old, new = {**fake(), "spares": spares}, {**fake("--tools", "3"), "spares": spares}
    with Gateway(servers(s07=old)) as gateway:
        tools = gateway.server("s07")["tools"]
        with Callers(gateway.port, NAMES, callers=16, era=era) as run:
            until(lambda: min(run.tally.per_server[name] for name in NAMES) > 9, "calls flow")
            before = pids(gateway)
            gateway.write(servers(s07=new))
            plan = gateway.ctl("reload")
            assert "s07" in plan
            assert "19 unchanged" in plan
            until(lambda: gateway.server(served)["tools"] == tools + 3, "the changed one runs")
            calls = run.tally.per_server["s07"]
            until(lambda: run.tally.per_server["s07"] > calls + 20, "it is called again")
            run.stop()
        after = pids(gateway)
        assert {name for name in before if before[name] != after[name]} == {"s07", served}
        assert (run.tally.wrong, dict(run.tally.errors), run.tally.broken) == ([], {}, 0)
