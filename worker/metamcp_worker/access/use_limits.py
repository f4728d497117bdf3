"""Limits of use: how many calls an endpoint, a server, a workspace or a key may make.

Owns: the buckets, quotas and counts of one front (`Meters`), which of them a call has to pass, the
sentence for a call that does not pass. Never: clocks, storing quotas (the supervisor), waiting for
a turn at a server (`child.call_queue`).

A call passes all of its meters or counts at none. Limits are for the whole gateway: with several
fronts each of them has its share.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping

from metamcp_worker.access.gate import Principal
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.figures import DayCount, LimitedStats
from metamcp_worker.ipc.spec import UNLIMITED, FrontSpec, UseLimits

DAY_S = 86_400
"""Seconds of a day, which begins at midnight UTC."""
MINUTE_S = 60.0
METERS_MAX = 100_000
"""Maximum meters of keys in one front; beyond that the oldest starts again from zero."""

Owner = tuple[str, str]
"""Kind (`endpoint`, `server`, `workspace`, `key`) and name of the owner of a limit."""


class LimitReached(ProtocolError):
    """Raised for a call above a limit. `owner`: whose limit; `limit`: the name of the limit;
    `wait_s`: seconds after which a call may pass."""

    def __init__(self, owner: Owner, limit: str, wait_s: float) -> None:
        kind, name = owner
        whose = "this API key" if kind == "key" else f"the {kind} {name}"
        after = f"try again in {max(1, round(wait_s))} s" if wait_s else "try again later"
        data = b'{"reason":"limit","limit":"%b"%b}' % (
            limit.encode(), b',"retryAfterMs":%d' % (wait_s * 1000) if wait_s else b"",
        )  # fmt: skip
        super().__init__(
            Code.OVERLOADED, f"The limit {limit} of {whose} is reached; {after}.", data
        )
        self.owner = owner
        self.limit = limit
        self.wait_s = wait_s


class Meter:
    """Use of one owner of limits. `inflight`: its calls that are not answered; `day`, `today`: the
    day since the epoch, and the calls in it; `untold`: the calls among these that this front has
    not reported to the supervisor; the first of them puts the meter in `news`."""

    __slots__ = (
        "_burst", "_limits", "_news", "_per_s", "_tokens", "_when", "day", "inflight", "owner",
        "today", "untold",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, limits: UseLimits, share: int, now: float, news: "list[Meter]"
    ) -> None:
        self.owner = owner
        self.inflight = self.day = self.today = self.untold = 0
        self._news = news
        self._when = now
        self._per_s = self._tokens = 0.0
        self.adjust(limits, share)

    def adjust(self, limits: UseLimits, share: int) -> None:
        """Use these limits from now on. `share`: the number of fronts that share them."""
        self._limits = UseLimits(
            limits.calls_per_minute / share,
            -(-limits.burst // share),
            -(-limits.calls_per_day // share),
            -(-limits.in_flight // share),
        )
        had_rate = self._per_s > 0.0
        self._per_s = self._limits.calls_per_minute / MINUTE_S
        self._burst = max(1.0, float(self._limits.burst or self._limits.calls_per_minute))
        self._tokens = min(self._tokens, self._burst) if had_rate else self._burst

    def take(self, now: float, date: float) -> None:
        """Count one more call. Raises LimitReached; then it does not count."""
        limits = self._limits
        if limits.in_flight and self.inflight >= limits.in_flight:
            raise LimitReached(self.owner, "in_flight", 0.0)
        if limits.calls_per_day:
            if not 0.0 <= date - self.day * DAY_S < DAY_S:
                self.day, self.today, self.untold = int(date // DAY_S), 0, 0
            if self.today >= limits.calls_per_day:
                wait_s = (self.day + 1) * DAY_S - date
                raise LimitReached(self.owner, "calls_per_day", wait_s)
        if self._per_s:
            tokens = self._tokens + (now - self._when) * self._per_s
            self._when = now
            self._tokens = tokens = tokens if tokens < self._burst else self._burst
            if tokens < 1.0:
                wait_s = (1.0 - tokens) / self._per_s
                raise LimitReached(self.owner, "calls_per_minute", wait_s)
            self._tokens = tokens - 1.0
        self.today += 1
        self.inflight += 1
        if limits.calls_per_day:
            if not self.untold:
                self._news.append(self)
            self.untold += 1

    def give_back(self) -> None:
        """Undo the last `take`: the call was refused at another meter."""
        if self._per_s:
            self._tokens += 1.0
        self.today -= 1
        self.inflight -= 1
        if self._limits.calls_per_day:
            self.untold -= 1
            if not self.untold:
                self._news.remove(self)


class Meters:
    """Meters of a front. `any`: whether there is a limit at all; `bodies`: whether there is one of
    the size of bodies."""

    def __init__(self) -> None:
        self.any = self.bodies = False
        self._limits: dict[Owner, UseLimits] = {}
        self._keys: dict[str, UseLimits] = {}
        self._workspaces: dict[str, str] = {}
        self._meters: dict[Owner, Meter] = {}
        self._passed: dict[tuple[str, str, str], tuple[Meter, ...]] = {}
        """Meters of calls by endpoint, server and key."""
        self._news: list[Meter] = []
        self._refused: Counter[tuple[str, str, str]] = Counter()
        """Refused requests by kind, name and limit. The configuration has the names, so there are
        not many."""
        self._share = 1

    def configure(self, spec: FrontSpec) -> None:
        limits_by_owner: dict[Owner, UseLimits] = {}
        for endpoint in spec.endpoints:
            limits_by_owner["endpoint", endpoint.part_of or endpoint.name] = endpoint.limits
            self._workspaces[endpoint.name] = endpoint.workspace
        limits_by_owner |= {
            ("server", name): use_limits for name, use_limits in spec.server_limits.items()
        }
        limits_by_owner |= {
            ("workspace", name): use_limits for name, use_limits in spec.workspace_limits.items()
        }
        self._limits = {
            owner: use_limits
            for owner, use_limits in limits_by_owner.items()
            if use_limits != UNLIMITED
        }
        self._share = max(1, spec.fronts)
        for owner, meter in self._meters.items():
            if owner in self._limits:  # any other one stays: a limit may be set again today
                meter.adjust(self._limits[owner], self._share)
        self._on_limits_changed()

    def configure_keys(self, limits: Mapping[str, UseLimits]) -> None:
        """Set the limits of API keys, by id."""
        self._keys = {
            name: use_limits for name, use_limits in limits.items() if use_limits != UNLIMITED
        }
        for owner in [owner for owner in self._meters if owner[0] == "key"]:
            if owner[1] in self._keys:
                self._meters[owner].adjust(self._keys[owner[1]], self._share)
            else:
                del self._meters[owner]
        self._on_limits_changed()

    def _on_limits_changed(self) -> None:
        self._passed.clear()
        limits = (*self._limits.values(), *self._keys.values())
        self.any, self.bodies = bool(limits), any(use_limits.body_max for use_limits in limits)

    def admit(
        self, key: str, endpoint: str, server: str, now: float, date: float
    ) -> tuple[Meter, ...]:
        """Return the meters at which this call counts; when the call is answered, it leaves their
        `inflight`. Raises LimitReached; then the call counts at none. `key`: id of the API key;
        `now`: seconds of a clock that never jumps; `date`: since the epoch."""
        way = endpoint, server, key
        meters = self._passed.get(way)
        if meters is None:
            meters = self._meters_of(*way, now)
        passed = 0
        try:
            for meter in meters:
                meter.take(now, date)
                passed += 1
        except LimitReached as error:
            for meter in meters[:passed]:
                meter.give_back()
            self.count_refusal(error.owner, error.limit)
            raise
        return meters

    def find_limit(
        self, key: str, endpoint: str, server: str, now: float, date: float
    ) -> LimitReached | None:
        """Return the limit that would refuse a call now; None if none would. The question
        does not count. Arguments: as of `admit`."""
        way = endpoint, server, key
        taken: list[Meter] = []
        try:
            for meter in self._passed.get(way) or self._meters_of(*way, now):
                meter.take(now, date)
                taken.append(meter)
        except LimitReached as error:
            return error
        finally:
            for meter in taken:
                meter.give_back()
        return None

    def _meters_of(self, endpoint: str, server: str, key: str, now: float) -> tuple[Meter, ...]:
        """Return the meters of these calls, and keep them for the next one."""
        owners: list[Owner] = [("endpoint", endpoint), ("server", server)]
        owners.append(("workspace", self._workspaces.get(endpoint, "")))
        meters = [
            self._meter(owner, self._limits[owner], now)
            for owner in owners
            if owner in self._limits
        ]
        if key in self._keys:
            meters.append(self._meter(("key", key), self._keys[key], now))
        if len(self._passed) >= METERS_MAX:
            self._passed.clear()
        meters_to_pass = self._passed[endpoint, server, key] = tuple(meters)
        return meters_to_pass

    def body_max(self, principal: Principal, endpoint: str) -> int:
        """Maximum bytes of a request of this principal to this endpoint."""
        return min(self._of(principal, endpoint, "body_max").values(), default=sys.maxsize)

    def too_large(self, principal: Principal, endpoint: str, most: int) -> None:
        """Count a request with more bytes than the limit `most`, if that is a limit of use."""
        for owner, bytes_max in self._of(principal, endpoint, "body_max").items():
            if bytes_max == most:
                self.count_refusal(owner, "body_max")
                return

    def streams(self, principal: Principal, endpoint: str) -> dict[Owner, int]:
        """Return the maximum number of standing streams by owner, where there is one."""
        most = self._of(principal, endpoint, "streams")
        return {owner: -(-streams // self._share) for owner, streams in most.items()}

    def count_refusal(self, owner: Owner, limit: str) -> None:
        """Count a request that this limit refused."""
        kind, name = owner
        self._refused[kind, "" if kind == "key" else name, limit] += 1

    def count_refusals(self) -> tuple[LimitedStats, ...]:
        return tuple(
            LimitedStats(*owner_limit, count) for owner_limit, count in self._refused.items()
        )

    def _of(self, principal: Principal, endpoint: str, limit: str) -> dict[Owner, int]:
        """Return the values of a limit that requests have, where they are set."""
        limits_by_owner = {("endpoint", endpoint): self._limits.get(("endpoint", endpoint))}
        limits_by_owner["key", principal.key] = self._keys.get(principal.key)
        return {
            owner: most
            for owner, use_limits in limits_by_owner.items()
            if (most := getattr(use_limits, limit, 0))
        }

    def list_meters(self) -> Iterable[Meter]:
        """Return the meters that have counted something."""
        return self._meters.values()

    def news(self) -> list[DayCount]:
        """Return the calls since the last time that count against quotas."""
        if not self._news:
            return []
        counts: list[DayCount] = []
        for meter in self._news:  # a meter is there twice, with nothing left, after midnight
            if meter.untold:
                counts.append(DayCount(*meter.owner, meter.day, meter.untold))
                meter.untold = 0
        self._news.clear()
        return counts

    def resume(self, counts: Iterable[DayCount], now: float) -> None:
        """Count calls that other fronts made in the place of this one."""
        for count in counts:
            owner = count.kind, count.name
            limits = self._keys.get(count.name) if count.kind == "key" else self._limits.get(owner)
            if limits is None and count.kind == "key":
                continue
            meter = self._meter(owner, limits or UNLIMITED, now)
            if meter.day < count.day:
                meter.day, meter.today, meter.untold = count.day, 0, 0
            if meter.day == count.day:
                meter.today += count.calls

    def _meter(self, owner: Owner, limits: UseLimits, now: float) -> Meter:
        meter = self._meters.get(owner)
        if meter is None:
            meter = self._meters[owner] = Meter(owner, limits, self._share, now, self._news)
            if len(self._meters) > METERS_MAX:
                del self._meters[next(iter(self._meters))]
                self._passed.clear()
        return meter
