"""What is written down of a call that is over: which, how much of it, and what is hidden."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from metamcp_worker.front_calls.request_facts import CallAnswer, CallOrigin
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_records import call_log as limits
from metamcp_worker.front_records.call_log import CallLog, Slice
from metamcp_worker.ipc.frames import CallFrame
from metamcp_worker.ipc.records import ID_CHARACTERS, word
from metamcp_worker.ipc.spec import RecordingSpec
from metamcp_worker.runtime.masking import MASK

pytestmark = pytest.mark.promise("M89")

SECRET = "hunter2-hunter2-hunter2"
FULL = RecordingSpec(folder="/x", servers={"git": "full"}, body_bytes=64, secrets=(SECRET,))
METADATA = RecordingSpec(folder="/x", servers={"git": "metadata"})
NOW_MS = 1_790_000_000_000


def recording(spec: RecordingSpec = FULL) -> CallLog:
    return CallLog(spec, 3, lambda seconds: f"at {seconds:.3f}")


def _uncancelled(call: Call, why: str) -> None:
    """Nobody cancels these."""


def call(number: int = 7, *, server: str = "git", method: str = "tools/call") -> Call:
    made = Call(server, CallFrame(number, method, b"{}"), _uncancelled, 0.0, label=method)
    made.origin = CallOrigin("default", "git__x", b"", "", progress=False, version="2026-07-28")
    return made


def written(
    found: CallLog,
    arguments: bytes | None,
    result: bytes | None = b"{}",
    outcome: str = "",
    made: Call | None = None,
) -> dict[str, Any]:
    """The line of one call."""
    made = made or call()
    found.on_call_start(made, "git__x", None if arguments is None else Raw(arguments))
    found.on_call_end(made, None if result is None else CallAnswer(result), 0.25, outcome, NOW_MS)
    data = found.take(10).data
    assert data.count(b"\n") == 1
    line: dict[str, Any] = json.loads(data)
    return line


def test_a_line_says_what_was_called_and_how_it_ended() -> None:
    assert written(recording(), b'{"a":1}', b'{"content":[]}') == {
        "id": word(NOW_MS - 250, 3, 7), "time": "at 1789999999.750", "server": "git",
        "method": "tools/call", "outcome": "ok", "duration_ms": 250.0, "front": 3, "call": 7,
        "name": "git__x", "endpoint": "default", "protocol": "2026-07-28", "arguments_bytes": 7,
        "result_bytes": 14, "arguments": {"a": 1}, "result": {"content": []},
    }  # fmt: skip


def test_a_line_has_the_name_that_the_client_gives_itself() -> None:
    made = call()
    said = b'{"clientInfo":{"name":"desk","version":"1"}}'
    made.origin = CallOrigin("default", "git__x", said, "", progress=False)
    assert written(recording(), b"{}", made=made)["client"] == "desk"


def test_metadata_has_sizes_and_no_bodies() -> None:
    line = written(recording(METADATA), b'{"a":1}')
    assert (line["arguments_bytes"], line["result_bytes"]) == (7, 2)
    assert not {"arguments", "result"} & set(line)


@pytest.mark.parametrize(("outcome", "said"), [("", "ok"), ("tool_error", "tool_error"),
                                               ("-10001", "-10001")])  # fmt: skip
def test_the_outcome_is_a_word_or_a_code(outcome: str, said: str) -> None:
    assert written(recording(), b"{}", outcome=outcome)["outcome"] == said


def test_a_cancelled_call_has_no_result() -> None:
    line = written(recording(), b"{}", None, "cancelled")
    assert line["outcome"] == "cancelled"
    assert "result" not in line


@pytest.mark.parametrize(
    ("server", "method"), [("notes", "tools/call"), ("git", "completion/complete")]
)
def test_what_is_not_to_be_recorded_leaves_nothing(server: str, method: str) -> None:
    found, made = recording(), call(server=server, method=method)
    found.on_call_start(made, "x", None)
    assert not found.on_call_end(made, CallAnswer(b"{}"), 0.1, "", NOW_MS)
    assert found.take(10) == Slice(b"", 0, 0)


def test_the_processes_of_single_clients_are_recorded_as_their_server() -> None:
    assert written(recording(), b"{}", made=call(server="git@5f8a"))["server"] == "git"


def test_a_long_body_is_cut_and_says_so() -> None:
    line = written(recording(), b'{"a":"%s"}' % (b"x" * 500), b'{"b":"%s"}' % (b"y" * 500))
    assert line["cut"] == ["arguments", "result"]
    assert line["arguments"] == '{"a":"' + "x" * 58
    assert (line["arguments_bytes"], line["result_bytes"]) == (508, 508)


def test_a_secret_is_masked_and_the_rest_is_still_json() -> None:
    line = written(recording(), json.dumps({"a": f"x {SECRET} y"}).encode())
    assert line["arguments"] == {"a": f"x {MASK} y"}
    assert line["masked"] == ["arguments"]


def test_what_looks_like_a_secret_is_masked_too() -> None:
    line = written(recording(), b'{"password":"a\\"b","n":1}')
    assert line["arguments"] == {"password": MASK, "n": 1}


@given(st.integers(0, 120), st.integers(1, 6), st.text('ab\\"é\n', max_size=30))
def test_no_part_of_a_secret_is_left_at_the_end_of_what_was_cut(
    before: int, times: int, after: str
) -> None:
    text = "x" * before + SECRET * times + after * 10
    body = json.dumps({"a": text}, ensure_ascii=False).encode()
    found = recording()
    made = call()
    found.on_call_start(made, "git__x", Raw(body))
    found.on_call_end(made, CallAnswer(body), 0.1, "", NOW_MS)
    data = found.take(1).data
    for at in range(4, len(SECRET) + 1):
        assert SECRET[:at].encode() not in data


def test_a_body_of_several_lines_is_one_line_of_the_file() -> None:
    line = written(recording(), b'{\n "a": 1,\r\n "b": "c\\nd"\n}')
    assert line["arguments"] == {"a": 1, "b": "c\nd"}


def test_calls_that_wait_are_bounded_and_what_is_lost_is_told_first() -> None:
    found, made = recording(), call()
    for number in range(limits.PENDING_MAX + 5):
        made = _again(made, number)
        found.on_call_start(made, "x", None)
        found.on_call_end(made, CallAnswer(b""), 0.1, "", NOW_MS)
    taken = found.take(2)
    first, second, third = map(json.loads, taken.data.splitlines())
    assert first == {"lost": 5}
    assert (second["call"], third["call"]) == (0, 1)
    assert (taken.lost, taken.calls) == (5, 2), "so many are lost if this is not written"
    found.lose(taken.lost + taken.calls)
    assert json.loads(found.take(0).data) == {"lost": 7}
    assert found.overrun == 5


def test_bodies_that_wait_are_bounded() -> None:
    found = recording(RecordingSpec(folder="/x", servers={"git": "full"}, body_bytes=1024 * 1024))
    body = b'"' + b"x" * (1024 * 1024 - 2) + b'"'
    made = call(0)
    for number in range(40):
        made = _again(made, number)
        found.on_call_start(made, "x", None)
        found.on_call_end(made, CallAnswer(body), 0.1, "", NOW_MS)
    data = found.take(100).data
    assert len(data) < limits.PENDING_BYTES_MAX + 1024 * 1024
    assert json.loads(data.splitlines()[0])["lost"] == 40 - 16


def test_other_settings_count_for_calls_that_end_later() -> None:
    found, made = recording(METADATA), call()
    found.on_call_start(made, "x", Raw(b'{"a":1}'))
    found.adjust(FULL)
    found.on_call_end(made, CallAnswer(b"{}"), 0.1, "", NOW_MS)
    line = json.loads(found.take(1).data)
    assert "arguments" not in line, "they were not kept"


@pytest.mark.parametrize("tail", ["", "\\\\"])
def test_a_member_that_looks_secret_is_hidden_where_it_is_cut(tail: str) -> None:
    body = '{"a":1,"password":"correct horse battery' + tail * 20 + " staple" * 20 + '"}'
    knows_none = RecordingSpec(folder="/x", servers={"git": "full"}, body_bytes=64)
    line = written(recording(knows_none), body.encode())
    assert line["arguments"].startswith('{"a":1,"password":"***')
    assert "horse" not in line["arguments"]


def test_a_secret_stays_hidden_in_what_was_kept_before_it_was_forgotten() -> None:
    """`ctl set … --until` ends, and with it goes the list of secrets; bodies are there still."""
    found, over, under_way = recording(), call(1), call(2)
    body = b'{"a":"%s"}' % SECRET.encode()
    for made in (over, under_way):
        found.on_call_start(made, "git__x", Raw(body))
    found.on_call_end(over, CallAnswer(body), 0.1, "", NOW_MS)
    found.adjust(METADATA)
    found.adjust(RecordingSpec())
    found.on_call_end(under_way, CallAnswer(body), 0.1, "", NOW_MS)
    taken = found.take(10)
    data = taken.data
    assert taken.calls == 2
    assert SECRET.encode() not in data
    assert data.count(b'"arguments":{"a":"***"}') == 2


def test_few_large_bodies_are_made_lines_at_a_time() -> None:
    found = recording(RecordingSpec(folder="/x", servers={"git": "full"}, body_bytes=16 * 1024))
    for number in range(4):
        made = call(number)
        found.on_call_start(made, "x", Raw(b'"%s"' % (b"x" * 16_000)))
        found.on_call_end(made, CallAnswer(b"{}"), 0.1, "", NOW_MS)
    assert found.take(16).calls == limits.SLICE_BYTES_MAX // 16_000 + 1
    assert found.waits


def test_ids_are_unique_and_sort_as_calls_began() -> None:
    found = [word(ms, front, call) for ms in (1, 2, NOW_MS) for front in (0, 3) for call in (1, 9)]
    assert sorted(set(found)) == found
    assert {len(one) for one in found} == {ID_CHARACTERS}


def _again(made: Call, number: int) -> Call:
    made.id = number
    return made


@pytest.mark.parametrize("spell", ["\\u%04x", "\\\\u%04x"])
def test_a_secret_in_escapes_that_reaches_across_the_limit_is_masked(spell: str) -> None:
    escaped = "".join(spell % ord(character) for character in SECRET)
    for before in range(FULL.body_bytes):
        line = written(recording(), f'{{"a":"{"x" * before}{escaped}","b":"{"y" * 999}"}}'.encode())
        assert "arguments" in line["cut"]
        assert spell[:-4] not in line["arguments"].replace(MASK, "")
