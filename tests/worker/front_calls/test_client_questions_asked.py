"""What clients are asked, with values and any history of several sessions."""

from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metamcp_worker.front_calls.client_questions import ASKED_MAX, Ids, OpenQuestions, Question
from metamcp_worker.ipc import codec
from tests.examples import examples


class Ended:
    """How questions ended, by their numbers."""

    def __init__(self) -> None:
        self.replies: dict[int, list[tuple[bytes, bool]]] = {}

    def question(self, number: int, params: bytes = b"{}") -> Question:
        def reply(question: Question, body: bytes, failed: bool) -> None:
            self.replies.setdefault(question.number, []).append((body, failed))

        return Question("s", 1, number, "elicitation/create", params, reply)


def test_an_answer_finds_its_question_once() -> None:
    asked, ended = OpenQuestions(Ids("n")), Ended()
    raw_id, params = asked.put(ended.question(1, b'{"a": 1}'))
    assert (raw_id, params) == (b'"n-1"', b'{"a": 1}')
    found = asked.take(raw_id)
    assert found is not None
    assert found.number == 1
    assert asked.take(raw_id) is None
    assert asked.take(b"1") is None


def test_a_client_can_be_asked_only_so_much_at_once() -> None:
    asked, ended = OpenQuestions(Ids("n")), Ended()
    for number in range(ASKED_MAX):
        assert not asked.full
        asked.put(ended.question(number))
    assert asked.full
    assert asked.take(b'"n-1"') is not None
    assert not asked.full


def test_progress_goes_under_a_token_of_the_gateway_and_back_under_that_of_the_server() -> None:
    asked, ended = OpenQuestions(Ids("n")), Ended()
    params = b'{"message": 1.0, "_meta":{"a/b":[1],"progressToken": 7}}'
    for number in (1, 2):  # two servers, and both of them count from the same number
        raw_id, sent = asked.put(ended.question(number, params))
        meta = {"a/b": [1], "progressToken": codec.value(raw_id)}
        assert codec.value(sent) == {"message": 1.0, "_meta": meta}
        found = asked.progress(codec.level(b'{"progressToken":%b,"progress":1.0}' % raw_id))
        assert found is not None
        assert (found[0].number, found[1]) == (number, b'{"progressToken":7,"progress":1.0}')
    asked.take(raw_id)
    assert asked.progress(codec.level(b'{"progressToken":%b}' % raw_id)) is None


def test_no_progress_is_passed_for_a_question_without_a_token() -> None:
    asked, ended = OpenQuestions(Ids("n")), Ended()
    for params in (b"{}", b'{"progressToken":1,"_meta":[]}', b'{"_meta":{"a":"progressToken"}}'):
        raw_id, sent = asked.put(ended.question(1, params))
        assert sent == params
        assert asked.progress(codec.level(b'{"progressToken":%b}' % raw_id)) is None
    assert asked.progress({}) is None


class Histories(RuleBasedStateMachine):
    """Several sessions, whose clients answer whatever id they have ever seen or made up, while
    servers withdraw. The model: of which session each question is, and how it ended."""

    def __init__(self) -> None:
        super().__init__()
        ids = Ids("n")
        self.tables = [OpenQuestions(ids) for _ in range(3)]
        self.ended = Ended()
        self.questions: list[tuple[int, bytes, Question]] = []
        self.open: set[int] = set()
        self.answered: dict[int, int] = {}

    @rule(session=some.integers(0, 2))
    def ask(self, session: int) -> None:
        table = self.tables[session]
        question = self.ended.question(len(self.questions))
        raw_id, _ = table.put(question)
        question.on_withdrawn = partial(self.forget, table, raw_id)
        self.questions.append((session, raw_id, question))
        self.open.add(question.number)

    def forget(self, table: OpenQuestions, raw_id: bytes) -> None:
        table.take(raw_id)

    @rule(session=some.integers(0, 2), data=some.data(), failed=some.booleans())
    def answer(self, session: int, data: some.DataObject, failed: bool) -> None:
        known = [raw_id for _, raw_id, _ in self.questions]
        question = self.tables[session].take(data.draw(some.sampled_from([*known, b'"n-0"', b"1"])))
        if question is not None:
            self.answered[question.number] = session
            self.open.discard(question.number)
            (question.fail if failed else question.answer)(b"%d" % session)

    @rule(data=some.data())
    def withdraw(self, data: some.DataObject) -> None:
        if self.questions:
            question = data.draw(some.sampled_from(self.questions))[2]
            question.withdraw()
            self.open.discard(question.number)

    @invariant()
    def every_question_ends_once_and_by_its_own_session(self) -> None:
        for session, _, question in self.questions:
            assert question.open == (question.number in self.open)
            replies = self.ended.replies.get(question.number, [])
            by = self.answered.get(question.number)
            assert by in {None, session}
            assert [body for body, _ in replies] == ([] if by is None else [b"%d" % session])

    @invariant()
    def the_tables_hold_what_is_open_and_nothing_else(self) -> None:
        for number, table in enumerate(self.tables):
            own = [one for session, _, one in self.questions if session == number and one.open]
            assert len(table) == len(own)


TestHistories = pytest.mark.promise("M23")(Histories.TestCase)
TestHistories.settings = settings(
    max_examples=examples(50), stateful_step_count=40, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
