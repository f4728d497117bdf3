"""A gateway with nothing to do takes next to no processor time, however many servers it has."""

import pytest

from benchmarks import idle
from tests.waiting import until

pytestmark = pytest.mark.live

WINDOW_S = 5.0
WAIT_S = 40.0
BUDGETS = {1: 2.0, 60: 8.0}
"""Milliseconds of processor time in one second, by number of servers: one and a half to two times
that of such a gateway, because other tests empty the caches of the processor."""


@pytest.mark.parametrize(("servers", "budget"), BUDGETS.items())
def test_a_gateway_with_nothing_to_do_keeps_its_budget_of_processor_time(
    servers: int, budget: float
) -> None:
    with idle.ready(servers) as gateway:
        until(
            lambda: sum(idle.idle_ms_per_s(gateway, WINDOW_S).values()) <= budget,
            f"{servers} servers take {budget:g} ms in a second",
            WAIT_S,
        )
