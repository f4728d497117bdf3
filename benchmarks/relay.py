"""Calls per second and latency of the gateway, beside a bare relay and the child itself.

    python -m benchmarks.relay [--seconds 3] [--json]

Three rows, taken in turns so that whatever else the machine does hits them alike: `direct` calls
the child over its stdin, `bare` is `bare_relay.py`, `gateway` is `metamcp serve`. Only the ratios
mean anything on another machine. Exit code 1 if an answer was wrong or a bar is missed:
at 16 callers at least 0.50 of the bare relay's calls/s, at one caller an added p50 (above direct)
of at most 2 times the bare relay's.
"""

import argparse
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.direct import over_stdio
from benchmarks.load import Figures, over_http
from tests.live.client import LEGACY, Client
from tests.live.gateway import Gateway, free_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parent.parent
CHILD = [sys.executable, str(ROOT / "benchmarks" / "child.py")]
CALLERS = (1, 16, 64)
ROUNDS = 3
RATE_BAR, LATENCY_BAR = 0.50, 2.0


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def measure(seconds: float) -> dict[str, dict[int, list[Figures]]]:
    """Every row at every number of callers, ROUNDS times in turns."""
    bare_port = free_port()
    bare = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bare_relay", str(bare_port), *CHILD], cwd=ROOT
    )
    found: dict[str, dict[int, list[Figures]]] = {
        row: {callers: [] for callers in CALLERS} for row in ("direct", "bare", "gateway")
    }
    try:
        until(lambda: listening(bare_port), "the bare relay listens")
        with Gateway({"bench": {"command": CHILD}}) as gateway:
            client = Client(gateway.port, LEGACY)
            headers = {
                "Accept": "application/json, text/event-stream",
                "MCP-Protocol-Version": LEGACY,
                "Mcp-Session-Id": client.session or "",
            }
            rows: dict[str, Callable[[int], Figures]] = {
                "direct": lambda callers: over_stdio(CHILD, callers, seconds),
                "bare": lambda callers: over_http(bare_port, {}, "echo", callers, seconds),
                "gateway": lambda callers: over_http(
                    gateway.port, headers, "bench__echo", callers, seconds
                ),
            }
            for callers in CALLERS:
                for _ in range(ROUNDS):
                    for row, run in rows.items():
                        found[row][callers].append(run(callers))
            client.close()
    finally:
        bare.terminate()
        bare.wait(timeout=10)
    return found


def best(runs: list[Figures]) -> dict[str, float]:
    """The quietest of the rounds."""
    run = max(runs, key=lambda figures: figures.rate)
    return {
        "calls_per_s": round(run.rate),
        "p50_ms": round(run.percentile_ms(0.50), 4),
        "p99_ms": round(run.percentile_ms(0.99), 4),
        "wrong": sum(figures.wrong for figures in runs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="The relay, measured.")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found = {
        row: {str(callers): best(runs) for callers, runs in by_callers.items()}
        for row, by_callers in measure(options.seconds).items()
    }
    direct, bare, gateway = found["direct"], found["bare"], found["gateway"]
    rate = gateway["16"]["calls_per_s"] / bare["16"]["calls_per_s"]
    added = (gateway["1"]["p50_ms"] - direct["1"]["p50_ms"]) / (
        bare["1"]["p50_ms"] - direct["1"]["p50_ms"]
    )
    wrong = sum(figures["wrong"] for row in found.values() for figures in row.values())
    summary: dict[str, Any] = {
        "rows": found,
        "rate_ratio_at_16": round(rate, 3),
        "added_p50_ratio_at_1": round(added, 3),
    }
    if options.json:
        print(json.dumps(summary))
    else:
        print(f"{'':10}{'callers':>8}{'calls/s':>10}{'p50 ms':>10}{'p99 ms':>10}")
        for row, by_callers in found.items():
            for callers, figures in by_callers.items():
                print(
                    f"{row:10}{callers:>8}{figures['calls_per_s']:>10.0f}"
                    f"{figures['p50_ms']:>10.3f}{figures['p99_ms']:>10.3f}"
                )
        print(f"calls/s at 16 callers: {rate:.2f} of the bare relay (at least {RATE_BAR})")
        print(f"added p50 at 1 caller: {added:.2f} times the bare relay's (at most {LATENCY_BAR})")
    return 0 if not wrong and rate >= RATE_BAR and added <= LATENCY_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
