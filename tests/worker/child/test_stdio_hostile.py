"""Servers that misbehave: the worker stays small, quick and clear."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from metamcp_worker.child import stdio
from metamcp_worker.child.jsonrpc_lines import LOG_LINE_BYTES_MAX
from metamcp_worker.ipc.frames import Error, Result
from metamcp_worker.ipc.messages import EventCounts, Heartbeat, LogLines, Spawned
from tests.waiting import until
from tests.worker.child.worker import SERVER, ChildWorker, alive, ready_worker

pytestmark = [pytest.mark.process, pytest.mark.promise("M98")]


def processor_s(pid: int) -> float:
    """The processor time that a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    """The largest resident memory that a process had so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize(
    "flags",
    [
        ("--garbage",),
        ("--bad-utf8",),
        ("--half-lines",),
        ("--garbage", "--bad-utf8", "--half-lines"),
    ],
)
def test_noise_and_pieces_between_messages_do_not_matter(flags: tuple[str, ...]) -> None:
    with ready_worker(*flags) as (worker, front):
        for number in range(20):
            assert front.text(front.tool("echo", text=f"é{number}")) == f"é{number}"
        worker.stop()
        assert ("stray_stdout" in worker.counts) == (flags != ("--half-lines",))
        assert ("starting up ..." in worker.logs["stdout"]) == ("--garbage" in flags)


@pytest.mark.parametrize("kind", ["both", "neither", "deep", "bad-utf8"])
def test_a_broken_answer_is_an_error_at_once(kind: str) -> None:
    with ready_worker() as (worker, front):
        assert front.error(front.tool("odd", kind=kind))["code"] == -32603
        assert worker.counted("broken_reply") == 1


def test_half_an_answer_and_silence_lasts_as_long_as_the_call_may() -> None:
    with ready_worker(timeout_s=0.3) as (worker, front):
        assert front.error(front.tool("half"))["code"] == -10003
        worker.read(Heartbeat)  # it works on, and waits for the rest


@pytest.mark.parametrize("kind", ["float-id", "string-id"])
def test_an_answer_with_another_id_is_none(kind: str) -> None:
    with ready_worker() as (worker, front):
        number = front.call(
            "tools/call", f'{{"name":"odd","arguments":{{"kind":"{kind}"}}}}', deadline_ms=300
        )
        assert front.error(number)["code"] == -10003
        assert worker.counted("unknown_id") == 1


def test_answers_to_nobody_and_second_answers_reach_nobody() -> None:
    with ready_worker() as (worker, front):
        assert front.text(front.tool("odd", kind="twice")) == "odd"
        assert front.text(front.tool("echo", text="next")) == "next"
        assert worker.counted("unknown_id") == 1
        assert worker.counted("late_reply") == 1


def test_a_question_to_the_client_is_refused_and_the_call_goes_on() -> None:
    with ready_worker() as (_, front):
        answer = json.loads(front.text(front.tool("ask")))
        assert (answer["id"], answer["error"]["code"]) == ("s1", -32601)
        assert json.loads(front.text(front.tool("ask", method="ping")))["result"] == {}


def test_large_answers_pass_up_to_the_limit() -> None:
    with ready_worker() as (_, front):
        assert len(front.text(front.tool("blob", kib=63 * 1024))) == 63 * 1024 * 1024


def test_a_message_above_the_limit_is_an_error_for_its_caller_alone() -> None:
    with ready_worker(message_bytes=1024 * 1024) as (worker, front):
        slow = front.tool("sleep", ms=500)
        error = front.error(front.tool("blob", kib=1024))
        assert (error["code"], error["data"]["limit_bytes"]) == (-10004, 1024 * 1024)
        assert "message_max" in error["message"]
        assert front.text(slow)
        assert len(front.text(front.tool("blob", kib=1000))) == 1000 * 1024
        worker.read(LogLines)
        assert "metamcp: a message was passed over" in worker.logs["stderr"][0]


def test_a_line_without_end_lasts_as_long_as_the_call_may_and_fills_nothing() -> None:
    with ready_worker("--huge-line", message_bytes=1024 * 1024, timeout_s=0.5) as (worker, front):
        before = memory_mib(worker.process.pid)
        assert front.error(front.tool("blob"))["code"] == -10003
        assert memory_mib(worker.process.pid) - before < 16
        assert worker.stop().reason == "clean"


@pytest.mark.parametrize("flag", ["--stdout-flood", "--stderr-flood"])
def test_a_flood_starves_nobody_and_fills_nothing(flag: str) -> None:
    with ChildWorker(flag) as worker:
        worker.ready()
        before = memory_mib(worker.process.pid)
        front = worker.front()
        for number in range(3):
            assert front.text(front.tool("echo", text=str(number))) == str(number)
        while not worker.dropped:
            worker.read(LogLines)
        assert memory_mib(worker.process.pid) - before < 16
        assert worker.logs["stdout" if "stdout" in flag else "stderr"]
        assert worker.stop().reason == "clean"


@pytest.mark.parametrize("kind", ["", "tools/list_changed", "requests"])
def test_a_flood_is_read_at_a_pace_that_leaves_the_processor_to_others(kind: str) -> None:
    with ChildWorker(*(("--flood", kind) if kind else ("--stdout-flood",))) as worker:
        worker.ready()
        front = worker.front()
        while not worker.counts.get("throttled"):
            worker.read(EventCounts)
        used_s, began = processor_s(worker.process.pid), time.monotonic()
        assert front.text(front.tool("echo", text="x")) == "x"
        front.seen.clear()
        params = b'{"name":"progress","arguments":{"n":20}}'
        assert front.text(front.call("tools/call", params, wants_progress=True))
        assert len(front.progress()) == 20
        worker.read(Heartbeat)
        worker.read(Heartbeat)
        assert processor_s(worker.process.pid) - used_s < 0.2 * (time.monotonic() - began)
        assert worker.stop().reason == "clean"


def test_a_flood_without_line_ends_on_stderr_stays_small() -> None:
    program = (
        "import os, sys\n"
        "for _ in range(300): os.write(2, b'x' * 65536)\n"
        "os.write(2, b'\\n')\nsys.stdin.read()\n"
    )
    with ChildWorker(command=(SERVER[0], "-c", program)) as worker:
        worker.read(Spawned)
        before = memory_mib(worker.process.pid)
        worker.read(LogLines)
        assert worker.logs["stderr"] == ["x" * LOG_LINE_BYTES_MAX]
        assert memory_mib(worker.process.pid) - before < 16
        worker.stop()


def test_a_server_that_reads_no_more_is_overloaded_and_blocks_nobody() -> None:
    with ready_worker(timeout_s=2.0) as (worker, front):
        front.text(front.tool("deafen"))
        large = b'{"name":"echo","arguments":{"text":"' + b"x" * (15 * 1024 * 1024) + b'"}}'
        sent = [front.call("tools/call", large) for _ in range(4)]
        # Two fit into the queue and a third goes over it; what comes then is refused at once.
        error = front.error(sent[3])
        assert (error["code"], "does not read its input" in error["message"]) == (-10002, True)
        assert [front.error(number)["code"] for number in sent[:3]] == [-10003] * 3
        assert memory_mib(worker.process.pid) < 300


@pytest.mark.live
def test_a_stopped_server_is_overloaded_after_a_while() -> None:
    with ChildWorker(timeout_s=60.0) as worker:
        pid = worker.read(Spawned)[0].pid
        worker.ready()
        front = worker.front()
        os.kill(pid, signal.SIGSTOP)
        waiting = front.call("tools/call", b'{"name":"echo","a":"' + b"x" * 200_000 + b'"}')
        codes: list[int] = []
        while not codes or codes[-1] == -10003:
            codes.append(front.error(front.call("x", b"{}", deadline_ms=500))["code"])
        assert codes[-1] == -10002
        assert codes.count(-10003) * 0.5 <= stdio.WRITE_S_MAX + 2
        os.kill(pid, signal.SIGCONT)
        answered = front.read()
        assert isinstance(answered, Result)
        assert answered.id == waiting


def test_a_server_that_closes_its_output_is_ended() -> None:
    with ChildWorker("--ignore-eof", stop_eof_s=0.1) as worker:
        pid = worker.read(Spawned)[0].pid
        worker.ready()
        front = worker.front()
        front.tool("close_stdout")
        assert front.down()["reason"] == "protocol"
        assert "it closed its output but did not exit" in worker.down().message
        assert not alive(pid)


def test_what_comes_for_a_server_that_cannot_be_written_to_hears_that_it_went_down() -> None:
    with ready_worker("--ignore-eof", stop_eof_s=0.1) as (_, front):
        assert front.text(front.tool("close_stdin")) == "closed"

        def told() -> bool:
            front.tool("echo", text="nobody reads this")
            return not front.quiet()

        until(told, "the front hears something")
        assert front.down()["reason"] == "protocol"
        assert not [frame for frame in front.seen if isinstance(frame, Error)]


def test_endless_pages_do_not_keep_a_server_from_starting() -> None:
    with ChildWorker("--cursor-loop", "--tools", "5", "--page", "3") as worker:
        assert worker.ready().tools
        worker.stop()
        assert any("a cursor came twice" in line for line in worker.logs["stderr"])


@pytest.mark.live
def test_a_front_that_does_not_read_holds_no_memory_without_bound() -> None:
    with ChildWorker() as worker:
        worker.ready()
        lazy, busy = worker.front(1), worker.front(2)
        sent = [lazy.tool("blob", kib=10 * 1024) for _ in range(12)]
        assert busy.text(busy.tool("echo", text="still here")) == "still here"
        assert memory_mib(worker.process.pid) < 300
        answers = [lazy.answer(number) for number in sent]
        lost = [json.loads(one.body) for one in answers if isinstance(one, Error)]
        assert 0 < len(lost) < len(sent)
        assert {one["code"] for one in lost} == {-10002}
        assert lazy.text(lazy.tool("echo", text="caught up")) == "caught up"


def test_a_large_answer_that_waits_for_a_front_costs_another_call_no_progress() -> None:
    with ChildWorker() as worker:
        worker.ready()
        lazy, busy = worker.front(1), worker.front(2)
        large = lazy.tool("blob", kib=4 * 1024)
        steps = lazy.call(
            "tools/call", b'{"name":"progress","arguments":{"n":3}}', wants_progress=True
        )
        assert busy.text(busy.tool("echo", text="behind both")) == "behind both"
        assert isinstance(lazy.answer(large), Result)
        assert lazy.text(steps) == "3 steps"
        assert [one["progress"] for one in lazy.progress()] == [1, 2, 3]
