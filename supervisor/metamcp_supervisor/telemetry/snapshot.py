"""What is read at the moment of a scrape, beside the status, and for the question of life.

Owns: the values. Never: reading them (`servers.scrape`), names of metrics.
"""

from msgspec import Struct


class GatewayPulse(Struct, frozen=True, kw_only=True):
    """Whether the gateway lives, which it is asked more often than anything else. `fronts`: the
    state of each place for one; `nursery_pid`: 0 without any; `loop_lag_s`: how late the
    supervisor's own event loop is."""

    fronts: tuple[str, ...] = ()
    nursery_pid: int = 0
    loop_lag_s: float = 0.0


class Readings(Struct, frozen=True, kw_only=True):
    """By server, if not said otherwise. `beat_ages_s`: since the last sign of life, by server and
    role, without a server for what belongs to none; `queued`: calls that wait for their turn at a
    worker; `spares`: copies that are ready; `limits_bytes`: of memory, where there is a limit;
    `oom_kills`: by the kernel, in control groups that still are; `accept_queue`: None where the
    system does not tell; `probing`: servers that make the one attempt of an open circuit.
    """

    beat_ages_s: dict[tuple[str, str], float] = {}
    queued: dict[str, int] = {}
    spares: dict[str, int] = {}
    limits_bytes: dict[str, int] = {}
    oom_kills: dict[str, int] = {}
    accept_queue: int | None = None
    probing: frozenset[str] = frozenset()
