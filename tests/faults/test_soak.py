"""A soak is as good as its books: what they let pass and what they do not; a short one for real."""

import asyncio
from itertools import pairwise
from random import Random

import pytest

from tests.faults import soak_remote, soak_report
from tests.faults.soak import Wish, soak
from tests.faults.soak_faults import Faults
from tests.faults.soak_ledger import ANSWER_S_MAX, HEALING_S, Ledger
from tests.faults.soak_plan import (
    DEATHS_MAX,
    DEATHS_WINDOW_S,
    FRONT,
    FRONT_GAP_S,
    KINDS,
    NURSERY,
    NURSERY_GAP_S,
    bystanders,
    plan,
)
from tests.faults.soak_report import grown

NAMES = [f"s{number:02}" for number in range(20)]
SECONDS = 600.0
SEEDS = range(5)
CALM, HURT = "s04", "s00"


def test_the_same_seed_makes_the_same_plan() -> None:
    assert plan(Random(7), SECONDS, NAMES) == plan(Random(7), SECONDS, NAMES)
    assert plan(Random(7), SECONDS, NAMES) != plan(Random(8), SECONDS, NAMES)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_has_every_kind_of_fault_and_keeps_to_its_time(seed: int) -> None:
    made = plan(Random(seed), SECONDS, NAMES)
    assert {fault.kind for fault in made} == set(KINDS)
    assert [fault.at_s for fault in made] == sorted(fault.at_s for fault in made)
    assert max(fault.at_s + fault.for_s for fault in made) <= SECONDS


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_does_nothing_that_ends_a_gateway_by_design(seed: int) -> None:
    made = plan(Random(seed), SECONDS, NAMES, pace_s=0.2)
    assert not {fault.target for fault in made} & set(bystanders(NAMES))
    for name in NAMES:
        deaths = [one.at_s for one in made if one.target == name and KINDS[one.kind].deadly]
        pairs = zip(deaths, deaths[DEATHS_MAX:], strict=False)
        assert all(after - before >= DEATHS_WINDOW_S for before, after in pairs)
    for whom, gap_s in ((FRONT, FRONT_GAP_S), (NURSERY, NURSERY_GAP_S)):
        times = [fault.at_s for fault in made if KINDS[fault.kind].whom == whom]
        assert all(two - one >= gap_s for one, two in pairwise(times))


def test_every_kind_of_fault_can_be_done() -> None:
    assert all(hasattr(Faults, "do_" + kind.replace("-", "_")) for kind in KINDS)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(frozenset({CALM}))


def asked(ledger: Ledger, server: str, now: float = 0.0) -> int:
    return ledger.ask("somebody", "modern", server, "echo", now)


def test_right_answers_and_documented_errors_of_a_broken_server_are_no_problems(
    ledger: Ledger,
) -> None:
    ledger.right(asked(ledger, CALM), 1.0)
    ledger.error(asked(ledger, HURT), -10001, "it went down", HURT, 1.0)
    ledger.error(asked(ledger, HURT), -32602, "Unknown tool", "", 1.0)
    ledger.status(asked(ledger, HURT), 502, "it went down", HURT, 1.0)
    ledger.left(asked(ledger, HURT), 1.0)
    assert (ledger.problems, ledger.open) == ([], {})
    assert ledger.ends["modern", "right"] == 1


@pytest.mark.parametrize(
    ("server", "code", "about"),
    [(HURT, -32603, HURT), (HURT, -10001, CALM), (CALM, -10001, CALM), (CALM, -32602, "")],
)
def test_other_errors_are_problems(ledger: Ledger, server: str, code: int, about: str) -> None:
    ledger.error(asked(ledger, server), code, "no such tool", about, 1.0)
    assert len(ledger.problems) == 1


def test_an_error_of_a_server_that_nobody_touched_is_excused_only_while_everything_heals(
    ledger: Ledger,
) -> None:
    ledger.shake(10.0)
    ledger.error(asked(ledger, CALM, 9.0), -10001, "it went down", CALM, 11.0)
    ledger.healed(12.0)
    ledger.error(asked(ledger, CALM, 13.0), -10001, "it went down", CALM, 14.0)
    assert ledger.problems == []
    later = 13.0 + HEALING_S
    ledger.error(asked(ledger, CALM, later), -10001, "it went down", CALM, later + 1)
    assert len(ledger.problems) == 1


def test_a_second_end_a_wrong_one_and_none_at_all_are_problems(ledger: Ledger) -> None:
    key = asked(ledger, HURT)
    ledger.right(key, 1.0)
    ledger.right(key, 2.0)
    ledger.wrong(asked(ledger, HURT), "another's words", 1.0)
    asked(ledger, HURT)
    ledger.overdue(ANSWER_S_MAX + 1.0)
    ledger.stray("somebody", "an answer", 1.0)
    assert len(ledger.problems) == 4
    assert ledger.open == {}


def test_a_connection_breaks_only_when_it_was_cut_after_it_was_opened(ledger: Ledger) -> None:
    ledger.cut({4000}, "kill-front", 5.0)
    assert ledger.was_cut(4000, opened=4.0, since=4.0, now=6.0) == "kill-front"
    assert not ledger.was_cut(4000, opened=5.5, since=5.5, now=6.0)
    assert not ledger.was_cut(4001, opened=4.0, since=4.0, now=6.0)
    ledger.broken(asked(ledger, HURT), "reset", cut="", now=6.0)
    assert len(ledger.problems) == 1


def test_fronts_that_leave_in_order_end_standing_streams_and_nothing_else(ledger: Ledger) -> None:
    ledger.roll(5.0)
    ledger.rolled(7.0)
    assert ledger.stream_was_cut(4000, opened=1.0, since=1.0, now=6.0) == "roll"
    assert not ledger.was_cut(4000, opened=1.0, since=1.0, now=6.0)
    assert not ledger.stream_was_cut(4000, opened=9.0, since=9.0, now=9.5)


def test_growth_is_told_of_each_figure() -> None:
    before = {"workers": (2, 70, 2, 20_000_000)}
    assert grown(before, {"workers": (2, 60, 2, 20_900_000)}) == []
    assert len(grown(before, {"workers": (3, 71, 3, 22_000_000)})) == 4


@pytest.mark.live
def test_a_short_soak_with_remote_servers_that_misbehave_breaks_nothing_that_should_hold() -> None:
    manners = ("unauthorized", "torn", "twice", "resets")
    books = asyncio.run(soak_remote.main(6.0, 0.5, manners))
    assert not books.problems, soak_remote.words(books)
    assert books.ends["", "right"] > 0


@pytest.mark.live
@pytest.mark.timeout(400)
@pytest.mark.promise("M15")
def test_a_short_soak_breaks_nothing_that_should_hold() -> None:
    wish = Wish(seconds=18.0, seed=3, servers=10, clients=60, pace_s=0.35, warm_s=8.0)
    outcome = soak(wish)
    assert not outcome.problems, soak_report.words(outcome)
    assert outcome.done.total() > wish.seconds
    assert outcome.ends["modern", "right"] > 0
