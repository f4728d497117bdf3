"""The table of a server's life, every pair of it."""

import itertools
from pathlib import Path

import pytest

from metamcp_supervisor.servers import states
from metamcp_supervisor.servers.states import (
    Action,
    ImpossibleEvent,
    ServerEvent,
    ServerPhase,
    move,
)

PAGE = Path(__file__).parents[3] / "docs" / "states.md"

#: Every move that exists. What is not here must be impossible.
MOVES = {
    (ServerPhase.DISABLED, ServerEvent.START): ServerPhase.QUEUED,
    (ServerPhase.DISABLED, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.DISABLED, ServerEvent.STOP): ServerPhase.DISABLED,
    (ServerPhase.DISABLED, ServerEvent.GONE): ServerPhase.DISABLED,
    (ServerPhase.IDLE, ServerEvent.START): ServerPhase.QUEUED,
    (ServerPhase.IDLE, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.IDLE, ServerEvent.STOP): ServerPhase.DISABLED,
    (ServerPhase.IDLE, ServerEvent.GONE): ServerPhase.IDLE,
    (ServerPhase.QUEUED, ServerEvent.START): ServerPhase.QUEUED,
    (ServerPhase.QUEUED, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.QUEUED, ServerEvent.STOP): ServerPhase.DISABLED,
    (ServerPhase.QUEUED, ServerEvent.ADMIT): ServerPhase.WARMING,
    (ServerPhase.QUEUED, ServerEvent.GONE): ServerPhase.QUEUED,
    (ServerPhase.WARMING, ServerEvent.START): ServerPhase.WARMING,
    (ServerPhase.WARMING, ServerEvent.STOP): ServerPhase.STOPPING,
    (ServerPhase.WARMING, ServerEvent.READY): ServerPhase.READY,
    (ServerPhase.WARMING, ServerEvent.RETRY): ServerPhase.BACKOFF,
    (ServerPhase.WARMING, ServerEvent.GIVE_UP): ServerPhase.FAILED,
    (ServerPhase.WARMING, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.READY, ServerEvent.START): ServerPhase.READY,
    (ServerPhase.READY, ServerEvent.STOP): ServerPhase.DRAINING,
    (ServerPhase.READY, ServerEvent.PROMOTE): ServerPhase.READY,
    (ServerPhase.READY, ServerEvent.REST): ServerPhase.DRAINING,
    (ServerPhase.READY, ServerEvent.RESTED): ServerPhase.IDLE,
    (ServerPhase.READY, ServerEvent.RETRY): ServerPhase.BACKOFF,
    (ServerPhase.READY, ServerEvent.GIVE_UP): ServerPhase.FAILED,
    (ServerPhase.READY, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.DRAINING, ServerEvent.START): ServerPhase.DRAINING,
    (ServerPhase.DRAINING, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.DRAINING, ServerEvent.STOP): ServerPhase.DRAINING,
    (ServerPhase.DRAINING, ServerEvent.DRAINED): ServerPhase.STOPPING,
    (ServerPhase.DRAINING, ServerEvent.GONE): ServerPhase.DISABLED,
    (ServerPhase.DRAINING, ServerEvent.RESTED): ServerPhase.IDLE,
    (ServerPhase.STOPPING, ServerEvent.START): ServerPhase.STOPPING,
    (ServerPhase.STOPPING, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.STOPPING, ServerEvent.STOP): ServerPhase.STOPPING,
    (ServerPhase.STOPPING, ServerEvent.DRAINED): ServerPhase.STOPPING,
    (ServerPhase.STOPPING, ServerEvent.GONE): ServerPhase.DISABLED,
    (ServerPhase.STOPPING, ServerEvent.RESTED): ServerPhase.IDLE,
    (ServerPhase.BACKOFF, ServerEvent.START): ServerPhase.QUEUED,
    (ServerPhase.BACKOFF, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.BACKOFF, ServerEvent.STOP): ServerPhase.DISABLED,
    (ServerPhase.BACKOFF, ServerEvent.GONE): ServerPhase.BACKOFF,
    (ServerPhase.DISABLED, ServerEvent.REFUSE): ServerPhase.FAILED,
    (ServerPhase.IDLE, ServerEvent.REFUSE): ServerPhase.FAILED,
    (ServerPhase.BACKOFF, ServerEvent.REFUSE): ServerPhase.FAILED,
    (ServerPhase.FAILED, ServerEvent.REFUSE): ServerPhase.FAILED,
    (ServerPhase.FAILED, ServerEvent.START): ServerPhase.QUEUED,
    (ServerPhase.FAILED, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.FAILED, ServerEvent.STOP): ServerPhase.DISABLED,
    (ServerPhase.FAILED, ServerEvent.GONE): ServerPhase.FAILED,
    (ServerPhase.QUARANTINED, ServerEvent.QUARANTINE): ServerPhase.QUARANTINED,
    (ServerPhase.QUARANTINED, ServerEvent.STOP): ServerPhase.DISABLED,
    (ServerPhase.QUARANTINED, ServerEvent.GONE): ServerPhase.QUARANTINED,
}


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(ServerPhase, ServerEvent)))
def test_every_pair_moves_or_is_impossible(phase: ServerPhase, event: ServerEvent) -> None:
    if (phase, event) in MOVES:
        assert move(phase, event)[0] is MOVES[phase, event]
    else:
        with pytest.raises(ImpossibleEvent) as caught:
            move(phase, event)
        assert str(phase) in str(caught.value)
        assert str(event) in str(caught.value)


@pytest.mark.parametrize("phase", list(ServerPhase))
def test_a_stop_leads_to_disabled_from_every_phase(phase: ServerPhase) -> None:
    after, _ = move(phase, ServerEvent.STOP)
    if after in (ServerPhase.DRAINING, ServerPhase.STOPPING):
        after, _ = move(after, ServerEvent.GONE)
    assert after is ServerPhase.DISABLED


def test_whoever_joins_the_gate_leaves_it_before_resting_or_serving() -> None:
    for phase, row in states.TABLE.items():
        for target, actions in row.values():
            joined = target in (ServerPhase.QUEUED, ServerPhase.WARMING)
            was_joined = phase in (ServerPhase.QUEUED, ServerPhase.WARMING)
            assert (Action.JOIN_GATE in actions) == (joined and not was_joined)
            assert (Action.LEAVE_GATE in actions) == (was_joined and not joined)


def test_a_planned_start_is_disarmed_by_whatever_ends_the_waiting() -> None:
    waiting = (ServerPhase.BACKOFF, ServerPhase.FAILED)
    for phase, row in states.TABLE.items():
        for target, actions in row.values():
            assert (Action.ARM_RETRY in actions) == (target in waiting and phase not in waiting)
            assert (Action.DISARM_RETRY in actions) == (phase in waiting and target not in waiting)


def test_every_name_is_explained() -> None:
    assert set(states.MEANING) == set(ServerEvent)
    assert set(states.EXIT_MEANING) == set(states.ExitClass)
    assert set(states.PUBLIC) == set(ServerPhase)


def test_the_page_about_states_is_drawn_from_the_table() -> None:
    assert PAGE.read_text() == states.page() + "\n", (
        "docs/states.md is stale; it says how to renew it"
    )
