"""What is remembered of the sessions of clients, and for how many."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from metamcp_supervisor.fronts import sessions
from metamcp_supervisor.fronts.sessions import SessionRecords
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import SessionRecord


def record(session: str, level: str = "") -> bytes:
    return codec.dump(
        SessionRecord(
            id=session, endpoint="default", protocol="2025-11-25", caller="{}", level=level
        )
    )


def adopted(kept: SessionRecords, holder: int) -> list[str]:
    return [session for _, sessions in grouped(kept, holder) for session in sessions]


def grouped(kept: SessionRecords, holder: int) -> list[tuple[bool, list[str]]]:
    """The same, and whether their clients are to be told of other lists."""
    return [
        (untold, [each.id for each in codec.decode_as(list[SessionRecord], records)])
        for untold, records in kept.adopt(holder)
    ]


def test_the_sessions_of_a_front_that_is_gone_are_for_the_next_one_alone() -> None:
    kept = SessionRecords()
    for front, session in ((0, "a"), (1, "b"), (0, "c")):
        kept.keep(front, record(session))
    assert adopted(kept, 2) == [], "their fronts live"
    kept.on_front_gone(0)
    assert adopted(kept, 2) == ["a", "c"]
    assert adopted(kept, 3) == []
    kept.on_front_gone(2)
    assert adopted(kept, 3) == ["a", "c"]


def test_what_a_front_owed_its_clients_is_told_once_and_nothing_else() -> None:
    kept = SessionRecords()
    for front, session in ((0, "a"), (1, "b"), (0, "c")):
        kept.keep(front, record(session))
    kept.on_front_gone(0, untold=True)
    kept.on_front_gone(1)
    assert grouped(kept, 2) == [(True, ["a", "c"]), (False, ["b"])]
    kept.on_front_gone(2)
    assert grouped(kept, 3) == [(False, ["a", "b", "c"])]


def test_who_waits_for_a_front_while_lists_change_is_told_by_it() -> None:
    kept = SessionRecords()
    kept.keep(0, record("a"))
    kept.keep(1, record("b"))
    kept.on_front_gone(0)
    kept.mark_outdated()
    kept.on_front_gone(1)
    assert grouped(kept, 2) == [(True, ["a"]), (False, ["b"])]


def test_the_newest_word_about_a_session_counts() -> None:
    kept = SessionRecords()
    kept.keep(0, record("a", "debug"))
    kept.keep(0, record("a", "error"))
    kept.on_front_gone(0)
    assert kept.adopt(1) == [(False, b"[%b]" % record("a", "error"))]


def test_a_session_ends_only_by_the_word_of_who_has_it() -> None:
    kept = SessionRecords()
    kept.keep(0, record("a"))
    kept.keep(0, record("b"))
    kept.on_sessions_end(1, ("a",))
    kept.on_sessions_end(0, ("b", "never heard of"))
    assert len(kept) == 1
    kept.on_front_gone(0)
    assert adopted(kept, 1) == ["a"]


def test_the_oldest_sessions_are_forgotten_first() -> None:
    kept = SessionRecords()
    for number in range(sessions.SESSIONS_KEPT_MAX + 2):
        kept.keep(0, record(f"s{number}"))
        kept.keep(0, record("busy"))
    assert len(kept) == sessions.SESSIONS_KEPT_MAX
    kept.on_front_gone(0)
    found = adopted(kept, 1)
    assert (found[0], found[-1]) == ("s3", "busy")


def test_large_records_push_out_others_before_memory_does() -> None:
    kept = SessionRecords()
    large = "x" * (sessions.RECORD_BYTES_MAX - 200)
    for number in range(100):
        kept.keep(0, record(f"s{number}", large))
    assert len(kept) == sessions.SESSIONS_BYTES_MAX // len(record("s10", large))
    kept.on_front_gone(0)
    ((_, records),) = kept.adopt(1)
    assert len(records) <= sessions.SESSIONS_BYTES_MAX + sessions.SESSIONS_KEPT_MAX


def test_a_record_that_is_too_large_replaces_the_old_one_with_nothing() -> None:
    kept = SessionRecords()
    kept.keep(0, record("a"))
    kept.keep(0, record("a", "x" * sessions.RECORD_BYTES_MAX))
    assert len(kept) == 0


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"id":1}'])
def test_what_is_no_record_is_refused(content: bytes) -> None:
    kept = SessionRecords()
    with pytest.raises(codec.Malformed):
        kept.keep(0, content)
    assert len(kept) == 0


STEPS = some.lists(
    some.tuples(
        some.sampled_from(["keep", "over", "left", "adopt"]),
        some.integers(0, 3),
        some.sampled_from("abc"),
    )
)


@given(STEPS)
def test_no_session_is_ever_adopted_while_its_front_lives(
    steps: list[tuple[str, int, str]],
) -> None:
    kept, holders = SessionRecords(), dict[str, int | None]()
    for what, front, session in steps:
        match what:
            case "keep":
                kept.keep(front, record(session))
                holders[session] = front
            case "over":
                kept.on_sessions_end(front, (session,))
                if holders.get(session) == front:
                    del holders[session]
            case "left":
                kept.on_front_gone(front)
                holders |= {name: None for name, had in holders.items() if had == front}
            case _:
                free = {name for name, had in holders.items() if had is None}
                assert set(adopted(kept, front)) == free
                holders |= dict.fromkeys(free, front)
    assert len(kept) == len(holders)
