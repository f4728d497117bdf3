"""Who tries for all that wait for the same thing: with values, and fifty servers that lost it."""

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from metamcp_supervisor.servers import start_gate
from metamcp_supervisor.servers import start_gate as canaries
from metamcp_supervisor.servers.server import ServerLife
from metamcp_supervisor.servers.start_gate import (
    OUTAGE_SERVERS_MIN,
    PACE_S,
    PACE_S_MAX,
    ObservedServer,
    OutageProbe,
)
from metamcp_supervisor.servers.states import ExitClass, ServerPhase
from tests.supervisor.outage_play import READY_S, VAIN_S, Play

FIFTY = [f"s{number:02}" for number in range(50)]
UP_S = 700.0
"""Long enough after the start that its past is forgiven."""
MEAN_S_BAR = 2.0


LIFE = ServerLife(
    phase=ServerPhase.BACKOFF,
    reason=ExitClass.EXIT,
    failures=9,
    vain=(100.0, 100.0),
    retry_at=900.0,
)


def waits(
    name: str, last: float = 100.0, since: float = 100.0, held: bool = False
) -> ObservedServer:
    return ObservedServer(name, "python", replace(LIFE, vain=(since, last)), held)


def five(*others: ObservedServer) -> list[ObservedServer]:
    return [*others, *(waits(name) for name in "abcde"[len(others) :])]


def test_the_one_that_tried_longest_ago_tries_when_nobody_has_for_a_moment() -> None:
    seen = five(waits("x", last=99.0), waits("y", last=98.0))
    assert canaries.turns(seen, 100.0 + PACE_S) == ((OutageProbe("y", 4),), 100.0 + 2 * PACE_S)
    assert canaries.turns(seen, 100.0) == ((), 100.0 + PACE_S)


def test_few_that_fail_alike_are_so_many_broken_servers() -> None:
    assert canaries.turns(five()[:-1], 500.0) == ((), None)


@pytest.mark.parametrize(
    "other",
    [
        replace(waits("x"), launcher="node"),
        ObservedServer("x", "python", replace(LIFE, reason=ExitClass.SIGNAL)),
        ObservedServer("x", "python", replace(LIFE, vain=None)),
        ObservedServer("x", "python", replace(LIFE, phase=ServerPhase.FAILED, retry_at=None)),
        ObservedServer("x", "python", replace(LIFE, phase=ServerPhase.QUARANTINED)),
        ObservedServer("x", "python", replace(LIFE, phase=ServerPhase.DISABLED)),
    ],
)
def test_who_fails_otherwise_or_does_not_wait_is_not_one_of_them(other: ObservedServer) -> None:
    assert canaries.turns(five(other), 500.0) == ((), None)


@pytest.mark.parametrize(
    "reason", [ExitClass.SPAWN, ExitClass.AUTHORIZATION, ExitClass.TLS, ExitClass.LIMIT]
)
def test_nobody_tries_for_all_what_time_does_not_heal(reason: ExitClass) -> None:
    assert canaries.turns(
        [replace(one, life=replace(LIFE, reason=reason)) for one in five()], 500.0
    ) == ((), None)


@pytest.mark.parametrize("phase", [ServerPhase.QUEUED, ServerPhase.WARMING])
def test_nobody_tries_for_all_while_one_of_them_tries(phase: ServerPhase) -> None:
    trying = ObservedServer("x", "python", replace(LIFE, phase=phase, retry_at=None))
    assert canaries.turns(five(trying), 500.0) == ((), 500.0 + PACE_S)


def test_one_that_waits_for_another_server_is_passed_over_and_holds_up_nobody() -> None:
    queued = ObservedServer("x", "python", replace(LIFE, phase=ServerPhase.QUEUED), held=True)
    left = ObservedServer("z", "python", replace(LIFE, vain=(2.0, 2.0), not_before=501.0))
    seen = five(queued, waits("y", last=1.0, held=True), left)
    assert canaries.turns(seen, 500.0)[0] == (OutageProbe("d", 4),)
    assert canaries.turns([replace(one, held=True) for one in five()], 102.0) == ((), 102.5)


def test_an_outage_that_lasts_is_looked_at_less_often() -> None:
    assert [canaries.pace_s(lasted) for lasted in (0, 60, 150, 300, 3000, 9000, 86_400)] == [
        PACE_S, PACE_S, PACE_S, 1.0, 10.0, PACE_S_MAX, PACE_S_MAX,
    ]  # fmt: skip


def test_some_that_were_broken_long_before_do_not_make_it_an_old_one() -> None:
    seen = five(waits("old", since=-9000.0), waits("older", since=-9000.0))
    assert canaries.turns(seen, 100.0)[1] == 100.0 + PACE_S


SEEN = some.builds(
    ObservedServer,
    name=some.uuids().map(str),
    launcher=some.sampled_from(["python", "node"]),
    life=some.builds(
        ServerLife,
        phase=some.sampled_from(list(ServerPhase)),
        reason=some.sampled_from([ExitClass.EXIT, ExitClass.CONNECT, ExitClass.SPAWN]),
        vain=some.one_of(some.none(), some.tuples(some.floats(0, 50), some.floats(50, 99))),
        retry_at=some.one_of(some.none(), some.floats(99, 999)),
        not_before=some.floats(0, 300),
    ),
    held=some.booleans(),
)


@given(some.lists(SEEN, max_size=40), some.floats(99, 9999))
def test_whoever_tries_for_others_waits_with_them_and_is_the_only_one(
    seen: list[ObservedServer], now: float
) -> None:
    chosen, again = canaries.turns(seen, now)
    by_name = {one.name: one for one in seen}
    ones = [by_name[turn.name] for turn in chosen]
    assert len({(one.launcher, one.life.reason) for one in ones}) == len(ones)
    for one, turn in zip(ones, chosen, strict=True):
        assert turn.others >= OUTAGE_SERVERS_MIN - 1
        assert one.life.phase in (ServerPhase.BACKOFF, ServerPhase.FAILED)
        assert one.life.retry_at is not None
        assert one.life.not_before <= now
        assert not one.held
    assert again is None or now < again <= now + PACE_S_MAX
    assert again is not None or not chosen


# Fifty servers and an upstream


def outage(seed: int, lasts_s: float, *, turns: bool = True) -> tuple[Play, float]:
    """The play after everybody had time to come back, and when the upstream was back."""
    play = Play(FIFTY, seed, turns=turns)
    play.until(UP_S)
    play.lose()
    back = UP_S + lasts_s
    play.until(back)
    play.upstream = True
    play.until(back + 10.0)
    return play, back


@pytest.mark.promise("M72")
@pytest.mark.parametrize("seed", range(8))
def test_after_an_outage_of_a_minute_all_are_back_within_two_seconds_in_the_mean(seed: int) -> None:
    play, back = outage(seed, 60.0)
    assert {life.phase for life in play.lives.values()} == {ServerPhase.READY}
    ready = [when - back for when in play.ready.values()]
    assert min(ready) <= PACE_S + VAIN_S + READY_S + 0.01
    assert statistics.mean(ready) <= MEAN_S_BAR


@pytest.mark.parametrize("lasts_s", [3.0, 600.0, 7200.0])
@pytest.mark.parametrize("seed", range(2))
def test_the_end_of_any_outage_is_found_soon(seed: int, lasts_s: float) -> None:
    play, back = outage(seed, lasts_s)
    play.until(back + 30.0)
    assert min(when for when in play.ready.values() if when > back) - back <= (
        canaries.pace_s(lasts_s) + VAIN_S + READY_S + 0.01
    )
    assert max(play.ready.values()) - back <= PACE_S_MAX + 5.0


@pytest.mark.parametrize("seed", range(2))
def test_tries_for_all_are_few_and_no_stampede(seed: int) -> None:
    play, back = outage(seed, 600.0)
    lost = UP_S
    tried = [when for when, _, for_all in play.starts if for_all and lost < when < back]
    assert tried
    for one, another in itertools.pairwise(tried):
        assert another - one >= PACE_S
    assert len(tried) < 600.0 / PACE_S / 2
    starts = [when for when, _, _ in play.starts]
    for first in starts[50:]:
        window = [when for when in starts if first <= when < first + start_gate.STARTS_WINDOW_S]
        assert len(window) <= start_gate.STARTS_MAX


@pytest.mark.parametrize("seed", range(2))
def test_nobodys_circuit_opens_sooner_because_somebody_tries_for_all(seed: int) -> None:
    (tried, back), (left, _) = outage(seed, 600.0), outage(seed, 600.0, turns=False)
    trips = [statistics.mean(life.trips for life in p.lives.values()) for p in (tried, left)]
    own = [
        sum(1 for when, _, for_all in p.starts if UP_S < when < back and not for_all)
        for p in (tried, left)
    ]
    assert trips[0] <= trips[1] + 0.5
    assert own[0] <= own[1] * 1.05


@pytest.mark.parametrize("seed", range(2))
def test_a_broken_server_beside_many_good_ones_is_tried_as_if_it_were_alone(seed: int) -> None:
    beside = Play([*FIFTY, "broken"], seed, broken={"broken"})
    alone = Play(["broken"], seed, broken={"broken"}, turns=False)
    counts: list[int] = []
    for play in (beside, alone):
        play.until(3600.0)
        counts.append(sum(name == "broken" for _, name, _ in play.starts))
        assert not any(for_all for _, _, for_all in play.starts)
        assert play.lives["broken"].phase is ServerPhase.FAILED
    assert abs(counts[0] - counts[1]) <= 4


def test_four_broken_servers_do_not_hurry_each_other() -> None:
    play = Play("abcd", 1, broken="abcd")
    play.until(3600.0)
    assert not any(for_all for _, _, for_all in play.starts)
