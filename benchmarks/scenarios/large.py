"""Large results and large arguments: how many MiB per second get through, and what one costs.

Arguments of 1 MB stand beside a bare parse of the same request in this process, by the libraries
that the gateway uses: httptools for HTTP, msgspec for the message and its params.
"""

import time
from collections.abc import Callable
from functools import partial

import httptools
import msgspec
from msgspec import Raw, Struct

from benchmarks import direct, load, rigs, roles
from benchmarks.figures import Effort, Row, Sample, Table, compared, least, most
from benchmarks.load import Speech
from benchmarks.machine import CHILD
from benchmarks.roles import Spent
from benchmarks.turns import in_turns
from tests.live.gateway import Gateway

TITLE = "Large results and large arguments"
SIZES = {"1 MiB": 1024, "16 MiB": 16 * 1024 - 64}
"""In KiB. A message may have 16 MiB with everything in it."""
CALLERS = 4
RATE_BAR = 400.0
ARGUMENTS_BYTES = 1_000_000
ARGUMENTS = "legacy, arguments of 1 MB"
PARSED = "a bare parse of them"
ARGUMENTS_BAR = 3.2
FRONT = "front ms/MiB"
READ_BYTES = 1 << 18


def measure(effort: Effort) -> Table:
    sizes = {"1 MiB": 1024} if effort.quick else SIZES
    with Gateway({rigs.NAME: rigs.child()}) as gateway:
        pids = roles.of_gateway(gateway)

        def through(kib: int) -> Sample:
            said = [rigs.legacy(gateway, "blob", kib=kib)]
            return _sample(
                roles.spent(
                    pids, lambda: load.call(gateway.port, said, CALLERS, effort.seconds)
                ),
                kib,
            )  # fmt: skip

        def straight(kib: int) -> Sample:
            with direct.started(CHILD, hello=True) as child:
                line = direct.line("blob", f'"kib":{kib}')
                found = direct.over_pipes(child, line, CALLERS, effort.seconds)
            return _sample(Spent(found, {}), kib)

        turns: dict[str, Callable[[], Sample]] = {}
        for name, kib in sizes.items():
            turns[f"direct {name}"] = partial(straight, kib)
            turns[f"legacy {name}"] = partial(through, kib)
        rows = [*in_turns(turns, effort.rounds), *arguments(gateway, pids, effort)]
    table = Table("large", TITLE, tuple(rows))
    rate = table.row("legacy 1 MiB")["MiB/s"]
    parsing = compared(table.row(ARGUMENTS), table.row(PARSED), FRONT)
    bars = (
        least("results of 1 MiB", rate, RATE_BAR, "MiB/s", absolute=True),
        most("arguments of 1 MB: the front beside a bare parse", parsing, ARGUMENTS_BAR),
    )
    return Table("large", TITLE, table.rows, bars, (f"{CALLERS} callers of the gateway.",))


def arguments(gateway: Gateway, pids: roles.Pids, effort: Effort) -> tuple[Row, ...]:
    padding = load.PADDING * (ARGUMENTS_BYTES // len(load.PADDING))
    said = rigs.legacy(gateway, padding=padding)
    kib = ARGUMENTS_BYTES / 1024

    def through() -> Sample:
        run = partial(load.call, gateway.port, [said], CALLERS, effort.seconds)
        return _sample(roles.spent(pids, run), kib)

    turns: dict[str, Callable[[], Sample]] = {
        ARGUMENTS: through,
        PARSED: partial(parsed, said, kib, effort.seconds),
    }
    return in_turns(turns, effort.rounds)


class Message(Struct):
    id: Raw
    method: str
    params: Raw


class Params(Struct):
    name: str
    arguments: Raw


class Body:
    """What httptools tells of a request: the parts of its body."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)


def parsed(said: Speech, kib: float, seconds: float) -> Sample:
    """The same request again and again, in reads of the size that a front makes."""
    whole = said.request(1, b"T0-1T")
    reads = [whole[at : at + READ_BYTES] for at in range(0, len(whole), READ_BYTES)]
    message_of = msgspec.json.Decoder(Message).decode
    params_of = msgspec.json.Decoder(Params).decode
    count, wrong, begin_s = 0, 0, time.thread_time()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        body = Body()
        parser = httptools.HttpRequestParser(body)
        for read in reads:
            parser.feed_data(read)
        params = params_of(message_of(b"".join(body.parts)).params)
        wrong += len(memoryview(params.arguments)) < ARGUMENTS_BYTES
        count += 1
    each_s = (time.thread_time() - begin_s) / count
    mib = kib / 1024
    return Sample({"MiB/s": mib / each_s, FRONT: each_s / mib * 1000}, wrong)


def _sample(spent: Spent, kib: float) -> Sample:
    mib = spent.figures.calls * kib / 1024
    found = {"MiB/s": mib / spent.figures.seconds, "p50 ms": spent.figures.percentile_ms(0.5)}
    if spent.cpu_s:
        found["cpu ms/MiB"] = spent.all_cpu_s / mib * 1000
        found |= {
            f"{role} ms/MiB": spent.cpu_s[role] / mib * 1000 for role in ("front", "worker")
        }  # fmt: skip
    return Sample(found, spent.figures.wrong)
