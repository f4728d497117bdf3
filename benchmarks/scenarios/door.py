"""Calls through an endpoint with keys, limits and an audit, against one without them."""

import json
import subprocess
from functools import partial
from typing import Any

from benchmarks import load, rigs, roles
from benchmarks.figures import Effort, Row, Sample, Table, least, most, ratio
from benchmarks.load import Speech
from benchmarks.turns import in_turns
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway

TITLE = "An endpoint with keys and limits beside one with neither"
MANY, ONE = 64, 1
RATE_BAR = 0.85
P50_MS_BAR = 0.06
EXTRA = """
[endpoints.open]
namespace = "default"
[endpoints.keys]
namespace = "default"
auth = "keys"
[endpoints.limits]
namespace = "default"
auth = "keys"
limits = { calls_per_minute = 100000000, in_flight = 100000, calls_per_day = 900000000 }
"""


def measure(effort: Effort) -> Table:
    with (
        Gateway({rigs.NAME: rigs.child()}, extra=EXTRA) as gateway,
        Gateway({rigs.NAME: rigs.child()}, extra=f"{EXTRA}[audit]\n") as audited,
    ):
        key, same = made(gateway), made(audited)
        said = {
            "no key": (gateway, spoken(gateway, "open")),
            "a key": (gateway, spoken(gateway, "keys", key)),
            "a key and limits": (gateway, spoken(gateway, "limits", key)),
            "an audit": (audited, spoken(audited, "open")),
            "a key, limits and an audit": (audited, spoken(audited, "limits", same)),
        }

        def sample(whole: tuple[Gateway, Speech], callers: int) -> Sample:
            at, speech = whole
            call = partial(load.call, at.port, [speech], callers, effort.seconds)
            return roles.spent(roles.of_gateway(at), call).sample()

        rows = in_turns(
            {
                f"{what}, {callers}": partial(sample, whole, callers)
                for callers in (MANY, ONE)
                for what, whole in said.items()
            },
            effort.rounds,
        )
    whole, alone = rows[: len(said)], rows[len(said) :]
    bars = (
        least("calls/s with all of them, 64 callers", rate(whole[-1], whole[0]), RATE_BAR),
        most("p50 added by them at one caller", added(alone[-1], alone[0]), P50_MS_BAR, " ms"),
    )
    return Table("door", TITLE, rows, bars)


def rate(row: Row, beside: Row) -> float:
    return ratio(row["calls/s"], beside["calls/s"])


def added(row: Row, beside: Row) -> float:
    return row["p50 ms"] - beside["p50 ms"]


def made(gateway: Gateway) -> str:
    """A new key."""
    command = [*gateway.command("keys"), "create", "bench", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return str(found["key"])


def spoken(gateway: Gateway, endpoint: str, key: str = "") -> Speech:
    client = Client(gateway.port, MODERN)
    name = f"{rigs.NAME}__echo"
    headers, meta = client.headers("tools/call", name), client.meta()
    if key:
        headers["Authorization"] = f"Bearer {key}"
    path = f"/metamcp/{endpoint}/mcp"
    return load.speech(gateway.port, headers, name, meta=meta, path=path)
