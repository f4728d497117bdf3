"""Readings of servers, fronts and listening sockets at the moment of a scrape.

Owns: reading entries, heartbeats and listening sockets. Never: names of metrics (`telemetry`),
changing anything.
"""

import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.limits import limits_of
from metamcp_supervisor.servers.entry import Copy, ServerEntry
from metamcp_supervisor.telemetry.health import GatewayPulse, Readings

_WAITING = struct.Struct("=24xI")
"""Part of `struct tcp_info`: for a listening socket, the field of unacknowledged segments has the
number of connections that wait to be accepted."""


class SingletonProcess(Protocol):
    """A process that exists at most once."""

    @property
    def pid(self) -> int:
        """Process id; 0 if the process does not run."""
        ...


class StateReader:
    """Read the state of all servers and fronts, for metrics and health pages."""

    def __init__(
        self,
        entries: Mapping[str, ServerEntry],
        fronts: Fronts,
        heartbeats: Heartbeats,
        nursery: SingletonProcess,
        roles: Mapping[str, SingletonProcess],
        listeners: Sequence[socket.socket],
        waiting: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._entries = entries
        self._fronts = fronts
        self._heartbeats = heartbeats
        self._nursery = nursery
        self._roles = roles
        self._listeners = listeners
        self._waiting = waiting

    def read(self) -> Readings:
        every = list(self._entries.values())
        copies = [copy for entry in every for copy in entry.copies]
        return Readings(
            beat_ages_s=_ages(copies, self._fronts.slots, self._roles, self._heartbeats.ages_s()),
            queued=_sums(
                (copy.entry.base, copy.instance.queued) for copy in copies if copy.instance
            ),
            spares=_sums((each.base, int(_spare_ready(each))) for each in every),
            limits_bytes={
                each.name: most
                for each in every
                if not each.own and (most := limits_of(each.server).memory_max) is not None
            },
            oom_kills=_sums(
                (copy.entry.base, copy.leaf.oom_kills()) for copy in copies if copy.leaf
            ),
            accept_queue=accept_queue(self._listeners),
            probing=frozenset(each.name for each in every if each.life.probing),
            waiting=self._waiting(),
        )

    def pulse(self) -> GatewayPulse:
        """Return the state of fronts and nursery, without looking at any server, so that it is fast
        with many servers."""
        return GatewayPulse(
            fronts=tuple(map(front_state, self._fronts.slots)),
            nursery_pid=self._nursery.pid,
            loop_lag_s=self._heartbeats.lag_s(),
        )


def front_state(front: FrontProcess | None) -> str:
    """Return the state of a front, as the status shows it."""
    if front is None:
        return "error"
    return "ready" if front.ready else "warming"


def accept_queue(listeners: Sequence[socket.socket]) -> int | None:
    """Return how many connections wait in the kernel to be accepted by a front."""
    try:
        tcp_infos = [
            each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WAITING.size)
            for each in listeners
            if each.family != socket.AF_UNIX
        ]
    except (OSError, AttributeError):  # AttributeError: not on every system
        return None
    return sum(int(_WAITING.unpack(each)[0]) for each in tcp_infos if len(each) == _WAITING.size)


def _ages(
    copies: Iterable[Copy],
    fronts: Iterable[FrontProcess | None],
    roles: Mapping[str, SingletonProcess],
    ages_s: Mapping[int, float],
) -> dict[tuple[str, str], float]:
    """Return the age of the oldest heartbeat for each server, the fronts and each process that
    exists at most once."""
    beating = [(("", "front"), front.pid) for front in fronts if front is not None]
    beating += [(("", role), process.pid) for role, process in roles.items()]
    beating += [
        ((copy.entry.base, "worker"), copy.instance.pid) for copy in copies if copy.instance
    ]
    oldest: dict[tuple[str, str], float] = {}
    for key, pid in beating:
        if pid in ages_s:
            oldest[key] = max(oldest.get(key, 0.0), ages_s[pid])
    return oldest


def _spare_ready(entry: ServerEntry) -> bool:
    return entry.spare is not None and entry.spare.ready


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, n in pairs:
        sums[name] = sums.get(name, 0) + n
    return sums
