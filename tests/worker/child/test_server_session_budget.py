"""What a server may say unasked."""

from metamcp_worker.child.server_session import (
    BYTES_MAX,
    BYTES_PER_S,
    CALLS_MAX,
    MESSAGES_MAX,
    MESSAGES_PER_S,
    Budget,
)


def test_a_burst_is_free_and_what_follows_has_its_pace() -> None:
    budget = Budget(now=5.0)
    for _ in range(int(MESSAGES_MAX)):
        budget.spend(100)
    assert not budget.is_exceeded
    budget.spend(100)
    assert budget.spent(now=5.0)
    assert not budget.spent(now=5.0 + 2 / MESSAGES_PER_S)
    for _ in range(int(MESSAGES_PER_S)):
        budget.spend(100)
    assert budget.spent(now=5.9)
    assert not budget.spent(now=6.1)


def test_calls_in_flight_add_to_it_for_their_progress() -> None:
    budget = Budget(now=0.0)
    for calls, rate in ((30, MESSAGES_PER_S + 3000), (CALLS_MAX * 2, MESSAGES_PER_S + 6000)):
        budget.spend(0, messages=int(MESSAGES_MAX + rate))
        assert budget.spent(0.9, calls)
        assert not budget.spent(1.1, calls)
        budget = Budget(now=0.0)


def test_bytes_count_beside_messages() -> None:
    budget = Budget(now=0.0)
    budget.spend(int(BYTES_MAX) + int(BYTES_PER_S), messages=0)
    assert budget.spent(now=0.9)
    assert not budget.spent(now=1.1)


def test_what_is_saved_up_is_bounded() -> None:
    budget = Budget(now=0.0)
    assert not budget.spent(now=1e6)
    budget.spend(0, messages=int(MESSAGES_MAX) + 1)
    assert budget.is_exceeded
