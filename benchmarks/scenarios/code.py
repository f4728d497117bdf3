"""Runs of code in their sandboxes: beside the engine alone, with calls together, and many of them.

The process of the sandboxes is the real one, with the real Deno; the front is here. A call of a run
is answered 50 ms after it has come.
"""

import heapq
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

from benchmarks.figures import Effort, Sample, Table, compared, least, most, percentile
from benchmarks.turns import in_turns
from metamcp_worker.ipc.code_runs import CodeLimits, HostCall, HostReply, RunEnded, StartRun
from metamcp_worker.sandbox import code_run, sandbox_process
from metamcp_worker.sandbox.code_run import CodeRun, FrameBuffer
from metamcp_worker.sandbox.sandbox_process import DenoSpec
from tests.worker.sandbox.sandboxes import DENO, WAIT_S, Front, Sandboxes, sandboxes, text_result

TITLE = "Code runs in sandboxes"
RUNS = 30
CALLS = 20
CALL_S = 0.05
TOGETHER_MS_BAR = 65.0
WARM_BAR = 0.6
OVER_ENGINE_MS_BAR = 5.0
MANY, AT_ONCE, MANY_CALLS = 100, 8, 4
MANY_BAR = 60.0
"""Runs per second."""
PAUSE_S = 0.1
"""Seconds between two runs, in which the next sandbox starts."""
SHORT = "return 1;"
CALLING = "await Promise.all(Array.from({ length: args }, () => mcp.call('x'))); return 1;"
BOOT = Path(sandbox_process.__file__).with_name("boot.js")


def measure(effort: Effort) -> Table:
    count, many = effort.of(RUNS, 3), effort.of(MANY, 10)
    with (
        sandboxes() as waiting,
        sandboxes(warm=0, runs_max=AT_ONCE) as none,
    ):
        rows = in_turns(
            {
                "short, the engine alone": partial(alone, count),
                "short, a sandbox waits": partial(round_of, waiting, count, SHORT, 0),
                "short, none waits": partial(round_of, none, count, SHORT, 0),
                "one call of 50 ms": partial(round_of, waiting, count, CALLING, 1),
                f"{CALLS} such calls": partial(round_of, waiting, count, CALLING, CALLS),
                f"{MANY_CALLS} such calls, {AT_ONCE} at once": partial(crowd, none, many),
            },
            effort.rounds,
        )
    engine, early, _, _, together = (row["p50 ms"] for row in rows[:-1])
    bars = (
        most(
            "a run whose sandbox waits, beside one without",
            compared(rows[1], rows[2], "p50 ms"),
            WARM_BAR,
        ),
        most("added to the engine alone", early - engine, OVER_ENGINE_MS_BAR, " ms"),
        most(f"{CALLS} calls of 50 ms at once", together, TOGETHER_MS_BAR, " ms"),
        least(f"runs of {MANY_CALLS} calls", rows[-1]["runs/s"], MANY_BAR, "/s", absolute=True),
    )
    return Table("code", TITLE, rows, bars)


def alone(count: int) -> Sample:
    """A program that Deno has already started for, and no process of the gateway."""
    took_ms: list[float] = []
    wrong = 0
    for _ in range(count):
        ours, theirs = socket.socketpair()
        command = DenoSpec(DENO, CodeLimits().memory_bytes, -1).command[:-1]
        with (
            ours,
            theirs,
            subprocess.Popen(
                [*command, str(BOOT)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env={"DENO_DIR": "/dev/null/deno", "DENO_EMIT_CACHE_MODE": "disable"},
            ) as process,
        ):
            ours.settimeout(WAIT_S)
            frames = FrameBuffer(1 << 20)
            code_run.check_ready(received(ours, frames))
            time.sleep(PAUSE_S)
            begin_s = time.perf_counter()
            ours.sendall(CodeRun(StartRun(run=1, code=SHORT)).begin())
            wrong += b"GuestValue" not in received(ours, frames)
            took_ms.append((time.perf_counter() - begin_s) * 1000)
            process.kill()
    return Sample({"p50 ms": percentile(took_ms, 0.5), "p99 ms": percentile(took_ms, 0.99)}, wrong)


def received(sock: socket.socket, frames: FrameBuffer) -> bytes:
    """The next frame of a guest."""
    while not (found := frames.feed(sock.recv(1 << 16))):
        pass
    return found[0]


def crowd(running: Sandboxes, count: int) -> Sample:
    """So many runs with calls, and as many at once as may be."""
    front = running.front()
    begin_s = time.perf_counter()
    for _ in range(count):
        front.start(CALLING, args=MANY_CALLS)
    ended = answered(front, count)
    wrong = sum(one.failure != "" or one.calls != MANY_CALLS for one in ended)
    return Sample({"runs/s": count / (time.perf_counter() - begin_s)}, wrong)


def round_of(running: Sandboxes, count: int, code: str, calls: int) -> Sample:
    """So many runs, one after the other. A run that did not return its value is wrong."""
    front = running.front()
    front.run(SHORT)
    took_ms: list[float] = []
    wrong = 0
    for _ in range(count):
        time.sleep(PAUSE_S)
        begin_s = time.perf_counter()
        front.start(code, args=calls)
        (ended,) = answered(front, 1)
        took_ms.append((time.perf_counter() - begin_s) * 1000)
        wrong += ended.failure != "" or ended.calls != calls
    return Sample({"p50 ms": percentile(took_ms, 0.5), "p99 ms": percentile(took_ms, 0.99)}, wrong)


def answered(front: Front, runs: int) -> list[RunEnded]:
    """The ends of so many runs whose calls are answered in time."""
    due: list[tuple[float, int, int]] = []
    found: list[RunEnded] = []
    while len(found) < runs:
        left_s = max(0.0, due[0][0] - time.perf_counter()) if due else 1.0
        match front.message(left_s):
            case HostCall() as call:
                heapq.heappush(due, (time.perf_counter() + CALL_S, call.run, call.call))
            case RunEnded() as ended:
                found.append(ended)
            case _:
                pass
        while due and due[0][0] <= time.perf_counter():
            _, run, number = heapq.heappop(due)
            front.send(HostReply(run=run, call=number, result=text_result("1")))
    return found
