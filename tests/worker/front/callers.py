"""A caller that keeps what it is told."""

from collections.abc import Callable

from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call


class Caller:
    """`on_asked`: what it does with a question; it keeps it for the test by default."""

    def __init__(self, on_asked: Callable[[Question], None] | None = None) -> None:
        self.progress: list[bytes] = []
        self.notices: list[tuple[str, bytes]] = []
        self.questions: list[Question] = []
        self._on_asked = on_asked

    def on_progress(self, params: bytes) -> None:
        self.progress.append(params)

    def on_notification(self, method: str, params: bytes) -> None:
        self.notices.append((method, params))

    def on_question(self, question: Question) -> None:
        self.questions.append(question)
        if self._on_asked is not None:
            self._on_asked(question)


async def answer_of(call: Call) -> CallAnswer:
    """The answer of a call that nobody cancels."""
    answer = await call.answer.wait()
    assert answer is not None, "the call was cancelled"
    return answer
