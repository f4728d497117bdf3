"""Way of one request through its middleware, around the true call.

Owns: whose turn it is, what a failure of a middleware means for the request, at most one true call.
Never: connections, time (`front_side`), results that ask the client for something.

The middleware of a request are levels, the outermost first. Each level gets the request, may pass
it on once, gets the result of what is within, and gives back its own. A level whose failure does
not end the request is left out: what is within it goes on, and its result passes.
"""

import enum
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code


class HookAnswer(Struct, frozen=True, gc=False):
    """Raw result of a request, or raw error object with its `code`."""

    body: bytes
    code: int = 0


class LevelFacts(Struct, frozen=True):
    """Middleware at a level. `enforce`: its failure ends the request."""

    name: str
    enforce: bool


class ChainActions(Protocol):
    """Actions that a chain wants. `level`: place of a middleware, 0 for the outermost."""

    def start(self, level: int, arguments: bytes) -> None:
        """Give the request to a middleware, with these raw arguments."""
        ...

    def pause(self, level: int) -> None:
        """Let the time of a middleware stand still."""
        ...

    def resume(self, level: int, answer: HookAnswer) -> None:
        """Give a middleware what it waits for; its time goes on."""
        ...

    def drop(self, level: int) -> None:
        """Forget about a middleware, whose hook ends or has ended."""
        ...

    def call(self, arguments: bytes) -> None:
        """Make the true call, with these raw arguments."""
        ...

    def leave(self, reason: str) -> None:
        """Cancel the true call. `reason`: words for the server."""
        ...

    def answer_request(self, answer: HookAnswer) -> None:
        """Answer the request."""
        ...


class _Step(enum.Enum):
    BEFORE = enum.auto()
    INSIDE = enum.auto()
    """The middleware has the request, and has not passed it on."""
    WITHIN = enum.auto()
    """The middleware waits for the result of what is within."""
    AFTER = enum.auto()
    """The middleware has that result."""
    OVER = enum.auto()


_LIVE = (_Step.INSIDE, _Step.WITHIN, _Step.AFTER)


class _Level:
    """Middleware with its part of the request. `arguments`: as it got them; `answer`: result of
    what is within."""

    __slots__ = ("answer", "arguments", "facts", "step")

    def __init__(self, facts: LevelFacts) -> None:
        self.facts = facts
        self.step = _Step.BEFORE
        self.arguments = b""
        self.answer: HookAnswer | None = None


class Chain:
    """Way of a request. `tool`: it is a call of a tool, which can fail with a result."""

    def __init__(self, levels: Sequence[LevelFacts], actions: ChainActions, *, tool: bool) -> None:
        self._levels = [_Level(facts) for facts in levels]
        self._actions = actions
        self._tool = tool
        self._calling = False
        self.called = False
        """Whether the true call was made."""
        self.over = False

    def begin(self, arguments: bytes) -> None:
        self._enter(0, arguments)

    def passed_on(self, level: int, arguments: bytes | None) -> None:
        """A middleware passes the request on. `arguments`: raw; None if they are as it got them."""
        middleware = self._levels[level]
        if middleware.step is _Step.INSIDE:
            middleware.step = _Step.WITHIN
            self._actions.pause(level)
            self._enter(level + 1, middleware.arguments if arguments is None else arguments)

    def on_answer(self, answer: HookAnswer, *, final: bool) -> None:
        """The true call is over. `final`: the answer is a result or an error, and not a wish of the
        server, which goes to the client past all middleware."""
        if not self._calling:
            return
        self._calling = False
        if final:
            self._give(len(self._levels) - 1, answer)
        else:
            self._finish(answer)

    def on_hook_end(self, level: int, result: bytes | None) -> None:
        """A hook has ended. `result`: raw; None for the result of what is within."""
        middleware = self._levels[level]
        if middleware.step not in _LIVE:
            return
        answer = middleware.answer if result is None else HookAnswer(result)
        if answer is None:
            self.on_failure(level, "returned no result")
            return
        self._cut(level)
        self._give(level - 1, answer)

    def on_failure(self, level: int, failure: str, *, refuses: bool = False) -> None:
        """A middleware failed. `failure`: words that follow its name; `refuses`: that ends the
        request, whether it enforces or not."""
        middleware = self._levels[level]
        if middleware.step not in _LIVE:
            return
        if middleware.facts.enforce or refuses:
            self._cut(level)
            self._give(level - 1, self._failure(middleware.facts.name, failure))
        else:
            self.skip(level)

    def skip(self, level: int) -> None:
        """Go on without a middleware, which has a part in the request."""
        middleware = self._levels[level]
        step, middleware.step = middleware.step, _Step.OVER
        self._actions.drop(level)
        if step is _Step.INSIDE:
            self._enter(level + 1, middleware.arguments)
        elif step is _Step.AFTER and middleware.answer is not None:
            self._give(level - 1, middleware.answer)

    def cancel(self, reason: str) -> None:
        """The client does not wait any more."""
        if not self.over:
            self.over = True
            self._cut(0, reason)

    def _enter(self, level: int, arguments: bytes) -> None:
        if level == len(self._levels):
            self._calling = self.called = True
            self._actions.call(arguments)
        else:
            middleware = self._levels[level]
            middleware.step, middleware.arguments = _Step.INSIDE, arguments
            self._actions.start(level, arguments)

    def _give(self, level: int, answer: HookAnswer) -> None:
        """Give an answer to the innermost of the levels up to this one that waits for it."""
        while level >= 0 and self._levels[level].step is not _Step.WITHIN:
            level -= 1
        if level < 0:
            self._finish(answer)
        else:
            middleware = self._levels[level]
            middleware.step, middleware.answer = _Step.AFTER, answer
            self._actions.resume(level, answer)

    def _finish(self, answer: HookAnswer) -> None:
        if not self.over:
            self.over = True
            self._cut(0)
            self._actions.answer_request(answer)

    def _cut(self, level: int, reason: str = "its middleware does not wait for it") -> None:
        """End this level and everything within it."""
        for at, middleware in enumerate(self._levels[level:], level):
            if middleware.step in _LIVE:
                middleware.step = _Step.OVER
                self._actions.drop(at)
        if self._calling:
            self._calling = False
            self._actions.leave(reason)

    def _failure(self, name: str, failure: str) -> HookAnswer:
        made = "its tool may have run" if self._tool else "its server may have had it"
        was = made if self.called else "it did not reach its server"
        text = f"The middleware {name!r} {failure}, so this request has no result; {was}."
        if not self._tool:
            error = {"code": int(Code.INTERNAL_ERROR), "message": text}
            return HookAnswer(codec.dump(error), int(Code.INTERNAL_ERROR))
        content = [{"type": "text", "text": text}]
        return HookAnswer(codec.dump({"content": content, "isError": True}))
