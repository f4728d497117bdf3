"""A worker with a real server: start, calls, lists, log, several fronts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.frames import Cancel, Error, Notice
from metamcp_worker.ipc.messages import (
    AttachFailed,
    AttachFront,
    CatalogueChanged,
    Heartbeat,
    LogLines,
    ServerReady,
    Spawned,
)
from tests.worker.child.worker import SERVER, ChildWorker, alive, ready_worker

pytestmark = pytest.mark.process

ERAS = pytest.mark.parametrize("era", ["legacy", "modern", "both"])


@ERAS
@pytest.mark.promise("M10")
def test_a_server_starts_is_listed_and_answers(era: str) -> None:
    with ChildWorker("--era", era, "--tools", "30", "--page", "7", "--prompts") as worker:
        spawned, _ = worker.read(Spawned)
        assert alive(spawned.pid)
        assert os.getpgid(spawned.pid) == spawned.pid
        ready, blob = worker.read(ServerReady)
        assert ready.protocol == ("2025-11-25" if era == "legacy" else "2026-07-28")
        lists = json.loads(blob)
        assert (len(lists["prompts"]), lists.get("resources", [])) == (1, [])
        tools = lists["tools"]
        assert {"echo", "t000", "t029"} <= {tool["name"] for tool in tools}
        assert tools[0]["_meta"] == {"example.com/vendor": {"kept": 1.0}}
        front = worker.front()
        assert front.text(front.tool("echo", text="héllo")) == "héllo"
        assert worker.stop().reason == "clean"


@ERAS
@pytest.mark.promise("M22")
def test_parameters_reach_the_server_byte_for_byte(era: str) -> None:
    members = (
        b'"name":"raw","arguments":{ "z":1.0,"n":123456789012345678901, "z":2,"u":"\\u00e9\\/" }'
    )
    with ready_worker("--era", era) as (_, front):
        number = front.call("tools/call", b"{" + members + b"}", meta=b'{"v/x":1.0}')
        got = front.text(number)
        assert got.endswith("," + members.decode() + "}")
        assert '"v/x":1.0' in got


def test_results_and_errors_come_back_byte_for_byte() -> None:
    with ready_worker("--era", "legacy") as (_, front):
        result = front.answer(front.tool("echo", text="x"))
        assert b'"x-result": {"kept": [1, 2.5, null]}' in result.body
        assert front.error(front.tool("error")) == {
            "code": -32050,
            "message": "a failure",
            "x-error": ["kept"],
            "data": {"reason": "scripted", "n": 1.0},
        }
        assert json.loads(front.answer(front.tool("fail")).body)["isError"] is True


def test_the_environment_and_the_directory_are_the_ones_given(tmp_path: Path) -> None:
    with ready_worker(env={"ONLY": "this"}, cwd=str(tmp_path)) as (_, front):
        found: dict[str, Any] = json.loads(front.text(front.tool("environ")))
        assert found["environ"] == {"ONLY": "this", "LC_CTYPE": "C.UTF-8"}
        assert found["cwd"] == str(tmp_path)


def test_slow_and_quick_calls_overlap() -> None:
    with ready_worker() as (_, front):
        slow, quick = front.tool("sleep", ms=300), front.tool("echo", text="quick")
        assert front.text(quick) == "quick"
        assert front.text(slow) == "slept 300 ms"


@ERAS
@pytest.mark.promise("M23")
def test_progress_and_log_messages_reach_the_front(era: str) -> None:
    with ready_worker("--era", era) as (_, front):
        call = codec.dump({"name": "progress", "arguments": {"n": 3}})
        front.answer(front.call("tools/call", call, wants_progress=True))
        assert [one["progress"] for one in front.progress()] == [1, 2, 3]
        assert not any("progressToken" in one for one in front.progress())
        call = codec.dump({"name": "log", "arguments": {"text": "hello"}})
        number = front.call("tools/call", call, caller=b'{"logLevel":"info"}')
        front.text(number)
        (notice,) = [one for one in front.seen if isinstance(one, Notice)]
        assert (notice.method, notice.id) == ("notifications/message", number)
        assert json.loads(notice.body)["data"] == "hello"


@ERAS
@pytest.mark.promise("M28")
def test_a_changed_list_is_read_again(era: str) -> None:
    with ChildWorker("--era", era) as worker:
        _, before = worker.read(ServerReady)
        front = worker.front()
        assert front.text(front.tool("change")) == "new0"
        _, after = worker.read(CatalogueChanged)
        offered = [{one["name"] for one in json.loads(each)["tools"]} for each in (before, after)]
        assert offered[1] == {*offered[0], "new0"}


@pytest.mark.promise("M23")
def test_a_cancelled_call_is_never_answered() -> None:
    with ready_worker() as (worker, front):
        cancelled = front.tool("sleep", ms=50)
        front.send(Cancel(cancelled, b"enough"))
        assert front.text(front.tool("sleep", ms=200)) == "slept 200 ms"
        assert worker.counted("late_reply") == 1
        assert front.seen == []


def test_a_call_that_takes_too_long_is_answered_with_an_error() -> None:
    with ready_worker(timeout_s=0.3) as (worker, front):
        error = front.error(front.tool("sleep", ms=600))
        assert (error["code"], error["data"]) == (-10003, {"server": "fake", "timeout_s": 0.3})
        assert worker.counted("late_reply") == 1


def test_more_calls_than_the_server_may_have_are_refused() -> None:
    with ready_worker(concurrency=2, queue=2) as (worker, front):
        for _ in range(4):
            front.tool("sleep", ms=200)
        assert front.error(front.tool("echo"))["code"] == -10002
        beat, _ = worker.read(Heartbeat)
        assert beat.inflight <= 2


def test_fronts_have_numbers_of_their_own() -> None:
    with ChildWorker() as worker:
        worker.ready()
        one, two = worker.front(1), worker.front(2)
        slow = one.tool("sleep", ms=100)
        assert two.text(two.tool("echo", text="two")) == "two"
        assert one.text(slow) == "slept 100 ms"
        one.close()
        assert two.text(two.tool("echo", text="still")) == "still"


def test_a_new_pipe_replaces_the_older_one_of_its_front() -> None:
    with ChildWorker() as worker:
        worker.ready()
        older = worker.front(1)
        older.tool("sleep", ms=100)
        assert older.text(older.tool("echo", text="the slow one is on its way")) != ""
        newer = worker.front(1)
        assert newer.text(newer.tool("sleep", ms=300)) == "slept 300 ms"
        assert worker.counted("late_reply") == 1
        with pytest.raises(EOFError):
            older.read()


def test_a_front_without_its_descriptor_is_reported() -> None:
    with ChildWorker() as worker:
        worker.ready()
        limit = worker.limit_files(3)
        packets.send(worker.sock, messages.pack(AttachFront(front=9)), [0])
        failed, _ = worker.read(AttachFailed)
        assert (failed.what, failed.number) == ("front", 9)
        worker.limit_files(limit)
        front = worker.front(9)
        assert front.text(front.tool("echo", text="better")) == "better"


def test_the_worker_beats_from_the_beginning() -> None:
    with ChildWorker("--hang") as worker:
        first, _ = worker.read(Heartbeat)
        second, _ = worker.read(Heartbeat)
        assert (first.seq, second.seq) == (1, 2)


@pytest.mark.promise("M18")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": ("no-such-program",)}, "cannot start fake: no program 'no-such-program' on"),
        ({"command": ("/no/such",)}, "cannot start fake: no program '/no/such'"),
        ({"command": ("/etc/passwd",)}, "'/etc/passwd' is not an executable file"),
        ({"command": ("/",)}, "'/' is not an executable file"),
        ({"command": ("/etc/passwd/x",)}, "cannot start fake: no program '/etc/passwd/x'"),
        ({"command": ("/",), "cwd": "/"}, "'/' is not an executable file"),
        (
            {"command": ("no-such-program",), "env": {"PATH": "/etc/passwd:/bin"}},
            "cannot start fake: no program 'no-such-program' on the PATH",
        ),
        ({"cwd": "/no/such"}, "its working directory '/no/such' cannot be entered: No such file"),
        ({"cwd": "/etc/passwd"}, "'/etc/passwd' cannot be entered: Not a directory"),
        ({"cwd": "a\0b"}, "cannot be entered: embedded null byte"),
        ({"command": ("a\0b",)}, "cannot be passed to the system"),
        ({"command": ()}, "it has neither a command nor a module"),
    ],
)
def test_what_cannot_be_started_is_told_in_one_sentence(
    fields: dict[str, Any], message: str
) -> None:
    with ChildWorker(**fields) as worker:
        down = worker.down()
        assert down.reason == "spawn"
        assert message in down.message
        worker.rest()
        assert worker.process.wait(10) == 1


def test_a_file_that_is_no_program_cannot_be_started(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo without a first line")
    script.chmod(0o755)
    with ChildWorker(command=(str(script),)) as worker:
        assert "has no '#!' line" in worker.down().message


@pytest.mark.parametrize("flag", ["--hang", "--deaf", "--string-ids"])
def test_a_server_that_does_not_answer_is_given_up_in_time(flag: str) -> None:
    with ChildWorker(flag, start_timeout_s=0.6, stop_eof_s=0.1) as worker:
        front = worker.front()
        pid = worker.read(Spawned)[0].pid
        assert front.down()["reason"] == "start_timeout"
        assert worker.down().reason == "start_timeout"
        assert not alive(pid)


def test_a_server_without_lists_starts_without_them() -> None:
    with ChildWorker("--list-error", list_timeout_s=0.5) as worker:
        found = worker.ready()
        assert (found.tools, found.unread) == ((), ("tools",))
        front = worker.front()
        assert front.text(front.tool("echo", text="hi")) == "hi"


@pytest.mark.parametrize("flags", [("--silent-probe",), ("--slow-start", "600")])
def test_a_server_that_is_silent_at_first_still_starts(flags: tuple[str, ...]) -> None:
    with ChildWorker("--era", "legacy", *flags, start_timeout_s=2.0) as worker:
        assert worker.ready().protocol == "2025-11-25"


def test_a_modern_server_that_reads_late_is_still_seen_as_modern() -> None:
    with ChildWorker("--era", "modern", "--slow-start", "600", start_timeout_s=2.0) as worker:
        assert worker.ready().protocol == "2026-07-28"


def test_a_server_that_exits_when_probed_says_how_to_start_it() -> None:
    with ChildWorker("--era", "legacy", "--exit-on-probe") as worker:
        down = worker.down()
        assert (down.reason, down.code, down.probing) == ("exit", 1, True)
        assert "expected initialize, got server/discover" in down.message
    with ChildWorker("--era", "legacy", "--exit-on-probe", era="legacy-first") as worker:
        assert worker.ready().protocol == "2025-11-25"


def test_what_it_says_on_stderr_is_logged() -> None:
    program = "import sys; sys.stderr.write('one\\ntwo\\xff'); sys.stdin.read()"
    with ChildWorker(command=(SERVER[0], "-c", program)) as worker:
        worker.read(LogLines)
        worker.stop()
        assert worker.logs["stderr"] == ["one", "two\xff"]


def test_a_call_whose_turn_comes_when_the_server_reads_no_more_is_refused_at_once() -> None:
    with ready_worker(concurrency=4) as (_, front):
        for _ in range(3):
            front.tool("sleep", ms=1000)
        front.tool("deafen")
        for _ in range(4):
            front.tool("echo", text="x" * 12_000_000)
        answers = [front.read() for _ in range(5)]
        (refused,) = [one for one in answers if isinstance(one, Error)]
        assert b"does not read its input" in refused.body
