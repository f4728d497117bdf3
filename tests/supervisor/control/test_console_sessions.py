"""Links and sessions of the console: once, for a minute, for a time, and how they end."""

import pytest

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.console_sessions import (
    IDLE_S_MAX,
    LINK_S,
    LOGINS_PER_MINUTE,
    SESSION_S_MAX,
    SESSIONS_MAX,
    ConsoleSessions,
)
from metamcp_worker.ipc.errors import ProtocolError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> ConsoleSessions:
    return ConsoleSessions(clock)


def test_a_link_is_for_one_login_and_its_role(sessions: ConsoleSessions) -> None:
    secret = sessions.link(Role.VIEWER)
    token, session = sessions.login(secret)
    assert session.role is Role.VIEWER
    assert sessions.used(token) is session
    with pytest.raises(ProtocolError, match="was used"):
        sessions.login(secret)


def test_a_link_is_too_old_after_a_minute(sessions: ConsoleSessions, clock: Clock) -> None:
    secret = sessions.link(Role.ADMIN)
    clock.now += LINK_S
    with pytest.raises(ProtocolError, match="older than 60 s"):
        sessions.login(secret)


def test_a_wrong_secret_is_refused_and_the_link_stays(sessions: ConsoleSessions) -> None:
    secret = sessions.link(Role.ADMIN)
    with pytest.raises(ProtocolError):
        sessions.login(secret[:-1])
    assert sessions.used(secret) is None, "the secret of a link is not the token of a session"
    sessions.login(secret)


def test_a_session_ends_when_no_page_asks_and_at_the_end_of_its_day(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    idle, _ = sessions.login(sessions.link(Role.ADMIN))
    busy, _ = sessions.login(sessions.link(Role.ADMIN))
    began = clock.now
    clock.now += IDLE_S_MAX - 1
    assert sessions.used(busy)
    clock.now += 1
    assert sessions.used(idle) is None
    while clock.now + IDLE_S_MAX / 2 < began + SESSION_S_MAX:
        clock.now += IDLE_S_MAX / 2
        assert sessions.used(busy)
    clock.now = began + SESSION_S_MAX
    assert sessions.used(busy) is None


def test_a_revoked_session_is_over_for_an_open_page(sessions: ConsoleSessions) -> None:
    token, session = sessions.login(sessions.link(Role.ADMIN))
    other, _ = sessions.login(sessions.link(Role.ADMIN))
    assert sessions.goes_on(session)
    assert sessions.end([session.id]) == [session]
    assert not sessions.goes_on(session)
    assert sessions.used(token) is None
    assert sessions.used(other)
    sessions.end([])
    assert sessions.used(other) is None


def test_logins_are_limited_by_the_minute(sessions: ConsoleSessions, clock: Clock) -> None:
    for _ in range(LOGINS_PER_MINUTE):
        with pytest.raises(ProtocolError, match="was used"):
            sessions.login("guess")
    secret = sessions.link(Role.ADMIN)
    with pytest.raises(ProtocolError, match="20 logins in a minute"):
        sessions.login(secret)
    clock.now += 60.0
    sessions.login(sessions.link(Role.ADMIN))


def test_the_session_that_was_used_least_lately_ends_for_one_too_many(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    first, _ = sessions.login(sessions.link(Role.ADMIN))
    for _ in range(SESSIONS_MAX):
        clock.now += 4.0
        sessions.login(sessions.link(Role.ADMIN))
    assert sessions.used(first) is None
    assert len(sessions.all()) == SESSIONS_MAX
