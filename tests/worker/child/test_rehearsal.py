"""Sessions that are started once before workers are forked."""

from metamcp_worker.child import rehearsal


def test_a_modern_and_a_legacy_session_get_ready() -> None:
    sessions = rehearsal.rehearse()
    assert [session.ready for session in sessions] == [True, True]
    assert [session.in_flight for session in sessions] == [0, 0]
