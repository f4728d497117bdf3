"""What a front holds of one server: its state, the pipes to its generations, the waiting calls.

Owns: the values that `routing` moves calls between, whether a server takes calls now, whether it
is worth waiting for, and the typed errors of the way. Never: sending, timers, names, views.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from metamcp_worker import codec
from metamcp_worker.errors import Code
from metamcp_worker.frames import Call as CallFrame
from metamcp_worker.front.questions import Caller, Question
from metamcp_worker.messages import ServerState
from metamcp_worker.pipe import Pipe

TIMEOUT_S = 60.0
"""Of a server about which the configuration does not say."""

#: States in which a server takes no new calls, though its pipe may still be there.
_AWAY = frozenset({"idle", "draining", "stopped", "error"})
#: States that end by themselves within moments, or (idle) because a call is the reason to start.
_COMING = frozenset({"unknown", "warming", "ready", "idle"})


class Answer(Struct, frozen=True, gc=False):
    """What came back. `code`: 0 for a result, else the JSON-RPC code of the error in `body`."""

    body: bytes
    code: int = 0


class Call:
    """One request on its way to a server. `answer` raises nothing but CancelledError.

    `frame`: while it is not sent yet. `label`: its method, for the figures. `modern`, `legacy`: the
    client's era and the server's. `caller`: takes what the server says before its answer. `mend`:
    what is still to be done to the result.
    """

    __slots__ = (
        "_cancel", "answer", "caller", "deadline", "frame", "id", "label", "legacy", "mend",
        "modern", "server", "started", "wire",
    )  # fmt: skip

    def __init__(
        self,
        server: str,
        frame: CallFrame,
        answer: asyncio.Future[Answer],
        cancel: Callable[["Call", str], None],
        now: float,
        *,
        label: str = "",
        modern: bool = False,
        legacy: bool = False,
        caller: Caller | None = None,
    ) -> None:
        self.server = server
        self.id = frame.id
        self.frame: CallFrame | None = frame
        self.answer = answer
        self.label = label
        self.modern = modern
        self.legacy = legacy
        self.caller = caller
        self.mend: Callable[[bytes], bytes] | None = None
        self.started = now
        self.deadline = 0.0
        self.wire: Wire | None = None
        self._cancel = cancel

    @property
    def size_bytes(self) -> int:
        """Of what is still to be sent."""
        frame = self.frame
        return len(frame.params) + len(frame.meta) + len(frame.caller) if frame else 0

    def interim(self, answer: Answer) -> None:
        """Answer who waits now. The call goes on: its own answer comes to another future, which is
        `answer` from now on."""
        waiting, self.answer = self.answer, self.answer.get_loop().create_future()
        waiting.set_result(answer)

    def cancel(self, reason: str) -> None:
        """Nobody waits any more: tell the server and free everything. Idempotent."""
        self._cancel(self, reason)


class Wire:
    """One pipe to one generation of a server, who waits for answers on it, by call id, and what the
    server asks of them, by its number."""

    __slots__ = ("down", "generation", "gone", "link", "pipe", "questions", "waiting")

    def __init__(self, link: "Link", generation: int) -> None:
        self.link = link
        self.generation = generation
        self.pipe: Pipe | None = None
        self.waiting: dict[int, Call] = {}
        self.questions: dict[int, Question] = {}
        self.down = False
        self.gone = asyncio.Event()


class Link:
    """One server. `target`: the wire that takes new calls now; `held`: calls that wait for one,
    `held_bytes` in all."""

    __slots__ = (
        "generation", "held", "held_bytes", "message", "reason", "retry_after_ms", "server",
        "state", "target", "timeout_s", "wanted_at", "wire",
    )  # fmt: skip

    def __init__(self, server: str, timeout_s: float) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self.state = "unknown"
        self.generation = 0
        self.reason = ""
        self.message = ""
        self.retry_after_ms = -1
        self.wire: Wire | None = None
        self.target: Wire | None = None
        self.held: deque[Call] = deque()
        self.held_bytes = 0
        self.wanted_at = float("-inf")

    def learn(self, news: ServerState) -> None:
        """What the supervisor says of the server, unless it is about an older generation."""
        if self.wire is not None and 0 < news.generation < self.wire.generation:
            return
        self.state = news.state
        self.generation = news.generation or self.generation
        self.reason = news.reason
        self.message = news.message
        self.retry_after_ms = news.retry_after_ms
        self._aim()

    def attach(self, wire: Wire) -> None:
        """A pipe to a generation that takes calls; it replaces the one to an older generation."""
        if self.wire is not None and wire.generation < self.wire.generation:
            return
        self.wire = wire
        if wire.generation >= self.generation:
            self.generation = wire.generation
            self.state = "ready"
        self._aim()

    def lose(self, wire: Wire) -> None:
        wire.down = True
        self._aim()

    def hold(self, call: Call) -> None:
        self.held.append(call)
        self.held_bytes += call.size_bytes

    def take(self) -> Call:
        """The call that is held longest."""
        call = self.held.popleft()
        self.held_bytes -= call.size_bytes
        return call

    def drop(self, call: Call) -> bool:
        """Hold this call no longer. False if it was not held."""
        if call not in self.held:
            return False
        self.held.remove(call)
        self.held_bytes -= call.size_bytes
        return True

    def worth_holding(self, hold_s: float) -> bool:
        """Is it likely that the server takes calls again within `hold_s`?"""
        return self.state in _COMING or 0 <= self.retry_after_ms <= hold_s * 1000

    def _aim(self) -> None:
        wire = self.wire
        away = wire is None or wire.down or wire.generation < self.generation
        self.target = None if away or self.state in _AWAY else wire


def error(code: int, message: str, data: dict[str, object]) -> Answer:
    return Answer(codec.dump({"code": int(code), "message": message, "data": data}), code)


def went_down(link: Link, wire: Wire, reason: str, message: str) -> Answer:
    """For a call that the server had: whether it did anything, nobody can say."""
    text = f"server '{link.server}' went down while this call was with it: {message}"
    return _down(link, wire.generation, reason, text, may_have_run=True)


def not_there(link: Link) -> Answer:
    """For a call that was not sent."""
    text = f"server '{link.server}' is not available: {link.message or _WHY[link.state]}"
    return _down(link, link.generation, link.reason or link.state, text, may_have_run=False)


#: What a state without a message of its own means for a caller.
_WHY = {
    "unknown": "it has not been started yet; try again later",
    "warming": "it is still starting; try again later",
    "ready": "the connection to it was lost and is not back yet; try again later",
    "idle": "it is being started; try again later",
    "draining": "it is being stopped",
    "stopped": "it was stopped; `metamcp ctl start` starts it",
    "error": "it failed; `metamcp ctl status` shows why",
}  # fmt: skip


def timed_out(link: Link, wire: Wire) -> Answer:
    limit_s = link.timeout_s
    return error(
        Code.TIMED_OUT,
        f"server '{link.server}' and its worker did not answer within {limit_s:g} s",
        {"server": link.server, "generation": wire.generation, "timeout_s": limit_s,
         "may_have_run": True},
    )  # fmt: skip


def overloaded(link: Link, why: str) -> Answer:
    return error(
        Code.OVERLOADED,
        f"server '{link.server}' has too much to do: {why}; try again later",
        {"server": link.server, "may_have_run": False},
    )


def _down(link: Link, generation: int, reason: str, message: str, *, may_have_run: bool) -> Answer:
    return error(
        Code.SERVER_DOWN,
        message,
        {
            "reason": reason,
            "server": link.server,
            "generation": generation,
            "retry_after_ms": link.retry_after_ms if link.retry_after_ms >= 0 else None,
            "may_have_run": may_have_run,
        },
    )
