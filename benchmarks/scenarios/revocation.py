"""Ten thousand open streams of one API key: how soon all of them have ended when it is revoked.

Half of them are subscriptions of revision 2026-07-28, half are streams of sessions, over two
fronts. The clock begins when the order is sent over the control socket. `order ms` is its answer:
from then on no front accepts the key.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

from benchmarks import rigs, roles
from benchmarks.figures import Effort, Sample, Table, most, percentile
from benchmarks.scenarios.door import made
from benchmarks.turns import in_turns
from metamcp_supervisor import runtime
from metamcp_supervisor.control import client
from metamcp_worker.access import api_key
from tests.live.client import LEGACY, MODERN
from tests.live.crowd import Crowd, Ear
from tests.live.gateway import Gateway

TITLE = "A key is revoked that has ten thousand open streams"
STREAMS = 10_000
FILES = STREAMS + 1000
FRONTS = 2
ASKERS = 8
"""Connections that are used with the key before and after."""
P99_MS_BAR = 1000.0
ORDER_S_MAX = 15.0
EXTRA = f'[gateway]\nauth = "keys"\nfronts = {FRONTS}\n'


def measure(effort: Effort) -> Table:
    count = effort.of(STREAMS, 200)
    runtime.allow_files(FILES, ())
    with Gateway({rigs.NAME: rigs.child()}, extra=EXTRA) as gateway:
        rows = in_turns({f"{count} streams": partial(round_of, gateway, count)}, effort.rounds)
    what = f"p99 of the end of {count:,} streams"
    bar = most(what, rows[0]["p99 ms"], P99_MS_BAR, " ms", absolute=True)
    return Table("revocation", TITLE, rows, (bar,))


def round_of(gateway: Gateway, count: int) -> Sample:
    """One key, its streams, and its end. An answer is wrong where the key was accepted later."""
    key = made(gateway)
    askers = [Ear(gateway.port, LEGACY, "/mcp", key).opened() for _ in range(ASKERS)]
    ears = [Ear(gateway.port, (MODERN, LEGACY)[at % 2], "/mcp", key) for at in range(count)]
    with Crowd(ears) as crowd, ThreadPoolExecutor(1) as thread:
        open_mib = roles.pss_mib(roles.of_gateway(gateway))["front"]
        begin_s = time.perf_counter()
        order = thread.submit(revoke, gateway, api_key.id_of(key))
        crowd.hear(lambda ear: ear.ended_s > 0)
        answered_s = order.result()
    took_ms = [(ear.ended_s - begin_s) * 1000 for ear in ears]
    figures = {
        "p99 ms": percentile(took_ms, 0.99),
        "p50 ms": percentile(took_ms, 0.5),
        "worst ms": max(took_ms),
        "order ms": (answered_s - begin_s) * 1000,
        "front MiB": open_mib,
    }
    return Sample(figures, accepted(askers))


def revoke(gateway: Gateway, key_id: str) -> float:
    """The time of the answer, by the clock of `perf_counter`."""
    order = {"type": "Revoke", "key": key_id}
    with client.connect(str(gateway.folder / "run")) as control:
        control.call("keys-change", {"order": order}, timeout_s=ORDER_S_MAX)
    return time.perf_counter()


def accepted(askers: Sequence[Ear]) -> int:
    """How many of them are not refused. Too many failed credentials get 429."""
    found = 0
    for one in askers:
        with closing(one.sock):
            one.begin()
            found += one.answer().split(b" ", 2)[1] not in (b"401", b"429")
    return found
