"""Links of a front to its servers: the state of each, pipes to its generations, waiting calls.

Owns: the values that `call_router` moves calls between, whether a server takes calls now, how long
calls and lists wait for it, the bytes of calls that may be sent again. Never: sending calls, their
timers, names, views, which calls may be sent again and what their callers get (`call_faults`).
"""

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from time import monotonic

from metamcp_worker.access.use_limits import Meter
from metamcp_worker.front_calls.client_questions import Caller, Question
from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import PipeFull, TooLarge
from metamcp_worker.ipc.frames import (
    CallFrame,
    Cancel,
    ClientNotice,
    KeepCall,
    RecoverCall,
    ReplyFrame,
)
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.pipe import Pipe

log = logging.getLogger("metamcp.front")

TIMEOUT_S = 300.0
"""Seconds for a call to a server whose timeout the configuration does not give."""
SPARE_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes per server of the parameters of sent calls that may be sent again: as many as the
largest message has. A call that finds no room gets the error when its server dies."""
SPARE_CALL_BYTES = 512
"""Bytes that the frame of such a call costs beside its parameters, roughly."""
REASON_CHARS_MAX = 256
"""Maximum characters of the reason of a cancellation; at most people read it."""

#: States in which a server takes no new calls, though its pipe may still be there.
_AWAY = frozenset({"idle", "draining", "stopped", "error", "quarantined"})
#: States that end by themselves within moments, or (idle) because a call is the reason to start.
_COMING = frozenset({"unknown", "warming", "ready", "idle"})


FIRST_LIST_S = 4.0
"""Seconds that lists wait for a server, from its first start on: some clients ask for them once."""
_STARTING = "warming"


class ServerStates:
    """States of servers, as the supervisor says. `latest`: by server. Lists wait for servers that
    start for the first time."""

    def __init__(self) -> None:
        self.latest: dict[str, ServerState] = {}
        self._first_starts: dict[str, float] = {}
        """Servers that start for the first time that this front knows of, and when the start began,
        in seconds of `time.monotonic`."""
        self._started: set[str] = set()
        self._learned = asyncio.Event()

    def learn(self, news: ServerState) -> None:
        self.latest[news.server] = news
        if news.listed:
            self._started.add(news.server)
        if news.state != _STARTING or news.listed:
            self._first_starts.pop(news.server, None)
        elif news.server not in self._started:
            self._started.add(news.server)
            self._first_starts[news.server] = monotonic()
        learned, self._learned = self._learned, asyncio.Event()
        learned.set()

    def forget(self, server: str) -> None:
        self.latest.pop(server, None)
        self._first_starts.pop(server, None)
        self._started.discard(server)

    def unmet_s(self, servers: Collection[str]) -> float:
        """Return the seconds that a list of these servers may still wait for those that start for
        the first time, and whose lists are not known; 0 if there are none."""
        if not self._first_starts:
            return 0.0
        since = [at for name, at in self._first_starts.items() if name in servers]
        return max(0.0, max(since) + FIRST_LIST_S - monotonic()) if since else 0.0

    async def wait(self, servers: Collection[str]) -> None:
        """Wait until those of these servers that start for the first time are ready, have failed,
        or had their time."""
        while wait_s := self.unmet_s(servers):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._learned.wait()


class PendingAnswer:
    """Answer of a call, which comes once or never. Costs less than a Future: whoever waits for it
    gets it at once, not in the next turn of the loop."""

    _answer: CallAnswer | None = None
    _done = False
    _told: tuple[Callable[[CallAnswer | None], None], ...] = ()

    def is_done(self) -> bool:
        return self._done

    def is_cancelled(self) -> bool:
        """Whether the call was cancelled, so that no answer comes."""
        return self._done and self._answer is None

    def result(self) -> CallAnswer:
        """Return the answer that has come."""
        assert self._answer is not None, "the answer has come"
        return self._answer

    def add_callback(self, on_answer: Callable[[CallAnswer | None], None]) -> None:
        """Call `on_answer` with the answer, None if the call is cancelled: when the answer comes,
        or in the next turn of the loop if it is there. `on_answer` raises nothing."""
        if self._done:
            asyncio.get_running_loop().call_soon(on_answer, self._answer)
        else:
            self._told += (on_answer,)

    def end(self, answer: CallAnswer | None) -> None:
        """Give the answer, None if the call is cancelled; nothing happens if it has ended."""
        if self._done:
            return
        self._done, self._answer = True, answer
        waiting, self._told = self._told, ()
        for on_answer in waiting:
            try:
                on_answer(answer)
            except Exception as error:
                log.error("the answer of a call was not taken", exc_info=error)

    async def wait(self) -> CallAnswer | None:
        """Wait for the answer; None if the call is cancelled."""
        future: asyncio.Future[CallAnswer | None] = asyncio.get_running_loop().create_future()
        self.add_callback(lambda answer: None if future.done() else future.set_result(answer))
        return await future


class Call:
    """Request on its way to a server.

    `frame`: set until it is sent. `label`: its method, for the figures. `modern`, `legacy`: the
    client's era and the server's. `caller`: takes what the server says before its answer. `mend`:
    change that is still to be made to the result. `repeatable`: the call may be sent again if its
    server dies; `spare`: its frame, kept for that. `ends`: the moment when a call that was sent
    again must be over; 0 until then. `origin`: None for a call of the gateway itself, and for a
    call that another front had before. `meters`: limits at which it counts. `record`: name and
    members of its record in the audit. `kept`: what the worker learns of the call, if it outlives
    this front. `hooks`: middleware that the call goes through; None for nearly all."""

    __slots__ = (
        "_cancel", "answer", "caller", "deadline", "ends", "frame", "hooks", "id", "kept", "label",
        "legacy", "mend", "meters", "modern", "origin", "record", "repeatable", "server", "spare",
        "started", "wire",
    )  # fmt: skip

    def __init__(
        self,
        server: str,
        frame: CallFrame,
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
        self.answer = PendingAnswer()
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
        self.kept: KeepCall | None = None
        self.origin: CallOrigin | None = None
        self.meters: tuple[Meter, ...] = ()
        self.record: tuple[str, bytes] | None = None
        self.hooks: Callable[[CallAnswer | None], None] | None = None
        self._cancel = cancel

    @property
    def size_bytes(self) -> int:
        """Bytes that are still to be sent."""
        return _size_bytes(self.frame) if self.frame else 0

    def leave_meters(self) -> None:
        """Let the call count at no limit any more."""
        for meter in self.meters:
            meter.inflight -= 1
        self.meters = ()

    def interim(self, answer: CallAnswer) -> None:
        """Answer the client that waits now. The call goes on: its own answer comes to another
        `PendingAnswer`, which is `answer` from now on."""
        waiting, self.answer = self.answer, PendingAnswer()
        waiting.end(answer)

    def cancel(self, reason: str) -> None:
        """End the call, because its client does not wait any more: tell the server and free
        everything. Idempotent."""
        self._cancel(self, reason)


class Wire:
    """Pipe to one generation of a server. `waiting`: calls that wait for answers on it, by call id;
    `questions`: open questions of the server, by their number; `claims`: functions to call with the
    note of a call that was kept there. `legacy`: the process speaks a revision with sessions."""

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

    def find_caller(self, id: int) -> Caller | None:  # noqa: A002 - the frame's own name
        """Return the caller that takes what the server says before the answer to this call. The
        client cannot unhear it, so the call is not sent again."""
        call = self.waiting.get(id)
        if call is None or call.caller is None:
            return None
        if call.spare is not None:
            self.link.unkeep(call)
        return call.caller

    def on_sent(self, call: Call, frame: CallFrame, deadline: float) -> None:
        """Note that the call is in the pipe, and waits for its answer until the deadline."""
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
        """Notify the server that the client does not wait for this call any more."""
        # A full pipe: the worker's own deadline ends the call then.
        self.offer(Cancel(call.id, reason[:REASON_CHARS_MAX].encode("utf-8", "replace")))

    def keep(self, frame: KeepCall) -> None:
        """Let this call outlive this front, unless the pipe is full. The frame is written before
        the client gets an event with which it could come back to another front."""
        self.offer(frame)
        if self.pipe is not None:
            self.pipe.flush()

    def offer(self, frame: Cancel | KeepCall | ReplyFrame | ClientNotice) -> None:
        """Send a frame that has no answer, unless the pipe is full."""
        if self.pipe is not None:
            with contextlib.suppress(PipeFull, TooLarge):
                self.pipe.send(frame)

    def take_expired(self, now: float) -> list[Call]:
        """Return the calls whose time is up, and wait for their answers no longer."""
        late = [call for call in self.waiting.values() if call.deadline <= now]
        for call in late:
            del self.waiting[call.id]
            self.on_call_end(call)
        return late

    def claim(self, frame: RecoverCall, on_note: Callable[[bytes], None]) -> bool:
        """Ask the worker for a call; `on_note` is called with the note of the call, or with an
        empty one. Returns False if the worker cannot be asked."""
        if self.pipe is None or self.down:
            return False
        try:
            self.pipe.send(frame)
        except PipeFull:
            return False
        self.claims[frame.id] = on_note
        return True

    def on_claim_note(self, number: int, note: bytes) -> None:
        on_note = self.claims.pop(number, None)
        if on_note is not None:
            on_note(note)

    def on_call_end(self, call: Call) -> None:
        """Clean up after a call that has ended: withdraw the open questions of its server, and drop
        the frame that was kept."""
        if call.spare is not None:
            self.link.unkeep(call)
        for question in [
            open_question
            for open_question in self.questions.values()
            if open_question.call == call.id
        ]:
            del self.questions[question.number]
            question.withdraw()


class ServerLink:
    """Link to one server, or to its process for one client. `name`: name by which clients know the
    server. `target`: wire that takes new calls now; `held`: calls that wait for a wire,
    `held_bytes` in all; `called_after`: time from which a call starts the server; `hold_ms`: how
    long they may wait, -1 for as long as at any server.
    `apart`: the process is for one client, or for the clients of one era, and may speak another era
    than its server."""

    __slots__ = (
        "apart", "called_after", "generation", "held", "held_bytes", "hold_ms", "message", "name",
        "reason", "retry_after_ms", "server", "spare_bytes", "state", "target", "timeout_s",
        "wanted_at", "wire",
    )  # fmt: skip

    def __init__(self, server: str, timeout_s: float) -> None:
        self.server = server
        self.name = process_names.base(server)
        self.timeout_s = timeout_s
        self.apart = self.name != server
        # A process for a single client starts when it is called; the supervisor reports others.
        self.state = "idle" if self.apart else "unknown"
        self.generation = 0
        self.reason = ""
        self.message = ""
        self.retry_after_ms = -1
        self.called_after = math.inf
        self.hold_ms = -1
        self.spare_bytes = 0
        self.wire: Wire | None = None
        self.target: Wire | None = None
        self.held: deque[Call] = deque()
        self.held_bytes = 0
        self.wanted_at = float("-inf")

    def learn(self, news: ServerState, now: float) -> None:
        """Take over what the supervisor says of the server, unless it is about an older
        generation."""
        if self.wire is not None and 0 < news.generation < self.wire.generation:
            return
        self.state = news.state
        self.generation = news.generation or self.generation
        self.reason = news.reason
        self.message = news.message
        self.retry_after_ms = news.retry_after_ms
        starts_on_call = news.call_after_ms >= 0
        self.called_after = now + news.call_after_ms / 1000 if starts_on_call else math.inf
        self.hold_ms = news.hold_ms
        if self.hold_ms > 0:
            self._hold_longer(self.hold_ms / 1000)
        self._aim()

    def attach(self, wire: Wire) -> None:
        """Take a pipe to a generation that takes calls; it replaces the pipe to an older
        generation."""
        if self.wire is not None and wire.generation < self.wire.generation:
            return
        self.wire = wire
        self.wanted_at = float("-inf")  # what was asked for is there
        if wire.generation >= self.generation:
            self.generation = wire.generation
            self.state = "ready"
        self._aim()

    def lose(self, wire: Wire) -> None:
        wire.down = True
        for number in list(wire.claims):
            wire.on_claim_note(number, b"")
        self._aim()

    def end(self, reason: str) -> None:
        """Note that the server is gone, and does not come back under this link. `reason`: a
        sentence."""
        self.state, self.message, self.retry_after_ms = "stopped", reason, -1
        self.called_after = math.inf

    def hold(self, call: Call) -> None:
        self.held.append(call)
        self.held_bytes += call.size_bytes

    def take(self) -> Call:
        """Return the call that is held longest, and hold it no longer."""
        call = self.held.popleft()
        self.held_bytes -= call.size_bytes
        return call

    def drop(self, call: Call) -> bool:
        """Hold this call no longer. Returns False if it was not held."""
        if call not in self.held:
            return False
        self.held.remove(call)
        self.held_bytes -= call.size_bytes
        return True

    def take_expired(self, now: float) -> list[Call]:
        """Return the held calls whose time is up, and hold them no longer."""
        late = [call for call in self.held if call.deadline <= now]
        if late:
            self.held = deque(call for call in self.held if call.deadline > now)
            self.held_bytes = sum(call.size_bytes for call in self.held)
        return late

    def hold_s(self, default_s: float) -> float:
        """Return the seconds that a call may wait for this server. `default_s`: for any server."""
        return default_s if self.hold_ms < 0 else self.hold_ms / 1000

    def worth_holding(self, default_s: float, now: float) -> bool:
        """Whether the server is likely to take calls again while a call may wait for it: it comes
        by itself, or because of the call."""
        hold_s = self.hold_s(default_s)
        soon = 0 <= self.retry_after_ms <= hold_s * 1000 or self.called_after <= now
        return hold_s > 0 and (self.state in _COMING or soon)

    def keep(self, call: Call, frame: CallFrame) -> None:
        """Keep the frame of a call that was sent, if there is room, to send it again."""
        size = _size_bytes(frame) + SPARE_CALL_BYTES
        call.repeatable = False  # once, and no more than once
        if self.spare_bytes + size <= SPARE_BYTES_MAX:
            self.spare_bytes += size
            call.spare = frame

    def unkeep(self, call: Call) -> CallFrame | None:
        """Drop the frame of a call that is over or cannot be sent again; returns the frame, if it
        was kept."""
        frame, call.spare = call.spare, None
        if frame is not None:
            self.spare_bytes -= _size_bytes(frame) + SPARE_CALL_BYTES
        return frame

    def _hold_longer(self, hold_s: float) -> None:
        """Extend the deadlines of held calls, now that the server says how long it takes to
        start."""
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
    """Return the number of calls that wait for an answer, held ones included, by the name of the
    server that clients know."""
    counts: dict[str, int] = {}
    for link in links:
        counts[link.name] = counts.get(link.name, 0) + len(link.held)
    for wire in wires:
        counts[wire.link.name] = counts.get(wire.link.name, 0) + len(wire.waiting)
    return counts


def under_way(links: Iterable[ServerLink], wires: Iterable[Wire]) -> Iterator[tuple[Call, str]]:
    """Yield every call that is not answered yet, with its state as in `figures.CallUnderWay`."""
    for link in links:
        yield from ((call, "held") for call in link.held)
    for wire in wires:
        asking = {question.call for question in wire.questions.values()}
        for call in wire.waiting.values():
            yield call, "asking" if call.id in asking else "running"


def error(code: int, message: str, data: dict[str, object]) -> CallAnswer:
    return CallAnswer(codec.dump({"code": int(code), "message": message, "data": data}), code)
