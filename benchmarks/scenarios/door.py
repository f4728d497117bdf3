"""Calls with a key, limits, an audit and TLS, beside calls without them."""

import json
import ssl
import subprocess
from functools import partial
from typing import Any

from benchmarks import load, rigs, roles
from benchmarks.figures import Effort, Row, Sample, Table, least, most, ratio
from benchmarks.load import Speech
from benchmarks.turns import in_turns
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway

TITLE = "An endpoint with a key, limits, an audit and TLS beside one without"
MANY, ONE = 64, 1
RATE_BAR = 0.85
P50_MS_BAR = 0.06
TLS_RATE_BAR = 0.75
TLS = '[gateway]\ntls = "required"\n'
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
    servers = {rigs.NAME: rigs.child()}
    with (
        Gateway(servers, extra=EXTRA) as gateway,
        Gateway(servers, extra=f"{EXTRA}[audit]\n") as audited,
        Gateway(servers, extra=TLS) as safe,
    ):
        key, same = made(gateway), made(audited)
        trusted = ssl.create_default_context(cafile=str(safe.folder / "state/tls/ca.pem"))
        said: dict[str, tuple[Gateway, Speech, ssl.SSLContext | None]] = {
            "no key": (gateway, spoken(gateway, "open"), None),
            "a key": (gateway, spoken(gateway, "keys", key), None),
            "a key and limits": (gateway, spoken(gateway, "limits", key), None),
            "an audit": (audited, spoken(audited, "open"), None),
            "a key, limits and an audit": (audited, spoken(audited, "limits", same), None),
            "TLS": (safe, spoken(safe, "default"), trusted),
        }
        pids = {found.port: roles.of_gateway(found) for found in (gateway, audited, safe)}

        def sample(said: tuple[Gateway, Speech, ssl.SSLContext | None], callers: int) -> Sample:
            port = said[0].port
            call = partial(load.call, port, [said[1]], callers, effort.seconds, said[2])
            return roles.spent(pids[port], call).sample()

        rows = in_turns(
            {
                f"{what}, {callers}": partial(sample, found, callers)
                for callers in (MANY, ONE)
                for what, found in said.items()
            },
            effort.rounds,
        )
    whole, alone = rows[: len(said)], rows[len(said) :]
    bars = (
        least("calls/s with all of them, 64 callers", rate(whole[-2], whole[0]), RATE_BAR),
        least("calls/s over TLS, 64 callers", rate(whole[-1], whole[0]), TLS_RATE_BAR),
        most("p50 added by them at one caller", added(alone[-2], alone[0]), P50_MS_BAR, " ms"),
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
