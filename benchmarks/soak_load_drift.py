"""Did latency drift from the first window of a soak to its last? Pure.

Owns: windows, percentiles, the bar. Never: measuring, clocks.

Beside the gateway a server is called straight over its pipes by the same loop. What that one drifts
by is the machine's doing, or the callers' own: only what goes beyond it is the gateway's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import percentile

WINDOW_S_MAX = 60.0
WINDOWS_MIN = 3
"""So many would have to fit in, or the windows are shorter."""
JUDGED_S_MIN = 300.0
"""In a shorter run the windows are too short for a p99 to mean anything."""
DRIFT_MAX = 1.1
SHARES = {"p50": 0.50, "p99": 0.99}

Taken = Sequence[tuple[float, float]]
"""(moment, seconds) of each answer."""


@dataclass(frozen=True, slots=True)
class Window:
    calls: int
    ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Drift:
    """The first window and the last, of the gateway and of the server beside it."""

    window_s: float
    first: Window
    last: Window
    floor_first: Window
    floor_last: Window

    def of_gateway(self, share: str) -> float:
        return self.last.ms[share] / self.first.ms[share]

    def of_floor(self, share: str) -> float:
        return self.floor_last.ms[share] / self.floor_first.ms[share]

    def problems(self) -> list[str]:
        return [
            f"{share} of the last {self.window_s:.0f} s is {self.of_gateway(share):.2f} times that"
            f" of the first, and {self.of_floor(share):.2f} times without a gateway"
            for share in SHARES
            if self.of_gateway(share) > DRIFT_MAX * max(1.0, self.of_floor(share))
        ]

    def words(self) -> list[str]:
        head = f"| first and last {self.window_s:.0f} s | calls | p50 ms | p99 ms |"
        rows = [
            ("through the gateway", self.first, self.last, self.of_gateway),
            ("straight to a server", self.floor_first, self.floor_last, self.of_floor),
        ]
        return [
            head,
            "|---|---|---|---|",
            *(
                f"| {name} | {first.calls} → {last.calls} | "
                + " | ".join(
                    f"{first.ms[share]:.3f} → {last.ms[share]:.3f} ({ratio(share):.2f}x)"
                    for share in SHARES
                )
                + " |"
                for name, first, last, ratio in rows
            ),
        ]


def drift(gateway: Taken, floor: Taken, begin: float, end: float) -> Drift:
    """Between two moments. Each window has to have answers of both."""
    window_s = min(WINDOW_S_MAX, (end - begin) / WINDOWS_MIN)
    return Drift(
        window_s,
        window(gateway, begin, begin + window_s),
        window(gateway, end - window_s, end),
        window(floor, begin, begin + window_s),
        window(floor, end - window_s, end),
    )


def window(taken: Taken, begin: float, end: float) -> Window:
    found = [took * 1000 for at, took in taken if begin <= at < end]
    return Window(len(found), {name: percentile(found, share) for name, share in SHARES.items()})
