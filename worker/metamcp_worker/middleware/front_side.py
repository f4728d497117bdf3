"""Middleware as a front has it: the connections to its processes, and requests that go through it.

Owns: one connection to the process of each middleware, the time that a middleware has, counts.
Never: whose turn it is (`chain`), which middleware a request goes through, the true call (`front`).

The time of a middleware runs while it has the request, and stands still while it waits for what is
within. A process that starts, or starts again, is waited for; one that is away for longer fails at
once, until it is back.
"""

import asyncio
import itertools
import logging
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from functools import partial
from typing import Literal

from msgspec import Raw, structs

from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.code_runs import FRAME_BYTES_MAX
from metamcp_worker.ipc.frame_link import FrameLink
from metamcp_worker.ipc.middleware_calls import (
    SAME,
    EndHook,
    Hook,
    HookEnded,
    HookNext,
    ListsChanged,
    MiddlewareReady,
    MiddlewareReplaced,
    MiddlewareSpec,
    NextDone,
    StartHook,
    role_of,
)
from metamcp_worker.ipc.packets import Connectors
from metamcp_worker.middleware.chain import Chain, HookAnswer, LevelFacts

READY_S_MAX = 5.0
"""Seconds that requests wait for a process that has to start first."""
AGAIN_S = 0.2
"""Seconds between two attempts to connect, while nothing listens."""
REQUESTS_MAX = 1000
"""Maximum requests that one middleware has from one front."""
BODY_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
"""Maximum bytes of arguments and results that a middleware gets."""
OUTCOMES = ("ok", "failed", "timeout", "gone", "too_much")
Outcome = Literal["ok", "failed", "timeout", "gone", "too_much"]
"""Outcome of a request for one middleware: it raised or returned what is not a result, had no time
left, had no process, or had too many requests or too large a one."""

_GONE = "lost its process"
_AWAY = "has no process that runs"
_SLOW = "took more than {:g} s"
_BUSY = f"has {REQUESTS_MAX:,} requests already"
_LARGE = f"cannot get more than {BODY_BYTES_MAX:,} bytes"

log = logging.getLogger("metamcp.front")
_NUMBERS = itertools.count(1)
_read = codec.reader(MiddlewareReady | HookNext | HookEnded | MiddlewareReplaced)


class _Connection:
    """Connection to one process of a middleware. `requests`: what the process has, by id."""

    def __init__(self, line: "MiddlewareClient") -> None:
        self._line = line
        self.ready = False
        self.parting = False
        self.requests: dict[int, tuple[HookedRequest, int]] = {}
        peer = f"the process of the middleware {line.spec.name}"
        self.link = FrameLink(peer, self._frame, self._on_lost, line.connect)

    def take(self, number: int) -> bool:
        """Forget a request; return whether the process had it."""
        had = self.requests.pop(number, None) is not None
        if self.parting and not self.requests:
            self.link.close()
        return had

    def part(self) -> None:
        """Close the connection when the process has answered what it has."""
        self.parting = True
        self.take(-1)

    def _frame(self, body: bytes) -> None:
        """Take a message. Raises codec.Malformed."""
        match _read(body):
            case MiddlewareReady() as ready:
                self.ready = True
                self._line.is_ready(ready)
            case HookNext(id=number, arguments=arguments):
                if (entry := self.requests.get(number)) is not None:
                    request, level = entry
                    request.chain.passed_on(level, _read_unless_same(arguments))
            case HookEnded(id=number, result=result) as ended:
                if (entry := self.requests.get(number)) is not None:
                    self.take(number)
                    request, level = entry
                    request.on_hook_end(
                        level, _read_unless_same(result), ended.failure, refuses=ended.refuses
                    )
            case _:
                self._line.renew(self)
                self.part()

    def _on_lost(self) -> None:
        was, self.ready = self.ready, False
        requests, self.requests = self.requests, {}
        self._line.on_connection_lost(self, was_ready=was)
        for request, level in requests.values():
            request.on_failure(level, _GONE, "gone")


class MiddlewareClient:
    """Middleware. `ready`: what its process said last; None if none has run yet. `changed`: called
    when it has other hooks than before; `ready_s`: as READY_S_MAX; `connect`: makes a connection
    to its process, as in `FrameLink`."""

    def __init__(
        self, spec: MiddlewareSpec, ready_s: float, connect: Callable[[], socket.socket]
    ) -> None:
        self.spec = spec
        self.connect = connect
        self._ready_s = ready_s
        self.facts = LevelFacts(spec.name, spec.enforce)
        self.ready: MiddlewareReady | None = None
        self.changed: Callable[[], None] = lambda: None
        self.counts: Counter[Outcome] = Counter()
        self._match = re.compile("|".join(map(translate, spec.match)))
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[HookedRequest, int]] = {}
        self._wait: asyncio.TimerHandle | None = None
        """Runs while requests may wait for a process."""
        self._closed = False
        self._connection = _Connection(self)
        self._open()

    def close(self) -> None:
        """Take no more requests; those under way go on."""
        self._closed = True
        self._give_up()
        self._connection.part()

    def matches(self, server: str, name: str) -> bool:
        """Whether a thing of a server goes through this middleware; a server of a workspace also by
        its name there."""
        return any(map(self._match.match, process_names.paths(server, name)))

    def has(self, hook: Hook) -> bool:
        """Whether requests go through this hook, as far as is known."""
        return self.ready is None or self.ready.trouble != "" or hook in self.ready.hooks

    def start(self, number: int, request: "HookedRequest", level: int) -> None:
        """Give a request to the process, or let it wait until there is one."""
        connection = self._connection
        if len(connection.requests) + len(self._waiting) >= REQUESTS_MAX:
            request.on_failure(level, _BUSY, "too_much")
        elif connection.ready:
            self._give(number, request, level)
        elif self._wait is not None:
            self._waiting[number] = request, level
        else:
            request.on_failure(level, _AWAY, "gone")

    def leave(self, number: int) -> None:
        """A request does not wait for the process any more."""
        self._waiting.pop(number, None)

    def tell(self, server: str) -> None:
        """Pass on that lists of this server may have changed."""
        if self.ready is not None and self.ready.listens and self._connection.ready:
            self._connection.link.send(ListsChanged(server=server))

    def is_ready(self, ready: MiddlewareReady) -> None:
        """The process takes requests."""
        new, self.ready = self.ready is None or self.ready.hooks != ready.hooks, ready
        for number, (request, level) in self._done_waiting().items():
            self._give(number, request, level)
        if new:
            self.changed()

    def on_connection_lost(self, connection: _Connection, *, was_ready: bool) -> None:
        """A connection has ended, or could not be opened."""
        if connection is self._connection and not self._closed:
            if was_ready:
                self._begin_wait()
            self._loop.call_later(AGAIN_S, self._connect, connection)

    def renew(self, connection: _Connection) -> None:
        """The process is being replaced; connect to the next one."""
        if connection is self._connection and not self._closed:
            self._connection = _Connection(self)
            self._open()

    def _open(self) -> None:
        self._begin_wait()
        self._connect(self._connection)

    def _connect(self, connection: _Connection) -> None:
        if connection is self._connection and not self._closed:
            connection.link.open()

    def _begin_wait(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
        self._wait = self._loop.call_later(self._ready_s, self._give_up)

    def _done_waiting(self) -> "dict[int, tuple[HookedRequest, int]]":
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        waiting, self._waiting = self._waiting, {}
        return waiting

    def _give_up(self) -> None:
        for request, level in self._done_waiting().values():
            request.on_failure(level, _AWAY, "gone")

    def _give(self, number: int, request: "HookedRequest", level: int) -> None:
        assert self.ready is not None
        if self.ready.trouble:
            request.on_failure(level, self.ready.trouble, "gone")
        elif request.facts.hook not in self.ready.hooks:
            request.chain.skip(level)
        else:
            request.give(level, self._connection)


class _HookCall:
    """Part of one middleware in a request. `left_s`: time that it has left; `since`: moment from
    which that time runs, None while it stands still."""

    __slots__ = ("arguments", "connection", "left_s", "line", "number", "since", "timer")

    def __init__(self, line: MiddlewareClient) -> None:
        self.line = line
        self.number = next(_NUMBERS)
        self.connection: _Connection | None = None
        self.arguments = b""
        self.left_s = line.spec.timeout_ms / 1000
        self.since: float | None = None
        self.timer: asyncio.TimerHandle | None = None


class HookedRequest:
    """Request on its way through middleware. `call(arguments)`: makes the true call, whose answer
    goes to `chain.answered`; `leave(reason)`: cancels it; `done(answer)`: takes the outcome."""

    def __init__(
        self,
        lines: Sequence[MiddlewareClient],
        facts: StartHook,
        call: Callable[[bytes], None],
        leave: Callable[[str], None],
        done: Callable[[HookAnswer], None],
    ) -> None:
        self.facts = facts
        self._call = call
        self._leave = leave
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._places = [_HookCall(line) for line in lines]
        levels = [line.facts for line in lines]
        self.chain = Chain(levels, self, tool=facts.hook == "on_call_tool")

    # News of processes

    def on_hook_end(self, level: int, result: bytes | None, failure: str, *, refuses: bool) -> None:
        """A hook has ended. `failure`: words that follow the name of the middleware; `refuses`: it
        ends the request in any mode."""
        if failure:
            self.on_failure(level, failure, "failed", refuses=refuses)
            return
        hook = self._places[level]
        self._halt(hook)
        hook.line.counts["ok"] += 1
        self.chain.on_hook_end(level, result)

    def on_failure(
        self, level: int, failure: str, outcome: Outcome, *, refuses: bool = False
    ) -> None:
        line = self._places[level].line
        line.counts[outcome] += 1
        log.warning(
            "middleware %s %s", line.spec.name, failure, extra={"server": self.facts.server}
        )
        self.chain.on_failure(level, failure, refuses=refuses)

    def give(self, level: int, connection: _Connection) -> None:
        """Send the request to a process that is there."""
        hook = self._places[level]
        hook.connection = connection
        connection.requests[hook.number] = self, level
        arguments = Raw(hook.arguments)
        connection.link.send(structs.replace(self.facts, id=hook.number, arguments=arguments))
        self._run(level)

    # Actions of the chain

    def start(self, level: int, arguments: bytes) -> None:
        hook = self._places[level]
        hook.arguments = arguments
        if len(arguments) > BODY_BYTES_MAX:
            self.on_failure(level, _LARGE, "too_much")
        else:
            hook.line.start(hook.number, self, level)

    def pause(self, level: int) -> None:
        self._halt(self._places[level])

    def resume(self, level: int, answer: HookAnswer) -> None:
        hook = self._places[level]
        if hook.connection is None:
            return
        if len(answer.body) > BODY_BYTES_MAX:
            self.on_failure(level, _LARGE, "too_much")
            return
        self._run(level)
        result = Raw(answer.body)
        hook.connection.link.send(NextDone(id=hook.number, result=result, failed=answer.code != 0))

    def drop(self, level: int) -> None:
        hook = self._places[level]
        self._halt(hook)
        hook.line.leave(hook.number)
        connection, hook.connection = hook.connection, None
        if connection is not None and hook.number in connection.requests:
            connection.link.send(EndHook(id=hook.number))
            connection.take(hook.number)

    def call(self, arguments: bytes) -> None:
        self._call(arguments)

    def leave(self, reason: str) -> None:
        self._leave(reason)

    def answer_request(self, answer: HookAnswer) -> None:
        self._done(answer)

    def _run(self, level: int) -> None:
        """Let the time of a middleware run."""
        hook = self._places[level]
        hook.since = self._loop.time()
        hook.timer = self._loop.call_later(hook.left_s, self._on_timeout, level)

    def _halt(self, hook: _HookCall) -> None:
        if hook.timer is not None and hook.since is not None:
            hook.timer.cancel()
            hook.left_s = max(0.0, hook.left_s - self._loop.time() + hook.since)
            hook.timer = hook.since = None

    def _on_timeout(self, level: int) -> None:
        seconds = self._places[level].line.spec.timeout_ms / 1000
        self.on_failure(level, _SLOW.format(seconds), "timeout")


class MiddlewareClients:
    """All middleware of a front, in the order in which requests go through it. `ready_s`: as
    READY_S_MAX."""

    def __init__(self, connectors: Connectors, ready_s: float = READY_S_MAX) -> None:
        self._connectors = connectors
        self._ready_s = ready_s
        self.changed: Callable[[], None] = lambda: None
        self._lines: dict[str, MiddlewareClient] = {}
        self._gone: Counter[tuple[str, Outcome]] = Counter()

    def configure(self, specs: Sequence[MiddlewareSpec]) -> None:
        """Use this middleware from now on; what stays as it was keeps its connection."""
        before, self._lines = self._lines, {}
        for spec in specs:
            line = before.pop(spec.name, None)
            if line is not None and line.spec != spec:
                self._retire(line)
                line = None
            self._lines[spec.name] = line or self._new(spec)
        for line in before.values():
            self._retire(line)

    def select_lines(self, names: Sequence[str], hook: Hook) -> list[MiddlewareClient]:
        """Return the middleware of these names through which requests of a hook go."""
        lines = (self._lines.get(name) for name in names)
        return [line for line in lines if line is not None and line.has(hook)]

    def all(self) -> Iterable[MiddlewareClient]:
        return self._lines.values()

    def tell(self, server: str) -> None:
        """Pass on that lists of this server may have changed."""
        for line in self._lines.values():
            line.tell(server)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the requests by middleware and outcome since the front began."""
        totals: dict[str, dict[str, int]] = {}
        every = [(line.spec.name, line.counts) for line in self._lines.values()]
        for (name, outcome), count in self._gone.items():
            totals.setdefault(name, {})[outcome] = count
        for name, counts in every:
            of = totals.setdefault(name, {})
            for outcome, count in counts.items():
                of[outcome] = of.get(outcome, 0) + count
        return totals

    def close(self) -> None:
        self.configure(())

    def _new(self, spec: MiddlewareSpec) -> MiddlewareClient:
        connect = partial(self._connectors.connect, role_of(spec.name))
        line = MiddlewareClient(spec, self._ready_s, connect)
        line.changed = lambda: self.changed()  # noqa: PLW0108 - it is set later
        return line

    def _retire(self, line: MiddlewareClient) -> None:
        line.close()
        for outcome, count in line.counts.items():
            self._gone[line.spec.name, outcome] += count


def _read_unless_same(raw: Raw) -> bytes | None:
    """Return a raw value; None if it is as the other side has it."""
    value = bytes(raw)
    return None if value == bytes(SAME) else value
