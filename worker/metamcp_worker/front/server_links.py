"""What a front holds of one server: its state, the pipes to its generations, the waiting calls.

Owns: the values that `routing` moves calls between, whether a server takes calls now, how long it
is worth waiting for, the bytes of calls that may be sent once more. Never: sending, timers, names,
views, which calls may be sent once more (`call_faults`), what a caller is told (`call_faults`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from metamcp_worker.front.client_questions import Caller, Question
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import PipeFull, TooLarge
from metamcp_worker.ipc.frames import CallFrame, Cancel, Claim, Keep, ReplyFrame, Tell
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.pipe import Pipe

TIMEOUT_S = 60.0
"""Of a server about which the configuration does not say."""
SPARE_BYTES_MAX = 16 * 1024 * 1024
"""Per server: the parameters of sent calls that may be sent once more. As much as the largest
message; a call for which there is no room is answered with the error when its server dies."""
SPARE_CALL_BYTES = 512
"""What the frame of such a call costs beside its parameters, roughly."""
REASON_CHARS_MAX = 256
"""Of a cancellation; it is shown to people at most."""

#: States in which a server takes no new calls, though its pipe may still be there.
_AWAY = frozenset({"idle", "draining", "stopped", "error", "quarantined"})
#: States that end by themselves within moments, or (idle) because a call is the reason to start.
_COMING = frozenset({"unknown", "warming", "ready", "idle"})


class CallAnswer(Struct, frozen=True, gc=False):
    """What came back. `code`: 0 for a result, else the JSON-RPC code of the error in `body`."""

    body: bytes
    code: int = 0


class CallOrigin(Struct, frozen=True, gc=False):
    """Where a call comes from and what it is about, for people who look. `name`: of its tool or
    prompt, as its client knows it; `said`: raw JSON of what the client says of itself; `who`: the
    word for it; `version`: of the protocol that it speaks. `tool`: the server's own name of the
    tool, raw JSON if it is bytes, empty for other methods."""

    endpoint: str
    name: str
    said: bytes
    who: str
    progress: bool
    version: str = ""
    tool: str | bytes = ""


class Call:
    """One request on its way to a server. `answer` raises nothing but CancelledError.

    `frame`: while it is not sent yet. `label`: its method, for the figures. `modern`, `legacy`: the
    client's era and the server's. `caller`: takes what the server says before its answer. `mend`:
    what is still to be done to the result. `repeatable`: it may be sent once more if its server
    dies; `spare`: its frame, kept for that. `ends`: for one that is sent once more, when it must be
    over; 0 until then. `origin`: None for the gateway's own, and if another front had it
    before. `kept`: what its worker is told of it, if it outlives this front.
    """

    __slots__ = (
        "_cancel", "answer", "caller", "deadline", "ends", "frame", "id", "kept", "label", "legacy",
        "mend", "modern", "origin", "repeatable", "server", "spare", "started", "wire",
    )  # fmt: skip

    def __init__(
        self,
        server: str,
        frame: CallFrame,
        answer: asyncio.Future[CallAnswer],
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
        self.repeatable = False
        self.spare: CallFrame | None = None
        self.ends = 0.0
        self.kept: Keep | None = None
        self.origin: CallOrigin | None = None
        self._cancel = cancel

    @property
    def size_bytes(self) -> int:
        """Of what is still to be sent."""
        return _size_bytes(self.frame) if self.frame else 0

    def interim(self, answer: CallAnswer) -> None:
        """Answer who waits now. The call goes on: its own answer comes to another future, which is
        `answer` from now on."""
        waiting, self.answer = self.answer, self.answer.get_loop().create_future()
        waiting.set_result(answer)

    def cancel(self, reason: str) -> None:
        """Nobody waits any more: tell the server and free everything. Idempotent."""
        self._cancel(self, reason)


class Wire:
    """One pipe to one generation of a server, who waits for answers on it, by call id, and what the
    server asks of them, by its number. `claims`: who is told whether a call was kept there.
    `legacy`: the process speaks a revision with sessions."""

    __slots__ = (
        "claims", "down", "generation", "gone", "legacy", "link", "pipe", "questions", "waiting",
    )  # fmt: skip

    def __init__(self, link: "ServerLink", generation: int, *, legacy: bool = False) -> None:
        self.link = link
        self.generation = generation
        self.legacy = legacy
        self.pipe: Pipe | None = None
        self.waiting: dict[int, Call] = {}
        self.questions: dict[int, Question] = {}
        self.claims: dict[int, Callable[[bytes], None]] = {}
        self.down = False
        self.gone = asyncio.Event()

    def heard(self, id: int) -> Caller | None:  # noqa: A002 - the frame's own name
        """Who takes what the server says before the answer to this call. What was heard cannot be
        unsaid: the call is not sent once more."""
        call = self.waiting.get(id)
        if call is None or call.caller is None:
            return None
        if call.spare is not None:
            self.link.unkeep(call)
        return call.caller

    def sent(self, call: Call, frame: CallFrame, deadline: float) -> None:
        """The call is in the pipe, and waits for its answer until the deadline."""
        call.frame = None
        if self.link.apart:
            call.legacy = self.legacy
        if call.repeatable:
            self.link.keep(call, frame)
        call.wire = self
        call.deadline = deadline
        self.waiting[call.id] = call
        if call.kept is not None:
            self.keep(call.kept)

    def cancel(self, call: Call, reason: str) -> None:
        """Tell the server that nobody waits for this call any more."""
        # A full pipe: the worker's own deadline ends the call then.
        self.offer(Cancel(call.id, reason[:REASON_CHARS_MAX].encode("utf-8", "replace")))

    def keep(self, frame: Keep) -> None:
        """This call outlives this front. If the pipe is full it does not."""
        self.offer(frame)

    def offer(self, frame: Cancel | Keep | ReplyFrame | Tell) -> None:
        """Send this, unless the pipe is full: nobody waits for an answer to it."""
        if self.pipe is not None:
            with contextlib.suppress(PipeFull, TooLarge):
                self.pipe.send(frame)

    def expired(self, now: float) -> list[Call]:
        """Wait no longer for the answers to the calls whose time is up; them."""
        late = [call for call in self.waiting.values() if call.deadline <= now]
        for call in late:
            del self.waiting[call.id]
            self.over(call)
        return late

    def claim(self, frame: Claim, told: Callable[[bytes], None]) -> bool:
        """Ask the worker for a call; `told` with the note of it, or an empty one. False: it cannot
        be asked."""
        if self.pipe is None or self.down:
            return False
        try:
            self.pipe.send(frame)
        except PipeFull:
            return False
        self.claims[frame.id] = told
        return True

    def claimed(self, number: int, note: bytes) -> None:
        told = self.claims.pop(number, None)
        if told is not None:
            told(note)

    def over(self, call: Call) -> None:
        """The call has ended: what its server asked is not to be answered any more, and nothing of
        it is kept."""
        if call.spare is not None:
            self.link.unkeep(call)
        for question in [one for one in self.questions.values() if one.call == call.id]:
            del self.questions[question.number]
            question.withdraw()


class ServerLink:
    """One server, or its process for one client; `name`: what clients know it by. `target`: the
    wire that takes new calls now; `held`: calls that wait for one, `held_bytes` in all; `hold_ms`:
    how long they may, -1 for as long as for any server. `apart`: it is a process for one client, or
    for those of one era, which may speak another era than its server."""

    __slots__ = (
        "apart", "generation", "held", "held_bytes", "hold_ms", "message", "name", "reason",
        "retry_after_ms", "server", "spare_bytes", "state", "target", "timeout_s", "wanted_at",
        "wire",
    )  # fmt: skip

    def __init__(self, server: str, timeout_s: float) -> None:
        self.server = server
        self.name = process_names.base(server)
        self.timeout_s = timeout_s
        self.apart = self.name != server
        # One for a single client is there once it is called; of others the supervisor tells.
        self.state = "idle" if self.apart else "unknown"
        self.generation = 0
        self.reason = ""
        self.message = ""
        self.retry_after_ms = -1
        self.hold_ms = -1
        self.spare_bytes = 0
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
        self.hold_ms = news.hold_ms
        if self.hold_ms > 0:
            self._hold_longer(self.hold_ms / 1000)
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
        for number in list(wire.claims):
            wire.claimed(number, b"")
        self._aim()

    def end(self, why: str) -> None:
        """The server is not there any more, and does not come back under this link."""
        self.state, self.message, self.retry_after_ms = "stopped", why, -1

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

    def expired(self, now: float) -> list[Call]:
        """Hold the calls no longer whose time is up; them."""
        late = [call for call in self.held if call.deadline <= now]
        if late:
            self.held = deque(call for call in self.held if call.deadline > now)
            self.held_bytes = sum(call.size_bytes for call in self.held)
        return late

    def hold_s(self, default_s: float) -> float:
        """How long a call may wait for this server. `default_s`: for any server."""
        return default_s if self.hold_ms < 0 else self.hold_ms / 1000

    def worth_holding(self, default_s: float) -> bool:
        """Is it likely that the server takes calls again while a call may wait for it?"""
        hold_s = self.hold_s(default_s)
        return hold_s > 0 and (self.state in _COMING or 0 <= self.retry_after_ms <= hold_s * 1000)

    def keep(self, call: Call, frame: CallFrame) -> None:
        """The call was sent: keep its frame as well, if there is room, to send it once more."""
        size = _size_bytes(frame) + SPARE_CALL_BYTES
        call.repeatable = False  # once, and no more than once
        if self.spare_bytes + size <= SPARE_BYTES_MAX:
            self.spare_bytes += size
            call.spare = frame

    def unkeep(self, call: Call) -> CallFrame | None:
        """The call is over, or cannot be sent once more; its frame, if that was kept."""
        frame, call.spare = call.spare, None
        if frame is not None:
            self.spare_bytes -= _size_bytes(frame) + SPARE_CALL_BYTES
        return frame

    def _hold_longer(self, hold_s: float) -> None:
        """The server says now how long it takes to start; before, it was held as any other."""
        for call in self.held:
            until = call.started + hold_s
            call.deadline = max(call.deadline, min(until, call.ends) if call.ends else until)

    def _aim(self) -> None:
        wire = self.wire
        away = wire is None or wire.down or wire.generation < self.generation
        self.target = None if away or self.state in _AWAY else wire


def _size_bytes(frame: CallFrame) -> int:
    return len(frame.params) + len(frame.meta) + len(frame.caller)


def inflight(links: Iterable[ServerLink], wires: Iterable[Wire]) -> dict[str, int]:
    """Calls that wait for an answer, by what clients know the server by, held ones included."""
    counts: dict[str, int] = {}
    for link in links:
        counts[link.name] = counts.get(link.name, 0) + len(link.held)
    for wire in wires:
        counts[wire.link.name] = counts.get(wire.link.name, 0) + len(wire.waiting)
    return counts


def under_way(links: Iterable[ServerLink], wires: Iterable[Wire]) -> Iterator[tuple[Call, str]]:
    """Every call that is not answered yet, and its state as in `messages.CallUnderWay`."""
    for link in links:
        yield from ((call, "held") for call in link.held)
    for wire in wires:
        asking = {question.call for question in wire.questions.values()}
        for call in wire.waiting.values():
            yield call, "asking" if call.id in asking else "running"


def error(code: int, message: str, data: dict[str, object]) -> CallAnswer:
    return CallAnswer(codec.dump({"code": int(code), "message": message, "data": data}), code)
