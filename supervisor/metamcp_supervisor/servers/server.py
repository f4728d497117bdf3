"""The life of one server: facts about it, and the rules that follow from them.

Owns: the record of a server's life (phase, generation, failures, next retry), and the rules that
need a number or the restart policy to choose the event of the table (`states`) for a fact. Never:
clocks, random numbers, processes, timers (`server_io` has them all).

`step` does everything: from a life, a fact and the time it calculates the next life and the actions
for the tree.
"""

import math
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor import backoff
from metamcp_supervisor.backoff import RestartLimits
from metamcp_supervisor.config.config import Restart
from metamcp_supervisor.servers.states import (
    Action,
    ExitClass,
    ImpossibleEvent,
    ServerEvent,
    ServerPhase,
    move,
)

Starter = Literal["boot", "operator", "timer", "client", "dependent", "others"]

LISTED_S = 2.0
"""Seconds without a call after which a lazy server stops that was only started to be listed: time
for the calls that waited for it, and for their answers to be reported."""


class ServerLife(Struct, frozen=True, kw_only=True):
    """The state of one server. Times are of the monotonic clock.

    `failures`: unstable starts in a row; `window`: times of those within `patience.window_s`;
    `trips`: how often in a row the circuit opened; `limits`: times at which it broke a limit.
    `proven`: this instance answered a call. `restarting`: it goes down to start again.
    `lazy`: it starts when it is called. `to_list`: it was only started to be listed, and nobody
    asked for it since. `resting`: it goes down because clients do not use it.
    `probing`: the single attempt of a half-open circuit. `degraded`: its worker does not answer.
    `parted`: an operator keeps new calls from it.
    `not_before`: it asked not to be used before this time.
    `vain`: when the first and the last failed start ended since it was last ready; None without
    failed starts. `brief`: it was ready only for a moment before it went down.
    `planned_at`: when its own next start was planned, if this start is a try for others, or was
    under way when a server with the same trouble recovered. If such a start fails like the last
    one, the failure is not counted.
    `mistake`: mistake in its configuration that keeps it from starting.
    `reason`, `message`: of the last time that it went down by itself, until it is asked to stop;
    `excused`: that was not its fault, and is forgotten once it is ready.
    """

    phase: ServerPhase = ServerPhase.IDLE
    restart: Restart = "on-failure"
    patience: RestartLimits = RestartLimits()
    lazy: bool = False
    generation: int = 0
    failures: int = 0
    window: tuple[float, ...] = ()
    trips: int = 0
    limits: tuple[float, ...] = ()
    ready_at: float | None = None
    retry_at: float | None = None
    called_at: float | None = None
    not_before: float = 0.0
    planned_at: float | None = None
    vain: tuple[float, float] | None = None
    proven: bool = False
    restarting: bool = False
    to_list: bool = False
    resting: bool = False
    probing: bool = False
    degraded: bool = False
    parted: bool = False
    excused: bool = False
    brief: bool = False
    mistake: str = ""
    reason: ExitClass | None = None
    message: str = ""


class Start(Struct, frozen=True):
    by: Starter


class StopServer(Struct, frozen=True):
    """Stop the server. `restarting`: start it again as soon as all its processes are gone; `anew`:
    because its configuration changed, so a lazy server is only to be listed."""

    restarting: bool = False
    anew: bool = False


class Admitted(Struct, frozen=True):
    """The start gate admits the server. `generation`: of the instance that starts; 0 for the
    next."""

    generation: int = 0


class BecameReady(Struct, frozen=True):
    """The handshake is done and the lists are read. `parted`: an operator keeps new calls from the
    server."""

    parted: bool = False


class WentDown(Struct, frozen=True):
    """The server of the current instance is gone, or did not become ready. Reported once for each
    instance. `excused`: not its fault; it starts again at once and the failure is not counted.
    `spare`: generation of a ready spare that can take its place, or 0. `retry_after_s`: seconds for
    which it asked not to be used; an operator may start it all the same."""

    reason: ExitClass
    message: str
    excused: bool = False
    spare: int = 0
    retry_after_s: float = 0.0


class Replaced(Struct, frozen=True):
    """The spare of this generation is ready, and takes the place of a server that is restarted."""

    generation: int


class WorkerLeft(Struct, frozen=True):
    """The worker of the newest instance and everything below it has left."""


class Answered(Struct, frozen=True):
    """The current instance answered a call."""


class WorkerResponds(Struct, frozen=True):
    """Whether the worker of the current instance answers."""

    yes: bool


class SiblingRecovered(Struct, frozen=True):
    """A server with the same launcher and the same kind of trouble is back."""

    reason: ExitClass


class Retuned(Struct, frozen=True):
    """The configuration of the server changed: its restart policy, `lazy`, its patience, or the
    mistake in its table."""

    restart: Restart
    lazy: bool = False
    patience: RestartLimits = RestartLimits()
    mistake: str = ""


class OperatorQuarantine(Struct, frozen=True):
    """An operator forbids any use of the server; its processes are stopped. `reason`: another one
    if the gateway itself forbade it in an earlier run."""

    why: str
    reason: ExitClass = ExitClass.OPERATOR


class CallsBlocked(Struct, frozen=True):
    """An operator keeps new calls from the server, or lets them through again; the server runs
    on."""

    yes: bool


class BecameIdle(Struct, frozen=True):
    """Clients have not used a lazy server for its idle time (`rest_s`)."""


Fact = (
    Start | StopServer | Admitted | BecameReady | WentDown | WorkerLeft | Answered | WorkerResponds
    | SiblingRecovered | Retuned | BecameIdle | Replaced | OperatorQuarantine | CallsBlocked
)  # fmt: skip
Step = tuple[ServerLife, tuple[Action, ...]]

_WAITING = (ServerPhase.BACKOFF, ServerPhase.FAILED)
_LEAVING = (ServerPhase.DRAINING, ServerPhase.STOPPING)
_ALIVE = (ServerPhase.WARMING, ServerPhase.READY)
_UNHEALED = (
    ExitClass.SPAWN, ExitClass.AUTHORIZATION, ExitClass.TLS, ExitClass.REDIRECT, ExitClass.LOOP,
)  # fmt: skip
"""Exit classes that need a person; waiting alone does not help."""


def step(life: ServerLife, fact: Fact, now: float, jitter: float) -> Step:
    """Return the next life and the actions for the tree. `jitter`: a random number from 0 up to 1.
    Raises Impossible."""
    match fact:
        case Start(by):
            return _start(life, by, now)
        case StopServer(restarting, anew):
            life, actions = _stop(life, restarting, now)
            return replace(life, to_list=anew and life.lazy), actions
        case Admitted(generation):
            life, actions = _apply_event(life, ServerEvent.ADMIT)
            generation = generation or life.generation + 1
            return replace(life, generation=generation, proven=False), actions
        case Replaced(generation):
            return _promote(life, generation, now)
        case BecameReady(parted):
            return _ready(replace(life, parted=parted), now)
        case WentDown():
            return _on_went_down(life, fact, now, jitter)
        case WorkerLeft():
            return _on_worker_left(life)
        case Answered():
            return replace(life, proven=True), ()
        case WorkerResponds(yes):
            return replace(life, degraded=not yes and life.phase in _ALIVE), ()
        case SiblingRecovered(reason):
            return _sibling_recovered(life, reason, now, jitter)
        case Retuned(restart, lazy, patience, mistake):
            waits = life.lazy and (life.phase is ServerPhase.IDLE or life.resting)
            life = replace(life, restart=restart, lazy=lazy, patience=patience, mistake=mistake)
            # A server that was lazy and waits for a call starts without a call now.
            return _start(life, "boot", now) if waits and not lazy else (life, ())
        case BecameIdle():
            return _stop_unneeded(life)
        case OperatorQuarantine(message, reason):
            return _quarantine(life, message, reason)
        case CallsBlocked(yes):
            return replace(life, parted=yes and life.phase is ServerPhase.READY), ()


def rest_s(life: ServerLife, idle_stop_s: float) -> float:
    """Return the seconds without a call after which a lazy server stops."""
    is_unneeded = life.to_list and not life.proven
    return min(LISTED_S, idle_stop_s) if is_unneeded else idle_stop_s


def _start(life: ServerLife, by: Starter, now: float) -> Step:
    if by in ("boot", "client", "operator"):
        life = replace(life, to_list=by == "boot" and life.lazy)
    if by == "client" and call_delay_s(life, now) != 0.0:
        return life, ()
    if by == "dependent" and life.phase is not ServerPhase.IDLE and not life.resting:
        return life, ()  # it runs, or comes back by itself, or an operator stopped it
    if by == "others" and (life.phase not in _WAITING or life.retry_at is None):
        return life, ()
    if by == "client":
        life = replace(life, called_at=now)
    if by == "operator":
        # A person looked at it: the past does not count any more, and quarantine is lifted.
        life = replace(life, failures=0, window=(), trips=0, limits=(), planned_at=None)
        if life.phase is ServerPhase.QUARANTINED:
            life, _ = _apply_event(replace(life, reason=None, message=""), ServerEvent.STOP)
    if life.phase in _LEAVING and (by == "operator" or life.resting):
        life = replace(life, restarting=True, resting=False)
    if life.mistake and life.phase in (ServerPhase.DISABLED, ServerPhase.IDLE, *_WAITING):
        return _refuse(life)
    probing = life.phase is ServerPhase.FAILED and by != "operator"
    planned_at = life.retry_at if by == "others" else life.planned_at
    life, actions = _apply_event(life, ServerEvent.START)
    if life.phase is ServerPhase.QUEUED:
        probing = life.probing or probing
        life = replace(life, retry_at=None, probing=probing, planned_at=planned_at)
    return life, actions


def _refuse(life: ServerLife) -> Step:
    """Do not start a server whose table in the configuration has a mistake."""
    life, actions = _apply_event(life, ServerEvent.REFUSE)
    reason, message = ExitClass.CONFIGURATION, life.mistake
    return replace(life, reason=reason, message=message, retry_at=None, probing=False), actions


def call_delay_s(life: ServerLife, now: float) -> float | None:
    """Return the seconds until the call of a client may start the server, whatever ended it; None
    if no call does, because an operator ended it, or it runs."""
    if life.phase is ServerPhase.IDLE or life.resting:
        return 0.0
    if life.phase not in _WAITING:
        return None
    again_at = -math.inf if life.called_at is None else life.called_at + backoff.DEMAND_S_MIN
    return max(0.0, again_at - now, life.not_before - now)


def _stop(life: ServerLife, restarting: bool, now: float) -> Step:
    life, actions = _apply_event(life, ServerEvent.STOP)
    life = replace(
        life, retry_at=None, probing=False, degraded=False, resting=False, parted=False,
        planned_at=None, vain=None, brief=False, reason=None, message="",
    )  # fmt: skip
    if life.phase in _LEAVING:
        return replace(life, restarting=restarting), actions
    if restarting:
        life, more = _start(life, "operator", now)
        return life, (*actions, *more)
    return life, actions


def _ready(life: ServerLife, now: float) -> Step:
    life, actions = _apply_event(life, ServerEvent.READY)
    life = replace(life, ready_at=now, planned_at=None, vain=None, brief=False)
    if life.excused:
        life = replace(life, excused=False, reason=None, message="")
    if life.probing:
        # Half of its past is forgiven: if it fails again at once, the circuit opens sooner.
        window = life.window[len(life.window) - len(life.window) // 2 :]
        life = replace(life, probing=False, failures=life.failures // 2, window=window)
    return life, actions


def _quarantine(life: ServerLife, message: str, reason: ExitClass) -> Step:
    life, actions = _apply_event(life, ServerEvent.QUARANTINE)
    life = replace(
        life, reason=reason, message=message, retry_at=None, ready_at=None,
        probing=False, degraded=False, restarting=False, resting=False, parted=False,
        planned_at=None, vain=None, brief=False,
    )  # fmt: skip
    return life, actions


def _stop_unneeded(life: ServerLife) -> Step:
    if life.phase is not ServerPhase.READY or not life.lazy:
        return life, ()
    life, actions = _apply_event(life, ServerEvent.REST)
    return replace(life, resting=True, to_list=False, degraded=False, parted=False), actions


def _on_worker_left(life: ServerLife) -> Step:
    restarting = life.restarting
    life, actions = _apply_event(life, ServerEvent.RESTED if life.resting else ServerEvent.GONE)
    life = replace(life, ready_at=None, restarting=False, resting=False)
    if restarting and life.phase is ServerPhase.DISABLED:
        if life.mistake:
            life, more = _refuse(life)
            return life, (*actions, *more)
        life, more = _apply_event(life, ServerEvent.START)
        return life, (*actions, *more)
    return life, actions


def _on_went_down(life: ServerLife, fact: WentDown, now: float, jitter: float) -> Step:
    if life.phase in _LEAVING:
        return _apply_event(life, ServerEvent.DRAINED)
    if life.phase not in _ALIVE:
        raise ImpossibleEvent(f"'went down' in phase '{life.phase}'")
    was_up = life.phase is ServerPhase.READY
    if fact.reason is ExitClass.CLEAN and not was_up:  # a failed start
        end, mark, words = fact.message.partition("; ")
        message = f"{end} before it was ready{mark}{words}"
        fact = replace(fact, reason=ExitClass.EXIT, message=message)
    reason, was_stable = fact.reason, backoff.stable(life.ready_at, life.proven, now)
    planned_at = life.planned_at if reason is life.reason else None
    life = replace(
        life, reason=reason, message=fact.message, excused=fact.excused, ready_at=None,
        degraded=False, parted=False, not_before=now + fact.retry_after_s, planned_at=None,
        vain=None if was_up else (life.vain[0] if life.vain else now, now),
        brief=life.ready_at is not None and now - life.ready_at < backoff.BRIEF_S,
    )  # fmt: skip
    if reason is ExitClass.FLOOD:
        return _apply_event(replace(life, probing=False, retry_at=None), ServerEvent.QUARANTINE)
    if fact.excused:
        return _retry(life, now, 0.0, fact.spare)
    if reason is ExitClass.CLEAN and life.restart != "always":
        return _apply_event(replace(life, probing=False), ServerEvent.RESTED)
    if life.restart == "never":
        return _apply_event(replace(life, probing=False, retry_at=None), ServerEvent.GIVE_UP)
    if planned_at is not None:
        return _retry_as_planned(life, planned_at, now)
    if was_stable:
        return _retry(replace(life, failures=0, window=(), trips=0), now, 0.0, fact.spare)
    most = life.patience.restarts_max
    window = backoff.tally(life.window, now, life.patience.window_s, most + 1)
    life = replace(life, failures=life.failures + 1, window=window)
    if reason is ExitClass.LIMIT:
        limits = backoff.tally(life.limits, now, backoff.LIMITS_WINDOW_S, backoff.LIMITS_MAX)
        life = replace(life, limits=limits)
        if len(limits) >= backoff.LIMITS_MAX:
            return _apply_event(replace(life, probing=False), ServerEvent.QUARANTINE)
    if reason in _UNHEALED or life.probing or len(window) > most:
        trips = life.trips + 1
        retry_at = max(now + backoff.half_open(trips, jitter), life.not_before)
        return _apply_event(
            replace(life, probing=False, trips=trips, retry_at=retry_at), ServerEvent.GIVE_UP
        )
    return _retry(
        life, now, backoff.delay(life.failures, jitter, life.patience.delay_s_max), fact.spare
    )


def _promote(life: ServerLife, generation: int, now: float) -> Step:
    life, actions = _apply_event(life, ServerEvent.PROMOTE)
    return replace(life, generation=generation, ready_at=now, proven=False, degraded=False), actions


def _retry(life: ServerLife, now: float, delay_s: float, spare: int) -> Step:
    if spare and life.phase is ServerPhase.READY:
        return _promote(life, spare, now)
    retry_at = max(now + delay_s, life.not_before)
    return _apply_event(replace(life, probing=False, retry_at=retry_at), ServerEvent.RETRY)


def _retry_as_planned(life: ServerLife, planned_at: float, now: float) -> Step:
    """Wait for the time that was planned before this start."""
    retry_at = max(planned_at, now + backoff.DELAY_S_FLOOR, life.not_before)
    event = ServerEvent.GIVE_UP if life.probing else ServerEvent.RETRY
    return _apply_event(replace(life, probing=False, retry_at=retry_at), event)


def evidence(before: ServerLife, life: ServerLife) -> ExitClass | None:
    """Return the trouble that is over, as the recovery of this server shows; None if it shows
    nothing. A server that is ready again and again for a moment does not count, because it would
    start its siblings each time."""
    recovered = (
        before.phase is ServerPhase.WARMING and life.phase is ServerPhase.READY and before.failures
    )
    return before.reason if recovered and not before.brief else None


def _sibling_recovered(life: ServerLife, reason: ExitClass, now: float, jitter: float) -> Step:
    soon = max(now + jitter * backoff.EVIDENCE_S_MAX, life.not_before)
    if life.phase is ServerPhase.WARMING and life.vain is not None and life.reason is reason:
        return replace(life, planned_at=soon), ()  # the start began before the trouble was over
    if life.phase not in _WAITING or life.reason is not reason:
        return life, ()
    if life.retry_at is None or life.retry_at <= soon:
        return life, ()
    return replace(life, retry_at=soon), (Action.ARM_RETRY,)


def _apply_event(life: ServerLife, event: ServerEvent) -> Step:
    phase, actions = move(life.phase, event)
    return replace(life, phase=phase), actions
