"""Is the server still there? A question now and then to one that says nothing.

Owns: when a server is probed and with what, which probes count as missed, how many of them mean
that it hangs. Never: lines, ids and who has them (`own_requests`), clocks, the end of a server
(`run`).

Theory. Whatever a server says is a sign of life, so one that talks is never probed. Many servers do
one thing at a time and read nothing meanwhile: that a probe is not answered says nothing as long as
such a server may be at work. It reads its input in order, so it comes to a probe when it is done
with all that was sent before. The time of a probe therefore begins when no call can be under way
any more that was sent before the first probe of this silence: each was answered, which is a sign of
life, or its deadline is over and so is the time that `calls` gives a server to finish what nobody
waits for. The gateway's own requests, such as those for long lists, excuse a silence for as long as
a call could. What was sent later excuses nothing: with a steady flow of calls a server that hangs
would be excused for ever.

Not every server of the handshake era knows `ping`, and some do not answer what they do not know. So
as long as a server has never answered a probe, it is asked for a list after the first one that it
missed: lists it has answered at its start. Revision 2026-07-28 has no `ping`; there the probe is
`server/discover`.

Only servers at the other end of pipes are probed, programs of ours and modules in our worker. With
a remote server each call finds out by itself, there is nothing here to kill, and a probe would keep
awake what sleeps while nobody calls it.
"""

import math

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Actions, Fail, RequestPurpose, WarnInLog
from metamcp_worker.child.handshake import Met
from metamcp_worker.child.jsonrpc_lines import OwnRequest
from metamcp_worker.child.lists import ListReader, declared
from metamcp_worker.child.own_requests import Own
from metamcp_worker.child.server_calls import LINGER_S_MAX, ServerCalls
from metamcp_worker.ipc.spec import ServerSpec

PROBE_S_MAX = 10.0
"""For the answer to a probe; if probes are closer together than that, it must come before the
next. It is no work, but a loaded machine may have the server wait for the processor."""
MISSES_MAX = 3
"""Probes in a row without any sign of life, and it hangs."""
STILL_S = 1.0
"""Between two ticks, of which there are several in a second: then this process stood still, and
probably the whole machine did. The time of a probe begins anew."""


class Probing:
    """`missed`: probes in a row that were not answered."""

    def __init__(self, spec: ServerSpec, met: Met, own: Own, now: float) -> None:
        self._own = own
        self._interval_s = spec.probe_interval_s if spec.command or spec.module else math.inf
        self._limit_s = min(PROBE_S_MAX, self._interval_s)
        self._own_s = spec.timeout_s + min(spec.timeout_s, LINGER_S_MAX)
        self._ask = OwnRequest(
            "server/discover" if met.protocol == jsonrpc_lines.MODERN else "ping"
        )
        self._other = ListReader(declared(met.capabilities)).ask() or self._ask
        self._answers = met.protocol == jsonrpc_lines.MODERN  # which is how its handshake began
        self._ticked_at = self._quiet_since = self._asked_at = self._first_at = now
        self._first = b""
        self._waits = False
        self.missed = 0

    def answered(self) -> None:
        """A probe was answered; as any message, the answer was heard as well."""
        self._answers = True

    def tick(self, now: float, heard_at: float, calls: ServerCalls) -> Actions:
        """Time has passed. `heard_at`: when the server last said something."""
        stood_still = now - self._ticked_at > STILL_S
        self._ticked_at = now
        if stood_still:
            self._quiet_since = self._asked_at = now
        if heard_at > self._quiet_since:
            self._quiet_since = heard_at
            self._waits = False
            self.missed = 0
        if self._waits:
            return self._overdue(now, calls)
        since = self._asked_at if self.missed else self._quiet_since
        return self._probe(now) if now >= since + self._interval_s else []

    def _probe(self, now: float) -> Actions:
        if self.missed and not self._answers:
            self._ask, self._answers = self._other, True
        request = self._own.ask(RequestPurpose.PROBE, self._ask)
        if not self.missed:
            self._first, self._first_at = request.key, now
        self._waits, self._asked_at = True, now
        return [request]

    def _overdue(self, now: float, calls: ServerCalls) -> Actions:
        """Is the probe missed?"""
        if now < self._asked_at + self._limit_s:
            return []
        busy_until = calls.busy_until(self._first)
        if self._own.busy(self._first):
            busy_until = max(busy_until, self._first_at + self._own_s)
        if now < busy_until + self._limit_s:
            return []
        self._waits = False
        self.missed += 1
        what = f"it has not answered a {self._ask.method} for {now - self._first_at:.3g} s"
        if self.missed >= MISSES_MAX:
            return [Fail("hang", what)]
        return [WarnInLog(f"{what}; after {MISSES_MAX - self.missed} more it is ended")]
