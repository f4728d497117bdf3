"""A session with a server: who gets which answer, in both eras, without a server."""

from itertools import pairwise
from typing import Any

import pytest

from metamcp_worker.child.actions import (
    Action,
    CountOnce,
    Fail,
    InvalidLine,
    KeepResult,
    Ready,
    Relisted,
    ReplyToFront,
    TellFronts,
    WarnInLog,
)
from metamcp_worker.child.handshake import RELISTS
from metamcp_worker.child.lists import TOOLS_AGAIN_S
from metamcp_worker.child.subscriptions import LISTEN_AGAIN_S
from metamcp_worker.ipc import frames
from metamcp_worker.ipc.envelope import OverlongLine, ScannedId
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Error, Notice, Progress, Result
from metamcp_worker.ipc.server_catalog import DISCOVER, KINDS, CachingHint
from tests.worker.child.talk import ECHO, Talk, error_of, modern, ready_legacy, ready_modern


def cancelled(talk: Talk) -> list[Any]:
    """The ids that the server was told to forget."""
    return [
        one["params"]["requestId"]
        for one in talk.wrote
        if one.get("method") == "notifications/cancelled"
    ]


def test_an_answer_goes_to_who_called_as_the_bytes_it_is() -> None:
    talk = ready_legacy()
    talk.call(3, 70)
    talk.call(4, 70)
    first, second = (one["id"] for one in talk.calls())
    result = b'{ "content" : [1.0] , "x":null}'
    line = b'{"jsonrpc":"2.0","id":%d,"result":%b}'
    assert talk.says(line % (second, result)) == [ReplyToFront(4, Result(70, result))]
    error = b'{"code":1e0,"message":"m", "x":[ ]}'
    line = b'{"id": %d ,"error":%b,"jsonrpc":"2.0"}'
    assert talk.says(line % (first, error)) == [ReplyToFront(3, Error(70, error))]
    assert talk.session.in_flight == 0


def test_ids_are_never_used_again() -> None:
    talk = ready_legacy()
    for number in range(20):
        talk.call(1, number)
        talk.answers("tools/call", {})
    ids = [one["id"] for one in talk.wrote if "id" in one]
    assert len(set(ids)) == len(ids)


def test_a_second_answer_reaches_nobody() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    assert len(talk.answers("tools/call", {})) == 1
    talk.call(1, 2)
    older = talk.calls()[0]["id"]
    assert talk.says({"jsonrpc": "2.0", "id": older, "result": {}}) == [CountOnce("late_reply")]
    assert talk.session.in_flight == 1


@pytest.mark.parametrize("wrong", ['"%d"', "%d.0", "%d0", "-%d", "null", "true", "[%d]"])
def test_an_id_is_exact_in_value_and_type(wrong: str) -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    raw = wrong.replace("%d", str(talk.calls()[0]["id"]))
    line = b'{"jsonrpc":"2.0","id":' + raw.encode() + b',"result":{}}'
    assert talk.says(line) == [CountOnce("unknown_id")]
    assert talk.session.in_flight == 1


@pytest.mark.parametrize(
    "outcome",
    [{"result": {}, "error": {"code": 1, "message": "m"}}, {}, {"error": "text"}, {"error": 5}],
)
def test_an_answer_that_is_none_is_an_error_at_once(outcome: dict[str, object]) -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    found = talk.says({"jsonrpc": "2.0", "id": talk.calls()[0]["id"], **outcome})
    assert error_of(found)["code"] == Code.INTERNAL_ERROR
    assert CountOnce("broken_reply") in found


def test_an_answer_above_the_limit_counts_as_too_large() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    key = str(talk.calls()[0]["id"]).encode()
    line = OverlongLine(10**9, ScannedId(key, answer=True))
    found = talk.note(talk.session.overlong(line, talk.now))
    assert error_of(found)["code"] == Code.TOO_LARGE
    assert CountOnce("too_large") in found


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (b"null", "answered tools/call as null,"),
        (b"1", "answered tools/call as a number,"),
        (b"[ ]", "answered tools/call as an array,"),
        (b'{"content":null}', "answered tools/call with 'content' as null,"),
        (b'{ "isError":false,"content": null }', "answered tools/call with 'content' as null,"),
        (b'{"content":{}}', "answered tools/call with 'content' as an object,"),
        (b'{"content": "done"}', "answered tools/call with 'content' as a text,"),
    ],
)
def test_a_result_that_no_client_can_read_is_an_error_of_its_server(
    result: bytes, said: str
) -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    key = str(talk.calls()[0]["id"]).encode()
    found = talk.says(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (key, result))
    error = error_of(found)
    assert error["message"].startswith(f"server 'fake' {said}")
    assert error["data"] == {"server": "fake", "reason": "invalid_result"}
    assert CountOnce("broken_reply") in found


@pytest.mark.parametrize("result", [b"{}", b'{"x":null,"content":[]}', b'{"content":["null"]}'])
def test_any_other_result_stays_what_it_is(result: bytes) -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    key = str(talk.calls()[0]["id"]).encode()
    (found,) = talk.says(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (key, result))
    assert found == ReplyToFront(1, Result(1, result))


@pytest.mark.promise("M110")
@pytest.mark.parametrize(("place", "size"), [(b"", 9000), (b'{"folder":"/r"}', 100)])
def test_a_small_result_or_one_without_a_place_passes(place: bytes, size: int) -> None:
    found = answered(place, b'{"content":[],"x":"%b"}' % (b"x" * size))
    assert isinstance(found, ReplyToFront)


@pytest.mark.promise("M110")
def test_a_large_result_with_a_place_may_be_kept() -> None:
    result = b'{"content":[],"x":"%b"}' % (b"x" * 9000)
    place = b'{"folder":"/r"}'
    assert answered(place, result) == KeepResult(1, Result(1, result), place, "fake", "log")


def answered(place: bytes, result: bytes) -> Action:
    """What follows from this result of a call whose result has this place."""
    talk = ready_legacy()
    frame = frames.CallFrame(1, "tools/call", b'{"name":"log"}', results=place)
    talk.note(talk.session.call(1, frame, talk.now))
    key = str(talk.calls()[0]["id"]).encode()
    (found,) = talk.says(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (key, result))
    return found


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ({"result": {}, "error": None}, Result),
        ({"result": None, "error": {"code": 1, "message": "m"}}, Error),
    ],
)
def test_null_beside_an_outcome_counts_as_absent(outcome: dict[str, object], kind: type) -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    (found,) = talk.says({"jsonrpc": "2.0", "id": talk.calls()[0]["id"], **outcome})
    assert isinstance(found, ReplyToFront)
    assert isinstance(found.frame, kind)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":%d,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"jsonrpc":"2.0","id":%d,"result":{"text":"\xff\xfe"}}',
        b'{"result":{"text":"\xff"},"jsonrpc":"2.0","id":%d}',
        b'{ "jsonrpc" : "2.0", "id" : %d, "error" : {"a":NaN}}',
    ],
)
def test_an_answer_that_cannot_be_read_fails_its_call_and_no_other(line: bytes) -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.call(1, 2)
    found = talk.says(line.replace(b"%d", str(talk.calls()[0]["id"]).encode()))
    assert error_of(found)["code"] == Code.INTERNAL_ERROR
    assert talk.session.in_flight == 1


@pytest.mark.parametrize(
    "line",
    [b"log text", b"{", b"[]", b"null", b"1", b"{}", b'{"id":1}', b"\xff\xfe", b'{"jsonrpc":2}'],
)
def test_noise_is_counted_and_logged(line: bytes) -> None:
    assert ready_legacy().says(line) == [CountOnce("stray_stdout"), InvalidLine(line)]


def test_calls_beyond_the_limits_wait_and_then_are_refused() -> None:
    talk = ready_legacy(concurrency=2, queue=3)
    for number in range(5):
        assert talk.call(1, number) == []
    assert (len(talk.calls()), talk.session.queue_length) == (2, 3)
    error = error_of(talk.call(1, 5))
    assert error["code"] == Code.OVERLOADED
    load = {"inflight": 2, "queued": 3, "limit": 3, "retry_after_ms": None}
    assert error["data"] == {"server": "fake", "may_have_run": False, **load}
    talk.says({"jsonrpc": "2.0", "id": talk.calls()[0]["id"], "result": {}})
    assert (len(talk.calls()), talk.session.queue_length) == (3, 2)


def test_waiting_calls_are_bounded_in_bytes_too() -> None:
    talk = ready_legacy(concurrency=1)
    talk.call(1, 0)
    params = b'{"a":"' + b"x" * (frames.BODY_BYTES_MAX - 100) + b'"}'
    found = [talk.call(1, number, params=params) for number in range(1, 6)]
    assert [bool(actions) for actions in found] == [False, False, False, True, True]
    assert error_of(found[-1])["code"] == Code.OVERLOADED


def test_a_server_that_does_not_read_is_overloaded() -> None:
    talk = ready_legacy()
    frame = frames.CallFrame(1, "tools/call", b"{}")
    error = error_of(talk.note(talk.session.call(1, frame, talk.now, stuck=True)))
    assert error["code"] == Code.OVERLOADED
    assert "does not read" in error["message"]


def test_a_call_that_could_not_be_written_is_answered_and_forgotten() -> None:
    talk = ready_legacy(concurrency=1)
    talk.call(1, 1)
    key = str(talk.calls()[0]["id"]).encode()
    assert error_of(talk.note(talk.session.unsent(key, talk.now)))["code"] == Code.OVERLOADED
    assert talk.session.in_flight == 0
    assert talk.session.unsent(key, talk.now) == []
    assert talk.session.unsent(b"", talk.now) == []


def test_calls_that_come_before_the_server_is_ready_wait_for_it() -> None:
    talk = Talk()
    assert talk.call(1, 1) == []
    talk.refuses("server/discover", -32601)
    talk.answers("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    assert len(talk.calls()) == 1


def test_a_call_times_out_and_the_server_is_told() -> None:
    talk = ready_legacy(timeout_s=60.0)
    talk.call(1, 1)
    talk.call(1, 2, deadline_ms=5000)
    error = error_of(talk.tick(5))
    assert error["code"] == Code.TIMED_OUT
    assert error["data"] == {"server": "fake", "timeout_s": 5.0}
    assert cancelled(talk) == [talk.calls()[1]["id"]]
    assert talk.answers("tools/call", {}) == [CountOnce("late_reply")]
    assert error_of(talk.tick(55))["data"]["timeout_s"] == 60.0
    assert talk.session.in_flight == 0


def test_a_waiting_call_times_out_too_without_a_word_to_the_server() -> None:
    talk = ready_legacy(concurrency=1)
    talk.call(1, 1, deadline_ms=100_000)
    talk.call(1, 2, deadline_ms=1000)
    error = error_of(talk.tick(1))
    assert error["code"] == Code.TIMED_OUT
    assert "was busy with other calls for 1 s, so it was not asked for" in error["message"]
    assert error["data"]["may_have_run"] is False
    assert cancelled(talk) == []
    assert talk.session.queue_length == 0


def test_a_cancelled_call_is_forgotten_and_nothing_is_answered() -> None:
    talk = ready_legacy(concurrency=1)
    for number in (1, 2, 3):
        talk.call(7, number)
    assert talk.cancel(7, 2) == []
    assert talk.cancel(8, 1) == []
    assert talk.cancel(7, 1, b"enough") == []
    first, third = (one["id"] for one in talk.calls())
    assert cancelled(talk) == [first]
    assert talk.says({"jsonrpc": "2.0", "id": first, "result": {}}) == [CountOnce("late_reply")]
    assert talk.says({"jsonrpc": "2.0", "id": third, "result": {}}) == [
        ReplyToFront(7, Result(3, b"{}"))
    ]


def test_a_front_that_leaves_takes_its_calls_along() -> None:
    talk = ready_legacy(concurrency=2)
    for front, number in ((1, 1), (2, 1), (1, 2), (2, 2)):
        talk.call(front, number)
    talk.note(talk.session.front_gone(1, talk.now))
    assert cancelled(talk) == [talk.calls()[0]["id"]]
    assert (talk.session.in_flight, talk.session.queue_length) == (2, 0)


def test_progress_goes_to_who_asked_for_it_without_the_token() -> None:
    talk = ready_legacy()
    talk.call(5, 9, wants_progress=True)
    talk.call(5, 10)
    token, other = (one["id"] for one in talk.calls())
    assert talk.calls()[0]["params"]["_meta"] == {"progressToken": token}
    assert talk.calls()[1]["params"]["_meta"] == {"progressToken": other}
    line = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d,'
    found = talk.says(line % token + b'"progress":1.50,"x":{ }}}')
    assert found == [ReplyToFront(5, Progress(9, b'{"progress":1.50,"x":{ }}'))]
    found = talk.tells("notifications/progress", progressToken=other, progress=1)
    assert found == [ReplyToFront(5, Progress(10, b""))]
    for unknown in (str(token), 999, None):
        found = talk.tells("notifications/progress", progressToken=unknown, progress=1)
        assert found == [CountOnce("unknown_token")]
    talk.says({"jsonrpc": "2.0", "id": token, "result": {}})
    late = talk.tells("notifications/progress", progressToken=token, progress=2)
    assert late == [CountOnce("unknown_token")]


@pytest.mark.promise("M23")
@pytest.mark.parametrize("wants_progress", [True, False])
def test_the_time_of_a_call_begins_anew_with_its_progress(wants_progress: bool) -> None:
    talk = ready_legacy(timeout_s=10.0, timeout_max_s=100.0, probe_interval_s=1000.0)
    talk.call(1, 1, wants_progress=wants_progress)
    token = talk.calls()[0]["id"]
    for _ in range(3):
        assert talk.tick(9) == []
        talk.tells("notifications/progress", progressToken=token, progress=1)
    (found,) = talk.tick(10)
    error = error_of([found])
    assert error["message"].endswith("within 10 s of its last progress")


def test_progress_without_end_is_given_up_after_the_longest_time() -> None:
    talk = ready_legacy(timeout_s=10.0, timeout_max_s=25.0, probe_interval_s=1000.0)
    talk.call(1, 1)
    token = talk.calls()[0]["id"]
    for _ in range(3):
        assert talk.tick(8) == []
        talk.tells("notifications/progress", progressToken=token, progress=1)
    error = error_of(talk.tick(1))
    assert error["message"].endswith("within 25 s, the most for a call with progress")
    assert error["data"]["timeout_s"] == 25.0


def test_a_call_whose_time_is_longer_than_the_longest_keeps_its_time() -> None:
    talk = ready_legacy(timeout_s=10.0, timeout_max_s=5.0, probe_interval_s=1000.0)
    talk.call(1, 1)
    talk.tick(9)
    talk.tells("notifications/progress", progressToken=talk.calls()[0]["id"], progress=1)
    assert error_of(talk.tick(1))["data"]["timeout_s"] == 10.0


@pytest.mark.parametrize("method", ["completion/complete", "com.example/own"])
def test_requests_that_report_no_progress_have_no_token_of_the_gateway(method: str) -> None:
    talk = ready_legacy()
    talk.call(1, 1, method=method)
    assert "_meta" not in talk.wrote[-1]["params"]


def test_other_notifications_go_to_all_fronts() -> None:
    talk = ready_legacy()
    line = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data": 1.0}}'
    assert talk.says(line) == [TellFronts(Notice("notifications/message", b'{"data": 1.0}'))]
    assert talk.tells("x" * 300) == [CountOnce("broken_notification")]
    assert talk.says(b'{"jsonrpc":"2.0","method":"notifications/progress","params":[]}') == [
        CountOnce("broken_notification")
    ]


def test_a_ping_is_answered_with_the_id_it_has() -> None:
    talk = ready_legacy()
    for raw in (b"5", b'"a\\u0041"', b"-1"):
        actions = talk.session.receive(b'{"jsonrpc":"2.0","method":"ping","id":%b}' % raw, 0.0)
        (write,) = actions
        assert getattr(write, "line", b"") == b'{"jsonrpc":"2.0","id":%b,"result":{}}\n' % raw


def test_a_modern_server_is_told_who_calls_and_is_listened_to() -> None:
    talk = ready_modern()
    listen = talk.asked("subscriptions/listen")
    assert listen["params"]["notifications"] == {"toolsListChanged": True}
    talk.call(1, 1, caller=b'{"clientInfo":{"name":"c"},"clientCapabilities":{"roots":{}}}')
    meta = talk.calls()[0]["params"]["_meta"]
    assert meta["io.modelcontextprotocol/clientInfo"] == {"name": "c"}
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {"roots": {}}
    assert talk.tells("notifications/subscriptions/acknowledged", notifications={}) == []
    assert talk.answers("tools/call", {"a": 1}) == [ReplyToFront(1, Result(1, b'{"a": 1}'))]
    assert talk.tick(3600) == []
    assert talk.refuses("subscriptions/listen", -32601) == []


def test_a_subscription_that_ends_is_asked_for_again_and_the_gap_is_read() -> None:
    talk = ready_modern()
    assert talk.answers("subscriptions/listen", {"resultType": "complete"}) == []
    before = len(talk.wrote)
    talk.tick(LISTEN_AGAIN_S - 0.5)
    assert len(talk.wrote) == before
    talk.tick(1.0)
    assert [one["method"] for one in talk.wrote[before:]] == ["subscriptions/listen", "tools/list"]
    talk.tick(LISTEN_AGAIN_S * 2)
    assert len(talk.wrote) == before + 2


def test_changed_lists_are_read_again_but_not_more_often_than_needed() -> None:
    talk = ready_legacy()
    before = len(talk.wrote)
    for _ in range(20_000):
        talk.tells("notifications/tools/list_changed")
    assert len(talk.wrote) == before + 1
    (found,) = talk.answers("tools/list", {"tools": [ECHO, {"name": "new"}]})
    assert isinstance(found, Relisted)
    assert len(found.catalogue.tools) == 2
    assert talk.tick(0.25) == []
    assert len(talk.wrote) == before + 1
    talk.tick(0.25)
    assert len(talk.wrote) == before + 2
    said = TellFronts(Notice("notifications/tools/list_changed", b"{}"))
    assert talk.answers("tools/list", {"tools": [ECHO, {"name": "new"}]}) == [said]
    talk.tick(10)
    assert len(talk.wrote) == before + 2


def test_lists_that_change_all_the_time_are_read_less_and_less_often() -> None:
    talk = ready_legacy()
    read_at: list[float] = []
    for _ in range(140):
        before = len(talk.wrote)
        talk.tells("notifications/tools/list_changed")
        talk.tick(0.25)
        if len(talk.wrote) > before:
            read_at.append(talk.now)
            talk.answers("tools/list", {"tools": [ECHO]})
    gaps = [after - before for before, after in pairwise(read_at)]
    often, seldom = gaps[:RELISTS], gaps[RELISTS:]
    assert often == pytest.approx([0.5] * RELISTS, abs=0.26)
    assert seldom == pytest.approx([1.0, 2.0, 4.0, 8.0, 8.0, 8.0], abs=0.26)
    talk.tick(20.0)
    talk.tick(20.0)
    before = len(talk.wrote)
    talk.answers("tools/list", {"tools": [ECHO]})
    talk.tells("notifications/tools/list_changed")
    assert len(talk.wrote) == before + 1


def test_the_catalogue_says_how_long_it_may_be_kept() -> None:
    hint = {"ttlMs": 5000, "cacheScope": "public"}
    talk = Talk()
    talk.answers("server/discover", {**modern(), **hint})
    talk.answers("tools/list", {"tools": [ECHO], "ttlMs": 70})
    found = talk.last_catalogue().catalogue.hints
    assert found == {"tools": CachingHint(70, "private"), DISCOVER: CachingHint(5000, "public")}
    legacy_hints = ready_legacy().last_catalogue().catalogue.hints
    assert legacy_hints == {"tools": CachingHint(), DISCOVER: CachingHint()}


def test_lists_that_were_not_declared_are_not_read() -> None:
    talk = ready_legacy()
    before = len(talk.wrote)
    assert talk.tells("notifications/prompts/list_changed") == []
    assert len(talk.wrote) == before


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_list_that_cannot_be_read_again_stays_as_it_was(how: str) -> None:
    talk = ready_legacy(timeout_s=10.0, start_timeout_s=10.0, probe_interval_s=100.0)
    talk.tells("notifications/tools/list_changed")
    found: list[Action] = []
    for again_s in (*TOOLS_AGAIN_S, 0):
        assert found == []
        found = talk.refuses("tools/list", -32603) if how == "refused" else talk.tick(10)
        talk.tick(again_s)
    assert len(found) == 1
    assert isinstance(found[0], WarnInLog)
    assert "the list stays as it was" in found[0].text
    talk.tick(1)
    talk.tells("notifications/tools/list_changed")
    (again,) = talk.answers("tools/list", {"tools": []})
    assert isinstance(again, Relisted)


LISTED = {
    "tools/list": {"tools": [ECHO]},
    "prompts/list": {"prompts": [{"name": "p"}]},
    "resources/list": {"resources": [{"uri": "a://b", "name": "r"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "a://{x}", "name": "t"}]},
}


@pytest.mark.promise("M15")
@pytest.mark.parametrize("lost", LISTED)
@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_a_list_that_is_lost_costs_that_list_and_a_line(lost: str, how: str) -> None:
    talk = Talk()
    talk.answers("server/discover", modern({"tools": {}, "prompts": {}, "resources": {}}))
    for method, result in LISTED.items():
        if method != lost:
            talk.answers(method, result)
    if how == "fails":
        talk.refuses(lost, -32603)
    talk.tick(5)
    kind = next(iter(LISTED[lost]))
    found = talk.last_catalogue()
    assert isinstance(found, Ready)
    sizes = {one: len(found.catalogue.of(one)) for one in KINDS}
    assert sizes == {one: int(one != kind) for one in KINDS}
    assert found.catalogue.unread == (kind,)
    assert (
        len([one for one in talk.actions if isinstance(one, WarnInLog) and lost in one.text]) == 1
    )
    assert not any(isinstance(one, Fail) for one in talk.actions)


def test_tools_that_fail_at_a_start_are_asked_for_again_and_come_later() -> None:
    talk = Talk()
    talk.answers("server/discover", modern({"tools": {}}))
    for again_s in TOOLS_AGAIN_S:
        talk.refuses("tools/list", -32603)
        talk.tick(again_s)
    talk.answers("tools/list", LISTED["tools/list"])
    ready, relisted = [one for one in talk.actions if isinstance(one, Ready | Relisted)]
    assert (ready.catalogue.tools, ready.catalogue.unread) == ((), ("tools",))
    assert (len(relisted.catalogue.tools), relisted.catalogue.unread) == (1, ())


def test_tools_that_the_server_does_not_have_are_asked_for_once() -> None:
    talk = Talk()
    talk.answers("server/discover", modern({"tools": {}}))
    talk.refuses("tools/list", -32601)
    assert isinstance(talk.last_catalogue(), Ready)
    talk.tick(60)
    assert len([one for one in talk.wrote if one["method"] == "tools/list"]) == 1


def test_a_server_that_does_one_thing_at_a_time_is_asked_for_one_list_at_a_time() -> None:
    talk = Talk(concurrency=1)
    talk.answers("server/discover", modern({"tools": {}, "prompts": {}}))
    assert talk.wrote[-1]["method"] == "tools/list"
    talk.answers("tools/list", LISTED["tools/list"])
    assert talk.wrote[-1]["method"] == "prompts/list"
    talk.answers("prompts/list", LISTED["prompts/list"])
    assert isinstance(talk.last_catalogue(), Ready)


def test_a_list_that_is_not_answered_in_time_is_cancelled_and_does_not_keep_others_waiting() -> (
    None
):
    talk = Talk()
    talk.answers("server/discover", modern({"tools": {"listChanged": True}, "prompts": {}}))
    talk.answers("prompts/list", LISTED["prompts/list"])
    talk.tick(5)
    talk.tells("notifications/prompts/list_changed")
    talk.answers("prompts/list", {"prompts": []})
    assert isinstance(talk.last_catalogue(), Relisted)
    number = talk.asked("tools/list")["id"]
    talk.tick(60)
    assert talk.asked("notifications/cancelled")["params"]["requestId"] == number


def test_a_draining_session_finishes_what_it_has_and_takes_no_more() -> None:
    talk = ready_legacy(concurrency=1)
    talk.call(1, 1)
    talk.call(1, 2)
    talk.session.drain()
    assert error_of(talk.call(1, 3))["code"] == Code.SERVER_DOWN
    assert len(talk.answers("tools/call", {})) == 1
    assert len(talk.answers("tools/call", {})) == 1
    assert (talk.session.in_flight, talk.session.queue_length) == (0, 0)


def test_a_lost_connection_answers_every_call_once() -> None:
    talk = ready_legacy(concurrency=1)
    for number in (1, 2, 3):
        talk.call(number, number)
    found = talk.note(talk.session.fail_calls(Code.TOO_LARGE, "was ended"))
    assert [one.front for one in found if isinstance(one, ReplyToFront)] == [1, 2, 3]
    assert talk.answers("tools/call", {}) == []
    assert talk.tick(1000) == []
