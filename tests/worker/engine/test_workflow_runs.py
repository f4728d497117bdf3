"""Runs of workflows in the true process of the engine, also when it is killed."""

import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from metamcp_worker.engine.run_journal import JournalError
from metamcp_worker.engine.workflow_run import RunRecord
from metamcp_worker.engine.workflow_run_io import RunTrace
from metamcp_worker.http.mcp_headers import SAMPLED, TraceContext
from metamcp_worker.ipc.engine_runs import HostAsk, HostDone, RunOwner
from metamcp_worker.ipc.messages import INTERNAL, SPAN_KIND, SPAN_STATUS, Span
from tests.waiting import until
from tests.worker.engine.engines import (
    OWNER,
    WAIT_S,
    Engine,
    Peer,
    Tool,
    by_name,
    echo,
    engine,
    result,
)

Rows = Callable[[str], dict[str, tuple[str, int]]]

pytestmark = [pytest.mark.process]
CRASH_RUNS = int(os.environ.get("METAMCP_CRASH_RUNS", "4"))
"""Number of random definitions; the acceptance has 200."""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
OTHER_KILLS_MAX = 3
"""Maximum kills of a run after decisions and at any time, besides those of its steps."""


def workflow(*steps: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"name": "w", "steps": list(steps), **members}


def call(name: str, **members: Any) -> dict[str, Any]:
    return {"id": name, "call": name, "with": {"x": 1}, **members}


@pytest.mark.promise("M52")
def test_a_run_gives_the_results_of_steps_to_later_ones(tmp_path: Path) -> None:
    steps = workflow(
        {"parallel": [call("a"), call("b")]},
        {"foreach": "${{ inputs.list }}", "steps": [{"call": "c", "with": {"y": "${{ item }}"}}]},
        {"output": {"a": "${{ steps.a.result.x }}", "b": "${{ steps.b.result }}"}},
        inputs={"list": {"type": "array"}},
    )
    with engine(tmp_path) as running:
        peer = running.peer()
        found, done = peer.ask("workflow/run", definition=steps, inputs={"list": [1, 2]})
        assert (found["output"], done.failed) == ({"a": 1, "b": {"x": 1}}, False)
        assert by_name([peer]) == {"a": 1, "b": 1, "c": 2}
        assert [one.progress for one in peer.progress] == [1, 2, 3]


@pytest.mark.promise("M88")
def test_a_run_of_a_traced_order_has_a_span_with_one_of_each_step_below(tmp_path: Path) -> None:
    def fails(ask: HostAsk) -> HostDone:
        return HostDone(call=ask.call, result=result("no", failed=True))

    each = {"id": "each", "foreach": [1], "steps": [call("c")]}
    last = {"id": "last", "call": "b"}
    steps = workflow(call("a"), call("b", may_fail=True), each, last)
    with engine(tmp_path) as running:
        peer = running.peer({"b": fails})
        peer.ask("workflow/run", definition=workflow(call("a")))
        assert peer.spans == [], "its order is not traced"
        peer.asked.clear()
        peer.trace = TRACEPARENT
        found, _ = peer.ask("workflow/run", definition=steps)
        *below, run = peer.spans
    assert (run.name, run.parent_id, run.error) == (
        "invoke_workflow w",
        "00f067aa0ba902b7",
        "failed",
    )
    assert run.attributes["metamcp.run"] == found["run"]
    told = [
        (span.attributes["metamcp.step"], span.error, span.attributes.get(SPAN_STATUS, ""))
        for span in below
    ]
    failed = "failed", "the step failed"
    assert told == [("a", "", ""), ("b", *failed), ("each[0]/c", "", ""), ("last", *failed)]
    for span, ask in zip(below, peer.asked, strict=True):
        assert (span.trace_id, span.parent_id, span.attributes[SPAN_KIND]) == (
            TRACE,
            run.span_id,
            INTERNAL,
        )
        meta = json.decode(ask.meta)
        assert meta["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
        assert run.start <= span.start <= span.end <= run.end


@pytest.mark.promise("M88")
@pytest.mark.parametrize("cancelled", [True, False])
def test_a_run_has_a_span_when_it_is_cancelled_and_none_when_its_engine_ends(
    tmp_path: Path, cancelled: bool
) -> None:
    with engine(tmp_path) as running:
        peer = running.peer({"a": lambda ask: None})
        peer.trace = TRACEPARENT
        found, _ = peer.ask("workflow/run", definition=workflow(call("a")), wait=False)
        until(lambda: peer.asked, "the step is under way")
        if cancelled:
            peer.ask("workflow/cancel", run=found["run"])
        running.replace()
    told = [(span.name, span.attributes.get(SPAN_STATUS, "")) for span in peer.spans]
    status = "the run was cancelled"
    assert told == ([("step a", status), ("invoke_workflow w", status)] if cancelled else [])


@pytest.mark.promise("M88")
@pytest.mark.parametrize(("error", "count"), [(JournalError("full"), 0), (ValueError(), 2)])
def test_a_run_that_cannot_be_noted_has_not_ended(error: Exception, count: int) -> None:
    spans: list[Span] = []
    record = RunRecord(id="r", name="w", hash="", owner=OWNER)
    trace = RunTrace(TraceContext(TRACE, "00f067aa0ba902b7", SAMPLED), record, spans.append)
    with pytest.raises(type(error)), trace.trace_run(), trace.trace_step("a"):
        raise error
    assert len(spans) == count


@pytest.mark.promise("M88")
def test_a_span_goes_to_the_front_of_its_order_alone(tmp_path: Path) -> None:
    """Another front may be of a version that knows no such spans."""
    harmless = frozenset({"a"})
    with engine(tmp_path) as running:
        first = running.peer({"a": lambda ask: None}, harmless=harmless)
        other = running.peer(front="other", harmless=harmless)
        first.trace = TRACEPARENT
        found, _ = first.ask("workflow/run", definition=workflow(call("a")), wait=False)
        until(lambda: first.asked, "the step is under way")
        first.close()
        ended, _ = other.ask("workflow/status", run=found["run"], wait=True)
    assert (ended["status"], by_name([other])) == ("done", {"a": 1})
    assert first.spans == other.spans == []


@pytest.mark.promise("M52")
def test_a_run_takes_the_first_case_that_holds_and_leaves_out_steps_that_are_not_wanted(
    tmp_path: Path,
) -> None:
    steps = workflow(
        {"id": "chosen", "switch": [
            {"when": "inputs.n > 2", "steps": [call("a"), {"output": "many"}]},
            {"when": "inputs.n > 1", "steps": [call("b"), {"output": "some"}]},
            {"else": True, "steps": [call("c"), {"output": "few"}]},
        ]},
        call("d", when="inputs.n == 1"),
        {"output": "${{ steps.chosen.result }}"},
        inputs={"n": {"type": "integer"}},
    )  # fmt: skip
    with engine(tmp_path) as running:
        for n, output, called in ((3, "many", {"a"}), (2, "some", {"b"}), (1, "few", {"c", "d"})):
            peer = running.peer()
            found, _ = peer.ask("workflow/run", definition=steps, inputs={"n": n})
            assert (found["output"], set(by_name([peer]))) == (output, called)


@pytest.mark.promise("M52")
def test_a_step_that_may_fail_tells_later_ones_why(tmp_path: Path) -> None:
    def wrong(ask: HostAsk) -> HostDone:
        return HostDone(call=ask.call, result=result("no such file", failed=True))

    steps = workflow(
        call("a", may_fail=True),
        {"output": {"why": "${{ steps.a.error }}", "result": "${{ steps.a.result }}"}},
    )
    with engine(tmp_path) as running:
        found, done = running.peer({"a": wrong}).ask("workflow/run", definition=steps)
        assert not done.failed
        assert "no such file" in found["output"]["why"]
        assert found["output"]["result"] is None


@pytest.mark.promise("M52")
@pytest.mark.parametrize("safe", [False, True])
def test_a_step_without_an_answer_in_time_runs_again_only_if_that_is_safe(
    tmp_path: Path, safe: bool
) -> None:
    """The front says that the time is over; the call may have happened."""

    def late(ask: HostAsk) -> HostDone:
        assert ask.timeout_ms == 2000
        first = sum(one.name == "a" for one in peer.asked) == 1
        return HostDone(call=ask.call, trouble="timeout", error="too late") if first else echo(ask)

    retry = {"attempts": 2, "backoff": "1ms", "on": ["timeout"]}
    steps = workflow(call("a", timeout="2s", retry=retry, safe=safe), {"output": "over"})
    with engine(tmp_path) as running:
        peer = running.peer({"a": late})
        begun, _ = peer.ask("workflow/run", definition=steps, wait=False)
        found = reached(peer, lambda found: found["status"] != "running")
        assert found["run"] == begun["run"]
        assert (found["status"], by_name([peer])["a"]) == (
            ("done", 2) if safe else ("needs_decision", 1)
        )


def test_a_run_that_fails_names_itself_and_its_step(tmp_path: Path) -> None:
    def wrong(ask: HostAsk) -> HostDone:
        return HostDone(call=ask.call, result=result("no such file", failed=True))

    with engine(tmp_path) as running:
        peer = running.peer({"b": wrong})
        steps = workflow(call("a"), call("b", retry={"attempts": 2, "backoff": "1ms"}), call("c"))
        found, done = peer.ask("workflow/run", definition=steps)
        assert done.failed
        assert found["run"] in done.text
        assert "'b'" in done.text
        assert "no such file" in done.text
        assert by_name([peer]) == {"a": 1, "b": 2}
        assert len({bytes(ask.meta) for ask in peer.asked if ask.name == "b"}) == 1


def test_wrong_inputs_are_told_with_their_path(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        steps = workflow(call("a"), inputs={"n": {"type": "integer"}})
        _, done = running.peer().ask("workflow/run", definition=steps, inputs={"n": "x"})
        assert done.failed
        assert "inputs.n" in done.text


def test_a_client_sees_its_own_runs_and_the_operator_all(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        peer = running.peer()
        found, _ = peer.ask("workflow/run", definition=workflow(call("a")))
        other = running.peer(owner=RunOwner(endpoint="default", name="other"))
        operator = running.peer(front="", owner=RunOwner(endpoint="default", name="root"))
        assert other.ask("workflow/status", run=found["run"])[1].failed
        assert other.ask("workflow/runs")[0]["runs"] == []
        assert operator.ask("workflow/status", run=found["run"])[0]["status"] == "done"


def test_a_cancelled_run_calls_nothing_more(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        peer = running.peer()
        steps = workflow({"wait": "1s"}, call("a"))
        found, _ = peer.ask("workflow/run", definition=steps, wait=False)
        assert peer.ask("workflow/cancel", run=found["run"])[0]["status"] == "cancelled"
        running.kill()
        running.start()
        later = running.peer()
        later.ask("workflow/run", definition=workflow({"wait": "1s"}, call("b")))
        assert by_name([peer, later]) == {"b": 1}
        assert later.ask("workflow/status", run=found["run"])[0]["status"] == "cancelled"


@pytest.mark.promise("M52")
@pytest.mark.parametrize(
    "pause",
    [{"wait": "1d"}, call("c", retry={"attempts": 2, "backoff": "1h", "on": ["error"]})],
    ids=["wait", "retry"],
)
def test_a_failure_ends_the_pauses_beside_it(tmp_path: Path, pause: dict[str, Any]) -> None:
    def wrong(ask: HostAsk) -> HostDone:
        return HostDone(call=ask.call, result=result("no such file", failed=True))

    def once(step: dict[str, Any]) -> bool:
        return bool(step["attempts"] == 1)

    held: list[HostAsk] = []
    with engine(tmp_path) as running:
        peer = running.peer({"b": held.append, "c": wrong})
        steps = workflow({"parallel": [pause, call("b")]}, call("d"))
        order = peer.order("workflow/run", definition=steps)
        reached(peer, lambda found: bool(held and found["steps"]) and once(found["steps"][0]))
        peer.send(wrong(held[0]))
        done = peer.done(order)
        assert done is not None
        found: dict[str, Any] = json.decode(done.structured)
        assert (found["status"], found["step"]) == ("failed", "0/b")
        assert {row["status"] for row in found["steps"]} == {"failed", "cancelled"}


@pytest.mark.promise("M52")
def test_a_run_that_has_ended_when_it_is_cancelled_stays_done(tmp_path: Path) -> None:
    held: list[HostAsk] = []
    with engine(tmp_path) as running:
        peer = running.peer({"a": held.append})
        order = peer.order("workflow/run", definition=workflow(call("a"), {"output": "over"}))
        run = reached(peer, lambda _: bool(held))["run"]
        with closing(sqlite3.connect(tmp_path / "workflows.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # the engine cannot write the end of the run now
            peer.send(echo(held[0]))
            peer.ask("workflows")
            cancel = peer.order("workflow/cancel", run=run)
            peer.ask("workflows")
        for each in (order, cancel):
            done = peer.done(each)
            assert done is not None
            found: dict[str, Any] = json.decode(done.structured)
            assert (found["status"], found["output"]) == ("done", "over")
        assert peer.ask("workflow/status", run=run)[0]["status"] == "done"
        assert journal(running.folder, run) == {"a": ("done", 1)}


def test_a_connection_with_rubbish_is_closed_alone(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        peer, rude = running.peer(), running.peer()
        rude.sock.sendall(b"\x05\0\0\0hello")
        assert rude.done(1) is None
        assert not peer.ask("workflow/run", definition=workflow(call("a")))[1].failed


@pytest.mark.promise("M52")
def test_secrets_are_in_no_file_and_a_run_without_them_fails_clearly(tmp_path: Path) -> None:
    steps = workflow(
        {"wait": "3s"},
        {"id": "a", "call": "a", "with": {"key": "${{ inputs.key }}"}, "safe": True},
        inputs={"key": {"type": "string", "secret": True}},
    )  # fmt: skip
    with engine(tmp_path) as running:
        peer = running.peer()
        inputs = {"key": "hunter2-hunter2"}
        whole, _ = peer.ask(
            "workflow/run",
            definition=workflow(steps["steps"][1], inputs=steps["inputs"]),
            inputs=inputs,
        )
        assert b"hunter2" in bytes(peer.asked[0].arguments)
        assert whole["output"] == {"key": "[secret]"}
        found, _ = peer.ask("workflow/run", definition=steps, inputs=inputs, wait=False)
        running.kill()
        running.start()
        ended = finished(running.peer(), found["run"])
        assert ended["status"] == "failed"
        assert "secret input 'key'" in ended["error"]
        for file in tmp_path.glob("workflows.db*"):
            assert b"hunter2" not in file.read_bytes()


@pytest.mark.promise("M52")
def test_an_unsafe_step_that_was_interrupted_parks_until_a_decision(tmp_path: Path) -> None:
    with engine(tmp_path) as running:

        def deadly(ask: HostAsk) -> None:
            running.process.kill()

        first = running.peer({"b": deadly})
        order = first.order("workflow/run", definition=workflow(call("a"), call("b"), call("c")))
        assert first.done(order) is None
        running.kill()
        running.start()
        peer = running.peer()
        run = peer.ask("workflow/runs")[0]["runs"][0]["run"]
        parked = finished(peer, run)
        assert (parked["status"], parked["step"]) == ("needs_decision", "b")
        peer.ask("workflow/decide", run=run, step="b", decision="retry")
        assert finished(peer, run, parked=False)["status"] == "done"
        assert by_name([first, peer]) == {"a": 1, "b": 2, "c": 1}
        keys = {bytes(one.meta) for each in (first, peer) for one in each.asked if one.name == "b"}
        assert len(keys) == 1


@pytest.mark.promise("M52")
@pytest.mark.parametrize("harmless", [False, True])
def test_a_server_that_goes_down_with_the_gateway_does_not_fail_the_step(
    tmp_path: Path, harmless: bool
) -> None:
    """All processes are killed, and the engine hears of the end of the server first."""
    with engine(tmp_path) as running:

        def down(ask: HostAsk) -> None:
            text = "server 's' went down while this call was with it"
            first.send(HostDone(call=ask.call, trouble="unavailable", error=text))
            running.lose_supervisor()

        first = running.peer({"b": down})
        steps = workflow(call("a"), call("b"))
        run = first.ask("workflow/run", definition=steps, wait=False)[0]["run"]
        running.process.wait(WAIT_S)
        running.kill()
        assert journal(tmp_path, run)["b"] == ("running", 1)
        running.start()
        peer = running.peer(harmless=frozenset("b" if harmless else ""))
        found = finished(peer, run)
        assert found["status"] == ("done" if harmless else "needs_decision")
        assert by_name([first, peer]) == {"a": 1, "b": 2 if harmless else 1}


def test_a_server_that_goes_down_by_itself_fails_the_step(tmp_path: Path) -> None:
    def down(ask: HostAsk) -> HostDone:
        return HostDone(call=ask.call, trouble="unavailable", error="it went down")

    with engine(tmp_path) as running:
        peer = running.peer({"a": down}, harmless=frozenset("a"))
        found, _ = peer.ask("workflow/run", definition=workflow(call("a")))
        assert (found["status"], found["error"]) == ("failed", "it went down")
        assert by_name([peer]) == {"a": 1}


@pytest.mark.promise("M52")
@pytest.mark.parametrize("harmless", [False, True])
def test_a_step_that_a_process_of_the_gateway_took_along_runs_again_only_if_that_is_safe(
    tmp_path: Path, harmless: bool
) -> None:
    def lost(ask: HostAsk) -> HostDone:
        if len(peer.asked) > 1:
            return echo(ask)
        gone = "its worker process is gone"
        return HostDone(call=ask.call, trouble="unavailable", error=gone, lost=True)

    with engine(tmp_path) as running:
        peer = running.peer({"a": lost}, harmless=frozenset("a" if harmless else ""))
        begun, _ = peer.ask("workflow/run", definition=workflow(call("a")), wait=False)
        found = finished(peer, begun["run"])
        if harmless:
            assert (found["status"], by_name([peer])["a"]) == ("done", 2)
        else:
            assert (found["status"], found["error"]) == (
                "needs_decision",
                "its worker process is gone",
            )


@pytest.mark.promise("M52")
def test_a_step_that_waits_for_a_decision_is_told_when_those_beside_it_have_ended(
    tmp_path: Path,
) -> None:
    with engine(tmp_path) as running:
        process = running.process

        def deadly(ask: HostAsk) -> None:
            process.kill()

        first = running.peer({"b": deadly, "c": lambda _: None})
        steps = workflow({"parallel": [call("b"), call("c", safe=True)]})
        first.done(first.order("workflow/run", definition=steps))
        run = first.asked[0].run
        running.kill()
        running.start()
        peer = running.peer({"c": lambda _: None})
        until = time.monotonic() + WAIT_S
        found: dict[str, Any] = {"steps": []}
        while not peer.asked or "needs_decision" not in {row["status"] for row in found["steps"]}:
            assert time.monotonic() < until
            found, _ = peer.ask("workflow/status", run=run)
        assert found["status"] == "running"
        peer.send(echo(peer.asked[0]))
        assert finished(peer, run)["status"] == "needs_decision"


@pytest.mark.promise("M52")
@pytest.mark.parametrize("decision", ["retry", "skip", "fail"])
def test_a_decision_that_was_answered_is_in_the_journal(tmp_path: Path, decision: str) -> None:
    with engine(tmp_path) as running:
        first = running.peer({"b": lambda _: running.process.kill()})
        first.done(first.order("workflow/run", definition=workflow(call("b"))))
        run = first.asked[0].run
        running.kill()
        running.start()
        peer = running.peer()
        finished(peer, run)
        _, done = peer.ask("workflow/decide", run=run, step="b", decision=decision)
        running.kill()
        assert not done.failed
        assert journal(running.folder, run)["b"] != ("needs_decision", 1)


def finished(peer: Peer, run: str, *, parked: bool = True) -> dict[str, Any]:
    """The run when it has ended, or waits for a decision if `parked`."""
    over = {"done", "failed", "cancelled"} | ({"needs_decision"} if parked else set[str]())
    until = time.monotonic() + WAIT_S
    while True:
        found, done = peer.ask("workflow/status", run=run)
        assert found, done.text
        if found["status"] in over:
            return found
        assert time.monotonic() < until, found


def reached(peer: Peer, there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The latest run as soon as it is as wanted."""
    until = time.monotonic() + WAIT_S
    while True:
        for one in peer.ask("workflow/runs")[0]["runs"]:
            found, _ = peer.ask("workflow/status", run=one["run"])
            if there(found):
                return found
        assert time.monotonic() < until


def journal(folder: Path, run: str) -> dict[str, tuple[str, int]]:
    """Status and attempt of each step, as a crash left them: read in a copy, not mended by us."""
    with tempfile.TemporaryDirectory() as copy:
        for file in folder.glob("workflows.db*"):
            shutil.copy(file, copy)
        with closing(sqlite3.connect(f"{copy}/workflows.db")) as base:
            assert base.execute("SELECT count(*) FROM runs WHERE id = ?", (run,)).fetchone() == (1,)
            wanted = "SELECT path, status, attempt FROM steps WHERE run = ?"
            return {path: (status, n) for path, status, n in base.execute(wanted, (run,))}


def made(random_: random.Random) -> tuple[dict[str, Any], set[str], set[str]]:
    """A random definition, the tools that say that they are harmless, and those marked safe."""
    harmless, safe, count = set[str](), set[str](), 0

    def step(depth: int) -> dict[str, Any]:
        nonlocal count
        count += 1
        kind = random_.choice(["call"] * 4 + (["parallel", "foreach", "switch"] if depth else []))
        inner = [step(depth - 1) for _ in range(random_.randint(1, 2))] if kind != "call" else []
        if kind == "parallel":
            return {"parallel": inner}
        if kind == "foreach":
            return {"foreach": [1, 2], "as": f"item{depth}", "steps": inner}
        if kind == "switch":
            return {"switch": [{"when": "inputs.yes", "steps": inner}]}
        name = f"t{count}"
        sort = random_.choice(["harmless", "safe", "unsafe"])
        harmless.update([name] if sort == "harmless" else [])
        safe.update([name] if sort == "safe" else [])
        return {"call": name, "with": {"n": count}, **({"safe": True} if sort == "safe" else {})}

    steps = [step(2) for _ in range(random_.randint(2, 4))]
    inputs = {"yes": {"type": "boolean", "default": True}}
    return {"name": "w", "inputs": inputs, "steps": steps}, harmless, safe


def path_of(ask: HostAsk) -> str:
    key: str = json.decode(ask.meta)["io.metamcp/idempotency-key"]
    return key.partition(":")[2]


@pytest.mark.promise("M52")
@pytest.mark.parametrize("seed", range(CRASH_RUNS))
def test_no_kill_loses_a_step_or_repeats_a_completed_one(seed: int) -> None:
    check_kills(seed)


def check_kills(seed: int, rows: "Rows | None" = None, **members: Any) -> None:
    """The engine is killed inside of each step or at its end, after decisions and in between.
    `rows`: reads what `journal` does, of an engine with these settings."""
    random_ = random.Random(seed)
    definition, harmless, safe = made(random_)
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder)) as plain:
        peer = plain.peer()
        wanted = peer.ask("workflow/run", definition=definition)[0]
        calls = {path_of(ask): ask.name for ask in peer.asked}
        assert {row["step"] for row in wanted["steps"]} == set(calls)
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder), **members) as running:
        rows = rows or partial(journal, running.folder)
        crashes = Crashes(running, random_, calls, harmless, rows)
        found = crashes.ended(definition)
    assert found["output"] == wanted["output"]
    assert {(row["step"], row["status"]) for row in found["steps"]} == {(c, "done") for c in calls}
    assert set(crashes.called) == set(calls)
    for path, times in crashes.called.items():
        decisions = sum(step == path for step, _ in crashes.decided)
        if calls[path] in harmless | safe:
            assert decisions == 0, f"{path} may run twice, and needed a decision"
        else:
            assert times <= 1 + decisions, f"{path} is not safe, and ran without a decision"


class Crashes:
    """A run whose engine is killed again and again. `called`: calls by path; `decided`: path and
    attempt of each decision; `recorded`: steps that were done in the journal after a kill; `plans`:
    for the next calls of a path, kills inside of the step or at its end."""

    def __init__(
        self, running: Engine, random_: random.Random, calls: dict[str, str], harmless: set[str],
        rows: Rows,
    ) -> None:  # fmt: skip
        self.running = running
        self.rows = rows
        self.random = random_
        self.calls = calls
        self.harmless = frozenset(harmless)
        kinds = [("inside",), ("end",), ("inside", "end"), ("end", "inside")]
        self.plans = {path: list(random_.choice(kinds)) for path in sorted(calls)}
        self.others = OTHER_KILLS_MAX
        self.run = ""
        self.called: Counter[str] = Counter()
        self.decided: set[tuple[str, int]] = set()
        self.recorded: set[str] = set()

    def peer(self) -> Peer:
        process = self.running.process

        def tool(ask: HostAsk) -> HostDone | None:
            path = path_of(ask)
            assert path not in self.recorded, f"{path} was completed and is repeated"
            assert self.run in ("", ask.run)
            self.run = ask.run
            self.called[path] += 1
            kind = self.plans[path].pop() if self.plans[path] else ""
            if kind != "inside":
                found.send(echo(ask))
            if kind:
                process.kill()
            return None

        tools: dict[str, Tool] = dict.fromkeys(self.calls.values(), tool)
        found = self.running.peer(tools, harmless=self.harmless)
        return found

    def again(self) -> Peer:
        """Look into the journal, and start the engine again."""
        self.running.kill()
        rows = self.rows(self.run)
        done = {path for path, (status, _) in rows.items() if status == "done"}
        assert self.recorded <= done
        self.recorded |= done
        for path, attempt in self.decided:
            assert rows[path] != ("needs_decision", attempt), f"the decision on {path} is lost"
        self.running.start()
        return self.peer()

    def ended(self, definition: dict[str, Any]) -> dict[str, Any]:
        """Begin the run, decide and start engines until it is done."""
        peer = self.peer()
        peer.done(peer.order("workflow/run", definition=definition))
        until = time.monotonic() + WAIT_S
        while True:
            assert self.run, "the run was lost"
            end = peer.done(peer.order("workflow/status", run=self.run))
            if end is None:
                peer = self.again()
                continue
            state: dict[str, Any] = json.decode(end.structured)
            if state["status"] == "done":
                return state
            assert state["status"] in {"running", "needs_decision"}, state
            assert time.monotonic() < until, state
            if state["status"] == "needs_decision":
                self.decide(peer, state)
            if self.others and self.random.random() < 0.2:
                self.others -= 1
                self.running.kill()

    def decide(self, peer: Peer, state: dict[str, Any]) -> None:
        row = next(one for one in state["steps"] if one["step"] == state["step"])
        attempt = (row["step"], row["attempts"])
        assert attempt not in self.decided, f"{attempt} was decided already"
        order = peer.order("workflow/decide", run=self.run, step=row["step"], decision="retry")
        if (end := peer.done(order)) is not None:
            assert not end.failed, end.text
            self.decided.add(attempt)
