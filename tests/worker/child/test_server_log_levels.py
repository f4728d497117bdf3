"""How much a server is told to log: as much as anybody wants, told once."""

import json
import sys

import pytest

from metamcp_worker.child.server_log import CALLER_BYTES_MAX, LEVELS, Levels
from tests.worker.child.talk import Talk, legacy, ready_legacy, ready_modern


def caller(level: str, capabilities: str = "{}") -> bytes:
    return json.dumps({"clientCapabilities": json.loads(capabilities), "logLevel": level}).encode()


def told(talk: Talk) -> list[str]:
    """The levels that the server was told, in order."""
    return [one["params"]["level"] for one in talk.wrote if one.get("method") == "logging/setLevel"]


@pytest.mark.promise("M23")
def test_a_server_is_told_before_the_call_that_wants_more() -> None:
    talk = ready_legacy({"logging": {}})
    talk.call(1, 1)
    assert told(talk) == []
    talk.call(1, 2, caller=caller("warning"))
    assert [one["method"] for one in talk.wrote[-2:]] == ["logging/setLevel", "tools/call"]
    for number, level in enumerate(["error", "warning", "info", "warning", "debug", "info"], 3):
        talk.call(1, number, caller=caller(level))
    assert told(talk) == ["warning", "info", "debug"]
    assert talk.answers("logging/setLevel", {}) == []


def test_a_client_in_a_session_sets_the_level_for_all() -> None:
    talk = ready_legacy({"logging": {}})
    assert talk.tell(1, "logging/setLevel", b'{"level":"notice"}') == []
    assert told(talk) == ["notice"]
    talk.tell(2, "logging/setLevel", b'{"level":"error"}')
    talk.call(1, 1, caller=caller("error"))
    assert told(talk) == ["notice"]


@pytest.mark.parametrize("params", [b"", b"{}", b"[]", b'{"level":"loud"}', b'{"level":3}'])
def test_a_level_that_is_none_changes_nothing(params: bytes) -> None:
    talk = ready_legacy({"logging": {}})
    assert talk.tell(1, "logging/setLevel", params) == []
    talk.call(1, 1, caller=b'{"logLevel":"loud"}')
    talk.call(1, 2, caller=b"nonsense")
    assert told(talk) == []


def test_what_is_wanted_before_the_server_is_ready_is_told_then() -> None:
    talk = Talk(era="legacy-first")
    talk.tell(1, "logging/setLevel", b'{"level":"debug"}')
    talk.call(1, 1, caller=caller("info"))
    assert told(talk) == []
    talk.answers("initialize", legacy({"logging": {}}))
    assert [one["method"] for one in talk.wrote[-2:]] == ["logging/setLevel", "tools/call"]
    assert told(talk) == ["debug"]


def test_a_server_that_does_not_log_is_told_nothing() -> None:
    for talk in (ready_legacy(), ready_legacy({"logging": None}), ready_modern()):
        talk.call(1, 1, caller=caller("debug"))
        talk.tell(1, "logging/setLevel", b'{"level":"debug"}')
        assert told(talk) == []


def test_over_http_each_kind_of_client_has_a_session_with_its_own_level() -> None:
    levels = Levels(sessions=True)
    one, other = caller("info", '{"roots":{}}'), caller("warning")
    assert levels.before(one) == b'{"level":"info"}'
    assert levels.before(other) == b'{"level":"warning"}'
    assert (levels.before(one), levels.before(other)) == (b"", b"")
    levels.tell(b'{"level":"debug"}')
    assert [levels.before(who) for who in (one, other, b"", b"nonsense")] == [
        b'{"level":"debug"}',
        b'{"level":"debug"}',
        b'{"level":"debug"}',
        b"",
    ]


def test_many_clients_do_not_fill_the_memory_of_levels() -> None:
    levels = Levels(sessions=True)
    for number in range(1000):
        who = caller(LEVELS[number % 8], json.dumps({"n": number}))
        assert levels.before(who)
        assert not levels.before(who)


def test_a_client_that_says_much_of_itself_is_heard_and_not_kept() -> None:
    levels = Levels(sessions=True)
    large = b'{"logLevel":"debug","clientCapabilities":{"x":"%b"}}' % (b"x" * CALLER_BYTES_MAX)
    before = sys.getrefcount(large)
    assert levels.before(large) == b'{"level":"debug"}'
    assert not levels.before(large)
    assert sys.getrefcount(large) == before
