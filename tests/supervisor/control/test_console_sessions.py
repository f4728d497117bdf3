"""Links, keys and sessions of the console: once, for a minute, for a time, and how they end."""

import pytest

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.console_sessions import (
    IDLE_S_MAX,
    KEY_SESSIONS_MAX,
    LINK_S,
    SESSION_S_MAX,
    SESSIONS_MAX,
    ConsoleSessions,
)
from metamcp_worker.access.door import FAILURES_MAX
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.key_table import KeySpec


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def valid() -> set[str]:
    """Ids of the API keys that are valid now."""
    return {"k1", "k2"}


@pytest.fixture
def sessions(clock: Clock, valid: set[str]) -> ConsoleSessions:
    return ConsoleSessions(clock, valid.__contains__)


def key(*scopes: str, key_id: str = "k1") -> KeySpec:
    return KeySpec(id=key_id, digest=b"", name="ann", principal=key_id, scopes=scopes)


def test_a_link_is_for_one_login_and_its_role(sessions: ConsoleSessions) -> None:
    secret = sessions.link(Role.VIEWER)
    token, session = sessions.login(secret)
    assert session.role is Role.VIEWER
    assert sessions.use_session(token) is session
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
    assert sessions.use_session(secret) is None, (
        "the secret of a link is not the token of a session"
    )
    sessions.login(secret)


def test_a_session_ends_when_no_page_asks_and_at_the_end_of_its_day(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    idle, _ = sessions.login(sessions.link(Role.ADMIN))
    busy, _ = sessions.login(sessions.link(Role.ADMIN))
    began = clock.now
    clock.now += IDLE_S_MAX - 1
    assert sessions.use_session(busy)
    clock.now += 1
    assert sessions.use_session(idle) is None
    while clock.now + IDLE_S_MAX / 2 < began + SESSION_S_MAX:
        clock.now += IDLE_S_MAX / 2
        assert sessions.use_session(busy)
    clock.now = began + SESSION_S_MAX
    assert sessions.use_session(busy) is None


def test_a_revoked_session_is_over_for_an_open_page(sessions: ConsoleSessions) -> None:
    token, session = sessions.login(sessions.link(Role.ADMIN))
    other, _ = sessions.login(sessions.link(Role.ADMIN))
    assert sessions.goes_on(session)
    assert sessions.end([session.id]) == [session]
    assert not sessions.goes_on(session)
    assert sessions.use_session(token) is None
    assert sessions.use_session(other)
    sessions.end([])
    assert sessions.use_session(other) is None


def test_a_key_gives_the_highest_role_of_its_scopes(sessions: ConsoleSessions) -> None:
    for role in Role:
        _, session = sessions.login_by_key(key("mcp:list", f"console:{role}"), "a")
        assert (session.role, session.key) == (role, "k1")
    _, session = sessions.login_by_key(key("console:developer", "console:viewer"), "a")
    assert session.role is Role.DEVELOPER


def test_a_key_without_a_scope_of_the_console_is_refused_like_an_unknown_one(
    sessions: ConsoleSessions,
) -> None:
    for found in (None, key(), key("mcp:call", "mcp:call:console"), key("console:root")):
        with pytest.raises(ProtocolError, match=r"^this API key does not open the console$"):
            sessions.login_by_key(found, "a")


def test_the_end_of_a_key_is_the_end_of_its_sessions(
    sessions: ConsoleSessions, valid: set[str]
) -> None:
    token, session = sessions.login_by_key(key("console:admin"), "a")
    other, _ = sessions.login_by_key(key("console:admin", key_id="k2"), "a")
    linked, _ = sessions.login(sessions.link(Role.ADMIN))
    assert sessions.goes_on(session)
    valid.remove("k1")
    assert not sessions.goes_on(session)
    assert sessions.use_session(token) is None
    assert sessions.use_session(other)
    assert sessions.use_session(linked)


def test_a_key_that_comes_with_a_request_begins_no_session(
    sessions: ConsoleSessions, valid: set[str]
) -> None:
    session = sessions.admit_key(key("console:operator"), "a")
    assert (session.role, session.description) == (Role.OPERATOR, "API key k1 (operator)")
    assert sessions.all() == []
    assert sessions.goes_on(session)
    valid.remove("k1")
    assert not sessions.goes_on(session)
    for refused in (None, key("mcp:list")):
        with pytest.raises(ProtocolError, match="this API key does not open the console"):
            sessions.admit_key(refused, "a")


def test_the_refusal_after_the_end_names_what_has_ended(
    sessions: ConsoleSessions, valid: set[str]
) -> None:
    program = sessions.admit_key(key("console:operator"), "a")
    _, browser = sessions.login_by_key(key("console:operator"), "a")
    for session in (None, program, browser):
        sessions.check_session(session)
    valid.clear()
    with pytest.raises(ProtocolError, match="this API key has ended"):
        sessions.check_session(program)
    with pytest.raises(ProtocolError, match="this session of the console has ended"):
        sessions.check_session(browser)


def test_failed_logins_are_counted_by_address_and_a_right_one_is_always_accepted(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    for _ in range(FAILURES_MAX // 2):
        with pytest.raises(ProtocolError, match="was used"):
            sessions.login("guess", "a")
        with pytest.raises(ProtocolError, match="does not open"):
            sessions.login_by_key(None, "a")
    with pytest.raises(ProtocolError, match="failed logins came from this address; try again"):
        sessions.login("guess", "a")
    with pytest.raises(ProtocolError, match="failed logins came from this address; try again"):
        sessions.login_by_key(None, "a")
    with pytest.raises(ProtocolError, match="was used"):
        sessions.login("guess", "b")
    sessions.login_by_key(key("console:viewer"), "a")
    sessions.login(sessions.link(Role.ADMIN), "a")
    clock.now += 60.0
    with pytest.raises(ProtocolError, match="was used"):
        sessions.login("guess", "a")


def test_a_key_ends_sessions_of_its_own_for_one_too_many(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    linked, _ = sessions.login(sessions.link(Role.ADMIN))
    first, _ = sessions.login_by_key(key("console:viewer"), "a")
    for _ in range(SESSIONS_MAX):
        clock.now += 1.0
        sessions.login_by_key(key("console:viewer"), "a")
    assert len(sessions.all()) == KEY_SESSIONS_MAX + 1
    assert sessions.use_session(first) is None
    assert sessions.use_session(linked)


def test_the_session_that_was_used_least_lately_ends_for_one_too_many(
    sessions: ConsoleSessions, clock: Clock
) -> None:
    first, _ = sessions.login(sessions.link(Role.ADMIN))
    for _ in range(SESSIONS_MAX):
        clock.now += 4.0
        sessions.login(sessions.link(Role.ADMIN))
    assert sessions.use_session(first) is None
    assert len(sessions.all()) == SESSIONS_MAX
