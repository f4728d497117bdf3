"""What a guest may send, and what each end of a run says."""

from collections.abc import Callable

import pytest
from msgspec import Raw, json, structs

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import FRAME, CodeLimits, HostCall, HostReply, RunEnded, StartRun
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.sandbox.code_run import CodeRun, FrameBuffer, frame

PLACE = "blob:null/5b68516d-05d4-4fa2-af95-9d209b57a1c3"
LIMITS = CodeLimits(timeout_ms=1500, memory_bytes=64 << 20, output_bytes=100, calls=3, parallel=2)


def run(code: str = "one\ntwo\nthree") -> CodeRun:
    return CodeRun(StartRun(run=7, code=code, limits=LIMITS))


def say(state: CodeRun, kind: str, /, **members: object) -> list[HostCall]:
    return state.read(frame(json.encode({"type": kind, **members})))


def call(state: CodeRun, number: int, arguments: object = None) -> list[HostCall]:
    return say(
        state, "HostCall", call=number, kind="call", name="t", server="",
        arguments={} if arguments is None else arguments,
    )  # fmt: skip


def ended(state: CodeRun) -> RunEnded:
    assert state.end is not None
    return state.end


def test_frames_are_cut_out_of_any_pieces() -> None:
    data = frame(b"one") + frame(b"") + frame(b"three")
    frames = FrameBuffer(5)
    found = [body for at in range(len(data)) for body in frames.feed(data[at : at + 1])]
    assert found == [b"one", b"", b"three"]
    assert FrameBuffer(5).feed(data) == found
    with pytest.raises(TooLarge):
        FrameBuffer(4).feed(data)


def test_the_guest_gets_its_code_with_its_limits() -> None:
    state = CodeRun(StartRun(run=1, code="x", args=Raw(b'{"a": 1}'), limits=LIMITS))
    (body,) = FrameBuffer(1000).feed(state.begin())
    assert json.decode(body) == {
        "type": "StartRun", "run": 1, "code": "x", "language": "typescript", "args": {"a": 1},
        "limits": structs.asdict(LIMITS), "inner": False,
    }  # fmt: skip
    with pytest.raises(codec.Malformed):
        CodeRun(StartRun(run=1, code="x", args=Raw(b'{"a": '))).begin()


def test_a_run_that_returns_has_its_value_lines_and_calls() -> None:
    state = run()
    assert call(state, 1, {"a": 1}) == [
        HostCall(run=7, call=1, kind="call", name="t", arguments=Raw(b'{"a":1}'))
    ]
    (body,) = FrameBuffer(1000).feed(
        state.reply(HostReply(run=7, call=1, result=Raw(b'{"content": []}')))
    )
    assert body == b'{"type":"HostReply","run":7,"call":1,"result":{"content": []},"error":""}'
    say(state, "GuestLog", line="a line")
    say(state, "GuestValue", value=[1])
    assert state.end == RunEnded(run=7, value=Raw(b"[1]"), logs=("a line",), calls=1)


def test_an_answer_is_an_error_or_has_a_result_and_is_given_once() -> None:
    state = run()
    call(state, 1)
    call(state, 2)
    assert b'"error":"gone"' in state.reply(HostReply(run=7, call=1, error="gone"))
    assert state.reply(HostReply(run=7, call=1, error="gone")) == b""
    assert b'"result":1,"error":""' in state.reply(HostReply(run=7, call=2, result=Raw(b"1")))
    assert state.reply(HostReply(run=7, call=3)) == b""


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"null", b"\xff", b'{"type":"GuestReady"}', b'{"type":"HostCall"}',
        b'{"type":"GuestLog","line":1}', b'{"type":"GuestValue","value":}',
        b'{"type":"GuestValue"}', b'{"type":"GuestThrew","message":"x"}',
        b'{"type":"HostCall","call":1,"kind":"other","name":"t","server":"","arguments":{}}',
        b'{"type":"HostCall","call":1,"kind":"call","name":"t","server":"","arguments":[]}',
        b'{"type":"HostCall","call":2,"kind":"call","name":"t","server":"","arguments":{}}',
        b'{"type":"HostCall","call":"1","kind":"call","name":"t","server":"","arguments":{}}',
    ],
)  # fmt: skip
@pytest.mark.promise("M46")
def test_a_guest_that_breaks_the_protocol_ends_its_run(body: bytes) -> None:
    state = run()
    assert state.read(frame(body)) == []
    assert ended(state).failure == "crashed"


@pytest.mark.promise("M46")
def test_nothing_counts_after_the_end() -> None:
    state = run()
    say(state, "GuestValue", value=1)
    first = state.end
    assert call(state, 1) == []
    say(state, "GuestValue", value=2)
    state.on_timeout()
    state.on_exit(-9, "")
    assert state.end is first
    assert state.reply(HostReply(run=7, call=1)) == b""


@pytest.mark.promise("M46")
def test_calls_have_a_limit_in_number_and_at_once() -> None:
    state = run()
    for number in (1, 2):
        assert call(state, number)
    call(state, 3)
    assert ended(state).failure == "crashed"  # a true guest keeps it back

    state = run()
    for number in (1, 2, 3):
        assert call(state, number)
        state.reply(HostReply(run=7, call=number))
    assert call(state, 4) == []
    assert (ended(state).failure, ended(state).message) == (
        "calls", "the code made more than 3 calls"
    )  # fmt: skip
    assert ended(state).calls == 3

    state = run()
    say(state, "GuestOverrun")
    assert ended(state).failure == "calls"


@pytest.mark.promise("M46")
def test_output_has_a_limit_over_lines_and_value() -> None:
    state = run()
    say(state, "GuestLog", line="x" * 60)
    assert state.end is None
    say(state, "GuestValue", value="x" * 30)
    assert (ended(state).failure, ended(state).message) == (
        "size", "the code returned and printed more than 100 bytes"
    )  # fmt: skip
    assert ended(state).logs == ("x" * 60,)

    sends: list[Callable[[CodeRun], object]] = [
        lambda state: say(state, "GuestLog", line="x" * 85),
        lambda state: say(state, "GuestValue", value="x" * 99),
        lambda state: say(state, "GuestLarge"),
        lambda state: call(state, 1, {"a": "x" * 100}),
        lambda state: state.read(FRAME.pack(10**6)),
        lambda state: [say(state, "GuestLog", line="") for _ in range(7)],
        lambda state: state.read(
            frame(b'{"type":"GuestValue","value":' + b"[" * 3000 + b"]" * 3000 + b"}")
        ),
    ]
    for send in sends:
        state = run()
        send(state)
        assert ended(state).failure == "size"


def test_a_run_that_is_late_says_how_long_it_may_run() -> None:
    state = run()
    say(state, "GuestLog", line="so far")
    state.on_timeout()
    assert ended(state) == RunEnded(
        run=7, logs=("so far",), failure="timeout", message="the code ran longer than 1.5 s"
    )


@pytest.mark.parametrize(
    ("code", "stderr", "failure"),
    [
        (-5, "#\n# Fatal JavaScript out of memory: heap", "memory"),
        (-6, "memory allocation of 65536 bytes failed", "memory"),
        (-6, "", "memory"),
        (-6, "thread 'x' has overflowed its stack", "syntax"),
        (-11, "", "crashed"),
        (1, "panicked at", "crashed"),
    ],
)
def test_the_last_words_of_a_process_say_why_it_ended(code: int, stderr: str, failure: str) -> None:
    state = run()
    state.on_exit(code, stderr)
    assert ended(state).failure == failure


def test_an_exception_has_the_frames_of_the_code_alone_from_line_1() -> None:
    state = run()
    stack = (
        "RangeError: no\n    at call (file:///dev/fd/3:1:2)\n"
        f"    at foo ({PLACE}:3:10)\n    at {PLACE}:4:2\n"
        f"    at async Module.default ({PLACE}:2:1)\n"
        "    at ext:core/01_core.js:9:9"
    )
    say(state, "GuestThrew", message="RangeError: no", stack=stack)
    found = ended(state)
    assert (found.failure, found.message, found.line, found.column) == (
        "exception", "RangeError: no", 2, 10
    )  # fmt: skip
    assert found.stack == (
        "at foo (line 2, column 10)\nat code (line 3, column 2)\n"
        "at async default (line 1, column 1)"
    )


@pytest.mark.parametrize(
    ("message", "place", "words"),
    [
        (f"TypeError: SyntaxError: No\n  |\n2 | x\n    at {PLACE}:2:9", (1, 9), "No"),
        (f"SyntaxError: Illegal break statement at {PLACE}:4:1", (3, 1), "Illegal break statement"),
        (f"TypeError: SyntaxError: Expected\n    at {PLACE}:5:2", (3, 6), "Expected"),
        ("SyntaxError: somewhere", (0, 0), "somewhere"),
    ],
)
def test_an_error_of_syntax_has_its_place_in_the_code(
    message: str, place: tuple[int, int], words: str
) -> None:
    state = run()
    say(state, "GuestUnread", message=message, stack="")
    found = ended(state)
    assert (found.failure, (found.line, found.column), found.message) == ("syntax", place, words)


@pytest.mark.parametrize(
    "stack", ["", "\n" * 10_000, "at " * 10_000, f"    at ({PLACE}:" + "9" * 500]
)
def test_a_stack_may_be_anything(stack: str) -> None:
    state = run()
    say(state, "GuestThrew", message="Error: x", stack=stack)
    assert (ended(state).failure, ended(state).line) == ("exception", 0)


@pytest.mark.parametrize(
    "message",
    [
        "RangeError: Array buffer allocation failed",
        "RangeError: could not deserialize value",
        "DataCloneError: Data cannot be cloned, out of memory.",
    ],
)
def test_an_error_for_lack_of_memory_is_the_limit_of_memory(message: str) -> None:
    state = run()
    say(state, "GuestThrew", message=message, stack="")
    assert ended(state).failure == "memory"
    assert ended(state).message == "the code needed more than 64 MiB of memory"
