"""The life of one server: what happened to it, and what follows from that.

Owns: the record of a server's life (phase, generation, failures, next retry), and the rules that
need a number or the restart policy to say which event of the table (`states`) a fact is. Never:
clocks, dice, processes, timers (`tree` has them all).

`step` is the whole of it: a life, a fact and the time give the next life and what the tree must do.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from metamcp_supervisor import backoff
from metamcp_supervisor.backoff import Patience
from metamcp_supervisor.config.config import Restart
from metamcp_supervisor.servers.states import Action, Event, ExitClass, Impossible, Phase, move

Starter = Literal["boot", "operator", "timer", "client", "dependent", "others"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """All that is remembered of one server. Times are of the monotonic clock.

    `failures`: unstable starts in a row; `window`: times of those within `patience.window_s`;
    `trips`: how often in a row the circuit opened; `limits`: times at which it broke a limit.
    `proven`: this instance answered a call. `restarting`: on its way down, it is to come up again.
    `lazy`: it starts when it is called. `resting`: on its way down, because nobody needs it.
    `probing`: the one attempt of a half-open circuit. `degraded`: its worker does not answer now.
    `parted`: an operator keeps new calls from it.
    `not_before`: it asked to be left alone until then.
    `vain`: no start since it was last ready came to anything; when the first of them and the last
    ended. `brief`: it was ready before it went down, for a moment only.
    `planned_at`: when it is its own turn; this start is for the sake of others, or was on its way
    when one of them recovered, and if it fails as the last one did, nothing is counted.
    `mistake`: in its configuration, for which it is not started.
    `reason`, `message`: of the last time that it went down by itself, until it is told to stop;
    `excused`: that was not its fault, and is forgotten once it is ready.
    """

    phase: Phase = Phase.IDLE
    restart: Restart = "on-failure"
    patience: Patience = field(default_factory=Patience)
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
    resting: bool = False
    probing: bool = False
    degraded: bool = False
    parted: bool = False
    excused: bool = False
    brief: bool = False
    mistake: str = ""
    reason: ExitClass | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    by: Starter


@dataclass(frozen=True, slots=True)
class Stop:
    """`restarting`: start again as soon as everything of it is gone."""

    restarting: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """The start gate is open for it. `generation`: of the instance that starts; 0 for the next."""

    generation: int = 0


@dataclass(frozen=True, slots=True)
class BecameReady:
    """Handshake done and lists read."""


@dataclass(frozen=True, slots=True)
class WentDown:
    """The server of the current instance is gone, or never came up. Told once per instance.
    `excused`: not its fault; it starts again at once and nothing is counted. `spare`: generation of
    a ready one that can take its place, or 0. `retry_after_s`: it asked to be left alone for so
    long; an operator may start it all the same."""

    reason: ExitClass
    message: str
    excused: bool = False
    spare: int = 0
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replaced:
    """It is to be restarted, and its spare, of this generation, is ready."""

    generation: int


@dataclass(frozen=True, slots=True)
class Left:
    """The worker of the newest instance and everything below it has left."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The current instance answered a call."""


@dataclass(frozen=True, slots=True)
class Responds:
    """Whether the worker of the current instance answers."""

    yes: bool


@dataclass(frozen=True, slots=True)
class SiblingRecovered:
    """A server with the same launcher and the same kind of trouble is back."""

    reason: ExitClass


@dataclass(frozen=True, slots=True)
class Retuned:
    """The configuration has another restart policy for it, it is to start at another time, or there
    is another mistake in its table or none any more."""

    restart: Restart
    lazy: bool = False
    patience: Patience = field(default_factory=Patience)
    mistake: str = ""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An operator wants nobody to use it; whatever runs of it is let go of."""

    why: str


@dataclass(frozen=True, slots=True)
class Parted:
    """An operator parts it from new calls, or lets them come again. It runs on."""

    yes: bool


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Nobody has needed it for as long as a lazy server may be there in vain."""


Fact = (
    Start | Stop | Admitted | BecameReady | WentDown | Left | Answered | Responds
    | SiblingRecovered | Retuned | Unneeded | Replaced | Quarantined | Parted
)  # fmt: skip
Step = tuple[Life, tuple[Action, ...]]

_WAITING = (Phase.BACKOFF, Phase.FAILED)
_LEAVING = (Phase.DRAINING, Phase.STOPPING)
_ALIVE = (Phase.WARMING, Phase.READY)
_UNHEALED = (ExitClass.SPAWN, ExitClass.AUTHORIZATION, ExitClass.TLS, ExitClass.REDIRECT)
"""Somebody must do something; time alone does not help."""


def step(life: Life, fact: Fact, now: float, jitter: float) -> Step:
    """What becomes of `life`. `jitter`: a number from 0 up to 1. Raises Impossible."""
    match fact:
        case Start(by):
            return _start(life, by, now)
        case Stop(restarting):
            return _stop(life, restarting, now)
        case Admitted(generation):
            life, actions = _moved(life, Event.ADMIT)
            generation = generation or life.generation + 1
            return replace(life, generation=generation, proven=False), actions
        case Replaced(generation):
            return _promoted(life, generation, now)
        case BecameReady():
            return _ready(life, now)
        case WentDown():
            return _down(life, fact, now, jitter)
        case Left():
            return _left(life)
        case Answered():
            return replace(life, proven=True), ()
        case Responds(yes):
            return replace(life, degraded=not yes and life.phase in _ALIVE), ()
        case SiblingRecovered(reason):
            return _sibling_recovered(life, reason, now, jitter)
        case Retuned(restart, lazy, patience, mistake):
            waits = life.lazy and (life.phase is Phase.IDLE or life.resting)
            life = replace(life, restart=restart, lazy=lazy, patience=patience, mistake=mistake)
            # One that waits to be called is there without a call from now on.
            return _start(life, "boot", now) if waits and not lazy else (life, ())
        case Unneeded():
            return _unneeded(life)
        case Quarantined(why):
            return _quarantined(life, why)
        case Parted(yes):
            return replace(life, parted=yes and life.phase is Phase.READY), ()


def _start(life: Life, by: Starter, now: float) -> Step:
    if by == "client" and not _answers_clients(life, now):
        return life, ()
    if by == "dependent" and life.phase is not Phase.IDLE and not life.resting:
        return life, ()  # it runs, or comes back by itself, or an operator stopped it
    if by == "others" and (life.phase not in _WAITING or life.retry_at is None):
        return life, ()
    if by == "client":
        life = replace(life, called_at=now)
    if by == "operator":
        # A human looked at it: the past does not count any more, and quarantine is lifted.
        life = replace(life, failures=0, window=(), trips=0, limits=(), planned_at=None)
        if life.phase is Phase.QUARANTINED:
            life, _ = _moved(replace(life, reason=None, message=""), Event.STOP)
    if life.phase in _LEAVING and (by == "operator" or life.resting):
        life = replace(life, restarting=True, resting=False)
    if life.mistake and life.phase in (Phase.DISABLED, Phase.IDLE, *_WAITING):
        return _refused(life)
    probing = life.phase is Phase.FAILED and by != "operator"
    planned_at = life.retry_at if by == "others" else life.planned_at
    life, actions = _moved(life, Event.START)
    if life.phase is Phase.QUEUED:
        probing = life.probing or probing
        life = replace(life, retry_at=None, probing=probing, planned_at=planned_at)
    return life, actions


def _refused(life: Life) -> Step:
    """It is not started: its table in the configuration has a mistake."""
    life, actions = _moved(life, Event.REFUSE)
    reason, message = ExitClass.CONFIGURATION, life.mistake
    return replace(life, reason=reason, message=message, retry_at=None, probing=False), actions


def _answers_clients(life: Life, now: float) -> bool:
    """May a client's call start it? Not what an operator stopped, and not against its policy."""
    if life.phase is Phase.IDLE or life.resting:
        return True
    often = life.called_at is not None and now - life.called_at < backoff.DEMAND_S_MIN
    alone = often or now < life.not_before
    return life.phase in _WAITING and life.restart != "never" and not alone


def _stop(life: Life, restarting: bool, now: float) -> Step:
    life, actions = _moved(life, Event.STOP)
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


def _ready(life: Life, now: float) -> Step:
    life, actions = _moved(life, Event.READY)
    life = replace(life, ready_at=now, planned_at=None, vain=None, brief=False)
    if life.excused:
        life = replace(life, excused=False, reason=None, message="")
    if life.probing:
        # Half of its past is forgiven: if it fails again at once, the circuit opens sooner.
        kept = life.window[len(life.window) - len(life.window) // 2 :]
        life = replace(life, probing=False, failures=life.failures // 2, window=kept)
    return life, actions


def _quarantined(life: Life, why: str) -> Step:
    life, actions = _moved(life, Event.QUARANTINE)
    life = replace(
        life, reason=ExitClass.OPERATOR, message=why, retry_at=None, ready_at=None, probing=False,
        degraded=False, restarting=False, resting=False, parted=False, planned_at=None, vain=None,
        brief=False,
    )  # fmt: skip
    return life, actions


def _unneeded(life: Life) -> Step:
    if life.phase is not Phase.READY or not life.lazy:
        return life, ()
    life, actions = _moved(life, Event.REST)
    return replace(life, resting=True, degraded=False, parted=False), actions


def _left(life: Life) -> Step:
    restarting = life.restarting
    life, actions = _moved(life, Event.RESTED if life.resting else Event.GONE)
    life = replace(life, ready_at=None, restarting=False, resting=False)
    if restarting and life.phase is Phase.DISABLED:
        if life.mistake:
            life, more = _refused(life)
            return life, (*actions, *more)
        life, more = _moved(life, Event.START)
        return life, (*actions, *more)
    return life, actions


def _down(life: Life, fact: WentDown, now: float, jitter: float) -> Step:
    if life.phase in _LEAVING:
        return _moved(life, Event.DRAINED)
    if life.phase not in _ALIVE:
        raise Impossible(f"'went down' in phase '{life.phase}'")
    was_up = life.phase is Phase.READY
    if fact.reason is ExitClass.CLEAN and not was_up:  # a start that came to nothing
        why = f"{fact.message} before it was ready"
        fact = replace(fact, reason=ExitClass.EXIT, message=why)
    reason, was_stable = fact.reason, backoff.stable(life.ready_at, life.proven, now)
    planned_at = life.planned_at if reason is life.reason else None
    life = replace(
        life, reason=reason, message=fact.message, excused=fact.excused, ready_at=None,
        degraded=False, parted=False, not_before=now + fact.retry_after_s, planned_at=None,
        vain=None if was_up else (life.vain[0] if life.vain else now, now),
        brief=life.ready_at is not None and now - life.ready_at < backoff.BRIEF_S,
    )  # fmt: skip
    if reason is ExitClass.FLOOD:
        return _moved(replace(life, probing=False, retry_at=None), Event.QUARANTINE)
    if fact.excused:
        return _retry(life, now, 0.0, fact.spare)
    if reason is ExitClass.CLEAN and life.restart != "always":
        event = Event.RESTED if life.lazy else Event.RETIRE
        return _moved(replace(life, probing=False), event)
    if life.restart == "never":
        return _moved(replace(life, probing=False, retry_at=None), Event.GIVE_UP)
    if planned_at is not None:
        return _back(life, planned_at, now)
    if was_stable:
        return _retry(replace(life, failures=0, window=(), trips=0), now, 0.0, fact.spare)
    most = life.patience.restarts_max
    window = backoff.tally(life.window, now, life.patience.window_s, most + 1)
    life = replace(life, failures=life.failures + 1, window=window)
    if reason is ExitClass.LIMIT:
        limits = backoff.tally(life.limits, now, backoff.LIMITS_WINDOW_S, backoff.LIMITS_MAX)
        life = replace(life, limits=limits)
        if len(limits) >= backoff.LIMITS_MAX:
            return _moved(replace(life, probing=False), Event.QUARANTINE)
    if reason in _UNHEALED or life.probing or len(window) > most:
        trips = life.trips + 1
        retry_at = max(now + backoff.half_open(trips, jitter), life.not_before)
        return _moved(replace(life, probing=False, trips=trips, retry_at=retry_at), Event.GIVE_UP)
    return _retry(
        life, now, backoff.delay(life.failures, jitter, life.patience.delay_s_max), fact.spare
    )


def _promoted(life: Life, generation: int, now: float) -> Step:
    life, actions = _moved(life, Event.PROMOTE)
    return replace(life, generation=generation, ready_at=now, proven=False, degraded=False), actions


def _retry(life: Life, now: float, delay_s: float, spare: int) -> Step:
    if spare and life.phase is Phase.READY:
        return _promoted(life, spare, now)
    retry_at = max(now + delay_s, life.not_before)
    return _moved(replace(life, probing=False, retry_at=retry_at), Event.RETRY)


def _back(life: Life, planned_at: float, now: float) -> Step:
    """It waits as before that start."""
    retry_at = max(planned_at, now + backoff.DELAY_S_FLOOR, life.not_before)
    event = Event.GIVE_UP if life.probing else Event.RETRY
    return _moved(replace(life, probing=False, retry_at=retry_at), event)


def evidence(before: Life, life: Life) -> ExitClass | None:
    """The trouble that is over, as the recovery of this server shows; None: it shows nothing. One
    that is ready for a moment, again and again, would set its siblings going each time."""
    recovered = before.phase is Phase.WARMING and life.phase is Phase.READY and before.failures
    return before.reason if recovered and not before.brief else None


def _sibling_recovered(life: Life, reason: ExitClass, now: float, jitter: float) -> Step:
    soon = max(now + jitter * backoff.EVIDENCE_S_MAX, life.not_before)
    if life.phase is Phase.WARMING and life.vain is not None and life.reason is reason:
        return replace(life, planned_at=soon), ()  # it set out before the trouble was over
    if life.phase not in _WAITING or life.reason is not reason:
        return life, ()
    if life.retry_at is None or life.retry_at <= soon:
        return life, ()
    return replace(life, retry_at=soon), (Action.ARM_RETRY,)


def _moved(life: Life, event: Event) -> Step:
    phase, actions = move(life.phase, event)
    return replace(life, phase=phase), actions
