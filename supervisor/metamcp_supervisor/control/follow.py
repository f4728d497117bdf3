"""The verbs that take time: `logs` and `events`, which send one item after the other, and `wait`.

Owns: which past items are sent, and which new items fit; which states fulfil a condition of `wait`,
and when waiting is in vain. Never: keeping items (`telemetry.logs`, `telemetry.journal`), the
socket and its limit for a slow reader (`control`), starting or stopping servers.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from metamcp_supervisor.control.explain import CONFIGURATION
from metamcp_supervisor.control.services import ControlStream, GatewayControl, find_servers
from metamcp_supervisor.telemetry.health import READY_STATES, UNWANTED_STATES
from metamcp_supervisor.telemetry.journal import Follower
from metamcp_supervisor.verbs import VERSION, Exit, JournalEvent, LogLine, ServerStatus
from metamcp_worker.ipc.errors import ProtocolError


class Numbered(Protocol):
    """Item of the journal or of a log."""

    @property
    def seq(self) -> int: ...

    @property
    def time(self) -> float: ...


T = TypeVar("T")
N = TypeVar("N", bound=Numbered)


class LogsParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of the last `since_s` seconds that contain `grep` in any case; of these lines the last
    `n`, or all. `after`: number and time of the last line that was seen, for a client that goes on
    from there."""

    name: str
    n: int | None = 100
    follow: bool = False
    since_s: float | None = None
    grep: str = ""
    after: tuple[int, float] | None = None


class EventsParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Events after number `since`, of the last `since_s` seconds, with `type` in what happened, and
    about `who` if it is given; of these events the last `n`, or all. `after`: as in
    `LogsParams`."""

    since: int = 0
    n: int | None = None
    follow: bool = False
    since_s: float | None = None
    type: str = ""
    who: str = ""
    after: tuple[int, float] | None = None


SESSION_LOOK_S = 1.0
"""Seconds between two looks whether the session of a client that follows has ended."""


async def logs(gateway: GatewayControl, line: ControlStream, params: LogsParams) -> object:
    find_servers(gateway, [params.name])
    server_logs = gateway.logs
    word = params.grep.casefold()

    def fits(item: LogLine) -> bool:
        return word in item.text.casefold()

    follower = server_logs.follow(params.name, line.wake) if params.follow else None
    try:
        past = newer(server_logs.past(params.name, params.since_s), params.after)
        for item in _last(filter(fits, past), params.n):
            await line.tell("log", item)
        if follower is None:
            return {"v": VERSION}
        await line.answer({"v": VERSION})
        await _feed(gateway, line, follower, "log", fits)
    finally:
        if follower is not None:
            server_logs.unfollow(params.name, follower)
    return None


async def events(gateway: GatewayControl, line: ControlStream, params: EventsParams) -> object:
    journal = gateway.journal

    def fits(item: JournalEvent) -> bool:
        return params.type in item.what and params.who in ("", item.who)

    follower = journal.follow(line.wake) if params.follow else None
    try:
        past = newer(journal.since(params.since, params.since_s), params.after)
        last = journal.last
        for item in _last(filter(fits, past), params.n):
            await line.tell("event", item)
        if follower is None:
            return {"v": VERSION, "last": last}
        await line.answer({"v": VERSION, "last": last})
        await _feed(gateway, line, follower, "event", fits)
    finally:
        if follower is not None:
            journal.unfollow(follower)
    return None


def newer(items: Sequence[N], after: tuple[int, float] | None) -> Sequence[N]:
    """Return the items that came after this number and time. If the item with both is missing,
    another gateway counts now, or the item is not kept any more; then the time alone decides."""
    if after is None:
        return items
    seq, time = after
    if any(item.seq == seq and item.time == time for item in items):
        return [item for item in items if item.seq > seq]
    return [item for item in items if item.time > time]


def _last(items: Iterable[T], n: int | None) -> list[T]:
    all_items = list(items)
    return all_items if n is None else all_items[max(0, len(all_items) - max(0, n)) :]


async def _feed(
    gateway: GatewayControl,
    line: ControlStream,
    follower: Follower[T],
    method: str,
    fits: Callable[[T], bool],
) -> None:
    """Pass on new items that fit, until the client leaves or falls behind, or its session ends."""
    while gateway.sessions.goes_on(line.session):
        await line.wait_for_wake(None if line.session is None else SESSION_LOOK_S)
        for item in filter(fits, follower.take()):
            line.push(method, item)
        if follower.lagged:
            line.push("lagged", {"message": "more came than this connection could take"})
            return
    line.push("ended", {})


WAIT_S_MAX = 24 * 3600.0
"""Maximum seconds of a `wait`: a day, longer than a person waits at a prompt."""
WAIT_RECHECK_S = 1.0
"""Seconds between two looks of `wait`, which also looks at every event; for a change without an
event."""

Condition = Literal["ready", "active", "idle", "stopped", "error"]
#: States that fulfil each condition.
FULFILS: dict[Condition, frozenset[str]] = {
    "ready": READY_STATES,
    "active": frozenset({"active"}),
    "idle": frozenset({"idle"}),
    "stopped": frozenset({"stopped", "idle"}),
    "error": frozenset({"error", "quarantined"}),
}
#: Conditions that a start brings about; without names, `wait` leaves out unwanted servers then.
_UP: frozenset[Condition] = frozenset({"ready", "active"})


class Wait(Struct, frozen=True, forbid_unknown_fields=True, rename={"wanted": "for"}):
    """Parameters of `wait`. Without `names`, `wait` is for every wanted server. `above`: a server's
    state counts only when its generation is higher, so that a server that is about to restart does
    not pass as ready."""

    names: tuple[str, ...] = ()
    wanted: Condition = "ready"
    timeout_s: float = 30.0
    above: dict[str, int] = {}


async def wait(gateway: GatewayControl, line: ControlStream, params: Wait) -> object:
    find_servers(gateway, params.names)
    timeout_s = min(max(params.timeout_s, 0.0), WAIT_S_MAX)
    follower = gateway.journal.follow(line.wake)
    clock = asyncio.get_running_loop().time
    end = clock() + timeout_s
    missing = _Missing(gateway, params)
    try:
        async with asyncio.timeout_at(end):
            looked = clock()
            missing.look(end - looked)
            while missing.sentences:
                await line.wait_for_wake(WAIT_RECHECK_S)
                gateway.sessions.check_session(line.session)
                about = {event.who for event in follower.take()}
                if follower.lagged or clock() - looked >= WAIT_RECHECK_S:
                    looked = clock()
                    missing.look(end - looked)
                else:
                    missing.look(end - clock(), about)
            if params.wanted in _UP:
                await gateway.reach_fronts()  # they show now what these servers have
    except TimeoutError:
        missing.look(0.0)
        if missing.sentences:
            reasons = "; ".join(missing.sentences)
            raise ProtocolError(
                Exit.TIMEOUT, f"not {params.wanted} after {timeout_s:g} s: {reasons}"
            ) from None
    finally:
        gateway.journal.unfollow(follower)
    return {"v": VERSION}


class _Missing:
    """The servers that do not fulfil the condition yet."""

    def __init__(self, gateway: GatewayControl, params: Wait) -> None:
        self._gateway = gateway
        self._params = params
        self._starting = ""
        self._reasons: dict[str, str] = {}

    @property
    def sentences(self) -> list[str]:
        """A sentence for each server; none if the condition is fulfilled."""
        return [*filter(None, (self._starting, *self._reasons.values()))]

    def look(self, left_s: float, about: Collection[str] | None = None) -> None:
        """Look at all servers, or only at those `about` which there was an event: with hundreds of
        servers that start, a look at all for each event would take longer than their start.
        `left_s`: seconds left to wait. Raises ProtocolError for a server that will not fulfil the
        condition by waiting."""
        named = set(self._params.names)
        names = named or None if about is None else named & set(about) if named else about
        status = self._gateway.status(names)
        up = self._params.wanted in _UP
        self._starting = "the gateway is starting" if status.state == "starting" and up else ""
        for name in list(self._reasons) if names is None else names:
            self._reasons.pop(name, None)
        for server in status.servers:
            if reason := _why_missing(server, self._params, left_s):
                self._reasons[server.name] = reason


def _why_missing(server: ServerStatus, params: Wait, left_s: float) -> str:
    """Return why a server does not fulfil the condition yet; empty if it does or need not."""
    up = params.wanted in _UP
    unwanted = server.state in UNWANTED_STATES and not server.required
    if not params.names and up and unwanted:
        return ""
    fresh = server.generation > params.above.get(server.name, -1)
    if fresh and server.state in FULFILS[params.wanted]:
        return ""
    if up and (fresh or server.reason == CONFIGURATION):
        _check_hope(server, left_s)
    detail = f" ({server.message or server.reason})" if server.reason or server.message else ""
    return f"{server.name} is {server.state}{detail}"


def _check_hope(server: ServerStatus, left_s: float) -> None:
    if server.state == "stopped":
        raise ProtocolError(
            Exit.SERVER_NOT_RUNNING,
            f"{server.name} is stopped; start it with 'metamcp ctl start {server.name}'",
        )
    if server.phase == "quarantined":
        raise ProtocolError(
            Exit.FAILED,
            f"{server.name} is in quarantine: {server.message or server.reason};"
            f" 'metamcp ctl clear {server.name}' lets it out",
        )
    if server.state != "error" or server.phase == "ready":  # its pipe is tried every second
        return
    if server.reason == CONFIGURATION:
        raise ProtocolError(Exit.FAILED, f"{server.name} is not started: {server.message}")
    retry_s = server.retry_in_s
    # The next start comes after the end of the wait, or never: the client gets the error now.
    if retry_s is None or (server.phase == "failed" and retry_s > left_s):
        coming = "" if retry_s is None else f" (next start in {retry_s:.0f} s)"
        raise ProtocolError(
            Exit.FAILED,
            f"{server.name} failed: {server.message or server.reason}{coming}",
        )
