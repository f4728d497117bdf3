"""What a gateway keeps once, it keeps before it is looked at for the first time.

Owns: filling what is bounded (logs, journal, threads, peaks of memory), one of most kinds of
faults. Never: the first look (`soak`).
"""

import asyncio
from random import Random

from metamcp_supervisor.control import client
from metamcp_supervisor.telemetry.journal import EVENTS_MAX
from tests.faults.soak_gateway import Soaked
from tests.faults.soak_plan import Fault, bystanders
from tests.live.client import MODERN, Client

KINDS = (
    "exit", "kill-child", "flood", "burst", "noise", "late", "ctl-restart", "kill-worker", "burst",
)  # fmt: skip
LINES = 950
"""Of noise at once: nearly what a server may write in a second."""
LINES_IN_LOGS = 5200
"""Short ones in the log of one server, when it is full."""
DESCRIPTIONS = 16
"""At the same time: more than the supervisor has threads."""
PEAK_S = 2.5
"""Nobody is answered for so long, and everybody waits."""
LINES_EACH = 10
GUEST_S = 1.0


async def remember(gateway: Soaked) -> None:
    """Fill the logs of all servers and the journal, and make as many threads as there will ever
    be."""
    await asyncio.to_thread(_order, gateway)
    await asyncio.gather(*(asyncio.to_thread(_chatter, gateway.port, n) for n in gateway.names))
    describing = (asyncio.to_thread(_describe, gateway, n) for n in range(DESCRIPTIONS))
    await asyncio.gather(*describing)


def faults(dice: Random, seconds: float, names: list[str]) -> tuple[Fault, ...]:
    """One for each server that faults are for, one for a front, a guest that comes and goes with a
    reload each, and a pause of all servers, in which as many calls are under way as there are
    clients."""
    victims = [name for name in names if name not in bystanders(names)]
    step_s = seconds / 2 / len(victims)
    made = [
        Fault(at * step_s, KINDS[at % len(KINDS)], name, 1.0, dice.getrandbits(32))
        for at, name in enumerate(victims)
    ]
    made.append(Fault(seconds / 4, "guest", "", GUEST_S, dice.getrandbits(32)))
    made.append(Fault(seconds / 2, "kill-front", "", 0.0, dice.getrandbits(32)))
    peak = (
        Fault(seconds * 0.7, "stop-child", name, PEAK_S, dice.getrandbits(32)) for name in names
    )
    return (*sorted(made, key=lambda one: one.at_s), *peak)


def _chatter(port: int, name: str) -> None:
    one = Client(port, MODERN)
    for _ in range(LINES_IN_LOGS // LINES + 1):
        one.call(f"{name}__noise", text="", lines=LINES // LINES_EACH)
        one.call(f"{name}__slow_echo", text="", ms=1000)
    one.close()


def _order(gateway: Soaked) -> None:
    """Give orders that change nothing, until the journal has no room for another event."""
    names = list(gateway.names)
    with client.connect(str(gateway.folder / "run")) as line:
        for _ in range(EVENTS_MAX // len(names) + 1):
            line.call("undrain", {"names": names})


def _describe(gateway: Soaked, number: int) -> None:
    with client.connect(str(gateway.folder / "run")) as line:
        line.call("describe", {"name": gateway.names[number % len(gateway.names)]})
