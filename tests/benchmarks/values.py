"""Results as the suite would find them, for tests of what is made of them."""

from benchmarks.figures import Figure, Result, Row, Table, least, most

MACHINE = {"cpu": "A processor", "cores": "2", "kernel": "Linux 6", "python": "3.11.7"}
BUILT = {"built": "--with-lto", "gateway": "compiled", "generator": "C"}
CALLERS = (1, 64)
ROWS = ("direct", "ceiling", "bare", "legacy", "modern", "rest", "sse", "connect")


def row(name: str, wrong: int, figures: dict[str, float]) -> Row:
    """In three rounds: a half of the figures, the figures, and twice as much."""
    found = {key: Figure(value, (value / 2, value, value * 2)) for key, value in figures.items()}
    return Row(name, found, 3, wrong)


def ladder(wrong: int = 0) -> Table:
    times = {"p50 ms": 0.05, "p99 ms": 0.5}
    rest = {**times, "cpu us/call": 30.0, "front us/call": 20.0, "worker us/call": 10.0}
    rows = [
        row(f"{name} {callers}", wrong, {"calls/s": 1000.0 * callers, **rest})
        for callers in CALLERS
        for name in ROWS
    ]
    bars = (least("fast", 0.8, 0.75), most("soon", 0.2, 0.09, "ms", absolute=True))
    return Table("ladder", "Callers", tuple(rows), bars, ("A sentence.",))


def memory() -> Table:
    parts = {"supervisor MiB": 20.0, "nursery MiB": 10.0, "front MiB": 12.0}
    rows = [
        row(
            f"{count} servers", 0, {"all MiB": 42.0 + 3 * count, **parts, "worker MiB": 3.0 * count}
        )
        for count in (0, 20)
    ]
    return Table("memory", "Memory", tuple(rows))


def growth() -> Table:
    rows = [
        row(f"{count} {kind}", 0, {"status ms": 60.0 + count, "scrape cpu ms": 1.0, "MiB": count})
        for kind in ("servers", "sessions")
        for count in (1, 300)
    ]
    return Table("growth", "Growth", tuple(rows))


def result(*tables: Table, quick: bool = False) -> Result:
    return Result(
        date="2026-11-22T12:00:00+00:00",
        commit="abc1234",
        quick=quick,
        seconds=2.0,
        floor={"before": 22_500.0, "after": 20_000.0},
        machine=MACHINE,
        versions={"metamcp": "0.1"},
        tables=tables,
    )
