"""Latency of others' calls while code in sandboxes attacks the same gateway.

A server is called at a steady pace: while no code runs, beside busy loops, beside memory bombs, and
beside attacks of all kinds. Clients of `run_code` keep twice as many runs as run at once, so the
sandboxes are never idle. All in turns.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Generator, Sequence
from functools import partial

from benchmarks.figures import Bar, Effort, Row, Sample, Table, compared, most, percentile
from benchmarks.turns import in_turns
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.worker.sandbox.attacks import ENDLESS, HUNGRY, OTHERS

TITLE = "Calls of others while code attacks"
SECONDS, SECONDS_QUICK = 3, 1
CALL_S = 0.005
ATTACKERS = 4
BOMB_BAR, ATTACK_BAR = 2.0, 1.5
EXTRA = """
[code]
timeout = "1s"
runs_max = 2
[endpoints.default]
namespace = "default"
[endpoints.code]
namespace = "default"
exposure = "code"
"""
LOOPS = (ENDLESS["a loop"], ENDLESS["a loop after an await"])
EVERY = (*ENDLESS.values(), *HUNGRY.values(), *(code for code, _ in OTHERS.values()))
ROWS: dict[str, Sequence[str]] = {
    "no code": (),
    "busy loops": LOOPS,
    "memory bombs": tuple(HUNGRY.values()),
    "all attacks": EVERY,
}


def measure(effort: Effort) -> Table:
    seconds = effort.of(SECONDS, SECONDS_QUICK)
    with Gateway({"good": fake()}, extra=EXTRA) as gateway:

        def sample(codes: Sequence[str]) -> Sample:
            with attacked(gateway.port, codes):
                return called(gateway.port, seconds)

        rows = in_turns(
            {name: partial(sample, codes) for name, codes in ROWS.items()}, effort.rounds
        )
    return Table("attacks", TITLE, rows, tuple(bars(rows)), (f"Calls every {CALL_S} s.",))


def bars(rows: Sequence[Row]) -> list[Bar]:
    return [
        most(
            f"p99 beside {row.name}, against no code",
            compared(row, rows[0], "p99 ms"),
            BOMB_BAR if row.name == "memory bombs" else ATTACK_BAR,
        )
        for row in rows[1:]
    ]


def called(port: int, seconds: float) -> Sample:
    """Calls at a steady pace."""
    client, took = Client(port, MODERN), list[float]()
    pace, wrong = threading.Event(), 0
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        wrong += client.text("good__echo", text="a") != "a"
        took.append(time.perf_counter() - begin)
        pace.wait(max(0.0, CALL_S - took[-1]))
    client.close()
    return Sample(
        {"p99 ms": percentile(took, 0.99) * 1000, "p50 ms": percentile(took, 0.5) * 1000}, wrong
    )


@contextlib.contextmanager
def attacked(port: int, codes: Sequence[str]) -> Generator[None]:
    """Clients that send this code again and again, each one beginning at another place."""
    over = threading.Event()

    def attack(first: int) -> None:
        with contextlib.closing(Client(port, MODERN, "/metamcp/code/mcp")) as client:
            for code in itertools.islice(itertools.cycle(codes), first, None):
                if over.is_set():
                    return
                assert client.call("run_code", code=code)["result"]["isError"], code

    step = max(1, len(codes) // ATTACKERS)
    threads = [
        threading.Thread(target=attack, args=(number * step,))
        for number in range(ATTACKERS if codes else 0)
    ]
    for thread in threads:
        thread.start()
    if codes:
        over.wait(1.0)  # until sandboxes are there
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
