"""MCP client side of one connection to a server, in both eras, without I/O.

Owns: the calls of fronts and the answer to each of them; the effect of every line that the server
sends; how much a server may send unasked (`Budget`). Never: reading, writing, waiting, clocks; each
method takes an event and its time, and returns the actions that follow.

Bodies are not decoded: only the envelope of a line is, and the bytes of its result or error go to
the front unchanged. Other modules own the rest of a connection: `handshake` the handshake and the
lists, `server_questions` the questions of the server, `notices` its notifications, `subscriptions`
the watched resources, `server_log` the level of its log.

Each message costs its worker and a front some microseconds, whatever its content, so a server that
sends without end would take the processors from all other servers. The worker stops reading once
the budget is spent, the pipe fills up, and the server itself waits. Answers that a client waits for
are free, but they come through the same pipe: up to 64 KiB stand before an answer in the pipe,
which the worker reads within a second or two. A burst is free, because it ends by itself.
"""

from metamcp_worker.child import jsonrpc_lines, notices
from metamcp_worker.child.actions import (
    Actions,
    CancelRequest,
    CountOnce,
    Fail,
    InvalidLine,
    KeepResult,
    ReplyToFront,
    RequestPurpose,
    ServerRequest,
    WarnInLog,
    WriteToServer,
)
from metamcp_worker.child.call_queue import SentCall
from metamcp_worker.child.frontless_calls import Orphans
from metamcp_worker.child.handshake import ECHOES, OPENINGS, ConnectionSetup, own_caller
from metamcp_worker.child.hang_probe import HangProbe
from metamcp_worker.child.jsonrpc_lines import FIT, ServerErrors, error_object
from metamcp_worker.child.lists import CHANGES, TaskOwners, find_declared_lists
from metamcp_worker.child.own_requests import OwnRequest, OwnRequests
from metamcp_worker.child.server_calls import ServerCalls, Timing, error_type
from metamcp_worker.child.server_log import Levels
from metamcp_worker.child.server_questions import RootsQuestions, ServerQuestions
from metamcp_worker.child.subscriptions import (
    METHODS,
    LegacySubscriptions,
    ModernSubscriptions,
    strip_subscription_id,
)
from metamcp_worker.confinement.denials import DeniedRight, sentence
from metamcp_worker.ipc import codec, frames, roots
from metamcp_worker.ipc.envelope import Envelope, OverlongLine, glimpse
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Cancel, ClientNotice, Error, Result
from metamcp_worker.ipc.spec import RESULT_BYTES_MIN, ServerSpec

_TIMED_OUT = str(int(Code.TIMED_OUT))
CUT = "cut"
"""Error type of a call whose front ended before the answer: no front is left to count it."""
_UNSENT = "does not read its input; the call was not sent to it"

ROOTS_S = 0.1
"""Seconds that calls wait after a server asked for the roots of its client while it started. The
server needs time to use the roots, and an earlier call would find no folder."""
SET_LEVEL = "logging/setLevel"
WATCH_TASKS = "metamcp/tasks"
"""Notification of a front about the tasks that its clients watch; not passed to the server as it
is."""


class ServerSession:
    """Connection to one server. After an action `Fail` the session does nothing any more."""

    def __init__(self, spec: ServerSpec, version: str, now: float) -> None:
        self._spec = spec
        self._timeout_s = spec.timeout_s
        self._faults = ServerErrors(spec.name)
        self._calls = ServerCalls(
            concurrency=spec.concurrency, queue=spec.queue, timeout_max_s=spec.timeout_max_s
        )
        self.timing = Timing()
        self.budget = Budget(now)
        self._updates = notices.Updates()
        self._own = OwnRequests(version, self._calls.new_id, own_caller(spec))
        self._opening = ConnectionSetup(spec, version, self._own, now)
        self._task_owners = TaskOwners()
        self._asks = ServerQuestions(self._calls, self._faults, self._task_owners)
        self._root_asks = RootsQuestions(self._calls, self._asks, keeps=spec.asks_roots == "ahead")
        self.orphans = Orphans(self._calls, self._asks, self._given_up)
        self._levels = Levels(sessions=spec.url is not None)
        self._listening = ModernSubscriptions(
            self._own, self._faults, timeout_s=spec.timeout_s, calls_max=spec.queue
        )
        self._watched: ModernSubscriptions | LegacySubscriptions = self._listening
        self._stamp = self._own.stamp
        self._modern = False
        self._probing: HangProbe | None = None
        self._heard_at = now
        self._logs = False
        self._ready = False
        self._draining = False
        self._failed = False
        self._roots = spec.roots.encode()
        self._calls_from = now
        self._refused_at, self._refusal = float("-inf"), ""

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def is_probing(self) -> bool:
        """Whether the server is being asked if it is modern."""
        return self._opening.is_probing

    @property
    def in_flight(self) -> int:
        return len(self._calls.in_flight) + self._watched.waiting_count

    @property
    def queue_length(self) -> int:
        return self._calls.queue_length

    @property
    def waiting_calls(self) -> list[tuple[int, int]]:
        return self._calls.waiting_calls

    @property
    def is_needed(self) -> bool:
        """Whether a client waits for an answer, or for news of something that it watches."""
        return bool(
            self.in_flight or self.queue_length or self._watched.has_watchers or self.orphans.any
        )

    def due(self, now: float) -> float:
        """Return when the next tick is due if nothing comes before: `now` if somebody waits for the
        server or for news of it, or else the next time for probes."""
        if self.in_flight or self.queue_length or self.orphans.any or self._opening.busy:
            return now
        if self._updates.is_merging:
            return now
        return now if self._probing is None else self._probing.due(now)

    @property
    def probes_missed(self) -> int:
        """Number of probes in a row that the server did not answer."""
        return self._probing.missed if self._probing is not None else 0

    # --- what the gateway wants -------------------------------------------------------------

    def start(self) -> Actions:
        """Send the first request, because the server runs."""
        return self._opening.start()

    def call(self, front: int, frame: CallFrame, now: float, stuck: bool = False) -> Actions:
        """Send a call of a front, or queue or refuse it. `stuck`: whether the server does not read
        its input."""
        timeout_s = frame.deadline_ms / 1000 or self._timeout_s
        if self._draining or self._failed:
            return [self._faults.answer(front, frame.id, Code.SERVER_DOWN, "is stopping")]
        if stuck:
            return [self._faults.build_overload_reply(front, frame.id, self._calls.load(), _UNSENT)]
        if self._ready and self._calls.free():
            return self._begin(front, frame, now + timeout_s, timeout_s, now)
        out = self._calls.wait(front, frame, now + timeout_s, timeout_s)
        if out is None:
            return []
        return [self._faults.build_overload_reply(out.front, out.frame.id, self._calls.load())]

    def cancel(self, front: int, frame: Cancel, now: float) -> Actions:
        """Cancel a call that its front does not wait for any more; the front gets no answer."""
        key, was_found = self._calls.cancel(front, frame.id, now)
        if not was_found:
            self._watched.cancel(front, frame.id)
        return self._given_up([key] if key else [], frame.reason, now)

    def reply(self, front: int, frame: frames.ReplyFrame, now: float) -> Actions:
        """Pass on the answer of a front to a question of the server."""
        return [*self._asks.reply(front, frame, now), *self._count_lent_roots()]

    def on_right_denied(self, denied: DeniedRight, now: float) -> None:
        """Note that the sandbox refused the server this right, which calls may fail for."""
        self._refused_at, self._refusal = now, sentence(denied, self._spec.confinement)

    def refuse_question(self, question: int, now: float) -> Actions:
        """Refuse a question of the server that could not be sent to its front."""
        return self._asks.refuse_question(question, now)

    def tell(self, front: int, frame: ClientNotice, now: float) -> Actions:
        """Handle a notification of a front's clients."""
        if frame.method == SET_LEVEL:
            self._levels.tell(frame.body)
            return self._set_level(b"") if self._logs else []
        if frame.method == WATCH_TASKS and (self._modern or not self._ready):
            return self._listening.watch_tasks(front, frame.body, now)
        if frame.method == "notifications/progress":
            return self._asks.on_progress(front, frame.body)
        if frame.method == roots.TOLD:
            return self._on_roots(frame.body)
        if frame.method == WATCH_TASKS or not self._ready:
            return [CountOnce("untold_notification")]
        return notices.forward_notification(frame, modern=self._modern)

    def unsent(self, key: bytes, now: float) -> Actions:
        """Answer with an error, because the line of this request could not be written."""
        unsent = self._calls.drop(key)
        error = self._faults.overload(self._calls.load(), _UNSENT)
        if unsent is None:
            return self._own_answered(key, b"", error, now, lost=True)
        return [ReplyToFront(unsent.front, Error(unsent.call, error)), *self._next_turns(now)]

    def on_request_failed(self, key: bytes, error: bytes, now: float) -> Actions:
        """Answer with this error of the transport, because the server does not answer this
        request."""
        lost = self._calls.leave(key, now)
        if lost is None:
            return self._own_answered(key, b"", error, now, lost=True)
        closing = self._asks.close_questions(key, tell_front=True)
        return [*closing, ReplyToFront(lost.front, Error(lost.call, error)), *self._next_turns(now)]

    def front_gone(self, front: int, now: float) -> Actions:
        """Cancel the calls of a front that is gone, except those that another front may claim."""
        orphan_actions = self.orphans.front_gone(front, now)
        calls = self._calls.forget(front, now)
        for call in calls.values():
            self.timing.count_call(call.method, now - call.since, CUT)
        actions = self._given_up(list(calls), b"the client is gone", now)
        return [*orphan_actions, *actions, *self._watched.front_gone(front, now)]

    def drain(self) -> None:
        """Take no more calls."""
        self._draining = True

    def fail_calls(self, code: Code, cause: str) -> Actions:
        """Answer every call with an error, because the connection is lost."""
        self._failed = True
        closing = [
            action
            for key in list(self._calls.in_flight)
            for action in self._asks.close_questions(key, tell_front=True)
            if isinstance(action, ReplyToFront)
        ]
        calls = [self._faults.answer(front, call, code, cause) for front, call in self._calls.all()]
        return [*closing, *calls, *self._watched.fail_waiters(self._faults.body(code, cause))]

    def tick(self, now: float) -> Actions:
        """Do the work that is due; called a few times per second."""
        if self._failed:
            return []
        actions = self._opening.tick(now)
        if self._probing is not None:
            actions += self._probing.tick(now, self._heard_at, self._calls)
        actions = self._on_opening_step(actions, now)
        actions += [*self._root_asks.tick(now), *self._asks.tick(now)]
        actions += self.orphans.tick(now)
        sent, waiting = self._calls.take_expired(now)
        for key, call in sent:
            actions.append(
                CancelRequest(key, jsonrpc_lines.build_cancel_notification(key, b"timeout"))
            )
            actions += self._asks.close_questions(key, tell_front=True)
            self.timing.count_call(call.method, now - call.since, _TIMED_OUT)
            actions.append(self._timed_out(call))
        for late in waiting:
            frame = late.frame
            actions.append(
                self._faults.not_sent(late.front, frame.id, frame.method, late.timeout_s)
            )
        actions += [*self._watched.tick(now), *self._updates.tick()]
        if self._listening.gap and self._opening.met is not None:
            self._listening.gap = False
            actions += self._opening.on_list_changed(
                find_declared_lists(self._opening.met.capabilities), now
            )
        return [*actions, *self._next_turns(now)]

    # --- what the server says ---------------------------------------------------------------

    def receive(
        self, line: bytes, now: float, stream: bytes | None = None, via: int = 0
    ) -> Actions:
        """Handle one message of the server. `stream`, `via`: where it came from, see
        `transport`."""
        if self._failed:
            return []
        try:
            # The decoder does not look into the strings of what it leaves raw.
            if not line.isascii():
                line.decode()
            key, result = codec.plain_answer(line)
            if key:
                self._heard_at = now
                return self._on_answer(key, result, b"", now)
            envelope = codec.envelope(line)
        except (codec.Malformed, UnicodeDecodeError) as error:
            return self._unreadable(line, str(error), now)
        if envelope.jsonrpc != "2.0":
            return self._noise(line)
        self._heard_at = now
        if envelope.method is None:
            return self._on_answer(
                bytes(envelope.id), bytes(envelope.result), bytes(envelope.error), now
            )
        self.budget.spend(len(line))
        if envelope.id:
            return self._on_request(envelope, stream, via, now)
        return self._on_notification(envelope.method, bytes(envelope.params), stream, via, now)

    def _on_answer(self, key: bytes, result: bytes, error: bytes, now: float) -> Actions:
        actions: Actions = []
        if error or not result:
            result, error = self._failure(result, error, actions)
        call = self._calls.on_answer(key, now)
        if call is None:
            return [*actions, *self._own_answered(key, result, error, now)]
        if not error and not result.startswith(FIT):
            error = self._faults.unfit(call.method, result)
            actions += [CountOnce("broken_reply")] if error else []
        if call.since <= self._refused_at:
            result, error = self._faults.with_refusal(result, error, self._refusal)
        self.timing.count_call(call.method, now - call.since, error_type(error) if error else "")
        if self._asks.asking:
            actions += self._asks.close_questions(key, tell_front=True)
        if call.traced:
            met = self._opening.met
            protocol = "" if met is None else met.protocol
            actions.append(notices.times(call, key, now, self._spec.url, protocol))
        if not (error or self._modern):
            result = self._task_owners.record_owners(call, result)
        if error:
            actions.append(ReplyToFront(call.front, Error(call.call, error)))
        elif call.results and len(result) > RESULT_BYTES_MIN:
            frame = Result(call.call, result)
            name = self._spec.name
            actions.append(KeepResult(call.front, frame, call.results, name, call.tool))
        else:
            actions.append(ReplyToFront(call.front, Result(call.call, result)))
        if self._calls.queue_length:
            actions += self._next_turns(now)
        return actions

    def _failure(self, result: bytes, error: bytes, actions: Actions) -> tuple[bytes, bytes]:
        """Return result and error of an answer that has not just a result: one of both is empty."""
        # Some servers send the other member as null, as JSON-RPC 1.0 does.
        if error == b"null" and result:
            return result, b""
        if error.startswith(b"{") and (not result or result == b"null"):
            return b"", error
        actions.append(CountOnce("broken_reply"))
        problem = "sent an answer that has not either a result or an error object"
        return b"", self._faults.body(Code.INTERNAL_ERROR, problem)

    def _own_answered(
        self, key: bytes, result: bytes, error: bytes, now: float, *, lost: bool = False
    ) -> Actions:
        """Handle the answer to a request of the gateway's own. `lost`: whether the error is the
        gateway's and not the server's."""
        purpose = self._own.take(key)
        if purpose is None:
            self._calls.on_late_reply(key)
            used = self._calls.was_used(key)
            self.budget.spend(len(result) + len(error))
            return [] if lost else [CountOnce("late_reply" if used else "unknown_id")]
        if purpose is RequestPurpose.HANDSHAKE or purpose is RequestPurpose.LIST:
            return self._on_opening_step(
                self._opening.on_answer(key, purpose, result, error, now), now
            )
        if purpose is RequestPurpose.PROBE and not lost and self._probing is not None:
            self._probing.on_answer()
        if purpose is RequestPurpose.LISTEN:
            return self._listening.on_answer(key, error, now, lost=lost)
        if purpose is RequestPurpose.SUBSCRIBE and isinstance(self._watched, LegacySubscriptions):
            return self._watched.on_answer(key, result, error, now)
        return []

    def _on_request(
        self, envelope: Envelope, stream: bytes | None, via: int, now: float
    ) -> Actions:
        """Handle a request of the server."""
        id = bytes(envelope.id)  # noqa: A001 - the wire's own name
        if not codec.id_ok(id):
            return [CountOnce("broken_request")]
        if envelope.method == "ping":
            return [WriteToServer(jsonrpc_lines.answer(id, b"{}"), via)]
        if envelope.method in OPENINGS and not self._ready:
            return [Fail("protocol", ECHOES)]
        if self._modern:
            message = f"MetaMCP: servers of revision {jsonrpc_lines.MODERN} send no requests"
            refusal = jsonrpc_lines.refusal(id, error_object(Code.METHOD_NOT_FOUND, message))
            return [CountOnce("unroutable_request"), WriteToServer(refusal, via)]
        if envelope.method == roots.METHOD:
            return self._asked_for_roots(envelope, stream, via, now)
        return self._asks.route_request(envelope, stream, via, now)

    def _asked_for_roots(
        self, envelope: Envelope, stream: bytes | None, via: int, now: float
    ) -> Actions:
        """Answer a request for roots. A process whose clients have the same roots knows them, and
        a process of one client asks that client."""
        news = self._opening.asked_for_roots("in calls" if self._calls.at_work(now) else "ahead")
        if self._roots:
            if not self._ready:
                self._calls_from = now + ROOTS_S
            answer = jsonrpc_lines.answer(bytes(envelope.id), self._roots)
            return [WriteToServer(answer, via), *news]
        if self._spec.caller:
            return [*self._asks.route_request(envelope, stream, via, now), *news]
        actions = [*self._root_asks.receive(envelope, stream, via, now), *news]
        if self._root_asks.keeps:
            actions += self._opening.asked_for_roots("ahead")
        return [*actions, *self._count_lent_roots()]

    def _count_lent_roots(self) -> Actions:
        """Count a process for all clients that keeps the roots which one of them lent it."""
        if not (self._asks.lent_roots and self._root_asks.keeps):
            return []
        self._asks.lent_roots = False
        return [CountOnce("lent_roots")]

    def _on_roots(self, answer: bytes) -> Actions:
        """Note the roots that the client of this process has now, and tell the server if they
        changed."""
        if answer == self._roots:
            return []
        self._roots = answer
        if self._modern or self._opening.met is None:
            return []
        return [WriteToServer(jsonrpc_lines.notification(roots.CHANGED))]

    def _on_notification(
        self, method: str, params: bytes, stream: bytes | None, via: int, now: float
    ) -> Actions:
        if method == "notifications/progress":
            return notices.forward_progress(params, self._calls, now)
        if method in CHANGES:
            return self._opening.on_list_changed(CHANGES[method], now, method)
        if method == "notifications/subscriptions/acknowledged":
            return self._listening.on_ack(params, stream, now)
        if method == "notifications/cancelled":
            if self._modern:
                return self._listening.torn_down(params, now)
            return self._asks.withdrawn(params, via, now)
        if self._modern:
            params = strip_subscription_id(params)
        if method == notices.UPDATED and self._updates.defer_update(params):
            return []
        owners, modern = self._task_owners, self._modern
        return notices.route_notification(
            method, params, self._calls, stream, now, owners, modern=modern
        )

    def _unreadable(self, line: bytes, reason: str, now: float) -> Actions:
        """Handle a line that is not a JSON object: a broken answer to a request, or noise."""
        seen = glimpse(line, line)
        if not seen.answer or not self._is_awaited(seen.raw_id):
            return self._noise(line)
        error = self._faults.body(Code.INTERNAL_ERROR, f"sent an answer that is not JSON: {reason}")
        return self._unfit("broken_reply", seen.raw_id, error, now)

    def _noise(self, line: bytes) -> Actions:
        self.budget.spend(len(line))
        return [CountOnce("stray_stdout"), InvalidLine(line)]

    def overlong(self, line: OverlongLine, now: float) -> Actions:
        """Tell the side that waits for it, front or server, of a message above the limit that was
        passed over."""
        if self._failed:
            return []
        seen, limit = line.seen, self._spec.message_bytes
        problem = f"sent {line.size_bytes} bytes in one message, and message_max is {limit}"
        data: dict[str, object] = {"limit_bytes": limit, "may_have_run": True}
        error = self._faults.body(Code.TOO_LARGE, problem, data)
        actions: Actions = [WarnInLog(f"a message was passed over: the server {problem}")]
        if seen.answer and self._is_awaited(seen.raw_id):
            actions += self._unfit("too_large", seen.raw_id, error, now)
        elif not seen.answer and codec.id_ok(seen.raw_id):
            actions.append(WriteToServer(jsonrpc_lines.refusal(seen.raw_id, error)))
        return actions

    def _is_awaited(self, key: bytes) -> bool:
        return key in self._calls.in_flight or self._own.knows(key)

    def _unfit(self, counter: str, key: bytes, error: bytes, now: float) -> Actions:
        """Answer with this error, because the answer to this request came and cannot be passed
        on. `counter`: counts it."""
        call = self._calls.drop(key)
        if call is None:
            return [CountOnce(counter), *self._own_answered(key, b"", error, now)]
        return [
            CountOnce(counter),
            *self._asks.close_questions(key, tell_front=True),
            ReplyToFront(call.front, Error(call.call, error)),
            *self._next_turns(now),
        ]

    # --- small things -----------------------------------------------------------------------

    def _on_opening_step(self, actions: Actions, now: float) -> Actions:
        """Act on a step of the opening, after which the server may be ready or have failed."""
        if any(isinstance(action, Fail) for action in actions):
            self._failed = True
        elif self._opening.ready and not self._ready and now >= self._calls_from:
            actions += self._begin_all(now)
        return actions

    def _begin_all(self, now: float) -> Actions:
        """Begin the work that waited for the server to be ready."""
        met = self._opening.met
        assert met is not None
        self._ready = True
        self._stamp = self._own.stamp
        self._probing = HangProbe(self._spec, met, self._own, now)
        self._modern = met.protocol == jsonrpc_lines.MODERN
        if self._modern:
            begun = self._listening.start(find_declared_lists(met.capabilities), now)
        else:
            self._watched = LegacySubscriptions(
                self._own, self._faults,
                timeout_s=self._spec.timeout_s, calls_max=self._spec.queue,
            )  # fmt: skip
            logging = codec.level(met.capabilities).get("logging", b"")
            self._logs = bytes(logging).startswith(b"{")
            begun = self._set_level(b"") if self._logs else []
        return [*begun, *self._next_turns(now)]

    def _begin(
        self, front: int, frame: CallFrame, deadline: float, timeout_s: float, now: float
    ) -> Actions:
        """Send a call to the server; subscriptions are handled here."""
        method = frame.method
        if method in METHODS:
            return self._watched.call(front, frame, deadline, timeout_s, now)
        key = self._calls.send(front, frame, deadline, timeout_s, now)
        params, caller = frame.params, frame.caller
        line = jsonrpc_lines.request(key, method, params, self._stamp.of(frame, key))
        request = ServerRequest(key, line, method, params, caller)
        if self._logs:
            return [*self._set_level(caller), request]
        return [request]

    def _timed_out(self, call: SentCall) -> ReplyToFront:
        """Return the error of a call whose time is over."""
        limit_s, of = call.timeout_s, " of its last progress" if call.progressed else ""
        if call.deadline >= call.since + self._spec.timeout_max_s > call.since + limit_s:
            limit_s, of = self._spec.timeout_max_s, ", the most for a call with progress"
        return self._faults.timed_out(call.front, call.call, call.method, limit_s, of)

    def _set_level(self, caller: bytes) -> Actions:
        """Tell the server how much to log, if this client wants more than the server logs now."""
        params = self._levels.before(caller)
        return (
            [self._own.ask(RequestPurpose.LEVEL, OwnRequest(SET_LEVEL, params, caller))]
            if params
            else []
        )

    def _next_turns(self, now: float) -> Actions:
        if not self._calls.queue_length or not self._ready:
            return []
        return [
            action
            for call in self._calls.turns()
            for action in self._begin(call.front, call.frame, call.deadline, call.timeout_s, now)
        ]

    def _given_up(self, keys: list[bytes], reason: bytes, now: float) -> Actions:
        """Cancel these calls at the server, and refuse the open questions in them."""
        actions: Actions = []
        for key in keys:
            actions.append(CancelRequest(key, jsonrpc_lines.build_cancel_notification(key, reason)))
            actions += self._asks.close_questions(key, tell_front=False)
        return [*actions, *self._next_turns(now)]


MESSAGES_PER_S = 4000.0
"""Messages in a second that a server without calls may send. Each takes about 15 µs of worker and
front together."""
CALL_MESSAGES_PER_S = 100.0
CALLS_MAX = 60
"""Maximum number of calls in flight that each add CALL_MESSAGES_PER_S, for their progress."""
MESSAGES_MAX = 20_000.0
BYTES_PER_S = 16.0 * 1024 * 1024
BYTES_MAX = 128.0 * 1024 * 1024
"""Bytes of a burst: two of the largest messages of most servers."""
LINES_PER_MESSAGE = 16
"""Number of lines of a stream without a message (comments, blank lines, ids) that cost as much as
one message."""


class Budget:
    """Budget of messages and bytes that a server may send unasked: full at first, refilled with
    time up to the burst."""

    def __init__(self, now: float) -> None:
        self._messages = MESSAGES_MAX
        self._bytes = BYTES_MAX
        self._at = now

    def spend(self, size_bytes: int, messages: float = 1) -> None:
        self._messages -= messages
        self._bytes -= size_bytes

    @property
    def is_exceeded(self) -> bool:
        """Whether more was spent than there was at the last refill."""
        return self._messages < 0 or self._bytes < 0

    def spent(self, now: float, calls: int = 0) -> bool:
        """Refill the budget, and return whether it is overspent. `calls`: number of calls in
        flight."""
        past_s, self._at = now - self._at, now
        rate = MESSAGES_PER_S + min(calls, CALLS_MAX) * CALL_MESSAGES_PER_S
        self._messages = min(MESSAGES_MAX, self._messages + past_s * rate)
        self._bytes = min(BYTES_MAX, self._bytes + past_s * BYTES_PER_S)
        return self.is_exceeded
