"""Latency of others' calls while code in sandboxes, or a hostile server, attacks the same gateway.

A server is called at a steady pace: while no code runs, beside busy loops, beside memory bombs, and
beside attacks of all kinds. Clients of `run_code` keep twice as many runs as run at once, so the
sandboxes are never idle. One client calls a hostile server in the profile `basic`, which then makes
one attack again and again. All in turns.
"""

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Generator, Sequence
from functools import partial

from benchmarks.figures import Bar, Effort, Row, Sample, Table, compared, most, percentile
from benchmarks.turns import in_turns
from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.worker.sandbox.attacks import ENDLESS, HUNGRY, OTHERS

TITLE = "Calls of others while code or a server attacks"
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
HOSTILE = {
    "command": [sys.executable, str(ROOT / "tests" / "fakes" / "hostile_server.py")],
    "disk_max": "256M", "restarts_max": 100,
}  # fmt: skip
HUNGRY_SERVER = {**fake(), "memory_max": "200M", "restarts_max": 100}
BY_SERVERS: dict[str, tuple[str, dict[str, object]]] = {
    "a fork storm": ("hostile__bomb", {}),
    "a filler of the disk": ("hostile__fill", {"mib": 1024}),
    "limits put on others": ("hostile__choke", {}),
    "a hungry server": ("hungry__leak", {"mib": 512}),
}
"""Tool of each attack, and its arguments; `choke` gets the processes of the gateway."""
PAUSE_S = 0.05
"""Seconds from one attack of a server to the next."""


def measure(effort: Effort) -> Table:
    seconds = effort.of(SECONDS, SECONDS_QUICK)
    servers = {"good": fake(), "hostile": HOSTILE, "hungry": HUNGRY_SERVER}
    with Gateway(servers, extra=EXTRA) as gateway:

        def sample(codes: Sequence[str]) -> Sample:
            with attacked(gateway.port, codes):
                return called(gateway.port, seconds)

        def beside(tool: str, arguments: dict[str, object]) -> Sample:
            with attacked_by_a_server(gateway, tool, arguments):
                return called(gateway.port, seconds)

        by_code = {name: partial(sample, codes) for name, codes in ROWS.items()}
        by_servers = {name: partial(beside, *attack) for name, attack in BY_SERVERS.items()}
        rows = in_turns({**by_code, **by_servers}, effort.rounds)
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


@contextlib.contextmanager
def attacked_by_a_server(
    gateway: Gateway, tool: str, arguments: dict[str, object]
) -> Generator[None]:
    """A client that calls this tool again and again."""
    over = threading.Event()
    given = {"pids": sorted(gateway.left())} if tool.endswith("choke") else arguments

    def attack() -> None:
        while not over.is_set():
            with contextlib.closing(Client(gateway.port, MODERN)) as client:
                client.call(tool, **given)  # answered, or its server is killed
            over.wait(PAUSE_S)

    thread = threading.Thread(target=attack)
    thread.start()
    over.wait(1.0)  # until it is under way
    try:
        yield
    finally:
        over.set()
        thread.join()
