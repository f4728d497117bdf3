"""The goals of calls: ratios of medians, stricter for a compiled gateway."""

from benchmarks.figures import Bar, Row
from benchmarks.machine import COMPILED, PURE
from benchmarks.scenarios import clients, ladder
from tests.benchmarks.values import row

BEST = {"ceiling": 40_000.0, "bare": 25_000.0, "legacy": 26_000.0, "modern": 24_000.0}
CPU_US = {"ceiling": 20.0, "bare": 33.0, "legacy": 30.0, "modern": 33.0}
P50_MS = {"ceiling": 0.100, "bare": 0.150, "legacy": 0.155, "modern": 0.160}


def rows(**other_cpu: float) -> list[Row]:
    cpu = {**CPU_US, **other_cpu}
    return [
        row(
            f"{name} {callers}",
            0,
            {"calls/s": rate, "cpu us/call": cpu[name], "p50 ms": P50_MS[name], "p99 ms": 0.3},
        )
        for callers in (1, 64)
        for name, rate in BEST.items()
    ]


def missed(bars: list[Bar]) -> list[str]:
    return [bar.what for bar in bars if not bar.met]


def test_a_pure_gateway_meets_goals_that_a_compiled_one_misses() -> None:
    assert missed(ladder.bars(rows(), ladder.GOALS[PURE])) == []
    assert missed(ladder.bars(rows(), ladder.GOALS[COMPILED])) == [
        "legacy: processor time of a call beside the ceiling at 64 callers",
        "legacy: calls/s beside the bare relay at 64 callers",
        "legacy: p50 above the ceiling at one caller",
        "legacy: calls/s beside the ceiling at 64 callers",
    ]


def test_the_modern_era_may_cost_little_more_than_the_legacy_one() -> None:
    (what,) = missed(ladder.bars(rows(modern=35.0), ladder.GOALS[PURE]))
    assert what == "modern: processor time of a call beside legacy at 64 callers"


def test_every_client_is_judged_beside_the_luckiest_of_its_era() -> None:
    cpu = {
        "ceiling": 20.0,
        "legacy, luckiest": 30.0,
        "legacy, other lengths": 34.0,
        "legacy, a traceparent": 36.0,
        "legacy, TLS": 60.0,
        "modern, luckiest": 20.0,
        "modern, a key": 34.0,
    }
    found = clients.bars([row(name, 0, {"cpu us/call": us}) for name, us in cpu.items()])
    assert [(bar.what.partition(":")[0], bar.limit) for bar in found] == [
        ("legacy, other lengths", 1.15),
        ("legacy, a traceparent", 1.2),
        ("modern, a key", 1.15),
    ]
    assert missed(found) == [
        f"modern, a key: processor time of a call beside the {clients.LUCKIEST}"
    ]
