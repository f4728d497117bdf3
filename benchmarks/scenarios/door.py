"""Calls with a key, limits, an audit and TLS, beside calls without them; one key among many."""

import asyncio
import itertools
import json
import random
import ssl
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import load, rigs, roles
from benchmarks.figures import (
    Compared,
    Effort,
    Row,
    Sample,
    Table,
    compared,
    difference,
    least,
    most,
)
from benchmarks.load import Speech
from benchmarks.turns import in_turns
from metamcp_supervisor.keys import key_rules
from metamcp_supervisor.keys.key_rules import StoredKey
from metamcp_supervisor.store.database import DatabaseFile
from metamcp_worker.access import api_key
from metamcp_worker.access.door import AuthenticatedPrincipal, Authenticator, AuthRequest
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.key_table import KeyChanges, KeySpec
from metamcp_worker.ipc.spec import EndpointSpec
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway

TITLE = "An endpoint with a key, limits, an audit and TLS beside one without"
MANY, ONE = 64, 1
KEYS = 100_000
KEY_US_BAR = 5.0
ENTERED = 20_000
"""Requests in a round of `entered`."""
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
    crowded, keys = Gateway(servers, extra=EXTRA), effort.of(KEYS, 1000)
    first = kept(crowded.folder / "state", keys)
    with (
        crowded,
        Gateway(servers, extra=EXTRA) as gateway,
        Gateway(servers, extra=f"{EXTRA}[audit]\n") as audited,
        Gateway(servers, extra=TLS) as safe,
    ):
        key, same = made(gateway), made(audited)
        trusted = ssl.create_default_context(cafile=str(safe.folder / "state/tls/ca.pem"))
        said: dict[str, tuple[Gateway, Speech, ssl.SSLContext | None]] = {
            "no key": (gateway, spoken(gateway, "open"), None),
            "a key": (gateway, spoken(gateway, "keys", key), None),
            f"a key among {keys}": (crowded, spoken(crowded, "keys", first), None),
            "a key and limits": (gateway, spoken(gateway, "limits", key), None),
            "an audit": (audited, spoken(audited, "open"), None),
            "a key, limits and an audit": (audited, spoken(audited, "limits", same), None),
            "TLS": (safe, spoken(safe, "default"), trusted),
        }
        pids = {found.port: roles.of_gateway(found) for found in (gateway, crowded, audited, safe)}

        def sample(said: tuple[Gateway, Speech, ssl.SSLContext | None], callers: int) -> Sample:
            port = said[0].port  # all of them by Python, as TLS is
            call = partial(load.call_by_python, port, [said[1]], callers, effort.seconds, said[2])
            return roles.spent(pids[port], call).sample()

        rows = in_turns(
            {
                f"{what}, {callers}": partial(sample, found, callers)
                for callers in (MANY, ONE)
                for what, found in said.items()
            },
            effort.rounds,
        )
        held = memory(pids[gateway.port], pids[crowded.port])
    looked = in_turns(
        {f"the door, {count}": partial(entered, door_of(count)) for count in (0, 1, keys)},
        effort.of(10, 1),
    )
    whole, alone = rows[: len(said)], rows[len(said) :]
    bars = (
        least("calls/s with all of them, 64 callers", rate(whole[-2], whole[0]), RATE_BAR),
        least("calls/s over TLS, 64 callers", rate(whole[-1], whole[0]), TLS_RATE_BAR),
        most("p50 added by them at one caller", added(alone[-2], alone[0]), P50_MS_BAR, " ms"),
        most(
            f"a key among {keys}, in the door",
            looked[2]["us"] - looked[0]["us"],
            KEY_US_BAR,
            "us",
            absolute=True,
        ),
    )
    return Table("door", TITLE, (*rows, *looked), bars, (held,))


def memory(few: roles.Pids, many: roles.Pids) -> str:
    """What the keys of a gateway hold."""
    one, other = roles.pss_mib(few), roles.pss_mib(many)
    front, supervisor = (other[role] - one[role] for role in ("front", "supervisor"))
    return f"Many keys hold {front:.0f} MiB in a front and {supervisor:.0f} MiB in the supervisor."


def some_keys(count: int, pepper: bytes) -> dict[str, KeySpec]:
    """So many keys, always the same ones."""
    made_of = random.Random(count)
    found: dict[str, KeySpec] = {}
    for _ in range(count):
        key = api_key.make(made_of.randbytes(api_key.RANDOM_BYTES))
        name, digest = api_key.id_of(key), api_key.digest(pepper, key)
        found[key] = KeySpec(id=name, digest=digest, name=name, principal=name)
    return found


def kept(state: Path, count: int) -> str:
    """Put so many keys into the state directory of a gateway that does not run; one of them."""
    pepper = bytes(api_key.PEPPER_BYTES)
    state.mkdir(mode=0o700)
    (state / key_rules.PEPPER).touch(mode=0o600)
    (state / key_rules.PEPPER).write_text(pepper.hex())
    found = some_keys(count, pepper)
    stored = [StoredKey(spec=spec, created=time.time()) for spec in found.values()]
    rows = [(key.spec.id, codec.dump(key).decode()) for key in stored]

    async def write() -> None:
        database = DatabaseFile(state)
        await database.write(lambda to: to.change("INSERT INTO api_key VALUES (?, ?)", rows))
        await database.close()

    asyncio.run(write())
    return next(iter(found))


def door_of(count: int) -> tuple[Authenticator, Sequence[AuthRequest]]:
    """A door with so many keys, and requests with some of them; without keys it asks for none."""
    door, pepper = Authenticator(), bytes(api_key.PEPPER_BYTES)
    door.configure([EndpointSpec(name="dev", servers=(), auth=("keys",) if count else ())])
    found = some_keys(count, pepper)
    door.change(KeyChanges(pepper=pepper, whole=True, put=tuple(found.values())))
    others = [(b"host", b"localhost"), (b"accept", b"*/*"), (b"content-length", b"100")]
    headers = [[*others, (b"authorization", f"Bearer {key}".encode())] for key in found]
    return door, [AuthRequest("dev", some) for some in headers or [others]]


def entered(known: tuple[Authenticator, Sequence[AuthRequest]]) -> Sample:
    """Time of one request in the door, whose head did not come before on its connection."""
    door, arrivals = known
    asked = list(itertools.islice(itertools.cycle(arrivals), ENTERED))
    begin_s = time.perf_counter()
    found = [door.enter(arrival) for arrival in asked]
    took_s = time.perf_counter() - begin_s
    wrong = sum(not isinstance(one, AuthenticatedPrincipal) for one in found)
    return Sample({"us": took_s / ENTERED * 1e6}, wrong)


def rate(row: Row, beside: Row) -> Compared:
    return compared(row, beside, "calls/s")


def added(row: Row, beside: Row) -> Compared:
    return compared(row, beside, "p50 ms", difference)


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
