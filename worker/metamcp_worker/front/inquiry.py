"""The question to the client of a session for its roots, before its call goes on.

Owns: asking it once for each call that has to know, how long that may take, and what counts as no
answer. Never: on which stream it is asked (`client`), who has to know (`processes`), the bridge for
clients without sessions (`modern`).
"""

import asyncio
import logging
from collections.abc import Callable

from metamcp_worker.front import answers
from metamcp_worker.front.questions import Question
from metamcp_worker.front.session import Session
from metamcp_worker.ipc import roots

ROOTS_S_MAX = 10.0
"""For a client to say its roots. No person is asked, so one that takes longer does not answer."""

log = logging.getLogger("metamcp.front")


class Inquiry:
    """One such question. `ask` puts it to the client; `over` is told when there is nothing to wait
    for any more: the session knows the roots then, or they could not be had."""

    def __init__(
        self, session: Session, ask: Callable[[Question], None], over: Callable[[], None]
    ) -> None:
        self.cancelled = False
        self._session = session
        self._over: Callable[[], None] | None = over
        self._question = Question("", 0, 0, roots.METHOD, b"{}", self._replied)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ROOTS_S_MAX, self._late)
        ask(self._question)

    def cancel(self, reason: str) -> None:
        """Nobody waits any more for the call in which it was asked."""
        self.cancelled = True
        self._question.withdraw()
        self._end()

    def _late(self) -> None:
        log.warning("a client did not say its roots within %g s", ROOTS_S_MAX)
        self._question.withdraw()
        self._end()

    def _replied(self, question: Question, body: bytes, failed: bool) -> None:
        try:
            if not failed:
                self._session.has_roots(body)
        except roots.Unfit as why:
            log.warning("what a client says of its roots counts as nothing: %s", why)
        self._end()

    def _end(self) -> None:
        self._timer.cancel()
        over, self._over = self._over, None
        if over is not None:
            over()


def ask_aside(session: Session, question: Question) -> None:
    """Ask the client this on the stream that belongs to no request."""
    raw_id, params = session.asked.put(question)
    if not session.tell(answers.request(raw_id, question.method, params)):
        session.asked.take(raw_id)
        question.refuse("The client reads no event stream now, so it cannot be asked.")
