"""The table of a server's life, every pair of it."""

import itertools
from pathlib import Path

import pytest

from metamcp_supervisor.servers import states
from metamcp_supervisor.servers.states import Action, Event, Impossible, Phase, move

PAGE = Path(__file__).parents[3] / "docs" / "states.md"

#: Every move that exists. What is not here must be impossible.
MOVES = {
    (Phase.DISABLED, Event.START): Phase.QUEUED,
    (Phase.DISABLED, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.DISABLED, Event.STOP): Phase.DISABLED,
    (Phase.DISABLED, Event.GONE): Phase.DISABLED,
    (Phase.IDLE, Event.START): Phase.QUEUED,
    (Phase.IDLE, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.IDLE, Event.STOP): Phase.DISABLED,
    (Phase.IDLE, Event.GONE): Phase.IDLE,
    (Phase.QUEUED, Event.START): Phase.QUEUED,
    (Phase.QUEUED, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.QUEUED, Event.STOP): Phase.DISABLED,
    (Phase.QUEUED, Event.ADMIT): Phase.WARMING,
    (Phase.QUEUED, Event.GONE): Phase.QUEUED,
    (Phase.WARMING, Event.START): Phase.WARMING,
    (Phase.WARMING, Event.STOP): Phase.STOPPING,
    (Phase.WARMING, Event.READY): Phase.READY,
    (Phase.WARMING, Event.RETRY): Phase.BACKOFF,
    (Phase.WARMING, Event.GIVE_UP): Phase.FAILED,
    (Phase.WARMING, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.READY, Event.START): Phase.READY,
    (Phase.READY, Event.STOP): Phase.DRAINING,
    (Phase.READY, Event.PROMOTE): Phase.READY,
    (Phase.READY, Event.REST): Phase.DRAINING,
    (Phase.READY, Event.RESTED): Phase.IDLE,
    (Phase.READY, Event.RETRY): Phase.BACKOFF,
    (Phase.READY, Event.GIVE_UP): Phase.FAILED,
    (Phase.READY, Event.RETIRE): Phase.DISABLED,
    (Phase.READY, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.DRAINING, Event.START): Phase.DRAINING,
    (Phase.DRAINING, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.DRAINING, Event.STOP): Phase.DRAINING,
    (Phase.DRAINING, Event.DRAINED): Phase.STOPPING,
    (Phase.DRAINING, Event.GONE): Phase.DISABLED,
    (Phase.DRAINING, Event.RESTED): Phase.IDLE,
    (Phase.STOPPING, Event.START): Phase.STOPPING,
    (Phase.STOPPING, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.STOPPING, Event.STOP): Phase.STOPPING,
    (Phase.STOPPING, Event.DRAINED): Phase.STOPPING,
    (Phase.STOPPING, Event.GONE): Phase.DISABLED,
    (Phase.STOPPING, Event.RESTED): Phase.IDLE,
    (Phase.BACKOFF, Event.START): Phase.QUEUED,
    (Phase.BACKOFF, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.BACKOFF, Event.STOP): Phase.DISABLED,
    (Phase.BACKOFF, Event.GONE): Phase.BACKOFF,
    (Phase.DISABLED, Event.REFUSE): Phase.FAILED,
    (Phase.IDLE, Event.REFUSE): Phase.FAILED,
    (Phase.BACKOFF, Event.REFUSE): Phase.FAILED,
    (Phase.FAILED, Event.REFUSE): Phase.FAILED,
    (Phase.FAILED, Event.START): Phase.QUEUED,
    (Phase.FAILED, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.FAILED, Event.STOP): Phase.DISABLED,
    (Phase.FAILED, Event.GONE): Phase.FAILED,
    (Phase.QUARANTINED, Event.QUARANTINE): Phase.QUARANTINED,
    (Phase.QUARANTINED, Event.STOP): Phase.DISABLED,
    (Phase.QUARANTINED, Event.GONE): Phase.QUARANTINED,
}


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, Event)))
def test_every_pair_moves_or_is_impossible(phase: Phase, event: Event) -> None:
    if (phase, event) in MOVES:
        assert move(phase, event)[0] is MOVES[phase, event]
    else:
        with pytest.raises(Impossible) as caught:
            move(phase, event)
        assert str(phase) in str(caught.value)
        assert str(event) in str(caught.value)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_stop_leads_to_disabled_from_every_phase(phase: Phase) -> None:
    after, _ = move(phase, Event.STOP)
    if after in (Phase.DRAINING, Phase.STOPPING):
        after, _ = move(after, Event.GONE)
    assert after is Phase.DISABLED


def test_whoever_joins_the_gate_leaves_it_before_resting_or_serving() -> None:
    for phase, row in states.TABLE.items():
        for target, actions in row.values():
            joined = target in (Phase.QUEUED, Phase.WARMING)
            was_joined = phase in (Phase.QUEUED, Phase.WARMING)
            assert (Action.JOIN_GATE in actions) == (joined and not was_joined)
            assert (Action.LEAVE_GATE in actions) == (was_joined and not joined)


def test_a_planned_start_is_disarmed_by_whatever_ends_the_waiting() -> None:
    waiting = (Phase.BACKOFF, Phase.FAILED)
    for phase, row in states.TABLE.items():
        for target, actions in row.values():
            assert (Action.ARM_RETRY in actions) == (target in waiting and phase not in waiting)
            assert (Action.DISARM_RETRY in actions) == (phase in waiting and target not in waiting)


def test_every_name_is_explained() -> None:
    assert set(states.MEANING) == set(Event)
    assert set(states.EXIT_MEANING) == set(states.ExitClass)
    assert set(states.PUBLIC) == set(Phase)


def test_the_page_about_states_is_drawn_from_the_table() -> None:
    assert PAGE.read_text() == states.page() + "\n", (
        "docs/states.md is stale; it says how to renew it"
    )
