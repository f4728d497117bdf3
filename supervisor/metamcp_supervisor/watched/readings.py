"""What is read at the moment of a scrape, beside the status.

Owns: the values. Never: reading them (`lives.reading`), names of metrics.
"""

from msgspec import Struct


class Readings(Struct, frozen=True, kw_only=True):
    """By server, if not said otherwise. `beat_ages_s`: since the last sign of life, by server and
    role, fronts without a server; `queued`: calls that wait for their turn at a worker; `spares`:
    copies that are ready; `limits_bytes`: of memory, where there is a limit; `oom_kills`: by the
    kernel, in control groups that still are; `accept_queue`: None where the system does not tell;
    `probing`: servers that make the one attempt of an open circuit; `loop_lag_s`: how late the
    supervisor's own event loop is.
    """

    beat_ages_s: dict[tuple[str, str], float] = {}
    queued: dict[str, int] = {}
    spares: dict[str, int] = {}
    limits_bytes: dict[str, int] = {}
    oom_kills: dict[str, int] = {}
    accept_queue: int | None = None
    probing: frozenset[str] = frozenset()
    loop_lag_s: float = 0.0
