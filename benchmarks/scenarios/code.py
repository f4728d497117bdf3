"""Runs of code in their sandboxes: what waiting ones are worth, and calls that run together.

The process of the sandboxes is the real one, with the real Deno; the front is here. A call of a run
is answered 50 ms after it has come.
"""

import heapq
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.figures import Effort, Sample, Table, most, percentile, ratio
from benchmarks.turns import in_turns
from metamcp_worker.ipc.code_runs import HostCall, HostReply, RunEnded
from tests.worker.sandbox.sandboxes import Front, Sandboxes, sandboxes, text_result

TITLE = "Code runs in sandboxes"
RUNS = 30
CALLS = 20
CALL_S = 0.05
TOGETHER_BAR = 1.3
WARM_BAR = 0.6
PAUSE_S = 0.1
"""Seconds between two runs, in which the next sandbox starts."""
SHORT = "return 1;"
CALLING = "await Promise.all(Array.from({ length: args }, () => mcp.call('x'))); return 1;"


def measure(effort: Effort) -> Table:
    count = effort.of(RUNS, 3)
    with (
        tempfile.TemporaryDirectory() as warm,
        tempfile.TemporaryDirectory() as cold,
        sandboxes(Path(warm)) as waiting,
        sandboxes(Path(cold), warm=0) as none,
    ):
        rows = in_turns(
            {
                "short, a sandbox waits": partial(round_of, waiting, count, SHORT, 0),
                "short, none waits": partial(round_of, none, count, SHORT, 0),
                "one call of 50 ms": partial(round_of, waiting, count, CALLING, 1),
                f"{CALLS} such calls": partial(round_of, waiting, count, CALLING, CALLS),
            },
            effort.rounds,
        )
    p50 = [row["p50 ms"] for row in rows]
    early = most("a run whose sandbox waits, beside one without", ratio(p50[0], p50[1]), WARM_BAR)
    together = most(f"{CALLS} calls at once, beside one", ratio(p50[3], p50[2]), TOGETHER_BAR)
    return Table("code", TITLE, rows, (early, together))


def round_of(running: Sandboxes, count: int, code: str, calls: int) -> Sample:
    """So many runs, one after the other. A run that did not return its value is wrong."""
    front = running.front()
    front.run(SHORT)
    took_ms: list[float] = []
    wrong = 0
    for _ in range(count):
        time.sleep(PAUSE_S)
        begin_s = time.perf_counter()
        ended = answered(front, front.start(code, args=calls))
        took_ms.append((time.perf_counter() - begin_s) * 1000)
        wrong += ended.failure != "" or ended.calls != calls
    return Sample({"p50 ms": percentile(took_ms, 0.5), "p99 ms": percentile(took_ms, 0.99)}, wrong)


def answered(front: Front, run: int) -> RunEnded:
    """The end of a run whose calls are answered in time."""
    due: list[tuple[float, int]] = []
    while True:
        left_s = max(0.0, due[0][0] - time.perf_counter()) if due else 1.0
        match front.message(left_s):
            case HostCall() as call:
                heapq.heappush(due, (time.perf_counter() + CALL_S, call.call))
            case RunEnded() as ended:
                return ended
            case _:
                pass
        while due and due[0][0] <= time.perf_counter():
            _, number = heapq.heappop(due)
            front.send(HostReply(run=run, call=number, result=text_result("1")))
