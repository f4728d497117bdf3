"""A caller that keeps what it is told."""

import asyncio
from collections.abc import Callable
from typing import Any

from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.ipc import codec


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


class Client:
    """A client that notes what it is told before its answer."""

    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.notices: list[str] = []
        self.questions: asyncio.Queue[Question] = asyncio.Queue()

    def on_progress(self, params: bytes) -> None:
        self.progress.append(codec.value(params))

    def on_notification(self, method: str, params: bytes) -> None:
        self.notices.append(method)

    def on_question(self, question: Question) -> None:
        self.questions.put_nowait(question)


class Watcher:
    """A watcher that keeps what it is told of tasks and resources."""

    who = "someone"
    rooted = project = ""
    unasked = modern = False
    caller = roots = b""

    def __init__(self) -> None:
        self.told: asyncio.Queue[bytes] = asyncio.Queue()

    def task_changed(self, params: bytes) -> None:
        self.told.put_nowait(params)

    def send_resource_updated(self, params: bytes) -> None:
        self.told.put_nowait(params)


async def answer_of(call: Call) -> CallAnswer:
    """The answer of a call that nobody cancels."""
    answer = await call.answer.wait()
    assert answer is not None, "the call was cancelled"
    return answer
