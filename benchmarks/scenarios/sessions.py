"""Ten thousand sessions open at once: what one of them holds, and what calls cost among them."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from benchmarks import load, rigs, roles
from benchmarks.figures import Effort, Row, Sample, Table, percentile
from benchmarks.load import Speech
from benchmarks.turns import in_turns
from tests.live.client import LEGACY, Client
from tests.live.gateway import Gateway

TITLE = "Ten thousand sessions"
SESSIONS = 9_990
"""A gateway keeps 10,000."""
USED = 64
"""Of them, callers go from one to the next."""
CALLERS = 16


def measure(effort: Effort) -> Table:
    count = effort.of(SESSIONS, 200)
    with Gateway({rigs.NAME: rigs.child()}) as gateway:
        pids = roles.of_gateway(gateway)

        def calls(said: list[Speech]) -> Sample:
            return roles.spent(
                pids, lambda: load.call(gateway.port, said, CALLERS, effort.seconds)
            ).sample()

        alone = [rigs.legacy(gateway)]
        rows = list(in_turns({"one session": lambda: calls(alone)}, effort.rounds))
        before = roles.pss_mib(pids)
        opened = list(islice(sessions(gateway.port), count))
        after = roles.pss_mib(pids)
        said = [spoken(gateway.port, word) for word, _ in opened[:: max(1, count // USED)]]
        rows += in_turns({f"among {count}": lambda: calls(said)}, effort.rounds)
        held = {role: (after[role] - used) / count * 1024 for role, used in before.items()}
        took_ms = [ms for _, ms in opened]
        grown = {
            "front KiB": held["front"],
            "supervisor KiB": held["supervisor"],
            "open p50 ms": percentile(took_ms, 0.5),
            "open p99 ms": percentile(took_ms, 0.99),
        }
    rows += in_turns({f"each of {count}": lambda: Sample(grown)}, 1)
    return Table("sessions", TITLE, tuple(rows), (), (_compared(rows),))


def _compared(rows: list[Row]) -> str:
    share = rows[1]["calls/s"] / rows[0]["calls/s"]
    return f"With all of them open there are {share:.2f} times the calls/s of one session."


def sessions(port: int, path: str = "/mcp") -> Iterator[tuple[str, float]]:
    """New sessions without end, over one connection: their ids, and ms until each was open."""
    with closing(Client(port, LEGACY, path)) as client:
        while True:
            begin = time.perf_counter()
            session = opened(client)
            yield session, (time.perf_counter() - begin) * 1000


def opened(client: Client) -> str:
    client.session = None
    about = {"clientInfo": {"name": "bench", "version": "1"}, "capabilities": {}}
    client.request("initialize", {"protocolVersion": LEGACY, **about})
    client.post(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode())
    return client.session or ""


def spoken(port: int, session: str) -> Speech:
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": LEGACY,
        "Mcp-Session-Id": session,
    }
    return load.speech(port, headers, f"{rigs.NAME}__echo")
