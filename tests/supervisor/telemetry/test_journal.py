import pytest

from metamcp_supervisor.telemetry.journal import (
    EVENTS_MAX,
    FOLLOWER_ITEMS_MAX,
    FOLLOWERS_MAX,
    Journal,
    TooManyFollowers,
)
from metamcp_supervisor.verbs import JournalEvent


def nothing() -> None:
    pass


def test_events_are_numbered_and_carry_the_time_they_were_added() -> None:
    times = iter([10.0, 11.5])
    journal = Journal(lambda: next(times))
    first = journal.add("git", "warming→ready", "235 ms", generation=3)
    second = journal.add("gateway", "reload")
    assert first == JournalEvent(
        seq=1, time=10.0, who="git", what="warming→ready", cause="235 ms", generation=3
    )
    assert (second.seq, second.time, journal.last) == (2, 11.5, 2)


def test_since_gives_what_came_after_a_number() -> None:
    journal = Journal(lambda: 0.0)
    events = [journal.add("git", str(number)) for number in range(5)]
    assert journal.since(0) == events
    assert journal.since(3) == events[3:]
    assert journal.since(5) == []


def test_the_oldest_events_make_room_and_numbers_go_on() -> None:
    journal = Journal(lambda: 0.0)
    for number in range(EVENTS_MAX + 10):
        journal.add("git", str(number))
    kept = journal.since(0)
    assert len(kept) == EVENTS_MAX
    assert (kept[0].seq, kept[-1].seq) == (11, EVENTS_MAX + 10)


def test_a_follower_is_woken_and_takes_each_event_once() -> None:
    journal = Journal(lambda: 0.0)
    woken: list[None] = []
    follower = journal.follow(lambda: woken.append(None))
    journal.add("git", "one")
    journal.add("git", "two")
    assert len(woken) == 2
    assert [event.what for event in follower.take()] == ["one", "two"]
    assert follower.take() == []


def test_a_slow_follower_is_cut_instead_of_getting_a_silent_gap() -> None:
    journal = Journal(lambda: 0.0)
    follower = journal.follow(nothing)
    for number in range(FOLLOWER_ITEMS_MAX + 1):
        journal.add("git", str(number))
    assert follower.lagged
    assert len(follower.take()) == FOLLOWER_ITEMS_MAX
    journal.add("git", "later")
    assert follower.take() == []


def test_one_that_left_gets_nothing_more() -> None:
    journal = Journal(lambda: 0.0)
    follower = journal.follow(nothing)
    journal.unfollow(follower)
    journal.unfollow(follower)
    journal.add("git", "later")
    assert follower.take() == []


def test_followers_that_are_never_given_back_are_refused_at_a_limit() -> None:
    journal = Journal(lambda: 0.0)
    followers = [journal.follow(nothing) for _ in range(FOLLOWERS_MAX)]
    with pytest.raises(TooManyFollowers):
        journal.follow(nothing)
    journal.unfollow(followers[0])
    journal.follow(nothing)


def test_the_sink_sees_every_event_at_once() -> None:
    seen: list[JournalEvent] = []
    journal = Journal(lambda: 0.0, sink=seen.append)
    added = journal.add("git", "one")
    assert seen == [added]
