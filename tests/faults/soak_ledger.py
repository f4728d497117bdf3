"""The books of a soak: each request that was made, the one end that it had, whether it may. Pure.

Owns: which ends are right, which are excused by what, the sentences about those that are not, the
counts. Never: asking, a clock (`now`: seconds of one steady clock).

A request ends as one of: `right`; `error CODE` or `http STATUS` that the gateway documents;
`broken`, which is excused only for a connection that was cut on purpose; `left`, because its client
went away.
"""

from collections import Counter
from dataclasses import dataclass, field

ANSWER_S_MAX = 45.0
"""From a request to its end. The longest that a server may take are 5 s; twice that in a queue,
as long again for a second try, and a hung front or a pause of the supervisor before all that."""
HEALING_S = 15.0
"""After something was done to all servers, until every answer has to be right again."""
PROBLEMS_MAX = 40
SHAKEN, ROLLED = "kill-nursery", "roll"
ROLLED_S = 1.0
"""From the end of a front to the news of it at all its clients."""

#: What the gateway says of itself (errors.Code), and REST by its status.
ERRORS = frozenset({-10001, -10002, -10003})
STATUSES = frozenset({502, 503, 504})
UNKNOWN_TOOL = -32602
UNKNOWN_TOOL_STATUS = 404


@dataclass(slots=True)
class Open:
    """`server`: whom it was for, "" for the gateway itself."""

    who: str
    kind: str
    server: str
    what: str
    since: float


@dataclass(slots=True)
class Ledger:
    """`calm`: servers that nothing was done to. `coming`: those that come and go."""

    calm: frozenset[str]
    coming: frozenset[str] = frozenset()
    open: dict[int, Open] = field(default_factory=dict[int, Open])
    ends: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    problems: list[str] = field(default_factory=list[str])
    asked: int = 0
    worst_s: float = 0.0
    worst: str = ""
    _cut: dict[int, tuple[float, str]] = field(default_factory=dict[int, tuple[float, str]])
    _last_cut: float = float("-inf")
    _rolled_since: float = float("inf")
    _rolled_until: float = float("-inf")
    _all_since: float = float("inf")
    _all_until: float = float("-inf")

    # --- what is done on purpose --------------------------------------------------------------

    def cut(self, ports: set[int], why: str, now: float) -> None:
        """The connections of clients from these ports are being cut."""
        self._last_cut = now
        for port in ports:
            self._cut[port] = (now, why)

    def roll(self, now: float) -> None:
        """Fronts are being replaced: standing streams end, and nobody else notices anything."""
        self._last_cut = self._rolled_since = now
        self._rolled_until = float("inf")

    def rolled(self, now: float) -> None:
        self._last_cut = self._rolled_until = now

    def shake(self, now: float) -> None:
        """From now on, something is done to everything that there is."""
        if now > self._all_until + HEALING_S:
            self._all_since = now
        self._all_until = float("inf")

    def healed(self, now: float) -> None:
        """Everything was seen to work again."""
        self._all_until = now

    def shaken(self, since: float, now: float) -> bool:
        """Was something done to everything while a request was under way?"""
        return since <= self._all_until + HEALING_S and now >= self._all_since

    def was_cut(self, port: int, opened: float, since: float, now: float) -> str:
        """Why this connection was cut on purpose, or "". `opened`: when, `since`: when it was last
        used."""
        cut_at, why = self._cut.get(port, (float("-inf"), ""))
        if cut_at >= opened:
            return why
        return SHAKEN if self.shaken(since, now) else ""

    def stream_was_cut(self, port: int, opened: float, since: float, now: float) -> str:
        """The same, for a stream that stays, or what is asked for by its name: such a stream ends
        with its front also when that one leaves in order."""
        if since <= self._rolled_until + ROLLED_S and now >= self._rolled_since:
            return ROLLED
        return self.was_cut(port, opened, since, now)

    # --- requests and their ends --------------------------------------------------------------

    def ask(self, who: str, kind: str, server: str, what: str, now: float) -> int:
        self.asked += 1
        self.open[self.asked] = Open(who, kind, server, what, now)
        return self.asked

    def right(self, key: int, now: float) -> None:
        self._end(key, "right", now)

    def left(self, key: int, now: float) -> None:
        self._end(key, "left", now)

    def broken(self, key: int, how: str, *, cut: str, now: float) -> None:
        """`cut`: as `was_cut` says."""
        asked = self._end(key, f"broken ({cut})" if cut else "broken", now)
        if asked is not None and not cut:
            self._fault(asked, f"lost its connection, which nobody cut: {how}", now)

    def error(self, key: int, code: int, message: str, server: str, now: float) -> None:
        """`server`: whom the error is about, "" if it does not say."""
        asked = self._end(key, f"error {code}", now)
        if asked is None:
            return
        unknown = code == UNKNOWN_TOOL and "tool" in message.lower()
        self._failed(asked, code in ERRORS, unknown, f"{code} {message}", server, now)

    def status(self, key: int, status: int, message: str, server: str, now: float) -> None:
        """A REST request that failed."""
        asked = self._end(key, f"http {status}", now)
        if asked is None:
            return
        unknown = status == UNKNOWN_TOOL_STATUS
        self._failed(asked, status in STATUSES, unknown, f"{status} {message}", server, now)

    def wrong(self, key: int, how: str, now: float) -> None:
        asked = self._end(key, "wrong", now)
        if asked is not None:
            self._fault(asked, f"got a wrong answer: {how}", now)

    def stray(self, who: str, how: str, now: float) -> None:
        """Something came that nobody had asked for, or a second time."""
        self.ends["", "stray"] += 1
        self._tell(f"{who} was told at {now:.2f} what it had not asked for: {how}")

    def overdue(self, now: float) -> None:
        """End everything that has waited for too long."""
        for key, asked in list(self.open.items()):
            if now - asked.since > ANSWER_S_MAX:
                self._end(key, "unanswered", now)
                self._fault(asked, "never got an answer", now)

    # --- judging ------------------------------------------------------------------------------

    def _end(self, key: int, how: str, now: float) -> Open | None:
        asked = self.open.pop(key, None)
        if asked is None:
            self.ends["", "twice"] += 1
            self._tell(f"request {key} ended a second time, as {how!r}")
            return None
        self.ends[asked.kind, how] += 1
        waited = now - asked.since
        if how != "left" and waited > self.worst_s:
            self.worst_s, self.worst = waited, f"{asked.who}, {asked.what}: {how}"
        return asked

    def _failed(
        self, asked: Open, known: bool, unknown: bool, text: str, server: str, now: float
    ) -> None:
        if server and server != asked.server:
            self._fault(asked, f"was told of another server, {server}: {text}", now)
        elif unknown and (asked.server not in self.calm or self.shaken(asked.since, now)):
            return  # it is not in the lists while its server is away
        elif not (known or (asked.server == "" and self.shaken(asked.since, now))):
            self._fault(asked, f"got an error that is not documented for it: {text}", now)
        elif self._untouched(asked, server, now):
            self._fault(asked, f"failed, and nobody had touched its server: {text}", now)

    def _untouched(self, asked: Open, server: str, now: float) -> bool:
        """Was nothing done that such an error could come from? Errors that name no server are those
        of a bridge, about its own connection."""
        if asked.server not in self.calm or self.shaken(asked.since, now):
            return False
        return bool(server) or now - self._last_cut > HEALING_S

    def _fault(self, asked: Open, how: str, now: float) -> None:
        since, waited = asked.since, now - asked.since
        self._tell(f"{asked.who} ({asked.what}, asked at {since:.2f}, {waited:.2f} s) {how}")

    def _tell(self, sentence: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(sentence)
