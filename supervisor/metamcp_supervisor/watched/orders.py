"""What each verb of the control socket does: the table from name to function.

Owns: the verbs' parameters, their limits, and which exit code of `ctl` stands for which refusal.
Never: the socket and its lines (`control`), carrying orders out (the gateway, by `Steering`).

The code of an error answer is the exit code that `metamcp ctl` ends with (`verbs.Exit`), except for
the errors of JSON-RPC itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from metamcp_supervisor.verbs import VERSION, Exit, ServerStatus
from metamcp_supervisor.wanted.config import ConfigInvalid
from metamcp_supervisor.watched.events import Follower
from metamcp_supervisor.watched.health import READY_STATES, UNWANTED_STATES
from metamcp_supervisor.watched.steering import NotNow, ReloadRefused, Steering, UnknownName
from metamcp_worker import codec
from metamcp_worker.errors import Code, Refused

T = TypeVar("T")

WAIT_S_MAX = 24 * 3600.0
"""Nobody waits longer than a day at a prompt."""
WAIT_RECHECK_S = 1.0
"""`wait` looks again at every event, and this often in case one tells nothing."""

STOPPED_STATES = frozenset({"stopped", "idle"})
#: Phases out of which no start leads soon: whoever waits wants to know it now.
HOPELESS_PHASES = frozenset({"failed", "quarantined"})


class Line(Protocol):
    """The connection, as a verb sees it."""

    @property
    def caller(self) -> str:
        """Who asks, for the journal."""
        ...

    async def tell(self, method: str, params: object) -> None:
        """Send a notification and wait until the reader keeps up. Raises PeerGone."""
        ...

    async def answer(self, result: object) -> None:
        """Send the result now. Raises PeerGone."""
        ...

    def push(self, method: str, params: object) -> None:
        """Send a notification without waiting. Raises PeerGone when the reader is too slow."""
        ...

    def wake(self) -> None:
        """End a `woken`, now or the next one."""
        ...

    async def woken(self, timeout_s: float | None) -> None:
        """Wait for `wake`, at most so long. Raises PeerGone when the client has left."""
        ...


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Names(Struct, frozen=True, forbid_unknown_fields=True):
    names: tuple[str, ...]


class Reload(Struct, frozen=True, forbid_unknown_fields=True):
    dry_run: bool = False
    expect: str | None = None


class Logs(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    n: int = 100
    follow: bool = False


class Events(Struct, frozen=True, forbid_unknown_fields=True):
    """Those after number `since`, of them the last `n`, or all."""

    since: int = 0
    n: int | None = None
    follow: bool = False


class Wait(Struct, frozen=True, forbid_unknown_fields=True, rename={"wanted": "for"}):
    """No names: every server that is wanted. `above`: a server's state counts only once its
    generation is higher, so that one that is about to restart does not pass as ready."""

    names: tuple[str, ...] = ()
    wanted: Literal["ready", "stopped"] = "ready"
    timeout_s: float = 30.0
    above: dict[str, int] = {}


async def _status(steering: Steering, line: Line, params: Nothing) -> object:
    return steering.status()


async def _start(steering: Steering, line: Line, params: Names) -> object:
    found = _known(steering, params.names)
    # One that runs already counts as it is; the others only after a new start.
    above = {s.name: s.generation for s in found if s.state not in {"ready", "active"}}
    _record(steering, line, params.names, "start")
    steering.start(params.names)
    return {"v": VERSION, "names": params.names, "above": above}


async def _stop(steering: Steering, line: Line, params: Names) -> object:
    _known(steering, params.names)
    _record(steering, line, params.names, "stop")
    steering.stop(params.names)
    return {"v": VERSION, "names": params.names, "above": {}}


async def _restart(steering: Steering, line: Line, params: Names) -> object:
    above = {s.name: s.generation for s in _known(steering, params.names)}
    _record(steering, line, params.names, "restart")
    steering.restart(params.names)
    return {"v": VERSION, "names": params.names, "above": above}


async def _reload(steering: Steering, line: Line, params: Reload) -> object:
    if not params.dry_run:
        steering.journal.add("gateway", "reload", f"asked by {line.caller}")
    return await steering.reload(params.dry_run, params.expect)


async def _logs(steering: Steering, line: Line, params: Logs) -> object:
    _known(steering, [params.name])
    logs = steering.logs
    follower = logs.follow(params.name, line.wake) if params.follow else None
    try:
        for item in logs.tail(params.name, params.n):
            await line.tell("log", item)
        if follower is None:
            return {"v": VERSION}
        await line.answer({"v": VERSION})
        await _feed(line, follower, "log")
    finally:
        if follower is not None:
            logs.unfollow(params.name, follower)
    return None


async def _events(steering: Steering, line: Line, params: Events) -> object:
    journal = steering.journal
    follower = journal.follow(line.wake) if params.follow else None
    try:
        past = journal.since(params.since)
        if params.n is not None:
            past = past[max(0, len(past) - max(0, params.n)) :]
        last = journal.last
        for item in past:
            await line.tell("event", item)
        if follower is None:
            return {"v": VERSION, "last": last}
        await line.answer({"v": VERSION, "last": last})
        await _feed(line, follower, "event")
    finally:
        if follower is not None:
            journal.unfollow(follower)
    return None


async def _wait(steering: Steering, line: Line, params: Wait) -> object:
    _known(steering, params.names)
    timeout_s = min(max(params.timeout_s, 0.0), WAIT_S_MAX)
    follower = steering.journal.follow(line.wake)
    try:
        async with asyncio.timeout(timeout_s):
            while _missing(steering, params):
                await line.woken(WAIT_RECHECK_S)
                follower.take()
    except TimeoutError:
        names = _missing(steering, params)
        if names:
            raise Refused(
                Exit.TIMEOUT, f"not {params.wanted} after {timeout_s:g} s: {'; '.join(names)}"
            ) from None
    finally:
        steering.journal.unfollow(follower)
    return {"v": VERSION}


def _missing(steering: Steering, params: Wait) -> list[str]:
    """Who is not there yet, and why. Raises Refused for one that will not come by waiting."""
    missing: list[str] = []
    status = steering.status()
    if status.state == "starting" and params.wanted == "ready":
        missing.append("the gateway is starting")
    for server in status.servers:
        if params.names and server.name not in params.names:
            continue
        if not params.names and params.wanted == "ready" and server.state in UNWANTED_STATES:
            continue
        fresh = server.generation > params.above.get(server.name, -1)
        wanted = READY_STATES if params.wanted == "ready" else STOPPED_STATES
        if fresh and server.state in wanted:
            continue
        if fresh and params.wanted == "ready":
            _check_hope(server)
        why = f" ({server.message or server.reason})" if server.reason or server.message else ""
        missing.append(f"{server.name} is {server.state}{why}")
    return missing


def _check_hope(server: ServerStatus) -> None:
    if server.state == "stopped":
        raise Refused(
            Exit.SERVER_NOT_RUNNING,
            f"{server.name} is stopped; start it with 'metamcp ctl start {server.name}'",
        )
    if server.phase in HOPELESS_PHASES or (server.state == "error" and server.retry_in_s is None):
        raise Refused(
            Exit.FAILED,
            f"{server.name} failed: {server.message or server.reason};"
            f" 'metamcp ctl logs {server.name}' shows what it wrote",
        )


async def _feed(line: Line, follower: Follower[T], method: str) -> None:
    """Pass on what comes until the client leaves or falls behind."""
    while True:
        await line.woken(None)
        for item in follower.take():
            line.push(method, item)
        if follower.lagged:
            line.push("lagged", {"message": "more came than this connection could take"})
            return


def _known(steering: Steering, names: Sequence[str]) -> list[ServerStatus]:
    """The named servers as they stand. Raises UnknownName."""
    servers = {server.name: server for server in steering.status().servers}
    unknown = [name for name in names if name not in servers]
    if unknown:
        raise UnknownName(unknown, servers)
    return [servers[name] for name in names]


def _record(steering: Steering, line: Line, names: Sequence[str], verb: str) -> None:
    for name in names:
        steering.journal.add(name, verb, f"asked by {line.caller}")


class Verb(Struct, frozen=True):
    """One row of the table. The function gets the parameters as a value of `params`."""

    params: type[Struct]
    run: Callable[[Steering, Line, Any], Awaitable[object]]


VERBS: dict[str, Verb] = {
    "status": Verb(Nothing, _status),
    "start": Verb(Names, _start),
    "stop": Verb(Names, _stop),
    "restart": Verb(Names, _restart),
    "reload": Verb(Reload, _reload),
    "logs": Verb(Logs, _logs),
    "events": Verb(Events, _events),
    "wait": Verb(Wait, _wait),
}


async def carry_out(steering: Steering, line: Line, method: str, params: bytes) -> object:
    """The result of one verb, or None when it has sent everything itself. Raises Refused."""
    verb = VERBS.get(method)
    if verb is None:
        raise Refused(
            Code.METHOD_NOT_FOUND,
            f"no verb is named {method[:80]!r}; there are: {', '.join(VERBS)}",
        )
    try:
        wanted = codec.typed(verb.params, params or b"{}")
    except codec.Malformed as error:
        raise Refused(Code.INVALID_PARAMS, f"parameters of {method}: {error}") from None
    try:
        return await verb.run(steering, line, wanted)
    except UnknownName as error:
        data = codec.dump({"names": error.names, "nearest": error.nearest})
        raise Refused(Exit.UNKNOWN_NAME, str(error), data) from None
    except ConfigInvalid as error:
        data = codec.dump({"problems": [str(problem) for problem in error.problems]})
        raise Refused(
            Exit.CONFIG, "the configuration is invalid; the old one stays in force", data
        ) from None
    except (NotNow, ReloadRefused) as error:
        raise Refused(Exit.FAILED, str(error)) from None
