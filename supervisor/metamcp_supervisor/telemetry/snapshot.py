"""Readings at the moment of a scrape, beside the status, and for the liveness check.

Owns: the values. Never: reading them (`servers.scrape`), names of metrics.
"""

from msgspec import Struct


class GatewayPulse(Struct, frozen=True, kw_only=True):
    """Readings for the liveness check, the most frequent question to the gateway. `fronts`: state
    of each front's slot; `nursery_pid`: 0 without a nursery; `loop_lag_s`: delay of the
    supervisor's event loop in seconds."""

    fronts: tuple[str, ...] = ()
    nursery_pid: int = 0
    loop_lag_s: float = 0.0


class Readings(Struct, frozen=True, kw_only=True):
    """Readings by server, unless another key is named. `beat_ages_s`: seconds since the last
    heartbeat, by server and role; fronts and the embedder have an empty server; `queued`: calls
    that wait for their turn at a worker; `spares`: ready spare copies; `limits_bytes`: limits of
    memory, where set; `oom_kills`: processes killed by the kernel, in control groups that still
    exist; `accept_queue`: connections that wait for a front, None where the system does not tell;
    `probing`: servers with the single attempt of an open circuit under way."""

    beat_ages_s: dict[tuple[str, str], float] = {}
    queued: dict[str, int] = {}
    spares: dict[str, int] = {}
    limits_bytes: dict[str, int] = {}
    oom_kills: dict[str, int] = {}
    accept_queue: int | None = None
    probing: frozenset[str] = frozenset()
