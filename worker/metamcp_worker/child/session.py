"""The MCP client side of one connection to a server, in both eras, without I/O.

Owns: the order of handshake, lists and calls; who gets which answer; what becomes of every line
that the server sends. Never: reading, writing, waiting, clocks; each method takes what happened and
the time, and gives what is to be done.

Bodies are not opened: the envelope of a line is decoded, the result or error in it goes to the
front as the bytes it came in.
"""

import math
import re

from msgspec import Raw

from metamcp_worker import catalogue, codec
from metamcp_worker.catalogue import ServerCatalogue
from metamcp_worker.child import wire
from metamcp_worker.child.actions import (
    Action,
    Announce,
    Count,
    Fail,
    Purpose,
    Ready,
    Relisted,
    Reply,
    Stray,
    Warn,
    Write,
)
from metamcp_worker.child.calls import Calls
from metamcp_worker.child.handshake import PROBE_S_MAX, Handshake, Met, Phase, Refused
from metamcp_worker.child.listing import CHANGES, Listing, declared
from metamcp_worker.child.wire import Ask, Stamp
from metamcp_worker.codec import Envelope
from metamcp_worker.errors import Code
from metamcp_worker.frames import METHOD_BYTES_MAX, Call, Cancel, Error, Notice, Progress, Result
from metamcp_worker.spec import ServerSpec

RELIST_S_MIN = 0.5
"""Between two readings of the lists, however often the server says that they changed."""

LISTEN_AGAIN_S = 5.0
"""After a server ended its subscription; what it could not announce meanwhile is then read."""

# An answer that is no valid JSON still shows, at its beginning or at its end, whom it is for.
_ANSWER_HEAD = re.compile(
    rb'\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*([0-9]{1,19})\s*,\s*"(?:result|error)"'
)
_ANSWER_TAIL = re.compile(
    rb',\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*([0-9]{1,19})\s*\}\s*\Z'
)  # fmt: skip
_TAIL_BYTES = 128
_UNSENT = "does not read its input; the call was not sent to it"

Actions = list[Action]


class Session:
    """One connection. After an action `Fail` it does nothing any more."""

    def __init__(self, spec: ServerSpec, version: str, now: float) -> None:
        self._spec = spec
        self._version = version
        self._calls = Calls(concurrency=spec.concurrency, queue=spec.queue)
        self._start_by = now + spec.start_timeout_s
        probe_s = min(PROBE_S_MAX, spec.start_timeout_s / 4)
        self._handshake = Handshake(version, probe=spec.probe, now=now, probe_s=probe_s)
        self._stamp = Stamp(wire.MODERN, version)
        self._met: Met | None = None
        self._own: dict[bytes, Purpose] = {}
        self._listing: Listing | None = None
        self._page_by = 0.0
        self._changed: frozenset[str] = frozenset()
        self._list_again_at = 0.0
        self._listen_at = math.inf
        self._lists: dict[str, tuple[Raw, ...]] = {}
        self._list_hash = ""
        self._draining = False
        self._failed = False

    @property
    def ready(self) -> bool:
        return bool(self._list_hash)

    @property
    def probing(self) -> bool:
        """Is the server being asked whether it is modern?"""
        return self._met is None and self._handshake.phase is Phase.PROBE

    @property
    def in_flight(self) -> int:
        return len(self._calls.in_flight)

    @property
    def queued(self) -> int:
        return self._calls.queued

    # --- what the gateway wants -------------------------------------------------------------

    def start(self) -> Actions:
        """The server runs: say the first words."""
        return [self._ask(Purpose.HANDSHAKE, self._handshake.ask())]

    def call(self, front: int, frame: Call, now: float, *, stuck: bool = False) -> Actions:
        """A front calls. `stuck`: the server does not read what it is sent."""
        timeout_s = frame.deadline_ms / 1000 or self._spec.timeout_s
        if self._draining or self._failed:
            return [self._error(front, frame.id, Code.SERVER_DOWN, "is stopping")]
        if stuck:
            return [self._error(front, frame.id, Code.OVERLOADED, _UNSENT)]
        if self.ready and self._calls.free():
            return [self._send(front, frame, now + timeout_s, timeout_s)]
        if self._calls.wait(front, frame, now + timeout_s, timeout_s):
            return []
        why = f"has {self.in_flight} calls in flight and {self.queued} waiting; try again later"
        return [self._error(front, frame.id, Code.OVERLOADED, why)]

    def cancel(self, front: int, frame: Cancel) -> Actions:
        """A front does not wait for this call any more. Nothing is answered."""
        key = self._calls.cancel(front, frame.id)
        if not key:
            return []
        return [Write(wire.cancelled(key, frame.reason)), *self._next_turns()]

    def unsent(self, key: bytes) -> Actions:
        """The line of this call could not be written; who called learns it now."""
        lost = self._calls.in_flight.pop(key, None)
        return [self._error(lost.front, lost.call, Code.OVERLOADED, _UNSENT)] if lost else []

    def front_gone(self, front: int) -> Actions:
        """Nobody is left who would take the answers to this front's calls."""
        keys = self._calls.forget(front)
        cancels = [Write(wire.cancelled(key, b"the client is gone")) for key in keys]
        return [*cancels, *self._next_turns()]

    def drain(self) -> None:
        """Take no more calls."""
        self._draining = True

    def fail_calls(self, code: Code, why: str) -> Actions:
        """Answer every call with an error, because the connection is lost."""
        self._failed = True
        return [self._error(front, call, code, why) for front, call in self._calls.all()]

    def tick(self, now: float) -> Actions:
        """Time has passed; called a few times per second."""
        if self._failed:
            return []
        actions = [] if self.ready else self._start_tick(now)
        sent, waiting = self._calls.expired(now)
        for key, one in sent:
            actions.append(self._timed_out(one.front, one.call, one.method, one.timeout_s))
            actions.append(Write(wire.cancelled(key, b"timeout")))
        for late in waiting:
            frame = late.frame
            actions.append(self._timed_out(late.front, frame.id, frame.method, late.timeout_s))
        if self.ready and self._listing is not None and now >= self._page_by:
            self._listing.silent()
            actions += self._next_page(now)
        if now >= self._listen_at and self._met is not None:
            self._listen_at = math.inf
            self._changed = declared(self._met.capabilities)
            actions += self._listen()
        return [*actions, *self._relist(now), *self._next_turns()]

    # --- what the server says ---------------------------------------------------------------

    def receive(self, line: bytes, now: float) -> Actions:
        """One line of the server."""
        if self._failed:
            return []
        try:
            # The decoder does not look into the strings of what it leaves raw.
            if not line.isascii():
                line.decode()
            envelope = codec.envelope(line)
        except (codec.Malformed, UnicodeDecodeError) as error:
            return self._unreadable(line, str(error), now)
        if envelope.jsonrpc != "2.0":
            return [Count("stray_stdout"), Stray(line)]
        if envelope.method is None:
            return self._answered(envelope, now)
        if envelope.id:
            return self._asked(envelope.method, bytes(envelope.id))
        return self._notified(envelope.method, bytes(envelope.params), now)

    def _answered(self, envelope: Envelope, now: float) -> Actions:
        key, result, error = bytes(envelope.id), bytes(envelope.result), bytes(envelope.error)
        # Some servers of JSON-RPC 1.0 habits send the other member as null.
        if error == b"null" and result:
            error = b""
        elif result == b"null" and error:
            result = b""
        broken: Actions = []
        if bool(result) == bool(error) or (error and not error.startswith(b"{")):
            broken = [Count("broken_reply")]
            why = "sent an answer that has not either a result or an error object"
            result, error = b"", self._error_body(Code.INTERNAL_ERROR, why)
        found = self._calls.in_flight.pop(key, None)
        if found is None:
            return [*broken, *self._own_answered(key, result, error, now)]
        frame = Error(found.call, error) if error else Result(found.call, result)
        return [*broken, Reply(found.front, frame), *self._next_turns()]

    def _own_answered(self, key: bytes, result: bytes, error: bytes, now: float) -> Actions:
        purpose = self._own.pop(key, None)
        if purpose is None:
            used = self._calls.was_used(key)
            return [Count("late_reply" if used else "unknown_id")]
        if purpose is Purpose.HANDSHAKE:
            shaken = self._handshake.failed(error) if error else self._handshake.answered(result)
            return self._shaken(shaken, now)
        if purpose is Purpose.LIST and self._listing is not None:
            if error:
                self._listing.refused(error)
            else:
                self._listing.answered(result)
            return self._next_page(now)
        if purpose is Purpose.LISTEN and not error:  # it ended; an error: it cannot listen at all
            self._listen_at = now + LISTEN_AGAIN_S
        return []

    def _asked(self, method: str, id: bytes) -> Actions:  # noqa: A002 - the wire's own name
        """A request of the server. No client can be asked yet, and none was declared able."""
        if not codec.id_ok(id):
            return [Count("broken_request")]
        if method == "ping":
            return [Write(wire.answer(id, b"{}"))]
        message = f"{method[:80]} cannot be passed on to a client; it was not declared either"
        return [Write(wire.refusal(id, wire.error(Code.METHOD_NOT_FOUND, message)))]

    def _notified(self, method: str, params: bytes, now: float) -> Actions:
        if method == "notifications/progress":
            return self._progressed(params)
        if method in CHANGES:
            self._changed |= CHANGES[method]
            return self._relist(now)
        if method in {"notifications/cancelled", "notifications/subscriptions/acknowledged"}:
            return []  # About requests of the server's own, or about our subscription.
        if len(method.encode()) > METHOD_BYTES_MAX:
            return [Count("broken_notification")]
        return [Announce(Notice(method, params))]

    def _progressed(self, params: bytes) -> Actions:
        try:
            members = codec.level(params)
        except codec.Malformed:
            return [Count("broken_notification")]
        found = self._calls.in_flight.get(bytes(members.pop("progressToken", Raw())))
        if found is None or not found.wants_progress:
            return [Count("unknown_token")]
        return [Reply(found.front, Progress(found.call, codec.dump(members)))]

    def _unreadable(self, line: bytes, why: str, now: float) -> Actions:
        """A line that is no JSON object: a broken answer to somebody, or noise."""
        found = _ANSWER_HEAD.match(line) or _ANSWER_TAIL.search(line[-_TAIL_BYTES:])
        key = found[1] if found else b""
        if key not in self._calls.in_flight and key not in self._own:
            return [Count("stray_stdout"), Stray(line)]
        error = self._error_body(Code.INTERNAL_ERROR, f"sent an answer that is not JSON: {why}")
        call = self._calls.in_flight.pop(key, None)
        if call is None:
            return [Count("broken_reply"), *self._own_answered(key, b"", error, now)]
        return [
            Count("broken_reply"),
            Reply(call.front, Error(call.call, error)),
            *self._next_turns(),
        ]

    # --- start and lists --------------------------------------------------------------------

    def _start_tick(self, now: float) -> Actions:
        if now >= self._start_by:
            waits = "the answer to initialize or server/discover" if not self._met else "its lists"
            message = f"it did not give {waits} within {self._spec.start_timeout_s:g} s"
            return self._fail(Fail("start_timeout", message))
        if self._met is None and self._handshake.silent(now):
            return [self._ask(Purpose.HANDSHAKE, self._handshake.ask())]
        return []

    def _shaken(self, found: Ask | Met | Refused, now: float) -> Actions:
        if isinstance(found, Ask):
            return [self._ask(Purpose.HANDSHAKE, found)]
        if isinstance(found, Refused):
            return self._fail(Fail("protocol", found.message))
        self._met = found
        self._stamp = Stamp(found.protocol, self._version)
        first: Actions = []
        if found.initialized:
            first = [Write(wire.notification("notifications/initialized"))]
        self._listing = Listing(declared(found.capabilities))
        return [*first, *self._next_page(now)]

    def _relist(self, now: float) -> Actions:
        """Read again what changed, unless that happened just now or still goes on."""
        if not self.ready or self._listing is not None or self._met is None:
            return []
        changed = self._changed & declared(self._met.capabilities) if self._changed else ()
        if not changed or now < self._list_again_at:
            return []
        self._changed = frozenset()
        self._list_again_at = now + RELIST_S_MIN
        self._listing = Listing(changed)
        return self._next_page(now)

    def _next_page(self, now: float) -> Actions:
        assert self._listing is not None
        ask = self._listing.ask()
        if ask is None:
            return self._listed(self._listing)
        self._page_by = now + self._spec.timeout_s
        return [self._ask(Purpose.LIST, ask)]

    def _listed(self, done: Listing) -> Actions:
        self._listing = None
        actions: Actions = [Warn(text) for text in done.warnings]
        if done.failed and not self.ready:
            return [*actions, *self._fail(Fail("protocol", done.failed))]
        if done.failed:
            actions.append(Warn(f"{done.failed}; the list stays as it was"))
        self._lists |= done.lists
        found = self._catalogue()
        was_ready, before = self.ready, self._list_hash
        self._list_hash = catalogue.list_hash(found)
        if was_ready:
            changed = self._list_hash != before
            return [*actions, Relisted(found, self._list_hash)] if changed else actions
        return [*actions, Ready(found, self._list_hash), *self._listen(), *self._next_turns()]

    def _catalogue(self) -> ServerCatalogue:
        assert self._met is not None
        return ServerCatalogue(
            protocol=self._met.protocol,
            serverInfo=self._met.server_info,
            capabilities=self._met.capabilities,
            instructions=self._met.instructions,
            tools=self._lists.get("tools", ()),
            prompts=self._lists.get("prompts", ()),
            resources=self._lists.get("resources", ()),
            resourceTemplates=self._lists.get("resourceTemplates", ()),
        )

    def _listen(self) -> Actions:
        """A modern server announces changes only to those who listen."""
        if self._met is None or self._met.protocol != wire.MODERN:
            return []
        kinds = declared(self._met.capabilities) & {"tools", "prompts", "resources"}
        if not kinds:
            return []
        wanted = {f"{kind}ListChanged": True for kind in sorted(kinds)}
        ask = Ask("subscriptions/listen", codec.dump({"notifications": wanted}))
        return [self._ask(Purpose.LISTEN, ask)]

    # --- small things -----------------------------------------------------------------------

    def _ask(self, purpose: Purpose, ask: Ask) -> Write:
        """A request of our own; the one before it of the same purpose is not waited for."""
        for key in [key for key, older in self._own.items() if older is purpose]:
            del self._own[key]
        key = self._calls.new_id()
        self._own[key] = purpose
        meta = b"" if ask.method == "initialize" else self._stamp.own()
        return Write(wire.request(key, ask.method, ask.params, meta))

    def _send(self, front: int, frame: Call, deadline: float, timeout_s: float) -> Write:
        key = self._calls.send(front, frame, deadline, timeout_s)
        line = wire.request(key, frame.method, frame.params, self._stamp.of(frame, key))
        return Write(line, call=key)

    def _next_turns(self) -> Actions:
        if not self._calls.queued or not self.ready:
            return []
        return [
            self._send(one.front, one.frame, one.deadline, one.timeout_s)
            for one in self._calls.turns()
        ]

    def _fail(self, failure: Fail) -> Actions:
        self._failed = True
        return [failure]

    def _timed_out(self, front: int, call: int, method: str, timeout_s: float) -> Reply:
        why = f"did not answer {method} within {timeout_s:g} s"
        return self._error(front, call, Code.TIMED_OUT, why, {"timeout_s": timeout_s})

    def _error(
        self, front: int, call: int, code: Code, why: str, data: dict[str, object] | None = None
    ) -> Reply:
        return Reply(front, Error(call, self._error_body(code, why, data)))

    def _error_body(self, code: Code, why: str, data: dict[str, object] | None = None) -> bytes:
        """`why` continues the sentence that the server's name begins."""
        return wire.error(
            code, f"server '{self._spec.name}' {why}", {"server": self._spec.name, **(data or {})}
        )
