"""Tables on a terminal that is too narrow for them."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.figures import CallUnderWay
from tests.supervisor.cli.test_ctl import read_until
from tests.supervisor.small_gateway import server, steered

SCRIPT = """
from metamcp_supervisor.cli.show import PrintedTable, picture
columns = ("ENDPOINT", "EXPOSURE", "START", "SAVED", "ALL", "TOOLSET", "SERVERS", "SEARCH")
rows = [("default", "search", "107949", "107078", "107949", "770", "333", "871")]
picture(PrintedTable(columns, rows, right=frozenset(columns[2:]), sentences=False))
"""
BYTES_MAX = 65536


def test_a_number_is_never_broken_into_two() -> None:
    ours, its = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "57"}
    subprocess.run([sys.executable, "-c", SCRIPT], stdout=its, env=environ, check=True, timeout=60)
    os.close(its)
    shown = os.read(ours, BYTES_MAX).decode()
    os.close(ours)
    assert "SEARCH" not in shown  # its heading is: it is too narrow for all of them
    assert shown.split().count("107949") == 2
    assert {"107078", "770", "333", "871"} <= set(shown.split())


NARROW = 80
NAMES = ("sequential-thinking-of-the-whole-team", "git", "another-with-a-name")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def typed(directory: Path, words: str, end: str, key: str) -> list[str]:
    """What `metamcp ctl` shows on a terminal of NARROW columns, line by line. `key`: pressed once
    `end` is there."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, NARROW, 0, 0))
    environ = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
    where = ("ctl", "--runtime-dir", str(directory))
    process = subprocess.Popen(
        [sys.executable, "-m", "metamcp_supervisor", *where, *words.split()],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**environ, "TERM": "xterm-256color"},
    )
    os.close(its)
    with process:
        seen = read_until(ours, end.encode())
        os.write(ours, key.encode())
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(ours, BYTES_MAX):
                seen += more
    os.close(ours)
    return ESCAPES.sub("", seen.decode()).replace("\r", "").splitlines()


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "end", "key"),
    [
        ("status", "too narrow here for TOKENS", ""),
        ("top", "too narrow here for PROCS", "q"),
        ("views", "too narrow here for OF ALL", ""),
        ("calls", "too narrow here for FRONT", ""),
    ],
)
async def test_at_80_columns_no_name_is_broken_and_no_line_is_longer(
    words: str, end: str, key: str
) -> None:
    servers = [
        server(
            name, token_cost=104000, calls=123456, rss_bytes=80 << 20, up_s=9e4, tools=26,
            p95_s=0.084,
        )
        for name in NAMES
    ]  # fmt: skip
    broken = server("broken", "error", reason="exit", message="no repository here")
    async with steered(*servers, broken) as (gateway, directory):
        gateway.shown = tuple(
            ViewStats("default", "search", "local", name, name, 7, 871, 770, 107949)
            for name in NAMES
        )
        gateway.under_way = tuple(
            CallUnderWay(
                server=name, method="tools/call", name="think", endpoint="default", age_s=5.0,
                state="running", client="claude-code", session="", front="front-0",
                progress=False,
            )
            for name in NAMES
        )  # fmt: skip
        shown = await asyncio.to_thread(typed, directory, words, end, key)
    assert [line for line in shown if len(line.rstrip()) > NARROW] == []
    for name in NAMES:
        assert any(name in line.split() for line in shown), shown
