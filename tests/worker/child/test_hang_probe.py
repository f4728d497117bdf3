"""Which silence of a server means that it hangs, with values for the time and for its words."""

import pytest

from metamcp_worker.child.actions import Action, CountOnce, Fail, ReplyToFront, WarnInLog
from metamcp_worker.child.hang_probe import MISSES_MAX, PROBE_S_MAX
from metamcp_worker.child.server_calls import LINGER_S_MAX
from metamcp_worker.runtime.after_fork import REST_S_MAX
from tests.worker.child.talk import Talk, ready_legacy, ready_modern

INTERVAL_S = 30.0
TICK_S = 0.25
HUNG_S = INTERVAL_S * MISSES_MAX + PROBE_S_MAX


def probes(talk: Talk) -> list[str]:
    """What the server was asked since it was ready."""
    asked = [one["method"] for one in talk.wrote if "id" in one]
    return asked[asked.index("tools/list") + 1 :]


def wait(talk: Talk, seconds: float) -> list[Fail]:
    """Let time pass in ticks; the reasons to end the server that came of it."""
    found = [one for _ in range(round(seconds / TICK_S)) for one in talk.tick(TICK_S)]
    return [one for one in found if isinstance(one, Fail)]


def test_a_server_that_says_nothing_is_asked_whether_it_is_there() -> None:
    talk = ready_legacy()
    wait(talk, INTERVAL_S - TICK_S)
    assert probes(talk) == []
    wait(talk, TICK_S)
    assert probes(talk) == ["ping"]
    talk.answers("ping", {})
    wait(talk, INTERVAL_S)
    assert probes(talk) == ["ping", "ping"]


def test_a_modern_server_is_asked_with_what_it_knows() -> None:
    talk = ready_modern()
    wait(talk, INTERVAL_S + PROBE_S_MAX)
    assert set(probes(talk)) - {"subscriptions/listen"} == {"server/discover"}
    assert (
        "io.modelcontextprotocol/protocolVersion"
        in talk.asked("server/discover")["params"]["_meta"]
    )
    assert talk.session.probes_missed == 1


def test_a_server_that_talks_is_not_asked() -> None:
    talk = ready_legacy()
    for _ in range(9):
        wait(talk, INTERVAL_S - 1)
        talk.tells("notifications/message", level="info", data="still here")
    assert probes(talk) == []


def test_noise_on_stdout_is_no_sign_of_life() -> None:
    talk = ready_legacy()
    wait(talk, INTERVAL_S - 1)
    talk.says(b"tick tack")
    wait(talk, 1)
    assert probes(talk) == ["ping"]


@pytest.mark.promise("M73")
def test_a_server_that_misses_three_probes_in_a_row_hangs() -> None:
    talk = ready_legacy()
    wait(talk, INTERVAL_S)
    talk.answers("ping", {})
    assert wait(talk, HUNG_S - TICK_S) == []
    assert talk.session.probes_missed == MISSES_MAX - 1
    assert wait(talk, 60) == [Fail("hang", "it has not answered a ping for 70 s")]
    warned = [one.text for one in talk.actions if isinstance(one, WarnInLog)]
    assert warned[0] == "it has not answered a ping for 10 s; after 2 more it is ended"


def rest(talk: Talk, seconds: float) -> list[Fail]:
    """Let time pass with ticks only when they are due, or after ten seconds."""
    found, end = list[Action](), talk.now + seconds
    while talk.now < end:
        wait_s = min(talk.session.due(talk.now) - talk.now, REST_S_MAX, end - talk.now)
        found += talk.tick(max(wait_s, TICK_S))
    return [one for one in found if isinstance(one, Fail)]


def test_few_ticks_are_enough_for_the_probes_of_a_worker_that_rests() -> None:
    talk = ready_legacy()
    for _ in range(5):
        assert rest(talk, INTERVAL_S) == []
        talk.answers("ping", {})
        assert rest(talk, TICK_S) == []
    assert probes(talk) == ["ping"] * 5
    assert rest(talk, HUNG_S - 1) == []
    assert talk.session.probes_missed == MISSES_MAX - 1
    assert len(rest(talk, 2)) == 1


def test_any_word_of_the_server_forgives_the_probes_that_it_missed() -> None:
    talk = ready_legacy()
    for _ in range(5):
        assert wait(talk, HUNG_S - 1) == []
        assert talk.session.probes_missed == MISSES_MAX - 1
        talk.tells("notifications/message", level="info", data="still here")
        wait(talk, TICK_S)
        assert talk.session.probes_missed == 0


def test_a_late_answer_to_a_probe_is_a_sign_of_life_and_reaches_nobody() -> None:
    talk = ready_legacy()
    wait(talk, INTERVAL_S + PROBE_S_MAX)
    late = talk.asked("ping")["id"]
    wait(talk, INTERVAL_S)
    assert talk.says({"jsonrpc": "2.0", "id": late, "result": {}}) == [CountOnce("late_reply")]
    wait(talk, TICK_S)
    assert talk.session.probes_missed == 0


@pytest.mark.promise("M73")
def test_a_server_that_does_one_thing_at_a_time_is_not_ended_while_it_works() -> None:
    talk = ready_legacy(timeout_s=600.0, concurrency=1)
    talk.call(1, 1)
    assert wait(talk, 599) == []
    assert talk.session.probes_missed == 0
    assert any(isinstance(one, ReplyToFront) for one in talk.answers("tools/call", {}))
    assert wait(talk, INTERVAL_S) == []


def test_a_call_that_is_cancelled_or_late_is_given_time_to_end() -> None:
    for give_up_s in (5.0, 60.0):
        talk = ready_legacy(timeout_s=60.0)
        talk.call(1, 1)
        wait(talk, give_up_s)
        talk.cancel(1, 1)
        assert wait(talk, LINGER_S_MAX - 1) == []
        assert talk.session.probes_missed == 0
        assert len(wait(talk, INTERVAL_S * 3)) == 1


@pytest.mark.promise("M73")
def test_new_calls_do_not_excuse_a_server_that_hangs() -> None:
    talk = ready_legacy(timeout_s=60.0)
    fails: list[Fail] = []
    for number in range(40):
        talk.call(1, number)
        fails += wait(talk, 5)
    assert [fail.reason for fail in fails] == ["hang"]


def test_a_server_that_makes_a_long_list_is_given_the_time_of_a_call_for_it() -> None:
    talk = ready_legacy(timeout_s=60.0)
    talk.tells("notifications/tools/list_changed")
    assert wait(talk, 120) == []
    assert talk.session.probes_missed == 0
    assert len(wait(talk, 90)) == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_server_that_ignores_pings_is_asked_for_what_it_answered_before(known: bool) -> None:
    talk = ready_legacy()
    wait(talk, INTERVAL_S)
    if known:
        talk.refuses("ping", -32601)
    wait(talk, INTERVAL_S)
    assert probes(talk)[:2] == ["ping", "ping" if known else "tools/list"]
    if not known:
        talk.answers("tools/list", {"tools": []})
        wait(talk, INTERVAL_S)
        assert probes(talk) == ["ping", "tools/list", "tools/list"]
        assert talk.last_catalogue().catalogue.tools  # what a probe hears changes nothing


def test_a_pause_of_the_machine_is_not_the_servers_silence() -> None:
    talk = ready_legacy()
    wait(talk, INTERVAL_S)
    for _ in range(9):
        wait(talk, PROBE_S_MAX - 1)
        talk.tick(3600.0)
    assert talk.session.probes_missed == 0
    wait(talk, PROBE_S_MAX)
    assert talk.session.probes_missed == 1


def test_only_servers_at_the_end_of_pipes_are_asked() -> None:
    talk = ready_legacy(command=(), url="https://example.com/mcp")
    wait(talk, 10 * INTERVAL_S)
    assert probes(talk) == []
    hosted = ready_legacy(command=(), module="notes:server")
    wait(hosted, INTERVAL_S)
    assert probes(hosted) == ["ping"]


def test_the_interval_is_what_was_configured_and_bounds_the_time_for_an_answer() -> None:
    talk = ready_legacy(probe_interval_s=2.0)
    (fail,) = wait(talk, 20)
    assert fail.message.startswith("it has not answered a tools/list for 6")
