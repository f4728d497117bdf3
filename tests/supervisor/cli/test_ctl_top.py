"""`metamcp ctl top`: rates between two looks, one table in a pipe, a live one on a terminal."""

import asyncio
import json
import os
import pty

import pytest
from msgspec import structs

from metamcp_supervisor.cli import listings
from metamcp_supervisor.verbs import Exit, Footprint, ServerStatus, TopFigures
from tests.supervisor.cli.test_ctl import COMMAND, read_until, said
from tests.supervisor.small_gateway import SmallGateway, server, steered


def load(clock: float, *servers: ServerStatus, **footprints: Footprint) -> TopFigures:
    return TopFigures(clock=clock, status=SmallGateway(*servers).status(), footprints=footprints)


def used(cpu_s: float, rss_bytes: int = 0) -> Footprint:
    return Footprint(processes=2, rss_bytes=rss_bytes, cpu_s=cpu_s, descriptors=23)


def test_rates_are_what_happened_between_two_looks() -> None:
    before = load(10.0, server("git", calls=100, errors=3), git=used(1.0))
    now = load(12.0, server("git", calls=110, errors=4), git=used(1.5))
    (use,) = listings.uses(before, now)
    assert (use.calls_per_s, use.errors_per_s, use.cpu_percent) == (5.0, 0.5, 25.0)


def test_latency_is_that_of_the_calls_between_two_looks() -> None:
    bounds = (0.1, 0.2)
    before = load(10.0, server("git"), server("idle"))
    now = load(12.0, server("git"), server("idle"))
    before = structs.replace(before, latencies={"git": (900, 0, 0)}, bounds_s=bounds)
    now = structs.replace(now, latencies={"git": (900, 20, 0)}, bounds_s=bounds)
    git, idle = listings.uses(before, now)
    assert git.p95_s == pytest.approx(0.195)
    assert idle.p95_s is None


def test_a_restart_between_two_looks_gives_no_negative_rate() -> None:
    before = load(10.0, server("git", calls=100, errors=3), git=used(9.0))
    now = load(12.0, server("git", calls=0), server("new", calls=50), git=used(0.1), new=used(7.0))
    assert [(use.calls_per_s, use.cpu_percent) for use in listings.uses(before, now)] == [
        (0, 0)
    ] * 2


def test_memory_is_the_share_of_a_server_as_status_shows_it_once_that_is_known() -> None:
    servers = server("new"), server("git", memory_bytes=3 << 20)
    now = load(1.0, *servers, git=used(0.0, 9 << 20), new=used(0.0, 5 << 20))
    rows = {row[0]: row for row in listings.picture(now, now, "m").rows}
    assert list(rows) == ["new", "git"]
    assert {"5.0M", "3.0M"} <= {*rows["new"], *rows["git"]}


@pytest.mark.parametrize(("key", "first"), [("c", "a"), ("m", "b"), ("n", "c"), ("e", "d")])
def test_every_key_sorts_by_its_column(key: str, first: str) -> None:
    names = "abcd"
    before = load(0.0, *map(server, names), **{name: used(0.0) for name in names})
    now = load(
        1.0,
        *(server(name, calls=9 * (name == "c"), errors=9 * (name == "d")) for name in names),
        **{name: used(float(name == "a"), 9 * (name == "b")) for name in names},
    )
    shown = listings.picture(before, now, key)
    assert shown.rows[0][0] == first
    assert f"{listings.KEYS[key]}↓" in shown.columns


@pytest.mark.process
@pytest.mark.promise("M80")
async def test_in_a_pipe_there_is_one_table_of_what_is_used_now() -> None:
    git = server("git", worker_pid=os.getpid(), calls=7)
    async with steered(git, server("off", "stopped")) as (_, directory):
        code, out, err = await said(directory, "top", "--every", "50ms")
        raw = json.loads((await said(directory, "top", "--json"))[1])
    assert (code, err) == (0, "")
    _, titles, *rows = out.splitlines()
    assert titles.split()[:3] == ["SERVER", "STATE", "CALLS/S"]
    assert rows[0].split()[:3] == ["git", "ready", "0.0"]
    assert rows[1].split() == [
        "off",
        "stopped",
        "0.0",
        "0.0",
        "0",
        "-",
        "0.0",
        "-",
        "-",
        "-",
        "0",
    ]
    assert raw["footprints"]["git"]["rss_bytes"] > 0
    assert raw["footprints"]["git"]["descriptors"] > 0


@pytest.mark.process
async def test_on_a_terminal_it_goes_on_until_q() -> None:
    async with steered(server("git"), server("fs", "warming")) as (gateway, where):
        ours, its = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--runtime-dir", str(where), "top", "--every", "50ms"),
            stdin=its,
            stdout=its,
            stderr=its,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"},
        )
        os.close(its)
        await asyncio.to_thread(read_until, ours, "CPU%↓".encode())
        os.write(ours, b"m")
        await asyncio.to_thread(read_until, ours, "MEM↓".encode())
        gateway.become("fs", "error")
        await asyncio.to_thread(read_until, ours, b"error")
        os.write(ours, b"q")
        await asyncio.to_thread(read_until, ours, b"\x1b[?1049l")  # the screen of before
        assert await process.wait() == Exit.OK
        os.close(ours)
