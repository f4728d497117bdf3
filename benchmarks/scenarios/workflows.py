"""Journaled steps of workflows, at once and one after the other, and a list of many runs.

The process of the engine is the real one, with its journal on a disk; the front is here, and
answers each call at once. `full` and `normal` are the two values of `sync`, in turns.
"""

import contextlib
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.figures import Effort, Sample, Table, least, most, percentile
from benchmarks.turns import in_turns
from tests.worker.engine.engines import Engine, engine

TITLE = "Steps of workflows"
STEPS = 400
AT_ONCE = 16
KEPT, LISTS = 1000, 5
FULL_BAR, NORMAL_BAR, LIST_MS_BAR = 1000.0, 2000.0, 100.0


def measure(effort: Effort) -> Table:
    steps, kept = effort.of(STEPS, 10), effort.of(KEPT, 20)
    with contextlib.ExitStack() as open_:

        def started(sync: str) -> Engine:
            folder = open_.enter_context(tempfile.TemporaryDirectory())
            return open_.enter_context(engine(Path(folder), sync=sync, runs_max=64))

        full, normal, many = started("full"), started("normal"), started("normal")
        carried(many, 1, runs=kept)
        rows = in_turns(
            {
                "full, one run": partial(carried, full, steps),
                f"full, {AT_ONCE} runs": partial(carried, full, steps, runs=AT_ONCE),
                "normal, one run": partial(carried, normal, steps),
                f"normal, {AT_ONCE} runs": partial(carried, normal, steps, runs=AT_ONCE),
                f"a list of {kept} runs": partial(listed, many, kept),
            },
            effort.rounds,
        )
    bars = (
        least("steps/s of one run, full", rows[0]["steps/s"], FULL_BAR, "/s", absolute=True),
        least("steps/s of one run, normal", rows[2]["steps/s"], NORMAL_BAR, "/s", absolute=True),
        most(rows[4].name, rows[4]["p50 ms"], LIST_MS_BAR, " ms", absolute=True),
    )
    return Table("workflows", TITLE, rows, bars)


def carried(running: Engine, steps: int, *, runs: int = 1) -> Sample:
    """So many runs, all begun at once, of so many steps each."""
    calls = [{"call": "echo", "with": {"n": number}} for number in range(steps)]
    with contextlib.closing(running.peer()) as front:
        begin_s = time.perf_counter()
        orders = [
            front.order("workflow/run", definition={"name": "w", "steps": calls}, wait=True)
            for _ in range(runs)
        ]
        ended = [front.done(order) for order in orders]
        took_s = time.perf_counter() - begin_s
    wrong = sum(one is None or one.failed for one in ended)
    return Sample({"steps/s": runs * steps / took_s}, wrong + (len(front.asked) != runs * steps))


def listed(running: Engine, kept: int) -> Sample:
    took_ms: list[float] = []
    wrong = 0
    with contextlib.closing(running.peer()) as front:
        for _ in range(LISTS):
            begin_s = time.perf_counter()
            runs: list[object] = front.ask("workflow/runs", limit=kept)[0]["runs"]
            took_ms.append((time.perf_counter() - begin_s) * 1000)
            wrong += len(runs) != kept
    return Sample({"p50 ms": percentile(took_ms, 0.5)}, wrong)
