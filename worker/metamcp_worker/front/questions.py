"""What servers say to a client before they answer its call: progress, notifications, questions.

Owns: one question of a server, answered once, and the shape of whoever takes all this for a client.
Never: sending, eras, deciding who may be asked.
"""

from collections.abc import Callable
from typing import Protocol

from metamcp_worker.ipc import codec, roots
from metamcp_worker.ipc.errors import Code


class Question:
    """A request of a server to the client that called it. `params`: raw, the server's own.

    The first of `answer`, `fail` and `refuse` counts. `on_withdrawn` is called if the server does
    not wait any more, or the call has ended; what is answered then goes nowhere.
    """

    __slots__ = ("_reply", "call", "method", "number", "on_withdrawn", "params", "server")

    def __init__(
        self,
        server: str,
        call: int,
        number: int,
        method: str,
        params: bytes,
        reply: Callable[["Question", bytes, bool], None],
    ) -> None:
        self.server = server
        self.call = call
        self.number = number
        self.method = method
        self.params = params
        self.on_withdrawn: Callable[[], None] | None = None
        self._reply: Callable[[Question, bytes, bool], None] | None = reply

    @property
    def open(self) -> bool:
        return self._reply is not None

    def answer(self, result: bytes) -> None:
        """With the raw result of the client."""
        self._end(result, failed=False)

    def fail(self, error: bytes) -> None:
        """With a raw error object."""
        self._end(error, failed=True)

    def refuse(self, why: str) -> None:
        """Because the client that called cannot be asked this. `why`: a sentence."""
        self.fail(codec.dump({"code": int(Code.METHOD_NOT_FOUND), "message": why}))

    def decline(self, why: str) -> None:
        """Because the client has not declared that it can be asked this: then it has no roots, and
        what else it is asked is refused. `why`: a sentence."""
        if self.method == roots.METHOD:
            self.answer(roots.NONE)
        else:
            self.refuse(why)

    def withdraw(self) -> None:
        if self._reply is not None:
            self._reply = None
            if self.on_withdrawn is not None:
                self.on_withdrawn()

    def _end(self, body: bytes, *, failed: bool) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply(self, body, failed)


class Caller(Protocol):
    """Who takes for a client what comes before the answer. Nothing here waits."""

    def progressed(self, params: bytes) -> None:
        """Raw params of a progress notification, without its token."""
        ...

    def told(self, method: str, params: bytes) -> None:
        """Another notification that belongs to the call, with raw params."""
        ...

    def asked(self, question: Question) -> None: ...
