"""The life of one server: facts in, actions out, with values for clock and dice."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from metamcp_supervisor import backoff
from metamcp_supervisor.backoff import RestartLimits
from metamcp_supervisor.config.config import Restart
from metamcp_supervisor.servers.server import (
    LISTED_S,
    Admitted,
    Answered,
    BecameIdle,
    BecameReady,
    CallsBlocked,
    Fact,
    OperatorQuarantine,
    Replaced,
    Retuned,
    ServerLife,
    SiblingRecovered,
    Start,
    Starter,
    StopServer,
    WentDown,
    WorkerLeft,
    WorkerResponds,
    rest_s,
    step,
)  # fmt: skip
from metamcp_supervisor.servers.states import Action, ExitClass, ImpossibleEvent, ServerPhase

CRASH = WentDown(ExitClass.EXIT, "it ended with status 1")


def after(life: ServerLife, *facts: Fact, now: float = 0.0, jitter: float = 0.5) -> ServerLife:
    for fact in facts:
        life, _ = step(life, fact, now, jitter)
    return life


def up(life: ServerLife, now: float = 0.0, by: Starter = "timer") -> ServerLife:
    return after(life, Start(by), Admitted(), BecameReady(), now=now)


def crashed(life: ServerLife, now: float = 0.0) -> ServerLife:
    return after(life, CRASH, WorkerLeft(), now=now)


def failed() -> ServerLife:
    """A server whose circuit has just opened, at time 8."""
    life = ServerLife()
    for second in range(RestartLimits().restarts_max + 1):
        life = crashed(up(life, float(second)), float(second))
    assert life.phase is ServerPhase.FAILED
    return life


@pytest.mark.promise("M72")
def test_a_server_may_be_given_more_or_less_patience_than_others() -> None:
    patience = RestartLimits(restarts_max=1, window_s=10.0, delay_s_max=0.5)
    life = after(ServerLife(), Retuned("on-failure", patience=patience))
    for now in (0.0, 20.0, 40.0):  # never two within its window
        life = crashed(up(life, now), now)
        assert life.phase is ServerPhase.BACKOFF
        assert life.retry_at is not None
        assert life.retry_at - now <= backoff.DELAY_S_FLOOR + 0.5
    assert crashed(up(life, 45.0), 45.0).phase is ServerPhase.FAILED


def test_a_start_leads_through_the_gate_to_ready() -> None:
    life, actions = step(ServerLife(), Start("boot"), 0.0, 0.0)
    assert (life.phase, actions) == (ServerPhase.QUEUED, (Action.JOIN_GATE,))
    life, actions = step(life, Admitted(), 0.0, 0.0)
    assert (life.phase, life.generation, actions) == (ServerPhase.WARMING, 1, (Action.FORK,))
    life, actions = step(life, BecameReady(), 0.0, 0.0)
    assert life.phase is ServerPhase.READY
    assert Action.ROUTE in actions


def test_a_crash_is_retried_later_each_time() -> None:
    life, waits = ServerLife(), list[float]()
    for _ in range(4):
        life = crashed(up(life))
        assert life.phase is ServerPhase.BACKOFF
        assert life.retry_at is not None
        waits.append(life.retry_at)
    assert waits == sorted(waits)
    assert life.generation == life.failures == 4


def test_the_first_restart_after_a_stable_run_is_immediate_and_all_is_forgiven() -> None:
    life = up(crashed(up(ServerLife())))
    life = crashed(after(life, Answered()), now=backoff.STABLE_S)
    assert (life.phase, life.failures, life.window) == (ServerPhase.BACKOFF, 0, ())
    assert life.retry_at == backoff.STABLE_S


def test_more_than_eight_unstable_starts_in_two_minutes_open_the_circuit() -> None:
    life = failed()
    assert life.retry_at is not None
    assert life.retry_at - 8.0 == backoff.half_open(1, 0.5)


def test_unstable_starts_that_are_far_apart_open_nothing() -> None:
    life = ServerLife()
    for hundreds in range(20):
        life = crashed(up(life, hundreds * 100.0), hundreds * 100.0)
    assert life.phase is ServerPhase.BACKOFF


def test_a_half_open_circuit_allows_one_attempt() -> None:
    life = after(failed(), Start("timer"), Admitted(), now=70.0)
    assert life.probing
    life = crashed(life, 70.0)
    assert (life.phase, life.trips) == (ServerPhase.FAILED, 2)
    assert life.retry_at == 70.0 + backoff.half_open(2, 0.5)


def test_a_recovery_halves_what_counts_against_a_server() -> None:
    before = failed()
    life = up(before, 70.0)
    assert not life.probing
    assert life.failures == before.failures // 2
    assert len(life.window) == len(before.window) // 2
    assert crashed(life, 71.0).phase is ServerPhase.BACKOFF


@pytest.mark.parametrize(
    ("restart", "reason", "phase"),
    [
        ("always", ExitClass.CLEAN, ServerPhase.BACKOFF),
        ("always", ExitClass.EXIT, ServerPhase.BACKOFF),
        ("on-failure", ExitClass.CLEAN, ServerPhase.IDLE),
        ("on-failure", ExitClass.SIGNAL, ServerPhase.BACKOFF),
        ("on-failure", ExitClass.START_TIMEOUT, ServerPhase.BACKOFF),
        ("never", ExitClass.CLEAN, ServerPhase.IDLE),
        ("never", ExitClass.EXIT, ServerPhase.FAILED),
        ("always", ExitClass.SPAWN, ServerPhase.FAILED),
        ("on-failure", ExitClass.SPAWN, ServerPhase.FAILED),
        ("never", ExitClass.SPAWN, ServerPhase.FAILED),
    ],
)
def test_what_follows_an_end_is_a_matter_of_policy_and_class(
    restart: Restart, reason: ExitClass, phase: ServerPhase
) -> None:
    life = after(up(ServerLife(restart=restart)), WentDown(reason, "because"), WorkerLeft())
    assert life.phase is phase
    assert (life.reason, life.message) == (reason, "because")
    planned = life.retry_at is not None
    assert planned == (
        phase is ServerPhase.BACKOFF or (phase is ServerPhase.FAILED and restart != "never")
    )


@pytest.mark.parametrize("reason", [ExitClass.SPAWN, ExitClass.AUTHORIZATION, ExitClass.TLS])
def test_what_time_does_not_heal_is_not_tried_again_soon(reason: ExitClass) -> None:
    life = after(ServerLife(), Start("boot"), Admitted(), WentDown(reason, "no such file"))
    assert life.retry_at == backoff.half_open(1, 0.5)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("restart", "phase"),
    [
        ("always", ServerPhase.BACKOFF),
        ("on-failure", ServerPhase.BACKOFF),
        ("never", ServerPhase.FAILED),
    ],
)
def test_a_server_that_ends_before_its_handshake_has_failed_whatever_its_status(
    restart: Restart, phase: ServerPhase, lazy: bool
) -> None:
    started = after(ServerLife(restart=restart, lazy=lazy), Start("client"), Admitted())
    life = after(started, WentDown(ExitClass.CLEAN, "it ended with status 0"), WorkerLeft())
    assert life.phase is phase
    assert life.reason is ExitClass.EXIT
    assert life.message == "it ended with status 0 before it was ready"


def test_an_end_that_is_not_its_fault_counts_against_no_server_and_no_policy() -> None:
    life = up(ServerLife(restart="never"))
    life = after(life, WentDown(ExitClass.NURSERY, "killed", excused=True), now=5.0)
    assert (life.phase, life.failures, life.window) == (ServerPhase.BACKOFF, 0, ())
    assert life.retry_at == 5.0
    assert life.reason is ExitClass.NURSERY
    assert up(life).reason is None


def test_the_third_breach_of_a_limit_is_quarantine_and_only_a_human_ends_it() -> None:
    life = ServerLife()
    for _ in range(backoff.LIMITS_MAX):
        life = after(up(life), WentDown(ExitClass.LIMIT, "16 MiB without a newline"), WorkerLeft())
    assert life.phase is ServerPhase.QUARANTINED
    assert after(life, Start("client")).phase is ServerPhase.QUARANTINED
    assert after(life, SiblingRecovered(ExitClass.LIMIT)) == life
    assert after(life, Start("operator")).phase is ServerPhase.QUEUED


def test_a_clients_call_starts_what_waits_but_not_too_often() -> None:
    life = after(failed(), Start("client"), now=9.0)
    assert (life.phase, life.probing) == (ServerPhase.QUEUED, True)
    life = after(life, Admitted(), CRASH, WorkerLeft(), now=9.0)
    assert after(life, Start("client"), now=10.0).phase is ServerPhase.FAILED
    assert after(life, Start("client"), now=9.0 + backoff.DEMAND_S_MIN).phase is ServerPhase.QUEUED


@pytest.mark.parametrize("restart", ["on-failure", "never"])
@pytest.mark.parametrize("down", [CRASH, WentDown(ExitClass.CLEAN, "it ended")])
def test_a_clients_call_starts_a_server_whatever_ended_it(restart: Restart, down: WentDown) -> None:
    life = after(up(ServerLife(restart=restart)), down, WorkerLeft())
    assert after(life, Start("client"), now=100.0).phase is ServerPhase.QUEUED


def test_a_clients_call_starts_nothing_that_an_operator_stopped() -> None:
    stopped = after(up(ServerLife()), StopServer(), WorkerLeft())
    assert after(stopped, Start("client")).phase is ServerPhase.DISABLED
    ended = after(up(ServerLife()), WentDown(ExitClass.CLEAN, "it ended"), WorkerLeft())
    assert after(ended, StopServer(), Start("client")).phase is ServerPhase.DISABLED


def test_an_operators_start_forgets_the_past() -> None:
    life = after(failed(), Start("operator"), now=9.0)
    assert (life.phase, life.failures, life.window, life.trips) == (ServerPhase.QUEUED, 0, (), 0)
    assert not life.probing


def test_a_restart_goes_down_whole_before_it_comes_up() -> None:
    life, actions = step(up(ServerLife()), StopServer(restarting=True), 0.0, 0.0)
    assert (life.phase, actions) == (ServerPhase.DRAINING, (Action.ASK_TO_STOP,))
    life = after(life, WentDown(ExitClass.CLEAN, "as asked"))
    assert life.phase is ServerPhase.STOPPING
    life, actions = step(life, WorkerLeft(), 0.0, 0.0)
    assert (life.phase, actions) == (ServerPhase.QUEUED, (Action.JOIN_GATE,))
    assert not life.restarting


def test_a_stop_during_a_restart_wins() -> None:
    life = after(up(ServerLife()), StopServer(restarting=True), StopServer(), WorkerLeft())
    assert life.phase is ServerPhase.DISABLED


def test_a_start_while_it_stops_brings_it_back_afterwards() -> None:
    assert (
        after(up(ServerLife()), StopServer(), Start("operator"), WorkerLeft()).phase
        is ServerPhase.QUEUED
    )


@pytest.mark.parametrize("facts", [(), (Start("boot"),), (CRASH,)])
def test_a_restart_of_what_does_not_run_is_a_start(facts: tuple[Fact, ...]) -> None:
    life = crashed(up(ServerLife())) if CRASH in facts else after(ServerLife(), *facts)
    assert after(life, StopServer(restarting=True)).phase is ServerPhase.QUEUED


def test_when_a_sibling_recovers_the_wait_becomes_short() -> None:
    life = replace(crashed(up(ServerLife())), retry_at=29.0)
    woken, actions = step(life, SiblingRecovered(ExitClass.EXIT), 5.0, 0.5)
    assert woken.retry_at == 5.0 + 0.5 * backoff.EVIDENCE_S_MAX
    assert actions == (Action.ARM_RETRY,)
    assert after(life, SiblingRecovered(ExitClass.SIGNAL), now=5.0) == life
    assert after(replace(life, retry_at=5.1), SiblingRecovered(ExitClass.EXIT), now=5.0) != woken


def test_a_silent_worker_is_degraded_until_it_answers_or_dies() -> None:
    life = after(up(ServerLife()), WorkerResponds(yes=False))
    assert life.degraded
    assert not after(life, WorkerResponds(yes=True)).degraded
    assert not crashed(life).degraded
    assert not after(ServerLife(), WorkerResponds(yes=False)).degraded


def test_another_policy_holds_from_the_next_end_on() -> None:
    life = after(up(ServerLife()), Retuned("never"), CRASH)
    assert (life.phase, life.retry_at) == (ServerPhase.FAILED, None)


@pytest.mark.parametrize("facts", [(), (Start("boot"),), (Start("boot"), StopServer())])
def test_what_does_not_run_cannot_go_down(facts: tuple[Fact, ...]) -> None:
    with pytest.raises(ImpossibleEvent, match="went down"):
        after(after(ServerLife(), *facts), CRASH)


def test_a_lazy_server_that_nobody_needs_rests_until_it_is_called() -> None:
    ready = up(ServerLife(lazy=True))
    resting, actions = step(ready, BecameIdle(), 9.0, 0.0)
    assert (resting.phase, actions) == (ServerPhase.DRAINING, (Action.ASK_TO_STOP,))
    idle = after(resting, WentDown(ExitClass.CLEAN, "it was stopped"), WorkerLeft())
    assert (idle.phase, idle.resting) == (ServerPhase.IDLE, False)
    assert after(idle, Start("client")).phase is ServerPhase.QUEUED


def test_a_lazy_server_that_was_only_started_to_be_listed_rests_soon() -> None:
    listed = up(ServerLife(lazy=True), by="boot")
    assert (rest_s(listed, 600.0), rest_s(listed, 1.0)) == (LISTED_S, 1.0)
    crashed_once = after(ServerLife(lazy=True), Start("boot"), Admitted(), CRASH, WorkerLeft())
    assert rest_s(up(crashed_once), 600.0) == LISTED_S, "the next start is for the same"
    assert rest_s(up(ServerLife(), by="boot"), 600.0) == 600.0, "it is eager"


@pytest.mark.parametrize(
    "facts",
    [
        (Start("client"), Admitted(), BecameReady()),
        (Admitted(), Start("operator"), BecameReady()),
        (Admitted(), BecameReady(), Answered()),
    ],
)
def test_a_lazy_server_that_was_needed_when_it_was_listed_stays_for_its_idle_time(
    facts: tuple[Fact, ...],
) -> None:
    life = after(ServerLife(lazy=True), Start("boot"), *facts)
    assert rest_s(life, 600.0) == 600.0


def test_a_start_that_a_call_caused_is_no_start_to_be_listed() -> None:
    idle = after(up(ServerLife(lazy=True), by="boot"), BecameIdle(), WorkerLeft())
    starters: tuple[Starter, ...] = ("client", "dependent")
    for by in starters:
        assert rest_s(up(idle, by=by), 600.0) == 600.0


def test_a_changed_configuration_starts_a_lazy_server_to_be_listed_and_an_operator_does_not() -> (
    None
):
    for before in (ServerLife(lazy=True), up(ServerLife(lazy=True), by="client")):
        for anew, seconds in ((True, LISTED_S), (False, 600.0)):
            life = after(before, StopServer(restarting=True, anew=anew))
            life = life if life.phase is ServerPhase.QUEUED else after(life, WorkerLeft())
            assert rest_s(after(life, Admitted(), BecameReady()), 600.0) == seconds


def test_only_a_lazy_server_that_is_ready_rests() -> None:
    eager = up(ServerLife())
    assert step(eager, BecameIdle(), 9.0, 0.0) == (eager, ())
    warming = after(ServerLife(lazy=True), Start("client"), Admitted())
    assert step(warming, BecameIdle(), 9.0, 0.0) == (warming, ())


@pytest.mark.parametrize("by", ["client", "dependent", "operator"])
def test_who_is_needed_again_on_its_way_to_rest_comes_back_as_soon_as_it_is_gone(
    by: Starter,
) -> None:
    life = after(up(ServerLife(lazy=True)), BecameIdle(), Start(by))
    assert (life.resting, life.restarting) == (False, True)
    assert after(life, WorkerLeft()).phase is ServerPhase.QUEUED


def test_a_lazy_server_that_is_to_start_with_the_gateway_now_does_not_wait_for_a_call() -> None:
    resting = after(up(ServerLife(lazy=True)), BecameIdle())
    assert after(resting, WorkerLeft(), Retuned("on-failure")).phase is ServerPhase.QUEUED
    assert after(resting, Retuned("on-failure"), WorkerLeft()).phase is ServerPhase.QUEUED
    assert after(resting, WorkerLeft(), Retuned("never", lazy=True)).phase is ServerPhase.IDLE
    assert (
        after(up(ServerLife(lazy=True)), StopServer(), WorkerLeft(), Retuned("never")).phase
        is ServerPhase.DISABLED
    )


def test_an_operator_stops_one_that_is_on_its_way_to_rest_for_good() -> None:
    assert (
        after(up(ServerLife(lazy=True)), BecameIdle(), StopServer(), WorkerLeft()).phase
        is ServerPhase.DISABLED
    )


def test_a_lazy_server_that_ends_without_trouble_is_started_by_the_next_call() -> None:
    life = after(up(ServerLife(lazy=True)), WentDown(ExitClass.CLEAN, "it ended"), WorkerLeft())
    assert life.phase is ServerPhase.IDLE


def test_a_dependent_starts_what_is_idle_and_nothing_that_an_operator_stopped() -> None:
    assert after(ServerLife(lazy=True), Start("dependent")).phase is ServerPhase.QUEUED
    stopped = after(up(ServerLife()), StopServer(), WorkerLeft())
    assert step(stopped, Start("dependent"), 0.0, 0.0) == (stopped, ())


@pytest.mark.promise("M76")
def test_a_spare_takes_the_place_of_what_goes_down_and_the_failure_counts() -> None:
    life, actions = step(up(ServerLife()), replace(CRASH, spare=7), 5.0, 0.5)
    assert (life.phase, life.generation, actions) == (ServerPhase.READY, 7, (Action.PROMOTE,))
    assert (life.failures, life.retry_at, life.ready_at) == (1, None, 5.0)


def test_servers_that_crash_again_and_again_give_up_in_spite_of_their_spares() -> None:
    life = up(ServerLife())
    for generation in range(RestartLimits().restarts_max):
        life = after(life, replace(CRASH, spare=generation + 2))
    assert after(life, replace(CRASH, spare=99)).phase is ServerPhase.FAILED


def test_a_restart_with_a_spare_is_no_failure() -> None:
    life, actions = step(up(ServerLife()), Replaced(2), 5.0, 0.5)
    assert (life.phase, life.generation, life.failures) == (ServerPhase.READY, 2, 0)
    assert actions == (Action.PROMOTE,)


@pytest.mark.parametrize("by", ["client", "timer", "dependent"])
def test_only_an_operator_ends_a_quarantine(by: Starter) -> None:
    life = after(up(ServerLife()), OperatorQuarantine("it talks too much"))
    assert (life.phase, life.message) == (ServerPhase.QUARANTINED, "it talks too much")
    if by == "timer":
        with pytest.raises(ImpossibleEvent):
            after(life, Start(by))
    else:
        assert after(life, Start(by)).phase is ServerPhase.QUARANTINED
    assert after(life, Start("operator")).phase is ServerPhase.QUEUED


def test_a_server_is_parted_from_new_calls_only_while_it_is_ready() -> None:
    life = after(up(ServerLife()), CallsBlocked(True))
    assert (life.phase, life.parted) == (ServerPhase.READY, True)
    assert not after(life, CallsBlocked(False)).parted
    assert not after(life, CRASH).parted
    assert not after(ServerLife(), CallsBlocked(True)).parted


STARTERS: list[Starter] = ["boot", "operator", "timer", "client", "others"]
FACTS: some.SearchStrategy[Fact] = some.one_of(
    some.sampled_from(STARTERS).map(Start),
    some.booleans().map(StopServer),
    some.builds(WentDown, some.sampled_from(list(ExitClass)), some.just("x"), some.booleans()),
    some.sampled_from(
        [Admitted(), BecameReady(), WorkerLeft(), Answered(), BecameIdle(), OperatorQuarantine("x")]
    ),
    some.booleans().map(CallsBlocked),
    some.integers(1000, 2000).map(Replaced),
    some.booleans().map(WorkerResponds),
    some.sampled_from(list(ExitClass)).map(SiblingRecovered),
)


@given(
    some.lists(some.tuples(FACTS, some.floats(0, 100), some.floats(0, 1)), max_size=80),
    some.sampled_from(["always", "on-failure", "never"]),
    some.booleans(),
)
def test_whatever_happens_in_whatever_order_a_life_makes_sense(
    story: list[tuple[Fact, float, float]], restart: Restart, lazy: bool
) -> None:
    life, now, queued = ServerLife(restart=restart, lazy=lazy), 0.0, False
    for fact, passed, jitter in story:
        now += passed
        try:
            after_it, actions = step(life, fact, now, jitter)
        except ImpossibleEvent:
            continue
        for action in actions:
            queued = (queued or action is Action.JOIN_GATE) and action is not Action.LEAVE_GATE
        assert queued == (after_it.phase in (ServerPhase.QUEUED, ServerPhase.WARMING))
        another = Action.FORK in actions or Action.PROMOTE in actions
        assert (after_it.generation != life.generation) <= another
        assert not after_it.parted or after_it.phase is ServerPhase.READY
        assert Action.ROUTE not in actions or after_it.phase is ServerPhase.READY
        assert after_it.retry_at is None or after_it.retry_at >= min(now, life.retry_at or now)
        waiting = after_it.phase in (ServerPhase.BACKOFF, ServerPhase.FAILED)
        assert waiting or after_it.retry_at is None
        assert after_it.planned_at is None or after_it.phase in (
            ServerPhase.QUEUED,
            ServerPhase.WARMING,
        )
        assert after_it.vain is None or after_it.ready_at is None
        assert len(after_it.window) <= RestartLimits().restarts_max + 1
        leaving = after_it.phase in (ServerPhase.DRAINING, ServerPhase.STOPPING)
        assert leaving or not (after_it.resting or after_it.restarting)
        assert not (after_it.resting and after_it.restarting)
        life = after_it
    stopped = after(life, StopServer(), now=now)
    if stopped.phase in (ServerPhase.DRAINING, ServerPhase.STOPPING):
        stopped = after(stopped, WorkerLeft(), now=now)
    assert stopped.phase is ServerPhase.DISABLED
    assert stopped.retry_at is None
