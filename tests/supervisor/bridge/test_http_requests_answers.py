"""Whatever the gateway does, every request gets exactly one answer, and a cancelled one none."""

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from metamcp_supervisor.bridge.http_requests import Action, Failure, Send, WriteLine
from metamcp_worker.http.sse import SseEvent
from tests.supervisor.bridge.talk import AWAY, line, made, modern, opened, result

BROKEN = Failure("The connection broke.")
MISMATCH = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"m"}}'
STEPS_MAX = 2000


class Play:
    """A client and a gateway that do what the dice say, and what has been sent and answered."""

    def __init__(self, *, modern_era: bool) -> None:
        self.bridge = made()
        self.modern_era = modern_era
        self.sent: dict[int, Send] = {}
        self.asked = 0
        self.cancelled: set[int] = set()
        self.answers: Counter[int] = Counter()
        if not modern_era:
            opened(self.bridge)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.sent[action.number] = action
            elif isinstance(action, WriteLine):
                message = json.loads(action.line)
                if "method" not in message:
                    self.answers[message["id"]] += 1

    def ask(self, method: str) -> None:
        self.asked += 1
        make = modern if self.modern_era else line
        self.do(self.bridge.on_line(make(method, self.asked, name="t", uri="a:b")))

    def cancel(self, which: int) -> None:
        number = which % (self.asked + 1)
        if number and not self.answers[number]:
            self.cancelled.add(number)
        self.do(self.bridge.on_line(line("notifications/cancelled", requestId=number)))

    def pick(self, which: int) -> Send | None:
        """Something that is under way."""
        alive = [number for number in self.sent if self.bridge.cares(number)]
        return self.sent[alive[which % len(alive)]] if alive else None

    def respond(self, send: Send, status: int, how: str) -> None:
        number = send.number
        message: dict[str, Any] = json.loads(send.body or b"{}")
        self.do(self.bridge.head(number, status, b"s"))
        if how == "answer" and "id" in message:
            self.do(self.bridge.message(number, result(message["id"], protocolVersion="x")))
        elif how == "id":
            self.do(self.bridge.event(number, SseEvent(b"", id=b"e")))
        elif how == "refuse":
            self.do(self.bridge.message(number, MISMATCH))
        self.do(self.bridge.on_exchange_end(number, {"away": AWAY, "broken": BROKEN}.get(how)))


METHODS = st.sampled_from(["ping", "tools/call", "resources/subscribe", "logging/setLevel"])
STATUSES = st.sampled_from([200, 200, 200, 202, 400, 404, 405, 500, 502, 503])
HOWS = st.sampled_from(["answer", "answer", "id", "refuse", "away", "broken", "silence"])
STEPS = st.one_of(
    st.tuples(st.just("ask"), METHODS),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("respond"), st.tuples(st.integers(0, 50), STATUSES, HOWS)),
)


@given(
    st.booleans(), st.lists(STEPS, max_size=60), st.lists(st.tuples(STATUSES, HOWS), max_size=20)
)
def test_every_request_is_answered_once(
    modern_era: bool, steps: list[tuple[str, Any]], end: list[tuple[int, str]]
) -> None:
    play = Play(modern_era=modern_era)
    for step, detail in steps:
        if step == "ask":
            play.ask(detail)
        elif step == "cancel":
            play.cancel(detail)
        elif (send := play.pick(detail[0])) is not None:
            play.respond(send, detail[1], detail[2])
    endings = [*end, (200, "away"), (502, "silence")]
    for count in range(STEPS_MAX):
        if play.bridge.idle:
            break
        send = play.pick(count)
        assert send is not None, "something waits and nothing is under way"
        play.respond(send, *endings[min(count, len(endings) - 1)])
    assert play.bridge.idle
    for number in range(1, play.asked + 1):
        assert play.answers[number] == (0 if number in play.cancelled else 1), number
