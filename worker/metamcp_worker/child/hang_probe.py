"""Probes of a silent server, to notice when it hangs.

Owns: when a server is probed and with which request, which probes count as missed, how many missed
probes mean that a server hangs. Never: lines, ids and their owners (`own_requests`), clocks, the
end of a server (`run`).

Theory. Every message of a server is a sign of life, so a server that talks is never probed. Many
servers do one thing at a time and read nothing while they work, so an unanswered probe proves
nothing as long as such a server may be at work. Servers read their input in order and come to a
probe when they are done with everything sent before. The time of a probe therefore begins when no
call sent before the first probe of this silence can be under way any more: each was answered, which
is a sign of life, or its deadline is over and so is the time that `server_calls` gives a server to
finish calls that no client waits for. The gateway's own requests, such as those for long lists,
excuse a silence for as long as a call could. Requests sent later excuse nothing: with a steady flow
of calls a server that hangs would be excused for ever.

Not every server of the handshake era knows `ping`, and some do not answer unknown requests. So a
server that has never answered a probe is asked for a list after its first missed probe, because it
has answered lists at its start. Revision 2026-07-28 has no `ping`; there the probe is
`server/discover`.

Only servers behind pipes are probed: programs that the gateway started, and modules in its worker.
With a remote server each call notices by itself, there is nothing here to kill, and a probe would
keep a server awake that sleeps while no client calls it.
"""

import math

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Actions, Fail, RequestPurpose, WarnInLog
from metamcp_worker.child.handshake import HandshakeResult
from metamcp_worker.child.lists import find_declared_lists, first_page
from metamcp_worker.child.own_requests import OwnRequest, OwnRequests
from metamcp_worker.child.server_calls import LINGER_S_MAX, ServerCalls
from metamcp_worker.ipc.server_catalog import KINDS
from metamcp_worker.ipc.spec import ServerSpec

PROBE_S_MAX = 10.0
"""Maximum seconds for the answer to a probe; less if probes are closer together. A probe costs no
work, but on a loaded machine the server may have to wait for the processor."""
MISSES_MAX = 3
"""Number of probes missed in a row, without any sign of life, after which a server counts as
hanging."""
STILL_S = 4.5
"""Seconds by which a tick is late that show that this process stood still, and probably the whole
machine. The time of a probe then begins again."""


class HangProbe:
    """Probing of one server. `missed`: number of probes in a row without an answer."""

    def __init__(
        self, spec: ServerSpec, met: HandshakeResult, own: OwnRequests, now: float
    ) -> None:
        self._own = own
        self._interval_s = spec.probe_interval_s if spec.command or spec.module else math.inf
        self._limit_s = min(PROBE_S_MAX, self._interval_s)
        self._own_s = spec.timeout_s + min(spec.timeout_s, LINGER_S_MAX)
        self._ask = OwnRequest(
            "server/discover" if met.protocol == jsonrpc_lines.MODERN else "ping"
        )
        lists = find_declared_lists(met.capabilities)
        first = next((kind for kind in KINDS if kind in lists), None)
        self._other = self._ask if first is None else first_page(first)
        self._answers = met.protocol == jsonrpc_lines.MODERN  # which is how its handshake began
        self._ticked_at = self._quiet_since = self._asked_at = self._first_at = now
        self._first = b""
        self._waits = False
        self.missed = 0

    def due(self, now: float) -> float:
        """Return when the next tick is due if the server stays silent: `now` after a missed
        probe."""
        if self._waits:
            return self._asked_at + self._limit_s
        return now if self.missed else self._quiet_since + self._interval_s

    def on_answer(self) -> None:
        """Note that the server answers probes. The answer counts as a sign of life elsewhere, like
        any message."""
        self._answers = True

    def tick(self, now: float, heard_at: float, calls: ServerCalls) -> Actions:
        """Send a probe or judge the open one. `heard_at`: when the last message of the server
        came."""
        stood_still = now - max(self._ticked_at, self.due(self._ticked_at)) > STILL_S
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
        """Judge whether the open probe is missed, and fail the server after MISSES_MAX of them."""
        if now < self._asked_at + self._limit_s:
            return []
        busy_until = calls.busy_until(self._first)
        if self._own.busy(self._first):
            busy_until = max(busy_until, self._first_at + self._own_s)
        if now < busy_until + self._limit_s:
            return []
        self._waits = False
        self.missed += 1
        message = f"it has not answered a {self._ask.method} for {now - self._first_at:.3g} s"
        if self.missed >= MISSES_MAX:
            return [Fail("hang", message)]
        return [WarnInLog(f"{message}; after {MISSES_MAX - self.missed} more it is ended")]
