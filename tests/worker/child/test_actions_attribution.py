"""Any history of callers, questions, answers, cancellations and ends: nobody is asked what another
caused, no question hangs, nothing comes after its call."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_worker.child.actions import Action, ReplyToFront, TellFronts
from metamcp_worker.child.frontless_calls import NOBODY
from metamcp_worker.child.server_calls import LINGER_S_MAX
from metamcp_worker.ipc import frames
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import (
    CallFrame,
    Error,
    KeepCall,
    KeptFrame,
    Notice,
    Progress,
    QuestionFrame,
    RecoverCall,
    Result,
    WithdrawQuestion,
)
from tests.examples import examples
from tests.worker.child.talk import Json, ready_legacy

Caller = tuple[int, int, int]

CALLERS = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["call", "call", "ask", "ask", "ask", "log", "reply", "reply", "answer", "cancel",
             "withdraw", "wait", "long", "gone", "fail", "keep", "keep", "claim"]
        ),
        st.integers(0, 7),
        st.booleans(),
    ),
    min_size=25,
    max_size=60,
)  # fmt: skip


class World:
    """Fronts and a server that does what it wants, but knows on whose behalf.

    `open`: calls that a front waits for; `work`: what the server is at, by id: the call, and when
    it stops at the latest; `asked`: its own requests that are not answered, and in which call each
    was made; `kept`: open
    calls that outlive their front; `left`: those that did; `firsts`: what a call was when it began.
    """

    def __init__(self) -> None:
        self.talk = ready_legacy(timeout_s=50.0, concurrency=4)
        self.calls = self.asks = 0
        self.open: dict[tuple[int, int], Caller] = {}
        self.work: dict[int, tuple[tuple[int, int], float]] = {}
        self.causes: dict[tuple[int, int], Caller] = {}
        self.asked: dict[int, int] = {}
        self.questions: dict[int, tuple[int, int]] = {}
        self.kept: dict[tuple[int, int], tuple[int, int]] = {}
        self.left: list[tuple[int, int]] = []
        self.firsts: dict[tuple[int, int], tuple[int, int]] = {}
        self.seen = len(self.talk.wrote)
        self.cause: Caller | None = None

    def do(self, what: str, which: int, own_stream: bool) -> None:
        if what == "call":
            self.call(*CALLERS[which % len(CALLERS)])
        elif what == "long":
            self.heard(self.talk.tick(LINGER_S_MAX))
        elif what == "wait":
            self.heard(self.talk.tick(which * 10))
        elif what == "gone":
            front = which % 2 + 1
            for key in [key for key in self.kept if key[0] == front]:
                first = self.kept.pop(key)
                if key in self.open:
                    self.left.append(first)
                    self.causes[first] = (NOBODY, 0, first[1])
            self.open = {key: one for key, one in self.open.items() if key[0] != front}
            self.questions = {n: key for n, key in self.questions.items() if key[0] != front}
            self.heard(self.talk.note(self.talk.session.front_gone(front, self.talk.now)))
        elif what == "keep" and self.open:
            key = sorted(self.open)[which % len(self.open)]
            self.kept.setdefault(key, key)
            keep = KeepCall(key[1], b"o", b"%d" % self.kept[key][1], b"n")
            self.talk.session.orphans.keep(key[0], keep)
        elif what == "claim" and self.left:
            self.claim(self.left.pop(which % len(self.left)), *CALLERS[which % len(CALLERS)])
        elif what in {"ask", "log", "answer", "fail"} and self.work:
            number = sorted(self.work)[which % len(self.work)]
            self.serve(what, number, b"%d" % number if own_stream else None)
        elif what == "cancel" and self.open:
            key = sorted(self.open)[which % len(self.open)]
            del self.open[key]
            self.questions = {n: one for n, one in self.questions.items() if one != key}
            self.heard(self.talk.cancel(*key))
        elif what == "reply" and self.questions:
            question = sorted(self.questions)[which % len(self.questions)]
            front, _ = self.questions.pop(question)
            reply = frames.ReplyFrame(question, b'{"code":1}', own_stream)
            self.heard(self.talk.note(self.talk.session.reply(front, reply, self.talk.now)))
        elif what == "withdraw" and self.asked:
            number = sorted(self.asked)[which % len(self.asked)]
            del self.asked[number]
            self.heard(self.talk.tells("notifications/cancelled", requestId=number))

    def call(self, front: int, peer: int) -> None:
        self.calls += 1
        key = (front, self.calls)
        self.open[key] = self.causes[key] = (front, peer, 0 if peer else self.calls)
        params = b'{"name":"%d"}' % self.calls
        call = CallFrame(self.calls, "tools/call", params, peer=peer)
        self.heard(self.talk.note(self.talk.session.call(front, call, self.talk.now)))

    def claim(self, first: tuple[int, int], front: int, peer: int) -> None:
        """A front goes on with a call that another one has left."""
        self.calls += 1
        key = (front, self.calls)
        caller = (front, peer, 0 if peer else self.calls)
        self.open[key] = self.causes[first] = self.cause = caller
        self.kept[key] = self.firsts[key] = first
        claim = RecoverCall(self.calls, b"o", b"%d" % first[1], peer)
        found = self.talk.session.orphans.claim(front, claim, self.talk.now)
        self.heard(self.talk.note(found))
        self.cause = None

    def serve(self, what: str, number: int, stream: bytes | None) -> None:
        """The server does something on behalf of this request."""
        key, until = self.work[number]
        if self.talk.now >= until:
            del self.work[number]
            return
        if what == "ask" and number in self.asked.values() and number < max(self.work):
            return  # it waits for an answer, as servers do
        self.cause = self.causes[key]
        if what == "ask":
            self.asks += 1
            self.asked[self.asks] = number
            self.heard(self.talk.asks(self.asks, stream=stream))
        elif what == "log":
            self.heard(self.talk.tells("notifications/message", stream, data=key[1]))
        elif what == "fail":
            del self.work[number]
            found = self.talk.session.on_request_failed(b"%d" % number, b"{}", self.talk.now)
            self.heard(self.talk.note(found))
        else:
            del self.work[number]
            self.heard(self.talk.says({"jsonrpc": "2.0", "id": number, "result": {}}))
        self.cause = None

    def heard(self, actions: list[Action]) -> None:
        """Look at all that was said to fronts and to the server."""
        for action in actions:
            if isinstance(action, ReplyToFront):
                self.fronts_hear(action.front, action.frame)
            assert not isinstance(action, TellFronts) or not self.open
        for message in self.talk.wrote[self.seen :]:
            self.server_hears(message)
        self.seen = len(self.talk.wrote)

    def fronts_hear(
        self,
        front: int,
        frame: Result | Error | Progress | QuestionFrame | WithdrawQuestion | Notice | KeptFrame,
    ) -> None:
        if front == NOBODY:
            self.nobody_hears(frame)
            return
        if isinstance(frame, WithdrawQuestion):
            assert self.questions.pop(frame.question)[0] == front
            return
        key = (front, frame.id)
        assert key in self.open, "something came after the end of its call"
        if frame == KeptFrame(frame.id):
            del self.open[key]  # it is too late
        if isinstance(frame, QuestionFrame):
            self.questions[frame.question] = key
        if isinstance(frame, QuestionFrame | Notice):
            assert self.open[key] == self.cause, "it went to who did not cause it"
        if isinstance(frame, Notice) and key in self.firsts:
            began = self.causes[next(one for one in self.causes if one[1] == data_of(frame))]
            assert began == self.causes[self.firsts[key]], "it was kept for who did not cause it"
        if isinstance(frame, Result | Error):
            del self.open[key]
            assert key not in self.questions.values(), "a question outlived its call"

    def nobody_hears(
        self,
        frame: Result | Error | Progress | QuestionFrame | WithdrawQuestion | Notice | KeptFrame,
    ) -> None:
        """As the worker does with what is for no front that is there."""
        if isinstance(frame, QuestionFrame):
            self.heard(
                self.talk.note(self.talk.session.refuse_question(frame.question, self.talk.now))
            )
        else:
            self.talk.session.orphans.on_frame_sent(NOBODY, frame, self.talk.now)
        if isinstance(frame, QuestionFrame | Notice):
            assert self.cause is not None
            assert self.cause[0] == NOBODY, "it is kept for who did not cause it"

    def server_hears(self, message: Json) -> None:
        if message.get("method") == "tools/call":
            number = int(message["params"]["name"])
            (key,) = [one for one in self.causes if one[1] == number]
            self.work[message["id"]] = (key, float("inf"))
        elif message.get("method") == "notifications/cancelled":
            key, _ = self.work[message["params"]["requestId"]]
            until = self.talk.now + min(LINGER_S_MAX, 50.0)
            self.work[message["params"]["requestId"]] = (key, until)
        elif "method" not in message:
            del self.asked[message["id"]]  # It is there: no answer comes twice or for nothing.

    def end(self, *, crash: bool) -> None:
        """The connection is lost, or every call comes to its end."""
        if crash:
            self.heard(self.talk.note(self.talk.session.fail_calls(Code.TOO_LARGE, "was ended")))
            assert self.talk.asks(self.asks + 1) == []
        else:
            while self.open:
                self.heard(self.talk.tick(100.0))
            assert not self.asked
        assert not self.open
        assert not self.questions


def data_of(notice: Notice) -> int:
    found: int = json.loads(notice.body)["data"]
    return found


@settings(max_examples=examples(200), deadline=None)
@given(STEPS, st.booleans())
def test_questions_reach_only_their_cause_and_are_answered_once(
    steps: list[tuple[str, int, bool]], crash: bool
) -> None:
    world = World()
    for step in steps:
        world.do(*step)
    world.end(crash=crash)
