"""SIGKILL a hundred times, to servers and to their workers: nothing piles up or is forgotten."""

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live import processes
from tests.live.gateway import Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SERVERS = 25
ROUNDS = ("pid", "worker_pid", "pid", "worker_pid")
DOWN, FULL = -10001, -10002


def counters(gateway: Gateway) -> dict[tuple[str, str], float]:
    """Every series that must never fall."""
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(gateway.ops("/metrics")[1])
        if family.type in {"counter", "histogram"}
        for sample in family.samples
    }


def restarts(gateway: Gateway) -> float:
    return sum(
        value
        for (name, _), value in counters(gateway).items()
        if name == "metamcp_server_restarts_total"
    )


def zombies(parents: set[int]) -> list[int]:
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) in parents:
                found.append(int(entry))
    return found


def kill_all(gateway: Gateway, field: str) -> None:
    """This process of every server; come back when all have another one."""
    old = {server["name"]: server for server in gateway.status()["servers"]}
    for server in old.values():
        os.kill(server[field], signal.SIGKILL)
    until(
        lambda: all(
            server["state"] == "active" and server["generation"] > old[server["name"]]["generation"]
            for server in gateway.status()["servers"]
        ),
        "all are back",
    )


def has_no_more(pid: int, targets: Counter[str]) -> bool:
    """Whether no descriptors were added. Those of files that a thread reads or writes come and go,
    so some may be missing."""
    return not processes.targets(pid) - targets


def test_a_hundred_kills_leave_no_descriptor_no_process_and_no_counter_that_fell() -> None:
    names = [f"s{number:02}" for number in range(SERVERS)]
    with Gateway({name: fake() for name in names}) as gateway:
        status = gateway.status()
        ours = [gateway.pid, status["nursery_pid"], status["fronts"][0]["pid"]]
        before = list(map(processes.targets, ours))
        alive = len(processes.below(gateway.pid))
        seen = counters(gateway)
        with Callers(gateway.port, names, callers=4, era="2026-07-28") as run:
            for field in ROUNDS:
                kill_all(gateway, field)
                now = counters(gateway)
                assert {series: seen[series] for series in seen if seen[series] > now[series]} == {}
                seen = now
        assert run.tally.wrong == []
        assert set(run.tally.errors) <= {DOWN, FULL}
        assert run.tally.right > 0
        until(lambda: len(processes.below(gateway.pid)) == alive, "as many processes as before")
        for pid, targets in zip(ours, before, strict=True):
            until(partial(has_no_more, pid, targets), f"process {pid} has no more than {targets}")
        until(lambda: not zombies(processes.below(gateway.pid) | {gateway.pid}), "no zombies")
        until(  # a page that took long on a busy machine is used for some seconds
            lambda: restarts(gateway) >= SERVERS * len(ROUNDS), "each restart is counted"
        )


def more(run: Callers, than: int) -> bool:
    return run.tally.right > than


def test_a_front_that_is_killed_takes_no_count_along() -> None:
    with Gateway({"one": fake()}) as gateway, Callers(gateway.port, ["one"], callers=4) as run:
        for _ in range(5):
            answered = run.tally.right
            until(partial(more, run, answered + 100), "calls are answered")
            os.kill(gateway.status()["fronts"][0]["pid"], signal.SIGKILL)
        answered = run.tally.right
        until(partial(more, run, answered + 10), "calls are answered again")
        run.stop()
        counted = until(
            lambda: (now := gateway.server("one"))["calls"] >= run.tally.right and now,
            "every answer is counted",
        )
        assert counted["errors"] <= 5 * 4, "at most the calls that were cut"
